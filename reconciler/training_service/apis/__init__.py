"""REST methods of the service's APIs."""
