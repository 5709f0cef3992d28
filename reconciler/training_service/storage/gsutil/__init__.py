"""gsutil and gcloud storage, as trainers call them."""
