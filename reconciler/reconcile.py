"""One pass: what is wanted, what there is, and the plan between them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from reconciler.config import FILE_NAME, Config, Environment
from reconciler.desired import Desired, desired_jobs
from reconciler.engines import engine_class
from reconciler.errors import InvalidError, NotFoundError, UsageError
from reconciler.job import ActualJob
from reconciler.manifest import JsonObject
from reconciler.plan import DesiredJob, Plan, Target
from reconciler.planning.brakes import SUBMISSIONS
from reconciler.planning.comparison import predecessors
from reconciler.planning.planner import make_plan
from reconciler.ports import JobApi
from reconciler.session import Session
from reconciler.staged import staged_uri
from reconciler.submission.observation import Observed
from reconciler.validation.validate import Validation, validate

JOBS_FOLDER = "jobs"


def wanted(config: Config, environment: Environment, paths: Sequence[Path]) -> Desired:
    """The jobs that the manifests under `paths` ask for; raises InvalidError with every problem."""
    filled = frozenset(environment.defaults)
    found = validate(config.root, manifest_paths(config.root, paths), filled)
    check_found(found, paths)
    if found.problems:
        raise InvalidError("some manifests are not valid", problems=found.problems)
    return desired_jobs(config.root, found.manifests, environment)


def manifest_paths(root: Path, paths: Sequence[Path]) -> Sequence[Path]:
    """The paths that were named, else `jobs` at the root.

    Git keeps no empty folder: where there are settings, one that is gone held the last manifest.

    Raises:
        UsageError: There is no such folder, and nothing says that this is a repository of jobs.
    """
    folder = root / JOBS_FOLDER
    if paths or os.path.lexists(folder):
        return paths or [folder]
    if (root / FILE_NAME).is_file():
        return []
    raise UsageError(
        f"there is no folder {folder}",
        hint="keep the manifests there, or name the files or folders that hold them",
    )


def check_found(found: Validation, paths: Sequence[Path]) -> None:
    """Raise UsageError where the named paths hold no manifest: a mistyped one must not pass for valid."""
    if paths and not found.files:
        named = ", ".join(str(path) for path in paths)
        raise UsageError(f"there is no manifest below {named}", hint="manifests are files *.yaml and *.yml")


def target_of(environment: Environment) -> Target:
    """Where the plans of an environment are for."""
    return Target(environment.name, environment.engine, environment.project, environment.location)


def plan_of(session: Session, desired: Desired, observed: Observed, *, whole: bool) -> Plan:
    """The plan; asks the service once more for the specs of the runs that changed jobs are compared with."""
    environment = session.environment
    return make_plan(
        target_of(environment),
        desired.jobs,
        _with_specs(session.ports.jobs, desired.jobs, observed),
        observed.known,
        lambda job: request_body(job, desired, environment.staging_bucket, job.job_name, {}),
        whole=whole,
        source=session.config.source,
    )


def _with_specs(jobs: JobApi, desired: Sequence[DesiredJob], observed: Observed) -> list[ActualJob]:
    """The runs, with the specs that the plan compares; a run that is only listed any more is none."""
    specs: dict[str, JsonObject] = {}
    gone: set[str] = set()
    while True:
        there = [run for run in observed.runs if run.resource not in gone]
        before = predecessors(desired, there, observed.known)
        unread = [run for run in before if run.resource not in specs]
        if not unread:
            return [replace(run, spec=specs.get(run.resource, run.spec)) for run in there]
        for run in unread:
            try:
                specs[run.resource] = jobs.read(run.api_version, run.kind, run.resource).spec
            except NotFoundError:
                gone.add(run.resource)


def accelerator_hours(plan: Plan) -> float:
    """The most accelerator-hours that the plan's submissions can use."""
    return sum(hours_of(c.desired) for c in plan.changes if c.action in SUBMISSIONS and c.desired)


def hours_of(job: DesiredJob) -> float:
    """The most accelerator-hours that one run of a job can use."""
    return engine_class(job.manifest.api_version).accelerator_hours(job.manifest.kind, job.spec)


def request_body(
    job: DesiredJob, desired: Desired, bucket: str, job_name: str, labels: Mapping[str, str]
) -> JsonObject:
    """The exact body of the create, its package staged in `bucket`."""
    engine = engine_class(job.manifest.api_version)
    spec, kind = job.spec, job.manifest.kind
    archive = desired.archives.get(job.job_name)
    if archive:
        spec = engine.with_package(kind, spec, staged_uri(bucket, archive))
    return engine.body(kind, spec, job_name, {**job.manifest.labels, **labels})
