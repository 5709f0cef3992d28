"""Glob patterns of object names: the `matchGlob` of a list.

`*` matches any characters but "/", `**` any, `?` one but "/", `[a-c]` one of a set, `[!a-c]` and `[^a-c]` one
outside of it, `{ab,c*}` one of several patterns; `\\` takes the next character as it is.
https://cloud.google.com/storage/docs/json_api/v1/objects/list#list-object-glob

A regular expression would do for most patterns, but takes years for some: here a pattern takes steps in
proportion to its length, each for all positions in the name at once, which are the bits of a number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from reconciler.training_service.http.message import invalid

_MAX_DEPTH = 20


class _Name(NamedTuple):
    """A name to match: the positions of its characters, those of all but "/", and all, its end included."""

    places: dict[str, int]
    inner: int
    all: int


_Step = Callable[[_Name, int], int]
"""Step of a match: returns the positions that it leads to from given ones."""


class Glob:
    """Compiled pattern.

    Raises:
        ApiError: INVALID_ARGUMENT: The pattern is not a glob.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._place = 0
        self._steps = self._sequence(0)

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches."""
        places: dict[str, int] = {}
        for place, character in enumerate(text):
            places[character] = places.get(character, 0) | 1 << place
        every = (2 << len(text)) - 1
        name = _Name(places, (every >> 1) & ~places.get("/", 0), every)
        return bool(_run(self._steps, name, 1) >> len(text))

    def _sequence(self, depth: int) -> list[_Step]:
        """Read up to the pattern's end, or inside of braces up to "," or "}"."""
        if depth > _MAX_DEPTH:
            raise invalid(f"The glob pattern has braces nested deeper than {_MAX_DEPTH}.")
        steps: list[_Step] = []
        while self._place < len(self._pattern):
            if depth and self._pattern[self._place] in ",}":
                return steps
            steps.append(self._step(depth))
        if depth:
            raise self._unclosed("{")
        return steps

    def _step(self, depth: int) -> _Step:
        character = self._take()
        if character == "*":
            several = self._pattern.startswith("*", self._place)
            while self._pattern.startswith("*", self._place):
                self._place += 1
            return _any_characters if several else _any_inner_characters
        if character == "?":
            return lambda name, positions: (positions & name.inner) << 1
        if character == "[":
            return self._set()
        if character == "{":
            return self._alternatives(depth)
        if character == "\\":
            character = self._take("\\")
        return lambda name, positions: (positions & name.places.get(character, 0)) << 1

    def _alternatives(self, depth: int) -> _Step:
        alternatives = [self._sequence(depth + 1)]
        while self._take("{") == ",":
            alternatives.append(self._sequence(depth + 1))

        def step(name: _Name, positions: int) -> int:
            found = 0
            for steps in alternatives:
                found |= _run(steps, name, positions)
            return found

        return step

    def _set(self) -> _Step:
        excludes = self._pattern[self._place : self._place + 1] in ("!", "^")
        self._place += excludes
        ranges: list[tuple[str, str]] = []
        while (first := self._take("[")) != "]" or not ranges:
            first = self._take("[") if first == "\\" else first
            last = first
            dash, end = self._pattern[self._place : self._place + 1], self._pattern[self._place + 1 :][:1]
            if dash == "-" and end not in ("", "]"):
                self._place += 1
                last = self._take("[")
            ranges.append((first, last))

        def step(name: _Name, positions: int) -> int:
            found = 0
            for character, places in name.places.items():
                if any(first <= character <= last for first, last in ranges) is not excludes:
                    found |= places
            return (positions & found & name.inner) << 1

        return step

    def _take(self, opened: str = "") -> str:
        if self._place == len(self._pattern):
            raise self._unclosed(opened)
        self._place += 1
        return self._pattern[self._place - 1]

    def _unclosed(self, opened: str) -> Exception:
        return invalid(f"The glob pattern {self._pattern!r} ends after an open {opened!r}.")


def _run(steps: list[_Step], name: _Name, positions: int) -> int:
    for step in steps:
        positions = step(name, positions)
    return positions


def _any_characters(name: _Name, positions: int) -> int:
    lowest = positions & -positions
    return name.all & ~(lowest - 1) if positions else 0


def _any_inner_characters(name: _Name, positions: int) -> int:
    # The sum carries each position to the end of its run of inner characters.
    return ((((positions & name.inner) + name.inner) ^ name.inner) | positions) & name.all
