"""Emulator of Vertex AI training and AI Platform Training on one machine, whose jobs really run.

It serves Google's REST API for `customJobs` and `hyperparameterTuningJobs` of Vertex AI and `projects.jobs`
of AI Platform, and for what trainers and clients need beside them: Cloud Storage, `entries.list` and
`entries.write` of Cloud Logging, `generateAccessToken`. Jobs train as processes or containers of this
machine, several replicas and tuning included, and outlive the service. Other methods of these APIs are
answered by 501 with a remedy: models, endpoints, pipelines, datasets. docs/embedded-service.md has the
differences from the cloud and the jobs that are refused, such as those with TPUs; docs/clients.md has the
clients that were tried.

To begin, install the extra `local` and run `python -m reconciler.training_service --home FOLDER --stay`: it
prints its address, and FOLDER/service.json has the URL and the token for `Authorization: Bearer`. Python code
of this repository uses `client` and nothing else of the package; the service itself imports only `base`.
`process` is the service's process, `gate` admits a request, and `application` carries it out.
"""
