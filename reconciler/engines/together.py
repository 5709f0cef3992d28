"""Several readings at once, where each waits for a service that is far away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from reconciler.meanwhile import Meanwhile

Answer = TypeVar("Answer")


def together(calls: Sequence[Callable[[], Answer]], *, threads: bool) -> list[Answer]:
    """What each call gives, in order.

    Args:
        calls: Made one after the other without `threads`; with them, each in a thread of its own. All end
            before anything is raised, and of what they raise, the first one's counts.
    """
    if not threads:
        return [call() for call in calls]
    begun = [Meanwhile(call) for call in calls]
    for each in begun:
        each.begin()
    for each in begun:
        each.end()
    return [each.result() for each in begun]
