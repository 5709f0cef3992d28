"""Command-line tool that makes the cloud agree with a repository of training jobs.

Jobs are YAML files: the tool validates them, plans what is missing at a training service, submits it at most
once, and reports on GitHub. docs/architecture.md follows one job through the packages; in the code, begin at
the command's file in `cli`.
"""

__version__ = "0.2.0"
