"""Import of jobs that people already have: gcloud command lines, config files, answers of the services."""
