"""What commits are told of their jobs: a status for each, one over all of them, and one of the drift."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from reconciler.base.sanitize import MAX_DESCRIPTION
from reconciler.model.claim import Claim, ClaimState
from reconciler.model.commit_record import CommitRecord, WantedJob
from reconciler.model.plan import Action, Change, Drift, Plan
from reconciler.planning.attempts import Attempt, attempts_by_base, keys_of
from reconciler.reporting.github.settings import Contexts
from reconciler.reporting.status import (
    STATES,
    CommitStatus,
    Over,
    StatusState,
    plain_status,
    run_status,
    status_of,
    unknown_of,
    update_status,
)
from reconciler.submission.observe import Observed

MANY = 20
"""Jobs of one commit, above which it gets no status for each, unless the settings say so."""

# What is left of a description beside its mark and what joins its parts.
_ROOM = MAX_DESCRIPTION - 25

_SUBMITTED_TWICE = "submitted twice"
_TO_BE_RETRIED = (Action.RETRY, Action.BLOCKED)


@dataclass(frozen=True)
class View:
    """What there is to tell of, at one look.

    Attributes:
        contexts: What the statuses are called.
        commit: The commit whose jobs are exactly the wanted ones, "" for none.
        observed: The claims and the runs; only a run that a claim is bound to says anything of a job.
        plan: What would be done now, about which wanted jobs.
        problems: By base name, why this apply didn't submit a job.
        each: Whether each job has a status of its own; None leaves it to how many they are.
    """

    contexts: Contexts
    commit: str
    observed: Observed
    plan: Plan
    problems: Mapping[str, str] = field(default_factory=dict)
    each: bool | None = None

    @cached_property
    def attempts(self) -> dict[str, list[Attempt]]:
        """By key: every attempt that has a claim or a run."""
        found = defaultdict(list)
        desired = [change.desired for change in self.changes.values() if change.desired]
        for of_base in attempts_by_base(desired, self.observed.runs, self.observed.known).values():
            for attempt in of_base:
                found[attempt.id.key].append(attempt)
        return found

    @cached_property
    def changes(self) -> dict[str, Change]:
        """By base name as the manifest writes it: what would be done about a wanted job."""
        return changes_of(self.plan)

    def change(self, name: str, keys: Collection[str]) -> Change | None:
        """What would be done about a job; None where other content is wanted by now, or nothing."""
        change = self.changes.get(name)
        wanted = change.desired if change else None
        return change if wanted and not set(keys_of(wanted)).isdisjoint(keys) else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one job of a commit stands.

    Attributes:
        name: Its base name.
        word: How it stands in a word or two, for the status over all jobs.
        state: The same as GitHub names it.
        final: Whether it stays so unless somebody does something.
        sha: The commit that asked for it first, "" for none.
        status: What that commit is told; None where there is nothing to say.
        guess: Whether an apply may have known better why it wasn't submitted.
        step: How far it has come, a number that never falls.
    """

    name: str
    word: str
    state: StatusState
    final: bool
    sha: str = ""
    status: CommitStatus | None = None
    guess: bool = False
    step: int = 0


@dataclass(frozen=True, slots=True)
class Telling:
    """What is owed for one commit's record.

    Attributes:
        by_commit: The statuses of each commit: also of earlier ones that asked for the same jobs first.
        final: Whether all of it stays so.
    """

    by_commit: Mapping[str, Sequence[CommitStatus]]
    final: bool

    @property
    def digest(self) -> str:
        """Changes with what is told."""
        said = [
            (sha, status.context, status.state, status.description, status.target_url)
            for sha, statuses in sorted(self.by_commit.items())
            for status in statuses
        ]
        return hashlib.sha256(repr(said).encode()).hexdigest()[:16]


def newest_of(records: Iterable[CommitRecord]) -> CommitRecord | None:
    """The record of the commit that was applied last; None where none was."""
    return max((r for r in records if r.number), key=lambda r: (r.number, r.since, r.sha), default=None)


def telling(view: View, record: CommitRecord, newest: CommitRecord | None = None) -> Telling:
    """What the commit of a record is told, and for its jobs the commits that asked for them first.

    Args:
        view: What there is.
        record: The commit's.
        newest: That of the commit that was applied last: what it doesn't want is superseded.
    """
    if record.superseded_by:
        said = f"superseded by {record.superseded_by[:7]} before it was applied"
        status = plain_status("error", view.contexts.roll_up, said)
        # One that has a verdict was applied at some time, by somebody whose records are gone.
        return Telling({record.sha: [replace(status, over=Over.NOTHING)]}, final=True)
    last = newest or record
    verdicts = [
        _verdict(view, record.sha, name, job, superseded=_is_superseded(name, job, last))
        for name, job in sorted(record.jobs.items())
    ]
    by_commit: dict[str, list[CommitStatus]] = defaultdict(list)
    each = view.each if view.each is not None else len(verdicts) <= MANY
    for verdict in verdicts:
        settled = record.jobs[verdict.name].settled and verdict.final and verdict.sha != record.sha
        if verdict.status and verdict.sha and not settled:
            # Above the limit no status is begun, and one that was begun is brought to its end.
            over = verdict.status.over if each else Over.SOMETHING
            by_commit[verdict.sha].append(replace(verdict.status, over=over))
    if record.whole:
        by_commit[record.sha].append(_roll_up(view.contexts.roll_up, verdicts))
    return Telling(dict(by_commit), all(verdict.final for verdict in verdicts))


def submitted_twice(view: View) -> dict[str, list[CommitStatus]]:
    """By commit: the jobs of which an attempt has several runs, also those that nothing was owed for."""
    found: dict[str, list[CommitStatus]] = defaultdict(list)
    for attempts in view.attempts.values():
        for attempt in attempts:
            first = next((a.claim for a in attempts if a.claim), None)
            if attempt.others and attempt.claim and first and first.commit:
                context = view.contexts.of_job(first.base_name)
                found[first.commit].append(plain_status("error", context, _twice(attempt)))
    return dict(found)


def reopened(view: View, record: CommitRecord) -> CommitRecord:
    """A record whose jobs were all told of, and of which one turns out to have been submitted twice."""
    twice = {key for key, attempts in view.attempts.items() if any(attempt.others for attempt in attempts)}
    jobs = {
        name: replace(job, settled=job.settled and twice.isdisjoint(job.keys))
        for name, job in record.jobs.items()
    }
    is_owed = any(not twice.isdisjoint(job.keys) for job in jobs.values())
    return replace(record, jobs=jobs, closed=record.closed and not is_owed)


def drift_status(contexts: Contexts, drift: Sequence[Drift]) -> CommitStatus:
    """What the branch's head is told of what there is and isn't wanted."""
    if not drift:
        return plain_status("success", contexts.drift, "no drift")
    first = "; ".join(f"{finding.kind} {finding.job_name}" for finding in drift)
    count = f"{len(drift)} finding{'' if len(drift) == 1 else 's'}"
    return plain_status("failure", contexts.drift, f"{count}: {first}")


def changes_of(plan: Plan) -> dict[str, Change]:
    """By base name as the manifest writes it: what is to be done about each wanted job."""
    return {change.desired.manifest.name: change for change in plan.changes if change.desired}


def record_for(plan: Plan, blank: CommitRecord, earlier: CommitRecord | None) -> CommitRecord:
    """The record of a commit whose plan is about to be carried out.

    Args:
        plan: The plan.
        blank: A record without jobs, which says of what commit it is and since when.
        earlier: The commit's record from an earlier apply; None where there is none.
    """
    before = earlier or replace(blank, whole=False)
    number = max(before.number, blank.number)
    jobs = {name: _wanted(change) for name, change in changes_of(plan).items() if not _is_suspended(change)}
    is_known = before.number == number and _keys(before.jobs) == _keys(jobs)
    if before.closed and is_known and all(job.settled for job in jobs.values()):
        return before
    known = {} if before.closed else before.jobs
    # What an open record still owes isn't settled by having ended meanwhile.
    jobs = {name: known[name] if _same(job, known.get(name)) else job for name, job in jobs.items()}
    if not plan.whole:
        jobs = {**before.jobs, **jobs}
    whole = plan.whole or before.whole
    applied = before.applied if before.number == number else blank.applied
    return replace(
        before,
        number=number,
        jobs=jobs,
        whole=whole,
        superseded_by="",
        closed=False,
        told="" if before.closed else before.told,
        seen=None if before.closed else before.seen,
        applied=applied,
    )


def _keys(jobs: Mapping[str, WantedJob]) -> dict[str, tuple[str, ...]]:
    return {name: job.keys for name, job in jobs.items()}


def _same(job: WantedJob, known: WantedJob | None) -> bool:
    return known is not None and known.keys == job.keys


def _wanted(change: Change) -> WantedJob:
    assert change.desired is not None, "only wanted jobs are recorded"
    is_live = change.actual is not None and not change.actual.state.ended
    return WantedJob(keys_of(change.desired), settled=change.action is Action.NONE and not is_live)


def _is_superseded(name: str, job: WantedJob, newest: CommitRecord) -> bool:
    """Whether the newest commit is known to want other content, or nothing, under a job's name."""
    there = newest.jobs.get(name)
    return newest.whole if there is None else set(there.keys).isdisjoint(job.keys)


def _verdict(view: View, sha: str, name: str, job: WantedJob, *, superseded: bool) -> Verdict:
    claimed = _claimed(job.keys, view.attempts)
    verdict = _standing(view, sha, name, job, _called_for(claimed), superseded=superseded)
    attempts = claimed[-1][1].id.attempt if claimed else 0
    # Runs of which one is too many were seen to end, or never will.
    return replace(verdict, step=2 * attempts + (verdict.final or verdict.word == _SUBMITTED_TWICE))


def _standing(
    view: View,
    sha: str,
    name: str,
    job: WantedJob,
    claimed: Sequence[tuple[Claim, Attempt]],
    *,
    superseded: bool,
) -> Verdict:
    # The commit of the first submission asked for the job; a later one only found it there.
    asked = claimed[0][0].commit if claimed else sha
    context, change = view.contexts.of_job(name), view.change(name, job.keys)
    twice = next((_twice(attempt) for _, attempt in claimed if attempt.others), "")
    if twice:
        return _problem(name, asked, context, _SUBMITTED_TWICE, twice)
    # What the newest commit wants isn't suspended, whatever an older checkout says.
    if superseded and (not claimed or claimed[-1][0].state is ClaimState.REJECTED):
        word = "suspended" if _is_suspended(change) else "superseded"
        return _end(name, asked, context, word, f"{word} before it was submitted", claimed)
    problem = view.problems.get(name) or _blocked(change) if change else ""
    if not claimed:
        return _unclaimed(name, asked, context, problem)
    claim, attempt = claimed[-1]
    match claim.state:
        case ClaimState.PENDING:
            status = unknown_of(context, claim.job_name)
            return Verdict(name, "unknown", "pending", final=False, sha=asked, status=status)
        case ClaimState.REJECTED:
            said = f"refused: {claim.error or 'no reason given'}"
            return _problem(name, asked, context, "refused", said)
        case ClaimState.HELD if claim.given_up:
            said = 'given up; change "rerun" to run it again'
            return _end(name, asked, context, "given up", said, claimed)
        case ClaimState.HELD:
            reason = claim.error or "no reason given"
            said = f"held, see `reconciler resolve {claim.base_name}`: {reason}"
            return _problem(name, asked, context, "held", said)
        case ClaimState.BOUND if attempt.state is None:
            said = "deleted outside: the service has it no more, and its end was not seen"
            return _end(name, asked, context, "deleted", said, claimed)
        case ClaimState.BOUND if attempt.failed and change and change.action in _TO_BE_RETRIED:
            return _failed(name, asked, context, problem, claim, attempt)
        case ClaimState.BOUND:
            aside = "superseded" if superseded and not _is_suspended(change) else ""
            verdict = _bound(name, asked, context, claim, attempt, aside)
            # Whether a failed job has attempts left isn't known where it wasn't looked at.
            is_open = attempt.failed and change is None and not superseded and not view.plan.whole
            return replace(verdict, final=verdict.final and not is_open)


def _unclaimed(name: str, sha: str, context: str, problem: str) -> Verdict:
    """A job that nothing was submitted for."""
    if problem:
        return _problem(name, sha, context, "not submitted", problem)
    status = replace(status_of(context, None), over=Over.NOTHING)
    return Verdict(name, "not submitted yet", "pending", final=False, sha=sha, status=status, guess=True)


def _failed(name: str, sha: str, context: str, problem: str, claim: Claim, attempt: Attempt) -> Verdict:
    """A job that failed and has attempts left."""
    if problem:
        return _problem(name, sha, context, "not retried", problem)
    status = _told(context, claim, attempt, "")
    return Verdict(name, "to be retried", "pending", final=False, sha=sha, status=status)


def _bound(name: str, sha: str, context: str, claim: Claim, attempt: Attempt, aside: str) -> Verdict:
    """A job that the service has, or whose end was seen while it had it."""
    assert attempt.state is not None, "how it stands is known"
    status = _told(context, claim, attempt, aside)
    word = str(attempt.state).lower()
    return Verdict(name, word, STATES[attempt.state], attempt.state.ended, sha, status)


def _told(context: str, claim: Claim, attempt: Attempt, aside: str) -> CommitStatus:
    """What the run says, or what is known of it where the service has forgotten it."""
    if attempt.run and attempt.run.resource == claim.resource:
        return status_of(context, attempt.run, aside=aside)
    assert attempt.state is not None, "how it stands is known"
    said = f"{str(attempt.state).lower()}; the service has its record no more"
    status = run_status(STATES[attempt.state], context, said, claim.job_name)
    return replace(status, over=Over.NO_END)


def _is_suspended(change: Change | None) -> bool:
    """Whether a job is still in the repository, with nothing wanted of it."""
    return bool(change and change.desired and change.desired.manifest.reconcile.suspend)


def _blocked(change: Change) -> str:
    return change.reason if change.action is Action.BLOCKED else ""


def _problem(name: str, sha: str, context: str, word: str, said: str) -> Verdict:
    """What somebody or something may still put right."""
    return Verdict(name, word, "error", final=False, sha=sha, status=plain_status("error", context, said))


def _end(
    name: str, sha: str, context: str, word: str, said: str, claimed: Sequence[tuple[Claim, Attempt]]
) -> Verdict:
    """What is over without a run that ended."""
    job_name = claimed[-1][0].job_name if claimed else ""
    return Verdict(name, word, "error", True, sha, run_status("error", context, said, job_name))


def _roll_up(context: str, verdicts: Sequence[Verdict]) -> CommitStatus:
    """The verdict over all jobs: red as soon as one is, green only when all succeeded."""
    states = {verdict.state for verdict in verdicts}
    state: StatusState = next((s for s in ("failure", "error", "pending") if s in states), "success")
    status = update_status(state, context, _said_of(verdicts), sum(verdict.step for verdict in verdicts))
    # A job that isn't begun says nothing over what is there, and hides nothing that is known of another.
    guess = state == "pending" and any(verdict.guess for verdict in verdicts)
    return replace(status, over=Over.NOTHING) if guess else status


def _said_of(verdicts: Sequence[Verdict]) -> str:
    """What isn't well by name, then the others in numbers."""
    if not verdicts:
        return "no jobs"
    bad: dict[str, list[str]] = defaultdict(list)
    well: Counter[str] = Counter()
    for verdict in verdicts:
        if verdict.state in ("failure", "error"):
            bad[verdict.word].append(verdict.name)
        else:
            well[verdict.word] += 1
    if well["succeeded"] == len(verdicts):
        return f"{_count(len(verdicts))} succeeded"
    live = (f", {number} {word}" for word, number in sorted(well.items()) if word != "succeeded")
    counts = f"{well['succeeded']} of {_count(len(verdicts))} succeeded{''.join(live)}"
    named = "; ".join(f"{word}: {', '.join(names)}" for word, names in sorted(bad.items()))
    if len(named) + len(counts) > _ROOM:
        named = ", ".join(f"{len(names)} {word}" for word, names in sorted(bad.items()))
    return f"{named} · {counts}" if named else counts


def _count(jobs: int) -> str:
    return f"{jobs} job{'' if jobs == 1 else 's'}"


def _claimed(keys: Sequence[str], attempts: Mapping[str, Iterable[Attempt]]) -> list[tuple[Claim, Attempt]]:
    """The attempts at just this content that have claims, the newest last."""
    mine = [(a.claim, a) for key in keys for a in attempts.get(key, ()) if a.claim]
    return sorted(mine, key=lambda pair: (pair[1].id.attempt, -keys.index(pair[1].id.key)))


def _called_for(claimed: Sequence[tuple[Claim, Attempt]]) -> Sequence[tuple[Claim, Attempt]]:
    """Without a last attempt that made no job, and that nothing calls for any more."""
    is_refused = len(claimed) > 1 and claimed[-1][0].state is ClaimState.REJECTED
    return claimed[:-1] if is_refused and not claimed[-2][1].failed else claimed


def _twice(attempt: Attempt) -> str:
    """Said as long as more than one job of an attempt is to be seen, however each of them stands."""
    runs = [run for run in (attempt.run, *attempt.others) if run]
    numbers = sorted(run.resource.rpartition("/")[2] for run in runs)
    return f"attempt {attempt.id.attempt} has {len(runs)} jobs: {', '.join(numbers)}"
