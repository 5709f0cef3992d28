"""Details of one job, collected from the engine, the claims, the output directory, the log and git.

A part that can't be read leaves its reason in `JobDetails.unread`; only the job itself must be readable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from reconciler.base.errors import ServiceError, UsageError
from reconciler.base.git_command import SHA, Git
from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.google.job_log import JobLog
from reconciler.manifests.secrets import value_at, without_secrets
from reconciler.model.cause import cause_of
from reconciler.model.claim import ClaimState, time_of
from reconciler.model.details import JobDetails, JobLinks, Output
from reconciler.model.job import COMMIT, ActualJob, State
from reconciler.model.plan import DesiredJob
from reconciler.operations.named_job import NamedJob
from reconciler.operations.publications import place_of_model
from reconciler.operations.results import results_of
from reconciler.operations.session import Session
from reconciler.reporting.github.settings import run_url

LAST_ENTRIES = 10


def job_details(
    session: Session, job: NamedJob, environ: Mapping[str, str], *, entries: int = LAST_ENTRIES
) -> JobDetails:
    """Return the details of a job, with at most `entries` of the log."""
    details = run_details(session, job, environ, entries=entries)
    return _with_commit(details, session.config.root, environ)


def run_details(session: Session, job: NamedJob, environ: Mapping[str, str], *, entries: int) -> JobDetails:
    """Return the details of a job without those of its commit, which takes a program to read."""
    details = _recorded(job, session.environment.name)
    if job.run is not None:
        details = _with_run(details, job.run, job.desired)
    details = _with_spec(details, session, _spec_of(job), _not_secret(job.desired))
    links = replace(details.links, console=job.run.url if job.run else "", workflow_run=run_url(environ))
    details = replace(details, links=links, unread=job.unread)
    if job.run is None:
        return details
    engine = engine_spec(job.run.api_version)
    details = replace(details, study=engine.study(job.run), model=engine.registered_model(job.run))
    uri = details.output.uri if details.output else ""
    results = results_of(session, uri, job.run.create_time, environ)
    unread = {**results.unread, **details.unread}
    details = replace(details, output=results.output, metrics=results.metrics, unread=unread)
    details = _with_place(details, session, job)
    return _with_log(details, session, job.run, entries)


def _recorded(job: NamedJob, environment: str) -> JobDetails:
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
        other_run=job.other_run if job.is_base_name else None,
        labels=manifest.labels if manifest and run is None else {},
    )


def _with_run(details: JobDetails, run: ActualJob, desired: DesiredJob | None) -> JobDetails:
    return replace(
        details,
        job_name=run.job_name,
        state=run.state,
        on_runner=run.on_runner,
        service_state=run.service_state,
        cause=cause_of(run, details.base_name, desired.manifest if desired else None),
        error=run.error or details.error,
        resource=run.resource,
        backing=run.backing,
        create_time=run.create_time,
        start_time=run.start_time,
        end_time=run.end_time,
        commit=run.labels.get(COMMIT, details.commit),
        labels=run.labels,
    )


def _spec_of(job: NamedJob) -> Mapping[str, object]:
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
    values = (value_at(written, pointer) for pointer in desired.manifest.reconcile.not_secret)
    return frozenset(text for text in values if isinstance(text, str))


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


def _with_place(details: JobDetails, session: Session, job: NamedJob) -> JobDetails:
    """Add where the model of the desired run is published."""
    last = job.state.last_wanted
    if job.run is None or last is None or last.resource != job.run.resource:
        return details
    try:
        return replace(details, place=place_of_model(session, job.state))
    except ServiceError as error:
        return replace(details, unread={**details.unread, "publication": error.message})


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
    is_of_set_up = began is not None and (started is None or began < started)
    return first.timestamp if first and is_of_set_up else ""
