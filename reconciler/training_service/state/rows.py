"""Rows of the database as records, and records as rows.

A job's row that can't be read is a job all the same, an `UnreadableJob`: lists that left it out would make it
pass for missing, and its content would be submitted again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from reconciler.training_service.state.records import (
    ENDED,
    JobRecord,
    JobState,
    Json,
    JsonObject,
    RunRecord,
    UnreadableJob,
)
from reconciler.training_service.state.trial_records import TrialRecord

if TYPE_CHECKING:
    import sqlite3  # commands that read no database import this module too

LABEL = "reconciler-key"
"""The label by which the reconciler looks for the jobs of one content: this search has an index."""

UNKNOWN_LABEL = "?"
"""The label's value for the search if the row's labels can't be read; no label has this value."""


class UnreadableError(Exception):
    """Error for a row of a trial that can't be read."""


def _label_in(column: str, otherwise: str) -> str:
    """Return SQL for the label in a column with JSON; `otherwise` is SQL for a column that can't be read."""
    kind = f"coalesce(json_type({column}, '$.labels'), 'object')"
    return (
        f"CASE WHEN NOT json_valid({column}) THEN {otherwise} WHEN json_type({column}) <> 'object'"
        f" OR {kind} <> 'object' THEN {otherwise} ELSE json_extract({column}, '$.labels.\"{LABEL}\"') END"
    )


LABEL_VALUE = _label_in("body", _label_in("head", f"'{UNKNOWN_LABEL}'"))
"""SQL for the value of the label `LABEL`, as `job_of` reads it."""


# The states between and around those of ended jobs: one that can't be read may be a live job's.
_LOW, *_, _HIGH = _ENDED = sorted(ENDED)
_BETWEEN = (f"(state > '{above}' AND state < '{below}')" for above, below in pairwise(_ENDED))
_NOT_ENDED = " OR ".join((f"state < '{_LOW}'", *_BETWEEN, f"state > '{_HIGH}'"))


def few_ids(label: str | None, *, unfinished: bool) -> tuple[str, list[str]]:
    """Return a query for the ids of jobs, with its values; "" for the ids of all.

    Args:
        label: The value of the label `LABEL` that the jobs have; None for any.
        unfinished: True to leave out ended jobs; not with a label.
    """
    # The texts are constants, and the values are bound.
    if label is not None:
        return f"SELECT id FROM jobs WHERE {LABEL_VALUE} IN (?, ?)", [label, UNKNOWN_LABEL]  # noqa: S608
    if unfinished:
        return f"SELECT id FROM jobs WHERE {_NOT_ENDED}", []  # noqa: S608
    return "", []


def row_of(record: JobRecord | RunRecord | TrialRecord) -> dict[str, object]:
    """Return the record's columns."""
    return {name: column_of(value) for name, value in asdict(record).items()}


def column_of(value: object) -> object:
    """Return a value as SQLite stores it: JSON unless it is a text or a number."""
    return value if isinstance(value, str | int) else json.dumps(value)


def head_of(body: JsonObject) -> str:
    """Return the column `head` of a job with this body."""
    return json.dumps({name: body[name] for name in ("displayName", "labels") if name in body})


def trial_of(row: sqlite3.Row) -> TrialRecord:
    """Return the trial of a row; raise UnreadableError."""
    try:
        decoded = {
            name: json.loads(row[name]) for name in ("parameters", "measurements", "final", "error_details")
        }
        # SQLite has no booleans.
        values = {**dict(row), **decoded, "stopped_early": bool(row["stopped_early"])}
        return msgspec.convert(values, TrialRecord)
    except (ValueError, TypeError, RecursionError) as error:
        raise UnreadableError(f"the trial {row['number']} can't be read: {error}") from None


def job_of(row: sqlite3.Row) -> JobRecord:
    """Return the job of a row."""
    values: dict[str, Any] = dict(row)
    head, unreadable = values.pop("head"), list[str]()
    for name, read in _READ.items():
        try:
            values[name] = read(values[name])
        except (ValueError, TypeError, RecursionError):
            unreadable.append(name)
            values[name] = _INSTEAD[name]
    if not unreadable:
        return JobRecord(**values)
    if "body" in unreadable:
        try:
            values["body"] = body_of(head)
        except (ValueError, TypeError, RecursionError):
            unreadable.append("labels")
    return UnreadableJob(**values, columns=tuple(unreadable))


def _json(text: str) -> Json:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)  # msgspec refuses an unpaired surrogate


def _object(text: str) -> JsonObject:
    value: JsonObject = _checked(dict, _json(text))
    return value


def body_of(text: str) -> JsonObject:
    """Return a resource of a row's JSON; raise ValueError, TypeError or RecursionError if it is none."""
    body = _object(text)
    _checked(dict, body.get("labels", {}))
    return body


def _checked(kind: type[Any], value: Json) -> Json:
    if not isinstance(value, kind):
        raise TypeError(f"no {kind.__name__}")
    return value


def _text(value: Json) -> str:
    text: str = _checked(str, value)
    text.encode()  # raises ValueError for bytes that are no UTF-8: such a text is no name
    return text


_READ: Mapping[str, Callable[[Any], Json]] = {
    "body": body_of,
    "images": _object,
    "error_details": _object,
    "state": JobState,
    "error_code": partial(_checked, int),
    "error_message": partial(_checked, str),
    "backing": _text,
    "model": _text,
}
_INSTEAD: Mapping[str, Json] = {
    "body": {},
    "images": {},
    "error_details": {},
    "state": JobState.RUNNING,
    "error_code": 0,
    "error_message": "",
    "backing": "",
    "model": "",
}
