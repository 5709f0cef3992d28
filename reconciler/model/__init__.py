"""Values that the packages above exchange: manifests, jobs, claims, plans, and the ports to services.

It reads no file and asks no service. Begin at `manifest` and `naming` for desired jobs, at `job` and `claim`
for actual ones, and at `ports` for what submission asks of the outside.
"""
