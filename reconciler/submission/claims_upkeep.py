"""Cancels, and updates of claims with the manifest's current path and policy and the job's final state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from reconciler.base.errors import ReconcilerError, ServiceError
from reconciler.model.claim import BY_COMMAND, Claim, ClaimId, ClaimState, is_by_apply
from reconciler.model.claimed_run import elder, kept, made
from reconciler.model.job import KEY, ActualJob, State, attempt_of, labels_digest
from reconciler.model.plan import DesiredJob
from reconciler.model.ports import Ports
from reconciler.submission.observe import Observed, with_reasons
from reconciler.submission.protocol import bound


def runs_by_claim(observed: Observed) -> dict[ClaimId, list[ActualJob]]:
    """Return the runs of each claim: those with its labels, and the run that it names."""
    bound = {claim.resource: id for id, claim in observed.claims.items()}
    by_claim: dict[ClaimId, list[ActualJob]] = defaultdict(list)
    for run in observed.runs:
        by_claim[bound.get(run.resource) or ClaimId(run.labels.get(KEY, ""), attempt_of(run))].append(run)
    return by_claim


def refreshed(claim: Claim, job: DesiredJob | None, runs: Sequence[ActualJob]) -> Claim:
    """Return the updated claim; equal to the given claim if it is up to date.

    Args:
        claim: The stored claim.
        job: The desired job of this content; None if no manifest has it: the stored policy stays.
        runs: The claim's runs, from `runs_by_claim`.
    """
    wished = _wished(claim, job) if job else claim
    if claim.state is ClaimState.BOUND:
        return _seen(wished, runs, is_desired=job is not None)
    made_ = [run for run in runs if made(claim, run)]
    # `Submitter.adopt` compares a desired job before it binds. Without a manifest, the request id decides.
    return bound(wished, elder(made_)) if made_ and job is None else wished


def newly_failed(observed: Observed, wanted: Mapping[str, DesiredJob]) -> dict[ClaimId, str]:
    """Return the names of the failed runs whose end no claim has yet, by claim.

    Args:
        observed: Claims and runs.
        wanted: The desired jobs by each of their keys.
    """
    runs = runs_by_claim(observed)
    return {
        id: claim.job_name
        for id, claim in observed.claims.items()
        if claim.ended is not State.FAILED
        and refreshed(claim, wanted.get(id.key), runs.get(id, ())).ended is State.FAILED
    }


def is_left(claim: Claim, job: DesiredJob | None, claims: Mapping[ClaimId, Claim]) -> bool:
    """Return True if no apply continues a submission with an unknown outcome.

    Args:
        claim: Its claim.
        job: The desired job of this content; None if no manifest has it.
        claims: Every claim.
    """
    before = claims.get(ClaimId(claim.id.key, claim.id.attempt - 1))
    # A further attempt needs a predecessor that permits it. It had one when it was claimed, but the claim of
    # that one may since have been bound to another run.
    is_called_for = claim.id.attempt == 1 or (before is not None and before.may_be_followed)
    is_wanted = job is not None and not job.manifest.reconcile.suspend
    return claim.state is ClaimState.PENDING and not (is_wanted and is_called_for)


def _wished(claim: Claim, job: DesiredJob) -> Claim:
    manifest = job.manifest
    return _with(claim, base_name=manifest.name, path=manifest.path, on_delete=manifest.reconcile.on_delete)


def _with(claim: Claim, **fields: object) -> Claim:
    """Return a claim with these fields; the claim itself if it has them already, as nearly all do."""
    return replace(claim, **fields) if any(getattr(claim, name) != fields[name] for name in fields) else claim


def _seen(claim: Claim, runs: Sequence[ActualJob], *, is_desired: bool) -> Claim:
    # The audit may keep an older duplicate instead of the job that the claim names.
    stays = kept(claim, runs)
    if stays is not None and stays.resource != claim.resource:
        claim = replace(
            claim,
            resource=stays.resource,
            labels=labels_digest(stays.labels),
            ended=None,
            gone=False,
            error="",
        )
    run = next((run for run in runs if run.resource == claim.resource), None)
    if run is None:
        return claim if claim.ended else replace(claim, gone=True)
    # The cancel failed. Should somebody else cancel the run by now, its content must not come back.
    is_stale = is_desired and not run.state.ended and run.state is not State.CANCELLING
    if is_stale and is_by_apply(claim.error):
        claim = replace(claim, error="")
    return _with(claim, ended=run.state if run.state.ended else claim.ended, gone=False)


def with_reason(ports: Ports, run: ActualJob) -> ActualJob:
    """Return a run; a cancelled one with the reason that its claim records."""
    if run.state is not State.CANCELLED or not (id := _claim_id(ports, run)):
        return run
    versioned = ports.claims.read(id).versioned
    return with_reasons({id: versioned}, (run,))[0] if versioned else run


def _claim_id(ports: Ports, run: ActualJob) -> ClaimId | None:
    """Return the id of the claim of a run by its labels, else of the one that adopted it; None for none."""
    if key := run.labels.get(KEY):
        return ClaimId(key, attempt_of(run))
    adopted = (versioned.claim for versioned in ports.claims.listed().values() if versioned.claim.is_adopted)
    return next((claim.id for claim in adopted if claim.resource == run.resource), None)


_CANCELS = 3
_WRITES = 5


def record_cancel(ports: Ports, run: ActualJob, reason: str) -> None:
    """Record on the claim that names a run why this tool cancels it; a person's reason replaces any other.

    Without the record, the run would count as cancelled outside. The record comes before the cancel: after a
    crash between the two, the next apply still cancels what it replaces, and a person repeats the command.

    Raises:
        ServiceError: The claim can't be read or written.
    """
    id = _claim_id(ports, run)
    if id is None:
        return
    for _ in range(_WRITES):
        versioned = ports.claims.read(id).versioned
        if versioned is None or not made(versioned.claim, run):
            return
        is_bound = versioned.claim.state is ClaimState.BOUND
        claim = versioned.claim if is_bound else bound(versioned.claim, run)
        # A claim has room for its own run: the second run of an attempt isn't the one that a manifest wants.
        if claim.resource != run.resource or claim.error in (reason, BY_COMMAND):
            return
        if ports.claims.write(replace(claim, error=reason), versioned.generation):
            return
    raise ServiceError(f"the claim of {run.job_name} keeps changing", hint="another process is updating it")


def cancel(ports: Ports, run: ActualJob) -> None:
    """Request the cancel of a run, up to 3 times; raise the last ReconcilerError if all requests fail."""
    for asked in range(1, _CANCELS + 1):
        try:
            ports.jobs.cancel(run)
            return
        except ReconcilerError:
            # The service refuses the cancel of a run that has just ended, and its answer may get lost: the
            # run's own state decides. A repeated cancel has no further effect.
            if _is_ending(ports, run):
                return
            if asked == _CANCELS:
                raise


def _is_ending(ports: Ports, run: ActualJob) -> bool:
    try:
        state = _state(ports, run)
    except ReconcilerError:
        return False
    return state.ended or state is State.CANCELLING


def end_of(ports: Ports, run: ActualJob, until: float, pause: float) -> State:
    """Return the state in which a run ended: a cancel may come too late.

    Args:
        ports: The target.
        run: The run.
        until: Deadline by `ports.clock`; after it, return the run's current state.
        pause: Seconds between two reads.

    Raises:
        ReconcilerError: The run can't be read.
    """
    while True:
        state = _state(ports, run)
        if state.ended or ports.clock.monotonic() + pause > until:
            return state
        ports.clock.sleep(pause)


def _state(ports: Ports, run: ActualJob) -> State:
    return ports.jobs.read(run.api_version, run.kind, run.resource).state
