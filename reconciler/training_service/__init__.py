"""The embedded training service: the cloud's REST paths on one machine, and the jobs really run.

It imports nothing of the reconciler: the reconciler reaches it as it reaches the cloud, by its API.
"""
