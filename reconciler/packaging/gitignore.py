"""Parser and matcher of `.gitignore` files.

The reference is git's dir.c and wildmatch.c, odd cases included: names are matched byte by byte, and an
invalid pattern never matches. Matching is case-sensitive, as git's `core.ignoreCase` is a setting of the
machine. The time of a match depends only on the lengths of pattern and name, so that no pattern in a pull
request can stall the tool.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from msgspec import Struct

_Component = Callable[[bytes], object] | None
"""Matcher of a name between slashes; None stands for any number of folders (`**`)."""

_BOM = b"\xef\xbb\xbf"
_SPECIAL = re.compile(rb"[*?[\\]")
_DEEP: _Component = None


class _UnreadableError(Exception):
    """Error for an invalid pattern: an open bracket, or a backslash at the end."""


class Rule(Struct, frozen=True):
    """Pattern of a `.gitignore`.

    Attributes:
        line: Its line, from 1.
        negated: True if it begins with "!" and includes the matching paths again.
        folders_only: True if it ends with "/".
        anywhere: True if it contains no other "/", and so matches names at any depth.
    """

    line: int
    negated: bool
    folders_only: bool
    anywhere: bool
    _prefix: bytes
    _components: tuple[_Component, ...]

    def matches(self, names: Sequence[bytes], *, folder: bool) -> bool:
        """Return True if the pattern matches a path: names from the `.gitignore`'s folder downwards."""
        if self.folders_only and not folder:
            return False
        subject = names[-1] if self.anywhere else b"/".join(names)
        if not subject.startswith(self._prefix):
            return False
        rest = subject[len(self._prefix) :]
        return _match(self._components, rest.split(b"/")) if self._components else not rest


def parse(data: bytes) -> tuple[Rule, ...]:
    """Parse the bytes of a `.gitignore` into rules in the file's order."""
    lines = data.removeprefix(_BOM).split(b"\n")
    rules = (_rule(number, line) for number, line in enumerate(lines, start=1))
    return tuple(rule for rule in rules if rule is not None)


def decide(rules: Sequence[Rule], names: Sequence[bytes], *, folder: bool) -> Rule | None:
    """Return the rule that decides about a path: the last matching rule of the file."""
    return next((rule for rule in reversed(rules) if rule.matches(names, folder=folder)), None)


def _rule(number: int, line: bytes) -> Rule | None:
    pattern = _without_trailing_blanks(line.removesuffix(b"\r").partition(b"\0")[0])
    if not pattern or pattern.startswith(b"#"):
        return None
    negated = pattern.startswith(b"!")
    pattern = pattern.removeprefix(b"!")
    folders_only = pattern.endswith(b"/")
    pattern = pattern.removesuffix(b"/")
    anywhere = b"/" not in pattern
    try:
        prefix, components = _compile(pattern.removeprefix(b"/"))
    except _UnreadableError:
        return None
    return Rule(number, negated, folders_only, anywhere, prefix, components)


def _without_trailing_blanks(line: bytes) -> bytes:
    # A backslash before the first blank keeps that blank (`a\ `).
    bare = line.rstrip(b" ")
    backslashes = len(bare) - len(bare.rstrip(b"\\"))
    return bare + b" " if backslashes % 2 and bare != line else bare


def _compile(pattern: bytes) -> tuple[bytes, tuple[_Component, ...]]:
    """Return the literal prefix of a pattern, and the components of the rest."""
    special = _SPECIAL.search(pattern)
    if special is None:
        return pattern, ()
    # As in git, the rest is a pattern of its own: `**` at its start counts as between slashes, so that
    # `a**/b` matches "ab" and "a/x/b".
    return pattern[: special.start()], tuple(_components(pattern[special.start() :]))


def _components(pattern: bytes) -> list[_Component]:
    """Split a pattern into components at its slashes, escaped ones included."""
    components: list[_Component] = []
    name = _Name()
    at = 0
    while at < len(pattern):
        if deep := _deep_end(pattern, at):
            # At the end, or before an escaped slash, git requires at least one name.
            plain = pattern.startswith(b"/", deep)
            components += [_DEEP] if plain else [_DEEP, _any_name]
            if deep == len(pattern):
                return components
            at = deep + (1 if plain else 2)
        elif pattern.startswith((b"/", b"\\/"), at):
            components.append(name.compiled())
            name = _Name()
            at += 1 if pattern.startswith(b"/", at) else 2
        else:
            at = name.take(pattern, at)
    return [*components, name.compiled()]


def _deep_end(pattern: bytes, at: int) -> int:
    """Return the end of a `**` alone between slashes; 0 if the pattern has none at `at`."""
    end = at
    while pattern.startswith(b"*", end):
        end += 1
    alone = at == 0 or pattern.startswith(b"/", at - 1)
    closed = end == len(pattern) or pattern.startswith((b"/", b"\\/"), end)
    return end if end - at >= 2 and alone and closed else 0


class _Name:
    """Pattern of a name: fixed parts, separated by `*`."""

    def __init__(self) -> None:
        self._fixed = [b""]

    def take(self, pattern: bytes, at: int) -> int:
        """Add the piece that begins at `at`; return the start of the next piece."""
        char = pattern[at : at + 1]
        if char == b"*":
            self._fixed.append(b"")
            return at + 1
        if char == b"[":
            expression, end = _bracket(pattern, at)
        elif char == b"?":
            expression, end = b".", at + 1
        else:
            start = at + 1 if char == b"\\" else at
            end = start + 1
            expression = re.escape(pattern[start:end])
            if not expression:
                raise _UnreadableError
        self._fixed[-1] += expression
        return end

    def compiled(self) -> _Component:
        """Return the pattern as a function."""
        first, *others = self._fixed
        if others:
            # An atomic group matches each fixed part at the first place only. This is sufficient, as `*`
            # matches any text, and it bounds the time.
            middle = b"".join(b"(?>.*?" + part + b")" for part in others[:-1] if part)
            first += middle + b".*" + others[-1]
        return re.compile(first, re.DOTALL).fullmatch


def _any_name(_: bytes) -> bool:
    return True


def _match(components: Sequence[_Component], names: Sequence[bytes]) -> bool:
    """Match each name with a component, and any number of names with `**`."""
    # Only the last `**` is retried: an earlier one gains nothing by taking more names.
    deep = mark = -1  # the last `**`, and the number of names before it
    at = taken = 0
    while taken < len(names):
        component = components[at] if at < len(components) else _no_name
        if component is None:
            deep, mark = at, taken
            at += 1
        elif component(names[taken]):
            at, taken = at + 1, taken + 1
        elif deep >= 0:
            mark += 1
            at, taken = deep + 1, mark
        else:
            return False
    return at == len(components)


def _no_name(_: bytes) -> bool:
    return False


_CLASSES = {
    b"alnum": rb"a-zA-Z0-9",
    b"alpha": rb"a-zA-Z",
    b"blank": rb" \t",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9",
    b"graph": rb"!-~",
    b"lower": rb"a-z",
    b"print": rb" -~",
    b"punct": rb"!-/:-@\[-`{-~",
    b"space": rb" \t\n\r",
    b"upper": rb"A-Z",
    b"xdigit": rb"0-9a-fA-F",
}


def _bracket(pattern: bytes, at: int) -> tuple[bytes, int]:
    """Return a bracket expression as a regular expression of a byte, and its end."""
    at += 1
    negated = pattern.startswith((b"!", b"^"), at)
    at += negated
    inside = b""
    before = None  # the byte that may begin a range
    first = True  # a "]" at the first place is an ordinary byte
    while first or not pattern.startswith(b"]", at):
        first = False
        name = _named_class(pattern, at)
        if before is not None and _is_range(pattern, at):
            last, at = _bracket_byte(pattern, at + 1)
            inside += _range(before, last)
            before = None
        elif name is not None:
            if name not in _CLASSES:
                raise _UnreadableError
            inside += _CLASSES[name]
            before, at = None, at + len(name) + len("[::]")
        else:
            before, at = _bracket_byte(pattern, at)
            inside += _range(before, before)
    everything = b"." if negated else b"(?!)"
    return (b"[^" if negated else b"[") + inside + b"]" if inside else everything, at + 1


def _named_class(pattern: bytes, at: int) -> bytes | None:
    """Return the name of the `[:name:]` at `at`, or None."""
    if not pattern.startswith(b"[:", at):
        return None
    end = pattern.find(b"]", at + 2)
    if end < 0:
        raise _UnreadableError
    name = pattern[at + 2 : end]
    return name[:-1] if name.endswith(b":") else None


def _is_range(pattern: bytes, at: int) -> bool:
    return pattern.startswith(b"-", at) and pattern[at + 1 : at + 2] not in (b"", b"]")


def _bracket_byte(pattern: bytes, at: int) -> tuple[int, int]:
    at += pattern.startswith(b"\\", at)
    if at >= len(pattern):
        raise _UnreadableError
    return pattern[at], at + 1


def _range(first: int, last: int) -> bytes:
    # In git, a range whose end is before its start matches no byte.
    return b"\\x%02x-\\x%02x" % (first, last) if first <= last else b""
