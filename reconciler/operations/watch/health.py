"""Health of `watch`: passes must keep ending in time."""

from __future__ import annotations

import time
from collections.abc import Callable

from reconciler.base.listener.message import TEXT, Response


class Health:
    """Health check: passes must keep ending in time.

    Args:
        longest: Maximum number of seconds between the ends of two passes, or from the start to the first end.
        monotonic: Returns the time in seconds.
    """

    def __init__(self, longest: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._longest = longest
        self._monotonic = monotonic
        self._last = monotonic()

    def passed(self) -> None:
        """Record the end of a pass."""
        self._last = self._monotonic()

    def page(self) -> Response:
        """Return status 200, or 503 if no pass has ended for too long."""
        ago = self._monotonic() - self._last
        well = ago <= self._longest
        text = f"{'ok' if well else 'stuck'}: the last pass ended {ago:.0f} s ago\n"
        return Response(200 if well else 503, TEXT, text.encode())
