"""HTTP server, discovery routing and JSON mapping of the service's APIs."""
