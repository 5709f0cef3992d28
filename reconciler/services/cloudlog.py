"""A job's log, read through Cloud Logging's `entries.list` (`logging` v2)."""

from __future__ import annotations

from collections.abc import Iterator

from reconciler.engines.base import Connection, execute
from reconciler.job import ActualJob, LogEntry
from reconciler.manifest import JsonObject

_PAGE_SIZE = 1000


class JobLog:
    """The log of one job.

    Both training services write their replicas' output under the resource type `ml_job`, whose label `job_id`
    is the last part of the job's resource name.
    """

    def __init__(self, connection: Connection, job: ActualJob) -> None:
        self._connection = connection
        self._job_id = job.resource.rpartition("/")[2]

    def entries(self, since: str = "") -> Iterator[LogEntry]:
        """All entries from the time `since` on (RFC 3339), oldest first."""
        body = self._query("timestamp asc", _PAGE_SIZE, since)
        while True:
            answer = execute(self._connection.logging.entries().list(body=body))
            yield from (_entry(entry) for entry in answer.get("entries", []))
            if not answer.get("nextPageToken"):
                return
            body = {**body, "pageToken": answer["nextPageToken"]}

    def last(self) -> LogEntry | None:
        """The newest entry, None where there is none."""
        answer = execute(self._connection.logging.entries().list(body=self._query("timestamp desc", 1, "")))
        return next((_entry(entry) for entry in answer.get("entries", [])), None)

    def _query(self, order: str, size: int, since: str) -> JsonObject:
        project = self._connection.endpoint.project
        asked = f'resource.type="ml_job" AND resource.labels.job_id="{self._job_id}"'
        if since:
            asked += f' AND timestamp>="{since}"'
        return {
            "resourceNames": [f"projects/{project}"],
            "filter": asked,
            "orderBy": order,
            "pageSize": size,
        }


def _entry(entry: JsonObject) -> LogEntry:
    payload = entry.get("jsonPayload") or {}
    return LogEntry(
        timestamp=entry.get("timestamp", ""),
        severity=entry.get("severity", "DEFAULT"),
        text=entry.get("textPayload") or str(payload.get("message", "")),
        insert_id=entry.get("insertId", ""),
    )
