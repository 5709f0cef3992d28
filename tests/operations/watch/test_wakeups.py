"""Due times of passes, and the events that wake the loop."""

from __future__ import annotations

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.operations.watch.wakeups import (
    LONGEST_BACKOFF,
    LONGEST_UNREST,
    STILL,
    Stopped,
    Wakes,
    backoff,
    due_after,
    still_at,
)

seconds = st.floats(0, 1e6)

chances = st.floats(0, 1, exclude_max=True)


class TestTiming:
    @given(st.integers(1, 10_000), chances)
    def test_a_backoff_has_bounds_that_grow(self, failures: int, chance: float) -> None:
        waits = backoff(failures, lambda: chance)
        assert 0 <= waits <= LONGEST_BACKOFF
        assert waits <= backoff(failures + 1, lambda: chance)
        assert backoff(failures, lambda: 0.0) == 0.0, "any wait may be short: full jitter"

    def test_a_backoff_begins_short_and_becomes_minutes(self) -> None:
        longest = [backoff(failures, lambda: 1.0) for failures in range(1, 12)]
        assert longest[:3] == [2.0, 4.0, 8.0]
        assert longest[-1] == LONGEST_BACKOFF == 300.0

    @given(st.integers(0, 50), st.booleans(), seconds, seconds, chances)
    def test_the_next_pass_is_never_later_than_the_resync_or_the_backoff(
        self, failures: int, live: bool, look: float, resync: float, chance: float
    ) -> None:
        due = due_after(failures, live=live, look=look, resync=resync, chance=lambda: chance)
        assert 0 <= due <= (LONGEST_BACKOFF if failures else resync)
        if not failures:
            assert due == (min(look, resync) if live else resync)

    @given(seconds, st.lists(st.floats(0, 1.0), max_size=50))
    def test_files_are_still_soon_after_the_last_change(self, first: float, steps: list[float]) -> None:
        last = first + sum(steps)
        at = still_at(first, last)
        assert first < at <= first + LONGEST_UNREST
        assert at == last + STILL or at == first + LONGEST_UNREST


class TestWakes:
    def test_it_is_over_without_a_change(self) -> None:
        assert Wakes().wait(0.01) is False

    def test_a_change_from_another_thread_is_told_once_files_are_still(self) -> None:
        wakes = Wakes()
        thread = threading.Thread(target=wakes.change)
        thread.start()
        assert wakes.wait(60) is True
        thread.join()
        assert wakes.wait(0) is False

    def test_a_pass_that_is_due_is_put_off_while_files_change(self) -> None:
        times = iter([0.0, 10.0, 10.0, 10.0, 10.2, 10.2, 99.0])
        wakes = Wakes(lambda: next(times))
        wakes.change()  # at 0
        wakes.change()  # at 10: after it was due
        assert wakes.wait(0) is True

    def test_the_end_ends_every_wait(self) -> None:
        wakes = Wakes()
        wakes.stop()
        assert wakes.stopping
        assert wakes.wait(math.inf) is False

    def test_only_what_can_be_left_off_is_interrupted(self) -> None:
        wakes = Wakes()
        with pytest.raises(Stopped), wakes.left_off_at_stop():
            wakes.stop()
        wakes.stop()
        with pytest.raises(Stopped), wakes.left_off_at_stop():
            pytest.fail("it must not begin any more")
