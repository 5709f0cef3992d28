"""Reading a git repository: commits, blobs, remotes."""
