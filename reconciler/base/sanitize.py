"""Text that others wrote, made so that it does nothing where it is shown.

A name, a service's error or a line of a job's log may hold what a terminal obeys (escape sequences, a
carriage return), what hides or reorders text (zero-width and bidirectional characters), or what GitHub's
runner takes for a command (`::error::`, `##[group]`). Whatever comes from outside passes through here on its
way to a terminal, a log or a commit status.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

MAX_DESCRIPTION = 140

_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_LINE_END = re.compile("\r\n|\r|\n")
# Letters and marks by their category, but nothing is seen of them.
_UNSEEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_REPLACEMENT = "\ufffd"


def one_line(text: str) -> str:
    """`text` as one line, with escapes such as `\\x1b` for what isn't seen; colours dropped, tabs expanded.

    GitHub's runner finds no command in the line. Applied again, it changes nothing.
    """
    plain = _COLOUR.sub("", text).expandtabs()
    if not (plain.isascii() and plain.isprintable()):
        plain = "".join(char if _is_seen(char) else _escape(char) for char in plain)
    return _without_command(plain)


def lines(text: str) -> list[str]:
    """The lines of `text`, each as `one_line` makes it; a carriage return ends a line too."""
    return [one_line(line) for line in _LINE_END.split(text.removesuffix("\n").removesuffix("\r"))]


def status_description(text: str, limit: int = MAX_DESCRIPTION) -> str:
    """`text` as the description of a commit status: one line of at most `limit` characters.

    GitHub refuses a status whose description is longer than 140 characters, or holds a character beyond
    U+FFFF ("description doesn't accept 4-byte Unicode"): such a character, and all that isn't seen, becomes
    U+FFFD.
    """
    words = " ".join(_COLOUR.sub("", text).split())
    plain = "".join(char if _is_seen(char) and char <= "\uffff" else _REPLACEMENT for char in words)
    return plain if len(plain) <= limit else plain[: limit - 1].rstrip() + "…"


def workflow_command(command: str, message: str, **properties: str | int) -> str:
    """A command to GitHub's runner; `error` shows `message` at the properties `file` and `line`.

    The runner undoes exactly these escapes (`ActionCommand.cs` of actions/runner).
    """
    named = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
    return f"::{command}{' ' if named else ''}{named}::{_data(message)}"


def _data(text: str) -> str:
    return "\n".join(lines(text)).replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return one_line(text).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")


def _is_seen(char: str) -> bool:
    # Blanks of other widths count as not printable in Python, but are seen for what they are.
    return (char.isprintable() or unicodedata.category(char) == "Zs") and char not in _UNSEEN


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _without_command(line: str) -> str:
    """A line without `::` at its start and `##[` anywhere, which is where the runner looks for them.

    It compares as its language does, passing over combining characters: `:` with a variation selector still
    counts as `:`.
    """
    if ":" not in line and "#" not in line:
        return line
    compared = "".join(char for char in line if not unicodedata.category(char).startswith("M")).lstrip()
    if "##[" in compared:
        line = line.replace("#", r"\x23")
    if compared.startswith("::"):
        line = line.replace(":", r"\x3a", 1)
    return line


_HIDDEN = "***"
_SHORT = 8
# Signed tokens (JWT), Google's access and refresh tokens, a client's secret, and what follows "Bearer".
_CREDENTIAL = re.compile(
    r"\beyJ[\w-]{8,}(?:\.[\w-]+){1,4}|\bya29\.[\w.-]+|\b1//[\w-]{16,}|\bGOCSPX-[\w-]+"
    r"|(?<=Bearer )[\w.~+/-]{8,}=*",
    re.ASCII,
)


def redacted(text: str, body: Mapping[str, Any]) -> str:
    """`text` with `***` for every value of an environment variable in a request's body.

    An API's error may quote what it didn't like. A value of fewer than 8 characters is only hidden where it
    stands alone: "1" is no secret within "100".

    Args:
        text: What the service said.
        body: What it was sent.
    """
    forms = {form for value in _values(body) for form in _forms(value) if form.strip()}
    for form in sorted(forms, key=len, reverse=True):
        exact = re.escape(form)
        text = re.sub(exact if len(form) >= _SHORT else rf"(?<!\w){exact}(?!\w)", _HIDDEN, text)
    return text


def without_credentials(text: str) -> str:
    """`text` with `***` for what looks like a token: who gives tokens may quote what it was asked with."""
    return _CREDENTIAL.sub(_HIDDEN, text)


def _values(node: Any) -> Iterator[str]:
    """The values in every list called `env`, wherever it is."""
    if isinstance(node, Mapping):
        yield from _values_of(node.get("env"))
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from _values(item)


def _values_of(env: Any) -> Iterator[str]:
    for variable in env if isinstance(env, list) else ():
        if isinstance(variable, Mapping) and isinstance(variable.get("value"), str):
            yield variable["value"]


def _forms(value: str) -> Iterator[str]:
    """How a value may be written in an error: as it is, in JSON, a line alone, made inert."""
    import json  # only for texts with secrets: `--help` loads this module

    quoted = json.dumps(value)[1:-1]
    for form in (value, quoted, json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]):
        yield form
        yield one_line(form)
    yield from value.splitlines()
    yield from lines(value)
