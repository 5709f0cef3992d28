"""Rules for commit statuses: one status per job, one overall status, one for drift."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from reconciler.base.diagnostics import counted
from reconciler.base.sanitize import MAX_DESCRIPTION
from reconciler.model.claim import Claim, ClaimState, time_of
from reconciler.model.commit_record import CommitRecord, WantedJob
from reconciler.model.plan import Action, Change, Drift, NotDone, Plan
from reconciler.model.reason import Reason, ReasonCode, because
from reconciler.output.wording.plan import held_short, reason_text
from reconciler.planning.attempts import Attempt, keys_of
from reconciler.planning.state import TargetState
from reconciler.reporting.github.contexts import Contexts
from reconciler.reporting.status import (
    STATES,
    CommitStatus,
    Over,
    StatusState,
    plain_status,
    run_status,
    status_of,
    update_status,
)
from reconciler.reporting.turns import Claimed, turn_of, turns_of
from reconciler.reporting.verdict import (
    MISSED,
    UNPUBLISHED,
    Verdict,
    end_verdict,
    judged_verdict,
    problem_verdict,
    unpublished_verdict,
    worse_verdict,
)

MANY = 20
"""Largest number of jobs of a commit with a status per job, unless the settings choose otherwise."""

# The update mark and the separators between the parts need up to 25 characters of a description.
_ROOM = MAX_DESCRIPTION - 25

_SUBMITTED_TWICE = "submitted twice"  # in the overall status; `_runs_listed` makes the text of the job's own
_OVERWRITTEN = "overwritten"
_ENDS = (_SUBMITTED_TWICE, _OVERWRITTEN, MISSED, UNPUBLISHED)
_TO_BE_RETRIED = (Action.RETRY, Action.BLOCKED)
_SHOWN_OF_SHA = 7
_WORST_FIRST: tuple[StatusState, ...] = ("failure", "error", "pending")


@dataclass(frozen=True)
class View:
    """Input of all rules: the claims, runs and plan of one pass.

    Attributes:
        contexts: The contexts of the statuses.
        commit: The commit whose jobs are exactly the desired jobs, "" for none.
        state: The claims and the runs; a run counts for a job only if a claim is bound to it.
        plan: The present plan for the desired jobs.
        problems: The reason why this apply didn't submit a job, by base name.
        per_job: True for a status per job, False for the overall status only, None to decide by their number.
    """

    contexts: Contexts
    commit: str
    state: TargetState
    plan: Plan
    problems: Mapping[str, str] = field(default_factory=dict)
    per_job: bool | None = None

    @property
    def attempts(self) -> Mapping[str, Sequence[Attempt]]:
        """All attempts that have a claim or a run, by key."""
        return self.state.by_key

    @cached_property
    def changes(self) -> dict[str, Change]:
        """The result of `changes_of` for the plan."""
        return changes_of(self.plan)

    def posts_each(self, jobs: Sized) -> bool:
        """Return True if a commit with these jobs gets a status for each."""
        return len(jobs) <= MANY if self.per_job is None else self.per_job

    def change(self, name: str, keys: Collection[str]) -> Change | None:
        """Return the planned change of a job; None if the manifest is gone or has other content now."""
        change = self.changes.get(name)
        desired = change.desired if change else None
        return change if desired and not set(keys_of(desired)).isdisjoint(keys) else None


class DueStatuses(Struct, frozen=True):
    """Statuses to be posted for one commit's record.

    Attributes:
        by_commit: The statuses of each commit, including earlier commits that submitted the same jobs first.
        final: True if no status will change any more.
        own: The verdicts of the jobs that the record's commit brought.
        shows_each: True if each of them has a status of its own.
    """

    by_commit: Mapping[str, Sequence[CommitStatus]]
    final: bool
    own: Sequence[Verdict] = ()
    shows_each: bool = True

    @property
    def digest_of_ends(self) -> str:
        """A hash of the ends that the commit's pull request is told; it changes with each.

        It is "" before the first failure and the last end.
        """
        ended = [verdict for verdict in self.own if verdict.has_ended]
        is_due = any(v.is_failed_end for v in ended) or all(v.has_ended or v.final for v in self.own)
        content = [(v.name, v.state, v.status.description, v.status.target_url) for v in ended]
        return _digest(content) if ended and is_due else ""

    @property
    def digest(self) -> str:
        """A hash of all statuses, which changes with any of them."""
        content = [
            (sha, status.context, status.state, status.description, status.target_url)
            for sha, statuses in sorted(self.by_commit.items())
            for status in statuses
        ]
        return _digest(content)


def due_statuses(view: View, record: CommitRecord, newest: CommitRecord | None = None) -> DueStatuses:
    """Return the statuses for a record's commit, and for earlier commits that submitted its jobs first.

    `newest` is the record of the last applied commit: a job that it doesn't contain is superseded.
    """
    if record.superseded_by:
        text = f"applied as part of {record.superseded_by[:_SHOWN_OF_SHA]}"
        status = plain_status("success", view.contexts.overall, text)
        # An existing overall status means that another reconciler applied the commit and that its record is
        # gone: this must not replace that result.
        return DueStatuses({record.sha: [replace(status, over=Over.NOTHING)]}, final=True)
    last = newest or record
    by = f"superseded by {record.replaced_by[:_SHOWN_OF_SHA]}" if record.replaced_by else "superseded"
    verdicts = [
        _verdict(
            view,
            record,
            name,
            job,
            superseded=by if _is_superseded(name, job, last) else "",
            is_newest=record.sha == last.sha,
        )
        for name, job in sorted(record.jobs.items())
    ]
    # The commit of a job that wasn't submitted is unknown. Nothing was submitted for a passed-over commit but
    # what it brought.
    is_applied = record.number > 0
    own_verdicts = {
        v.name: v for v in verdicts if record.jobs[v.name].brought or (is_applied and v.sha == record.sha)
    }
    others = [verdict for verdict in verdicts if verdict.name not in own_verdicts]
    shows_each = view.posts_each(own_verdicts)
    by_commit: dict[str, list[CommitStatus]] = defaultdict(list)
    for verdict in verdicts:
        # Without a status per job, only update statuses that exist: a pending one must not stay for ever. The
        # same holds for this commit if another one brought the job: it may say "not submitted yet".
        update = replace(verdict.status, over=Over.SOMETHING)
        is_shown = verdict.name in own_verdicts and shows_each
        by_commit[record.sha].append(verdict.status if is_shown else update)
        # A job that had ended before this commit needs no new status at the commit that submitted it.
        is_settled = record.jobs[verdict.name].settled and verdict.final
        if verdict.sha not in ("", record.sha) and not is_settled:
            by_commit[verdict.sha].append(verdict.status if view.posts_each(verdicts) else update)
    if record.problem:
        status = plain_status("error", view.contexts.overall, record.problem)
        by_commit[record.sha].append(replace(status, over=Over.NOTHING))
    elif record.has_verdict:
        # Only a commit with jobs that this cost their success names the commit that replaced it.
        cost = any(
            v.state != "success" and _is_superseded(name, record.jobs[name], last)
            for name, v in own_verdicts.items()
        )
        replaced_by = record.replaced_by if cost else ""
        by_commit[record.sha].append(
            _overall_status(view.contexts.overall, [*own_verdicts.values()], others, replaced_by, is_applied)
        )
    is_final = all(verdict.final for verdict in verdicts)
    return DueStatuses(dict(by_commit), is_final, [*own_verdicts.values()], shows_each)


def _digest(content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def duplicate_statuses(view: View) -> dict[str, list[CommitStatus]]:
    """Return an error status for each job with several runs of one attempt, by commit.

    This includes jobs of closed records.
    """
    statuses: dict[str, list[CommitStatus]] = defaultdict(list)
    for turn in chain.from_iterable(turns_of([key], view.attempts) for key in view.attempts):
        first, _ = turn[0]
        context = view.contexts.of_job(first.base_name)
        listed = [_runs_listed(attempt) for _, attempt in turn if attempt.others]
        if listed and first.commit:
            statuses[first.commit] += (plain_status("error", context, text) for text in listed)
    return dict(statuses)


def reopened(view: View, record: CommitRecord, newest: CommitRecord) -> CommitRecord:
    """Return the record, open again if one of its jobs was submitted twice, or is attempted again."""
    twice = {
        name
        for name, job in record.jobs.items()
        if any(a.others for _, a in turn_of(view.attempts, record, job)[0])
    }
    jobs = {
        name: replace(job, settled=job.settled and name not in twice) for name, job in record.jobs.items()
    }
    # A plan of selected jobs doesn't show if a failed job outside the selection has attempts left.
    goes_on = view.plan.whole and not due_statuses(view, record, newest).final
    return replace(record, jobs=jobs, closed=record.closed and not (twice or goes_on))


def may_turn(view: View, record: CommitRecord, newest: CommitRecord) -> bool:
    """Return True if a further attempt may still turn the overall status of a closed record.

    That takes a job that failed and whose content the newest commit still has: its `attempts` may be raised.
    """
    wanted = (
        job for name, job in record.jobs.items() if job.brought and not _is_superseded(name, job, newest)
    )
    turns = (turn_of(view.attempts, record, job)[0] for job in wanted)
    return record.has_verdict and any(turn[-1][1].failed for turn in turns if turn)


def drift_status(contexts: Contexts, drift: Sequence[Drift]) -> CommitStatus:
    """Return the drift status for the branch's head."""
    if not drift:
        return plain_status("success", contexts.drift, "no drift")
    first = "; ".join(f"{finding.kind} {finding.job_name}" for finding in drift)
    return plain_status("failure", contexts.drift, f"{counted(len(drift), 'finding')}: {first}")


def changes_of(plan: Plan) -> dict[str, Change]:
    """Return the planned changes of desired jobs, by the base name that the manifest writes."""
    return {change.desired.manifest.name: change for change in plan.changes if change.desired}


def _is_superseded(name: str, job: WantedJob, newest: CommitRecord) -> bool:
    """Return True if the newest commit is known to have other content, or no job, under this name."""
    newer = newest.jobs.get(name)
    # A record of a part of the jobs doesn't tell that a job is missing.
    return newest.whole if newer is None else set(newer.keys).isdisjoint(job.keys)


def _verdict(
    view: View, record: CommitRecord, name: str, job: WantedJob, *, superseded: str, is_newest: bool
) -> Verdict:
    mine = [a.claim for key in job.keys for a in view.attempts.get(key, ()) if a.claim]
    # An apply that ended meanwhile may have submitted it for this commit all the same.
    if job.replaced_by and all(claim.commit != record.sha for claim in mine):
        text = f"replaced by {job.replaced_by[:_SHOWN_OF_SHA]} before it ran"
        status = plain_status("success", view.contexts.of_job(name), text)
        last = max((claim.id.attempt for claim in mine), default=0)
        # A run of the content for another commit may have been shown here: the number must not fall.
        step = 2 * last + 1 if last else 0
        return Verdict(name, text, "success", final=True, sha=record.sha, status=status, step=step)
    claimed, is_last = turn_of(view.attempts, record, job)
    attempts = claimed[-1][1].id.attempt if claimed else 0
    change = view.change(name, job.keys) if is_last else None
    is_of_other = False
    if claimed and claimed[-1][1].stopped and not superseded:
        if claimed[0][0].commit == record.sha and not is_newest:
            superseded, change = "superseded", None
        elif change.action in _TO_BE_RETRIED if change else not view.plan.whole:
            claimed = []  # the content comes back for this commit
        else:
            is_of_other = True
    verdict = _judge(
        view, record.sha, name, job, _without_idle_refusal(claimed), change, superseded=superseded
    )
    # Each commit that brought the content answers for its folder, and is judged by its own `expect`.
    shown_on = record.sha if job.brought else ""
    if change and change.stuck is NotDone.OVERWRITTEN and (is_newest or _is_after(record, change.reason)):
        text = reason_text(change.reason, name)
        verdict = problem_verdict(name, shown_on, view.contexts.of_job(name), _OVERWRITTEN, text)
    elif change and change.stuck is NotDone.OVERWRITTEN and verdict.sha != record.sha:
        verdict = replace(verdict, sha="")  # another commit, which this one came before, shows it
    elif job.expect and claimed and verdict.state == "success":
        # Other content that replaced it makes no result better.
        judgement = view.state.judgement(claimed[-1][1].resource, job.expect)
        aside = f"{superseded}, " if superseded and not is_suspended(change) else ""
        judged = judged_verdict(verdict, claimed[-1][0].job_name, judgement, len(job.expect), aside)
        verdict = replace(judged, sha=shown_on)
    if change and change.stuck is NotDone.UNPUBLISHED and claimed and verdict.state == "success":
        if is_newest or not change.reason.values["since"] or _is_after(record, change.reason):
            why = change.reason.values["why"]
            said = view.problems.get(name) or (reason_text(why, name) if why else "")
            is_worse = why is not None and why.code is ReasonCode.WORSE_THAN_PUBLISHED
            told = worse_verdict if is_worse else unpublished_verdict
            verdict = replace(told(verdict, claimed[-1][0].job_name, said), sha=shown_on)
        else:
            verdict = replace(verdict, sha=verdict.sha if verdict.sha == record.sha else "")
    elif job.publish and change is None and is_last and not superseded and verdict.state == "success":
        # A plan of other jobs, or of a work tree with other content, doesn't know if it is published.
        verdict = replace(unpublished_verdict(verdict, claimed[-1][0].job_name, ""), sha=shown_on)
    if is_of_other and verdict.sha != record.sha:
        verdict = replace(verdict, sha="")  # the commit that began the turn shows its own end
    # These count as an end although they aren't final: they may be found out after the end of the first run,
    # and the number must not fall then.
    step = 2 * attempts + (verdict.final or verdict.word in _ENDS)
    return replace(verdict, step=step, attempt=claimed[-1][1] if claimed else None)


def _is_after(record: CommitRecord, reason: Reason) -> bool:
    """Return True if a commit was applied after the run that overwrote the result had been created."""
    since = time_of(reason.values["since"])
    return since is not None and record.since > since


def _judge(
    view: View,
    sha: str,
    name: str,
    job: WantedJob,
    claimed: Claimed,
    change: Change | None,
    *,
    superseded: str,
) -> Verdict:
    # The commit of the first submission gets the status; later commits only found the job.
    # No commit submitted an adopted job: the one that brought its manifest shows how it stands.
    is_shown_here = claimed and claimed[0][0].is_adopted and job.brought
    first = claimed[0][0].commit or (sha if is_shown_here else "") if claimed else sha
    context = view.contexts.of_job(name)
    twice = next((_runs_listed(attempt) for _, attempt in claimed if attempt.others), "")
    if twice:
        return problem_verdict(name, first, context, _SUBMITTED_TWICE, twice)
    # A job that the newest commit contains isn't suspended, even if an older checkout suspends it.
    if superseded and (not claimed or claimed[-1][0].state is ClaimState.REJECTED):
        word = "suspended" if is_suspended(change) else "superseded"
        text = word if word == "suspended" else superseded
        return end_verdict(name, first, context, word, f"{text} before it was submitted", claimed)
    problem = view.problems.get(name) or _blocked(change) if change else ""
    if not claimed:
        return _unclaimed(name, first, context, problem)
    claim, attempt = claimed[-1]
    match claim.state:
        case ClaimState.PENDING if change and change.stuck is NotDone.FAILED:
            # The attempt isn't wanted any more, and no pass sends it: a pending status would stay for ever.
            return problem_verdict(name, first, context, "not retried", reason_text(change.reason, name))
        case ClaimState.PENDING:
            text = "not known yet whether a job was created"
            status = run_status("pending", context, text, claim.job_name)
            return Verdict(name, "unknown", "pending", final=False, sha=first, status=status)
        case ClaimState.REJECTED:
            text = f"refused: {claim.error or 'no reason given'}"
            return problem_verdict(name, first, context, "refused", text)
        case ClaimState.HELD if claim.given_up:
            return end_verdict(
                name, first, context, "given up", reason_text(because(ReasonCode.GIVEN_UP), name), claimed
            )
        case ClaimState.HELD:
            return problem_verdict(name, first, context, "held", held_short(claim))
        case ClaimState.BOUND if attempt.state is None:
            text = "deleted outside: the service no longer has it, and its final state is unknown"
            return end_verdict(name, first, context, "deleted", text, claimed)
        case ClaimState.BOUND if attempt.failed and change and change.action in _TO_BE_RETRIED:
            return _failed(name, first, context, problem, claim, attempt)
        case ClaimState.BOUND:
            aside = "" if is_suspended(change) else superseded
            verdict = _bound(name, first, context, claim, attempt, aside)
            # A plan of selected jobs doesn't show if a failed job outside the selection has attempts left.
            is_open = attempt.failed and change is None and not superseded and not view.plan.whole
            return replace(verdict, final=verdict.final and not is_open)


def _unclaimed(name: str, sha: str, context: str, problem: str) -> Verdict:
    """Return the verdict of a job without a claim."""
    if problem:
        return problem_verdict(name, sha, context, "not submitted", problem)
    status = replace(plain_status("pending", context, "not submitted yet"), over=Over.NOTHING)
    return Verdict(name, "not submitted yet", "pending", final=False, sha=sha, status=status, guess=True)


def _failed(name: str, sha: str, context: str, problem: str, claim: Claim, attempt: Attempt) -> Verdict:
    if problem:
        return problem_verdict(name, sha, context, "not retried", problem)
    status = _bound_status(context, claim, attempt, "")
    return Verdict(name, "to be retried", "pending", final=False, sha=sha, status=status)


def _bound(name: str, sha: str, context: str, claim: Claim, attempt: Attempt, aside: str) -> Verdict:
    """Return the verdict of a job with a run at the service or with a recorded end."""
    assert attempt.state is not None, "the caller handles deleted jobs"
    status = _bound_status(context, claim, attempt, aside)
    word = str(attempt.state).lower()
    return Verdict(name, word, STATES[attempt.state], attempt.state.ended, sha, status)


def _bound_status(context: str, claim: Claim, attempt: Attempt, aside: str) -> CommitStatus:
    if attempt.run and attempt.run.resource == claim.resource:
        return status_of(context, attempt.run, name=claim.base_name, aside=aside)
    assert attempt.state is not None, "the caller handles deleted jobs"
    # The service no longer lists the run: an end that was posted from the run itself has more detail.
    text = f"{str(attempt.state).lower()}; the service no longer has its record"
    status = run_status(STATES[attempt.state], context, text, claim.job_name)
    return replace(status, over=Over.NO_END)


def is_suspended(change: Change | None) -> bool:
    """Return True if the job's manifest exists and suspends it."""
    return bool(change and change.desired and change.desired.manifest.reconcile.suspend)


def _blocked(change: Change) -> str:
    return reason_text(change.reason, change.base_name) if change.action is Action.BLOCKED else ""


def _overall_status(
    context: str,
    own_verdicts: Sequence[Verdict],
    others: Sequence[Verdict],
    replaced_by: str,
    is_applied: bool,
) -> CommitStatus:
    """Return the status over the jobs that a commit brought: green only if all of them succeeded.

    Args:
        context: Its context.
        own_verdicts: The jobs that it brought.
        others: The jobs that earlier commits brought.
        replaced_by: The older commit that a person applied over it; "" for none.
        is_applied: False if it was passed over.
    """
    states = {verdict.state for verdict in own_verdicts}
    state: StatusState = next((s for s in _WORST_FIRST if s in states), "success")
    by = f"superseded by {replaced_by[:_SHOWN_OF_SHA]}: " if replaced_by else ""
    failed = Counter(verdict.word for verdict in others if verdict.state in ("failure", "error"))
    earlier = ", ".join(f"{number} {word}" for word, number in sorted(failed.items()))
    behind = f" · earlier: {earlier}" if earlier else ""
    text = by + _summary(own_verdicts, _ROOM - len(by) - len(behind)) + behind
    # The number counts the steps of all jobs, so that news of an earlier one are news, too. It must not fall:
    # the record of a passed-over commit lists other jobs of earlier commits when it is made again.
    counting = (*own_verdicts, *others) if is_applied else own_verdicts
    status = update_status(state, context, text, sum(verdict.step for verdict in counting))
    # The process that posted the present status may have known more than "not submitted yet", so that this
    # goes over no status. The failure of another job is posted all the same: `state` isn't pending then.
    guess = state == "pending" and any(verdict.guess for verdict in own_verdicts)
    return replace(status, over=Over.NOTHING) if guess else status


def _summary(verdicts: Sequence[Verdict], room: int) -> str:
    """Return the names of red jobs, then the numbers of the others, in so many characters if possible."""
    if not verdicts:
        return "no job of its own"
    bad: dict[str, list[str]] = defaultdict(list)
    well: Counter[str] = Counter()
    for verdict in verdicts:
        if verdict.state in ("failure", "error"):
            bad[verdict.word].append(verdict.name)
        else:
            well[verdict.word] += 1
    if len(well) == 1 and not well["succeeded"] and all(v.state == "success" for v in verdicts):
        return verdicts[0].word
    live = (f", {number} {word}" for word, number in sorted(well.items()) if word != "succeeded")
    counts = f"{well['succeeded']} of {len(verdicts)} succeeded{''.join(live)}"
    named = "; ".join(f"{word}: {', '.join(names)}" for word, names in sorted(bad.items()))
    if len(named) + len(counts) > room:
        named = ", ".join(f"{len(names)} {word}" for word, names in sorted(bad.items()))
    return f"{named} · {counts}" if named else counts


def _without_idle_refusal(claimed: Claimed) -> Claimed:
    """Return the attempts without a last attempt that was refused and is no longer needed."""
    is_refused = len(claimed) > 1 and claimed[-1][0].state is ClaimState.REJECTED
    return claimed[:-1] if is_refused and not claimed[-2][1].may_be_followed else claimed


def _runs_listed(attempt: Attempt) -> str:
    # Ended runs count too: the problem stays reported as long as the service lists several runs.
    runs = [run for run in (attempt.run, *attempt.others) if run]
    numbers = sorted(run.resource.rpartition("/")[2] for run in runs)
    return f"attempt {attempt.id.attempt} has {len(runs)} jobs: {', '.join(numbers)}"
