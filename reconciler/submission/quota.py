"""How many creates a service takes: a pace that all of them keep, and what happens once it refuses one.

A quota is the project's, so that a create that was refused for it says something about all others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from math import inf

from reconciler.base.errors import ServiceError
from reconciler.model.ports import Answer, Clock, Created, Refused, Taken

USED_UP = 429
"""The HTTP status of a create that is refused for a quota."""

_FIRST = timedelta(seconds=30)
_LONGEST = timedelta(hours=1)


class NotBegunError(ServiceError):
    """A submission that isn't begun: nothing is claimed or sent for it; "" where nothing more shall be."""


class Quota:
    """Lets creates go, one after the other; may be used from several threads.

    Two moments are kept apart by the pace. The begin of a submission, which may be put off for long: before
    it, nothing is claimed, and no credential runs out. And its create, as what comes between the two takes
    now more, now less.

    Args:
        clock: The process's own.
        chance: Gives that many random bytes.
        pace: Seconds from one create to the next.
        patience: Seconds from the first refusal, with no create taken since, within which the next create has
            to be allowed: otherwise nothing waits for that.
        pause: Seconds after which who waits looks whether to go on.
        tell: Gets a line about what is waited for.
        go_on: Whether what isn't begun still may be.
    """

    def __init__(
        self,
        clock: Clock,
        chance: Callable[[int], bytes],
        pace: float = 0.0,
        patience: float = inf,
        pause: float = 2.0,
        tell: Callable[[str], None] = lambda line: None,
        go_on: Callable[[], bool] = lambda: True,
    ) -> None:
        self._clock = clock
        self._chance = chance
        self._pace = pace
        self._patience = patience
        self._pause = pause
        self._tell = tell
        self._go_on = go_on
        self._lock = threading.Lock()
        self._begins_next = -inf
        self._sends_next = -inf
        self._held_until = -inf
        self._refusals = 0
        self._first_refusal = inf
        self._why = ""

    @property
    def held_for(self) -> float:
        """Seconds in which no create may be sent because one was refused; 0 for none."""
        with self._lock:
            return max(0.0, self._held_until - self._clock.monotonic())

    def check(self) -> None:
        """Raise NotBegunError where the next create is allowed only after patience is over."""
        with self._lock:
            self._check(self._clock.monotonic())

    def begin(self) -> None:
        """Wait until a submission may begin; raises NotBegunError where that takes longer than patience."""
        while True:
            with self._lock:
                now = self._clock.monotonic()
                free = max(self._begins_next, self._held_until)
                if free <= now:
                    self._begins_next = now + self._pace
                    return
                self._check(now)
            if not self._go_on():
                raise NotBegunError("")
            self._clock.sleep(min(free - now, self._pause))

    def take(self, until: float) -> float:
        """Wait for the turn of one create.

        Args:
            until: When it is too late for it, by the clock.

        Returns:
            0 where it may be sent now; else the seconds that are left until it could be.
        """
        while True:
            with self._lock:
                now = self._clock.monotonic()
                free = max(self._sends_next, self._held_until)
                if free <= now:
                    self._sends_next = now + self._pace
                    return 0.0
                if free > until:
                    return free - now
            self._clock.sleep(min(free - now, self._pause))

    def answered(self, answer: Answer) -> None:
        """Learn from the answer to a create: one that was refused for a quota holds up all others."""
        if isinstance(answer, Refused) and answer.status == USED_UP:
            self._refused(answer)
        elif isinstance(answer, Created | Taken | Refused):
            with self._lock:
                # What was sent before the refusal, and is answered after it, says nothing about it.
                if self._clock.monotonic() >= self._held_until:
                    self._refusals, self._first_refusal = 0, inf

    def backoff(self, refusals: int, asked: float | None) -> timedelta:
        """How long to wait after so many refusals in a row; by chance up to half as long again.

        It doubles from 30 s to an hour, and is at least what the service asks for, of which an hour counts.
        Chance parts those whose create was refused at the same moment.

        Args:
            refusals: At least 1.
            asked: The seconds that the service asks to wait; None where it doesn't.
        """
        doubled = min(_FIRST * 2.0 ** min(refusals - 1, 10), _LONGEST)
        wished = timedelta(seconds=min(asked or 0.0, _LONGEST.total_seconds()))
        share = int.from_bytes(self._chance(8), "big") / 2**64
        return max(doubled, wished) * (1.0 + share / 2)

    def _check(self, now: float) -> None:
        if now < self._held_until and self._held_until - self._first_refusal > self._patience:
            raise NotBegunError(f"not begun, as the service takes no more now: {self._why}")

    def _refused(self, answer: Refused) -> None:
        with self._lock:
            now = self._clock.monotonic()
            # Several may be under way when the first is refused: theirs is the same refusal.
            is_news = now >= self._held_until
            if is_news:
                self._refusals += 1
                self._first_refusal = min(self._first_refusal, now)
            delay = self.backoff(self._refusals, answer.retry_after).total_seconds()
            self._held_until = max(self._held_until, now + delay)
            self._why = answer.message
            waits = self._held_until - self._first_refusal <= self._patience
        if is_news:
            then = f"trying again in {delay:.0f} s" if waits else "what isn't begun is left to the next apply"
            self._tell(f"the service takes no more submissions now ({answer.message}); {then}")
