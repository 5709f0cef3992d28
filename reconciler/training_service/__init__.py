"""Embedded training service: the cloud's REST paths on this machine, for jobs that really run.

The service imports only `base` of the reconciler: the reconciler reaches it by its API, like the cloud.
"""
