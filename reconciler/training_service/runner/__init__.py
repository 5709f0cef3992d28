"""Process that owns one run and outlives the service: it prepares, starts and ends the run's replicas.

The scheduler starts it by `launcher.Runners`, and the two communicate by files in the run's folder. Begin at
`main`, then `replicas.Replicas`.
"""
