"""Makes the cloud agree with a repository of training jobs: validate, plan, apply, report."""

__version__ = "0.2.0"
