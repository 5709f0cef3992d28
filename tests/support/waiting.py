"""Waits for other threads or processes.

A wait ends with its event. Its limit is only for an event that never comes, and is beyond any machine's load.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 600.0
"""Seconds after which an expected event is never going to happen."""


def until(what: Callable[[], Any], meanwhile: Callable[[], object] = lambda: None) -> Any:
    """Call `meanwhile` again and again until `what` is true, and return its value."""
    give_up = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < give_up, "it never came true"
        meanwhile()
        time.sleep(0.01)
    return found


def patience(seconds: float) -> float:
    """Return the limit of a prompt action: `seconds` on an idle machine, more on a busy machine."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
