"""Live jobs that other clients made: found for `import --live`, and bound to manifests for `--adopt`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial

from msgspec.structs import replace

from reconciler.base.errors import ReconcilerError, ServiceError
from reconciler.convert.importing.live_job import (
    ImportedJobs,
    LiveJob,
    backing_job,
    foreign_pipeline,
    live_job,
)
from reconciler.google.responses import ApiError
from reconciler.model.claim import ClaimId, ClaimState
from reconciler.model.fields import parts_of, text_of
from reconciler.model.job import PREFIX, ActualJob
from reconciler.model.naming import label_of
from reconciler.model.plan import DesiredJob
from reconciler.model.selection import Selection
from reconciler.model.stand_ins import CodeUse
from reconciler.operations.execute import Applier, applier_of
from reconciler.operations.load_desired import Desired, load_desired
from reconciler.operations.session import Session
from reconciler.packaging.staged_uri import staged_uri
from reconciler.submission.adoption import Adopted
from reconciler.submission.observe import Observed, observe

_REFUSED = 400


def find_live_jobs(
    session: Session, names: Collection[str], selection: Selection, wanted: str, *, with_adopted: bool
) -> ImportedJobs:
    """Return the environment's jobs that this tool hasn't submitted.

    Batch predictions and pipelines that run no code of the user's are left out unless they are named.

    Args:
        names: Names, resource names or their last parts; none for all jobs.
        selection: Only its conditions on labels count.
        wanted: A filter of the service's own, sent with its list call; "" for all jobs.
        with_adopted: True if jobs that a claim names are among them.

    Raises:
        ServiceError: The jobs can't be read.
        SourceError: A job is no training job, or runs no code of the user's.
    """
    listed = [*_listed(session, wanted)]
    # A tuning job's trials, and the jobs that train for pipelines, are listed as jobs of their own.
    left_out = {name for job in listed for name in (*_trials(job), backing_job(job.body))}
    left_out |= frozenset() if with_adopted else _bound(session)
    chosen = [
        job
        for job in listed
        if _is_named(job, names) and job.resource not in left_out and selection.has_labels(job.labels)
        if not any(key.startswith(PREFIX) for key in job.labels)
        # A batch prediction is no mistake unless somebody asks for it.
        if names or "predictionInput" not in job.body
    ]
    foreign = {} if names else {job.resource: text for job in chosen if (text := foreign_pipeline(job.body))}
    return ImportedJobs(
        [_imported(job) for job in chosen if job.resource not in foreign], [*foreign.values()]
    )


def _imported(job: ActualJob) -> LiveJob:
    live = live_job(job.body)
    # The older service's answers have no resource name.
    live.resource = job.resource
    return live


def _listed(session: Session, wanted: str) -> Iterator[ActualJob]:
    versions = session.api_versions
    refusals: list[ApiError] = []
    for version in versions:
        try:
            yield from session.engine(version).whole_jobs(wanted)
        except ApiError as error:
            # The services' filters name other fields: one that refuses this filter has no such job.
            if not wanted or error.status != _REFUSED:
                raise
            refusals.append(error)
    if len(refusals) == len(versions):
        raise refusals[0]


def _trials(job: ActualJob) -> Iterator[str]:
    for trial in parts_of(job.body, "trials"):
        if name := text_of(trial, "customJob"):
            yield name


def _is_named(job: ActualJob, names: Collection[str]) -> bool:
    return not names or not {job.job_name, job.resource, job.resource.rpartition("/")[2]}.isdisjoint(names)


def _bound(session: Session) -> frozenset[str]:
    """Return the resource names of the jobs that claims name."""
    try:
        claims = [versioned.claim for versioned in session.claims.listed().values()]
    except ServiceError:
        return frozenset()  # an environment that was never prepared has adopted nothing
    return frozenset(claim.resource for claim in claims if claim.state is ClaimState.BOUND)


def adopt_jobs(session: Session, jobs: Mapping[str, str]) -> dict[str, Adopted]:
    """Bind live jobs to the manifests in the repository; return the result of each, by base name.

    Args:
        session: With the embedded service, it is started.
        jobs: The jobs' resource names, by the base names of their manifests.

    Raises:
        InvalidError: A manifest is invalid.
        ServiceError: The claims or jobs can't be read.
    """
    # A job of another client writes to the folder of its manifest as it is, and keeps it.
    environment = replace(session.environment, outputs="shared")
    desired = load_desired(session.config, environment, [], use=CodeUse.STAGED)
    if session.is_local:
        # In Google Cloud `reconciler init --claims` does this.
        session.ports.claims.prepare()
    observed = observe(session.ports)
    applier = applier_of(session, desired, lambda job: "")
    by_name = {job.manifest.base_name: job for job in desired.jobs}
    named = (by_name.get(name.replace("-", "_")) for name in jobs)
    session.ports.claims.announce(ClaimId(label_of(job.identity)) for job in named if job)
    results = {}
    for name, resource in jobs.items():
        job = by_name.get(name.replace("-", "_"))
        if job is None:
            results[name] = Adopted(None, "has its manifest outside the folder that apply reads")
            continue
        try:
            results[name] = _adopt(session, applier, desired, job, resource, observed)
        except ReconcilerError as error:
            results[name] = Adopted(None, f"was not adopted: {error.message}")
    return results


def _adopt(
    session: Session, applier: Applier, desired: Desired, job: DesiredJob, resource: str, observed: Observed
) -> Adopted:
    archive = desired.archives.get(job.job_name)
    if archive is None:
        return applier.adopt(job, resource, observed, "", lambda uri: False)
    package = staged_uri(session.environment.staging_bucket, archive())
    return applier.adopt(job, resource, observed, package, partial(session.staging.holds, archive=archive()))
