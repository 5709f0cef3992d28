"""What the program tells while it works: to stderr, as text for people or as JSON for machines.

One line for one event. Values may be anybody's text: in both forms they are inert.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

from reconciler.base.sanitize import one_line


def events(log_format: str, level: int = logging.INFO, stream: TextIO | None = None) -> Any:
    """A structlog logger.

    Args:
        log_format: `text` or `json`.
        level: The least that is told, a level of `logging`.
        stream: Where to, by default stderr.
    """
    import structlog

    renderer: Any = structlog.processors.JSONRenderer() if log_format == "json" else _as_text
    return structlog.wrap_logger(
        structlog.PrintLogger(stream or sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            _inert,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )


def _inert(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {key: one_line(value) if isinstance(value, str) else value for key, value in event.items()}


def _as_text(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
    """`TIME EVENT JOB key=value …`, one line; a job and a message need no key."""
    time, what = event.pop("timestamp"), event.pop("event")
    event.pop("level")
    bare = ("job", "message")
    rest = "".join(f"  {value}" if key in bare else f"  {key}={value}" for key, value in event.items())
    return f"{time[11:19]}  {what:10}{rest}".rstrip()
