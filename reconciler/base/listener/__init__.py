"""HTTP listener on loopback, for the training service and for the pages of `watch`, `open` and `serve`.

Any user of the machine can connect to it. `server` limits connections and judges each request by its head;
`message` has the requests and responses, which are independent of a server. Begin at `Listener`.
"""
