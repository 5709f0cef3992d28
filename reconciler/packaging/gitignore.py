"""`.gitignore` files, read as git reads them.

The reference is git's own dir.c and wildmatch.c, odd cases included: names are matched byte by byte, and a
pattern that can't be read matches nothing. Case always counts, as git's `core.ignoreCase` is a setting of the
machine. The time for one match grows only with the lengths of pattern and name, so that no pattern in a pull
request can stall whoever reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_Component = Callable[[bytes], object] | None
"""What one name between slashes has to match; None stands for any number of folders (`**`)."""

_BOM = b"\xef\xbb\xbf"
_SPECIAL = re.compile(rb"[*?[\\]")
_DEEP: _Component = None


class _UnreadableError(Exception):
    """A pattern that matches nothing: a bracket that doesn't end, a backslash with nothing behind it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One pattern of one file.

    Attributes:
        line: Where it stands, from 1.
        negated: It begins with "!": what it matches counts again.
        folders_only: It ends with "/".
        anywhere: It holds no other "/", and so is about names at any depth.
    """

    line: int
    negated: bool
    folders_only: bool
    anywhere: bool
    _prefix: bytes
    _components: tuple[_Component, ...]

    def matches(self, names: Sequence[bytes], *, folder: bool) -> bool:
        """Whether the pattern is about this path: the names from the `.gitignore`'s own folder downwards."""
        if self.folders_only and not folder:
            return False
        subject = names[-1] if self.anywhere else b"/".join(names)
        if not subject.startswith(self._prefix):
            return False
        rest = subject[len(self._prefix) :]
        return _match(self._components, rest.split(b"/")) if self._components else not rest


def parse(data: bytes) -> tuple[Rule, ...]:
    """The rules of a `.gitignore`'s bytes, in the file's order."""
    lines = data.removeprefix(_BOM).split(b"\n")
    rules = (_rule(number, line) for number, line in enumerate(lines, start=1))
    return tuple(rule for rule in rules if rule is not None)


def decide(rules: Sequence[Rule], names: Sequence[bytes], *, folder: bool) -> Rule | None:
    """The rule of one file that decides about a path: the last one that matches."""
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
    r"""Blanks at the end don't count, unless a backslash stands before the first of them (`a\ `)."""
    bare = line.rstrip(b" ")
    backslashes = len(bare) - len(bare.rstrip(b"\\"))
    return bare + b" " if backslashes % 2 and bare != line else bare


def _compile(pattern: bytes) -> tuple[bytes, tuple[_Component, ...]]:
    """The literal beginning, and what comes behind it cut at the slashes.

    As in git, the wildcards begin a pattern of their own: a leading `**` there counts as whole, so that
    `a**/b` matches "ab" and "a/x/b".
    """
    special = _SPECIAL.search(pattern)
    if special is None:
        return pattern, ()
    return pattern[: special.start()], tuple(_components(pattern[special.start() :]))


def _components(pattern: bytes) -> list[_Component]:
    """What stands between the slashes of a pattern; an escaped slash is one too."""
    components: list[_Component] = []
    name = _Name()
    at = 0
    while at < len(pattern):
        if deep := _deep_end(pattern, at):
            # At the end, or before an escaped slash, git asks for one name at least.
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
    """Where a `**` that stands alone between slashes ends; 0 where there is none at `at`."""
    end = at
    while pattern.startswith(b"*", end):
        end += 1
    alone = at == 0 or pattern.startswith(b"/", at - 1)
    closed = end == len(pattern) or pattern.startswith((b"/", b"\\/"), end)
    return end if end - at >= 2 and alone and closed else 0


class _Name:
    """The pattern of one name, taken piece by piece: fixed parts, with a `*` between each two."""

    def __init__(self) -> None:
        self._fixed = [b""]

    def take(self, pattern: bytes, at: int) -> int:
        """Take the piece that begins at `at`; where the next one begins."""
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
        """The pattern as a function.

        Each fixed part is matched at the first place where it fits and never again (an atomic group), which
        is enough, since what a `*` stands for may be anything.
        """
        first, *others = self._fixed
        if others:
            middle = b"".join(b"(?>.*?" + part + b")" for part in others[:-1] if part)
            first += middle + b".*" + others[-1]
        return re.compile(first, re.DOTALL).fullmatch


def _any_name(_: bytes) -> bool:
    return True


def _match(components: Sequence[_Component], names: Sequence[bytes]) -> bool:
    """Whether the names match, one component each and any number for `**`; only the last `**` is retried."""
    deep = mark = -1  # the last `**`, and how many names were taken when it began
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
    """A bracket expression as a regular expression of one byte, and where it ends."""
    at += 1
    negated = pattern.startswith((b"!", b"^"), at)
    at += negated
    inside = b""
    before = None  # the byte that a range may begin with
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
    """The name in a `[:name:]` that begins at `at`; None where none does."""
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
    return b"\\x%02x-\\x%02x" % (first, last) if first <= last else b""
