"""What both training APIs share: creating, listing and cancelling jobs."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from reconciler.training_service.http.auth import expired
from reconciler.training_service.http.call import Call
from reconciler.training_service.http.filters import Predicate
from reconciler.training_service.http.json_mapping import snake
from reconciler.training_service.http.message import ApiError, invalid
from reconciler.training_service.http.paging import Pages
from reconciler.training_service.jobs.launch import seconds
from reconciler.training_service.state import run_folder
from reconciler.training_service.state.records import Code, JobRecord, JobState, Json, JsonObject
from reconciler.training_service.state.store import Store, TooLateError, new_etag
from reconciler.training_service.tuning import checks


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


Mistake = tuple[str, str]
Message = Mapping[str, Json]

_NOT_SET = "Required field is not set."
_LABEL = re.compile(r"[\w-]{0,64}")
_JOB_ID = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
_MAX_PACKAGES = 100
_MAX_VARIABLES = 100
_MAX_LABELS = 64
_MAX_POOLS = 4
_LEAST_WAIT = 1800.0
_ML_POOLS = ("worker", "parameterServer", "evaluator")
_OWN_COMMAND = ("containerCommand", "containerArgs")


def custom_job(job: Message) -> Iterator[Mistake]:
    """A new customJobs resource."""
    yield from _resource(job)
    yield from _job_spec(job.get("jobSpec", {}), "job_spec")


def tuning_job(job: Message) -> Iterator[Mistake]:
    """A new hyperparameterTuningJobs resource."""
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


def ml_job(job: Message) -> Iterator[Mistake]:
    """A new projects.jobs resource."""
    if not _JOB_ID.fullmatch(job.get("jobId", "")):
        yield "job_id", f"A job id must match ^{_JOB_ID.pattern}$."
    yield from _labels(job.get("labels", {}))
    if "trainingInput" in job:
        yield from _training_input(job["trainingInput"])
    else:
        yield "training_input", _NOT_SET


def labels(job: Message) -> Iterator[Mistake]:
    """The labels of any resource."""
    yield from _labels(job.get("labels", {}))


def _resource(job: Message) -> Iterator[Mistake]:
    yield from _missing(job, "", "displayName")
    if len(job.get("displayName", "")) > 128:
        yield "display_name", "A display name has at most 128 characters."
    yield from _labels(job.get("labels", {}))


def _labels(found: Mapping[str, str]) -> Iterator[Mistake]:
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
    yield from _missing(spec, path + ".", "workerPoolSpecs")
    if len(pools) > _MAX_POOLS:
        yield f"{path}.worker_pool_specs", f"At most {_MAX_POOLS} worker pools."
    for index, pool in enumerate(pools):
        # Only the first may not be left empty: the others' places say what they are for.
        if index == 0 or pool:
            yield from _pool(pool, f"{path}.worker_pool_specs[{index}]")
    if pools and pools[0].get("replicaCount", "1") != "1":
        yield f"{path}.worker_pool_specs[0].replica_count", "The first worker pool has exactly one replica."
    yield from _durations(spec.get("scheduling", {}), f"{path}.scheduling", "timeout", "maxWaitDuration")
    prefix = spec.get("baseOutputDirectory", {}).get("outputUriPrefix", "gs://")
    if not prefix.startswith("gs://"):
        yield f"{path}.base_output_directory.output_uri_prefix", "A Cloud Storage URI begins with gs://."


def _pool(pool: Message, path: str) -> Iterator[Mistake]:
    yield from _missing(pool.get("machineSpec", {}), f"{path}.machine_spec.", "machineType")
    tasks = [name for name in ("containerSpec", "pythonPackageSpec") if name in pool]
    if len(tasks) != 1:
        yield f"{path}.task", "Exactly one of container_spec and python_package_spec must be set."
    if "containerSpec" in pool:
        yield from _missing(pool["containerSpec"], f"{path}.container_spec.", "imageUri")
        yield from _variables(pool["containerSpec"], f"{path}.container_spec.env")
    if "pythonPackageSpec" in pool:
        yield from _python_package(pool["pythonPackageSpec"], f"{path}.python_package_spec")


def _python_package(spec: Message, path: str) -> Iterator[Mistake]:
    yield from _missing(spec, path + ".", "executorImageUri", "packageUris", "pythonModule")
    yield from _packages(spec, f"{path}.package_uris")
    yield from _variables(spec, f"{path}.env")


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
    yield from _each(found, path, ("name",))


def _training_input(given: Message) -> Iterator[Mistake]:
    path = "training_input"
    yield from _missing(given, path + ".", "region", "scaleTier")
    if given.get("scaleTier") == "CUSTOM":
        yield from _missing(given, path + ".", "masterType")
    if not given.get("masterConfig", {}).get("imageUri"):
        yield from _missing(given, path + ".", "packageUris", "pythonModule", "runtimeVersion")
    yield from _packages(given, f"{path}.package_uris")
    yield from _ml_pools(given, path)
    yield from _ml_commands(given, path)
    scheduling = given.get("scheduling", {})
    yield from _durations(scheduling, f"{path}.scheduling", "maxRunningTime", "maxWaitTime")
    if 0 <= seconds(scheduling.get("maxWaitTime", "1800s")) < _LEAST_WAIT:
        yield f"{path}.scheduling.max_wait_time", "Must be at least 1800s."
    if "hyperparameters" in given:
        yield from checks.hyperparameters(given["hyperparameters"], f"{path}.hyperparameters")
    if "jobDir" in given and not given["jobDir"].startswith("gs://"):
        yield f"{path}.job_dir", "A Cloud Storage URI begins with gs://."


def _ml_pools(given: Message, path: str) -> Iterator[Mistake]:
    for role in _ML_POOLS:
        count, machine = int(given.get(f"{role}Count", 0)), given.get(f"{role}Type", "")
        told = f"{path}.{snake(role)}"
        if count < 0:
            yield f"{told}_count", "Must not be negative."
        if given.get("scaleTier") != "CUSTOM":
            yield from (
                (f"{told}_{name}", "Only with the scale tier CUSTOM.")
                for name, value in (("count", count), ("type", machine))
                if value
            )
        elif count > 0 and not machine:
            yield f"{told}_type", f"Required field is not set, as there is a {snake(role)}_count."


def _ml_commands(given: Message, path: str) -> Iterator[Mistake]:
    image = given.get("masterConfig", {}).get("imageUri")
    for role in ("master", *_ML_POOLS):
        config = given.get(f"{role}Config", {})
        for name in _OWN_COMMAND:
            if not config.get(name):
                continue
            told = f"{path}.{snake(role)}_config.{snake(name)}"
            if not (config.get("imageUri") or image):  # the master's is the others' too
                yield told, "Only with an image_uri."
            if given.get("args"):
                yield told, "Must not be set together with training_input.args."


def _durations(spec: Message, path: str, *names: str) -> Iterator[Mistake]:
    yield from (
        (f"{path}.{snake(name)}", "Must not be negative.")
        for name in names
        if seconds(spec.get(name, "0s")) < 0
    )


def _each(items: Sequence[Message], path: str, names: Sequence[str]) -> Iterator[Mistake]:
    for index, item in enumerate(items):
        yield from _missing(item, f"{path}[{index}].", *names)


def _missing(message: Message, path: str, *names: str) -> Iterator[Mistake]:
    yield from ((path + snake(name), _NOT_SET) for name in names if not message.get(name))
