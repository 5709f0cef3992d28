"""A service's words without what a request told it in confidence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from reconciler.inert import lines, one_line

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
    quoted = json.dumps(value)[1:-1]
    for form in (value, quoted, json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]):
        yield form
        yield one_line(form)
    yield from value.splitlines()
    yield from lines(value)
