"""The plan carried out: the only place from which anything is submitted or cancelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from reconciler.claim import Claim, ClaimId, ClaimState, rerun_digest
from reconciler.desired import Desired
from reconciler.errors import NotFoundError, ReconcilerError, ServiceError
from reconciler.job import ActualJob, State
from reconciler.labels import ATTEMPT, CODE, COMMIT, KEY, SOURCE, TRY
from reconciler.manifest import JsonObject
from reconciler.naming import label_of
from reconciler.plan import Action, Change, DesiredJob, Plan
from reconciler.planning.attempts import keys_of
from reconciler.planning.brakes import SUBMISSIONS
from reconciler.planning.outcome import Outcome, Status
from reconciler.ports import Ports, Versioned
from reconciler.reconcile import request_body
from reconciler.session import Session
from reconciler.submission import cancel
from reconciler.submission.observation import Observed
from reconciler.submission.submitter import Order, Settlement, Submitter
from reconciler.submission.upkeep import is_left, refreshed, runs_by_claim

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
        commit: The commit that asks for the jobs, "" where none is known.
        patience: Seconds to wait for what isn't known at once.
        pause: Seconds between two looks meanwhile.
        tell: Gets a line about what is waited for.
        go_on: Asked before each submission and each wait: once it says no, what isn't begun is left undone.
    """

    ports: Ports
    body: BodyOf
    stage: Callable[[DesiredJob], None] = lambda job: None
    commit: str = ""
    patience: float = PATIENCE
    pause: float = 2.0
    tell: Callable[[str], None] = lambda line: None
    go_on: Callable[[], bool] = lambda: True

    def run(self, plan: Plan) -> Iterator[Outcome]:
        """The outcome of each change that isn't `none`, as it comes.

        A second job of one attempt is cancelled first. What is replaced is cancelled once what replaces it is
        there, and goes on where it isn't.
        """
        cancels = [change for change in plan.changes if change.action is Action.CANCEL]
        asked: list[tuple[Change, ActualJob]] = []
        yield from self._ask([change for change in cancels if change.repair], asked)
        missing: set[str] = set()
        unknown: list[tuple[Change, Order]] = []
        yield from _noting(self._submissions(plan, unknown), missing)
        waiting = {change.base_name for change, _ in unknown}
        replaced = [change for change in cancels if not change.repair]
        yield from self._ask([c for c in replaced if c.base_name not in missing | waiting], asked)
        yield from _noting(self._later(unknown), missing)
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
        failed = []
        for id, found in observed.claims.items():
            try:
                job = jobs.get(id.key)
                self._keep(found, job, runs.get(id, ()))
                if is_left(found.claim, job, observed.known):
                    Submitter(self.ports).conclude(id)
            except ReconcilerError as error:
                failed.append(f"the claim of {found.claim.job_name} is not up to date: {error.message}")
        return failed

    def _keep(self, found: Versioned, job: DesiredJob | None, runs: Sequence[ActualJob]) -> None:
        claim = refreshed(found.claim, job, runs)
        marks = {run.labels.get(TRY) for run in runs}
        if job and claim.state is not ClaimState.BOUND and not marks.isdisjoint(claim.tries):
            # A job has shown up whose submission nobody goes on with: it is suspended, say, or was given up.
            Submitter(self.ports).adopt(self._order(job, claim.job_name, claim.id))
        elif claim != found.claim:
            self.ports.claims.write(claim, found.generation)

    def resubmit(self, job: DesiredJob, claim: Claim) -> Settlement:
        """Send a submission again because a person says so; raises ServiceError."""
        self.stage(job)
        end = self.ports.clock.monotonic() + self.patience
        order = self._order(job, claim.job_name, claim.id)
        return self._patiently(Submitter(self.ports).resubmit, order, end)

    def _submissions(self, plan: Plan, unknown: list[tuple[Change, Order]]) -> Iterator[Outcome]:
        """The outcomes of the submissions; those that aren't known yet are put to `unknown`."""
        started = None
        for change in plan.changes:
            if change.action not in SUBMISSIONS:
                continue
            if not self.go_on():
                yield Outcome(change, Status.SKIPPED)
                continue
            self._pace(started)
            started = self.ports.clock.monotonic()
            outcome = self._submission(change, unknown)
            if outcome:
                yield outcome

    def _pace(self, started: float | None) -> None:
        left = self.ports.bounds.pace - (self.ports.clock.monotonic() - started) if started is not None else 0
        if left > 0:
            self.ports.clock.sleep(left)

    def _submission(self, change: Change, unknown: list[tuple[Change, Order]]) -> Outcome | None:
        """The outcome of one submission; None where it isn't known yet: then it is among `unknown`."""
        job = change.desired
        assert job is not None, "a submission is always of a desired job"
        order = self._order(
            job, change.job_name, ClaimId(change.key or label_of(job.identity), change.attempt)
        )
        try:
            self.stage(job)
            settled = Submitter(self.ports).settle(order)
        except ReconcilerError as error:
            return _failed(change, error)
        if settled.until is not None:
            unknown.append((change, order))
            return None
        return self._outcome(change, settled)

    def _later(self, unknown: list[tuple[Change, Order]]) -> Iterator[Outcome]:
        """What became of the submissions whose outcome wasn't known at once."""
        end = self.ports.clock.monotonic() + self.patience
        for change, order in unknown:
            try:
                yield self._outcome(change, self._patiently(Submitter(self.ports).settle, order, end))
            except ReconcilerError as error:
                yield _failed(change, error)

    def _patiently(self, settle: Callable[[Order], Settlement], order: Order, end: float) -> Settlement:
        """Settle until the outcome is known, or patience is over."""
        told = False
        while True:
            settled = settle(order)
            if settled.until and not told:
                told = True
                name, until = order.claim.job_name, f"{settled.until:%H:%M:%S}"
                self.tell(
                    f"{name}: whether a job was created is not known; looking for it, {until} UTC at most"
                )
            if settled.until is None or not self.go_on():
                return settled
            if self.ports.clock.monotonic() + self.pause > end:
                return settled
            self.ports.clock.sleep(self.pause)

    def _outcome(self, change: Change, settled: Settlement) -> Outcome:
        claim = settled.claim
        if claim.state is ClaimState.BOUND:
            state = self._state(claim, settled.job)
            return Outcome(change, Status.APPLIED, state=state, resource=claim.resource)
        return Outcome(change, Status.FAILED, error=said_of(settled))

    def _state(self, claim: Claim, job: ActualJob | None) -> State | None:
        """The job's state; None where it is gone or can't be asked: that it was submitted is known."""
        if job is not None:
            return job.state
        try:
            return self.ports.jobs.read(claim.api_version, claim.kind, claim.resource).state
        except ServiceError:
            return claim.ended
        except NotFoundError:
            return claim.ended

    def _ask(self, changes: Sequence[Change], asked: list[tuple[Change, ActualJob]]) -> Iterator[Outcome]:
        """Ask for the ends of runs, which are put to `asked`; the outcomes of those that can't be asked."""
        for change in changes:
            run = change.actual
            assert run is not None, "a cancel is always of an actual job"
            try:
                cancel.ask(self.ports, run)
                asked.append((change, run))
            except ReconcilerError as error:
                yield _failed(change, error)

    def _ends(self, asked: Sequence[tuple[Change, ActualJob]]) -> Iterator[Outcome]:
        """How each cancelled run really ended."""
        end = self.ports.clock.monotonic() + self.patience
        for change, run in asked:
            until = end if self.go_on() else self.ports.clock.monotonic()
            try:
                state = cancel.end_of(self.ports, run, until, self.pause)
                yield Outcome(change, Status.APPLIED, state=state, resource=run.resource)
            except ReconcilerError as error:
                yield _failed(change, error)

    def _order(self, job: DesiredJob, job_name: str, id: ClaimId) -> Order:
        manifest = job.manifest
        claim = Claim(
            id=id,
            state=ClaimState.PENDING,
            job_name=job_name,
            base_name=manifest.name,
            api_version=manifest.api_version,
            kind=manifest.kind,
            path=manifest.path,
            on_delete=manifest.reconcile.on_delete,
            commit=self.commit,
            rerun=rerun_digest(manifest.reconcile.rerun),
        )
        labels = labels_of(job, self.ports.source, self.commit, id)
        earlier = tuple(ClaimId(key, id.attempt) for key in keys_of(job) if key != id.key)
        return Order(claim, lambda mark: self.body(job, job_name, {**labels, TRY: mark}), earlier)


def applier_of(
    session: Session,
    desired: Desired,
    commit: str,
    patience: float = PATIENCE,
    tell: Callable[[str], None] = lambda line: None,
    go_on: Callable[[], bool] = lambda: True,
) -> Applier:
    """The applier of an open session."""
    bucket = session.environment.staging_bucket

    def stage(job: DesiredJob) -> None:
        archive = desired.archives.get(job.job_name)
        if archive:
            session.staging.put(archive)

    return Applier(
        ports=session.ports,
        body=lambda job, job_name, labels: request_body(job, desired, bucket, job_name, labels),
        stage=stage,
        commit=commit,
        patience=patience,
        pause=session.pause,
        tell=tell,
        go_on=go_on,
    )


def _noting(outcomes: Iterator[Outcome], missing: set[str]) -> Iterator[Outcome]:
    """The outcomes; the base names of what isn't there, as far as is known, are put to `missing`."""
    for outcome in outcomes:
        if outcome.status is not Status.APPLIED:
            missing.add(outcome.change.base_name)
        yield outcome


def labels_of(job: DesiredJob, source: str, commit: str, id: ClaimId) -> dict[str, str]:
    """The labels that mark a run as this repository's, and say what it was made of."""
    labels = {SOURCE: source, KEY: id.key, ATTEMPT: str(id.attempt)}
    if job.code:
        labels[CODE] = label_of(job.code)
    if commit:
        labels[COMMIT] = commit
    return labels


def said_of(settled: Settlement) -> str:
    """Why a submission isn't bound, and what happens next or what to do."""
    claim = settled.claim
    after = f" after {settled.until:%H:%M:%S} UTC" if settled.until else ""
    if claim.state is ClaimState.PENDING:
        why = f" ({settled.said})" if settled.said else ""
        return f"whether a job was created is not known{why}: the next apply{after} settles it"
    if claim.state is ClaimState.HELD and settled.until:
        return f"an earlier request may still make a job: it can be sent again{after}"
    if claim.state is ClaimState.REJECTED:
        later = f"; not sent again before {claim.not_before:%H:%M:%S} UTC" if claim.not_before else ""
        return f"{claim.error}{later}"
    return f"{claim.error}; run `reconciler resolve {claim.job_name} --resubmit` or `--give-up`"


def _failed(change: Change, error: ReconcilerError) -> Outcome:
    """One failed change stops no other: what is left undone is in the next plan."""
    said = f"{error.message} ({error.hint})" if error.hint else error.message
    return Outcome(change, Status.FAILED, error=said)
