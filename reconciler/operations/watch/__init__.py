"""The watch loop: wake-ups, passes, reports, HTTP endpoints."""
