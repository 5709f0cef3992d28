"""Methods of the service's APIs but storage's, for `application`: training, logging and credentials.

Each class has `handlers()`, the methods by their ids. Begin at `training.JobHandlers`, which Vertex AI and AI
Platform share; `validation` and `unsupported` check a job before it is stored.
"""
