"""Lists of which only little of each item is wanted: written from that alone, without the whole items."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from reconciler.localservice import field_masks
from reconciler.localservice.calls import Call
from reconciler.localservice.message import JSON_TYPE, Response
from reconciler.localservice.records import Json

Item = TypeVar("Item")
Source = TypeVar("Source")
Fields = Mapping[str, Callable[[Item], Json]]
"""How a field is got from an item; one that has nothing to say, None or empty text, isn't written."""

_MOST = 32 * 2**20
_EACH = 300  # bytes: what an entry takes besides its text, about
_encode = msgspec.json.encode


def wanted(call: Call, items: str, fields: Fields[Item]) -> Fields[Item] | None:
    """The fields that the call's `fields` parameter selects of each item; None where it wants others too."""
    text = call.text("fields")
    mask = field_masks.parsed(text) if text else {}
    below = mask.get(items, {})
    if "*" in mask or not below or any(name not in fields or part for name, part in below.items()):
        return None
    return {name: get for name, get in fields.items() if name in below}


def written(call: Call, items: str, texts: Sequence[bytes], others: Mapping[str, Json]) -> Response:
    """The answer with these items, which are JSON already, and the other fields that are selected."""
    mask = field_masks.parsed(call.text("fields"))
    parts = [_encode(name) + b":" + _encode(told) for name, told in others.items() if told and name in mask]
    if texts:
        parts.append(_encode(items) + b":[" + b",".join(texts) + b"]")
    content = b"{" + b",".join(parts) + b"}"
    if call.request.parameter("prettyPrint") != "false":
        content = msgspec.json.format(content, indent=2) + b"\n"
    return Response(200, (("Content-Type", JSON_TYPE),), content)


class Answers(Generic[Source]):
    """Whole answers with what they were made from, `most` bytes of them."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._known: dict[Hashable, tuple[Response, Source]] = {}

    def known(self, call: Call) -> tuple[Response, Source] | None:
        """What the same call was answered."""
        return self._known.get(_asked(call))

    def remember(self, call: Call, answer: Response, source: Source) -> None:
        """Keep an answer."""
        with self._lock:
            self._known[_asked(call)] = answer, source
            if sum(len(known.content) for known, _ in self._known.values()) > self._most:
                self._known.clear()


def _asked(call: Call) -> Hashable:
    return call.request.path, call.request.query


class Texts:
    """The JSON of items as it was written before, `most` bytes of it; the oldest goes first."""

    def __init__(self, most: int = _MOST) -> None:
        self._left = most
        self._lock = threading.Lock()
        self._known: dict[tuple[str, ...], dict[Hashable, bytes]] = {}
        self._order: deque[tuple[dict[Hashable, bytes], Hashable]] = deque()

    def known(self, fields: Fields[Item]) -> Mapping[Hashable, bytes]:
        """What was written of these fields, by the items' versions.

        A version is what changes whenever one of the fields does, and is no other item's.
        """
        return self._known.get(tuple(fields), {})

    def write(self, version: Hashable, item: Item, fields: Fields[Item]) -> bytes:
        """The JSON of an item's fields, remembered from now on."""
        text = item_text(item, fields)
        with self._lock:
            known = self._known.setdefault(tuple(fields), {})
            if version not in known:
                self._order.append((known, version))
                self._left -= len(text) + _EACH
                known[version] = text
            while self._left < 0:
                oldest, of = self._order.popleft()
                self._left += len(oldest.pop(of)) + _EACH
        return text


def item_text(item: Item, fields: Fields[Item]) -> bytes:
    """The JSON of one item."""
    return _encode({name: told for name, get in fields.items() if (told := get(item)) or told == {}})
