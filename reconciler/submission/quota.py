"""Rate limiter for create requests: a common pace, and a common pause after a refusal.

A quota belongs to the project, so a refused create holds up all others.
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
    """A submission without a claim and a request; the message is "" if apply was stopped."""


class Quota:
    """Thread-safe rate limiter for create requests.

    It paces two events: the begin of a submission, which may wait for long, as no claim is written and no
    credential minted yet; and its create, as the time between the two varies.

    Args:
        clock: The process's own clock.
        chance: Returns the given number of random bytes.
        pace: Seconds between two creates.
        patience: Longest wait in seconds, from the first refusal since the last accepted create; a submission
            that would wait longer is not begun.
        pause: Seconds between two checks of `go_on` during a wait.
        tell: Receives a line about the wait.
        go_on: Returns False if no further submission may begin.
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
        """Remaining seconds of the pause after a refusal; 0 without a pause."""
        with self._lock:
            return max(0.0, self._held_until - self._clock.monotonic())

    def check(self) -> None:
        """Raise NotBegunError if the pause after a refusal exceeds the patience."""
        with self._lock:
            self._check(self._clock.monotonic())

    def begin(self) -> None:
        """Wait until a submission may begin; raise NotBegunError if that exceeds the patience."""
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
        """Wait until a create may be sent.

        Args:
            until: Deadline, by the clock.

        Returns:
            0 if it may be sent now; otherwise the remaining seconds of a wait beyond the deadline.
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
        """Update the pause from the answer to a create: a refusal for a quota holds up all others."""
        if isinstance(answer, Refused) and answer.status == USED_UP:
            self._refused(answer)
        elif isinstance(answer, Created | Taken | Refused):
            with self._lock:
                # An answer to a create from before the refusal must not end the pause.
                if self._clock.monotonic() >= self._held_until:
                    self._refusals, self._first_refusal = 0, inf

    def backoff(self, refusals: int, asked: float | None) -> timedelta:
        """Return the wait after consecutive refusals, with random jitter of up to half.

        It doubles from 30 s to an hour, and is at least the time that the service asks for, up to an hour.

        Args:
            refusals: At least 1.
            asked: Seconds that the service asks to wait; None if it doesn't.
        """
        doubled = min(_FIRST * 2.0 ** min(refusals - 1, 10), _LONGEST)
        wished = timedelta(seconds=min(asked or 0.0, _LONGEST.total_seconds()))
        # The jitter keeps reconcilers apart that were refused at the same moment.
        share = int.from_bytes(self._chance(8), "big") / 2**64
        return max(doubled, wished) * (1.0 + share / 2)

    def _check(self, now: float) -> None:
        if now < self._held_until and self._held_until - self._first_refusal > self._patience:
            raise NotBegunError(f"not submitted, as the service accepts no more now: {self._why}")

    def _refused(self, answer: Refused) -> None:
        with self._lock:
            now = self._clock.monotonic()
            # Creates in flight are refused together: they count as a single refusal.
            is_news = now >= self._held_until
            if is_news:
                self._refusals += 1
                self._first_refusal = min(self._first_refusal, now)
            delay = self.backoff(self._refusals, answer.retry_after).total_seconds()
            self._held_until = max(self._held_until, now + delay)
            self._why = answer.message
            waits = self._held_until - self._first_refusal <= self._patience
        if is_news:
            then = f"trying again in {delay:.0f} s" if waits else "the next apply submits the rest"
            self._tell(f"the service accepts no more submissions now ({answer.message}); {then}")
