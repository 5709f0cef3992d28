"""The guards of the protocol and of the planner, and the first seed that finds a violation without each.

Some guards are the simulated world's, such as a service that checks a credential's expiry; `run` leaves those
out. The others are lines of the product: `leave_out` imports the product with those lines replaced.

`python -m tests.simulation.guards [NAME …]` prints the first seed for each; 1 if a guard has none within 400.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.loading import replace_module

PRODUCT = Path(__file__).resolve().parents[2] / "reconciler"
SEEDS = 400
"""Seeds within which the lack of a guard must show."""


@dataclass(frozen=True, slots=True)
class Patch:
    """A replacement in one module of the product.

    Attributes:
        module: Its name within `reconciler`.
        old: Text that the module contains exactly once.
        new: Text to replace it with.
    """

    module: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Guard:
    """One guard.

    Attributes:
        breaks: How the violation begins that its absence causes.
        patches: What leaves it out of the product; none where the guard is the world's.
        beyond: Whether it matters only where the services break their bounds.
        looks: Whether the differential test of looks has to notice, instead of the simulation.
    """

    breaks: str
    patches: tuple[Patch, ...] = ()
    beyond: bool = False
    looks: bool = False


_SUBMITTER, _DECISION, _APPLY = "submission.protocol", "planning.decide", "operations.execute"

_NO_LIMIT = Patch(_SUBMITTER, "number > order.attempts:", "number > order.attempts + 9:")

GUARDS: Mapping[str, Guard] = {
    # Of the world: `run.Simulation` leaves these out.
    "credential-expiry": Guard("I1"),
    "claim": Guard("I1"),
    "settle": Guard("I1"),
    "try": Guard("I1"),
    "genesis": Guard("I"),
    "audit": Guard("I1", beyond=True),
    # Of the product.
    "suspend": Guard(
        "suspend",
        (Patch(_DECISION, "if self._job.manifest.reconcile.suspend:", "if False:"),),
    ),
    "attempts-limit": Guard("attempts", (Patch(_DECISION, "if left <= 0:", "if left <= -9:"), _NO_LIMIT)),
    "found-attempts-limit": Guard(
        "attempts",
        (_NO_LIMIT,),
    ),
    "set-up-tries": Guard("set-up", (Patch(_DECISION, "if tried >= TRIES and not is_due:", "if False:"),)),
    "set-up-pause": Guard(
        "set-up",
        (Patch(_SUBMITTER, "if order.not_before is not None and now < order.not_before:", "if False:"),),
    ),
    "set-up-in-the-cloud": Guard(
        "attempts",
        (Patch(_DECISION, 'if target.engine == "local" and one.set_up_failed]', "if one.set_up_failed]"),),
    ),
    "retry-after-failure": Guard(
        "attempts",
        (
            Patch(
                "planning.attempts",
                "return self.bound and self.state is State.FAILED",
                "return self.bound and self.state is not None and self.state.ended",
            ),
            Patch(_SUBMITTER, "if id.attempt == 1:", "if True:"),
        ),
    ),
    "older-stays": Guard(
        "elder",
        (
            Patch(
                "model.claimed_run",
                "return min(runs, key=lambda run: (run.state in _IN_VAIN, *age(run)))",
                "return max(runs, key=lambda run: (run.state not in _IN_VAIN, *age(run)))",
            ),
        ),
        beyond=True,
    ),
    "claim-does-not-choose": Guard(
        "elder",
        (
            Patch(
                "model.claimed_run",
                "return elder(own) if own else None",
                "return next((run for run in own if claim and run.resource == claim.resource), "
                "elder(own) if own else None)",
            ),
        ),
        beyond=True,
    ),
    "successor-first": Guard(
        "successor",
        (Patch(_APPLY, "for c in replaced if c.base_name not in missing | waiting", "for c in replaced"),),
    ),
    "successor-wanted": Guard(
        "successor",
        (
            Patch(
                "planning.planner",
                "return change.action is not Action.BLOCKED and "
                "change.stuck not in (NotDone.SUSPENDED, NotDone.GIVEN_UP)",
                "return True",
            ),
        ),
    ),
    "blind-listing": Guard(
        "blind",
        (Patch("submission.observe", "if labelled and is_old(ports, claim.id, job):", "if False:"),),
        beyond=True,
    ),
    "empty-listing": Guard(
        "blind",
        (
            Patch(
                "submission.observe",
                "if not own and all(claim.is_adopted for claim in missing):",
                "if False:",
            ),
        ),
        beyond=True,
    ),
    "blind-search": Guard(
        "blind",
        (Patch(_SUBMITTER, "check_search(self._ports, order.witnesses)", "pass"),),
        beyond=True,
    ),
    "instance-search": Guard(
        "I2",
        (Patch("submission.adoption", 'and job.labels.get(INSTANCE, "") == self._instance', ""),),
    ),
    "instance-listing": Guard(
        "instance",
        (
            Patch(
                "submission.observe",
                "if is_of_other_instance(run, ports.source, ports.instance)]",
                "if False]",
            ),
        ),
    ),
    "before-instance": Guard("instance", (Patch(_DECISION, "if fresh and self._doubtful:", "if False:"),)),
    "older-verdicts": Guard(
        "I3",
        (
            Patch(
                "operations.report",
                "red = [record for record in closed if newest and may_turn(view, record, newest)]",
                "red: list[CommitRecord] = []",
            ),
        ),
    ),
    "cancel-record": Guard(
        "I8",
        (
            Patch(
                "submission.claims_upkeep",
                "if ports.claims.write(replace(claim, error=reason), found.generation):",
                "if True:",
            ),
        ),
    ),
    "return-of-its-own": Guard(
        "attempts",
        (Patch("model.claim", 'return (reason or "").startswith(_BY_APPLY)', "return True"),),
    ),
    "returns-end": Guard(
        "returns",
        (
            Patch(
                _DECISION,
                "return len(self._stopped - {last.id.attempt}) < MOST_RETURNS",
                "return len(self._stopped - {last.id.attempt}) < MOST_RETURNS + 9",
            ),
        ),
    ),
    "tree-compared": Guard(
        "tree",
        (
            Patch(
                "model.applied_tree",
                "if relation in _IN_ORDER or allow_older:",
                "if True:",
            ),
        ),
    ),
    "tree-read-again": Guard(
        "tree",
        (Patch(_APPLY, "if not change.repair and (reason := self.withheld()):", 'if reason := "":'),),
    ),
    "adopt-unclaimed": Guard(
        "adopt",
        (Patch("submission.adoption", "if settled := _settled(adoption, observed):", "if settled := None:"),),
    ),
    "adopt-equal": Guard(
        "adopt",
        (Patch("submission.adoption", "if fields := _fields(adoption, job):", "if fields := ():"),),
    ),
    "adopt-live": Guard(
        "adopt",
        (Patch("submission.adoption", "if job.state.ended:", "if False:"),),
    ),
    "look-open": Guard(
        "look",
        (Patch("submission.look", "*summary.open, *announced_keys", "*announced_keys"),),
    ),
    "look-live": Guard(
        "look",
        (Patch("submission.look", "moving = {*open_, *live}", "moving = {*open_}"),),
        looks=True,
    ),
    "look-goes-on": Guard(
        "look",
        (Patch("submission.look", "and not may_go_on(job, kept[key])", ""),),
        looks=True,
    ),
    "look-restored": Guard(
        "look",
        (
            Patch(
                "submission.summary",
                "(_FORMAT, stored.place, stored.genesis)",
                "(_FORMAT, stored.place, preface.genesis)",
            ),
        ),
    ),
    "look-settled": Guard(
        "",
        (
            Patch(
                "submission.summary",
                "ended = all(run.state.ended and made(claim, run) for run in runs)",
                "ended = True",
            ),
        ),
    ),
    "look-former": Guard(
        "look",
        (Patch("submission.look", "if not set(summary.former)", "if not set[str]()"),),
        looks=True,
    ),
    "look-daily": Guard(
        "look",
        (Patch("submission.look", "stored.now - summary.taken > full_after", "False"),),
    ),
    "look-place": Guard(
        "look",
        (
            Patch(
                "submission.summary",
                "(_FORMAT, stored.place, stored.genesis)",
                "(_FORMAT, preface.place, stored.genesis)",
            ),
        ),
        looks=True,
    ),
    "look-part": Guard(
        "look",
        (Patch("submission.summary", "moving |= set(before.open) - needed", "pass"),),
        looks=True,
    ),
    "announce": Guard(
        "look",
        (Patch("submission.announcements", "if not new or (", "if True or ("),),
        looks=True,
    ),
    "announced-read": Guard(
        "look",
        (Patch("submission.look", "{*summary.open, *announced_keys(announced)}", "summary.open"),),
        looks=True,
    ),
    "announced-stays": Guard(
        "look",
        (Patch("submission.announcements", "if missing:", "if missing and one.by == self._by:"),),
        looks=True,
    ),
    "announced-uncertain": Guard(
        "look",
        (Patch("submission.announcements", "missing &= self._uncertain", "missing = set()"),),
        looks=True,
    ),
    "look-empty": Guard(
        "blind",
        (
            Patch(
                "submission.look",
                "if not found and all(claim.is_adopted for claim in missing):",
                "if False:",
            ),
        ),
        beyond=True,
    ),
    "paused-before-sending": Guard(
        "paused", (Patch(_SUBMITTER, "if self._clock.monotonic() > until:", "if False:"),)
    ),
    "paused-while-sending": Guard(
        "paused", (Patch("base.http.connections", "left = end - clock()", "left = seconds"),)
    ),
    "one-credential": Guard(
        "paused",
        (
            Patch(
                _SUBMITTER,
                "answer = self._jobs.create(order.claim.api_version, order.claim.kind, body, credential)",
                "answer = self._jobs.create(\n"
                "                order.claim.api_version,\n"
                "                order.claim.kind,\n"
                "                body,\n"
                "                self._ports.credentials.mint(),\n"
                "            )",
            ),
        ),
    ),
    "execution-counts-from-the-head": Guard(
        "I1",
        (
            Patch(
                _SUBMITTER,
                "expiry + self._bounds.executes + self._bounds.visible",
                "expiry + self._bounds.visible",
            ),
        ),
    ),
}
"""By the name that `--without` takes."""


def leave_out(name: str) -> None:
    """Import the product without a guard; to be called before any of it is imported."""
    for module, source in sources_without(name).items():
        replace_module(f"reconciler.{module}", _path(module), ast.parse(source))


def sources_without(name: str) -> dict[str, str]:
    """Return the changed sources by module; raise LookupError if a guard's lines aren't there."""
    changed: dict[str, str] = {}
    for patch in GUARDS[name].patches:
        source = changed.get(patch.module) or _source(patch.module)
        if source.count(patch.old) != 1:
            raise LookupError(f"guard {name}: reconciler.{patch.module} has to contain once: {patch.old}")
        changed[patch.module] = source.replace(patch.old, patch.new)
    return changed


def _path(module: str) -> Path:
    return PRODUCT.joinpath(*module.split(".")).with_suffix(".py")


def _source(module: str) -> str:
    return _path(module).read_text("utf-8")


def first_seed(name: str) -> tuple[int, str] | None:
    """Return the first seed that finds what a guard prevents, and the violation; None for none.

    The guard has to be left out already.
    """
    from .looks import Looks  # after a guard was left out
    from .run import Simulation

    guard = GUARDS[name]
    for seed in range(SEEDS):
        if guard.looks:
            violations = filter(None, [Looks(seed).run()])
        else:
            violations = Simulation(seed, beyond=guard.beyond, without=name).run().violations
        for violation in violations:
            if violation.startswith(guard.breaks):
                return seed, violation
    return None


def _run_alone(name: str) -> int:
    return subprocess.run([sys.executable, "-m", __spec__.name, name]).returncode


def main(names: list[str]) -> int:
    """Print the first seed for each guard; 1 if one has none."""
    if len(names) != 1:
        # Each in a process of its own, because the product is imported once; two at a time.
        with ThreadPoolExecutor(2) as pool:
            return max(pool.map(_run_alone, names or GUARDS))
    (name,) = names
    leave_out(name)
    found = first_seed(name)
    seed, said = found or ("-", f"no violation within {SEEDS} seeds")
    print(f"{name:30} seed {seed:>3}{'*' if GUARDS[name].beyond else ' '} {said}", flush=True)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
