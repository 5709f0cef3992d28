"""Judgements and publications whose texts others chose."""

from __future__ import annotations

from datetime import UTC, datetime

from reconciler.model.expectation import (
    Expectation,
    Judged,
    Judgement,
    Measured,
    Missing,
    Rival,
    Uncompared,
)
from reconciler.model.manifest import Publish
from reconciler.model.plan import Action, Change, Drift, DriftKind, Plan, Target
from reconciler.model.publication import CurrentModel
from reconciler.model.reason import Note, NoteCode, ReasonCode, because
from reconciler.model.standing import Publication, Standing

NOW = datetime(2026, 1, 2, tzinfo=UTC)
TARGET = Target("prod", "google", "acme", "europe-west4")


def hostile_judgement(text: str) -> Judgement:
    """Return a judgement on a metric with this name, in files with it."""
    missing = (Measured(None, missing, (text, text)) for missing in (Missing.NOT_NAMED, Missing.TWO_VALUES))
    judged = [Judged(Expectation(text, max=1.0), m) for m in (*missing, Measured(0.5))]
    worse = Expectation(text, worse=0.1, goal="max")
    rivals = Rival(text, {text: 0.9}), Rival(text, {}, Uncompared.NOT_RECORDED)
    return Judgement((*judged, *(Judged(worse, Measured(0.5), rival) for rival in rivals)))


def published_plan(text: str) -> Plan:
    """Return the plan of publications where others publish, whose names and files are this."""
    current = CurrentModel(text, text, text, "0" * 64, text, text, commit="", time=NOW, ancestors=())
    judged = {"ended": NOW, "judgement": hostile_judgement(text), "replaces": text, "taken_from": text}
    reasons = (
        because(ReasonCode.PUBLISH, to=text, **judged),
        because(ReasonCode.PUBLISHED_BY_OTHER, to=text, other=text, same_source=True),
        because(ReasonCode.PUBLISHED_BY_OTHER, to=text, other=text, same_source=False),
        because(ReasonCode.PUBLISHED_BY_OTHER_JOB, to=text, other=text),
        because(ReasonCode.PUBLISHED_BY_UNKNOWN_JOB, to=text, other=text),
        because(ReasonCode.PUBLICATION_CHANGED, to=text, job_name=text, files=(text, text)),
        because(ReasonCode.PUBLICATION_INCOMPLETE, files=(text,)),
        because(ReasonCode.PUBLICATION_UNREAD, why=text),
    )
    changes = (
        Change(
            Action.PUBLISH if number == 0 else Action.BLOCKED,
            reason,
            "census",
            "census_0",
            "CustomJob",
            "a.yaml",
            3,
            publication=Publication(Publish(text), Standing.REFUSED, reason, current),
        )
        for number, reason in enumerate(reasons)
    )
    note = Note(NoteCode.NOT_AS_PUBLISHED, {"to": text, "files": text})
    drift = Drift(DriftKind.UNPUBLISHED, "census_0", "census", note)
    return Plan(TARGET, tuple(changes), (drift,), "sha256:" + "0" * 64)
