"""The addresses of reads, from the discovery documents that ship with the reconciler.

Google's own client makes the same ones, but to import it takes longer than a small plan.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from urllib.parse import quote, urlencode

import msgspec

from reconciler import schemas

Parameters = Mapping[str, str | int | None]
"""What a method is asked with, by the names of its discovery document; None for what isn't given."""

_DOCUMENTS = {"aiplatform": "aiplatform.v1", "ml": "ml.v1", "storage": "storage.v1"}
_VARIABLE = re.compile(r"\{(\+?)(\w+)\}")

# RFC 6570, section 3.2.3: what "{+name}" leaves as it is, beside what never needs an escape; but for "?", "#"
# and escapes, as a name is to stay within the path and to be the name that it is.
_RESERVED = "!$&'()*+,/:;=@[]"


class _Method(msgspec.Struct):
    path: str


class _Resource(msgspec.Struct):
    methods: dict[str, _Method] = {}
    resources: dict[str, _Resource] = {}


class _Document(msgspec.Struct, rename="camel"):
    """What of a discovery document the address of a read depends on."""

    service_path: str
    resources: dict[str, _Resource]


def address(roots: Mapping[str, str], method: str, parameters: Parameters) -> str:
    """The whole address of a GET, percent-encoded.

    Args:
        roots: Base URL of each API, with a trailing slash.
        method: Its id, such as "storage.objects.list"; a KeyError where its API's document has none of it.
        parameters: What its path names, and what its query is to hold.
    """
    given = {name: str(value) for name, value in parameters.items() if value is not None}
    template = _template(method)

    def expanded(variable: re.Match[str]) -> str:
        return quote(given.pop(variable[2]), safe=_RESERVED if variable[1] else "")

    path = _VARIABLE.sub(expanded, template)
    query = urlencode({"alt": "json", **given})
    return f"{roots[method.partition('.')[0]]}{path}?{query}"


@cache
def _template(method: str) -> str:
    """A method's path below its API's root, with its variables."""
    api, *names, last = method.split(".")
    document = _document(api)
    resource = _Resource(resources=document.resources)
    for name in names:
        resource = resource.resources[name]
    return document.service_path + resource.methods[last].path


@cache
def _document(api: str) -> _Document:
    file = schemas.folder() / "discovery" / f"{_DOCUMENTS[api]}.json"
    return msgspec.json.decode(file.read_bytes(), type=_Document)
