"""Stand-ins for `gsutil` and `gcloud storage`, which trainers call."""
