"""The plan carried out: the only place from which anything is submitted or cancelled."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from reconciler.base.concurrency import RunTasks, run_concurrently, run_in_order
from reconciler.base.errors import ReconcilerError
from reconciler.google.session import Session
from reconciler.google.staging import Staging
from reconciler.model.claim import Claim, ClaimId, ClaimState, rerun_digest
from reconciler.model.duplicates import age
from reconciler.model.job import ATTEMPT, CODE, COMMIT, INSTANCE, KEY, SOURCE, TRY, ActualJob
from reconciler.model.manifest import JsonObject
from reconciler.model.naming import label_of
from reconciler.model.plan import Action, Change, DesiredJob, Plan
from reconciler.model.ports import Ports, Versioned
from reconciler.operations.load_desired import Desired
from reconciler.operations.plan import request_body
from reconciler.operations.submissions import (
    Listener,
    Submission,
    Submissions,
    delay_of,
    failed,
    unknown_said,
)
from reconciler.operations.submissions import said_of as said_of
from reconciler.packaging.sdist import Sdist
from reconciler.planning.attempts import keys_of
from reconciler.planning.limits import SUBMISSIONS
from reconciler.planning.outcome import Outcome, Status
from reconciler.submission import cancel
from reconciler.submission.claims_upkeep import is_left, refreshed, runs_by_claim
from reconciler.submission.observe import Observed
from reconciler.submission.protocol import Order, Settlement, Submitter

PATIENCE = 60.0
"""Seconds that one apply waits for outcomes that aren't known, and for cancelled jobs to end."""


BodyOf = Callable[[DesiredJob, str, Mapping[str, str]], JsonObject]
"""A job, the name of the run and its labels in; the create's body out."""


@dataclass(frozen=True, slots=True)
class Applier:
    """Carries out the changes of one plan.

    Attributes:
        ports: The target.
        body: Makes the bodies.
        stage: Uploads what a job stages, before it is submitted; raises ServiceError.
        commit_of: Returns the commit whose files a job is made of; "" for none.
        patience: Seconds to wait for what isn't known at once.
        pause: Seconds between two looks meanwhile.
        tell: Gets a line about what is waited for.
        go_on: Asked before each submission and each wait, from any thread: once it says no, what isn't begun
            is left undone.
        together: Runs several submissions, or writes of claims; with threads, all of the above are used from
            several of them.
        listener: Gets how far the submissions have come, from one thread at a time.
    """

    ports: Ports
    body: BodyOf
    stage: Callable[[DesiredJob], None] = lambda job: None
    commit_of: Callable[[DesiredJob], str] = lambda job: ""
    patience: float = PATIENCE
    pause: float = 2.0
    tell: Callable[[str], None] = lambda line: None
    go_on: Callable[[], bool] = lambda: True
    together: RunTasks = run_in_order
    listener: Listener = lambda standing: None

    def run(self, plan: Plan) -> Generator[Outcome]:
        """The outcome of each change that isn't `none`, as it comes.

        A second job of one attempt is cancelled first. What is replaced is cancelled once what replaces it is
        there, and goes on where it isn't.
        """
        cancels = [change for change in plan.changes if change.action is Action.CANCEL]
        asked: list[tuple[Change, ActualJob]] = []
        yield from self._ask([change for change in cancels if change.repair], asked)
        missing: set[str] = set()
        submissions = self._submissions()
        begun = submissions.begin(self._each_submission(plan))
        yield from _noting(begun, missing)
        waiting = submissions.waiting
        replaced = [change for change in cancels if not change.repair]
        yield from self._ask([c for c in replaced if c.base_name not in missing | waiting], asked)
        yield from _noting(submissions.end(), missing)
        yield from self._ask([c for c in replaced if c.base_name in waiting - missing], asked)
        for change in plan.changes:
            if change.action is Action.BLOCKED:
                yield Outcome(change, Status.SKIPPED, error=change.reason)
        for change in replaced:
            if change.base_name in missing:
                yield Outcome(change, Status.SKIPPED, error="what replaces it was not submitted")
        yield from self._ends(asked)

    def upkeep(self, desired: Sequence[DesiredJob], observed: Observed) -> list[str]:
        """Bring every claim up to what was seen; why that failed, for each claim where it did.

        A claim that somebody else changed meanwhile is left to the next pass.
        """
        jobs = {key: job for job in desired for key in keys_of(job)}
        runs = runs_by_claim(observed)
        # All of them first: whether an attempt is called for, the claim before it says.
        seen = {
            id: refreshed(found.claim, jobs.get(id.key), runs.get(id, ()))
            for id, found in observed.claims.items()
        }
        keepings = []
        for id, found in observed.claims.items():
            job = jobs.get(id.key)
            steps = [*self._steps(found, seen[id], job, runs.get(id, ()))]
            if is_left(found.claim, job, seen):
                steps.append(partial(Submitter(self.ports).conclude, id))
            if steps:
                keepings.append(partial(_kept, found.claim, steps))
        return sorted(said for said in self.together(keepings) if said)

    def _steps(
        self, found: Versioned, claim: Claim, job: DesiredJob | None, runs: Sequence[ActualJob]
    ) -> Iterator[Callable[[], object]]:
        """What makes a claim be `claim`, as it was seen; nothing where that is no news."""
        marks = {run.labels.get(TRY) for run in runs}
        if job and claim.state is not ClaimState.BOUND and not marks.isdisjoint(claim.tries):
            # A job has shown up whose submission nobody goes on with: it is suspended, say, or was given up.
            yield partial(Submitter(self.ports).adopt, self._order(job, claim.job_name, claim.id))
        elif claim != found.claim:
            yield partial(self.ports.claims.write, claim, found.generation)

    def resubmit(self, job: DesiredJob, claim: Claim, runs: Iterable[ActualJob]) -> Settlement:
        """Send a submission again because a person says so; raises ServiceError.

        A search must find the other jobs of its kind among `runs` before.
        """
        self.stage(job)
        clock = self.ports.clock
        end = clock.monotonic() + self.patience
        witnesses = _witnesses(runs).get(claim.kind, ())
        submitter = Submitter(self.ports)
        order = replace(self._order(job, claim.job_name, claim.id), witnesses=witnesses)
        is_told = False
        while True:
            settled = submitter.resubmit(order)
            if settled.until and not is_told:
                is_told = True
                self.tell(unknown_said(settled))
            delay = delay_of(settled, self.pause)
            if delay is None or not self.go_on() or clock.monotonic() + delay > end:
                return settled
            clock.sleep(delay)

    def _submissions(self) -> Submissions:
        return Submissions(
            self.ports, self.together, self.patience, self.pause, self.tell, self.go_on, self.listener
        )

    def _each_submission(self, plan: Plan) -> list[Submission]:
        changes = [change for change in plan.changes if change.action in SUBMISSIONS]
        wanted = (change.actual for change in plan.changes if change.desired and change.actual)
        witnesses = _witnesses(wanted) if changes else {}
        return [self._submission(change, witnesses.get(change.kind, ())) for change in changes]

    def _submission(self, change: Change, witnesses: tuple[ActualJob, ...]) -> Submission:
        job = change.desired
        assert job is not None, "a submission is always of a desired job"
        id = ClaimId(change.key or label_of(job.identity), change.attempt)
        order = replace(
            self._order(job, change.job_name, id),
            witnesses=witnesses,
            attempts=job.manifest.reconcile.attempts,
        )
        return Submission(change, order, partial(self.stage, job))

    def _ask(self, changes: Sequence[Change], asked: list[tuple[Change, ActualJob]]) -> Iterator[Outcome]:
        """Ask for the ends of runs, which are put to `asked`; the outcomes of those that can't be asked."""
        for change in changes:
            run = change.actual
            assert run is not None, "a cancel is always of an actual job"
            try:
                cancel.ask(self.ports, run)
                asked.append((change, run))
            except ReconcilerError as error:
                yield failed(change, error)

    def _ends(self, asked: Sequence[tuple[Change, ActualJob]]) -> Iterator[Outcome]:
        """How each cancelled run really ended."""
        end = self.ports.clock.monotonic() + self.patience
        for change, run in asked:
            until = end if self.go_on() else self.ports.clock.monotonic()
            try:
                state = cancel.end_of(self.ports, run, until, self.pause)
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
        earlier = tuple(ClaimId(key, id.attempt) for key in keys_of(job) if key != id.key)
        return Order(claim, lambda mark: self.body(job, job_name, {**labels, TRY: mark}), earlier)


def applier_of(
    session: Session,
    desired: Desired,
    commit_of: Callable[[DesiredJob], str],
    patience: float = PATIENCE,
    tell: Callable[[str], None] = lambda line: None,
    go_on: Callable[[], bool] = lambda: True,
) -> Applier:
    """The applier of an open session, which submits several jobs at once."""
    bucket = session.environment.staging_bucket
    staged = _Staged(session.staging)

    def stage(job: DesiredJob) -> None:
        archive = desired.archives.get(job.job_name)
        if archive:
            staged.put(archive)

    return Applier(
        ports=session.ports,
        body=lambda job, job_name, labels: request_body(job, desired, bucket, job_name, labels),
        stage=stage,
        commit_of=commit_of,
        patience=patience,
        pause=session.pause,
        tell=tell,
        go_on=go_on,
        together=run_concurrently,
    )


class _Staged:
    """Uploads each archive once, whichever thread comes first, and however many jobs share it."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._lock = threading.Lock()
        self._busy: dict[str, threading.Lock] = {}
        self._there: set[str] = set()

    def put(self, archive: Sdist) -> None:
        """Upload an archive where that wasn't done yet; raises ServiceError, and the next one tries again."""
        with self._lock:
            busy = self._busy.setdefault(archive.sha256, threading.Lock())
        with busy:
            if archive.sha256 not in self._there:
                self._staging.put(archive)
                self._there.add(archive.sha256)


def _witnesses(runs: Iterable[ActualJob]) -> dict[str, tuple[ActualJob, ...]]:
    """Return runs by kind, live ones first, then by age.

    A listing that leaves out old jobs is noticed by the oldest; what has ended may be deleted sooner.
    """
    by_kind: dict[str, list[ActualJob]] = defaultdict(list)
    for run in runs:
        by_kind[run.kind].append(run)
    return {
        kind: tuple(sorted(same, key=lambda run: (run.state.ended, age(run))))
        for kind, same in by_kind.items()
    }


def _noting(outcomes: Iterator[Outcome], missing: set[str]) -> Iterator[Outcome]:
    """The outcomes; the base names of what isn't there, as far as is known, are put to `missing`."""
    for outcome in outcomes:
        if outcome.status is not Status.APPLIED:
            missing.add(outcome.change.base_name)
        yield outcome


def labels_of(job: DesiredJob, source: str, commit: str, id: ClaimId, instance: str) -> dict[str, str]:
    """Return the labels that mark a run as this environment's, and say what it was made of."""
    labels = {SOURCE: source, KEY: id.key, ATTEMPT: str(id.attempt)}
    if instance:
        labels[INSTANCE] = instance
    if job.code:
        labels[CODE] = label_of(job.code)
    if commit:
        labels[COMMIT] = commit
    return labels


def _kept(claim: Claim, steps: Sequence[Callable[[], object]]) -> str:
    """Take the steps that bring a claim up to date; why that failed, "" where it didn't."""
    try:
        for step in steps:
            step()
    except ReconcilerError as error:
        return f"the claim of {claim.job_name} is not up to date: {error.message}"
    return ""
