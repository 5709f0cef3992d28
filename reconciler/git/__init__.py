"""Readers of a git repository: commits, blobs, remotes."""
