"""Events on stderr: one line each, as text or JSON."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

from reconciler.base.sanitize import one_line


def events(log_format: str, level: int = 20, stream: TextIO | None = None) -> Any:
    """Return a structlog logger for `text` or `json`, which prints sanitized values to stderr by default.

    The default level is `logging.INFO`, without the import of `logging`, which a plan doesn't need.
    """
    import structlog

    renderer: Any = structlog.processors.JSONRenderer() if log_format == "json" else _as_text
    return structlog.wrap_logger(
        structlog.PrintLogger(stream or sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            _sanitize_values,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )


def _sanitize_values(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {key: one_line(value) if isinstance(value, str) else value for key, value in event.items()}


def _as_text(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
    """Return `TIME EVENT JOB key=value …` on one line; a job and a message have no key."""
    time, name = event.pop("timestamp"), event.pop("event")
    event.pop("level")
    bare = ("job", "message")
    rest = "".join(f"  {value}" if key in bare else f"  {key}={value}" for key, value in event.items())
    return f"{time[11:19]}  {name:10}{rest}".rstrip()
