"""Wanted jobs, runs and claims for tests of the planner and its parts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from reconciler.model.claim import Claim, ClaimId, ClaimState
from reconciler.model.job import ATTEMPT, CODE, KEY, REQUEST_ID, SOURCE, ActualJob, State
from reconciler.model.manifest import AIPLATFORM_V1, JsonObject, Manifest, Reconcile
from reconciler.model.naming import job_name, label_of
from reconciler.model.plan import Change, DesiredJob, Drift, Plan, Target, Trigger
from reconciler.model.reason import Note, NoteCode, Reason, ReasonCode, because
from reconciler.output.wording.notes import note_text
from reconciler.output.wording.plan import reason_text
from reconciler.planning.planner import digest_of, make_plan
from reconciler.planning.state import TargetState, target_state

LOCAL = Target("local", "local", "local", "local")
GOOGLE = Target("prod", "google", "acme-ml", "us-central1")
LIVE = [state for state in State if not state.ended]
OURS = "acme"
PARENT = "projects/1/locations/l/customJobs"


def wanted(name: str = "census", content: str = "a", *, code: str = "", **reconcile: Any) -> DesiredJob:
    """Return a wanted custom job; a different `content`, `code` or `rerun` gives another identity."""
    settings = Reconcile(**reconcile)
    identity = hashlib.sha256(f"{name} {content} {code} {settings.rerun}".encode()).hexdigest()
    manifest = Manifest(
        api_version=AIPLATFORM_V1,
        kind="CustomJob",
        name=name,
        packed={"args": [content]},
        reconcile=settings,
        path=f"jobs/{name}.yaml",
        line=3,
    )
    digest = hashlib.sha256(code.encode()).hexdigest() if code else ""
    return DesiredJob(manifest, identity, job_name(manifest.base_name, identity), digest, manifest.spec)


def run_of(
    job: DesiredJob,
    state: State,
    attempt: int = 1,
    *,
    number: int = 1,
    mark: str = "",
    identity: str = "",
    **fields: Any,
) -> ActualJob:
    """Return the run number `number` of a job, made a day after the run before it."""
    identity = identity or job.identity
    labels = {
        SOURCE: OURS,
        KEY: label_of(identity),
        ATTEMPT: str(attempt),
        REQUEST_ID: mark or mark_of(job, attempt),
    }
    if job.code:
        labels[CODE] = label_of(job.code)
    run = ActualJob(
        resource=f"{PARENT}/{number}",
        job_name=job_name(job.manifest.base_name, identity, attempt),
        api_version=job.manifest.api_version,
        kind=job.manifest.kind,
        state=state,
        service_state=f"JOB_STATE_{state}",
        labels=labels,
        spec=job.spec,
        create_time=f"2026-01-{number:02}T00:00:00Z",
    )
    return replace(run, **fields)


def mark_of(job: DesiredJob, attempt: int = 1) -> str:
    """Return the mark of the request that made a run."""
    return f"{job.manifest.base_name}{job.identity[:6]}{attempt}"


def claim_on(
    job: DesiredJob,
    state: ClaimState = ClaimState.BOUND,
    attempt: int = 1,
    *,
    identity: str = "",
    **fields: Any,
) -> Claim:
    """Return a claim of a job, with the mark of its runs."""
    identity = identity or job.identity
    claim = Claim(
        id=ClaimId(label_of(identity), attempt),
        state=state,
        job_name=job_name(job.manifest.base_name, identity, attempt),
        base_name=job.manifest.name,
        api_version=job.manifest.api_version,
        kind=job.manifest.kind,
        path=job.manifest.path,
        on_delete=job.manifest.reconcile.on_delete,
        request_ids=(mark_of(job, attempt),),
    )
    return replace(claim, **fields)


def bound_to(job: DesiredJob, run: ActualJob, attempt: int = 1, **fields: Any) -> Claim:
    """Return the claim that is bound to a run."""
    ended = run.state if run.state.ended else None
    return claim_on(job, attempt=attempt, **{"resource": run.resource, "ended": ended, **fields})


def plan(
    desired: Iterable[DesiredJob],
    actual: Iterable[ActualJob] = (),
    claims: Iterable[Claim] = (),
    target: Target = LOCAL,
    *,
    whole: bool = True,
    source: str | None = OURS,
    occasion: Trigger | None = None,
) -> Plan:
    """Return the plan of a small world."""
    jobs = [*desired]
    made = make_plan(target, state_of(jobs, actual, claims, source=source), whole=whole, occasion=occasion)
    return replace(made, digest=digest_of(made, {job.job_name: _body(job) for job in jobs}))


def state_of(
    desired: Iterable[DesiredJob] = (),
    actual: Iterable[ActualJob] = (),
    claims: Iterable[Claim] = (),
    *,
    source: str | None = None,
    doubtful: Sequence[ActualJob] = (),
) -> TargetState:
    """Return the state of a small world."""
    by_id = {claim.id: claim for claim in claims}
    return target_state(desired, actual, by_id, source=source, doubtful=doubtful)


def _body(job: DesiredJob) -> JsonObject:
    return {"displayName": job.job_name, "jobSpec": job.spec, "code": job.code}


def only(found: Plan) -> Change:
    """Return the plan's only change."""
    (change,) = found.changes
    return change


def saying(text: str) -> Reason:
    """Return a reason whose sentence is this text."""
    return because(ReasonCode.ERROR, message=text)


def noting(text: str) -> Note:
    """Return a note whose sentence ends with this text."""
    return Note(NoteCode.MOVED, {"path": text})


def notes_of(change: Change) -> tuple[str, ...]:
    """Return the sentences of a change's notes."""
    return tuple(map(note_text, change.notes))


def detail_of(finding: Drift) -> str:
    """Return the sentence of a finding's detail."""
    return note_text(finding.detail)


def reason_of(change: Change) -> str:
    """Return the sentence of a change's reason."""
    return reason_text(change.reason)
