"""Following a log: looking again and again, a little back each time, without telling an entry twice.

A line may come late: another replica or trial may write, or the service take in, what is older than what was
told already.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from reconciler.job import LogEntry
from reconciler.services.cloudlog import JobLog

_MOST_REMEMBERED = 100_000
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Pace:
    """How a log is followed, all in seconds.

    Attributes:
        pause: Between two looks.
        lateness: How late a line may come.
        after_end: How long lines may come after the job has ended.
    """

    pause: float
    lateness: float
    after_end: float


LOCAL_PACE = Pace(pause=0.3, lateness=2.0, after_end=0.0)
"""A job here has ended when its last line is in its file."""
GOOGLE_PACE = Pace(pause=5.0, lateness=10.0, after_end=10.0)


def follow(
    log: JobLog, pace: Pace, ended: Callable[[], bool], clock: Callable[[], float] = time.monotonic
) -> Iterator[LogEntry | None]:
    """A log's entries as they come, each once, until the job has ended; None before each pause.

    Args:
        log: The log.
        pace: How often it is looked at, and how far back.
        ended: Whether the job has ended.
        clock: Seconds, going on with time.
    """
    told = Told(pace.lateness, clock)
    end_seen: float | None = None
    while True:
        # Asked before the entries are read: what a job wrote before it ended is then among them.
        if end_seen is None and ended():
            end_seen = clock()
        is_last = end_seen is not None and clock() >= end_seen + pace.after_end
        yield from (entry for entry in log.entries(told.since) if told.is_new(entry))
        if is_last:
            return
        told.forget()
        yield None
        time.sleep(pace.pause)


class Told:
    """The entries that were told of late.

    Args:
        lateness: How late, in seconds, an entry may come after others of its time.
        clock: Seconds, going on with time.
        most: How many are remembered: where a log is written faster, less of the past is looked at again.
    """

    def __init__(self, lateness: float, clock: Callable[[], float], most: int = _MOST_REMEMBERED) -> None:
        self._lateness = timedelta(seconds=lateness)
        self._clock = clock
        self._most = most
        self._recent: deque[tuple[float, datetime]] = deque()
        self._known: dict[tuple[str, str], datetime] = {}
        self._newest = self._floor = _LONG_AGO

    @property
    def since(self) -> str:
        """The time (RFC 3339) that the next look has to begin at, "" for the log's beginning."""
        return "" if self._floor == _LONG_AGO else self._floor.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def is_new(self, entry: LogEntry) -> bool:
        """Whether the entry wasn't told yet; it counts as told from now on."""
        key = (entry.timestamp, entry.insert_id)
        if key in self._known:
            return False
        moment = self._moment(entry.timestamp)
        self._newest = max(self._newest, moment)
        self._known[key] = moment
        self._recent.append((self._clock(), moment))
        if len(self._recent) >= 2 * self._most:
            self.forget()
        return True

    def forget(self) -> None:
        """Forget what no look has to begin before any more."""
        while len(self._recent) > self._most:
            self._floor = max(self._floor, self._recent.popleft()[1])
        sure = self._newest - self._lateness
        told_before = self._clock() - self._lateness.total_seconds()
        while self._recent and self._recent[0][0] < told_before:
            sure = max(sure, self._recent.popleft()[1])
        # A trainer may send entries with times of its own: one of tomorrow must not hide all until then.
        self._floor = max(self._floor, min(sure, datetime.now(UTC) - self._lateness))
        # Those of the very time that is asked from are given again.
        self._known = {key: moment for key, moment in self._known.items() if moment >= self._floor}

    def _moment(self, timestamp: str) -> datetime:
        """The entry's time; the newest known where it has none."""
        try:
            return max(_LONG_AGO, datetime.fromisoformat(timestamp).astimezone(UTC))
        except (ValueError, OverflowError):
            return self._newest
