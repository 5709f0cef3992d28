"""Programs, their process trees, and container engines."""
