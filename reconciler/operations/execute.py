"""Execution of a plan's changes."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from reconciler.base.concurrency import RunTasks, run_concurrently, run_in_order
from reconciler.base.errors import ReconcilerError, ServiceError
from reconciler.google.staging import Staging
from reconciler.model.claim import Claim, ClaimId, ClaimState, by_apply, rerun_digest
from reconciler.model.claimed_run import age
from reconciler.model.job import ATTEMPT, CODE, COMMIT, INSTANCE, KEY, REQUEST_ID, SOURCE, ActualJob
from reconciler.model.manifest import JsonObject
from reconciler.model.naming import label_of
from reconciler.model.plan import Action, Change, DesiredJob, Plan
from reconciler.model.ports import Ports, Versioned
from reconciler.model.reason import Reason, ReasonCode, because
from reconciler.operations.load_desired import Desired
from reconciler.operations.plan import request_body
from reconciler.operations.session import Session
from reconciler.operations.submissions import (
    Listener,
    Submission,
    Submissions,
    delay_of,
    waiting_line,
)
from reconciler.output.wording.plan import reason_text
from reconciler.packaging.sdist import Sdist
from reconciler.planning.attempts import keys_of
from reconciler.planning.outcome import Outcome, Status, failed
from reconciler.planning.planner import SUBMISSIONS
from reconciler.submission.adoption import Adopted, Adoption, adopt
from reconciler.submission.claims_upkeep import (
    cancel,
    end_of,
    is_left,
    record_cancel,
    refreshed,
    runs_by_claim,
)
from reconciler.submission.observe import Observed
from reconciler.submission.protocol import Order, SubmissionResult, Submitter

PATIENCE = 60.0
"""Seconds that one apply waits for unknown outcomes, and for cancelled jobs to end."""


BodyOf = Callable[[DesiredJob, str, Mapping[str, str]], JsonObject]
"""Return the body of a create request for a job, the name of its run and its labels."""


@dataclass(frozen=True, slots=True)
class Applier:
    """Executor of the changes of one plan.

    Attributes:
        ports: The target.
        body: Makes the bodies of create requests.
        stage: Uploads a job's package before it is submitted; raises ServiceError.
        commit_of: Returns the commit whose files a job is made of; "" for none.
        patience: Seconds to wait for unknown outcomes.
        pause: Seconds between two attempts.
        on_wait: Called with a line about each wait.
        go_on: Called before each submission and each wait, from any thread; False stops further ones.
        together: Runs several submissions or claim updates; the functions above must be thread-safe if it
            uses threads.
        listener: Called with the submissions' progress, from one thread at a time.
        withheld: Called before each cancel of a run without a duplicate, and before each submission of
            content whose job apply had cancelled; returns why it is withheld, None for nothing; raises
            ServiceError.
    """

    ports: Ports
    body: BodyOf
    stage: Callable[[DesiredJob], None] = lambda job: None
    commit_of: Callable[[DesiredJob], str] = lambda job: ""
    patience: float = PATIENCE
    pause: float = 2.0
    on_wait: Callable[[str], None] = lambda line: None
    go_on: Callable[[], bool] = lambda: True
    together: RunTasks = run_in_order
    listener: Listener = lambda standing: None
    withheld: Callable[[], Reason | None] = lambda: None

    def run(self, plan: Plan) -> Generator[Outcome]:
        """Carry out the plan; yield the outcome of each change except `none`, as it becomes known."""
        cancels = [change for change in plan.changes if change.action is Action.CANCEL]
        cancelled: list[tuple[Change, ActualJob]] = []
        # Duplicate runs of an attempt have no successor to wait for.
        yield from self._cancel([change for change in cancels if change.repair], cancelled)
        missing: set[str] = set()
        submissions = Submissions(
            self.ports, self.together, self.patience, self.pause, self.on_wait, self.go_on, self.listener
        )
        returns = (change for change in plan.changes if change.stopped and change.action in SUBMISSIONS)
        withheld = [*self._withheld(returns)]
        yield from _collecting(iter(withheld), missing)
        left_out = {id(outcome.change) for outcome in withheld}
        orders = self._each_submission(plan, left_out)
        with suppress(ServiceError):
            # All at once: each write of a claim would announce it by itself, and fail alone where this fails.
            self.ports.claims.announce(submission.order.claim.id for submission in orders)
        begun = submissions.begin(orders)
        yield from _collecting(begun, missing)
        waiting = submissions.waiting
        # A replaced job is cancelled only after its successor's run is known to exist: if the submission
        # failed, or its outcome is unknown, the old run continues.
        replaced = [change for change in cancels if not change.repair]
        yield from self._cancel([c for c in replaced if c.base_name not in missing | waiting], cancelled)
        yield from _collecting(submissions.end(), missing)
        yield from self._cancel([c for c in replaced if c.base_name in waiting - missing], cancelled)
        for change in plan.changes:
            if change.action is Action.BLOCKED:
                yield Outcome(change, Status.SKIPPED, reason=change.reason)
        for change in replaced:
            if change.base_name in missing:
                yield Outcome(change, Status.SKIPPED, reason=because(ReasonCode.REPLACEMENT_MISSING))
        yield from self._await_ends(cancelled)

    def upkeep(self, desired: Sequence[DesiredJob], observed: Observed) -> list[str]:
        """Update every claim with the observed state; return the reason for each claim that could not be."""
        jobs = {key: job for job in desired for key in keys_of(job)}
        runs = runs_by_claim(observed)
        # All claims first: the previous attempt's claim decides if an attempt is still due.
        seen = {
            id: refreshed(versioned.claim, jobs.get(id.key), runs.get(id, ()))
            for id, versioned in observed.versions.items()
        }
        updates = []
        for id, versioned in observed.versions.items():
            job = jobs.get(id.key)
            steps = [*self._steps(versioned, seen[id], job, runs.get(id, ()))]
            if is_left(versioned.claim, job, seen):
                steps.append(partial(Submitter(self.ports).conclude, id))
            if steps:
                updates.append(partial(_update, versioned.claim, steps))
        return sorted(problem for problem in self.together(updates) if problem)

    def _steps(
        self, versioned: Versioned, claim: Claim, job: DesiredJob | None, runs: Sequence[ActualJob]
    ) -> Iterator[Callable[[], object]]:
        request_ids = {run.labels.get(REQUEST_ID) for run in runs}
        if job and claim.state is not ClaimState.BOUND and not request_ids.isdisjoint(claim.request_ids):
            # A run exists although its submission was not continued: the job is suspended or was given up,
            # for example.
            yield partial(Submitter(self.ports).adopt, self._order(job, claim.job_name, claim.id))
        elif claim != versioned.claim:
            # The write has no effect if the claim changed since it was observed; the next pass updates it.
            yield partial(self.ports.claims.write, claim, versioned.generation)

    def adopt(
        self,
        job: DesiredJob,
        resource: str,
        observed: Observed,
        package: str,
        holds: Callable[[str], bool],
    ) -> Adopted:
        """Bind a live job of other origin to a desired job; see `Adoption` for the arguments."""
        claim = self._order(job, job.job_name, ClaimId(label_of(job.identity))).claim
        adoption = Adoption(
            claim, keys_of(job), resource, lambda name: self.body(job, name, {}), package, holds
        )
        return adopt(self.ports, adoption, observed)

    def resubmit(self, job: DesiredJob, claim: Claim, runs: Iterable[ActualJob]) -> SubmissionResult:
        """Send a submission again if a search finds the `runs` of its kind; raise ServiceError."""
        self.stage(job)
        clock = self.ports.clock
        end = clock.monotonic() + self.patience
        witnesses = _witnesses(runs).get(claim.kind, ())
        submitter = Submitter(self.ports)
        order = replace(self._order(job, claim.job_name, claim.id), witnesses=witnesses)
        is_reported = False
        while True:
            result = submitter.resubmit(order)
            if result.until and not is_reported:
                is_reported = True
                self.on_wait(waiting_line(result))
            delay = delay_of(result, self.pause)
            if delay is None or not self.go_on() or clock.monotonic() + delay > end:
                return result
            clock.sleep(delay)

    def await_ends(self, plan: Plan) -> Iterator[Outcome]:
        """Wait for the jobs whose contents are submitted again once they have ended; yield their outcomes."""
        withheld = [*self._withheld(change for change in plan.changes if change.is_awaited)]
        yield from withheld
        left_out = {id(outcome.change) for outcome in withheld}
        awaited = [
            (change, change.actual)
            for change in plan.changes
            if change.is_awaited and change.actual and id(change) not in left_out
        ]
        for _, run in awaited:
            self.on_wait(f"{run.job_name}: it is being cancelled; waiting for its end to submit it again")
        for outcome in self._await_ends(awaited):
            if outcome.state is None or outcome.state.ended:
                yield outcome
            else:
                reason = because(ReasonCode.STILL_CANCELLING)
                yield Outcome(outcome.change, Status.SKIPPED, reason=reason)

    def _withheld(self, changes: Iterable[Change]) -> Iterator[Outcome]:
        """Yield the outcomes of returns that the checkout doesn't permit."""
        for change in changes:
            try:
                if reason := self.withheld():
                    yield Outcome(change, Status.SKIPPED, reason=reason)
            except ReconcilerError as error:
                yield failed(change, error)

    def _each_submission(self, plan: Plan, left_out: Collection[int]) -> list[Submission]:
        witnesses = _witnesses(change.actual for change in plan.changes if change.actual)
        return [
            self._submission(change, witnesses.get(change.kind, ()))
            for change in plan.changes
            if change.action in SUBMISSIONS and id(change) not in left_out
        ]

    def _submission(self, change: Change, witnesses: tuple[ActualJob, ...]) -> Submission:
        job = change.desired
        assert job is not None, "a submission is always of a desired job"
        id = ClaimId(change.key or label_of(job.identity), change.attempt)
        order = replace(
            self._order(job, change.job_name, id),
            witnesses=witnesses,
            attempts=job.manifest.reconcile.attempts + change.free,
            not_before=change.not_before,
            binds_only=change.binds_only,
        )
        return Submission(change, order, partial(self.stage, job))

    def _cancel(
        self, changes: Sequence[Change], cancelled: list[tuple[Change, ActualJob]]
    ) -> Iterator[Outcome]:
        """Request cancellations, adding the runs to `cancelled`; yield the outcomes of failed requests."""
        for change in changes:
            run = change.actual
            assert run is not None, "a cancel is always of an actual job"
            try:
                # Which of two runs of one attempt stays doesn't depend on the tree.
                if not change.repair and (reason := self.withheld()):
                    yield Outcome(change, Status.SKIPPED, reason=reason)
                    continue
                why = reason_text(change.reason)
                stored = f"cancelled: {why}" if change.repair else by_apply(why)
                record_cancel(self.ports, run, stored)
                cancel(self.ports, run)
                cancelled.append((change, run))
                # An apply that wants the run may have seen it alive in between, and cleared the reason.
                with suppress(ServiceError):
                    record_cancel(self.ports, run, stored)
            except ReconcilerError as error:
                yield failed(change, error)

    def _await_ends(self, cancelled: Sequence[tuple[Change, ActualJob]]) -> Iterator[Outcome]:
        """Wait for the cancelled runs; yield their outcomes."""
        end = self.ports.clock.monotonic() + self.patience
        for change, run in cancelled:
            # After a stop, each run is still read once: it may have ended already.
            until = end if self.go_on() else self.ports.clock.monotonic()
            try:
                state = end_of(self.ports, run, until, self.pause)
                yield Outcome(change, Status.APPLIED, state=state, resource=run.resource)
            except ReconcilerError as error:
                yield failed(change, error)

    def _order(self, job: DesiredJob, job_name: str, id: ClaimId) -> Order:
        manifest, commit = job.manifest, self.commit_of(job)
        claim = Claim(
            id=id,
            state=ClaimState.PENDING,
            job_name=job_name,
            base_name=manifest.name,
            api_version=manifest.api_version,
            kind=manifest.kind,
            path=manifest.path,
            on_delete=manifest.reconcile.on_delete,
            commit=commit,
            rerun=rerun_digest(manifest.reconcile.rerun),
        )
        labels = labels_of(job, self.ports.source, commit, id, self.ports.instance)
        # Older releases stored the claim under another key of the same job.
        earlier = tuple(ClaimId(key, id.attempt) for key in keys_of(job) if key != id.key)
        return Order(
            claim, lambda request_id: self.body(job, job_name, {**labels, REQUEST_ID: request_id}), earlier
        )


def applier_of(
    session: Session,
    desired: Desired,
    commit_of: Callable[[DesiredJob], str],
    patience: float = PATIENCE,
    on_wait: Callable[[str], None] = lambda line: None,
    go_on: Callable[[], bool] = lambda: True,
) -> Applier:
    """Return an applier that submits several jobs concurrently in an open session."""
    bucket = session.environment.staging_bucket
    uploader = _Uploader(session.staging)

    def stage(job: DesiredJob) -> None:
        archive = desired.archives.get(job.job_name)
        if archive:
            uploader.put(archive())

    return Applier(
        ports=session.ports,
        body=lambda job, job_name, labels: request_body(job, desired, bucket, job_name, labels),
        stage=stage,
        commit_of=commit_of,
        patience=patience,
        pause=session.pause,
        on_wait=on_wait,
        go_on=go_on,
        together=run_concurrently,
    )


class _Uploader:
    """Thread-safe uploader that uploads each archive once, however many jobs share it."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._lock = threading.Lock()
        self._busy: dict[str, threading.Lock] = {}
        self._done: set[str] = set()

    def put(self, archive: Sdist) -> None:
        """Upload an archive unless that is done; raise ServiceError, and let the next call try again."""
        # One lock for each archive: different archives are uploaded at the same time.
        with self._lock:
            busy = self._busy.setdefault(archive.sha256, threading.Lock())
        with busy:
            if archive.sha256 not in self._done:
                self._staging.put(archive)
                self._done.add(archive.sha256)


def _witnesses(runs: Iterable[ActualJob]) -> dict[str, tuple[ActualJob, ...]]:
    # The oldest runs reveal a listing without old jobs; live ones come first, as ended ones may be deleted.
    by_kind: dict[str, list[ActualJob]] = defaultdict(list)
    for run in runs:
        # No search by key finds an adopted run.
        if KEY in run.labels:
            by_kind[run.kind].append(run)
    return {
        kind: tuple(sorted(same, key=lambda run: (run.state.ended, age(run))))
        for kind, same in by_kind.items()
    }


def _collecting(outcomes: Iterator[Outcome], missing: set[str]) -> Iterator[Outcome]:
    """Yield the outcomes, and add the base names of jobs without a known run to `missing`."""
    for outcome in outcomes:
        if outcome.status is not Status.APPLIED:
            missing.add(outcome.change.base_name)
        yield outcome


def labels_of(job: DesiredJob, source: str, commit: str, id: ClaimId, instance: str) -> dict[str, str]:
    """Return the labels that mark a run as this environment's, and record its code and commit."""
    labels = {SOURCE: source, KEY: id.key, ATTEMPT: str(id.attempt)}
    if instance:
        labels[INSTANCE] = instance
    if job.code:
        labels[CODE] = label_of(job.code)
    if commit:
        labels[COMMIT] = commit
    return labels


def _update(claim: Claim, steps: Sequence[Callable[[], object]]) -> str:
    """Carry out the steps of a claim's update; return the reason if that failed, else ""."""
    try:
        for step in steps:
            step()
    except ReconcilerError as error:
        return f"the claim of {claim.job_name} is not up to date: {error.message}"
    return ""
