"""Decision table: the change of one desired job, and its reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import assert_never

from msgspec.structs import replace

from reconciler.model.cause import cause_of, entry_digest
from reconciler.model.claim import MOST_RETURNS, Claim, ClaimState, time_of
from reconciler.model.claimed_run import age
from reconciler.model.diff import FieldChange
from reconciler.model.job import INSTANCE, KEY, ActualJob, State
from reconciler.model.manifest import ML_V1, TRAINING_PIPELINE
from reconciler.model.naming import job_name, label_of
from reconciler.model.plan import Action, Change, DesiredJob, NotDone, Target, Trigger
from reconciler.model.ports import EMBEDDED_BOUNDS, GOOGLE_BOUNDS
from reconciler.model.reason import Reason, ReasonCode, because, held_reason
from reconciler.model.standing import Standing
from reconciler.planning.attempts import Attempt, credible, keys_of
from reconciler.planning.comparison import compared
from reconciler.planning.state import NameState, TargetState

TRIES = 3
"""Tries of one set-up that follow each other without a person."""
BETWEEN_TRIES = timedelta(minutes=10)
"""Time from the end of one such try to the next."""

_AUTOMATIC = Trigger()


def decide(
    target: Target,
    job: DesiredJob,
    name: NameState,
    doubtful: Sequence[ActualJob] = (),
    occasion: Trigger = _AUTOMATIC,
) -> Change:
    """Return the one change of a desired job.

    Args:
        target: The job's target.
        job: The desired job.
        name: What exists under its base name.
        doubtful: Live runs of any content that may be the environment's own, from `Observed.doubtful`.
        occasion: What decides about another try of a failed set-up.
    """
    return _Decision(target, job, name, doubtful, occasion).change()


class _Decision:
    """A desired job with its attempts."""

    def __init__(
        self,
        target: Target,
        job: DesiredJob,
        name: NameState,
        doubtful: Sequence[ActualJob],
        occasion: Trigger,
    ) -> None:
        keys = keys_of(job)
        self._occasion = occasion
        self._doubtful = [run for run in doubtful if run.labels.get(KEY) in keys]
        self._target = target
        self._job = job
        self._identities = dict(zip(keys, (job.identity, *job.earlier), strict=True))
        self._state = name
        self._attempts = name.wanted
        self._mine = credible(self._attempts)
        self._rest = name.others
        unstarted = [one for one in self._mine if self._is_unstarted(one)]
        stopped = [one for one in self._mine if one.stopped]
        spent = {one.id.attempt for one in self._mine if one not in unstarted and one not in stopped}
        self._unstarted = {one.id.attempt: one for one in unstarted if one.id.attempt not in spent}
        self._stopped = {one.id.attempt for one in stopped} - spent
        self._free = len(self._unstarted.keys() | self._stopped)

    def _is_unstarted(self, attempt: Attempt) -> bool:
        """Return True if a failed set-up used up no attempt: on Google's services every failed job counts."""
        return self._target.engine == "local" and attempt.set_up_failed

    def change(self) -> Change:
        open_ = [attempt for attempt in self._mine if not attempt.may_be_followed]
        if self._job.manifest.reconcile.suspend:
            return self._suspended(open_)
        # An open attempt blocks any other: it may have a job that is still alive.
        if open_:
            return self._open(_counting(open_))
        if not self._mine:
            return self._first()
        last = _counting(self._mine)
        return self._after_stop(last) if last.stopped else self._after_failure(last)

    def _suspended(self, open_: Sequence[Attempt]) -> Change:
        attempts = open_ or self._mine
        if not attempts:
            key = label_of(self._job.identity)
            reason = because(ReasonCode.SUSPENDED)
            return self._about(Action.NONE, reason, key, 1, stuck=NotDone.SUSPENDED)
        counting = _counting(attempts)
        reason = because(ReasonCode.SUSPENDED, **_activity(counting))
        return self._none(counting, reason, NotDone.SUSPENDED)

    def _first(self) -> Change:
        """Return the change of a content that this environment never submitted."""
        key = label_of(self._job.identity)
        if beside := self._beside():
            return self._blocked(key, 1, _of_stranger(beside), beside)
        difference = compared(self._job, self._state)
        change = self._submission(key, 1, difference.reason, fields=difference.fields)
        return replace(change, is_new=difference.is_new, earlier_commit=difference.commit)

    def _after_stop(self, last: Attempt) -> Change:
        """Return the change of a content whose last job apply has cancelled."""
        if self._last_permitted <= last.id.attempt:
            # It was lowered since, to less than what failed before.
            reason = because(ReasonCode.ATTEMPTS_USED_UP, cancelled=last.cancelled)
            change = self._none(last, reason, NotDone.FAILED)
        elif not self._may_return(last):
            change = self._none(last, because(ReasonCode.RETURNED_TOO_OFTEN), NotDone.CANCELLED)
        elif beside := self._beside():
            change = self._blocked(last.id.key, last.id.attempt + 1, _of_stranger(beside), beside)
        else:
            reason = because(ReasonCode.WANTED_AGAIN)
            change = self._submission(last.id.key, last.id.attempt + 1, reason, actual=last.run)
        return replace(change, stopped=True)

    def _may_return(self, last: Attempt) -> bool:
        """Return True if the content may come back after its last job, which was stopped or is stopping."""
        return len(self._stopped - {last.id.attempt}) < MOST_RETURNS

    def _stopping(self, last: Attempt) -> Change:
        """Return the change of a content whose last job apply is cancelling."""
        if self._last_permitted < last.id.attempt:  # once stopped, the attempt itself doesn't count
            change = self._none(last, because(ReasonCode.ATTEMPTS_USED_UP), NotDone.FAILED)
        elif self._may_return(last):
            change = self._none(last, because(ReasonCode.RETURNS_LATER))
        else:
            reason = because(ReasonCode.RETURNED_TOO_OFTEN, is_cancelling=True)
            change = self._none(last, reason, NotDone.CANCELLED)
        return replace(change, stopped=True)

    def _after_failure(self, last: Attempt) -> Change:
        number = last.id.attempt
        left = self._last_permitted - number
        if left <= 0:
            return self._ended(last, State.FAILED)
        tried = self._tries(number)
        is_due = self._is_due(last, tried)
        if self._has_tried_enough(number):
            reason = because(ReasonCode.SET_UP_TRIES_USED_UP, cause=self._cause(last), tries=tried)
            return self._none(last, reason, NotDone.FAILED)
        # A run of unknown origin may do the same work: a submission beside it could pay twice.
        if beside := self._beside():
            return self._blocked(last.id.key, number + 1, _of_stranger(beside), beside)
        if not tried:
            reason = because(ReasonCode.ATTEMPT_FAILED, attempt=number - self._free, left=left)
            return self._submission(last.id.key, number + 1, reason, actual=last.run)
        reason, when = because(ReasonCode.SET_UP_FAILED, cause=self._cause(last)), self._next_try(number)
        if not is_due:
            tries = {"try": tried + 1, "tries": TRIES, "not_before": when}
            reason = replace(reason, values={**reason.values, **tries})
        return self._submission(last.id.key, number + 1, reason, actual=last.run, not_before=when)

    @property
    def _last_permitted(self) -> int:
        """The largest number of a submission: the manifest's attempts, and those that used up none."""
        return self._job.manifest.reconcile.attempts + self._free

    def _next_try(self, number: int) -> datetime | None:
        """Return the time before which no try follows a failed set-up; None if it may follow at once."""
        last = self._unstarted.get(number)
        if last is None or self._is_due(last, self._tries(number)):
            return None
        assert last.run is not None, "a failed set-up has a run"
        ended = time_of(last.run.end_time)
        return ended and ended + BETWEEN_TRIES

    def _tries(self, number: int) -> int:
        """Return the tries of one set-up up to this submission; 0 if its trainer was started."""
        last, tries = self._unstarted.get(number), 0
        while last is not None and _set_up(self._unstarted.get(number - tries)) == _set_up(last):
            tries += 1
        return tries

    def _has_tried_enough(self, number: int) -> bool:
        """Return True if only a person can have another try after this submission."""
        last, tried = self._unstarted.get(number), self._tries(number)
        return last is not None and tried >= TRIES and not self._is_due(last, tried)

    def _is_due(self, last: Attempt, tried: int) -> bool:
        """Return True if a person wants another try, or has changed the image's entry since the last one."""
        image, entry = _set_up(last) or ("", "")
        has_changed = image != "" and entry_digest(self._occasion.images, image) != entry
        # Should the change never reach the service, it is tried once more and not without end.
        return self._occasion.by_hand or (has_changed and tried <= TRIES)

    def _cause(self, last: Attempt) -> Reason:
        """Return the cause of a failed set-up, with the service's own word where this version has no code."""
        assert last.run is not None, "a failed set-up has a run"
        cause = cause_of(last.run)
        assert cause is not None, "a failed run has a cause"
        return Reason(cause.code, {name: value for name, value in cause.values.items() if name == "word"})

    def _beside(self) -> ActualJob | None:
        """Return a run without a recorded request that may do the same work as a submission."""
        # The run of a credible attempt has failed by now, and doesn't count.
        runs = (run for attempt in self._attempts for run in (*attempt.strangers, attempt.run))
        return next((run for run in runs if run and _counts(run)), None)

    def _open(self, attempt: Attempt) -> Change:
        # While an attempt is not known to have failed, no other attempt may start beside it.
        claim = attempt.claim
        if attempt.id.attempt > self._last_permitted and not attempt.bound and not attempt.run:
            wanted = self._job.manifest.reconcile.attempts
            reason = because(ReasonCode.ATTEMPT_NOT_NEEDED, attempt=attempt.id.attempt, attempts=wanted)
            # FAILED: such an attempt exists only because an earlier one failed; a stopped one is not counted.
            return self._none(attempt, reason, NotDone.FAILED)
        if claim is None:
            # Should the job be gone by then, this is another try of what failed a moment ago.
            change, before = (
                self._again(attempt, because(ReasonCode.FOUND_WITHOUT_CLAIM)),
                attempt.id.attempt - 1,
            )
            return replace(
                change, not_before=self._next_try(before), binds_only=self._has_tried_enough(before)
            )
        match claim.state:
            case ClaimState.BOUND:
                return self._bound(attempt)
            case ClaimState.PENDING:
                return self._again(attempt, _JOB_FOUND if attempt.run else self._why_pending(claim))
            case ClaimState.REJECTED:
                # No request of a rejected claim can make a job: the next one is as good as the first.
                why = because(ReasonCode.REFUSED, error=claim.error, not_before=claim.not_before)
                change = self._again(attempt, _JOB_FOUND if attempt.run else why, fresh=not attempt.run)
                return replace(change, stopped=not attempt.run and attempt.id.attempt - 1 in self._stopped)
            case ClaimState.HELD:
                return self._held(attempt, claim)
            case _:
                assert_never(claim.state)

    def _again(self, attempt: Attempt, reason: Reason, *, fresh: bool = False) -> Change:
        return self._submission(attempt.id.key, attempt.id.attempt, reason, actual=attempt.run, fresh=fresh)

    def _why_pending(self, claim: Claim) -> Reason:
        bounds = EMBEDDED_BOUNDS if self._target.engine == "local" else GOOGLE_BOUNDS
        expiry = claim.credential_expiry
        until = expiry + bounds.executes + bounds.visible if expiry else None
        return because(ReasonCode.OUTCOME_UNKNOWN, until=until)

    def _held(self, attempt: Attempt, claim: Claim) -> Change:
        if attempt.run and attempt.run.resource != claim.odd:
            return self._again(attempt, _JOB_FOUND)
        # Only after the search for a job: a job that appears is bound even after giving up.
        if claim.given_up:
            return self._none(attempt, because(ReasonCode.GIVEN_UP), NotDone.GIVEN_UP)
        return self._blocked(attempt.id.key, attempt.id.attempt, held_reason(claim), attempt.run)

    def _bound(self, attempt: Attempt) -> Change:
        state, run = attempt.state, attempt.run
        if run and run.has_unknown_state:
            name = self._job.manifest.name
            reason = because(ReasonCode.STATE_UNREADABLE, resource=run.resource, name=name)
            return self._blocked(attempt.id.key, attempt.id.attempt, reason, run)
        match state:
            case None:
                return self._none(attempt, because(ReasonCode.DELETED_OUTSIDE), NotDone.DELETED)
            case State.CANCELLING if attempt.stopping:
                return self._stopping(attempt)
            case State.QUEUED | State.PREPARING | State.RUNNING | State.CANCELLING:
                return self._none(attempt, because(ReasonCode(state.lower())))
            case State.SUCCEEDED | State.FAILED | State.CANCELLED:
                return self._ended(attempt, state)
            case _:
                assert_never(state)

    def _ended(self, attempt: Attempt, state: State) -> Change:
        """Return the change of an ended attempt: it stays ended, even if other content ran since."""
        code, stuck = ReasonCode(state.lower()), _END[state]
        if stuck is None and attempt.run and attempt.run.is_unreadable:
            code, stuck = ReasonCode.RECORD_UNREADABLE, NotDone.UNREADABLE
        if stuck is None and (problem := problem_of_result(self._state)):
            return self._none(attempt, *problem)
        # In its place is the result that the manifest asks for, whatever ran since.
        if self._state.publication is None and self._overtaken(attempt):
            reason = because(ReasonCode.ALREADY_RAN, job_name=self._name(attempt), state=state)
            return self._none(attempt, reason, stuck or NotDone.REVERTED)
        reason = because(code, state=state, cancelled=attempt.cancelled, is_gone=attempt.run is None)
        return self._none(attempt, reason, stuck)

    def _overtaken(self, attempt: Attempt) -> bool:
        """Return True if other content ran later."""
        # A run that the service has dropped is older than each run that it still has.
        others = [other.run for other in self._rest if other.run]
        return any(attempt.run is None or age(run) > age(attempt.run) for run in others)

    def _submission(
        self,
        key: str,
        number: int,
        reason: Reason,
        *,
        fields: tuple[FieldChange, ...] = (),
        actual: ActualJob | None = None,
        fresh: bool = True,
        not_before: datetime | None = None,
    ) -> Change:
        """Return a submission, or the reason against it; `fresh` if no earlier request can make a job."""
        if self._job.manifest.api_version == ML_V1:
            if self._target.engine == "google":
                return self._blocked(key, number, because(ReasonCode.AI_PLATFORM_GONE), actual)
            if self._target.sharing:
                sharing, project = self._target.sharing, self._target.project
                reason = because(ReasonCode.PROJECT_SHARED, environment=sharing, project=project)
                return self._blocked(key, number, reason, actual)
        if misfit := self._misfit_of_pipeline():
            return self._blocked(key, number, misfit, actual)
        # An attempt whose request may have left goes on: its claim is settled, whatever runs beside it.
        if fresh and self._doubtful:
            return self._blocked(key, number, _of_other_instance(self._doubtful[0]), self._doubtful[0])
        clash = self._clash(job_name(self._job.manifest.base_name, self._identities[key], number))
        if fresh and clash:
            return self._blocked(key, number, clash)
        action = Action.SUBMIT if number == 1 else Action.RETRY
        change = self._about(action, reason, key, number, fields=fields, actual=actual)
        return replace(change, not_before=not_before)

    def _misfit_of_pipeline(self) -> Reason | None:
        """Return the reason why the environment can't run a pipeline; None for other jobs."""
        if self._job.manifest.kind != TRAINING_PIPELINE:
            return None
        spec = self._job.manifest.spec
        if self._target.engine == "local" and "inputDataConfig" in spec:
            return because(ReasonCode.DATASET_UNSUPPORTED)
        if "parentModel" not in spec:
            return None
        _, project, _, location, *_ = spec["parentModel"].split("/")
        # A project has a number too, which the settings don't have.
        is_same_project = project == self._target.project or project.isdecimal()
        if is_same_project and location == self._target.location:
            return None
        here = f"projects/{self._target.project}/locations/{self._target.location}"
        there = f"projects/{project}/locations/{location}"
        return because(ReasonCode.PARENT_MODEL_ELSEWHERE, there=there, here=here)

    def _clash(self, name: str) -> Reason | None:
        """Return the reason against a job name that other content has."""
        for attempt in self._rest:
            for run in (attempt.run, *attempt.others, *attempt.strangers):
                if run and run.job_name == name:
                    return because(ReasonCode.NAME_OF_OTHER_RUN, resource=run.resource)
            if attempt.name == name:
                return because(ReasonCode.NAME_OF_OTHER_CLAIM, job_name=name)
        return None

    def _blocked(self, key: str, number: int, reason: Reason, actual: ActualJob | None = None) -> Change:
        return self._about(Action.BLOCKED, reason, key, number, actual=actual)

    def _none(self, attempt: Attempt, reason: Reason, stuck: NotDone | None = None) -> Change:
        key, number = attempt.id.key, attempt.id.attempt
        return self._about(Action.NONE, reason, key, number, actual=attempt.run, stuck=stuck)

    def _name(self, attempt: Attempt) -> str:
        identity = self._identities[attempt.id.key]
        return job_name(self._job.manifest.base_name, identity, attempt.id.attempt)

    def _about(
        self,
        action: Action,
        reason: Reason,
        key: str,
        number: int,
        *,
        fields: tuple[FieldChange, ...] = (),
        actual: ActualJob | None = None,
        stuck: NotDone | None = None,
    ) -> Change:
        manifest = self._job.manifest
        return Change(
            action=action,
            reason=reason,
            base_name=manifest.name,
            job_name=job_name(manifest.base_name, self._identities[key], number),
            kind=manifest.kind,
            path=manifest.path,
            line=manifest.line,
            attempt=number,
            fields=fields,
            desired=self._job,
            actual=actual,
            key=key,
            free=self._free,
            stuck=stuck,
        )


def problems_of_results(state: TargetState) -> Iterator[tuple[NameState, Reason, NotDone]]:
    """Yield each job whose run succeeded with a result that isn't good or in place; no suspended one."""
    for job, name in state.of_desired:
        last, problem = name.last_wanted, problem_of_result(name)
        is_done = last is not None and last.state is State.SUCCEEDED
        if problem and is_done and not job.manifest.reconcile.suspend:
            yield name, *problem


def problem_of_result(name: NameState) -> tuple[Reason, NotDone] | None:
    """Return why the result of the desired content's run isn't good, or isn't in its place; None if it is."""
    if name.overwriting:
        run = name.overwriting.run
        about = {"job_name": run.job_name, "state": run.state, "since": run.create_time}
        reason = because(ReasonCode.OVERWRITTEN, **about, folder=name.overwriting.folder)
        return reason, NotDone.OVERWRITTEN
    if name.judgement and name.judgement.misses:
        return because(ReasonCode.EXPECTATION_MISSED, judgement=name.judgement), NotDone.MISSED
    if name.judgement and name.judgement.unread:
        return because(ReasonCode.METRICS_UNREAD, why=name.judgement.unread), NotDone.UNJUDGED
    if name.publication and name.publication.standing is not Standing.IN_PLACE:
        is_refused = name.publication.standing is Standing.REFUSED
        why = name.publication.reason if is_refused else None
        since = name.predecessor.run.create_time if name.predecessor and name.predecessor.run else ""
        return because(ReasonCode.NOT_PUBLISHED, why=why, since=since), NotDone.UNPUBLISHED
    return None


def _set_up(attempt: Attempt | None) -> tuple[str, str] | None:
    """Return what an attempt with a failed set-up was set up for: its image, and a digest of its entry."""
    if attempt is None or attempt.run is None or attempt.run.info is None:
        return None
    metadata = attempt.run.info.metadata
    return metadata.get("image", ""), metadata.get("entry", "")


_END: dict[State, NotDone | None] = {
    State.SUCCEEDED: None,
    State.FAILED: NotDone.FAILED,
    State.CANCELLED: NotDone.CANCELLED,
}
"""By final state: the reason for being out of sync."""
_JOB_FOUND = because(ReasonCode.JOB_FOUND)


def _counting(attempts: Sequence[Attempt]) -> Attempt:
    """Return the attempt that decides: the latest with a known job, else the latest."""
    return max(reversed(attempts), key=lambda attempt: (attempt.state is not None, attempt.id.attempt))


def _of_stranger(run: ActualJob) -> Reason:
    return because(ReasonCode.RUN_WITHOUT_REQUEST, resource=run.resource, state=run.state)


def _of_other_instance(run: ActualJob) -> Reason:
    instance = run.labels.get(INSTANCE)
    return because(ReasonCode.OTHER_INSTANCE, resource=run.resource, state=run.state, instance=instance)


def _activity(attempt: Attempt) -> Mapping[str, State | str]:
    """Return what goes on of a suspended job: its run's state, or its submission that isn't settled."""
    claim = attempt.claim
    if attempt.state and not attempt.state.ended:
        return {"state": attempt.state}
    if claim and claim.state is ClaimState.PENDING:
        return {"submission": claim.state}
    if claim and claim.state is ClaimState.HELD and not claim.given_up:
        return {"error": claim.error}
    return {}


def _counts(run: ActualJob) -> bool:
    """Return True if a run did, or may still do, the work of a further attempt."""
    return run.state not in (State.FAILED, State.CANCELLED)
