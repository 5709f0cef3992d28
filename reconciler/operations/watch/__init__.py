"""Loop of `reconciler watch`: an apply on every change of a work tree or of a remote branch.

Begin at `loop.Loop`, which runs passes with the steps of `apply`; `source` and `remote` are its checkouts,
`wakeups` ends its waits, and `report` and `metrics` show how it goes.
"""
