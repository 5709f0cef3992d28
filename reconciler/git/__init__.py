"""Readers of a git repository: commits and their files."""
