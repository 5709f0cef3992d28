"""Glob patterns of object names, as regular expressions: the `matchGlob` of a list."""

from __future__ import annotations

import re
from collections.abc import Sequence

from reconciler.training_service.http.message import ApiError, invalid

MAX_LENGTH = 1024
"""Largest length of a pattern in characters: no name of an object is longer, in bytes."""
MAX_PATTERNS = 256
"""Largest number of patterns without braces that one with braces may stand for."""
MAX_TOTAL = 16_384
"""Largest number of characters of all these patterns."""

_RANGE = r"(?:\\.|[^]\\])(?:-[^]])?+"
_TOKEN = re.compile(
    r"(?P<stars>\*+)|(?P<any>\?)|(?P<mark>[{,}])|\\(?P<escaped>.)"
    # Directly after the beginning of a set, "]" is one of its characters.
    rf"|\[(?P<set>[!^]?+(?:\](?:-[^]])?+|{_RANGE})(?:{_RANGE})*+)\]"
    r"|(?P<open>[\[\\])|(?P<plain>.)",
    re.DOTALL,
)
_RANGE_PARTS = re.compile(r"(?:\\(.)|(.))(?:-([^]]))?", re.DOTALL)
_FOLDERS = "(?:[^/]*+/)*?"


class Glob:
    r"""Compiled glob pattern.

    `*` matches any characters but "/", `**` any, `?` one but "/", `[a-c]` one of a set, `[!a-c]` and `[^a-c]`
    one outside of it, `{ab,c*}` one of several patterns; `\` takes the next character as it is.
    https://cloud.google.com/storage/docs/json_api/v1/objects/list#list-object-glob

    Raises:
        ApiError: INVALID_ARGUMENT: The pattern is not a glob, or too large.
    """

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_LENGTH:
            raise invalid(f"The glob pattern is longer than {MAX_LENGTH} characters.")
        patterns = _expand(pattern)
        if sum(map(len, patterns)) > MAX_TOTAL:
            raise _too_many()
        self._patterns = [re.compile(_expression(tokens)) for tokens in patterns]

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches."""
        return any(pattern.fullmatch(text) for pattern in self._patterns)


def _expand(pattern: str) -> list[list[str]]:
    """Return the patterns without braces that a pattern stands for, as the tokens of `_token`."""
    current: list[list[str]] = [[]]
    # For each open brace: the patterns up to it, and its alternatives so far.
    outer: list[tuple[list[list[str]], list[list[str]]]] = []
    for match in _TOKEN.finditer(pattern):
        mark = match["mark"] if match["mark"] == "{" or outer else None
        if match["open"] is not None:
            raise _unclosed(pattern, match["open"])
        if mark == "{":
            outer.append((current, []))
            current = [[]]
        elif mark == ",":
            outer[-1][1].extend(current)
            current = [[]]
        elif mark == "}":
            before, alternatives = outer.pop()
            alternatives += current
            if len(before) * len(alternatives) > MAX_PATTERNS:
                raise _too_many()
            current = [[*begin, *end] for begin in before for end in alternatives]
        else:
            for tokens in current:
                tokens.append(_token(match))
    if outer:
        raise _unclosed(pattern, "{")
    return current


def _token(match: re.Match[str]) -> str:
    """Return "*", "**", or a regular expression that matches one character."""
    if match["stars"]:
        return match["stars"][:2]
    if match["any"]:
        return "[^/]"
    if not match["set"]:
        return re.escape(match["escaped"] or match[0])
    excludes = match["set"][0] in "!^"
    ranges = [
        (escaped or plain, last or escaped or plain)
        for escaped, plain, last in _RANGE_PARTS.findall(match["set"], int(excludes))
    ]
    text = "".join(f"{re.escape(first)}-{re.escape(last)}" for first, last in ranges if first <= last)
    if excludes:
        return f"[^/{text}]"
    return f"(?!/)[{text}]" if text else "(?!)"


def _expression(tokens: Sequence[str]) -> str:
    """Return the regular expression of a pattern without braces.

    With a plain `.*` for each star it would take years for some patterns: it would try each place of a star
    with each place of all others. Every token between two stars matches one character, and only a literal
    matches "/". So the earliest match of a part leaves the most to the parts after it, no other match of it
    is worth a try (`(?>…)`), and `**` needs one try for each folder. Only the part at the name's end may have
    to be later. The work grows at most with the square of the name's length.
    """
    # The parts between two "**": each a head without a star, and what follows its stars.
    pieces = [[""]]
    for element in tokens:
        if element == "**":
            pieces.append([_FOLDERS, ""])
        elif element == "*":
            pieces[-1].append("")
        else:
            pieces[-1][-1] += element
    *others, (head, *runs) = pieces
    earlier = "".join(f"(?>{head}{_earliest(runs)})" for head, *runs in others)
    return earlier + head + _earliest(runs[:-1]) + "".join(f"[^/]*{run}" for run in runs[-1:])


def _earliest(runs: Sequence[str]) -> str:
    return "".join(f"(?>[^/]*?{run})" for run in runs)


def _unclosed(pattern: str, opened: str) -> ApiError:
    return invalid(f"The glob pattern {pattern!r} ends after an open {opened!r}.")


def _too_many() -> ApiError:
    return invalid(
        f"The glob pattern's braces stand for more than {MAX_PATTERNS} patterns, or for more than {MAX_TOTAL}"
        " characters in all. List the names by several requests."
    )
