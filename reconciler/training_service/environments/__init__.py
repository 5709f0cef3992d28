"""Python environments for trainers."""
