"""The HTTP server and the JSON mapping of the APIs."""
