"""How much one file may hold, and one document."""

from reconciler.diagnostics import Problem

MAX_FILE_BYTES = 10 * 1024 * 1024

MAX_DEPTH = 32
"""Collections within each other."""

MAX_VALUES = 20_000
"""Values, keys too, with what aliases stand for."""

MAX_TEXT = 64 * 1024
"""Characters of one text."""

MAX_KEY = 1024
"""Characters of one key."""

MAX_SECRETIVE = 10_000_000
"""Characters of one file's values under names such as "password"; a value counts as 300 at least."""


def too_large(path: str) -> Problem:
    """The problem of a file that is too large to be read."""
    message = f"the file is larger than {MAX_FILE_BYTES // 1024**2} MB"
    return Problem(path, 1, 1, "", message, "split it, or move it away from the manifests")
