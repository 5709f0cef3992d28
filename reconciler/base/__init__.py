"""Foundations of all packages, those of the training service too.

It has the errors with their exit codes, HTTP, git's command, safe reading and writing of files, sanitizing,
threads and worker processes, and the home. It imports no other package. Begin at `errors`, and at `http` for
requests.
"""
