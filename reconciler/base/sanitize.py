"""Sanitizing of untrusted text before a terminal, a log or a commit status shows it.

A name, a service's error or a line of a job's log may contain terminal controls (escape sequences, a carriage
return), characters that hide or reorder text (zero-width and bidirectional characters), or commands of
GitHub's runner (`::error::`, `##[group]`). All text from outside passes through this module.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

MAX_DESCRIPTION = 140

_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_LINE_END = re.compile("\r\n|\r|\n")
# Letters and marks by their Unicode category, but invisible.
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_REPLACEMENT = "\ufffd"


def one_line(text: str) -> str:
    """Return `text` as one line: invisible characters escaped (`\\x1b`), colours removed, tabs expanded.

    GitHub's runner finds no command in the line. The function is idempotent.
    """
    plain = text
    if not (text.isprintable() and (text.isascii() or _INVISIBLE.isdisjoint(text))):
        plain = _COLOUR.sub("", text).expandtabs()
        plain = "".join(char if _is_visible(char) else _escape(char) for char in plain)
    return _without_command(plain)


def lines(text: str) -> list[str]:
    """Return the lines of `text`, each sanitized by `one_line`; a carriage return also ends a line."""
    return [one_line(line) for line in _LINE_END.split(text.removesuffix("\n").removesuffix("\r"))]


def status_description(text: str, limit: int = MAX_DESCRIPTION) -> str:
    """Return `text` as the description of a commit status: one line of at most `limit` characters.

    GitHub rejects descriptions of more than 140 characters, and characters beyond U+FFFF ("description
    doesn't accept 4-byte Unicode"): U+FFFD replaces these and invisible characters.
    """
    words = " ".join(_COLOUR.sub("", text).split())
    plain = "".join(char if _is_visible(char) and char <= "\uffff" else _REPLACEMENT for char in words)
    return shortened(plain, limit)


def shortened(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters, cut behind a sentence, else between two words, with "…".

    A word that takes half of the room is cut inside.
    """
    if len(text) <= limit:
        return text
    kept = text[:limit]
    sentence = kept.rfind(". ") + 1
    if sentence > limit // 2:
        return f"{kept[:sentence]} …" if sentence <= limit - 2 else kept[:sentence]
    words = kept[: limit - 1].rpartition(" ")[0].rstrip()
    return f"{words if len(words) > limit // 2 else kept[: limit - 1].rstrip()}…"


def is_on_runner(environ: Mapping[str, str]) -> bool:
    """Return True if GitHub's runner reads the output: in Actions, also where GITHUB_ACTIONS is hidden."""
    # A proof hides it, so that nothing is posted.
    return environ.get("GITHUB_ACTIONS") == "true" or bool(environ.get("GITHUB_RUN_ID"))


def workflow_command(command: str, message: str, **properties: str | int) -> str:
    """Return a command to GitHub's runner; `error` shows `message` at the properties `file` and `line`."""
    # The runner undoes these escapes, and that of a carriage return (`ActionCommand.cs` of actions/runner).
    named = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
    return f"::{command}{' ' if named else ''}{named}::{_data(message)}"


def _data(text: str) -> str:
    return "\n".join(lines(text)).replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return one_line(text).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")


def _is_visible(char: str) -> bool:
    # Python classifies spaces of other widths (Zs) as not printable, but they can't be mistaken for other
    # text.
    return (char.isprintable() or unicodedata.category(char) == "Zs") and char not in _INVISIBLE


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _without_command(line: str) -> str:
    """Return a line with `::` at its start and each `##[` escaped, which begin the runner's commands."""
    # Commands are ASCII: without the other characters, a line still has each of its commands.
    bare = line.encode("ascii", "ignore").decode()
    if "##[" not in bare and not bare.lstrip().startswith("::"):
        return line
    # The runner's comparison (.NET) skips combining characters: `:` with a variation selector counts as `:`.
    compared = "".join(char for char in line if unicodedata.category(char)[0] != "M")
    compared = compared.lstrip()
    if "##[" in compared:
        line = line.replace("#", r"\x23")
    if compared.startswith("::"):
        line = line.replace(":", r"\x3a", 1)
    return line


_HIDDEN = "***"
_SHORT = 8
# Signed tokens (JWT), Google's access and refresh tokens, a client's secret, and the word after "Bearer".
_CREDENTIAL = re.compile(
    r"\beyJ[\w-]{8,}(?:\.[\w-]+){1,4}|\bya29\.[\w.-]+|\b1//[\w-]{16,}|\bGOCSPX-[\w-]+"
    r"|(?<=Bearer )[\w.~+/-]{8,}=*",
    re.ASCII,
)


def redacted(text: str, body: Mapping[str, Any]) -> str:
    """Return a service's error with `***` for every value of an environment variable in a request's body."""
    forms = {form for value in _values(body) for form in _forms(value) if form.strip()}
    for form in sorted(forms, key=len, reverse=True):
        exact = re.escape(form)
        # A short value is hidden only as a separate word: "1" is no secret within "100".
        text = re.sub(exact if len(form) >= _SHORT else rf"(?<!\w){exact}(?!\w)", _HIDDEN, text)
    return text


def without_credentials(text: str) -> str:
    """Return `text` with `***` for strings that look like tokens: a token service may quote the request's."""
    return _CREDENTIAL.sub(_HIDDEN, text)


def _values(node: Any) -> Iterator[str]:
    """Yield the values in every list called `env`, at any depth."""
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
    """Yield the forms in which an error may quote a value: verbatim, as JSON, as a single line, sanitized."""
    import json  # only for texts with secrets: `--help` loads this module

    quoted = json.dumps(value)[1:-1]
    for form in (value, quoted, json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]):
        yield form
        yield one_line(form)
    yield from value.splitlines()
    yield from lines(value)
