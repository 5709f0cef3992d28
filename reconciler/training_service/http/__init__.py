"""HTTP side of the service: the server, the check of tokens, and routes and JSON by discovery documents.

For `application` and the methods in `apis` and `storage`, which get a decoded `call.Call`. Begin at
`discovery.match`, which finds the method of a request.
"""
