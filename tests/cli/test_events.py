"""The event log: inert in both formats."""

from __future__ import annotations

import io
import logging

from reconciler.cli.events import events


def test_text_of_others_is_inert_in_both_forms() -> None:
    for form in ("json", "text"):
        stream = io.StringIO()
        events(form, logging.INFO, stream).info("drift", job="a\x1b[2Jb\n::error::c", detail="##[error]x")
        line = stream.getvalue()
        assert line.count("\n") == 1
        assert "\x1b" not in line
        assert "##[error]" not in line


def test_events_below_the_level_are_not_told() -> None:
    stream = io.StringIO()
    log = events("text", logging.WARNING, stream)
    log.info("pass")
    log.debug("pass")
    log.warning("failed", message="it")
    assert [line.split()[1:] for line in stream.getvalue().splitlines()] == [["failed", "it"]]
