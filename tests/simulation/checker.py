"""Checker of invariants: it reads the service's own history and ignores the reconciler's reports."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from math import inf
from typing import Any

from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.model.claim import Claim, ClaimId, ClaimState
from reconciler.model.job import ATTEMPT, INSTANCE, KEY, REQUEST_ID, SOURCE, ActualJob, State
from reconciler.model.manifest import ML_V1, JsonObject
from reconciler.model.naming import label_of
from reconciler.model.plan import Action, Change, DesiredJob, Drift, DriftKind, NotDone, Plan
from reconciler.model.ports import Versioned
from reconciler.output.wording.notes import note_text
from reconciler.output.wording.plan import reason_text
from reconciler.planning.outcome import Outcome
from reconciler.planning.state import TargetState
from reconciler.submission.look import FULL_AFTER, Observation

from .github import Statuses
from .model import OURS, PERSON, TIMEOUT, Job, Place, Request, folder_of, ours, short_slot
from .models import Models
from .published import DAMAGED, Published
from .scenario import Commit, Outputs, Repository
from .store import Claims
from .world import World

MOST_REQUEST_IDS = 5
"""Requests without an outcome after which a submission may be held."""

_TRIES = 3
_RETURNS = 3
_BETWEEN_TRIES = 600.0
_TOLD = 3
"""Whole passes that saw a job's end, after which its claim must record it; one pass may lose a race."""
_SHOWN = {State.SUCCEEDED: "success", State.FAILED: "failure", State.CANCELLED: "error"}
_OVERWRITTEN = "overwritten: "
_DATE = 1.0
"""Seconds by which a job may appear younger to a reconciler: the store's time comes in whole seconds."""
_MARK = re.compile(r" · run ([0-9a-f]{16}(?:_[0-9]+)?)\Z")


@dataclass(slots=True)
class _Pass:
    """Everything that a reconciler has read in its current pass, as the checker observed it.

    Attributes:
        commit: The commit that was checked out at the pass's beginning.
        began: The time of the pass's beginning.
        named: The jobs that claims name without a known end, in the reconciler's listing of claims.
        ended: The other jobs that claims name in that listing.
        looks: True during a short look, which lists the contents one by one.
        looks_since: The beginning of the last short look.
        genesis: The generation of the genesis object that this look's summary names.
        live: The keys and attempts in the labels of the live jobs that this look listed.
        planned: True once the look has ended and planning begins.
        found: True if such a listing showed any job.
        not_found: The ended jobs that such listings omitted.
        unseen: The ended jobs that such listings would have omitted.
        left_out: The jobs that the last listing of all runs omitted against the bounds: named jobs, and ended
            jobs if the listing was empty.
        shown: The jobs that the last listing of all runs showed, if the services break their bounds.
        tree: The last applied commit, as last read; None if not read since the plan.
        cancelled: The job for whose cancellation that commit was read.
        blind_looks: By key, the jobs of desired content that the last search for that key would have omitted.
    """

    commit: Commit
    began: float
    named: list[tuple[ClaimId, Job]] = field(default_factory=list)
    ended: list[tuple[ClaimId, Job]] = field(default_factory=list)
    looks: bool = False
    looks_since: float = 0.0
    genesis: int = 0
    live: set[tuple[str, str]] = field(default_factory=set)
    planned: bool = False
    found: bool = False
    not_found: list[Job] = field(default_factory=list)
    unseen: list[Job] = field(default_factory=list)
    left_out: list[Job] = field(default_factory=list)
    shown: set[str] = field(default_factory=set)
    tree: str | None = None
    cancelled: str = ""
    blind_looks: dict[str, list[Job]] = field(default_factory=dict)


def _live(commit: Commit) -> list[DesiredJob]:
    return [job for job in commit.jobs if not job.manifest.reconcile.suspend]


class Checker:
    """Collector of violations, as `invariant: description`.

    The invariants are I1 to I8, and the promises of planning and sending: "suspend", "attempts", "elder" (of
    two duplicates), "successor" (before a cancel), "blind" (listings), "paused" (processes) and "head" (of a
    request); "adopt": a live job is adopted only by its own content, before any other attempt begins for it;
    "instance": environments in the same project and location never take each other's jobs;
    "tree": a clone behind the applied commit cancels no job, and isn't recorded as applied;
    "overwritten": a plan says of a result in a shared folder whether other content overwrote it; "folder":
    two contents with folders of their own never write to the same one; and
    "set-up": a failing set-up is tried at most three times, ten minutes apart, unless a person starts it.

    Attributes:
        violations: The violations; a run stops at the first.
        seen: The number of occurrences of each situation that the runs have to cover.
    """

    def __init__(
        self,
        world: World,
        claims: Claims,
        repository: Repository,
        statuses: Statuses,
        place: Place,
        *,
        beyond: bool,
        is_old: Callable[[str], bool],
        models: Models | None = None,
    ) -> None:
        self.violations: list[str] = []
        self.seen: Counter[str] = Counter()
        self._world = world
        self._claims = claims
        self._repository = repository
        self._statuses = statuses
        self._place = place
        self._begun: dict[tuple[str, str], float] = {}
        self._refused: set[tuple[str, str]] = set()
        self._beyond = beyond
        self._is_old = is_old
        self._marks: set[str] = set()
        self._written: dict[ClaimId, datetime] = {}
        self._commanded: set[str] = set()
        self._to_cancel: set[str] = set()
        self._to_stop: set[str] = set()
        self._adopted: set[str] = set()
        self._asked: dict[tuple[str, str], float] = {}
        self._taken_at: dict[str, float] = {}
        # Jobs that two people adopted at the same moment, by the content that came second: a plan gives such
        # a job to one content, reports it as missing for the other, and knows a cancel from one claim only.
        self._second: dict[tuple[str, str], Job] = {}
        self._by_hand: set[tuple[str, str]] = set()
        # New claims of a version that doesn't announce claims.
        self._unannounced: set[ClaimId] = set()
        # Commits of which a pass applied only some jobs: they need no verdict.
        self._in_part: set[str] = set()
        self._passes: dict[str, _Pass] = {}
        self._comparing: dict[str, bool] = {}
        claims.watch = self.written
        self._published = models and Published(world, models, repository, place, self.seen, self._wrong)

    # Events that the world reports.

    def began(self, commit: Commit, who: str, *, whole: bool, compares: bool) -> None:
        """Note that a pass begins with the checked-out commit, or with some of its jobs.

        Older versions don't compare the commit with the last applied commit.
        """
        if not whole:
            self._in_part.add(commit.sha)
        self._passes[who] = _Pass(commit, self._world.now)
        if self._published:
            self._published.began(commit, who)
        self._comparing[who] = compares

    def remembers(self, found: Mapping[ClaimId, Versioned], genesis: int, who: str) -> None:
        """Note that a short look begins, with the claims that the store's summary makes it skip."""
        self.seen["summaries read"] += bool(found)
        before, now = self._passes[who], self._world.now
        self._passes[who] = _Pass(before.commit, before.began, looks=True, looks_since=now, genesis=genesis)
        self.listed_claims(found, who, part=True)

    def looked(self, who: str, seen: Observation) -> None:
        """Check that a short look has read every claim that its plan depends on.

        These are the claims of the commit's desired jobs, the claims of live jobs in listings, and the claims
        that were open at the last full look.
        """
        self.seen["full looks" if seen.full else "short looks"] += 1
        if seen.full or seen.summary is None:
            return
        if seen.stored and seen.stored.now - seen.summary.taken > FULL_AFTER:
            self._wrong("look", f"{who} took a short look, and the last full one was at {seen.summary.taken}")
        one_pass = self._passes[who]
        if one_pass.genesis != self._claims.marks:
            self._wrong("look", f"{who} took a short look at a restored store")
        # The reconciler may have searched in the meantime for jobs that listings now show again.
        one_pass.unseen = [job for job in one_pass.unseen if self._world.is_blind_to(job)]
        began = self._world.time(one_pass.looks_since)
        wanted = {label_of(job.identity): job.manifest.reconcile.attempts for job in one_pass.commit.jobs}
        for id, found in self._claims.all().items():
            written = self._written.get(id, began)
            is_open = not (found.claim.ended or found.claim.gone) and written < began
            is_open &= id not in self._unannounced | self._claims.forgotten or written < seen.summary.taken
            is_wanted = id.attempt <= wanted.get(id.key, 0) and written < began
            is_live = (id.key, str(id.attempt)) in one_pass.live and written < began
            if (is_open or is_wanted or is_live) and id not in seen.observed.claims:
                self._wrong("look", f"{who} looked without the {found.claim.state} {found.claim.job_name}")

    def agree(self, short: Plan, full: Plan) -> None:
        """Check that a short look plans the actions of a full look, even while requests are in flight."""
        if self._beyond:
            return
        claims = self._claims.all()
        unknown = self._unannounced | self._claims.forgotten
        exempt = {claims[id].claim.base_name for id in unknown if id in claims}
        # Only a full look finds published objects that aren't as they were written.
        exempt |= {change.base_name for change in full.changes if _is_damaged(change)}
        # Only a full look finds an ended job of another origin, as no claim names it.
        others = {self._base_of(job) for job in self._world.jobs if job.origin != "create"}
        copies = {job.job_name for job in self._copies()}
        self.seen["plans compared"] += 1
        for plan in (short, full):
            self._say_what_was_overwritten(plan, self._world.now)
        plans = [
            {
                (change.action, change.job_name, change.is_new and change.base_name not in others)
                for change in plan.changes
                if change.action is not Action.NONE and change.base_name not in exempt
                if change.job_name not in copies
            }
            for plan in (short, full)
        ]
        if plans[0] != plans[1]:
            alone = [sorted(plans[0] - plans[1]), sorted(plans[1] - plans[0])]
            self._wrong("look", f"a short look plans {alone[0]}, and a full one {alone[1]}")

    def looks_alike(self, short: Plan, full: Plan) -> None:
        """Check that a short look gives the plan of a full look, once the world is quiet.

        Only a full look finds an ended copy of a job that no manifest asks for or that no claim names, and,
        if the services break their bounds, a job that appears after its claim was marked as gone.
        """
        if self._beyond:
            return
        copied = {self._base_of(job) for job in self._copies()}
        # So only it finds that published objects aren't as they were written.
        copied |= {change.base_name for change in full.changes if _is_damaged(change)}
        both = [[c for c in plan.changes if c.base_name not in copied] for plan in (short, full)]
        said = [[(c.action, c.job_name, c.stuck) for c in changes] for changes in both]
        drift = [
            {
                (d.kind, d.job_name)
                for d in plan.drift
                if d.kind is not DriftKind.OVERWRITTEN or d.base_name not in copied
            }
            for plan in (short, full)
        ]
        more = {kind for kind, _ in drift[0] ^ drift[1]}
        if (
            said[0] != said[1]
            or not drift[0] <= drift[1]
            or more - {DriftKind.DUPLICATE, DriftKind.UNPUBLISHED}
        ):
            self._wrong("look", f"{said[0]} {drift[0]} and in full {said[1]} {drift[1]}")

    def _copies(self) -> list[Job]:
        """Return the ended copies of jobs that no claim names: only a full look finds them."""
        named = {found.claim.resource for found in self._claims.all().values()}
        copies = (job for job in self._world.jobs if job.origin == "foreign" and job.state.ended)
        return [job for job in copies if job.name not in named]

    def read_tree(self, commit: str, who: str) -> None:
        """Note that a reconciler reads the last applied commit."""
        self.seen["clones behind"] += self._is_before(self._passes[who].commit.sha, commit)
        self._passes[who].tree, self._passes[who].cancelled = commit, ""

    def wrote_tree(self, commit: str, last: str, who: str) -> None:
        """Check a reconciler's record of its commit as applied, over another commit."""
        if self._is_before(commit, last):
            self._wrong("tree", f"{who} recorded {commit[:7]} as applied, which is older than {last[:7]}")

    def _is_before(self, commit: str, other: str) -> bool:
        """Return True if a commit of the repository is an ancestor of another commit."""
        return any(one.sha == other and commit in one.before for one in self._repository.history)

    def _may_cancel(self, job: Job, who: str) -> None:
        """Check that a reconciler cancels a replaced job only if a new read shows no newer applied commit."""
        one_pass = self._passes[who]
        if one_pass.cancelled == job.name or not self._comparing[who]:
            return  # a repetition of the same request
        if one_pass.tree is None or one_pass.cancelled:
            self._wrong("tree", f"{who} cancelled {job.name} without a look at what was applied last")
        elif self._is_before(one_pass.commit.sha, one_pass.tree):
            self._wrong("tree", f"{who} cancelled {job.name}, although {one_pass.tree[:7]} was applied")
        one_pass.cancelled = job.name

    def listed_claims(self, found: Mapping[ClaimId, Versioned], who: str, *, part: bool = False) -> None:
        """Note that a reconciler lists all claims, or a part of them."""
        if not self._beyond:
            return  # only services beyond their bounds omit jobs that they must show
        if not part:
            self._passes[who].looks = False
        by_name = {job.name: job for job in self._world.jobs}
        bound = [(id, one.claim) for id, one in found.items() if one.claim.state is ClaimState.BOUND]
        # Filters by label never show an adopted job.
        bound = [(id, claim) for id, claim in bound if not by_name[claim.resource].adopted_as]
        live = [(id, by_name[claim.resource]) for id, claim in bound if not (claim.ended or claim.gone)]
        ended = [(id, by_name[claim.resource]) for id, claim in bound if claim.ended]
        if part:
            live, ended = [*self._passes[who].named, *live], [*self._passes[who].ended, *ended]
        self._passes[who].named, self._passes[who].ended = live, ended

    def listed_live(self, found: Iterable[ActualJob], who: str) -> None:
        """Note that a reconciler lists the repository's live jobs."""
        own = [run for run in found if run.labels.get(INSTANCE, "") == self._place.instance]
        self._passes[who].live = {(run.labels.get(KEY, ""), run.labels.get(ATTEMPT, "")) for run in own}

    def listed(self, found: Iterable[ActualJob], kind: str, key: str, who: str) -> None:
        """Note a listing of the jobs of a key, or of all jobs if the key is ""."""
        if not self._beyond:
            return
        one_pass, world = self._passes[who], self._world
        old = world.now - world.bounds.visible.total_seconds() - _DATE
        named = [(id, job) for id, job in one_pass.named if job.made < old and not job.gone]
        if key:
            wanted = {label_of(job.identity) for job in one_pass.commit.jobs}
            alike = [job for id, job in named if id.key in wanted and job.kind == kind]
            one_pass.blind_looks[key] = [job for job in alike if world.is_blind_to(job)]
            if one_pass.looks and not one_pass.planned:
                shown = {run.resource for run in found}
                one_pass.found |= bool(shown)
                of_kind = [job for id, job in named if id.key == key and job.kind == kind]
                one_pass.left_out += [job for job in of_kind if job.name not in shown]
                ended = [(id, job) for id, job in one_pass.ended if job.made < old]
                one_pass.not_found += [job for id, job in ended if id.key == key]
                one_pass.unseen += [job for _, job in ended if world.is_blind_to(job)]
        else:
            shown = one_pass.shown = {run.resource for run in found}
            one_pass.left_out = [job for _, job in named if job.name not in shown]
            # ml jobs are read by name, and a read of a deleted job gives no information.
            ended = [job for _, job in one_pass.ended if job.api_version != ML_V1 and job.made < old]
            if not shown and not one_pass.named and not any(job.gone for _, job in one_pass.ended):
                one_pass.left_out += ended

    def handed_over(self, name: str, seconds: float, who: str) -> None:
        """Check the age of a create's credential at hand-over, in seconds of the sender's own clock."""
        if seconds > self._world.bounds.lifetime.total_seconds():
            self._wrong("paused", f"{who} sends {name} {seconds:.0f} s after it asked for the credential")

    def sent(self, request: Request) -> None:
        """Check a create as it leaves."""
        self.seen["creates sent"] += 1
        mark = request.body["labels"].get(REQUEST_ID, "")
        if not mark or mark in self._marks:
            self._wrong("I1", f"{request.sender} sent a create whose mark {mark!r} isn't new")
        self._marks.add(mark)
        if request.instance != self._place.instance:
            self._wrong("instance", f"{request.sender} sent a create for {request.instance or 'no instance'}")
        self._moved(request)
        self._wanted(request)
        self._sees(f"sent a create of {short_slot(request.slot)}", request.sender)
        self._looked(request)

    def _moved(self, request: Request) -> None:
        """Check that no attempt begins beside an older live job of its content than the environment's first.

        Such a job may be the environment's own. A listing that began later shows it, except during the delay
        that the bounds allow. Services beyond their bounds may omit it from any listing: without a claim, the
        environment doesn't know a job whose absence it could notice.
        """
        one_pass = self._passes[request.sender]
        key, began = request.slot[0], one_pass.began
        # An attempt that was claimed before this pass may continue: its request may have left.
        if self._begun.get(request.slot, began) < began:
            return
        # An adopted job counts too: it can't be distinguished from a request of the environment.
        own = [*self._ours(), *(job for job in self._world.jobs if job.name in self._adopted)]
        first = min((job.made for job in own), default=self._world.now)
        elsewhere = (job for job in ours(self._world.jobs) if job.instance != self._place.instance)
        seen = (job for job in elsewhere if not self._beyond or job.name in one_pass.shown)
        for job in seen:
            if job.slot[0] == key and job.live and job.made <= first and job.made + job.hidden < began:
                self._wrong("instance", f"{request.sender} sent a create beside {job.name}")

    def _wanted(self, request: Request) -> None:
        """Check that the sender's commit wants the job of a create: not suspended, with attempts left."""
        key, number = request.slot
        jobs = self._passes[request.sender].commit.jobs
        job = next((job for job in jobs if label_of(job.identity) == key), None)
        name = short_slot(request.slot)
        if job is None or job.manifest.reconcile.suspend:
            said = "suspended" if job else "not wanted"
            self._wrong("suspend", f"{request.sender} sent a create of {name}, which is {said}")
        elif int(number) > self._allowed(job, int(number)):
            most = job.manifest.reconcile.attempts
            self._wrong("attempts", f"{request.sender} sent a create of {name}, and attempts is {most}")
        elif int(number) > 1 and not self._failed_before(key, int(number)):
            self._wrong("attempts", f"{request.sender} sent a create of {name}, and none before has failed")
        elif self._is_stopped(key, int(number) - 1) and self._stops(key, int(number)) > _RETURNS:
            self._wrong("returns", f"{request.sender} sent a create of {name} after {_RETURNS} returns")
        elif request.slot not in self._by_hand and not self._beyond:
            self._tried(request)

    def _allowed(self, job: DesiredJob, number: int, *, since: float = inf) -> int:
        """Return the allowed submissions: attempts plus earlier submissions that used up no attempt."""
        key, attempts = label_of(job.identity), job.manifest.reconcile.attempts
        free = (
            self._unstarted(key, n, since) or (since == inf and self._ever(key, n)) for n in range(1, number)
        )
        is_local = self._place.engine == "local"
        return attempts + sum(map(bool, free)) * is_local + self._stops(key, number)

    def _stops(self, key: str, number: int) -> int:
        """Count the earlier attempts whose job an apply cancelled by a manifest's policy."""
        return sum(self._is_stopped(key, n) for n in range(1, number))

    def _is_stopped(self, key: str, number: int) -> bool:
        made = self._made(key, number)
        made += [self._second[slot]] if (slot := (key, str(number))) in self._second else []
        return any(job.state is State.CANCELLED and job.name in self._to_stop for job in made)

    def _ever(self, key: str, number: int) -> bool:
        """Return True if any job of an attempt failed in its set-up."""
        return any(job.unstarted and job.state is State.FAILED for job in self._made(key, number))

    def _unstarted(self, key: str, number: int, since: float) -> Job | None:
        """Return an attempt's only job, if it failed in its set-up and every listing since shows it."""
        made = self._made(key, number)
        shown = [job for job in made if not job.gone and job.made + job.hidden < since]
        return made[0] if len(made) == len(shown) == 1 and self._ever(key, number) else None

    def _made(self, key: str, number: int) -> list[Job]:
        return [job for job in self._world.jobs if job.slot == (key, str(number)) and self._is_ours(job)]

    def _tried(self, request: Request) -> None:
        """Check that creates after failed set-ups, unless a person asked, are neither many nor early."""
        key, number, since = request.slot[0], int(request.slot[1]), self._passes[request.sender].began
        before = [self._unstarted(key, n, since) for n in range(number - 1, 0, -1)]
        tried = [*takewhile(bool, before)] if self._place.engine == "local" else []
        name = short_slot(request.slot)
        self.seen["set-ups tried again"] += bool(tried)
        if len(tried) >= _TRIES:
            self._wrong(
                "set-up", f"{request.sender} sent a create of {name} after {len(tried)} failed set-ups"
            )
        passed = self._world.now - ((tried[0] and tried[0].ended) or 0.0) if tried else inf
        if passed < _BETWEEN_TRIES:
            self._wrong("set-up", f"{request.sender} sent a create of {name} after {passed:.0f} s")

    def planned(self, plan: Plan, who: str) -> None:
        """Note that a pass begins to execute this plan; its later searches don't belong to its look."""
        self._passes[who].planned, self._passes[who].tree = True, None
        cancels = [c for c in plan.changes if c.action is Action.CANCEL and c.actual]
        self._to_cancel |= {change.actual.resource for change in cancels if change.actual}
        self._to_stop |= {change.actual.resource for change in cancels if change.actual and not change.repair}
        self._own_cancels(plan)
        self._say_what_was_overwritten(plan, self._passes[who].began)

    def commanded(self, name: str) -> None:
        """Note that a person cancels a run with the tool's own command."""
        self.seen["cancels by command"] += 1
        self._commanded.add(name)
        self._to_cancel.add(name)

    def by_hand(self, plan: Plan) -> None:
        """Note that a person has started a pass with this plan."""
        self._by_hand |= {(change.key, str(change.attempt)) for change in plan.changes}

    def _failed_before(self, key: str, number: int) -> bool:
        """Return True if the previous attempt failed, or an apply cancelled it by a manifest's policy."""
        if self._is_stopped(key, number - 1):
            self.seen["returns"] += 1
            return True
        slot = key, str(number - 1)
        before = [job for job in self._world.jobs if job.slot == slot]
        before += [self._second[slot]] if slot in self._second else []
        return any(job.state is State.FAILED for job in before if self._is_ours(job))

    def _sees(self, did: str, who: str) -> None:
        """Check that a reconciler's action doesn't rest on a listing that omits a job named by a claim."""
        one_pass = self._passes[who]
        missing = [*one_pass.left_out]
        is_empty = one_pass.looks and not one_pass.found and not one_pass.named
        if is_empty and not any(job.gone for _, job in one_pass.ended):
            missing += [job for job in one_pass.not_found + one_pass.unseen if job.api_version != ML_V1]
        left_out = [job.name for job in missing if not job.gone]
        if left_out:
            self._wrong("blind", f"{who} {did} after a listing without {', '.join(left_out)}")

    def _looked(self, request: Request) -> None:
        """Check that a second request for an attempt doesn't rest on a recognizably blind search.

        After a refusal the search is only a precaution against a wrong refusal.
        """
        if request.slot in self._refused:
            return
        one_pass, world = self._passes[request.sender], self._world
        there = [job for job in self._ours() if job.slot == request.slot and world.is_blind_to(job)]
        witnesses = [job for job in one_pass.blind_looks.get(request.slot[0], ()) if not job.gone]
        if there and any(world.is_blind_to(job) for job in witnesses):
            said = f"{there[0].name} is there, and listings also leave out {witnesses[0].name}"
            self._wrong("blind", f"{request.sender} sent a create again: {said}")

    def accepted(self, request: Request) -> None:
        """Check a create as the service accepts its head."""
        if self._world.now > request.expires and self._world.expires:
            self._wrong("head", f"a create of {request.sender} was accepted after its credential's end")

    def whole(self, request: Request, seconds: float) -> None:
        """Check a create as its body leaves, a number of seconds after its head."""
        self.seen["bodies sent apart"] += seconds > 0
        if seconds > TIMEOUT:
            self._wrong("paused", f"{request.sender} sent a body {seconds:.0f} s after its head")

    def made(self, job: Job) -> None:
        """Check a new job."""
        if job.origin != "create":
            return
        self.seen["jobs made"] += 1
        key, attempt = job.slot
        taken = [other for other in self._world.jobs if other.adopted_as == job.slot]
        if taken and self._is_ours(taken[0]):
            self._wrong("adopt", f"{job.name} was made although {taken[0].name} is adopted")
        slot = [other for other in self._ours() if other.slot == job.slot]
        if len(slot) > 1 and not self._beyond:
            names = " and ".join(other.name for other in slot)
            self._wrong("I1", f"two jobs of key {key[:6]}, attempt {attempt}: {names}")
        if int(attempt) > 1:
            self.seen["retries"] += 1
            if not self._failed_before(key, int(attempt)):
                self._wrong("I1", f"{job.name} is attempt {attempt}, and none before it has failed")

    def wrote(self, job: Job, folder: str) -> None:
        """Check that the job that begins to write to a folder has it for its content alone."""
        if job.origin != "create" or self._repository.outputs is not Outputs.OWN:
            return
        before = [other for other in self._world.folders[folder] if other.origin == "create"]
        if any(other.slot[0] != job.slot[0] for other in before):
            self._wrong("folder", f"{job.name} writes to {folder} as {before[0].name} of other content did")

    def _say_what_was_overwritten(self, plan: Plan, since: float) -> None:
        """Check what a plan says about results in shared folders, for a look that began at a moment."""
        found = [drift for drift in plan.drift if drift.kind is DriftKind.OVERWRITTEN]
        for drift in found:
            self._is_overwritten(drift)
        for change in plan.changes:
            if change.base_name not in {drift.base_name for drift in found}:
                self._is_in_its_folder(change, since)

    def _is_overwritten(self, drift: Drift) -> None:
        """Check that the job of a finding wrote to the folder of the desired content's job after it."""
        self.seen["results overwritten"] += 1
        about = drift.detail.values
        writers = self._world.folders.get(str(about["folder"]), [])
        names = [job.job_name for job in writers]
        later = names[names.index(drift.job_name) + 1 :] if drift.job_name in names else []
        ends = [job.ended or inf for job in writers if job.job_name == drift.job_name]
        later += [job.job_name for job in writers if ends and (job.ended or inf) > min(ends)]
        if about["job_name"] not in later:
            self._wrong("overwritten", f"{drift.job_name} is overwritten, and {about['folder']} has {names}")

    def _is_in_its_folder(self, change: Change, since: float) -> None:
        """Check that the result of a job in sync is in its folder, as far as a look could tell.

        Only a full look finds the ended jobs that no claim names, and the claims of older versions.
        """
        run, done = change.actual, (None, NotDone.REVERTED)
        is_in_sync = change.action is Action.NONE and change.desired is not None and change.stuck in done
        if self._beyond or not is_in_sync or run is None or run.state is not State.SUCCEEDED:
            return
        job = next(job for job in self._world.jobs if job.name == run.resource)
        writers = self._world.folders.get(folder_of(job), [])
        claims = self._claims.all()
        unknown = self._unannounced | self._claims.forgotten
        exempt = {claims[id].claim.base_name for id in unknown if id in claims}
        if job not in writers or job in self._second.values() or change.base_name in exempt:
            return
        self.seen["results in a folder"] += 1
        later = writers[writers.index(job) + 1 :]
        later = [other for other in later if self._is_known(other, since) and other.slot[0] != change.key]
        if later:
            self._wrong("overwritten", f"{job.name} is in sync, and {later[-1].name} wrote to its folder")

    def _is_known(self, job: Job, since: float) -> bool:
        """Return True if a look that began at a moment shows that a job has started."""
        began = job.made + job.hidden if job.origin == "create" else self._taken_at.get(job.name, inf)
        is_started = job.started is not None and job.started < since
        return self._is_ours(job) and began < since and is_started and not job.gone

    def cancelled(self, job: Job, who: str) -> None:
        """Check a reconciler's cancel as it arrives."""
        self.seen["cancels"] += 1
        if not self._is_ours(job):
            self._wrong("I1", f"{who} cancelled {job.name}, which is {job.origin}")
            return
        self._sees(f"cancelled {job.name}", who)
        # A person may cancel any run of the repository.
        if job.name in self._commanded:
            return
        one_pass = self._passes[who]
        slot = [other for other in self._ours() if other.slot == job.slot]
        self.seen["repairs"] += len(slot) > 1
        # The older job may have failed since this pass looked.
        older = slot[: slot.index(job)] if job in slot else slot
        if any(other.counted(one_pass.began) for other in older):
            return
        self._may_cancel(job, who)
        wanted = next((j for j in one_pass.commit.jobs if j.manifest.name == self._base_of(job)), None)
        if wanted is None:
            self._unwanted(job, who)
        elif job in self._second.values():
            return  # of two contents, a plan gives the job to only one
        elif label_of(wanted.identity) == job.slot[0]:
            self._wrong("elder", f"{who} cancelled {job.name}, which is wanted, and none older stays")
        else:
            self._replaced(job, wanted, who)

    def _unwanted(self, job: Job, who: str) -> None:
        """Check that a job without a manifest is cancelled only if its last manifest allowed it."""
        asked = self._repository.asked
        mine = [j for j in asked if label_of(j.identity) == job.slot[0]]
        if not any(j.manifest.reconcile.on_delete == "cancel" for j in mine):
            self._wrong(
                "successor", f"{who} cancelled {job.name}, whose manifest never said onDelete: cancel"
            )

    def _replaced(self, job: Job, wanted: DesiredJob, who: str) -> None:
        """Check that a replaced job is cancelled only if its manifest allows it and the new content runs."""
        key, reconcile = label_of(wanted.identity), wanted.manifest.reconcile
        if reconcile.on_change != "cancel" or reconcile.suspend:
            said = "suspended" if reconcile.suspend else "onChange: keep"
            self._wrong("successor", f"{who} cancelled {job.name} for {wanted.job_name}, which is {said}")
        elif not any(other.slot[0] == key and self._is_ours(other) for other in self._world.jobs) and not any(
            second == key for second, _ in self._second
        ):
            self._wrong("successor", f"{who} cancelled {job.name} before there was a {wanted.job_name}")

    def _base_of(self, job: Job) -> str:
        """Return the name of the manifest that a job was made from."""
        asked = self._repository.asked
        return next((one.manifest.name for one in asked if label_of(one.identity) == job.slot[0]), "")

    def _is_ours(self, job: Job) -> bool:
        is_here = job.instance == self._place.instance
        is_taken = job.adopted_as is not None and not self._place.instance
        return (job.origin == "create" and is_here) or job.name in self._adopted or is_taken

    def _ours(self) -> list[Job]:
        """Return the jobs that this environment's reconcilers created."""
        return [job for job in ours(self._world.jobs) if job.instance == self._place.instance]

    def written(self, before: Claim | None, claim: Claim) -> None:
        """Check a claim as it is written."""
        self.seen[f"claims {claim.state}"] += 1
        self._written[claim.id] = self._world.time(self._world.now)
        if before is None and self._is_old(claim.owner):
            self._unannounced.add(claim.id)
        if before is not None and before.state is ClaimState.BOUND and claim.state is not ClaimState.BOUND:
            self._wrong("I2", f"the claim of {claim.job_name} was bound, and is {claim.state} now")
        slot = claim.id.key, str(claim.id.attempt)
        if claim.state is ClaimState.PENDING:
            self._begun.setdefault(slot, self._world.now)
        if claim.state is ClaimState.REJECTED:
            self._refused.add(slot)
        elif before is not None and before.state is not ClaimState.REJECTED:
            self._refused.discard(slot)
        if claim.state is ClaimState.PENDING and before is not None and before.state is ClaimState.PENDING:
            self.seen["takeovers"] += 1
        if claim.state is ClaimState.BOUND:
            self._bound(before, claim)

    def _bound(self, before: Claim | None, claim: Claim) -> None:
        job = next((job for job in self._world.jobs if job.name == claim.resource), None)
        if job is not None and job.origin == "person":
            self._taken(before, claim, job)
            return
        if job is not None and job.origin == "create" and job.instance != self._place.instance:
            self._wrong("instance", f"{claim.owner} bound {claim.job_name} to {job.name} of another one")
        if job is None or job.slot != (claim.id.key, str(claim.id.attempt)):
            self._wrong("I2", f"the claim of {claim.job_name} names {claim.resource}, which isn't its job")
            return
        if before is None or not before.resource:
            self.seen["adoptions"] += job.sender != claim.owner
        if job.origin == "create":
            return
        # Without a claim, a foreign job with our labels can't be distinguished from ours.
        if before is None and job.origin == "foreign":
            self._adopted.add(job.name)
        elif job.name not in self._adopted:
            self._wrong("I1", f"{claim.owner} bound {claim.job_name} to {job.name}, which is {job.origin}")

    @property
    def _of_two(self) -> set[str]:
        """The names of the jobs that two contents have."""
        return {job.job_name for job in self._second.values()}

    def adopts(self, job: Job, who: str) -> None:
        """Note that a person adopts a job, on the basis of a reconciler's current pass."""
        self.seen["adoptions asked for"] += 1
        self._asked.setdefault((job.name, who), self._passes[who].began)

    def _taken(self, before: Claim | None, claim: Claim, job: Job) -> None:
        """Check a claim on a job made by a person: the adoption was requested, and no attempt had begun."""
        slot = claim.id.key, str(claim.id.attempt)
        began = self._asked.get((job.name, claim.owner))
        if job.adopted_as is not None:
            # Of two simultaneous adoptions for two contents, neither sees the other's claim.
            is_known = began is None or self._taken_at[job.name] < began
            if job.adopted_as != slot and before is None and is_known:
                self._wrong("adopt", f"{claim.owner} adopted {job.name} for a second content")
            self._second[slot] = job
            return
        asked = self._repository.asked
        wanted = next((one for one in asked if label_of(one.identity) == claim.id.key), None)
        if before is not None or slot in self._begun or any(j.slot == slot for j in self._ours()):
            self._wrong("adopt", f"{claim.owner} adopted {job.name}, and the content was begun before")
        if began is None or (job.ended is not None and job.ended < began):
            self._wrong("adopt", f"{claim.owner} adopted {job.name}, which had ended or nobody asked for")
        if wanted is None or _plain_body(wanted, job.job_name) != job.body or claim.id.attempt != 1:
            self._wrong("adopt", f"{claim.owner} adopted {job.name}, which has other content")
        self.seen["jobs adopted"] += 1
        job.adopted_as, self._taken_at[job.name] = slot, self._world.now

    def told(self, outcome: Outcome, who: str) -> None:
        """Check that an apply reports an end of a cancelled job only if the job has that end."""
        run = outcome.change.actual
        if outcome.change.action is not Action.CANCEL or run is None or outcome.state is None:
            return
        job = next(job for job in self._world.jobs if job.name == run.resource)
        if outcome.state.ended and outcome.state is not job.state:
            self._wrong("I3", f"{who} says that {job.name} ended {outcome.state}, and it is {job.state}")

    def saw(self, runs: Iterable[ActualJob]) -> None:
        """Count, per job, the finished passes that kept the job's end in their claims."""
        ended = {run.resource for run in runs if run.state.ended}
        for job in self._world.jobs:
            job.told += job.name in ended

    def posted(self, sha: str, status: dict[str, Any], who: str, there: dict[str, Any] | None) -> None:
        """Check a status at a commit, and the status that its poster expected to replace."""
        self.seen["statuses"] += 1
        if self._published and not self._is_old(who):
            self._published.posted(sha, status, who)
        if there and status["state"] == "pending" and there["state"] != "pending":
            old, new = _MARK.search(there["description"]), _MARK.search(status["description"])
            if old and new and old[1] == new[1]:
                self._wrong("I3", f"{who} posted {status['description']!r} over {there['description']!r}")
        if status["state"] != "success" or not self._is_of_job(status):
            return
        name = status["context"].removeprefix(self._place.contexts.of_job(""))
        commit = next(commit for commit in self._repository.history if commit.sha == sha)
        if status["description"].endswith(" before it ran"):
            # The first commit with a status counts all of its jobs.
            named = [job for job in _live(commit) if job.manifest.name == name]
            if not any(self._is_replaced(commit, job) for job in named):
                self._wrong("I3", f"{who} posted {status['description']!r} about a job that still stands")
            return
        mark = _MARK.search(status["description"])
        runs = [job for job in self._world.jobs if mark and job.job_name.endswith("_" + mark[1])]
        if not mark:
            # The name of an adopted job has no hash.
            runs = [job for job in self._world.jobs if job.adopted_as and self._base_of(job) == name]
        if not any(job.state is State.SUCCEEDED and self._is_ours(job) for job in runs):
            self._wrong("I3", f"{who} posted {status['description']!r}, and no such job has succeeded")

    def known_try(self, job: Job) -> str | None:
        """Return a request mark from the claim of a job's labels."""
        key, attempt = job.slot
        return next(
            (
                claim.request_ids[-1]
                for id, claim in self._by_id().items()
                if id == (key, attempt) and claim.request_ids
            ),
            None,
        )

    # Checks without faults.

    def passed(self, since: float) -> None:
        """Check that a finished pass without a fault left no visible job twice and no claim pending."""
        self._ripe(since)
        by_slot: dict[tuple[str, str], list[Job]] = defaultdict(list)
        for job in self._ours():
            if job.live and job.made + job.hidden < since:
                by_slot[job.slot].append(job)
        for (key, attempt), jobs in by_slot.items():
            if len(jobs) > 1:
                names = " and ".join(job.name for job in jobs)
                self._wrong("I1", f"after a whole pass key {key[:6]}, attempt {attempt} still has {names}")

    def at_the_end(self, plan: Plan) -> None:
        """Check the final state, once the plan is empty."""
        for job in self._repository.head.jobs:
            if not job.manifest.reconcile.suspend:
                self._settled(job, plan)
                self._told(job, plan)
        overwritten = {drift.base_name for drift in plan.drift if drift.kind is DriftKind.OVERWRITTEN}
        unpublished = self._published.keys_of_unpublished(plan) if self._published else set()
        for commit in self._repository.history:
            self._verdict(commit, overwritten, unpublished)
        if self._published:
            self._published.at_the_end(plan, self._statuses.last)
        self._findings(plan)
        self._own_cancels(plan)
        self._cancelled_outside(plan)
        self._returned(plan)
        if self._beyond:
            self._kept()

    def published(self, state: TargetState, who: str) -> None:
        """Note that a pass that publishes ends with this state."""
        if self._published:
            self._published.ended(state, who)

    def never_still(self, passes: int, plan: Plan | None) -> None:
        """Report that changes remain after the last pass."""
        left = "it can't be planned"
        if plan:
            left = "; ".join(f"{c.action} {c.job_name} ({reason_text(c.reason)})" for c in plan.changes)
        self._wrong("I7", f"after {passes} whole passes without a fault: {left}")

    def endless(self, steps: int) -> None:
        """Report that some reconcilers haven't ended after the maximum number of steps."""
        self._wrong("I7", f"after {steps} steps somebody still goes on")

    def fell(self, who: str, error: str) -> None:
        """Report an exception that the code doesn't handle."""
        self._wrong("I6", f"{who}: {error}")

    def _settled(self, job: DesiredJob, plan: Plan) -> None:
        """Check that each desired job is bound, or held for a reason, or blocked in the plan."""
        label = label_of(job.identity)
        claims = [found.claim for id, found in self._claims.all().items() if id.key == label]
        if not claims and not self._beside(job, plan):
            self._wrong("I2", f"{job.job_name} is wanted, and has no claim")
        failed = {claim.id.attempt for claim in claims if claim.may_be_followed}
        # A further attempt may become unwanted before it led to a job.
        called_for = [c for c in claims if c.id.attempt == 1 or c.id.attempt - 1 in failed]
        for claim in (
            c for c in called_for if c.id.attempt <= self._allowed(job, c.id.attempt, since=self._world.now)
        ):
            if claim.state is ClaimState.HELD and not self._may_be_held(claim):
                self._wrong("I2", f"{claim.job_name} is held without a cause: {claim.error}")
            elif claim.state not in (ClaimState.BOUND, ClaimState.HELD):
                self._wrong("I7", f"{claim.job_name} is still {claim.state}")

    def _beside(self, job: DesiredJob, plan: Plan) -> bool:
        """Return True if a foreign job with its labels blocks the job."""
        label = label_of(job.identity)
        blocked = any(change.action is Action.BLOCKED and change.desired is job for change in plan.changes)
        return blocked and any(j.origin == "foreign" and j.slot[0] == label for j in self._world.jobs)

    def _may_be_held(self, claim: Claim) -> bool:
        slot = (claim.id.key, str(claim.id.attempt))
        alike = any(
            job.origin != "create"
            and (job.job_name == claim.job_name if job.kind == "Job" else job.slot == slot)
            and (job.kind == "Job" or job.labels[SOURCE] == OURS)
            for job in self._world.jobs
        )
        return bool(claim.error) and (alike or len(claim.request_ids) >= MOST_REQUEST_IDS)

    def _told(self, job: DesiredJob, plan: Plan) -> None:
        """Check that the commit that asked for a job shows the state of its newest attempt."""
        label = label_of(job.identity)
        claims = [found.claim for id, found in self._claims.all().items() if id.key == label]
        newest = max(claims, key=lambda claim: claim.id.attempt, default=None)
        bound = next((j for j in self._world.jobs if newest and j.name == newest.resource), None)
        is_own = bound is not None and (bound.origin == "create" or bound.adopted_as == (label, "1"))
        if bound is None or bound.gone or not is_own or bound in self._second.values():
            return
        # A commit that wanted stopped content again gets the status of the resubmitted job.
        turn: list[Claim] = []
        for claim in sorted(claims, key=lambda claim: claim.id.attempt):
            if turn and turn[-1].is_stopped and turn[0].commit != claim.commit:
                turn = []
            turn.append(claim)
        first = turn[0]
        if not first.commit and bound.adopted_as is None:
            return  # of a work tree that matches no commit
        context = self._place.contexts.of_job(job.manifest.name)
        # An adopted job has no submitting commit: the commit that brought its manifest shows it.
        sha = first.commit or self._bringer(job)
        shown = self._statuses.last(sha, context)
        blocked = any(c.action is Action.BLOCKED and c.desired is job for c in plan.changes)
        if any(c.stuck is NotDone.OVERWRITTEN and c.desired is job for c in plan.changes):
            # The newest commit shows it, and so does the one that brought the content back.
            is_said = shown is not None and shown["description"].startswith(_OVERWRITTEN)
            blocked |= sha == self._repository.head.sha or (is_said and sha == self._bringer(job))
        if self._published and self._published.is_unpublished(job, plan):
            return  # checked with its publication
        expected = "error" if blocked or self._twice(turn) else _SHOWN.get(bound.state, "pending")
        if shown is None or shown["state"] != expected:
            self._wrong("I3", f"{bound.job_name} is {bound.state}, and its commit shows {shown}")

    def _verdict(self, commit: Commit, overwritten: Collection[str], unpublished: AbstractSet[str]) -> None:
        """Check that a commit with a status has a verdict, and that the verdict isn't pending.

        Args:
            commit: The commit.
            overwritten: The names of the manifests whose results other content overwrote.
            unpublished: The keys of the contents whose models aren't in their places.
        """
        shown = self._statuses.last(commit.sha, self._place.overall)
        if shown is None:
            if commit.sha not in self._in_part and any(
                self._statuses.last(earlier.sha, self._place.overall) for earlier in self._before(commit)
            ):
                self._wrong("I3", f"commit {commit.sha[:7]} was applied or passed over, and has no verdict")
            return
        if shown["state"] == "pending":
            self._wrong("I3", f"nothing runs, and commit {commit.sha[:7]} shows {shown['description']!r}")
        done = [job for job in self._world.jobs if job.state is State.SUCCEEDED]
        succeeded = {job.slot[0] for job in done if self._is_ours(job) or not self._place.instance}
        succeeded |= {key for (key, _), job in self._second.items() if job in done}
        brought = [job for job in self._brought(commit) if not self._never_ran(commit, job)]
        missing = [job.job_name for job in brought if label_of(job.identity) not in succeeded]
        if shown["state"] == "success" and missing:
            self._wrong("I3", f"commit {commit.sha[:7]} is green, and {missing[0]} has not succeeded")
        if shown["description"].startswith(_OVERWRITTEN) and any(
            job.manifest.name in overwritten for job in self._brought(commit)
        ):
            return
        if not unpublished.isdisjoint(label_of(job.identity) for job in commit.jobs):
            return  # its error may be that of a publication
        if shown["state"] in ("failure", "error") and self._has_succeeded(commit):
            self._wrong("I3", f"all jobs of commit {commit.sha[:7]} succeeded: {shown['description']!r}")

    def _brought(self, commit: Commit) -> list[DesiredJob]:
        """Return the jobs whose content the previous commit lacks, suspends, or gives fewer attempts."""
        before = {job.identity: job for last in self._before(commit)[-1:] for job in _live(last)}
        return [
            job
            for job in _live(commit)
            if job.identity not in before
            or job.manifest.reconcile.attempts > before[job.identity].manifest.reconcile.attempts
        ]

    def _is_replaced(self, commit: Commit, job: DesiredJob) -> bool:
        """Return True if a later commit lacks a job's content."""
        history = self._repository.history
        later = history[history.index(commit) + 1 :]
        return any(job.identity not in {other.identity for other in _live(one)} for one in later)

    def _never_ran(self, commit: Commit, job: DesiredJob) -> bool:
        """Return True if a later commit replaced a job's content, never submitted for this commit."""
        label = label_of(job.identity)
        claims = self._claims.all().items()
        return self._is_replaced(commit, job) and not any(
            id.key == label and found.claim.commit == commit.sha for id, found in claims
        )

    def _bringer(self, job: DesiredJob) -> str:
        """Return the commit since which the newest commit's content of a job is unchanged."""
        sha = ""
        for commit in reversed(self._repository.history):
            if job.identity not in {other.identity for other in _live(commit)}:
                break
            sha = commit.sha
        return sha

    def _has_succeeded(self, commit: Commit) -> bool:
        """Return True if all jobs of a commit stayed desired, and their last attempts succeeded."""
        keys = {label_of(job.identity) for job in commit.jobs}
        history = self._repository.history
        for later in history[history.index(commit) :]:
            if not keys <= {label_of(job.identity) for job in _live(later)}:
                return False
        claims = [found.claim for id, found in self._claims.all().items() if id.key in keys]
        last = {claim.id.key: claim for claim in sorted(claims, key=lambda claim: claim.id.attempt)}
        if any(claim.is_stopped for claim in claims):
            return False  # a commit keeps the end that its run recorded
        ended = [claim.ended for claim in last.values() if claim.state is ClaimState.BOUND]
        is_whole = len(ended) == len(keys) and all(state is State.SUCCEEDED for state in ended)
        return is_whole and not self._twice(claims) and self._is_told(commit)

    def _is_told(self, commit: Commit) -> bool:
        """Return True if a commit has a status of this environment."""
        own = (self._place.overall, self._place.contexts.drift)
        statuses = self._statuses.newest_first(commit.sha)
        return any(self._is_of_job(status) or status["context"] in own for status in statuses)

    def _is_of_job(self, status: dict[str, Any]) -> bool:
        """Return True if a status belongs to a job of this environment."""
        context: str = status["context"]
        return context.startswith(self._place.contexts.of_job(""))

    def _before(self, commit: Commit) -> list[Commit]:
        history = self._repository.history
        return history[: history.index(commit)]

    def _twice(self, claims: Iterable[Claim]) -> bool:
        """Return True if an attempt of these claims has two visible jobs."""
        marks = {mark for claim in claims for mark in claim.request_ids}
        made = [job for job in self._ours() if not job.gone and job.labels.get(REQUEST_ID) in marks]
        return len({job.slot for job in made}) < len(made)

    def _findings(self, plan: Plan) -> None:
        """Check that each finding has a cause."""
        counts = self._world.faults.counts
        causes = {
            DriftKind.CANCELLED_OUTSIDE: ["cancelled by a person"],
            DriftKind.DELETED_OUTSIDE: ["deleted by a person", "record dropped", "foreign job deleted"],
            DriftKind.UNPUBLISHED: ["published file deleted", "late writer"],
            DriftKind.DUPLICATE: ["foreign copy", "foreign job with other content"],
        }
        # Of each plan, an overwritten result is checked by itself.
        for finding in (one for one in plan.drift if one.kind is not DriftKind.OVERWRITTEN):
            caused = any(counts[cause] for cause in causes.get(finding.kind, []))
            if finding.kind is DriftKind.DELETED_OUTSIDE:
                known = [job for job in self._ours() if job.told > _TOLD]
                caused &= all(job.job_name != finding.job_name for job in known)
            if finding.kind is DriftKind.CANCELLED_OUTSIDE and self._beyond:
                # Of two jobs the younger is cancelled, and it counts if the service drops the other.
                caused |= sum(job.job_name == finding.job_name for job in self._world.jobs) > 1
            caused |= finding.job_name in self._of_two
            if not caused and not (self._beyond and finding.kind is DriftKind.DUPLICATE):
                self._wrong(
                    "I8",
                    f"{finding.kind} {finding.job_name} is found without a cause: "
                    f"{note_text(finding.detail)}",
                )

    def _own_cancels(self, plan: Plan) -> None:
        """Check that a run that only a reconciler cancelled isn't a finding."""
        for finding in plan.drift:
            # Without its claim, nothing can say who cancelled a job.
            is_recorded = not self._world.faults.counts["bucket emptied"]
            if finding.kind is DriftKind.CANCELLED_OUTSIDE and finding.job_name not in self._of_two:
                self.seen["cancels outside"] += 1
                alike = [job for job in self._world.jobs if job.job_name == finding.job_name]
                if is_recorded and all(job.asked_by not in ("", PERSON) for job in alike):
                    self._wrong("I8", f"{finding.job_name} was cancelled by {alike[0].asked_by}, not outside")

    def _returned(self, plan: Plan) -> None:
        """Check that desired content that only reconcilers cancelled, for other content, runs again."""
        for change in plan.changes:
            if change.desired is None or change.action is Action.BLOCKED:
                continue
            key = label_of(change.desired.identity)
            claims = [found.claim for id, found in self._claims.all().items() if id.key == key]
            last = max(claims, key=lambda claim: claim.id.attempt, default=None)
            job = next((job for job in self._ours() if last and job.name == last.resource), None)
            if last is None or job is None or job.gone or change.desired.manifest.reconcile.suspend:
                continue
            is_own = job.asked_by not in ("", PERSON) and job.name in self._to_stop - self._commanded
            is_own &= job.state is State.CANCELLED and len(self._made(key, last.id.attempt)) == 1
            if is_own and self._stops(key, last.id.attempt + 1) <= _RETURNS:
                self._wrong("returns", f"{job.asked_by} cancelled {job.name}, and it never came back")

    def _cancelled_outside(self, plan: Plan) -> None:
        """Check that a cancel by a person is a finding, unless a reconciler was about to cancel the job."""
        wanted = {
            label_of(j.identity) for j in self._repository.head.jobs if not j.manifest.reconcile.suspend
        }
        found = {drift.job_name for drift in plan.drift if drift.kind is DriftKind.CANCELLED_OUTSIDE}
        bound = {one.claim.resource for one in self._claims.all().values()}
        for job in self._ours():
            is_outside = job.asked_by == PERSON and job.name not in self._to_cancel
            is_outside &= job.state is State.CANCELLED and not job.gone and job.name in bound
            if is_outside and job.slot[0] in wanted and job.job_name not in found:
                self._wrong("I8", f"{job.name} was cancelled outside, and is no finding")

    def _kept(self) -> None:
        """Check that, of two jobs, a claim names the job that stays."""
        for id, found in self._claims.all().items():
            slot = (id.key, str(id.attempt))
            jobs = [job for job in self._ours() if job.slot == slot and not job.gone]
            stay = [job.name for job in jobs if job.state not in (State.FAILED, State.CANCELLED)]
            claim = found.claim
            if len(jobs) > 1 and stay and claim.state is ClaimState.BOUND and claim.resource not in stay:
                self._wrong("I1", f"{claim.job_name} names {claim.resource}, and {stay[0]} is what stayed")

    def _ripe(self, since: float) -> None:
        """Check that a pass settled each claim that could be settled at its beginning."""
        wanted = {
            label_of(job.identity): job.manifest.reconcile.attempts
            for job in self._repository.head.jobs
            if not job.manifest.reconcile.suspend
        }
        bounds = self._world.bounds
        latest = self._world.time(since) - bounds.executes - bounds.visible
        for id, found in self._claims.all().items():
            claim = found.claim
            pending = claim.state is ClaimState.PENDING and id.attempt <= wanted.get(id.key, 0)
            if pending and claim.credential_expiry is not None and claim.credential_expiry < latest:
                self._wrong("I7", f"a whole pass left {claim.job_name} pending, though it could be settled")

    def _by_id(self) -> dict[tuple[str, str], Claim]:
        return {(id.key, str(id.attempt)): found.claim for id, found in self._claims.all().items()}

    def _wrong(self, invariant: str, what: str) -> None:
        self.violations.append(f"{invariant}: {what}")
        self._world.trace("checker", f"VIOLATION {invariant}: {what}")


def _is_damaged(change: Change) -> bool:
    return change.publication is not None and change.reason.code in DAMAGED


def _plain_body(job: DesiredJob, name: str) -> JsonObject:
    """Return the body of a create without labels, as a person would send it."""
    manifest = job.manifest
    return engine_spec(manifest.api_version).body(manifest.kind, job.spec, name, {})


class Checkers:
    """Checkers of all places: each receives only the events of its own place."""

    def __init__(self, by_instance: Mapping[str, Checker]) -> None:
        self._by_instance = by_instance
        self._of: dict[str, Checker] = {}

    def enters(self, who: str, instance: str) -> None:
        """Note that a reconciler works for an instance."""
        self._of[who] = self._by_instance[instance]

    @property
    def violations(self) -> list[str]:
        """The violations of all checkers."""
        return [said for checker in self._by_instance.values() for said in checker.violations]

    @property
    def seen(self) -> Counter[str]:
        """The sums of all checkers' counters."""
        return sum((checker.seen for checker in self._by_instance.values()), Counter[str]())

    def began(self, commit: Commit, who: str, *, whole: bool, compares: bool) -> None:
        self._of[who].began(commit, who, whole=whole, compares=compares)

    def remembers(self, found: Mapping[ClaimId, Versioned], genesis: int, who: str) -> None:
        self._of[who].remembers(found, genesis, who)

    def looked(self, who: str, seen: Observation) -> None:
        self._of[who].looked(who, seen)

    def agree(self, who: str, short: Plan, full: Plan) -> None:
        self._of[who].agree(short, full)

    def listed_claims(self, found: Mapping[ClaimId, Versioned], who: str, *, part: bool = False) -> None:
        self._of[who].listed_claims(found, who, part=part)

    def listed_live(self, found: Iterable[ActualJob], who: str) -> None:
        self._of[who].listed_live(found, who)

    def listed(self, found: Iterable[ActualJob], kind: str, key: str, who: str) -> None:
        self._of[who].listed(found, kind, key, who)

    def handed_over(self, name: str, seconds: float, who: str) -> None:
        self._of[who].handed_over(name, seconds, who)

    def sent(self, request: Request) -> None:
        self._of[request.sender].sent(request)

    def accepted(self, request: Request) -> None:
        self._of[request.sender].accepted(request)

    def whole(self, request: Request, seconds: float) -> None:
        self._of[request.sender].whole(request, seconds)

    def made(self, job: Job) -> None:
        self._by_instance.get(job.instance, self._by_instance[""]).made(job)

    def wrote(self, job: Job, folder: str) -> None:
        self._by_instance.get(job.instance, self._by_instance[""]).wrote(job, folder)

    def cancelled(self, job: Job, who: str) -> None:
        self._of[who].cancelled(job, who)

    def told(self, outcome: Outcome, who: str) -> None:
        self._of[who].told(outcome, who)

    def saw(self, runs: Iterable[ActualJob]) -> None:
        self._by_instance[""].saw(runs)

    def posted(self, sha: str, status: dict[str, Any], who: str, there: dict[str, Any] | None) -> None:
        self._of[who].posted(sha, status, who, there)

    def known_try(self, job: Job) -> str | None:
        return self._by_instance.get(job.instance, self._by_instance[""]).known_try(job)

    def adopts(self, job: Job, who: str) -> None:
        self._of[who].adopts(job, who)

    def by_hand(self, plan: Plan, who: str) -> None:
        self._of[who].by_hand(plan)

    def read_tree(self, commit: str, who: str) -> None:
        self._of[who].read_tree(commit, who)

    def wrote_tree(self, commit: str, last: str, who: str) -> None:
        self._of[who].wrote_tree(commit, last, who)

    def planned(self, plan: Plan, who: str) -> None:
        self._of[who].planned(plan, who)

    def commanded(self, name: str, who: str) -> None:
        self._of[who].commanded(name)

    def fell(self, who: str, error: str) -> None:
        self._of[who].fell(who, error)

    def published(self, state: TargetState, who: str) -> None:
        self._of[who].published(state, who)

    def endless(self, steps: int) -> None:
        self._by_instance[""].endless(steps)
