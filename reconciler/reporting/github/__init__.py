"""GitHub's API: statuses, comments, settings."""
