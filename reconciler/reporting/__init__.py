"""Commit statuses and pull request comments, for operations and for `report`.

`status_rules` decides which statuses a commit is due, purely; `github` posts them. Begin at
`status_rules.due_statuses`.
"""
