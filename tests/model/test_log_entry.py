"""The severity that readers see beside a line of a log."""

from __future__ import annotations

import pytest

from reconciler.model.job import LogEntry


@pytest.mark.parametrize(
    ("severity", "replica", "shown"),
    [
        ("ERROR", "workerpool0-0", ""),
        ("ERROR", "service", "ERROR "),
        ("ERROR", "", "ERROR "),
        ("WARNING", "workerpool0-0", "WARNING "),
        ("WARNING", "service", "WARNING "),
        ("INFO", "workerpool0-0", ""),
        ("INFO", "", ""),
        ("DEFAULT", "service", ""),
        ("DEFAULT", "workerpool0-0", ""),
    ],
)
def test_a_severity_is_shown_unless_it_says_nothing(severity: str, replica: str, shown: str) -> None:
    entry = LogEntry("2026-01-01T00:00:00Z", severity, "a line", replica=replica)
    assert entry.shown_severity == shown
