"""The watch loop: passes, and the waits between them."""

from __future__ import annotations

import math
import time
from contextlib import suppress

from reconciler.operations.watch.http import Health
from reconciler.operations.watch.one_pass import run_pass
from reconciler.operations.watch.report import Teller
from reconciler.operations.watch.source import Source
from reconciler.operations.watch.state import Checkout, LoopCache, Pass, Result
from reconciler.operations.watch.wakeups import LOOKS, Chance, Stopped, Wakes, due_after


class Loop:
    """Loop that runs a pass on each change and at regular intervals until it is stopped.

    Args:
        source: The source of manifests.
        wakes: Events that end a wait.
        teller: Reporter of each pass.
        health: Health check, updated after each pass.
        resync: Seconds between passes without an event.
        chance: Random numbers for the backoff.
    """

    def __init__(
        self, source: Source, wakes: Wakes, teller: Teller, health: Health, resync: float, chance: Chance
    ) -> None:
        self._source = source
        self._wakes = wakes
        self._teller = teller
        self._health = health
        self._resync = resync
        self._chance = chance
        self._cache = LoopCache()
        self._previous: Pass | None = None
        self._failures = 0
        self._due = 0.0

    def run(self) -> None:
        """Run passes; return after a stop was requested."""
        changed = False
        with suppress(Stopped):
            while not self._wakes.stopping:
                if self._source.refresh() or changed or time.monotonic() >= self._due:
                    self._pass(self._source.checkout())
                changed = self._wakes.wait(min(self._due, self._source.due) - time.monotonic())
        self._teller.ending()

    def _pass(self, checkout: Checkout | None) -> None:
        if checkout is None:
            # The source has no commit yet; its own due time wakes the loop.
            self._due = math.inf
            return
        began = time.monotonic()
        result = run_pass(
            checkout,
            self._cache,
            self._previous,
            lambda: not self._wakes.stopping,
            self._teller.waiting,
            self._teller.carried_out,
        )
        ended = time.monotonic()
        self._health.passed()
        self._teller.passed(result, ended - began, checkout.commit)
        if result.jobs is not None:
            self._source.follow(result.jobs)
        self._failures = self._failures + 1 if result.result is Result.FAILED else 0
        look = LOOKS[result.engine]
        self._due = ended + due_after(
            self._failures, live=result.live, look=look, resync=self._resync, chance=self._chance
        )
        # An invalid manifest changes no job, so the pass after its correction compares with the one before.
        if result.result is not Result.INVALID:
            self._previous = result
