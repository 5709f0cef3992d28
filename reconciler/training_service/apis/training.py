"""Handlers and request validation that Vertex AI and AI Platform Training share."""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path

from reconciler.training_service.apis.unsupported import unsupported
from reconciler.training_service.http import filters
from reconciler.training_service.http.auth import expired
from reconciler.training_service.http.discovery import Call, Pages, page_size
from reconciler.training_service.http.json_mapping import snake
from reconciler.training_service.http.message import ApiError, invalid, not_found
from reconciler.training_service.jobs.launch import seconds
from reconciler.training_service.state.database import Store, TooLateError, new_etag
from reconciler.training_service.state.records import (
    ENDED,
    ML_JOBS,
    Code,
    JobRecord,
    JobState,
    JsonObject,
    TrialRecord,
    UnreadableJob,
    details_of,
    readable_time,
)
from reconciler.training_service.state.rows import LABEL, UnreadableError
from reconciler.training_service.state.run_folder import remove, run_folder
from reconciler.training_service.tuning import checks
from reconciler.training_service.tuning.checks import NOT_SET, Message, Mistake
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
        """Add a new job, QUEUED, unless the caller's token has expired.

        Raises:
            AlreadyExistsError: The job id is already used.
            ApiError: UNAUTHENTICATED: The token has expired since the request was admitted. INVALID_ARGUMENT:
                The job can't run here.
        """
        project, location = place_of(call)
        now, until = self._store.now(), call.access.until
        job = JobRecord(
            collection=self.collection,
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
        if missing := [*unsupported(job)]:
            raise self.refused(missing)
        try:
            added = self._store.add_job(job, until)
        except TooLateError:
            assert until is not None, "the store compares with `until` only"
            raise expired(until) from None
        self._wake()
        return self.resource(added, ())

    def _list(self, call: Call) -> JsonObject:
        """Return one page of a list, newest first."""
        resource = self.listed_resource(call)
        place = (self.collection, *place_of(call))
        size = page_size(call.number("pageSize"), "The page size", self.default_page, self.largest_page)
        selects, label, unfinished = self._filter(call.text("filter"))
        selects = partial(_selects_known, selects) if call.text("filter") else selects
        query = [call.method.id, dict(call.path), call.text("filter")]
        token = call.text("pageToken")
        before = int(self._pages.position(token, query)) if token else 2**62
        # One lock for all steps: no job changes between the filter and the answer.
        with self._store.database.reading():
            found = self._store.select(
                place, selects, size + 1, before=before, label=label, unfinished=unfinished
            )
            page = found[:size]
            items = [resource(job) for job in page]
        following = self._pages.token(page[-1].id, query) if len(found) > size else ""
        answer: JsonObject = {self.collection: items, "nextPageToken": following}
        return {name: value for name, value in answer.items() if value}

    def _compiled(self, text: str) -> tuple[filters.Predicate[JobRecord], str | None, bool]:
        """Return a filter as a predicate, with `label` and `unfinished` of `Store.select`."""
        found = filters.parse(text)
        selects = filters.compile_filter(found, self.filter_field)
        of_state = [each for each in filters.conjuncts(found) if each.field == ("state",)]
        tests = [filters.compile_filter(each, self.filter_field) for each in of_state]
        unfinished = not any(all(test(job) for test in tests) for job in _ENDED_JOBS)
        labels = [each for each in filters.conjuncts(found) if each.field == ("labels", LABEL)]
        values = [each.value for each in labels if each.comparison == "="]
        return selects, values[0] if values else None, unfinished

    def _cancel(self, call: Call) -> JsonObject:
        """Cancel the job: at once if QUEUED, otherwise by ending its processes first."""
        job = self._named(call)
        # A queued job has no processes to end. The supervisor may start it at this moment: then it is one of
        # the second kind, and no state leads back to QUEUED.
        move = partial(
            self._store.move,
            job.id,
            at=self._store.now(),
            error_message=self.cancel_message,
            error_details=details_of("REQUESTED"),
        )
        changed = move(JobState.CANCELLED, only_from={JobState.QUEUED}, error_code=Code.CANCELLED)
        changed = changed or move(JobState.CANCELLING, only_from={JobState.PREPARING, JobState.RUNNING})
        found = changed or self._store.job(job.id)
        if not changed and found and found.state.ended:
            raise ApiError("FAILED_PRECONDITION", f"Cannot cancel the job: it is already {found.state}.")
        self._wake()
        return {}

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
            values = {each.name: getattr(job, each.name) for each in fields(JobRecord)}
            return self.resource(UnreadableJob(**values, columns=("trials",)), ())
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


_LABEL = re.compile(r"[\w-]{0,64}")
# An image's name alone: no flag of an engine, no address, no place of the engine's own.
_IMAGE = re.compile(
    r"(?!(?:containers-storage|dir|docker-archive|docker-daemon|oci|oci-archive|ostree|sif|tarball):)"
    r"[A-Za-z0-9\[](?:[A-Za-z0-9._@+\[\]-]|/(?!/)|:(?!/))*"
)
_JOB_ID = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
_MAX_PACKAGES = 100
_MAX_VARIABLES = 100
_MAX_LABELS = 64
_MAX_POOLS = 4
_MIN_WAIT = 1800.0
_ML_POOLS = ("worker", "parameterServer", "evaluator")


def custom_job_mistakes(job: Message) -> Iterator[Mistake]:
    """Yield the mistakes of a new customJobs resource."""
    yield from _resource(job)
    yield from _job_spec(job.get("jobSpec", {}), "job_spec")


def tuning_job_mistakes(job: Message) -> Iterator[Mistake]:
    """Yield the mistakes of a new hyperparameterTuningJobs resource."""
    yield from _resource(job)
    yield from checks.study_spec(job.get("studySpec", {}), "study_spec")
    yield from (
        (snake(name), "Must be greater than zero.")
        for name in ("maxTrialCount", "parallelTrialCount")
        if job.get(name, 0) < 1
    )
    if job.get("maxFailedTrialCount", 0) < 0:
        yield "max_failed_trial_count", "Must not be negative."
    yield from _job_spec(job.get("trialJobSpec", {}), "trial_job_spec")


def ml_job_mistakes(job: Message) -> Iterator[Mistake]:
    """Yield the mistakes of a new projects.jobs resource."""
    if not _JOB_ID.fullmatch(job.get("jobId", "")):
        yield "job_id", f"A job id must match ^{_JOB_ID.pattern}$."
    yield from label_mistakes(job)
    if "trainingInput" in job:
        yield from _training_input(job["trainingInput"])
    else:
        yield "training_input", NOT_SET


def _resource(job: Message) -> Iterator[Mistake]:
    yield from _unset(job, "", "displayName")
    if len(job.get("displayName", "")) > 128:
        yield "display_name", "A display name has at most 128 characters."
    yield from label_mistakes(job)


def label_mistakes(job: Message) -> Iterator[Mistake]:
    """Yield the mistakes in the labels of any resource."""
    found = job.get("labels", {})
    if len(found) > _MAX_LABELS:
        yield "labels", f"At most {_MAX_LABELS} labels."
    for key, value in found.items():
        if not key or not _is_label(key) or not _is_label(value):
            yield (
                f"labels.{key}",
                "Label keys and values have at most 64 characters: lower-case letters, digits, '_' and '-'.",
            )


def _is_label(text: str) -> bool:
    return text == text.lower() and _LABEL.fullmatch(text) is not None


def _job_spec(spec: Message, path: str) -> Iterator[Mistake]:
    pools = spec.get("workerPoolSpecs", [])
    yield from _unset(spec, path + ".", "workerPoolSpecs")
    if len(pools) > _MAX_POOLS:
        yield f"{path}.worker_pool_specs", f"At most {_MAX_POOLS} worker pools."
    for index, pool in enumerate(pools):
        # A pool's position is its role, so pools other than the first may be empty placeholders.
        if index == 0 or pool:
            yield from _pool(pool, f"{path}.worker_pool_specs[{index}]")
    if pools and pools[0].get("replicaCount", "1") != "1":
        yield f"{path}.worker_pool_specs[0].replica_count", "The first worker pool has exactly one replica."
    yield from _durations(spec.get("scheduling", {}), f"{path}.scheduling", "timeout", "maxWaitDuration")
    prefix = spec.get("baseOutputDirectory", {}).get("outputUriPrefix", "gs://")
    if not prefix.startswith("gs://"):
        yield f"{path}.base_output_directory.output_uri_prefix", "A Cloud Storage URI begins with gs://."


def _pool(pool: Message, path: str) -> Iterator[Mistake]:
    yield from _unset(pool.get("machineSpec", {}), f"{path}.machine_spec.", "machineType")
    tasks = [name for name in ("containerSpec", "pythonPackageSpec") if name in pool]
    if len(tasks) != 1:
        yield f"{path}.task", "Exactly one of container_spec and python_package_spec must be set."
    if "containerSpec" in pool:
        yield from _unset(pool["containerSpec"], f"{path}.container_spec.", "imageUri")
        yield from _image(pool["containerSpec"], "imageUri", f"{path}.container_spec")
        yield from _variables(pool["containerSpec"], f"{path}.container_spec.env")
    if "pythonPackageSpec" in pool:
        yield from _python_package(pool["pythonPackageSpec"], f"{path}.python_package_spec")


def _python_package(spec: Message, path: str) -> Iterator[Mistake]:
    yield from _unset(spec, path + ".", "executorImageUri", "packageUris", "pythonModule")
    yield from _image(spec, "executorImageUri", path)
    yield from _packages(spec, f"{path}.package_uris")
    yield from _variables(spec, f"{path}.env")


def _image(spec: Message, name: str, path: str) -> Iterator[Mistake]:
    image = spec.get(name, "")
    if image and not _IMAGE.fullmatch(image):
        yield (
            f"{path}.{snake(name)}",
            "Must be the name of an image alone: HOST/PROJECT/REPOSITORY/IMAGE:TAG.",
        )


def _packages(spec: Message, path: str) -> Iterator[Mistake]:
    found = spec.get("packageUris", [])
    if len(found) > _MAX_PACKAGES:
        yield path, f"At most {_MAX_PACKAGES} packages."
    for index, uri in enumerate(found):
        if not uri.startswith("gs://"):
            yield f"{path}[{index}]", "A Cloud Storage URI begins with gs://."


def _variables(spec: Message, path: str) -> Iterator[Mistake]:
    found = spec.get("env", [])
    if len(found) > _MAX_VARIABLES:
        yield path, f"At most {_MAX_VARIABLES} environment variables."
    for index, variable in enumerate(found):
        yield from _unset(variable, f"{path}[{index}].", "name")


def _training_input(given: Message) -> Iterator[Mistake]:
    path = "training_input"
    yield from _unset(given, path + ".", "region")
    if given.get("scaleTier") == "CUSTOM":
        yield from _unset(given, path + ".", "masterType")
    if not given.get("masterConfig", {}).get("imageUri"):
        yield from _unset(given, path + ".", "packageUris", "pythonModule", "runtimeVersion")
    yield from _packages(given, f"{path}.package_uris")
    yield from _ml_pools(given, path)
    yield from _ml_commands(given, path)
    scheduling = given.get("scheduling", {})
    yield from _durations(scheduling, f"{path}.scheduling", "maxRunningTime", "maxWaitTime")
    if 0 <= seconds(scheduling.get("maxWaitTime", "1800s")) < _MIN_WAIT:
        yield f"{path}.scheduling.max_wait_time", "Must be at least 1800s."
    if "hyperparameters" in given:
        yield from checks.hyperparameters(given["hyperparameters"], f"{path}.hyperparameters")
    if "jobDir" in given and not given["jobDir"].startswith("gs://"):
        yield f"{path}.job_dir", "A Cloud Storage URI begins with gs://."


def _ml_pools(given: Message, path: str) -> Iterator[Mistake]:
    for role in _ML_POOLS:
        count, machine = int(given.get(f"{role}Count", 0)), given.get(f"{role}Type", "")
        field = f"{path}.{snake(role)}"
        if count < 0:
            yield f"{field}_count", "Must not be negative."
        if given.get("scaleTier") != "CUSTOM":
            yield from (
                (f"{field}_{name}", "Only with the scale tier CUSTOM.")
                for name, value in (("count", count), ("type", machine))
                if value
            )
        elif count > 0 and not machine:
            yield f"{field}_type", f"Required field is not set, as there is a {snake(role)}_count."


def _ml_commands(given: Message, path: str) -> Iterator[Mistake]:
    image = given.get("masterConfig", {}).get("imageUri")
    for role in ("master", *_ML_POOLS):
        config = given.get(f"{role}Config", {})
        yield from _image(config, "imageUri", f"{path}.{snake(role)}_config")
        for name in ("containerCommand", "containerArgs"):
            if not config.get(name):
                continue
            field = f"{path}.{snake(role)}_config.{snake(name)}"
            if not (config.get("imageUri") or image):  # the master's image is every role's default
                yield field, "Only with an image_uri."
            if given.get("args"):
                yield field, "Must not be set together with training_input.args."


def _durations(spec: Message, path: str, *names: str) -> Iterator[Mistake]:
    yield from (
        (f"{path}.{snake(name)}", "Must not be negative.")
        for name in names
        if seconds(spec.get(name, "0s")) < 0
    )


def _unset(message: Message, path: str, *names: str) -> Iterator[Mistake]:
    yield from ((path + snake(name), NOT_SET) for name in names if not message.get(name))
