"""The code that a job stages: which files count, and the archive they become, alike on every machine."""
