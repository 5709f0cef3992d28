"""A mistake in a document before it has a place in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

Keys = tuple[str | int, ...]
"""The way to a value in a document: keys of mappings, and indices of lists from 0."""


class Finding(Struct, frozen=True):
    """What is wrong with one value.

    Attributes:
        keys: The way to it.
        message: What is wrong.
        hint: What to write instead; "" where that can't be known. It may have several lines.
        of_key: Whether the mistake is the key, not its value.
    """

    keys: Keys
    message: str
    hint: str = ""
    of_key: bool = False


Rules = Callable[[Any], Iterable[Finding]]
"""Yields the mistakes in a document of any shape that its schema cannot express."""
