"""GitHub's API, for reporting: statuses, the comment of a pull request, and the settings of a run.

Begin at `api.GitHubApi`, which sends the requests, and at `statuses.GitHubReporter`, which posts the statuses
that changed. Another reporter would be a package beside this one.
"""
