"""A simulated run: a world, some reconcilers, a phase of faults, a quiet phase, and the final checks."""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import zip_longest

from msgspec.structs import replace

from reconciler.model.ports import GOOGLE_BOUNDS

from .checker import Checker, Checkers
from .faults import Faults
from .github import Statuses
from .model import Job, Place
from .models import PUTS, Models
from .nemesis import BEFORE_A_LOOK, Nemesis
from .passes import Outside, reconcile
from .process import Process
from .scenario import Outputs, Repository
from .store import Claims, Records
from .world import World

BOUNDS = (
    GOOGLE_BOUNDS,
    replace(GOOGLE_BOUNDS, executes=timedelta(minutes=20)),
    replace(GOOGLE_BOUNDS, visible=timedelta(minutes=20)),
)
"""Possible bounds of the services: each run draws its own, and its reconcilers know them."""

_MOST_STEPS = 100_000
"""Many times the steps of any run that ends."""
_QUIET_PASSES = 96
"""Passes for more than four attempts of the longest jobs, and for the tries of their set-ups."""
_BETWEEN = (200.0, 3400.0)
"""Seconds between the last passes, in turn: some passes come soon after a job's end."""
_QUARREL = 16
"""Passes in which appliers disagree after the phase of faults."""
_SOON = 250.0
"""Seconds between two of these passes: most cancelled jobs have ended by then."""
_SHARED = 1 / 3
"""Fraction of the runs in which two environments share a project and location."""
_OUTRUN = 0.5
"""Fraction of the replacements of a model before which a newer commit brings the model back."""
_CUT_OFF = 0.7
"""Fraction of them after which the reconciler dies, and a newer commit brings the model back."""
_SWUNG = 0.8
"""Fraction of the summaries after which a commit brings back a model that was replaced."""
_LONGER = 4
"""How much longer runs with publications are: models come after the runs that make them."""
_PUBLISHING = 3 / 4
"""Fraction of the runs with own folders in which manifests publish."""
_RENAMING = 1 / 3
"""Fraction of these in which jobs are renamed and keep their addresses."""
_AT_ONE_ADDRESS = 1 / 2
"""Fraction of the runs with two environments in which both publish at the same addresses."""
_IN_THE_CLOUD = 1 / 2
"""Fraction of these in which an ended job counts as an attempt, whatever its cause."""
_OLDER = 1 / 3
"""Fraction of the runs in which an older version runs too."""
_BLINDS = (BEFORE_A_LOOK, BEFORE_A_LOOK, (": pending",), (" live runs",))
"""Looks before which listings become blind in a run."""
_AUDITS = 0.1
"""Fraction of the passes that read the whole history."""
_SMALL = 1 / 2
"""Fraction of the runs in which the whole history is read, as in a small repository."""
_ENOUGH = 500
_RAISES = 3
"""Number of increases of `attempts` after the phase of faults, in runs in which days pass."""
_DAY = 90_000.0
"""Seconds after which pending statuses may be closed."""
_SPANS = (0.2, 2.0, 20.0, 120.0, 600.0, 1800.0)
_DELICATE = ("minted", "wrote claim", "send create", "sent create", "answer to create")
_SUMMARIZED = "wrote the summary"
_DELICATE_OF_MODELS = ("found ", "put ", "record ", _SUMMARIZED)
"""Also in runs with publications: between the model in place and the one that replaces it."""
_ANSWERED = "answer to create of "
_PAUSES = (1.0, 60.0, 280.0, 700.0, 3600.0, 10800.0)


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a seed."""

    seed: int
    violations: tuple[str, ...]
    faults: Counter[str]
    seen: Counter[str]
    steps: int
    log: list[tuple[float, str, str]]


class Simulation:
    """Simulated run, ready to start.

    Args:
        seed: The source of all random decisions.
        beyond: True if the services break the bounds on which at-most-once rests.
        without: The omitted guard of the world, from `guards.GUARDS`; "" for none.
    """

    def __init__(self, seed: int, *, beyond: bool = False, without: str = "") -> None:
        self._seed = seed
        self._rng = rng = random.Random(seed)
        publishers = _publishers(seed)
        self._publishers = publishers
        self._faults = Faults(rng, beyond=beyond, publishers=publishers)
        bounds = rng.choice(BOUNDS)
        unsettled = replace(bounds, executes=timedelta(0), visible=timedelta(0), look_again=0.0)
        self._world = world = World(
            rng,
            self._faults,
            bounds,
            a_minute=rng.choice((60.0, 60.0, 6.0, 2.0)),
            expires=without != "credential-expiry",
            every_try=without == "try",
            set_ups=_set_ups(seed),
            shortens=publishers is not None,
        )
        places = _places(seed)
        self._repository = Repository(
            rng,
            rng.choice((1, 1, 1, 2, 3) if publishers else (1, 2, 3, 4, 10)),
            legacy=len(places) == 1,
            outputs=_outputs(seed),
            publishers=publishers,
            renamers=_renamers(seed) if publishers else None,
        )
        compares = without != "current-generation"
        models = [Models(compares=compares)] if publishers else []
        if publishers and len(places) > 1:
            models.append(Models(compares=compares, beside=models[0] if _at_one_address(seed) else None))
        self._statuses = Statuses()
        self._outsides = [
            Outside(
                world,
                Claims(compares=without != "claim", marked=without != "genesis"),
                self._repository,
                self._statuses,
                Records(),
                place,
                bounds=unsettled if without == "settle" else bounds,
                repairs=without != "audit",
                people=random.Random(f"people of {seed}"),
                older=random.Random(f"versions of {seed}").random() < _OLDER,
                audits=(random.Random(f"audits of {seed}"), _AUDITS),
                answers=_answers(seed),
                least_history=_least_history(seed),
                parts=_parts(seed),
                behind=_behind(seed),
                edits=_edits(seed),
                # Two environments would adopt the same job: neither knows of the other's claims.
                adopters=_adopters(seed) if place == places[0] else (random.Random(0), 0.0),
                models=of_place,
            )
            for place, of_place in zip_longest(places, models)
        ]
        self._checkers = {
            outside.place.instance: Checker(
                world,
                outside.claims,
                self._repository,
                self._statuses,
                outside.place,
                beyond=beyond,
                is_old=outside.is_old,
                models=outside.models,
            )
            for outside in self._outsides
        }
        world.checker = self._checker = Checkers(self._checkers)
        if publishers:
            by_instance = {outside.place.instance: outside.models for outside in self._outsides}
            world.saved = partial(_save, by_instance)
        self._nemesis = Nemesis(
            world,
            self._outsides[0].claims,
            self._repository,
            self._statuses,
            _by_hand(seed),
            _copycats(seed),
            _losses(seed),
            _spoilers(seed),
            blinds=random.Random(f"blind looks of {seed}").choice(_BLINDS),
            models=self._outsides[0].models,
        )
        days, rate = _days(seed)
        self._days = days, rate / (_LONGER if self._publishers else 1)
        self._pushes = _pushes(seed)
        self._haste = rng.choice((0.01, 0.05, 0.2))
        self._steps = 0
        self._started = 0
        self._outside_of: dict[str, Outside] = {}
        self._processes = [
            self._start(self._outsides[0])
            for _ in range(rng.choice((2, 2, 3) if publishers else (1, 2, 2, 3)))
        ]
        self._processes += [self._start(outside) for outside in self._outsides[1:]]

    def run(self) -> Result:
        """Run the phase of faults and the quiet phase; return the result."""
        try:
            self._trouble(self._rng.randrange(150, 1200) * (_LONGER if self._publishers else 1))
            if not self._checker.violations:
                self._quiet()
        finally:
            for process in self._processes:
                if not process.ended:
                    process.kill()
        violations = tuple(self._checker.violations)
        return Result(
            self._seed, violations, self._faults.counts, self._checker.seen, self._steps, self._world.log
        )

    def _trouble(self, steps: int) -> None:
        rng, faults, world = self._rng, self._faults, self._world
        while self._steps < steps and not self._checker.violations:
            self._nemesis.strike()
            if self._days[0].random() < self._days[1]:
                world.trace("world", "a day passes")
                world.advance(_DAY)
            if rng.random() < self._haste:
                world.advance(rng.choice(_SPANS) * rng.random())
            index = self._next()
            process = self._processes[index]
            self._swing(process)
            if process.doing.endswith(BEFORE_A_LOOK):
                self._nemesis.before_a_look(process.doing)
            # The worst moments: between a claim and its request, and before the request's answer is written.
            delicate = (*_DELICATE, *_DELICATE_OF_MODELS) if self._publishers else _DELICATE
            times = 20 if process.doing.startswith(delicate) else 1
            if self._pushed(process.doing) or self._cut_off(process) or faults.happens("crash", times):
                world.trace(process.name, f"killed at: {process.doing}")
                process.kill()
                self._processes[index] = self._start(self._outside_of[process.name])
            elif self._outrun(process):
                self._pause(process, clock_stands=False)
            elif faults.happens("pause", times):
                self._pause(process, clock_stands=faults.happens("machine suspended"))
            elif faults.happens("clock jumped"):
                process.jump(rng.choice((-3600.0, -60.0, 60.0, 3600.0)))
            else:
                self._resume(process)

    def _pushed(self, doing: str) -> bool:
        """Return True if a person changes a job that was just submitted, and so ends the submitting run."""
        chance, rate = self._pushes
        if not (rate and doing.startswith(_ANSWERED) and chance.random() < rate):
            return False
        self._faults.tells("crash")
        self._repository.rerun_of(doing.removeprefix(_ANSWERED))
        return True

    def _cut_off(self, process: Process) -> bool:
        """Return True if a reconciler ends just after it has replaced a model, which a commit brings back."""
        chance, models = self._publishers, self._outside_of[process.name].models
        if not (chance and models and process.doing.startswith(f"did {PUTS}")) or chance.random() > _CUT_OFF:
            return False
        words = process.doing.split()
        replaced = models.replaced.get(words[words.index("at") + 1], "")
        if replaced in ("", words[2]):
            return False
        self._faults.tells("crash")
        self._repository.bring_back(replaced)
        return True

    def _swing(self, process: Process) -> None:
        """Let a commit bring back a model that was replaced, once a summary says which one is in its place.

        Who publishes it then makes the summary untrue, and may die before it writes another one.
        """
        chance, models = self._publishers, self._outside_of[process.name].models
        if not (chance and models and process.doing.startswith(_SUMMARIZED)) or chance.random() > _SWUNG:
            return
        if models.replaced:
            self._repository.bring_back(chance.choice(sorted(models.replaced.values())))

    def _outrun(self, process: Process) -> bool:
        """Return True if a commit brings back the model in place just before a reconciler replaces it."""
        chance, models = self._publishers, self._outside_of[process.name].models
        if not (chance and models and process.doing.startswith(PUTS)) or chance.random() > _OUTRUN:
            return False
        words = process.doing.split()
        current = models.current(words[words.index("at") + 1])
        if current is None or current.job_name == words[1]:
            return False
        self._faults.tells("older commit at once")
        self._repository.bring_back(current.job_name)
        return True

    def _quiet(self) -> None:
        """Stop faults. Paused processes wake and end their passes; a further reconciler settles the rest."""
        self._faults.on = False
        for outside in self._outsides:
            outside.draining = True
        if self._nemesis.lost:
            # Claims are restored only while no write and no request is in flight.
            for process in self._processes:
                process.kill()
            bounds = self._world.bounds
            self._world.advance((bounds.lifetime + bounds.executes + bounds.visible).total_seconds())
        self._nemesis.make_good()
        self._world.trace("world", "all faults stop")
        for outside in self._outsides:
            name = f"last {outside.place.instance}".strip()
            self._checker.enters(name, outside.place.instance)
            self._processes.append(Process(name, self._world, partial(self._last, outside)))
        while not all(process.ended for process in self._processes) and not self._checker.violations:
            self._resume(self._processes[self._next()])
            if self._steps > _MOST_STEPS:
                self._checker.endless(self._steps)

    def _last(self, outside: Outside, process: Process) -> None:
        """Run whole passes until the plan is empty, and two more."""
        raises = _RAISES if self._days[1] > 0 and len(self._outsides) == 1 else 0
        self._quarrel(outside, process)
        plan, still, checker = None, 0, self._checkers[outside.place.instance]
        lasts = {f"last {other.place.instance}".strip() for other in self._outsides}
        for number in range(_QUIET_PASSES * (1 + raises)):
            since = self._world.now
            plan = outside.one_pass(process)
            alone = all(other.ended or other.name in lasts for other in self._processes)
            if plan:
                checker.passed(since)
            calm = alone and all(job.gone or job.state.ended for job in self._world.jobs)
            still = still + 1 if plan and calm and not outside.is_busy(plan) else 0
            if plan and still > 2:
                if raises:
                    # After a day all commits have their statuses, and their records are closed.
                    process.sleep(_DAY)
                    outside.one_pass(process)
                    self._repository.raise_attempts()
                    self._world.trace("repository", "every job has one more attempt")
                    raises, still = raises - 1, 0
                    continue
                checker.looks_alike(*outside.both_plans())
                # Only the audit finds a late second job that ended between two looks.
                plan = outside.one_pass(process, full=True) or plan
                checker.at_the_end(plan)
                return
            process.sleep(_BETWEEN[number % 2])
        checker.never_still(_QUIET_PASSES, plan)

    def _quarrel(self, outside: Outside, process: Process) -> None:
        """Run passes without faults, in quick succession, over trees with different content."""
        outside.quarrels = True
        for _ in range(_QUARREL if outside.edits[1] else 0):
            outside.one_pass(process)
            process.sleep(_SOON)
        outside.quarrels = False

    def _next(self) -> int:
        """Choose the process that continues; advance the time until there is such a process."""
        while True:
            ready = [n for n, process in enumerate(self._processes) if not process.ended and process.ready()]
            if ready:
                return self._rng.choice(ready)
            moments = [process.wakes for process in self._processes if not process.ended]
            event = self._world.next_event()
            moment = min([*moments, *([event] if event is not None else [])])
            self._world.advance(max(0.0, moment - self._world.now))

    def _pause(self, process: Process, *, clock_stands: bool) -> None:
        seconds = self._rng.choice(_PAUSES) * self._rng.uniform(0.5, 1.5)
        said = "suspended" if clock_stands else "paused"
        self._world.trace(process.name, f"{said} for {seconds:.0f} s at: {process.doing}")
        process.pause(seconds, clock_stands=clock_stands)

    def _resume(self, process: Process) -> None:
        self._steps += 1
        try:
            process.resume()
        except Exception:
            process.ended = True
            self._checker.fell(process.name, traceback.format_exc())

    def _start(self, outside: Outside) -> Process:
        self._started += 1
        name = f"r{self._started}"
        self._outside_of[name] = outside
        self._checker.enters(name, outside.place.instance)
        process = Process(name, self._world, lambda process: reconcile(process, outside, self._rng))
        process.wakes = max(process.wakes, outside.place.begins)
        return process


def _save(models: Mapping[str, Models | None], job: Job) -> None:
    """Let a job write its model, where its environment's are."""
    if found := models.get(job.instance):
        found.saves(job)


def _publishers(seed: int) -> random.Random | None:
    """Return the chance by which a run's manifests publish; None in runs that publish nothing."""
    rng = random.Random(f"publishers of {seed}")
    return rng if _outputs(seed) is Outputs.OWN and rng.random() < _PUBLISHING else None


def _renamers(seed: int) -> random.Random | None:
    """Return the chance by which a run's jobs are renamed and keep their addresses; None in most runs."""
    rng = random.Random(f"renamers of {seed}")
    return rng if rng.random() < _RENAMING else None


def _at_one_address(seed: int) -> bool:
    """Return True if a run's environments publish at the same addresses."""
    return random.Random(f"addresses of {seed}").random() < _AT_ONE_ADDRESS


def _set_ups(seed: int) -> tuple[random.Random, float]:
    """Return the rate of failed set-ups in a run: usually 0, sometimes almost 1."""
    rng = random.Random(f"set-ups of {seed}")
    return rng, rng.choice((0.0, 0.0, 0.3, 0.9))


def _by_hand(seed: int) -> tuple[random.Random, float]:
    """Return the rate of jobs made by hand in a run: usually 0."""
    rng = random.Random(f"by hand of {seed}")
    return rng, rng.choice((0.0, 0.0, 0.0, 0.01, 0.03))


def _copycats(seed: int) -> tuple[random.Random, float]:
    """Return the rate of foreign copies of attempts beyond the manifest in a run: usually 0."""
    rng = random.Random(f"copycats of {seed}")
    return rng, rng.choice((0.0, 0.0, 0.0, 0.05))


def _losses(seed: int) -> tuple[random.Random, float]:
    """Return the rate at which a bucket with a summary is emptied in a run: usually 0."""
    rng = random.Random(f"losses of {seed}")
    return rng, rng.choice((0.0, 0.0, 0.0, 0.0, 0.003))


def _adopters(seed: int) -> tuple[random.Random, float]:
    """Return the rate of adoptions before a pass."""
    rng = random.Random(f"adopters of {seed}")
    return rng, rng.choice((0.3, 0.7, 1.0))


def _pushes(seed: int) -> tuple[random.Random, float]:
    """Return the rate at which a push ends the run that has just submitted a job: usually 0."""
    rng = random.Random(f"pushes of {seed}")
    return rng, rng.choice((0.0, 0.0, 0.3))


def _answers(seed: int) -> tuple[random.Random, float]:
    """Return the rate at which people delay the confirmation of a plan: 0 in half of the runs."""
    rng = random.Random(f"answers of {seed}")
    return rng, rng.choice((0.0, 0.9))


def _least_history(seed: int) -> int:
    """Return the number of claims and runs from which a run has a summary: 0, or beyond its maximum."""
    return _ENOUGH if random.Random(f"history of {seed}").random() < _SMALL else 0


def _parts(seed: int) -> tuple[random.Random, float]:
    """Return the rate of passes over some of the jobs: 0 in half of the runs."""
    rng = random.Random(f"parts of {seed}")
    return rng, rng.choice((0.0, 0.0, 0.2, 0.5))


def _spoilers(seed: int) -> tuple[random.Random, float]:
    """Return the rate of lost or replaced summaries in a run: usually 0."""
    rng = random.Random(f"spoilers of {seed}")
    return rng, rng.choice((0.0, 0.0, 0.01, 0.05))


def _behind(seed: int) -> tuple[random.Random, float]:
    """Return the rate of passes by a clone that is behind: 0 in half of the runs."""
    rng = random.Random(f"behind of {seed}")
    return rng, rng.choice((0.0, 0.0, 0.2, 0.5))


def _edits(seed: int) -> tuple[random.Random, float]:
    """Return the rate of passes over an edited work tree: 0 in half of the runs."""
    rng = random.Random(f"edits of {seed}")
    return rng, rng.choice((0.0, 0.0, 0.1, 0.5))


def _outputs(seed: int) -> Outputs:
    """Return where the results of a run's jobs go: nowhere in a quarter of the runs."""
    return random.Random(f"outputs of {seed}").choice(tuple(Outputs))


def _days(seed: int) -> tuple[random.Random, float]:
    """Return the rate at which a day passes: usually 0, in some runs high enough to close records."""
    rng = random.Random(f"days of {seed}")
    return rng, rng.choice((0.0, 0.0, 0.01, 0.03))


def _places(seed: int) -> list[Place]:
    """Return the environments of a run: in every third a second environment, which begins at once or later.

    It draws from a chance of its own, so that the runs with a single environment stay unchanged.
    """
    rng = random.Random(f"places of {seed}")
    if rng.random() > _SHARED:
        return [Place()]
    begins = rng.choice((0.0, 60.0, 600.0, 3600.0)) * rng.random()
    engine = "google" if rng.random() < _IN_THE_CLOUD else "local"
    return [
        Place(neighbours=frozenset({"blue"}), overall="reconciler/prod", engine=engine),
        Place("test", "blue", frozenset({""}), begins, "reconciler/test", engine),
    ]
