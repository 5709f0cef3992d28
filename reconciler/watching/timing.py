"""When the next pass is due."""

from __future__ import annotations

from collections.abc import Callable

RESYNC = 300.0
"""Seconds from one pass to the next where nothing happens, by default."""

LONGEST_BACKOFF = 300.0
_FIRST_BACKOFF = 2.0

LOOKS = {"local": 2.0, "google": 60.0}
"""Seconds from one look to the next while something goes on by itself, by engine."""

STILL = 0.3
"""Seconds without a change after which the files are taken for what they are meant to be."""

LONGEST_UNREST = 5.0
"""Seconds of change after change that a pass is put off at most."""

Chance = Callable[[], float]
"""Gives a number from 0 to 1, each as likely as any other."""


def backoff(failures: int, chance: Chance) -> float:
    """Seconds to wait after so many failures in a row: anything up to a bound that doubles (full jitter)."""
    doubled = _FIRST_BACKOFF * 2.0 ** min(failures - 1, 30)
    return chance() * min(LONGEST_BACKOFF, doubled)


def due_after(failures: int, *, live: bool, look: float, resync: float, chance: Chance) -> float:
    """Seconds from the end of a pass to the next one.

    Args:
        failures: How many passes in a row have failed, this one included.
        live: Whether something goes on that the next pass may see more of.
        look: Seconds from one look to the next meanwhile.
        resync: Seconds to the next pass where nothing does.
        chance: For the backoff.
    """
    if failures:
        return backoff(failures, chance)
    return min(look, resync) if live else resync


def still_at(first: float, last: float) -> float:
    """When the files are taken to be still, after changes of which the first and the last came then."""
    return min(last + STILL, first + LONGEST_UNREST)
