"""Embedded training service: the cloud's REST paths on this machine, for jobs that really run.

The service imports only `base` of the reconciler: the reconciler reaches it by its API, like the cloud.
`process` is the service's process; `application` joins the APIs, and reads a stopped service's state. The
subpackages:

- `http`: the server, the check of tokens, routes and JSON by Google's discovery documents.
- `apis`: the methods of the training APIs, of Cloud Logging, and of credentials.
- `storage`: Cloud Storage, and `gsutil` for trainers.
- `state`: the database, its records, and the folders and logs of runs.
- `scheduler`: admission, progress and recovery of jobs.
- `tuning`: the search of hyper-parameters.
- `jobs`: translation of a job into the spec of its run.
- `runner`: the process that runs the replicas of one job.
- `environments`: the Python environments of trainers.
- `processes`: programs, their process trees, and container engines.
"""
