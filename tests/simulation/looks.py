"""Differential test of looks: after any events, a short look leads to the same plan as a full look.

Processes act one at a time, except just before a process writes a claim: there, others may overtake it, or
it may die. At that point a summary can be made from a look that misses the claim.
"""

from __future__ import annotations

import gzip
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from hashlib import sha256

from msgspec.structs import replace

from reconciler.base.errors import ReconcilerError, ServiceError
from reconciler.model.claim import Claim, ClaimId
from reconciler.model.job import State
from reconciler.model.manifest import Reconcile
from reconciler.model.naming import job_name
from reconciler.model.plan import Action, DesiredJob, Plan, Target
from reconciler.model.ports import Place, Ports, Refused, Unknown, Versioned
from reconciler.operations.execute import Applier
from reconciler.operations.observed_state import comparable_state
from reconciler.operations.plan import wanted_of
from reconciler.planning.planner import make_plan
from reconciler.submission.announcements import AnnouncedClaims
from reconciler.submission.look import FULL_AFTER, Observation, keep_summary, look
from reconciler.submission.observe import Observed, observe
from reconciler.submission.summary import Preface, Summary, Wanted, encoded, read_preface
from tests.support.memory_ports import BOUNDS, Outside

from .passes import body_of
from .scenario import content_of, desired

NAMES = ("census", "churn-model", "iris", "ranker", "sales", "tags")
_RENAMED = ("ranker", "tags")
STEPS = 100
"""Steps of a seed."""
_TARGET = Target("prod", "google", "acme-ml", "here")
_OVERTAKEN = 0.3
_DIES = 0.15
_LATE = 0.02
_ANSWERS = ("", "", "", "", "lost", Unknown("no answer"), Refused(400, "INVALID_ARGUMENT", "no"))


_OVERSIZED = gzip.compress(bytes(9 * 2**20), 1)


class KilledError(Exception):
    """The acting process is killed."""


class _Earlier(AnnouncedClaims):
    """Claims as earlier versions of the tool write them."""

    def announce(self, ids: Iterable[ClaimId]) -> None:
        """Do nothing: earlier versions announce no claims."""


class Looks:
    """Run of a single seed: random acts, with a comparison of both plans after each."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"looks of {seed}")
        self._outside = Outside(least_history=0)
        self._outside.claims.before_write = self._before_write
        self._jobs: dict[str, DesiredJob] = {}
        self._older: dict[str, list[DesiredJob]] = {name: [] for name in NAMES}
        self._number = 0
        self._depth = 0
        self._unannounced: set[ClaimId] = set()
        self._late: dict[ClaimId, Claim] = {}
        self._is_old = False
        self.seen: Counter[str] = Counter()
        self.log: list[str] = []
        for name in self._rng.sample(NAMES, 3):
            self._add(name)

    def run(self) -> str:
        """Return the first difference, or "" if there is none."""
        acts: Sequence[tuple[Callable[[], None], int]] = (
            (self._edit, 6),
            (self._apply, 12),
            (self._end, 6),
            (self._try_again, 1),
            (self._adopt, 2),
            (self._spoil, 1),
            (self._wait, 3),
            (self._arrive, 2),
            (self._double, 1),
        )
        weights = [weight for _, weight in acts]
        for _ in range(STEPS):
            act = self._rng.choices([act for act, _ in acts], weights)[0]
            self._do(act)
            if difference := self._difference():
                return difference
        return ""

    def _do(self, act: Callable[[], None]) -> None:
        self.seen[act.__name__.removeprefix("_")] += 1
        try:
            act()
        except KilledError:
            self._say("killed")
        except ReconcilerError as error:
            self._say(f"stopped: {error.message}")
        self._is_old = False

    # Random acts.

    def _edit(self) -> None:
        edits = (self._change, self._change, self._rerun, self._remove, self._return, self._wish)
        self._rng.choice(edits)()

    def _change(self) -> None:
        if self._jobs:
            name = self._rng.choice(sorted(self._jobs))
            self._add(name, self._jobs[name].manifest.reconcile)

    def _rerun(self) -> None:
        self._wished(self._some_name(), rerun=str(self._next()))

    def _wish(self) -> None:
        rng = self._rng
        change = rng.choice(({"attempts": rng.choice((1, 2, 3))}, {"suspend": rng.random() < 0.5}))
        self._wished(self._some_name(), **change, on_change=rng.choice(("keep", "cancel")))

    def _some_name(self) -> str:
        return self._rng.choice(sorted(self._jobs)) if self._jobs else ""

    def _wished(self, name: str, **fields: object) -> None:
        if job := self._jobs.get(name):
            self._older[name].append(job)
            wishes = replace(job.manifest.reconcile, **fields)
            self._jobs[name] = _desired(name, content_of(job), wishes)
            self._say(f"{name}: {fields}")

    def _remove(self) -> None:
        if len(self._jobs) > 1:
            name = self._rng.choice(sorted(self._jobs))
            self._older[name].append(self._jobs.pop(name))
            self._say(f"{name} removed")

    def _return(self) -> None:
        name = self._rng.choice(NAMES)
        if self._older[name] and self._rng.random() < 0.7:
            self._jobs[name] = self._rng.choice(self._older[name])
            self._say(f"{name} reverted to {self._jobs[name].job_name}")
        else:
            self._add(name)

    def _add(self, name: str, reconcile: Reconcile | None = None) -> None:
        rng = self._rng
        if name in self._jobs:
            self._older[name].append(self._jobs[name])
        wishes = reconcile or Reconcile(
            attempts=rng.choice((1, 1, 2)),
            on_change=rng.choice(("keep", "cancel")),
            on_delete=rng.choice(("keep", "cancel")),
        )
        self._jobs[name] = _desired(name, str(self._next()), wishes)
        self._say(f"{name} is {self._jobs[name].job_name}")

    def _try_again(self) -> None:
        """Let an older version, without announcements, make further attempts; some end unseen."""
        for name in sorted(self._jobs):
            self._wished(name, attempts=3)
        self._apply(is_old=True)
        for _ in self._jobs:
            self._end()

    def _apply(self, *, is_old: bool = False) -> None:
        rng, ports = self._rng, self._outside.ports
        self._is_old = is_old or rng.random() < 0.05
        if self._is_old:
            ports = replace(ports, claims=_Earlier(self._outside.claims, ports.clock, ports.chance, 0))
        jobs = list(self._jobs.values())
        whole = rng.random() < 0.7
        if not whole and jobs:
            jobs = rng.sample(jobs, rng.randrange(1, len(jobs) + 1))
        if self._is_old:
            jobs = [_as_named_before(job) for job in jobs]
        self._outside.jobs.answers = [rng.choice(_ANSWERS) for _ in jobs]
        self._say(
            f"apply {'by an older version ' if self._is_old else ''}of {[job.job_name for job in jobs]}"
        )
        observed = observe(ports) if self._is_old else self._look(ports, jobs).observed
        plan = _plan(ports, jobs, observed, whole=whole)
        applier = Applier(ports, body_of, patience=0.0)
        list(applier.run(plan))
        if rng.random() < _DIES:
            raise KilledError
        if self._is_old:
            applier.upkeep(jobs, observe(ports))
            return
        seen = self._look(ports, jobs)
        applier.upkeep(jobs, seen.observed)
        if rng.random() < _DIES:
            raise KilledError
        keep_summary(ports, seen, wanted_of(jobs), whole=whole)

    def _look(self, ports: Ports, jobs: Sequence[DesiredJob]) -> Observation:
        seen = look(ports, wanted_of(jobs), full=self._rng.random() < 0.05, full_after=FULL_AFTER)
        self.seen["full looks" if seen.full else "short looks"] += 1
        return seen

    def _before_write(self, claim: Claim) -> None:
        """Let others act before a process writes a claim, or end it."""
        if self._is_old and self._is_new(claim):
            self._unannounced.add(claim.id)
        if claim.id in self._late or (self._is_new(claim) and self._rng.random() < _LATE):
            self._late[claim.id] = claim
            raise ServiceError("the store of claims doesn't answer")
        if self._depth or self._rng.random() > _OVERTAKEN:
            return
        is_old, self._is_old = self._is_old, False
        answers = self._outside.jobs.answers
        self._depth += 1
        for act in (self._edit, self._apply, self._edit):
            if self._rng.random() < 0.7:
                self._say("meanwhile")
                self._do(act)
        self._depth -= 1
        self._outside.jobs.answers, self._is_old = answers, is_old
        if self._rng.random() < _DIES:
            raise KilledError

    def _is_new(self, claim: Claim) -> bool:
        return claim.id not in self._outside.claims.held

    def _arrive(self) -> None:
        """Let the store execute the writes that their senders gave up."""
        late, self._late = self._late, {}
        for claim in late.values():
            self._say(f"the claim of {claim.job_name} arrives late")
            self._outside.claims.held.setdefault(claim.id, Versioned(claim, 1_000_000))

    def _end(self) -> None:
        live = [job for job in self._outside.jobs.jobs if not job.state.ended]
        if live:
            job = self._rng.choice(live)
            state = self._rng.choice((State.SUCCEEDED, State.FAILED, State.FAILED, State.CANCELLED))
            self._outside.jobs.becomes(job, state)
            self._say(f"{job.job_name} {state}")

    def _double(self) -> None:
        """Make a second job of a request; the first job may have ended."""
        made = [job for job in self._outside.jobs.jobs if job.labels]
        if made:
            job = self._rng.choice(made)
            self._outside.jobs.add(job.body, job.api_version, job.kind)
            self._say(f"{job.job_name} is made twice")

    def _adopt(self) -> None:
        """Adopt a job that a person has made, by its manifest; sometimes do nothing more."""
        if not self._jobs:
            return
        job = self._rng.choice([self._jobs[name] for name in sorted(self._jobs)])
        body = {**body_of(job, f"{job.manifest.name}-by-hand", {}), "labels": {}}
        made = self._outside.jobs.add(body, job.manifest.api_version, job.manifest.kind)
        ports = self._outside.ports
        adopted = Applier(ports, body_of).adopt(job, made.resource, observe(ports), "", lambda uri: False)
        self._say(f"{job.job_name} adopted: {adopted.claim is not None}")

    def _spoil(self) -> None:
        """Delete the summary, truncate it, or replace it by bytes that aren't a summary of these claims."""
        claims = self._outside.claims
        content, generation = claims.stored
        if not content:
            return
        preface = read_preface(claims.summary())
        self._unannounced |= {id for one in (preface.announced if preface else ()) for id in one.ids}
        elsewhere = Preface(Place("acme", "acme-ml", "there"), claims.marked)
        spoiled = (
            b"",
            content[: self._rng.randrange(1, len(content) + 1)],
            _OVERSIZED,
            encoded(elsewhere, Summary(self._outside.time.now, 0, "")),
        )
        claims.stored = self._rng.choice(spoiled), generation + 1_000_000
        self._say(f"the summary has {len(claims.stored[0])} bytes")

    def _wait(self) -> None:
        self._outside.time.now += self._rng.choice((BOUNDS.visible, BOUNDS.executes * 3, timedelta(days=1)))
        self._say("time passes")

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _say(self, what: str) -> None:
        self.log.append(f"{'  ' * self._depth}{what}")

    # Comparison of the two plans.

    def _difference(self) -> str:
        """Return the difference between the plans of a short and a full look; "" if they are equal."""
        ports, jobs = self._outside.ports, [self._jobs[name] for name in sorted(self._jobs)]
        try:
            looks = [look(ports, wanted_of(jobs), full=full) for full in (False, True)]
        except ReconcilerError as error:
            return error.message
        self.seen["compared with a short look"] += not looks[0].full
        plans = [_plan(ports, jobs, seen.observed, whole=True) for seen in looks]
        claims = self._outside.claims.held
        missable = self._missable(wanted_of(jobs))
        exempt = {claims[id].claim.base_name for id in missable if id in claims}
        short, full = (_actions(plan, exempt) for plan in plans)
        if short != full:
            return f"look: a short look plans {sorted(short - full)}, and a full one {sorted(full - short)}"
        unseen = [
            found.claim.job_name
            for id, found in claims.items()
            if not (found.claim.ended or found.claim.gone or self._is_over(found.claim))
            if id not in missable and id not in looks[0].observed.versions
        ]
        return f"look: a short look misses the open {unseen[0]}" if unseen else ""

    def _is_over(self, claim: Claim) -> bool:
        """Return True if a claim lacks at most the end of its job.

        Another job of the same request reopens a settled claim, and may have ended by now. No plan needs
        that end, and a report on a commit reads the claims of its jobs.
        """
        jobs = self._outside.jobs.jobs
        return any(job.resource == claim.resource and job.state.ended for job in jobs)

    def _missable(self, wanted: Wanted) -> set[ClaimId]:
        """Return the unannounced claims, except further attempts, for which a look searches."""
        further = {
            id
            for id in self._unannounced
            if id.key in wanted and 1 < id.attempt <= wanted[id.key].manifest.reconcile.attempts
        }
        return self._unannounced - further


def _desired(name: str, content: str, reconcile: Reconcile) -> DesiredJob:
    """Return a job; some jobs have another name under an earlier version of the hash."""
    job = desired(name, content, reconcile)
    if name not in _RENAMED:
        return job
    return replace(job, earlier=(sha256(job.identity.encode()).hexdigest(),))


def _as_named_before(job: DesiredJob) -> DesiredJob:
    """Return the job as named by a version of the tool with the earlier hash."""
    identity = job.earlier[0] if job.earlier else job.identity
    return replace(job, identity=identity, job_name=job_name(job.manifest.base_name, identity), earlier=())


def _plan(ports: Ports, jobs: Sequence[DesiredJob], observed: Observed, *, whole: bool) -> Plan:
    state = comparable_state(ports.jobs, jobs, observed, ports.source)
    return make_plan(_TARGET, state, whole=whole)


def _actions(plan: Plan, exempt: set[str]) -> set[tuple[str, str, bool]]:
    changes = {
        (str(change.action), change.job_name, change.is_new)
        for change in plan.changes
        if change.action is not Action.NONE and change.base_name not in exempt
    }
    live = {
        (str(drift.kind), drift.job_name, False)
        for drift in plan.drift
        if drift.kind in ("orphaned", "superseded") and drift.base_name not in exempt
    }
    return changes | live


def main() -> int:
    """Print the counts and the first difference with its events; return 1 if there is a difference."""
    seeds, seen = int(sys.argv[1]), Counter[str]()
    for seed in range(seeds):
        looks = Looks(seed)
        difference = looks.run()
        seen += looks.seen
        if difference:
            print("\n".join([*looks.log, f"seed {seed}: {difference}"]))
            return 1
    for name, count in sorted(seen.items()):
        print(f"  {count:9,}  {name}")
    print(f"{seeds} seeds of {STEPS} steps: short and full looks lead to the same actions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
