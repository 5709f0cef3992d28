"""Conversion of other descriptions of jobs to manifests, for `import` and `migrate`.

`importing` reads jobs that people already have, `migrating` moves AI Platform's jobs to Vertex AI, and
`adopt.adopt_jobs` binds live jobs to their new manifests. Begin at `importing.jobs` and at `migrating.jobs`.
No other package needs this one.
"""
