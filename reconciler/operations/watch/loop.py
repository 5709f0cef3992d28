"""The loop itself."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from reconciler.operations.watch.http import Health
from reconciler.operations.watch.one_pass import Checkout, Remembered, Result, Turn, look_ahead, one_turn
from reconciler.operations.watch.report import Teller
from reconciler.operations.watch.source import Source
from reconciler.operations.watch.wakeups import LOOKS, Chance, Stopped, Wakes, due_after

_COLLECTED_FROM = 50_000


@contextmanager
def rare_collections() -> Iterator[None]:
    """Within, the garbage collector leaves passes alone; each is followed by `gc.collect(0)`.

    A pass over 10,000 manifests makes some 20,000 objects and drops as many, which needs no collector. By its
    default, from 700 new objects on, it walks all that is remembered in every third pass: a quarter of what
    the passes cost. What a pass leaves that only keeps itself is among the newest objects.
    """
    before = gc.get_threshold()
    gc.set_threshold(_COLLECTED_FROM, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Loop:
    """Pass after pass, until the end is asked for.

    Args:
        source: Where manifests come from.
        wakes: What ends the time between two passes.
        teller: Is told of each pass.
        health: Is told that there was one.
        resync: Seconds to the next pass where nothing happens.
        chance: For the backoff.
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
        self._remembered = Remembered()
        self._checkout: Checkout | None = None
        self._before: Turn | None = None
        self._failures = 0
        self._due = 0.0

    def run(self) -> None:
        """Go round; returns when the end was asked for."""
        changed = False
        with suppress(Stopped), rare_collections():
            while not self._wakes.stopping:
                if self._source.refresh() or changed or time.monotonic() >= self._due:
                    self._pass(self._source.checkout())
                wait = min(self._due, self._source.due) - time.monotonic()
                changed = self._wakes.wait(wait, self._look_ahead)
        self._teller.ending()

    def _look_ahead(self) -> None:
        if self._checkout is not None and self._before is not None:
            look_ahead(self._checkout, self._remembered, self._before)

    def _pass(self, checkout: Checkout | None) -> None:
        if checkout is None:
            self._due = math.inf  # until the source has something
            return
        began = time.monotonic()
        turn = one_turn(
            checkout,
            self._remembered,
            self._before,
            lambda: not self._wakes.stopping,
            self._teller.waiting,
            self._teller.carried_out,
        )
        ended = time.monotonic()
        self._health.passed()
        self._teller.passed(turn, ended - began, checkout.commit)
        if turn.jobs is not None:
            self._source.follow(turn.jobs)
        self._failures = self._failures + 1 if turn.result is Result.FAILED else 0
        look = LOOKS[turn.engine]
        self._due = ended + due_after(
            self._failures, live=turn.live, look=look, resync=self._resync, chance=self._chance
        )
        self._checkout = checkout
        # Where the manifests can't be used, nothing is done: once they are mended, all may be as it was.
        if turn.result is not Result.INVALID:
            self._before = turn
        gc.collect(0)
