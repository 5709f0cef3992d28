"""Guards of the protocol and of the planner, and the first seed that finds a violation without each guard.

Some guards belong to the simulated world, such as the service's check of a credential's expiry; `run` omits
these. The others are functions of the product, which `left_out` replaces for a while.

`python -m tests.simulation.guards [NAME …]` prints the first seed for each guard. It returns 1 if a guard
has no such seed within 1,000, or if a replaced function was never called.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, reduce, wraps
from importlib import import_module
from inspect import signature
from types import FunctionType, ModuleType
from typing import Any

from msgspec.structs import replace

from reconciler.model.applied_tree import Effect
from reconciler.model.claimed_run import age
from reconciler.model.job import INSTANCE, State
from reconciler.model.plan import DesiredJob
from reconciler.model.ports import Ports
from reconciler.planning.decide import TRIES

from .looks import Looks
from .run import Simulation

SEEDS = 1000
"""Number of seeds within which the lack of a guard must show."""

Function = Callable[..., Any]


class GuardError(Exception):
    """A guard replaces a function that doesn't exist or was never called."""


@dataclass(frozen=True, slots=True)
class Guard:
    """Guard of the protocol or the planner.

    Attributes:
        breaks: The beginning of the violation that its absence causes.
        instead: By function of the product (`module:qualified name` within `reconciler`), its replacement,
            which gets the function itself and its arguments; empty for a guard of the world.
        beyond: True if it matters only with services that break their bounds.
        looks: True if the differential test of looks has to detect its absence, instead of the simulation.
        since: The seed from which it is looked for: those before find nothing, and each takes a second.
    """

    breaks: str
    instead: Mapping[str, Function] = field(default_factory=dict)
    beyond: bool = False
    looks: bool = False
    since: int = 0


def _never(*_: object, **__: object) -> bool:
    return False


def _nothing(*_: object, **__: object) -> None:
    """Do nothing, in the place of a check or an action."""


_signature = cache(signature)


def _with(**changes: Callable[[Any], object]) -> Function:
    """Return a call of the original function with changed arguments, by name."""

    def call(function: Function, *arguments: object, **options: object) -> object:
        bound = _signature(function).bind(*arguments, **options)
        bound.apply_defaults()
        for name, change in changes.items():
            bound.arguments[name] = change(bound.arguments[name])
        return function(*bound.args, **bound.kwargs)

    return call


def _set(**fields: object) -> Callable[[Any], object]:
    """Return a change of some fields of an argument."""
    return lambda argument: replace(argument, **fields)


def _unsuspended(job: DesiredJob) -> DesiredJob:
    manifest = job.manifest
    return replace(job, manifest=replace(manifest, reconcile=replace(manifest.reconcile, suspend=False)))


def _named_by_claim(kept: Function, claim: Any, runs: Any) -> object:
    runs = list(runs)
    named = (run for run in runs if claim and run.resource == claim.resource)
    return next(named, None) or kept(claim, runs)


def _never_visible(ports: Ports) -> Ports:
    """Return ports with listings that may lack a job for ever."""
    return replace(ports, bounds=replace(ports.bounds, visible=timedelta.max))


class _NamedJobs:
    """Jobs whose names their submitters chose, so that listings may omit every ended job."""

    def __init__(self, jobs: Any) -> None:
        self._jobs = jobs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jobs, name)

    def named(self, *_: str) -> str:
        """Return a name for every job."""
        return "chosen"


def _all_named(ports: Ports) -> Ports:
    return replace(ports, jobs=_NamedJobs(ports.jobs))


def _with_another_credential(
    create: Function, submitter: Any, order: object, body: object, _: object, started: float
) -> object:
    return create(submitter, order, body, submitter._ports.credentials.mint(), started)


def _settles_when_visible(settles_at: Function, self: Any, claim: object) -> object:
    moment = settles_at(self, claim)
    return moment and moment - self._bounds.executes


_STILL_ANNOUNCED = "submission.announcements:AnnouncedClaims.still_announced"
_NO_LIMIT = {"submission.protocol:Submitter._send": _with(order=_set(attempts=None))}

GUARDS: Mapping[str, Guard] = {
    # Guards of the world: `run.Simulation` omits these.
    "credential-expiry": Guard("I1"),
    "claim": Guard("I1"),
    "settle": Guard("I1"),
    "try": Guard("I1"),
    "genesis": Guard("I"),
    "audit": Guard("I1", beyond=True),
    "current-generation": Guard("P3"),
    # Guards of the product.
    "suspend": Guard("suspend", {"planning.decide:decide": _with(job=_unsuspended)}),
    "attempts-limit": Guard(
        "attempts",
        {
            "planning.decide:_Decision._last_permitted": lambda wanted, decision: wanted(decision) + 9,
            **_NO_LIMIT,
        },
    ),
    "found-attempts-limit": Guard("attempts", _NO_LIMIT),
    "set-up-tries": Guard(
        "set-up",
        {"planning.decide:_Decision._tries": lambda tries, *arguments: min(tries(*arguments), TRIES - 1)},
    ),
    "set-up-pause": Guard(
        "set-up", {"submission.protocol:Submitter._begin": _with(order=_set(not_before=None))}
    ),
    "set-up-in-the-cloud": Guard(
        "attempts",
        {"planning.decide:_Decision._is_unstarted": lambda _, decision, attempt: attempt.set_up_failed},
    ),
    "retry-after-failure": Guard(
        "attempts",
        {
            "planning.attempts:Attempt.failed": lambda _, one: one.bound and one.state and one.state.ended,
            "submission.protocol:Submitter._check_predecessor": _nothing,
        },
    ),
    "older-stays": Guard(
        "elder",
        {
            "model.claimed_run:elder": lambda _, runs: max(
                runs, key=lambda run: (run.state not in (State.FAILED, State.CANCELLED), *age(run))
            )
        },
        beyond=True,
    ),
    "claim-does-not-choose": Guard("elder", {"model.claimed_run:kept": _named_by_claim}, beyond=True),
    "successor-first": Guard(
        "successor",
        {
            "operations.execute:_collecting": lambda _, outcomes, missing: outcomes,
            "operations.submissions:Submissions.waiting": lambda *_: set(),
        },
    ),
    "successor-wanted": Guard(
        "successor",
        {"planning.planner:_replaces": lambda replaces, change: replaces(change) or not change.stopped},
    ),
    "blind-listing": Guard(
        "blind", {"submission.observe:unlisted": _with(ports=_never_visible)}, beyond=True
    ),
    "empty-listing": Guard("blind", {"submission.observe:observe": _with(ports=_all_named)}, beyond=True),
    "blind-search": Guard(
        "blind", {"submission.protocol:Submitter._recover": _with(order=_set(witnesses=()))}, beyond=True
    ),
    "instance-search": Guard(
        "I2",
        {
            "submission.adoption:JobSearch._has_labels_of": lambda has_labels_of, search, claim, job: (
                has_labels_of(search, claim, replace(job, labels={**job.labels, INSTANCE: search._instance}))
            )
        },
    ),
    "instance-listing": Guard(
        "instance", {"submission.observe:split_by_instance": lambda _, ports, claims, runs: (runs, [])}
    ),
    "before-instance": Guard("instance", {"submission.observe:doubtful_runs": lambda *_: ()}),
    "kind-of-its-content": Guard("I8", {"planning.state:_attempts": _with(kinds=lambda _: {})}),
    "older-verdicts": Guard("I3", {"reporting.status_rules:may_turn": _never}, since=350),
    "cancel-record": Guard("I8", {"submission.claims_upkeep:record_cancel": _nothing}),
    "return-of-its-own": Guard("attempts", {"model.claim:is_by_apply": lambda *_: True}),
    "returns-end": Guard("returns", {"planning.decide:_Decision._may_return": lambda *_: True}),
    "tree-compared": Guard("tree", {"model.applied_tree:effect_of": lambda *_, **__: Effect.APPLY}),
    "tree-read-again": Guard("tree", {"operations.tree:TreeCheck.withheld": lambda *_: ""}),
    "adopt-unclaimed": Guard("adopt", {"submission.adoption:_settled": _nothing}),
    "adopt-equal": Guard("adopt", {"submission.adoption:_fields": lambda *_: ()}),
    "adopt-live": Guard(
        "adopt",
        {
            "submission.adoption:_current": lambda _, ports, adoption: ports.jobs.read(
                adoption.claim.api_version, adoption.claim.kind, adoption.resource
            )
        },
    ),
    "look-open": Guard("look", {"submission.look:_short": _with(summary=_set(open=()))}),
    "look-live": Guard("look", {"submission.look:_to_read": _with(live=lambda _: ())}, looks=True),
    "look-goes-on": Guard("look", {"submission.summary:may_go_on": _never}, looks=True),
    "look-restored": Guard(
        "look",
        {
            "submission.summary:_is_of": lambda is_of, preface, stored: is_of(
                replace(preface, genesis=stored.genesis), stored
            )
        },
    ),
    "look-settled": Guard("look", {"submission.summary:_have_ended": lambda *_: True}),
    "look-former": Guard("look", {"submission.look:_short": _with(summary=_set(former=()))}, looks=True),
    "look-daily": Guard("look", {"submission.look:look": _with(full_after=lambda _: None)}),
    "look-place": Guard(
        "look",
        {
            "submission.summary:_is_of": lambda is_of, preface, stored: is_of(
                replace(preface, place=stored.place), stored
            )
        },
        looks=True,
    ),
    "look-part": Guard("look", {"submission.summary:summarize": _with(before=_set(open=()))}, looks=True),
    "announce": Guard("look", {"submission.announcements:AnnouncedClaims.announce": _nothing}, looks=True),
    "announced-read": Guard("look", {"submission.look:_short": _with(announced=lambda _: ())}, looks=True),
    "announced-stays": Guard(
        "look",
        {
            _STILL_ANNOUNCED: lambda still, claims, announced, *rest: still(
                claims, [one for one in announced if one.by == claims._by], *rest
            )
        },
        looks=True,
    ),
    "announced-uncertain": Guard(
        "look",
        {
            _STILL_ANNOUNCED: lambda still, claims, announced, *rest: still(
                claims, [one for one in announced if one.by != claims._by], *rest
            )
        },
        looks=True,
    ),
    "look-empty": Guard("blind", {"submission.look:_short": _with(ports=_all_named)}, beyond=True, since=185),
    "overwriting": Guard("overwritten", {"planning.overwriting:overwriting_of": _nothing}),
    "overwriting-by-start": Guard(
        "overwritten", {"model.claimed_run:start_order": lambda _, run: age(run)}, since=465
    ),
    "folder-own": Guard(
        "folder", {"engines.spec.output_folder:with_own_folder": lambda _, __, ___, packed, ____: packed}
    ),
    "publication-compared": Guard(
        "P3",
        {
            "planning.publishing:Descent.may_replace": lambda *_: True,
            "operations.tree:TreeCheck.withheld": _nothing,
        },
    ),
    "publication-recorded-again": Guard(
        "P3",
        {
            "operations.publications:brought_back": lambda _, __, ___, state, ____: state,
            "planning.publishing:_has_other_since": _never,
        },
    ),
    "publication-unchanged": Guard(
        "P1",
        {"operations.publish:_compared": lambda compared, *files: (compared(*files)[0], (), ())},
    ),
    "publication-told": Guard(
        "P5", {"reporting.status_rules:unpublished_verdict": lambda _, verdict, *__: verdict}
    ),
    "paused-before-sending": Guard("paused", {"submission.protocol:Submitter._is_too_late": _never}),
    "paused-while-sending": Guard(
        "paused", {"base.http.connections:write_request": _with(clock=lambda _: lambda: 0.0)}
    ),
    "one-credential": Guard(
        "paused",
        {"submission.protocol:Submitter._create": _with_another_credential},
        since=185,
    ),
    "execution-counts-from-the-head": Guard(
        "I1", {"submission.protocol:Submitter._settles_at": _settles_when_visible}, since=260
    ),
}
"""Guards by their name for `--without`."""


@contextmanager
def left_out(name: str) -> Iterator[Counter[str]]:
    """Run the block without a guard ("" for none), and count the calls of the replacements.

    Raises:
        GuardError: A function that the guard replaces doesn't exist.
    """
    instead = GUARDS[name].instead if name else {}
    calls = Counter(dict.fromkeys(instead, 0))
    with ExitStack() as stack:
        for function, new in instead.items():
            stack.enter_context(_replaced(function, new, calls))
        yield calls


@contextmanager
def _replaced(function: str, instead: Function, calls: Counter[str]) -> Iterator[None]:
    owner, name = _defined(function)
    old = vars(owner)[name]
    called: Any = old.fget if isinstance(old, property) else old

    @wraps(called)
    def counted(*arguments: object, **options: object) -> object:
        calls[function] += 1
        return instead(called, *arguments, **options)

    new = property(counted) if isinstance(old, property) else counted
    _put(owner, name, old, new)
    try:
        yield
    finally:
        _put(owner, name, new, old)


def _defined(function: str) -> tuple[Any, str]:
    """Return the module or class that defines a function or property, and its name there."""
    module, _, qualified = function.partition(":")
    *classes, name = qualified.split(".")
    try:
        owner: Any = reduce(getattr, classes, import_module(f"reconciler.{module}"))
        if isinstance(vars(owner)[name], FunctionType | property):
            return owner, name
    except (ImportError, AttributeError, KeyError):
        pass
    raise GuardError(f"reconciler.{module} has no function {qualified}")


def _put(owner: Any, name: str, old: object, new: object) -> None:
    """Replace a function by another, also in the modules that have imported it by name."""
    setattr(owner, name, new)
    for module in [one for one in sys.modules.values() if isinstance(one, ModuleType)]:
        vars(module).update({known: new for known, value in vars(module).items() if value is old})


def first_seed(name: str) -> tuple[int, str] | None:
    """Return the first seed that finds the violation that a guard prevents, and the violation; else None.

    Raises:
        GuardError: A function that the guard replaces doesn't exist, or was never called.
    """
    with left_out(name) as calls:
        finding = next(_findings(name), None)
    if uncalled := [function for function, number in calls.items() if not number]:
        raise GuardError(f"nothing called {', '.join(uncalled)}")
    return finding


def _findings(name: str) -> Iterator[tuple[int, str]]:
    guard = GUARDS[name]
    for seed in range(guard.since, guard.since + SEEDS):
        if guard.looks:
            said = filter(None, [Looks(seed).run()])
        else:
            said = iter(Simulation(seed, beyond=guard.beyond, without=name).run().violations)
        yield from ((seed, violation) for violation in said if violation.startswith(guard.breaks))


def print_first_seed(name: str) -> int:
    """Print the first seed for a guard; return 1 if there is none."""
    try:
        seed, said = first_seed(name) or ("-", f"no violation within {SEEDS} seeds")
    except GuardError as error:
        seed, said = "-", str(error)
    print(f"{name:30} seed {seed:>3}{'*' if GUARDS[name].beyond else ' '} {said}", flush=True)
    return int(seed == "-")


def main(names: list[str]) -> int:
    """Print the first seed for each guard; return 1 if a guard has none."""
    if unknown := {*names} - {*GUARDS}:
        print(f"no guards: {', '.join(sorted(unknown))}; the guards: {', '.join(GUARDS)}", file=sys.stderr)
        return 2
    with ProcessPoolExecutor(2) as pool:
        return max(pool.map(print_first_seed, names or GUARDS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
