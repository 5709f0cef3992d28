"""How much one document may hold."""

MAX_DEPTH = 32
"""Collections within each other."""

MAX_VALUES = 20_000
"""Values, keys too, with what aliases stand for."""

MAX_TEXT = 64 * 1024
"""Characters of one text."""

MAX_KEY = 1024
"""Characters of one key."""
