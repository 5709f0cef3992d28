"""Stand-ins for `gsutil` and `gcloud storage`, which published trainers call; they run inside of jobs.

They are clients of the storage, not parts of the service. Begin at `main`, which writes their launchers and
reads their command lines.
"""
