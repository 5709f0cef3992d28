"""Use cases behind the commands: they read, ask and write; the packages below decide.

Begin at `load_desired`, `plan`, `apply` and `execute`, in the order in which `reconciler apply` calls them;
`follow_up` updates claims and statuses afterwards. `pull_request` plans offline, and `watch` repeats an
apply.
"""
