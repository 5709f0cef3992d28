"""Foretells how diabetes progresses."""
