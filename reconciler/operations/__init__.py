"""Use cases: plan, apply, pull request, watch."""
