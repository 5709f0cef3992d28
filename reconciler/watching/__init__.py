"""The loop: what `watch` does between two passes, and what it tells."""
