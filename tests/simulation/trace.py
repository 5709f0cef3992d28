"""Text form of a run's trace."""

from __future__ import annotations

from collections.abc import Iterable


def text_of(log: Iterable[tuple[float, str, str]]) -> str:
    """Return a line for each step: the service's time in seconds, the actor, the action."""
    return "\n".join(f"{now:12.1f}  {who:<10}  {what}" for now, who, what in log)
