"""Values: manifests, jobs, claims, plans, and the ports to services."""
