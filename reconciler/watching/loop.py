"""The loop itself."""

from __future__ import annotations

import math
import time
from contextlib import suppress

from reconciler.watching.listener import Health
from reconciler.watching.sources import Source
from reconciler.watching.telling import Teller
from reconciler.watching.timing import LOOKS, Chance, due_after
from reconciler.watching.turn import Checkout, Result, Turn, one_turn
from reconciler.watching.wakes import Stopped, Wakes


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
        self._before: Turn | None = None
        self._failures = 0
        self._due = 0.0

    def run(self) -> None:
        """Go round; returns when the end was asked for."""
        changed = False
        with suppress(Stopped):
            while not self._wakes.stopping:
                if self._source.refresh() or changed or time.monotonic() >= self._due:
                    self._pass(self._source.checkout())
                changed = self._wakes.wait(min(self._due, self._source.due) - time.monotonic())
        self._teller.ending()

    def _pass(self, checkout: Checkout | None) -> None:
        if checkout is None:
            self._due = math.inf  # until the source has something
            return
        began = time.monotonic()
        turn = one_turn(checkout, self._before, lambda: not self._wakes.stopping, self._teller.waiting)
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
        self._before = turn
