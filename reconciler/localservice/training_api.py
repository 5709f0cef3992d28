"""What both training APIs share: creating, listing and cancelling jobs."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from reconciler.localservice import run_folder
from reconciler.localservice.calls import Call
from reconciler.localservice.codes import Code
from reconciler.localservice.filters import Predicate
from reconciler.localservice.message import ApiError, invalid
from reconciler.localservice.paging import Pages
from reconciler.localservice.records import JobRecord, JobState, JsonObject
from reconciler.localservice.store import Store, TooLateError, new_etag
from reconciler.localservice.tokens import expired


class Training:
    """The jobs behind the two APIs.

    Attributes:
        wake: Called when there may be something to start or to stop.
    """

    def __init__(self, store: Store, home: Path, pages: Pages, wake: Callable[[], None]) -> None:
        self._home = home
        self.store = store
        self.pages = pages
        self.wake = wake

    def create(
        self,
        collection: str,
        project: str,
        location: str,
        job_id: str,
        body: JsonObject,
        until: datetime | None,
    ) -> JobRecord:
        """A new job, QUEUED; `until` is when the caller's token expires.

        Raises:
            AlreadyExistsError: The job id is used up.
            ApiError: UNAUTHENTICATED: the token expired meanwhile.
        """
        now = self.store.now()
        job = JobRecord(
            collection=collection,
            project=project,
            location=location,
            job_id=job_id,
            body=body,
            gcs_secret=secrets.token_urlsafe(24),
            create_time=now,
            update_time=now,
            images=self.store.setting("images") or {},
            etag=new_etag(),
        )
        added = self._added(job, until)
        self.wake()
        return added

    def _added(self, job: JobRecord, until: datetime | None) -> JobRecord:
        try:
            return self.store.add_job(job, until)
        except TooLateError:
            assert until is not None, "without it nothing is too late"
            raise expired(until) from None

    def delete(self, job: JobRecord) -> None:
        """Forget a job that has ended, and remove what its runs have left, the log too."""
        runs = self.store.runs(job.id)
        self.store.delete(job.id)
        for run in runs:
            run_folder.remove(run_folder.run_folder(self._home, run.run_id).path)

    def listed(
        self,
        call: Call,
        place: tuple[str, str, str],
        selects: Predicate[JobRecord],
        size: int,
        resource: Callable[[JobRecord], JsonObject],
    ) -> JsonObject:
        """Return one page of a list, newest first.

        Args:
            place: The collection, the project and the location.
            selects: The filter.
            resource: Returns a job as the API shows it.
        """
        query = [call.method.id, dict(call.path), call.text("filter")]
        token = call.text("pageToken")
        before = int(self.pages.position(token, query)) if token else 2**62
        # One lock for all steps: no job changes between the filter and the answer.
        with self.store.database.reading():
            found = self.store.select(place, selects, size + 1, before=before)
            page = found[:size]
            items = [resource(job) for job in page]
        following = self.pages.token(page[-1].id, query) if len(found) > size else ""
        answer: JsonObject = {place[0]: items, "nextPageToken": following}
        return {name: value for name, value in answer.items() if value}

    def cancel(self, job: JobRecord, message: str) -> None:
        """End the job: at once where it hasn't begun, else when its processes are gone.

        Raises:
            ApiError: FAILED_PRECONDITION: it has ended.
        """
        # The job may move on between reading it and changing it: then look again.
        while not self._cancelled(job, message):
            found = self.store.job(job.id)
            if found is None:
                return
            job = found
        self.wake()

    def _cancelled(self, job: JobRecord, message: str) -> bool:
        if job.state.ended:
            raise ApiError("FAILED_PRECONDITION", f"Cannot cancel the job: it is already {job.state}.")
        if job.state is JobState.CANCELLING:
            return True
        queued = job.state is JobState.QUEUED
        moved = self.store.move(
            job.id,
            JobState.CANCELLED if queued else JobState.CANCELLING,
            only_from={job.state},
            at=self.store.now(),
            error_code=Code.CANCELLED if queued else Code.OK,
            error_message=message,
        )
        return moved is not None


def page_size(call: Call, default: int, largest: int) -> int:
    """How many results are wanted; more than the largest is the largest, as Google's APIs have it."""
    size = call.number("pageSize") or 0
    if size < 0:
        raise invalid("The page size must not be negative.")
    return min(size or default, largest)
