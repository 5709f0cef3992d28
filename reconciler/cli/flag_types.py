"""Values of flags: texts of the command line -> typed values, or ArgumentTypeError with what to write."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from reconciler.model.selection import LabelTerm


LONGEST_SETTLING = 120.0
"""The longest time, in seconds, for which `watch` waits for files to be quiet."""
COLUMNS = 80
"""The width without a terminal."""


def terminal_columns() -> int | None:
    """Return the width of the terminal, or COLUMNS; None if stdout is no terminal."""
    with suppress(KeyError, ValueError):
        if (columns := int(os.environ["COLUMNS"])) > 0:
            return columns
    with suppress(OSError):
        return os.get_terminal_size(1).columns or COLUMNS
    return None


def path(text: str) -> Path:
    """Return a path."""
    from pathlib import Path  # imported late: `--help` needs no paths

    return Path(text)


def digest(text: str) -> str:
    """Return the digest of a plan."""
    return _matching("sha256:[0-9a-f]{64}", "a digest as `plan` prints it", text)


def _matching(pattern: str, expected: str, text: str) -> str:
    if not re.fullmatch(pattern, text):
        raise argparse.ArgumentTypeError(f'not {expected}: "{text}"')
    return text


def terms(text: str) -> Sequence[LabelTerm]:
    """Return the terms of a label selector."""
    from reconciler.model.selection import label_terms  # imported late: `--help` needs no labels

    try:
        return label_terms(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'not labels, such as team=risk or stage!=dev: "{text}"') from None


def words(text: str) -> Sequence[str]:
    """Return words in lower case with dashes, split at commas."""
    return [word.strip().lower().replace("_", "-") for word in text.split(",")]


def count(text: str) -> int:
    """Return a whole number from 1 to 999,999,999; raise ArgumentTypeError for other texts."""
    return int(_matching("[1-9][0-9]{0,8}", "a whole number from 1", text))


def seconds(text: str) -> float:
    """Return seconds from 1; a fraction is allowed."""
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", text) or float(text) < 1:
        raise argparse.ArgumentTypeError(f'not a number of seconds from 1: "{text}"')
    return float(text)


def settling(text: str) -> float:
    """Return seconds from 1 to 120; a fraction is allowed."""
    if seconds(text) > LONGEST_SETTLING:
        raise argparse.ArgumentTypeError(f'more than {LONGEST_SETTLING:g} seconds: "{text}"')
    return float(text)


def trial(text: str) -> int:
    """Return the number of a trial, from 1."""
    return int(_matching("[1-9][0-9]{0,8}", "a trial number, counted from 1", text))


def port(text: str) -> int:
    """Return a TCP port, 0 to 65535."""
    if not re.fullmatch("[0-9]{1,5}", text) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f'not a port, 0 to 65535: "{text}"')
    return int(text)
