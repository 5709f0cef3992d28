"""The log of a job, from Cloud Logging; texts of a job without secrets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from reconciler.base.sanitize import redacted, without_credentials
from reconciler.google.client import Connection
from reconciler.manifests.secrets import without_secrets
from reconciler.model.fields import part_of, parts_of, text_of
from reconciler.model.job import ActualJob, LogEntry
from reconciler.model.manifest import JsonObject

_PAGE_SIZE = 1000
_LIST_ENTRIES = "logging.entries.list"
_TRIAL_LABEL = "ml.googleapis.com/trial_id"
_LEAST_HIDDEN = 4
"""Characters of an environment variable's value that is hidden in errors: shorter ones are in many words."""


class JobLog:
    """Log of a job, a replica or a trial; of a pipeline that of its backing job.

    Both training services write the output of replicas to the resource type `ml_job`. Its label `job_id` is
    the last part of the job's resource name, and `task_name` is the replica. The trial is a label of entries.

    Args:
        replica: The task name of a replica; "" for all.
        trial: The id of a trial; "" for all.
    """

    def __init__(self, connection: Connection, job: ActualJob, replica: str = "", trial: str = "") -> None:
        self._connection = connection
        terms = [
            'resource.type="ml_job"',
            f"resource.labels.job_id={_quoted((job.backing or job.resource).rpartition('/')[2])}",
            f"resource.labels.task_name={_quoted(replica)}" if replica else "",
            f"labels.{_quoted(_TRIAL_LABEL)}={_quoted(trial)}" if trial else "",
        ]
        self._filter = " AND ".join(filter(None, terms))

    def entries(self, since: str = "") -> Iterator[LogEntry]:
        """Yield all entries from `since` (RFC 3339) on, oldest first."""
        body = self._query("timestamp asc", _PAGE_SIZE, since)
        while True:
            answer = self._connection.post(_LIST_ENTRIES, body)
            yield from map(_log_entry, parts_of(answer, "entries"))
            if not answer.get("nextPageToken"):
                return
            body = {**body, "pageToken": answer["nextPageToken"]}

    def last(self, most: int = 1) -> list[LogEntry]:
        """Return the newest entries, oldest first."""
        return self._page("timestamp desc", most)[::-1]

    def first(self) -> LogEntry | None:
        """Return the oldest entry; None for an empty log."""
        return next(iter(self._page("timestamp asc", 1)), None)

    def _page(self, order: str, size: int) -> list[LogEntry]:
        answer = self._connection.post(_LIST_ENTRIES, self._query(order, size, ""))
        return [_log_entry(entry) for entry in parts_of(answer, "entries")]

    def _query(self, order: str, size: int, since: str) -> JsonObject:
        return {
            "resourceNames": [f"projects/{self._connection.endpoint.project}"],
            "filter": f"{self._filter} AND timestamp>={_quoted(since)}" if since else self._filter,
            "orderBy": order,
            "pageSize": size,
        }


def _quoted(text: str) -> str:
    """Return the text as a string literal of the filter language."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _payload_text(payload: JsonObject) -> str:
    if not payload:
        return ""
    return str(payload["message"]) if "message" in payload else json.dumps(payload, ensure_ascii=False)


def _log_entry(entry: JsonObject) -> LogEntry:
    payload = part_of(entry, "jsonPayload")
    return LogEntry(
        timestamp=text_of(entry, "timestamp"),
        severity=text_of(entry, "severity") or "DEFAULT",
        text=text_of(entry, "textPayload") or _payload_text(payload),
        insert_id=text_of(entry, "insertId"),
        replica=text_of(part_of(part_of(entry, "resource"), "labels"), "task_name"),
        trial=text_of(part_of(entry, "labels"), _TRIAL_LABEL),
    )


def hiding(spec: Mapping[str, Any]) -> Callable[[str], str]:
    """Return a function that hides secrets, and the values of a spec's environment variables, in a text."""
    hidden = {"env": [{"value": value} for value in _values(spec) if len(value) >= _LEAST_HIDDEN]}
    return lambda text: str(without_secrets(without_credentials(redacted(text, hidden))))


def _values(node: Any) -> Iterator[str]:
    """Yield the values of the environment variables in a spec."""
    if isinstance(node, Mapping):
        variables = node.get("env")
        for variable in variables if isinstance(variables, list) else ():
            if isinstance(variable, Mapping) and isinstance(variable.get("value"), str):
                yield variable["value"]
        node = [*node.values()]
    for part in node if isinstance(node, list) else ():
        yield from _values(part)
