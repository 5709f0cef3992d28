"""Details of one job, collected from the engine, the claims, the output directory, the log and git.

A part that can't be read leaves its reason in `JobDetails.unread`; only the job itself must be readable.

A base name needs one short listing of its runs and the claims of their contents. All jobs, claims and
manifests are read only if it has no run: then the name may be that of a new manifest, of a deleted run, or
misspelt.

docs/show.md documents the convention for metrics: JSON objects with numbers, in files with certain names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from reconciler.base.diagnostics import same_word, similar_word
from reconciler.base.errors import InvalidError, NotFoundError, ServiceError, UsageError
from reconciler.base.git_command import SHA, Git
from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.google.job_log import JobLog
from reconciler.google.object_store import ObjectStore, StoredObject
from reconciler.manifests.secrets import value_at, without_secrets
from reconciler.model.cause import cause_of
from reconciler.model.claim import Claim, ClaimId, ClaimState, time_of
from reconciler.model.claimed_run import age, made
from reconciler.model.details import JobDetails, JobLinks, MetricsFile, Output, OutputFile
from reconciler.model.fields import numbers_of
from reconciler.model.job import COMMIT, KEY, ActualJob, State
from reconciler.model.manifest import ManifestPlace
from reconciler.model.plan import DesiredJob
from reconciler.operations.load_desired import load_desired
from reconciler.operations.session import Session
from reconciler.planning.attempts import Attempt, attempts_by_base, base_of, keys_of
from reconciler.reporting.github.settings import run_url
from reconciler.submission.observe import observe

LAST_ENTRIES = 10
_MOST_CONTENTS = 5
"""Contents of a base name, the newest ones, that are searched for a run with a claim."""
_NAME = re.compile("[A-Za-z0-9_-]{1,200}")
_FIELDS = "name,generation,size,updated"
_MOST_FILES = 1000
_METRICS_NAMES = ("*metrics*.json", "*results*.json", "eval*.json")
_METRICS_FOLDERS = ("", "model/", "checkpoints/", "logs/")
"""Folders of metrics: the output directory, and those in it that the services name to trainers."""
_MOST_METRICS = 8
_LARGEST_METRICS = 64 * 1024  # bytes of a metrics file

Claims = Mapping[ClaimId, Claim]


class FoundJob(Struct):
    """A job as it was found.

    Attributes:
        run: With its spec; None if the service has none.
        desired: The manifest's present job of this base name.
        place: Its manifest.
        unsettled: The base name's other claims without a run.
        unread: As in `JobDetails`.
    """

    attempt: Attempt | None = None
    run: ActualJob | None = None
    desired: DesiredJob | None = None
    place: ManifestPlace = ManifestPlace()
    unsettled: tuple[Claim, ...] = ()
    unread: dict[str, str] = field(default_factory=dict)

    @property
    def claim(self) -> Claim | None:
        """The claim of the run, or of an attempt without a run."""
        claim = self.attempt.claim if self.attempt else None
        return claim if claim and (self.run is None or made(claim, self.run)) else None

    @property
    def base_name(self) -> str:
        """The manifest's name; the beginning of the job's name if nothing tells it."""
        if self.desired:
            return self.desired.manifest.name
        name = self.claim.base_name if self.claim else ""
        return name or base_of(self.attempt.name if self.attempt else "")

    def resource(self) -> Mapping[str, object]:
        """Return the run's resource as the API returns it; raise NotFoundError without a run."""
        if self.run is None:
            raise NotFoundError(
                "the service has no run of this job", hint="see `reconciler show` without --format yaml"
            )
        return self.run.body


def find_job(session: Session, name: str) -> FoundJob:
    """Return the job of a job name, or the newest run of a base name.

    Raises:
        NotFoundError: No job, claim or manifest has this name.
        ServiceError: The jobs can't be read.
    """
    return _Finder(session, name).find()


def job_details(
    session: Session, job: FoundJob, environ: Mapping[str, str], *, entries: int = LAST_ENTRIES
) -> JobDetails:
    """Return the details of a job, with at most `entries` of the log."""
    details = run_details(session, job, environ, entries=entries)
    return _with_commit(details, session.config.root, environ)


def run_details(session: Session, job: FoundJob, environ: Mapping[str, str], *, entries: int) -> JobDetails:
    """Return the details of a job without those of its commit, which takes a program to read."""
    details = _recorded(job, session.environment.name)
    if job.run is not None:
        details = _with_run(details, job.run)
    details = _with_spec(details, session, _spec_of(job), _not_secret(job.desired))
    links = replace(details.links, console=job.run.url if job.run else "", workflow_run=run_url(environ))
    details = replace(details, links=links, unread=job.unread)
    if job.run is None:
        return details
    details = replace(details, study=engine_spec(job.run.api_version).study(job.run))
    return _with_log(_with_outputs(details, session, environ), session, job.run, entries)


class _Finder(Struct):
    """Search for the job of a name."""

    session: Session
    name: str
    unread: dict[str, str] = field(default_factory=dict)

    def find(self) -> FoundJob:
        """Return the job; raise NotFoundError."""
        normalized = self.name.replace("-", "_")
        if _NAME.fullmatch(self.name):
            for base in dict.fromkeys((base_of(normalized), normalized)):
                if found := self._among_runs(base):
                    return found
        return self._among_all(normalized)

    def _among_runs(self, base: str) -> FoundJob | None:
        """Return the job if the service has a run of this base name and `name` means it."""
        listed = [run for run in self.session.jobs.of_base(base) if base_of(run.job_name) == base]
        runs = sorted(self.session.own(listed), key=age, reverse=True)
        if not runs:
            return None
        contents = dict.fromkeys(run.labels[KEY] for run in runs if KEY in run.labels)
        claims = self._claims([*contents][:_MOST_CONTENTS])
        path = next((claim.path for run in runs for claim in claims.values() if made(claim, run)), "")
        desired = self._manifest(path, base)
        claims |= self._claims([key for key in keys_of(desired) if key not in contents] if desired else [])
        runs += self._adopted(claims)
        attempts = attempts_by_base([desired] if desired else [], runs, claims).get(base, [])
        exact = [attempt for attempt in attempts if self.name in _names(attempt)]
        if not exact and self.name.replace("-", "_") != base:
            return None
        return self._chosen(exact or attempts, attempts, desired, path)

    def _among_all(self, base: str) -> FoundJob:
        """Return the job of any manifest, claim or run; raise NotFoundError with a similar name."""
        desired = self._load([])
        job = next((j for j in desired if self.name == j.job_name or base == j.manifest.base_name), None)
        if job is not None:
            # Only the manifest's own content counts: earlier ones have no run either.
            attempts = attempts_by_base([job], [], self._claims(keys_of(job))).get(job.manifest.base_name, [])
            exact = [attempt for attempt in attempts if self.name in _names(attempt)]
            if attempts:
                return self._chosen(exact or attempts, attempts, job, job.manifest.path)
            return FoundJob(desired=job, place=place_of(job, None, ""), unread=self.unread)
        runs, claims = self._observed()
        by_base = attempts_by_base(desired, runs, claims)
        exact = [each for attempts in by_base.values() for each in attempts if self.name in _names(each)]
        found = exact or by_base.get(base, [])
        if not found:
            raise NotFoundError(f'there is no job "{self.name}"', hint=self._hint(desired, by_base))
        of_base = next(name for name, attempts in by_base.items() if found[0] in attempts)
        job = next((job for job in desired if job.manifest.base_name == of_base), None)
        path = next((each.claim.path for each in found if each.claim), "")
        return self._chosen(found, by_base.get(of_base, []), job, path)

    def _chosen(
        self, found: Sequence[Attempt], attempts: Sequence[Attempt], desired: DesiredJob | None, path: str
    ) -> FoundJob:
        """Return the newest run, else the last attempt."""
        # Runs with a claim are certainly ours; others only have the same name.
        claimed = [(attempt, attempt.run) for attempt in found if attempt.run and attempt.claim]
        runs = claimed or [(each, run) for each in found for run in (each.run, *each.strangers) if run]
        if runs:
            attempt, run = max(runs, key=lambda pair: age(pair[1]))
        else:
            attempt, run = max(found, key=lambda each: each.id.attempt), None
        unsettled = (other.claim for other in attempts if other is not attempt and other.claim)
        return FoundJob(
            attempt=attempt,
            run=_with_reason(self._read(attempt, run), attempt.claim),
            desired=desired,
            place=place_of(desired, attempt, path),
            unsettled=tuple(claim for claim in unsettled if claim.state is not ClaimState.BOUND),
            unread=self.unread,
        )

    def _read(self, attempt: Attempt, run: ActualJob | None) -> ActualJob | None:
        """Return the run with its spec; None if the service no longer has it."""
        claim = attempt.claim
        with suppress(NotFoundError):
            if run is not None:
                return self.session.read(run)
            # A run whose labels were changed outside is in no listing of ours.
            if claim and claim.resource and not claim.gone:
                return self.session.jobs.read(claim.api_version, claim.kind, claim.resource)
        return None

    def _adopted(self, claims: Claims) -> Iterator[ActualJob]:
        """Yield the adopted runs, which no listing by label shows."""
        for claim in claims.values():
            with suppress(NotFoundError):
                if claim.is_adopted and not claim.gone:
                    yield self.session.jobs.read(claim.api_version, claim.kind, claim.resource)

    def _claims(self, keys: Iterable[str]) -> dict[ClaimId, Claim]:
        found: dict[ClaimId, Claim] = {}
        try:
            for key in keys:
                versions = self.session.claims.of_key(key)
                found |= {id: versioned.claim for id, versioned in versions.items()}
        except ServiceError as error:
            self.unread["claim"] = error.message
        return found

    def _observed(self) -> tuple[tuple[ActualJob, ...], Claims]:
        try:
            observed = observe(self.session.ports)
            return observed.runs, observed.claims
        except ServiceError as error:
            # Unusable claims must not hide a run.
            self.unread["claim"] = error.message
            return self.session.runs(), {}

    def _manifest(self, path: str, base: str) -> DesiredJob | None:
        """Return the job of this base name in a claim's file; None if the file no longer has it."""
        # The path comes from a bucket: it must not lead out of the repository.
        if not path or Path(path).is_absolute() or ".." in Path(path).parts:
            return None
        jobs = self._load([self.session.config.root / path])
        return next((job for job in jobs if job.manifest.base_name == base), None)

    def _load(self, paths: Sequence[Path]) -> tuple[DesiredJob, ...]:
        try:
            return load_desired(self.session.config, self.session.environment, paths).jobs
        except UsageError:
            return ()
        except InvalidError as error:
            self.unread["manifest"] = f"{error.message}: see `reconciler validate`"
            return ()

    def _hint(self, desired: Iterable[DesiredJob], by_base: Mapping[str, Sequence[Attempt]]) -> str:
        known = [job.manifest.name for job in desired]
        known += [each.claim.base_name if each.claim else base for base, (each, *_) in by_base.items()]
        known += [attempt.name for attempts in by_base.values() for attempt in attempts]
        similar = same_word(self.name, known) or similar_word(self.name, known)
        return f"did you mean {similar}?" if similar else "see `reconciler status`"


def _with_reason(run: ActualJob | None, claim: Claim | None) -> ActualJob | None:
    """Return the run; a cancelled one with the reason that its claim records, as `observe` returns it."""
    if run is None or run.state is not State.CANCELLED:
        return run
    return replace(run, cancelled=claim.error if claim and claim.resource == run.resource else None)


def _names(attempt: Attempt) -> set[str]:
    return {attempt.name, *(run.job_name for run in (*attempt.others, *attempt.strangers))}


def place_of(desired: DesiredJob | None, attempt: Attempt | None, path: str) -> ManifestPlace:
    """Return the place of a manifest, from the manifest or the path in its claim."""
    if desired is None:
        return ManifestPlace(path, relation="missing" if path else "")
    is_current = attempt is None or attempt.id.key in keys_of(desired)
    manifest = desired.manifest
    return ManifestPlace(manifest.path, manifest.line, "current" if is_current else "changed")


def _recorded(job: FoundJob, environment: str) -> JobDetails:
    """Return the details that the claim and the manifest give."""
    claim, desired, attempt = job.claim, job.desired, job.attempt
    manifest = desired.manifest if desired else None
    run = job.run
    source = claim or run or manifest
    assert source is not None, "a job has a claim, a run or a manifest"
    return JobDetails(
        job_name=attempt.name if attempt else desired.job_name if desired else "",
        base_name=job.base_name,
        api_version=source.api_version,
        kind=source.kind,
        environment=environment,
        state=claim.ended if claim else None,
        is_gone=run is None and claim is not None and claim.state is ClaimState.BOUND,
        is_suspended=manifest is not None and manifest.reconcile.suspend,
        error=claim.reason if claim else "",
        resource=claim.resource if claim else "",
        attempt=attempt.id.attempt if attempt else 1,
        commit=claim.commit if claim else "",
        manifest=job.place,
        claim=claim,
        unsettled=job.unsettled,
        labels=manifest.labels if manifest and run is None else {},
    )


def _with_run(details: JobDetails, run: ActualJob) -> JobDetails:
    return replace(
        details,
        job_name=run.job_name,
        state=run.state,
        on_runner=run.on_runner,
        service_state=run.service_state,
        cause=cause_of(run, details.base_name),
        error=run.error or details.error,
        resource=run.resource,
        create_time=run.create_time,
        start_time=run.start_time,
        end_time=run.end_time,
        commit=run.labels.get(COMMIT, details.commit),
        labels=run.labels,
    )


def _spec_of(job: FoundJob) -> Mapping[str, object]:
    """Return the run's spec; without a run the manifest's, if it is the same content."""
    if job.run is not None:
        return job.run.spec
    is_same = job.desired is not None and job.place.relation == "current"
    return job.desired.spec if job.desired and is_same else {}


def _not_secret(desired: DesiredJob | None) -> frozenset[str]:
    """Return the texts that the manifest lists under `reconcile.notSecret`."""
    if desired is None:
        return frozenset()
    written = {"spec": desired.manifest.spec}
    found = (value_at(written, pointer) for pointer in desired.manifest.reconcile.not_secret)
    return frozenset(text for text in found if isinstance(text, str))


def _with_spec(
    details: JobDetails, session: Session, spec: Mapping[str, object], not_secret: frozenset[str]
) -> JobDetails:
    try:
        engine = engine_spec(details.api_version)
    except UsageError:
        # A newer version may have written the claim.
        return details
    shown, kind = without_secrets(spec, exempt=not_secret), details.kind
    limits, uri = engine.limits(kind, spec), engine.output_directory(kind, spec)
    return replace(
        details,
        spec=shown,
        workers=tuple(engine.workers(kind, shown)),
        service_account=limits.get("serviceAccount", ""),
        network=limits.get("network", ""),
        timeout=limits.get("timeout", ""),
        output=Output(uri) if uri else None,
        links=JobLinks(tensorboard=engine.log_directory(kind, spec)),
    )


def _with_commit(details: JobDetails, root: Path, environ: Mapping[str, str]) -> JobDetails:
    """Add the commit's author and subject, if git has the commit."""
    if not SHA.fullmatch(details.commit):
        return details
    # Other git commands format a commit by the repository's settings, which may name programs.
    head, _, message = (Git(root, environ).ask("cat-file", "commit", details.commit) or "").partition("\n\n")
    author = re.search(r"^author (.*?) <", head, re.MULTILINE)
    return replace(details, author=author[1] if author else "", subject=message.strip().partition("\n")[0])


def _with_log(details: JobDetails, session: Session, run: ActualJob, most: int) -> JobDetails:
    """Add the last entries of the log, and at the embedded service the beginning of the set-up."""
    try:
        entries = tuple(JobLog(session.connection, run).last(most)) if most else ()
        return replace(details, log=entries, prepare_time=prepare_time(session, run))
    except ServiceError as error:
        return replace(details, unread={**details.unread, "log": error.message})


def prepare_time(session: Session, run: ActualJob) -> str:
    """Return the beginning of a run's set-up (RFC 3339); "" if unknown, as at Google.

    Raises:
        ServiceError: The log can't be read.
    """
    if not session.is_local or run.state is State.QUEUED:
        return ""
    first = JobLog(session.connection, run).first()
    began, started = time_of(first.timestamp if first else ""), time_of(run.start_time)
    is_set_up = began is not None and (started is None or began < started)
    return first.timestamp if first and is_set_up else ""


def _with_outputs(details: JobDetails, session: Session, environ: Mapping[str, str]) -> JobDetails:
    """Add the files of a run's output directory, and their metrics.

    Runs of one manifest share the directory. Files that are older than the run are marked, and give no
    metrics.
    """
    if details.output is None:
        return details
    uri = details.output.uri
    bucket, _, path = uri.removeprefix("gs://").rstrip("/").partition("/")
    prefix = f"{path}/" if path else ""
    output = Output(uri, _folder(session, uri, environ))
    store = ObjectStore(session.connection, bucket, _FIELDS)
    try:
        objects, is_complete = store.first_objects(prefix, _MOST_FILES)
        files = tuple(_file(each, prefix, details.create_time) for each in objects)
        details = replace(details, output=replace(output, files=files, is_complete=is_complete))
        # The metrics may come after the first objects.
        candidates = objects if is_complete else _direct_objects(store, prefix)
    except ServiceError as error:
        return replace(details, output=output, unread={**details.unread, "output": error.message})
    return _with_metrics(details, store, candidates, prefix)


def _folder(session: Session, uri: str, environ: Mapping[str, str]) -> str:
    """Return the directory's folder on this machine; "" for none, and on a runner, which ends with it."""
    folder = session.folder_of(uri, environ)
    return "" if folder is None or session.connection.endpoint.on_runner else str(folder)


def _direct_objects(store: ObjectStore, prefix: str) -> list[StoredObject]:
    found = (
        store.first_objects(prefix + folder, _MOST_FILES, delimiter="/")[0] for folder in _METRICS_FOLDERS
    )
    return [each for objects in found for each in objects]


def _file(found: StoredObject, prefix: str, since: str) -> OutputFile:
    size = int(found.size) if found.size.isdecimal() and len(found.size) < 20 else 0
    updated, created = time_of(found.updated), time_of(since)
    is_older = updated is not None and created is not None and updated < created
    return OutputFile(found.name.removeprefix(prefix), size, found.updated, is_older)


def _with_metrics(
    details: JobDetails, store: ObjectStore, objects: list[StoredObject], prefix: str
) -> JobDetails:
    files = [(_file(each, prefix, details.create_time), each) for each in objects]
    wanted = sorted((pair for pair in files if _is_metrics(pair[0])), key=lambda pair: _order(pair[0].name))
    found: list[MetricsFile] = []
    unread: dict[str, str] = {}
    for file, stored in wanted[:_MOST_METRICS]:
        try:
            values = numbers_of(_json_object(file, store, stored).items())
        except (ServiceError, ValueError) as error:
            unread.setdefault("metrics", f"{file.name}: {getattr(error, 'message', error)}")
        else:
            found += [MetricsFile(file.name, values)] if values else []
    return replace(details, metrics=tuple(found), unread={**unread, **details.unread})


def _is_metrics(file: OutputFile) -> bool:
    folder, slash, name = file.name.rpartition("/")
    is_named = any(fnmatchcase(name.lower(), pattern) for pattern in _METRICS_NAMES)
    return is_named and folder + slash in _METRICS_FOLDERS and not file.is_older


def _order(name: str) -> tuple[int, str]:
    folder, slash, _ = name.rpartition("/")
    return _METRICS_FOLDERS.index(folder + slash), name


def _json_object(file: OutputFile, store: ObjectStore, stored: StoredObject) -> Mapping[str, object]:
    """Return the JSON object in a file; raise ServiceError or ValueError."""
    if file.size > _LARGEST_METRICS:
        raise ValueError(f"larger than {_LARGEST_METRICS // 1024} KiB")
    content = store.read(stored)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value
