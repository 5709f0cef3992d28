"""Filters of list methods.

The language, as far as these APIs document it (https://google.aip.dev/160):

    state="JOB_STATE_FAILED" AND (display_name:"census_*" OR NOT labels.team:*)

As in AIP-160, OR binds tighter than AND, two adjacent terms are an AND, and "-" is NOT; `state=("A" OR "B")`
compares with several values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import eq, ge, gt, le, lt, ne
from typing import Any, NamedTuple, TypeVar

from reconciler.training_service.http.message import ApiError, invalid

MAX_LENGTH = 20_000  # Cloud Logging's limit
_MAX_DEPTH = 50

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PLAIN = r"""[^\s()"'=!<>:~]"""
_TOKEN = re.compile(
    rf"""\s*(?:
        (?P<mark> \( | \) | != | <= | >= | = | < | > | : | -(?=[^\s\d]) )
      | (?P<quoted> {_QUOTED} | '(?:[^'\\]|\\.)*' )
      | (?P<word> {_PLAIN} (?: {_PLAIN} | {_QUOTED} )* )
    )""",
    re.VERBOSE | re.DOTALL,
)
_PART_OF_FIELD = re.compile(rf'({_QUOTED})|([^."]+)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_KEYWORDS = ("AND", "OR", "NOT")
_COMPARISONS = ("=", "!=", "<", "<=", ">", ">=", ":")


@dataclass(frozen=True, slots=True)
class Restriction:
    """`field comparison value`; `field` in parts: "labels.team" is ("labels", "team")."""

    field: tuple[str, ...]
    comparison: str
    value: str


@dataclass(frozen=True, slots=True)
class Not:
    """Negation of a term."""

    term: Filter


@dataclass(frozen=True, slots=True)
class And:
    """Conjunction; without terms it is true."""

    terms: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Disjunction."""

    terms: tuple[Filter, ...]


Filter = Restriction | Not | And | Or

Item = TypeVar("Item")
Predicate = Callable[[Item], bool]
Field = Callable[[Restriction], Predicate[Item]]
"""A filterable field: returns a restriction's test, or refuses its comparison or value."""


def parse(text: str) -> Filter:
    """Return the filter of `text`; an empty text selects all items.

    Raises:
        ApiError: INVALID_ARGUMENT: The text is not a filter.
    """
    if len(text) > MAX_LENGTH:
        raise invalid(f"The filter is longer than {MAX_LENGTH} characters.")
    return _Parser(text).whole()


def compile_filter(
    condition: Filter, field: Callable[[tuple[str, ...]], Field[Item] | None]
) -> Predicate[Item]:
    """Return the filter as a predicate; `field` returns the filterable field of a path, or None.

    Raises:
        ApiError: INVALID_ARGUMENT: Unknown field, or a comparison or value that the field doesn't take.
    """
    match condition:
        case Restriction():
            filterable = field(condition.field)
            if filterable is None:
                raise invalid(f"Invalid filter: there is no field {'.'.join(condition.field)} to filter on.")
            return filterable(condition)
        case Not(term):
            inner = compile_filter(term, field)
            return lambda item: not inner(item)
        case And(terms):
            return _every([compile_filter(term, field) for term in terms])
        case Or(terms):
            some = [compile_filter(term, field) for term in terms]
            return lambda item: any(test(item) for test in some)


def _every(tests: list[Predicate[Item]]) -> Predicate[Item]:
    if len(tests) == 2:  # the most frequent filter; a generator would take far longer
        first, second = tests
        return lambda item: first(item) and second(item)
    return lambda item: all(test(item) for test in tests)


def conjuncts(condition: Filter) -> Iterator[Restriction]:
    """Yield the restrictions that every selected item meets."""
    if isinstance(condition, Restriction):
        yield condition
    if isinstance(condition, And):
        for term in condition.terms:
            yield from conjuncts(term)


def possible_values(condition: Filter, field: tuple[str, ...]) -> set[str] | None:
    """Return the values of a text field that a selected item may have; None for any."""
    match condition:
        case Restriction():
            return {condition.value} if (condition.field, condition.comparison) == (field, "=") else None
        case And(terms):
            value_sets = [values for term in terms if (values := possible_values(term, field)) is not None]
            return set.intersection(*value_sets) if value_sets else None
        case Or(terms):
            by_term = [possible_values(term, field) for term in terms]
            value_sets = [values for values in by_term if values is not None]
            return set().union(*value_sets) if len(value_sets) == len(by_term) else None
    return None


def text_field(get: Callable[[Item], str], *comparisons: str) -> Field[Item]:
    """Return a text field: `=` and `!=` compare the whole text, `:` takes "*" as any text."""

    def test(restriction: Restriction) -> Predicate[Item]:
        _allow(restriction, comparisons)
        if restriction.comparison == ":":
            pattern = _wildcard(restriction.value)
            return lambda item: pattern.fullmatch(get(item)) is not None
        equal = restriction.comparison == "="
        return lambda item: (get(item) == restriction.value) is equal

    return test


def choice_field(get: Callable[[Item], str], choices: tuple[str, ...], *comparisons: str) -> Field[Item]:
    """Return a text field with a fixed set of values."""
    plain = text_field(get, *comparisons)

    def test(restriction: Restriction) -> Predicate[Item]:
        if restriction.value not in choices:
            raise invalid(f'Invalid filter: "{restriction.value}" is none of {", ".join(choices)}.')
        return plain(restriction)

    return test


def ordered_field(get: Callable[[Item], Any], read: Callable[[str], Any]) -> Field[Item]:
    """Return a field whose values a filter can compare by order, such as numbers and times.

    Args:
        get: Returns an item's value.
        read: Converts the filter's text to a value, or raises ValueError.
    """

    def test(restriction: Restriction) -> Predicate[Item]:
        _allow(restriction, tuple(_OPERATORS))
        compare = _OPERATORS[restriction.comparison]
        try:
            bound = read(restriction.value)
        except ValueError as error:
            raise invalid(f'Invalid filter: "{restriction.value}" {error}') from error
        return lambda item: compare(get(item), bound)

    return test


def map_field(get: Callable[[Item], Mapping[str, str]], key: str) -> Field[Item]:
    """Return a field for a map's entry: `key=value` compares; in `key:pattern`, "*" is any text."""

    def test(restriction: Restriction) -> Predicate[Item]:
        _allow(restriction, ("=", ":"))
        if restriction.comparison == ":" and restriction.value == "*":
            return lambda item: key in get(item)
        pattern = _wildcard(restriction.value) if restriction.comparison == ":" else None
        if pattern is None:
            return lambda item: get(item).get(key) == restriction.value
        return lambda item: key in get(item) and pattern.fullmatch(get(item)[key]) is not None

    return test


def key_field(get: Callable[[Item], Mapping[str, str]]) -> Field[Item]:
    """Return a map as a field: `map:key` selects what has this key."""

    def test(restriction: Restriction) -> Predicate[Item]:
        _allow(restriction, (":",))
        return lambda item: restriction.value in get(item)

    return test


def moment(text: str) -> datetime:
    """Return a time in RFC 3339, for `ordered_field`."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is no time in RFC 3339.") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


_OPERATORS = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


def _allow(restriction: Restriction, comparisons: tuple[str, ...]) -> None:
    if restriction.comparison not in comparisons:
        field = ".".join(restriction.field)
        raise invalid(f"Invalid filter: {field} takes {' '.join(comparisons)}, not {restriction.comparison}")


def _wildcard(text: str) -> re.Pattern[str]:
    first, *others = map(re.escape, text.split("*"))
    if others:
        # Without steps back, which would multiply the work: the earliest match of a part leaves the most
        # text to those after it. Only the last one has to be at the end.
        *inner, last = others
        first += "".join(f"(?>.*?{part})" for part in inner) + f".*{last}"
    return re.compile(first, re.DOTALL)


class _Token(NamedTuple):
    """Part of a filter; `kind` is "word", "quoted", "end", or the text of a mark or a keyword."""

    kind: str
    text: str
    position: int


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise _unreadable(text, position)
        group, part = match.lastgroup, match[match.lastgroup]
        fixed = group == "mark" or (group == "word" and part in _KEYWORDS)
        yield _Token(part if fixed else group, part, match.start(group))
        position = match.end()
    yield _Token("end", "", len(text))


def _unreadable(text: str, position: int) -> ApiError:
    return invalid(
        f"Invalid filter: can't read it from character {position + 1} on: {text[position : position + 40]}"
    )


class _Parser:
    """Recursive-descent parser with a lookahead of one token."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.next = next(self.tokens)
        self.depth = 0

    def whole(self) -> Filter:
        condition = And(()) if self.next.kind == "end" else self.expression()
        if self.next.kind != "end":
            raise self.unreadable()
        return condition

    def expression(self) -> Filter:
        terms = [self.alternatives()]
        while self.next.kind not in ("end", ")"):
            if self.next.kind == "AND":
                self.take()
            terms.append(self.alternatives())
        return terms[0] if len(terms) == 1 else And(tuple(terms))

    def alternatives(self) -> Filter:
        terms = [self.term()]
        while self.next.kind == "OR":
            self.take()
            terms.append(self.term())
        return terms[0] if len(terms) == 1 else Or(tuple(terms))

    def term(self) -> Filter:
        self.depth += 1
        # The limit keeps a request from exhausting the interpreter's stack.
        if self.depth > _MAX_DEPTH:
            raise invalid(f"Invalid filter: nested deeper than {_MAX_DEPTH}.")
        token = self.take()
        condition = Not(self.term()) if token.kind in ("-", "NOT") else self.simple(token)
        self.depth -= 1
        return condition

    def simple(self, token: _Token) -> Filter:
        if token.kind == "(":
            condition = self.expression()
            if self.next.kind != ")":
                raise self.unreadable()
            self.take()
            return condition
        if token.kind != "word":
            raise _unreadable(self.text, token.position)
        if self.next.kind not in _COMPARISONS:
            raise self.unreadable()
        field, comparison = _field_parts(token.text), self.take().text
        if self.next.kind != "(" or comparison not in ("=", ":"):
            return Restriction(field, comparison, self.value())
        terms: list[Filter] = []
        while not terms or self.next.kind == "OR":
            self.take()
            terms.append(Restriction(field, comparison, self.value()))
        if self.next.kind != ")":
            raise self.unreadable()
        self.take()
        return Or(tuple(terms))

    def value(self) -> str:
        if self.next.kind not in ("word", "quoted", *_KEYWORDS):  # a value may be called AND
            raise self.unreadable()
        value = self.take()
        return _unquoted(value.text) if value.kind == "quoted" else value.text

    def take(self) -> _Token:
        taken = self.next
        if taken.kind != "end":
            self.next = next(self.tokens)
        return taken

    def unreadable(self) -> ApiError:
        return _unreadable(self.text, self.next.position)


def _field_parts(text: str) -> tuple[str, ...]:
    return tuple(_unquoted(quoted) if quoted else plain for quoted, plain in _PART_OF_FIELD.findall(text))


def _unquoted(text: str) -> str:
    return _ESCAPED.sub(r"\1", text[1:-1])
