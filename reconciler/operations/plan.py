"""Plan of an environment, and the request bodies and costs of its submissions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from reconciler.base.diagnostics import Problem, quote
from reconciler.base.warning_kinds import WarningKind
from reconciler.engines.spec.container_command import container_command
from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.engines.spec.output_folder import spec_of_attempt
from reconciler.engines.spec.vertex_ai import with_command
from reconciler.manifests.known_values import accelerator_type_of, machine_doubt
from reconciler.manifests.settings import FILE_NAME, Config, Environment, Limits
from reconciler.manifests.training_images import images_in
from reconciler.model.applied_tree import Effect, TreeFinding
from reconciler.model.fields import part_of, text_of
from reconciler.model.manifest import JsonObject
from reconciler.model.plan import Action, Change, Cost, DesiredJob, Edit, Plan, Target, Trigger
from reconciler.model.reason import Reason, ReasonCode, because
from reconciler.operations.earlier_code import EarlierCode
from reconciler.operations.load_desired import Desired
from reconciler.operations.new_buckets import with_new_buckets
from reconciler.operations.origin import Origin, origin_of
from reconciler.operations.publications import PublishingSession
from reconciler.operations.session import Session
from reconciler.operations.staged_code import lock_file
from reconciler.output.wording.tree import tree_line
from reconciler.packaging.staged_uri import staged_uri
from reconciler.planning.attempts import keys_of
from reconciler.planning.comparison import code_changed
from reconciler.planning.limits import limit_refusals
from reconciler.planning.planner import (
    SUBMISSIONS,
    acting_jobs,
    digest_of,
    make_plan,
    with_blocked,
    with_blocked_publications,
    with_limited_publications,
)
from reconciler.planning.state import TargetState
from reconciler.training_service.client import unknown_image

if TYPE_CHECKING:
    from reconciler.model.details import Workers
    from reconciler.packaging.source_tree import SourceTree


def target_of(config: Config, environment: Environment) -> Target:
    """Return the target of an environment's plans."""
    sharing = config.sharing(environment)
    return Target(environment.name, environment.engine, environment.project, environment.location, sharing)


def wanted_of(desired: Iterable[DesiredJob]) -> dict[str, DesiredJob]:
    """Return the desired jobs by key, as `look` takes them; a job is under each of its keys."""
    return {key: job for job in desired for key in keys_of(job)}


def plan_of(session: Session, desired: Desired, state: TargetState, *, by_hand: bool = False) -> Plan:
    """Return the plan for a state from `state_of`; `by_hand` is True if a person started the command."""
    plan = make_plan(
        target_of(session.config, session.environment),
        state,
        whole=desired.whole,
        occasion=Trigger(by_hand, session.config.images),
    )
    plan = replace(plan, digest=_digest(plan, desired, session.environment.staging_bucket))
    plan = with_new_buckets(session, with_output_folders(_without_obstacles(session, plan)))
    limits = session.environment.limits
    return with_refusals(with_limited_publications(plan, limits.publications), limits)


def _without_obstacles(session: Session, plan: Plan) -> Plan:
    """Return the plan without submissions that name what the service doesn't have."""
    obstacles = {
        job.job_name: session.engine(job.manifest.api_version).obstacle(job.manifest.kind, job.spec)
        for job in submitted_by(plan)
    }
    return with_blocked(plan, {name: reason for name, reason in obstacles.items() if reason})


def _digest(plan: Plan, desired: Desired, bucket: str) -> str | None:
    """Return the plan's digest; None if files of a job's code are missing."""
    jobs = {job.job_name: job for job in acting_jobs(plan)}
    # Only whole code has an archive, which the request names.
    if any(tree.missing for name, tree in desired.code.items() if name in jobs):
        return None
    return digest_of(plan, {name: request_body(job, desired, bucket, name, {}) for name, job in jobs.items()})


def submitted_by(plan: Plan) -> list[DesiredJob]:
    """Return the jobs that a plan submits, at once or after the ends of their cancelled runs."""
    return [c.desired for c in plan.changes if c.desired and (c.action in SUBMISSIONS or c.is_awaited)]


def unknown_images(session: Session, plan: Plan) -> list[Problem]:
    """Return a warning for each image of submitted Python packages that the embedded service will refuse."""
    if not session.is_local:
        return []
    jobs: dict[tuple[str, bool], list[str]] = {}
    for job in submitted_by(plan):
        for executor in dict.fromkeys(_executors(job.spec)):
            jobs.setdefault(executor, []).append(job.manifest.name)
    warnings = []
    for (image, is_runtime), names in jobs.items():
        if unknown := unknown_image(image, session.config.images, is_runtime=is_runtime):
            message, hint = unknown
            message = f"{message}, which {quote(names[0])} has" + (
                f" (and {len(names) - 1} more)" if names[1:] else ""
            )
            warnings.append(Problem(FILE_NAME, 1, 1, "/images", message, hint, WarningKind.UNKNOWN_IMAGE))
    return warnings


def _executors(spec: JsonObject) -> list[tuple[str, bool]]:
    """Return the images that run a spec's Python packages, each with True for a runtime version."""
    training = part_of(spec, "trainingInput")
    if text_of(training, "pythonModule"):
        image = text_of(part_of(training, "masterConfig"), "imageUri")
        return [(image or text_of(training, "runtimeVersion"), not image)]
    return [(uri, False) for keys, uri in images_in(spec) if keys[-1] == "executorImageUri"]


def published_by(plan: Plan) -> list[DesiredJob]:
    """Return the jobs whose models a plan publishes."""
    jobs = {change.base_name: change.desired for change in plan.changes if change.desired}
    return [jobs[change.base_name] for change in plan.changes if change.action is Action.PUBLISH]


def compared_with_commit(session: Session, desired: Desired, plan: Plan) -> Plan:
    """Return the plan without submissions that `with_line_ends` blocks; compare their files with git's."""
    compared = [*submitted_by(plan), *published_by(plan)]
    if session.is_local or not compared:
        return plan
    return with_origin(session, plan, origin_of(session.config, desired, compared, os.environ, whole=False))


def with_origin(session: PublishingSession, plan: Plan, origin: Origin) -> Plan:
    """Return the plan without what the comparison of files with the commit forbids.

    These are submissions of jobs that differ from the commit in line ends alone, and publications of jobs
    that differ at all. On the embedded service both are carried out: nobody shares their names.
    """
    if session.is_local:
        return plan
    plan = with_blocked_publications(plan, _uncommitted(plan, origin))
    reasons = origin.line_end_reasons()
    return with_refusals(with_blocked(plan, reasons), session.environment.limits) if reasons else plan


def _uncommitted(plan: Plan, origin: Origin) -> dict[str, Reason]:
    """Return why jobs aren't those of a commit, by base name as written."""
    no_commit = origin.reason or "there is no commit of these files"
    return {
        job.manifest.name: because(
            ReasonCode.NOT_COMMITTED, difference=origin.differences.get(job.job_name, no_commit)
        )
        for job in published_by(plan)
        if not origin.commit or job.job_name not in origin.made
    }


def with_tree(plan: Plan, tree: TreeFinding) -> Plan:
    """Return the plan with what the checkout's commit means for its apply."""
    refusals = (tree_line(tree), *plan.refusals) if tree.effect is Effect.REFUSE else plan.refusals
    return replace(plan, tree=tree, refusals=refusals)


def with_output_folders(plan: Plan) -> Plan:
    """Return the plan with the folder that the run of each submission writes to."""

    def folder(change: Change) -> str:
        job = change.desired
        if job is None or not (change.action in SUBMISSIONS or change.edit in (Edit.NEW, Edit.CHANGED)):
            return ""
        version, kind = job.manifest.api_version, job.manifest.kind
        spec = spec_of_attempt(version, kind, job.spec, job.job_name, change.job_name)
        return engine_spec(version).output_directory(kind, spec)

    changes = (replace(c, output=uri) if (uri := folder(c)) else c for c in plan.changes)
    return replace(plan, changes=tuple(changes))


def with_refusals(plan: Plan, limits: Limits) -> Plan:
    """Return the plan with the reasons why apply would refuse it, and the limits that would permit it.

    A comparison also gets its cost. Its limits are those of the work tree, so that a change may raise the
    limit that it exceeds.
    """
    refused = [*limit_refusals(plan, accelerator_hours(plan, limits), limits)]
    return replace(
        plan,
        # A pull request has to raise the limit: applying some of its jobs is no way out.
        refusals=tuple(e.message if plan.comparison else f"{e.message}; {e.hint}" for e in refused),
        needed_limits={error.name: error.needed for error in refused},
        cost=cost_of(plan) if plan.comparison else None,
    )


def with_changed_files(plan: Plan, desired: Desired, root: Path, environ: Mapping[str, str]) -> Plan:
    """Return the plan with the changed files of each job whose code changed.

    The earlier code is read from the earlier run's commit, if git has it and it is exactly that run's code.
    """
    if not any(code_changed(change) for change in plan.changes):
        return plan
    earlier = EarlierCode(root, environ)
    changes = (
        replace(change, files=earlier.changed_files(change, desired.code)) if code_changed(change) else change
        for change in plan.changes
    )
    return replace(plan, changes=tuple(changes))


def accelerator_hours(plan: Plan, limits: Limits) -> float:
    """Return the maximum number of accelerator-hours of the plan's submissions; 0 if nothing limits them."""
    if limits.accelerator_hours is None:
        return 0.0
    return sum(hours_of(job) for job in _submissions(plan))


def cost_of(plan: Plan) -> Cost:
    """Return what the plan's submissions can cost, whether or not anything limits them."""
    jobs = _submissions(plan)
    costly = [job for job in jobs if hours_of(job)]
    return Cost(
        len(jobs),
        sum(map(hours_of, costly)),
        tuple(sorted({name for job in costly for name in _accelerators(job)})),
        untimed=tuple(job.manifest.name for job in costly if _is_untimed(job)),
        unknown=tuple(job.manifest.name for job in jobs if _is_on_unknown_machine(job)),
    )


def _submissions(plan: Plan) -> list[DesiredJob]:
    return [c.desired for c in plan.changes if c.action in SUBMISSIONS and c.desired]


def _accelerators(job: DesiredJob) -> Iterator[str]:
    """Yield the types of a job's accelerators."""
    for machine, worker in _machines(job):
        if worker.accelerator_count or accelerator_type_of(machine):
            yield worker.accelerator or accelerator_type_of(machine)


def _is_untimed(job: DesiredJob) -> bool:
    limits = engine_spec(job.manifest.api_version).limits(job.manifest.kind, job.spec)
    return "timeout" in limits and not float(limits["timeout"].removesuffix("s") or 0)


def _is_on_unknown_machine(job: DesiredJob) -> bool:
    # A scale tier, in capitals, is no machine.
    return any(
        not (worker.accelerator_count or accelerator_type_of(machine) or machine.isupper())
        and machine_doubt(job.manifest.api_version, machine)
        for machine, worker in _machines(job)
    )


def _machines(job: DesiredJob) -> Iterator[tuple[str, Workers]]:
    """Yield the type of the machines of each of a job's groups of replicas, and the group."""
    for worker in engine_spec(job.manifest.api_version).workers(job.manifest.kind, job.spec):
        if worker.machine:
            yield worker.machine.split()[0], worker


def hours_of(job: DesiredJob) -> float:
    """Return the maximum number of accelerator-hours of one run of a job."""
    return engine_spec(job.manifest.api_version).accelerator_hours(job.manifest.kind, job.spec)


def request_body(
    job: DesiredJob, desired: Desired, bucket: str, job_name: str, labels: Mapping[str, str]
) -> JsonObject:
    """Return the exact body of the create request, with the job's package staged in `bucket`."""
    engine = engine_spec(job.manifest.api_version)
    kind = job.manifest.kind
    spec = spec_of_attempt(job.manifest.api_version, kind, job.spec, job.job_name, job_name)
    archive = desired.archives.get(job.job_name)
    if archive and job.manifest.module:
        command = _command(job, desired.code[job.job_name], staged_uri(bucket, archive()), archive().sha256)
        spec = with_command(kind, spec, command)
    elif archive:
        spec = engine.with_package(kind, spec, staged_uri(bucket, archive()))
    return engine.body(kind, spec, job_name, {**job.manifest.labels, **labels})


def _command(job: DesiredJob, code: SourceTree, uri: str, sha256: str) -> Sequence[str]:
    """Return the command that runs the job's staged code in its containers."""
    return container_command(uri, sha256, job.manifest.module, lock_file(job.manifest, code))
