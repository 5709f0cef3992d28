"""Migration of AI Platform's jobs to Vertex AI, for `reconciler migrate`.

It rewrites manifests, reports each field and each obstacle, and finds what the trainers' code must change,
without running it. Begin at `jobs.migrate`; the rules are data, in `schemas/migration.json`.
"""
