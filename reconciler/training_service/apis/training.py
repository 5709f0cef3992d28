"""Handlers that Vertex AI and AI Platform Training share."""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path

from reconciler.training_service.apis.unsupported import unsupported
from reconciler.training_service.http import filters
from reconciler.training_service.http.auth import expired
from reconciler.training_service.http.call import Call
from reconciler.training_service.http.message import ApiError, invalid, not_found
from reconciler.training_service.http.paging import Pages, page_size
from reconciler.training_service.state.database import Store, TooLateError, new_etag
from reconciler.training_service.state.records import (
    ENDED,
    ML_JOBS,
    JobRecord,
    JsonObject,
    as_unreadable,
    readable_time,
)
from reconciler.training_service.state.rows import LABEL, UnreadableError
from reconciler.training_service.state.run_folder import remove, run_folder
from reconciler.training_service.state.trial_records import TrialRecord
from reconciler.training_service.tuning.checks import Mistake
from reconciler.training_service.tuning.study import is_tuning

_ENDED_JOBS = [JobRecord("", "", "", "", {}, "", "", "", state=state) for state in sorted(ENDED)]
_PATH_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._-]{0,62}")


class JobHandlers(ABC):
    """Handlers of one collection of jobs; a subclass adds its API's resource, names and messages.

    Attributes:
        collection: The collection's name in paths and in the store.
        cancel_message: The error message of a cancelled job.
        not_found_message: The error for a missing job; "{}" stands for its name.
        default_page, largest_page: Sizes of a list's pages.
        wake: Called after a change that may let the supervisor start or stop processes.
    """

    collection: str
    cancel_message: str
    not_found_message: str
    default_page: int
    largest_page: int

    def __init__(self, store: Store, home: Path, pages: Pages, wake: Callable[[], None]) -> None:
        self._home = home
        self._store = store
        self._pages = pages
        self._wake = wake
        self._filter = lru_cache(maxsize=100)(self._compiled)

    @abstractmethod
    def resource(self, job: JobRecord, trials: Sequence[TrialRecord]) -> JsonObject:
        """Return the job in the API's form."""

    @abstractmethod
    def refused(self, mistakes: Sequence[Mistake]) -> ApiError:
        """Return the API's error for a request with mistakes."""

    @abstractmethod
    def filter_field(self, path: tuple[str, ...]) -> filters.Field[JobRecord] | None:
        """Return the field for a path in filters; None if there is none."""

    @abstractmethod
    def listed_resource(self, call: Call) -> Callable[[JobRecord], JsonObject]:
        """Return the function that makes an item of a list."""

    def _get(self, call: Call) -> JsonObject:
        return self._with_trials(self._named(call))

    def _add(self, call: Call, job_id: str, body: JsonObject) -> JsonObject:
        """Add a new job, QUEUED, as `_save`.

        Raises:
            ApiError: INVALID_ARGUMENT: The job can't run here.
        """
        job = self._new(call, self.collection, job_id, body)
        if missing := [*unsupported(job)]:
            raise self.refused(missing)
        return self._save(call, job)

    def _new(self, call: Call, collection: str, job_id: str, body: JsonObject) -> JobRecord:
        """Return the record of a new job in the place of the call."""
        project, location = place_of(call)
        now = self._store.now()
        return JobRecord(
            collection=collection,
            project=project,
            location=location,
            job_id=job_id,
            body=body,
            gcs_secret=secrets.token_urlsafe(24),
            create_time=now,
            update_time=now,
            # A copy: later changes of the image table must not affect this job.
            images=self._store.setting("images") or {},
            etag=new_etag(),
        )

    def _save(self, call: Call, job: JobRecord, backing: JobRecord | None = None) -> JsonObject:
        """Add a job, with the backing job of a pipeline, unless the caller's token has expired.

        Raises:
            AlreadyExistsError: The job id is already used.
            ApiError: UNAUTHENTICATED: The token has expired since the request was admitted.
        """
        until = call.access.until
        try:
            added = self._store.add_job(job, until, backing=backing)
        except TooLateError:
            assert until is not None, "the store compares with `until` only"
            raise expired(until) from None
        self._wake()
        return self.resource(added, ())

    def _list(self, call: Call) -> JsonObject:
        """Return one page of a list, newest first."""
        resource = self.listed_resource(call)
        parent = (self.collection, *place_of(call))
        size = page_size(call.number("pageSize"), "The page size", self.default_page, self.largest_page)
        selects, label, unfinished = self._filter(call.text("filter"))
        selects = partial(_selects_known, selects) if call.text("filter") else selects
        query = [call.method.id, dict(call.path), call.text("filter")]
        token = call.text("pageToken")
        before = int(self._pages.position(token, query)) if token else 2**62
        # One lock for all steps: no job changes between the filter and the answer.
        with self._store.database.reading():
            jobs = self._store.select(
                parent, selects, size + 1, before=before, label=label, unfinished=unfinished
            )
            page = jobs[:size]
            items = [resource(job) for job in page]
        following = self._pages.token(page[-1].id, query) if len(jobs) > size else ""
        answer: JsonObject = {self.collection: items, "nextPageToken": following}
        return {name: value for name, value in answer.items() if value}

    def _compiled(self, text: str) -> tuple[filters.Predicate[JobRecord], str | None, bool]:
        """Return a filter as a predicate, with `label` and `unfinished` of `Store.select`."""
        condition = filters.parse(text)
        selects = filters.compile_filter(condition, self.filter_field)
        of_state = [
            restriction for restriction in filters.conjuncts(condition) if restriction.field == ("state",)
        ]
        tests = [filters.compile_filter(restriction, self.filter_field) for restriction in of_state]
        unfinished = not any(all(test(job) for test in tests) for job in _ENDED_JOBS)
        labels = [
            restriction
            for restriction in filters.conjuncts(condition)
            if restriction.field == ("labels", LABEL)
        ]
        values = [restriction.value for restriction in labels if restriction.comparison == "="]
        return selects, values[0] if values else None, unfinished

    def _cancel(self, call: Call) -> JsonObject:
        """Cancel the job: at once if QUEUED, otherwise by ending its processes first."""
        job = self._named(call)
        changed = self._ask_to_cancel(job)
        current = changed or self._store.job(job.id)
        if not changed and current and current.state.ended:
            raise ApiError("FAILED_PRECONDITION", f"Cannot cancel the job: it is already {current.state}.")
        self._wake()
        return {}

    def _ask_to_cancel(self, job: JobRecord) -> JobRecord | None:
        """Return the job after its change; None if it has ended or is being cancelled."""
        return self._store.cancel(job.id, self.cancel_message)

    def _remove(self, job: JobRecord) -> None:
        """Delete a job that has ended, with the folders and logs of its runs."""
        # The rows go first: after a crash in between, leftover folders belong to no job and do no harm.
        runs = self._store.runs(job.id)
        self._store.delete(job.id)
        for run in runs:
            remove(run_folder(self._home, run.run_id).path)

    def _named(self, call: Call) -> JobRecord:
        project, location = place_of(call)
        job_id = call.path[f"{self.collection}Id"]
        job = self._store.find(self.collection, project, location, job_id)
        if job is None:
            name = f"{_parent(project, location)}/{self.collection}/{job_id}"
            raise not_found(self.not_found_message.format(name))
        return job

    def _with_trials(self, job: JobRecord) -> JsonObject:
        try:
            trials = self._store.trials(job.id) if is_tuning(job) and not job.unreadable else []
        except UnreadableError:
            return self.resource(as_unreadable(job, "trials"), ())
        return self.resource(job, trials)

    def _without_trials(self, job: JobRecord) -> JsonObject:
        return self.resource(job, ())


def _selects_known(selects: filters.Predicate[JobRecord], job: JobRecord) -> bool:
    """Return True if the filter selects the job.

    Raises:
        ApiError: FAILED_PRECONDITION: The job's labels can't be read. A list that left it out would make it
            pass for missing.
    """
    if "labels" in job.unreadable:
        name = f"{_parent(job.project, job.location)}/{job.collection}/{job.job_id}"
        text = f"The labels of {name} can't be read in the service's database, so no list is complete."
        raise ApiError("FAILED_PRECONDITION", f"{text} Restore state.db from a copy.")
    return selects(job)


def created(job: JobRecord) -> datetime:
    """Return the time of the job's creation for filters; one that none leaves out if it can't be read."""
    readable = readable_time(job.create_time)
    return filters.moment(readable) if readable else datetime.max.replace(tzinfo=UTC)


def times_of(job: JobRecord) -> JsonObject:
    """Return the job's times in the form of both APIs, as far as it has reached them."""
    times = {
        "createTime": job.create_time,
        "startTime": job.start_time,
        "endTime": job.end_time,
        **({"updateTime": job.update_time} if job.collection != ML_JOBS else {}),
    }
    return {name: time for name, time in times.items() if readable_time(time)}


def place_of(call: Call) -> tuple[str, str]:
    """Return the project and the location of the call's path; AI Platform Training has no location: "".

    Raises:
        ApiError: INVALID_ARGUMENT: Invalid project or location.
    """
    project, location = call.path["projectsId"], call.path.get("locationsId", "")
    if not all(_PATH_PART.fullmatch(part) for part in (project, location) if part):
        raise invalid(f"Invalid resource name: {_parent(project, location)}")
    return project, location


def _parent(project: str, location: str) -> str:
    return f"projects/{project}/locations/{location}" if location else f"projects/{project}"
