"""Marks of unknown values inside texts: a variable that no file assigns, the output of a command, a secret.

A mark stands between two characters of Unicode's private use area, so that it passes through words of shells,
lists and maps unchanged. Manifests and reports show it as `<NAME>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from reconciler.base.diagnostics import Problem, quote
from reconciler.base.errors import InvalidError

_OPEN, _CLOSE = "\ue000", "\ue001"
MARK = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}")
"""A mark, with its name."""
_NO_NAME = re.compile(r"\W+", re.ASCII)
DATE = "DATE"
"""Name of a mark for the time of the call."""

SECRET = "SECRET"  # noqa: S105  (a name, not a password)
"""Name of a mark in the place of a secret."""


class SourceError(InvalidError):
    """Mistake in a source, or in a command line of it: a message, a hint, and no place yet."""

    def at(self, path: str, line: int) -> InvalidError:
        """Return the error with its place."""
        problem = Problem(path, line, 1, "", self.message, self.hint)
        return InvalidError("nothing is imported", problems=[problem])


def flag_error(flag: str, message: str, hint: str = "") -> SourceError:
    """Return the error for a flag's value."""
    return SourceError(f"{flag}: {message}", hint=hint)


def mark(name: str) -> str:
    """Return the mark of an unknown value."""
    return f"{_OPEN}{_NO_NAME.sub('_', name).strip('_')[:60].upper() or 'VALUE'}{_CLOSE}"


def without_marks(text: str) -> str:
    """Return text of a source in which no character can pass for a mark."""
    return text.replace(_OPEN, "\ufffd").replace(_CLOSE, "\ufffd")


def is_marked(value: Any) -> bool:
    """Return True for a text that contains a mark."""
    return isinstance(value, str) and _OPEN in value


def is_mark(text: str) -> bool:
    """Return True for a text that is nothing but a mark."""
    return MARK.fullmatch(text) is not None


def names_in(value: Any) -> Iterator[str]:
    """Yield the name of each mark in a value of JSON."""
    if isinstance(value, str):
        yield from MARK.findall(value) if _OPEN in value else ()
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from names_in(key)
            yield from names_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from names_in(part)


def shown(value: Any) -> Any:
    """Return a value of JSON with `<NAME>` for each mark."""
    return _replaced(value, lambda name: f"<{name}>")


def filled(value: Any, values: Mapping[str, str]) -> Any:
    """Return a value of JSON with the given values in place of the marks of these names."""
    replacements = {_NO_NAME.sub("_", name).strip("_").upper(): text for name, text in values.items()}
    return _replaced(value, lambda name: replacements.get(name, mark(name)))


def without_dates(text: str) -> str:
    """Return a job's name without the time of the call, and with the names of other unknown values."""
    text = re.sub(f"[-_.]*{mark(DATE)}[-_.]*", "-", text)
    return MARK.sub("-", text)


def _replaced(value: Any, text_of: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return MARK.sub(lambda match: text_of(match[1]), value) if _OPEN in value else value
    if isinstance(value, Mapping):
        return {_replaced(key, text_of): _replaced(part, text_of) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(part, text_of) for part in value]
    return value


def quoted(text: str) -> str:
    """Return a text of a source for a message, with `<NAME>` for each mark."""
    return quote(str(shown(text)))
