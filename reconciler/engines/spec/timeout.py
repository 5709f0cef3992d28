"""Time limits of jobs."""

DEFAULT_TIMEOUT = "604800s"
"""Both services' limit for a job without a limit: seven days."""


def hours(duration: str) -> float:
    """Convert a duration such as "3600s" to hours; 0 stands for `DEFAULT_TIMEOUT`."""
    return (float(duration.removesuffix("s")) or hours(DEFAULT_TIMEOUT) * 3600) / 3600
