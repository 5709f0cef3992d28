"""Clients of the services that run jobs, by apiVersion, and the port `JobApi` by all of them."""
