"""What is remembered while a log is followed: each entry is printed once, late ones too."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from reconciler.cli.logs import PrintedEntries
from reconciler.model.job import LogEntry

LATENESS = 10.0
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def entry(second: float, number: int = 0) -> LogEntry:
    return LogEntry(
        (BEGIN + timedelta(seconds=second)).isoformat().replace("+00:00", "Z"), "INFO", "", str(number)
    )


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def look(printed: PrintedEntries, log: list[LogEntry]) -> list[LogEntry]:
    """What one look tells of what is in the log."""
    found = sorted((each for each in log if each.timestamp >= printed.since), key=lambda each: each.timestamp)
    new = [each for each in found if printed.add(each)]
    printed.forget()
    return new


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=60),
    st.lists(st.integers(1, 7), min_size=1, max_size=30),
)
def test_an_entry_that_is_late_within_the_limit_is_told_once(
    written: list[tuple[int, int]], pauses: list[int]
) -> None:
    # Each entry has its time, and is seen in the log so many seconds later.
    log = [(at + late, entry(at, number)) for number, (at, late) in enumerate(written)]
    clock = Clock()
    printed = PrintedEntries(LATENESS, clock)
    found: list[LogEntry] = []
    for pause in [*pauses, 100]:
        clock.seconds += pause
        found += look(printed, [each for seen, each in log if seen <= clock.seconds])
    assert sorted(found, key=str) == sorted((each for _, each in log), key=str)


def test_what_is_remembered_has_an_end() -> None:
    printed = PrintedEntries(LATENESS, Clock(), most=100)
    for number in range(1000):
        assert printed.add(entry(number / 1000, number))
    assert len(printed._times) < 200
    printed.forget()
    assert printed.since > "2026-01-01T00:00:00.8"
    assert not printed.add(entry(0.999, 999))


def test_a_quiet_log_is_not_read_again_and_again() -> None:
    clock = Clock()
    printed = PrintedEntries(LATENESS, clock)
    for number in range(50):
        printed.add(entry(number, number))
    printed.forget()
    assert printed.since == "2026-01-01T00:00:39.000000Z"
    clock.seconds += LATENESS + 1
    printed.forget()
    assert printed.since == "2026-01-01T00:00:49.000000Z"
    assert len(printed._times) == 1


def test_an_entry_of_tomorrow_hides_nothing_of_today() -> None:
    clock = Clock()
    printed = PrintedEntries(LATENESS, clock)
    now = datetime.now(UTC)
    tomorrow = LogEntry((now + timedelta(days=1)).isoformat(), "INFO", "", "1")
    assert printed.add(tomorrow)
    clock.seconds += LATENESS + 1
    printed.forget()
    assert printed.since <= now.isoformat()
    assert not printed.add(tomorrow)


def test_entries_without_a_readable_time_are_told_too() -> None:
    printed = PrintedEntries(LATENESS, Clock())
    assert printed.add(LogEntry("", "INFO", "", "1"))
    assert printed.add(LogEntry("yesterday", "INFO", "", "1"))
    printed.forget()
    assert printed.since == ""
