"""What the program tells while it works: to stderr, as text for people or as JSON for machines."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any


@cache
def events(log_format: str) -> Any:
    """A structlog logger; `log_format` is `text` or `json`."""
    import structlog

    renderer: Any = structlog.processors.JSONRenderer() if log_format == "json" else _as_text
    return structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
    )


def _as_text(logger: Any, method: str, event: dict[str, Any]) -> str:
    """`TIME EVENT key=value …`, one line."""
    time, what = event.pop("timestamp"), event.pop("event")
    event.pop("level")
    rest = "".join(f"  {value}" if key == "job" else f"  {key}={value}" for key, value in event.items())
    return f"{time[11:19]}  {what:10}{rest}"
