"""Reader of one YAML document: from a parser's events to its value, with each refused place.

Besides the refusals of `yaml_scalars` and `yaml_text` it refuses duplicate keys, keys that aren't text, tags,
and documents beyond the limits on depth, length and number of values, with aliases and merge keys (`<<`)
counted as their values. Most refusals are noted, and the rest of the document is read all the same.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml import (
    AliasEvent,
    DocumentEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceStartEvent,
    StreamEndEvent,
    YAMLError,
)

from reconciler.base.diagnostics import (
    MAX_COUNTED_PER_FILE,
    MAX_DEPTH,
    MAX_KEY,
    MAX_TEXT,
    MAX_VALUES,
    Keys,
    quote,
)
from reconciler.manifests.yaml_errors import explain
from reconciler.manifests.yaml_scalars import UnclearScalarError, plain_values
from reconciler.manifests.yaml_text import (
    UNSAFE,
    Chunk,
    Flaw,
    explain_character,
    may_be_lenient,
    separator_flaws,
)

_BARE_TAG = re.compile(r"(?:&\S+\s+)?!(?=\s)")
_MERGE_VALUE = 'write "<<: *anchor", or "<<: [*one, *other]"'


class PurePythonParser(yaml.reader.Reader, yaml.scanner.Scanner, yaml.parser.Parser):
    """PyYAML's own parser, for a PyYAML built without libyaml: the same values, slower.

    libyaml accepts more than this parser; `yaml_text.separator_flaws` refuses the difference.
    """

    def __init__(self, data: bytes) -> None:
        yaml.reader.Reader.__init__(self, data)
        yaml.scanner.Scanner.__init__(self)
        yaml.parser.Parser.__init__(self)


if yaml.__with_libyaml__:
    from yaml._yaml import CParser

    Parser: Any = CParser
else:
    Parser = PurePythonParser


@dataclass(slots=True)
class YamlContent:
    """Content of one document, or of its readable part.

    Attributes:
        value: Mappings with text as keys, lists, text, numbers, booleans and None.
        line: The first line of its content in the file, from 1; 0 without content or if it is incomplete.
        aliased: Number of values that exist only through aliases.
        flaws: The refused places; `value` has a placeholder there.
        repeated: Repeated keys, which `value` omits; line and column from 1.
    """

    value: Any = None
    line: int = 0
    aliased: int = 0
    flaws: list[Flaw] = field(default_factory=list)
    repeated: list[tuple[Keys, int, int]] = field(default_factory=list)


def read(chunk: Chunk) -> YamlContent:
    """Read the document in `chunk`; a syntax error becomes one of its flaws."""
    reader = _Reader(chunk)
    flaws = reader.content.flaws
    try:
        reader.read()
        if may_be_lenient(chunk.data):
            lenient = separator_flaws(chunk, _read_tokens(Parser(chunk.data)))
            if lenient:  # syntax errors for PyYAML's own parser
                return YamlContent(flaws=[*flaws, *lenient])
    except YAMLError as error:
        flaws.append(explain(error, chunk))
    except _UnreadableError as error:
        flaws.append(error.flaw)
    return reader.content


def _read_tokens(parser: Any) -> Iterator[Any]:
    while parser.check_token():
        yield parser.get_token()


class _UnreadableError(Exception):
    """Reading can't continue."""

    def __init__(self, flaw: Flaw) -> None:
        super().__init__(flaw.message)
        self.flaw = flaw


class _OddKey:
    """Temporary substitute in a mapping for a merge key or a refused key, until the mapping ends.

    Attributes:
        text: The key as written.
        mark: The place of a merge key; None for others.
    """

    __slots__ = ("mark", "text")

    def __init__(self, text: str, mark: Any = None) -> None:
        self.text = text
        self.mark = mark


_NO_KEY: Any = _OddKey("")
_MERGE: Any = _OddKey("<<")


class _Reader:
    def __init__(self, chunk: Chunk) -> None:
        self.content = YamlContent()
        self._chunk = chunk
        # The open collections, from the outside: what is around each, and its key there.
        self._stack: list[tuple[Any, Any]] = []
        self._anchors: dict[str, Any] = {}
        self._has_odd_keys = False
        # libyaml's events omit a tag "!": only the text shows it.
        self._text = chunk.data.decode("utf-8") if b"!" in chunk.data else ""

    def read(self) -> None:
        parser = Parser(self._chunk.data)
        next_event = parser.get_event
        next_event()  # the stream's start
        if next_event().__class__ is StreamEndEvent:
            return
        value, first = self._read_value(next_event)
        event = next_event()
        if event.__class__ is not StreamEndEvent:
            raise self._unreadable(event, "this belongs to nothing above it", "begin a document with ---")
        if first.__class__ is ScalarEvent and not first.style and not first.value:
            return  # markers and comments only
        self.content.value = value
        self.content.line = self._chunk.line + first.start_mark.line

    def _read_value(self, next_event: Callable[[], Any]) -> tuple[Any, Any]:
        """Return the document's value and its first event."""
        stack = self._stack
        # The loop for every value of every manifest: methods handle all rare cases.
        root: list[Any] = []
        container: Any = root
        in_mapping = False
        key = _NO_KEY
        values = 0
        first, look_for_tags = None, bool(self._text)
        while True:
            event = next_event()
            first = first or event
            kind = event.__class__
            if kind is ScalarEvent:
                text = value = event.value
                if not event.style:
                    try:
                        value = plain_values[text]
                    except UnclearScalarError as error:
                        value = self._unclear(event, error, container, key)
                elif event.style == '"' and not text.isprintable():
                    self._check_escapes(event, container, key)
                if event.anchor or event.tag or look_for_tags or len(text) > MAX_TEXT:
                    self._check_scalar(event, value, container, key)
            elif kind is MappingStartEvent or kind is SequenceStartEvent:
                container = self._open(event, container, key)
                in_mapping, key = kind is MappingStartEvent, _NO_KEY
                values += 1
                continue
            elif kind is AliasEvent:
                value, below = self._alias(event, container)
                values += below
                self.content.aliased += below
            elif kind is DocumentEndEvent:
                break
            else:
                if in_mapping and self._has_odd_keys:
                    self._finish_mapping(container)
                container = stack.pop()[0]
                in_mapping, key = container.__class__ is dict, _NO_KEY
                continue
            values += 1
            if values > MAX_VALUES:
                raise self._too_many_values(event)
            if not in_mapping:
                container.append(value)
            elif key is not _NO_KEY:
                container[key] = value
                key = _NO_KEY
            elif (
                value.__class__ is str
                and value not in container
                and value.isascii()
                and len(value) <= MAX_KEY
            ):
                key = value
            else:
                key = self._odd_key(event, value, container)
        return root[0], first

    def _open(self, event: Any, container: Any, key: Any) -> Any:
        """Add an empty collection to the container, and return it."""
        opened: Any = {} if event.__class__ is MappingStartEvent else []
        if event.anchor or event.tag or self._text:
            self._check_tag(event, container, key, "")
            self._anchor(event, opened)
        if container.__class__ is list:
            container.append(opened)
        elif key is not _NO_KEY:
            container[key] = opened
        else:
            raise self._collection_as_key(event)
        if len(self._stack) == MAX_DEPTH:
            raise self._unreadable(event, f"the nesting is deeper than {MAX_DEPTH} levels", "flatten it")
        self._stack.append((container, key))
        return opened

    # Rare cases.

    def _unclear(self, event: Any, error: UnclearScalarError, container: Any, key: Any) -> Any:
        if event.value == "<<" and key is _NO_KEY and container.__class__ is dict:
            return _MERGE
        self._add_flaw(event, self._path(container, key, event.value), error.message, error.hint)
        return event.value

    def _check_escapes(self, event: Any, container: Any, key: Any) -> None:
        if match := UNSAFE.search(event.value):
            message, hint = explain_character(match[0])
            self._add_flaw(event, self._path(container, key, event.value), f"in this text, {message}", hint)

    def _check_scalar(self, event: Any, value: Any, container: Any, key: Any) -> None:
        if len(event.value) > MAX_TEXT:
            message = f"this text is longer than {MAX_TEXT:,} characters"
            self._add_flaw(
                event, self._path(container, key, event.value), message, "keep it in a file of its own"
            )
        self._check_tag(event, container, key, event.value)
        self._anchor(event, event.value if value is _MERGE else value)

    def _check_tag(self, event: Any, container: Any, key: Any, text: str) -> None:
        if event.tag or (self._text and _BARE_TAG.match(self._text, event.start_mark.index)):
            message = "there is a tag, or text without quotes that begins with !"
            hint = 'remove the tag, and put text in quotes: "3.10"'
            self._add_flaw(event, self._path(container, key, text), message, hint)

    def _anchor(self, event: Any, value: Any) -> None:
        if event.anchor in self._anchors:
            message = f"the anchor {quote('&' + event.anchor)} is defined twice"
            raise self._unreadable(event, message, "give one of the two another name")
        if event.anchor:
            self._anchors[event.anchor] = value

    def _alias(self, event: Any, container: Any) -> tuple[Any, int]:
        """Return the value of an alias, and the number of values below it."""
        name = quote("*" + event.anchor)
        if event.anchor not in self._anchors:
            message = f"the alias {name} has no anchor above it"
            raise self._unreadable(event, message, 'put text that begins with "*" in quotes')
        value = self._anchors[event.anchor]
        if value is container or any(value is frame[0] for frame in self._stack):
            message = f"the alias {name} refers to something that contains it"
            raise self._unreadable(event, message, "write out its value")
        below, depth = _measure(value)
        if len(self._stack) + depth > MAX_DEPTH:
            message = f"with {name} expanded, the nesting is deeper than {MAX_DEPTH} levels"
            raise self._unreadable(event, message, "flatten it")
        return value, below

    def _too_many_values(self, event: Any) -> _UnreadableError:
        message = f"the document holds more than {MAX_VALUES:,} values, with aliases expanded"
        return self._unreadable(event, message, "split it, or use fewer aliases")

    def _collection_as_key(self, event: Any) -> _UnreadableError:
        is_text = 'put text that begins with "{" or "[" in quotes, such as "{{ name }}"'
        return self._unreadable(
            event,
            "a mapping or a list can't be a key",
            is_text if event.flow_style else "write text as the key",
        )

    def _odd_key(self, event: Any, value: Any, container: dict[Any, Any]) -> Any:
        """Return the key to use for a repeated, long, non-ASCII or non-text key; note its flaw."""
        if value is _MERGE:
            return self._merge_key(event, container)
        if not isinstance(value, str):
            return self._key_of_no_text(event, container)
        if len(value) > MAX_KEY:
            message = f"this key is longer than {MAX_KEY:,} characters"
            raise self._unreadable(event, message, "write a short key, and long text as its value")
        path = self._path(container, _NO_KEY, value)
        if value in container:
            if len(self.content.repeated) < MAX_COUNTED_PER_FILE:
                self.content.repeated.append((path, *self._chunk.place(event.start_mark)))
            return self._odd(value)
        if not unicodedata.is_normalized("NFC", value):
            message = "this key is written with combining characters (Unicode's form NFD)"
            composed = quote(unicodedata.normalize("NFC", value))
            self._add_flaw(event, path, message, f"write {composed} with composed ones (form NFC)")
        return value

    def _merge_key(self, event: Any, container: dict[Any, Any]) -> _OddKey:
        if any(key.__class__ is _OddKey and key.mark for key in container):
            self._add_flaw(
                event, self._path(container, _NO_KEY, "<<"), "the key << is defined twice", _MERGE_VALUE
            )
            return self._odd("<<")
        return self._odd("<<", event.start_mark)

    def _key_of_no_text(self, event: Any, container: dict[Any, Any]) -> _OddKey:
        text = getattr(event, "value", "")
        hint = f"write {quote(text)} with quotes" if text else "write text as the key"
        self._add_flaw(event, self._path(container, _NO_KEY, text), "this key is not text", hint)
        return self._odd(text)

    def _odd(self, text: str, mark: Any = None) -> _OddKey:
        self._has_odd_keys = True
        return _OddKey(text, mark)

    def _finish_mapping(self, mapping: dict[Any, Any]) -> None:
        """Remove the temporary keys, and add the entries of merge keys."""
        for key in [key for key in mapping if key.__class__ is _OddKey]:
            merged = mapping.pop(key)
            if key.mark:
                for source in merged if isinstance(merged, list) else [merged]:
                    self._merge(mapping, source, key.mark)

    def _merge(self, mapping: dict[Any, Any], source: Any, mark: Any) -> None:
        if not isinstance(source, dict):
            message = "a merge key takes a mapping, or a list of mappings"
            raise _UnreadableError(self._flaw(mark, message, _MERGE_VALUE))
        for name, value in source.items():
            mapping.setdefault(name, value)

    def _path(self, container: Any, key: Any, text: str) -> Keys:
        """Return the path to the current value; `text` is the current key, if a key is read."""
        if not self._stack:
            return ()
        above = [_step(around, there) for around, there in self._stack[1:]]
        if isinstance(container, list):
            return (*above, len(container))
        return (*above, text if key is _NO_KEY else _key_text(key))

    def _add_flaw(self, event: Any, path: Keys, message: str, hint: str) -> None:
        # Locating a flaw takes linear time: locating all of them could take quadratic time.
        if len(self.content.flaws) < MAX_COUNTED_PER_FILE:
            self.content.flaws.append(self._flaw(event.start_mark, message, hint, path))

    def _unreadable(self, event: Any, message: str, hint: str = "") -> _UnreadableError:
        return _UnreadableError(self._flaw(event.start_mark, message, hint))

    def _flaw(self, mark: Any, message: str, hint: str, path: Keys = ()) -> Flaw:
        return Flaw(*self._chunk.place(mark), message, hint, path)


def _step(around: Any, key: Any) -> str | int:
    """Return the step from an open collection to the open collection in it."""
    return len(around) - 1 if isinstance(around, list) else _key_text(key)


def _key_text(key: Any) -> str:
    return str(key.text if isinstance(key, _OddKey) else key)


def _measure(value: Any) -> tuple[int, int]:
    """Return the number of values below a value, and its number of nested levels."""
    count, depth = 0, 0
    parts = [value]
    while parts := [part for part in parts if isinstance(part, dict | list)]:
        parts = [child for part in parts for child in (part.values() if isinstance(part, dict) else part)]
        count += len(parts)
        depth += 1
    return count, depth
