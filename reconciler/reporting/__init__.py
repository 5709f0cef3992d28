"""Commit statuses and pull request comments."""
