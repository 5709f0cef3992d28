"""Sentences beside the reasons of a plan: notes, details of drift, and the effects of changed settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reconciler.model.job import State
from reconciler.model.reason import NotCancelled, Note, NoteCode
from reconciler.planning.settings_changes import setting_of

_EARLIER = "if the run of the earlier content is still live"
_NOTES: Mapping[NoteCode, str] = {
    NoteCode.NOT_ASKED: "submitted unless this content already ran",
    NoteCode.CANCELLED_IF_LIVE: "if its run is still live, it is cancelled",
    NoteCode.CONTINUES_ORPHANED: "if its run is still live, it continues, and is reported as orphaned",
    NoteCode.NOTHING_CANCELLED: (
        "nothing is cancelled while there is no manifest at all; a live run is reported as orphaned"
    ),
    NoteCode.MAYBE_MOVED: "only the given paths are compared: it may have moved elsewhere",
    NoteCode.EARLIER_RUN_CONTINUES: f"{_EARLIER}, it continues",
    NoteCode.EARLIER_RUN_CANCELLED: f"{_EARLIER}, it is cancelled once this one is submitted",
    NoteCode.EARLIER_RUN_ALONGSIDE: f"{_EARLIER}, it continues alongside this one",
    NoteCode.KIND: "kind: {before} → {after}",
    NoteCode.SUSPENDED: "suspended from now on; a live run continues",
    NoteCode.NO_LONGER_SUSPENDED: "no longer suspended; what ran before isn't submitted again",
    NoteCode.ATTEMPTS: "attempts: {before} → {after}",
    NoteCode.ON_CHANGE: "onChange: {before} → {after}",
    NoteCode.ON_DELETE: "onDelete: {before} → {after}",
    NoteCode.EXPECT: "expect changed",
    NoteCode.PUBLISH: "publish changed",
    NoteCode.LABELS: "the labels changed",
    NoteCode.MOVED: "moved from {path}",
    NoteCode.RENAMED: 'it was written "{name}"',
    NoteCode.DELETED_OUTSIDE: "the service no longer has it, and its final state is unknown",
    NoteCode.CANCELLED_OUTSIDE: "cancelled, although a manifest asks for it",
    NoteCode.LABELS_DIFFER: "its labels differ from those it was submitted with",
    NoteCode.OVERWRITTEN: "{job_name} ({state}), which began or ended later, has the same folder {folder}",
    NoteCode.FILE_CHANGED: "{files}, which its metrics were read from, changed since; the verdict stays",
    NoteCode.NOT_AS_PUBLISHED: "{files} below {to} isn't what was published",
    NoteCode.OLD_CONTENT: "{state} with content that {path} no longer has",
    NoteCode.NO_MANIFEST: "{state}, but no manifest asks for it",
    NoteCode.SECOND_RUN: "a second run of the same attempt ({state}): {resource} beside {stays}",
    NoteCode.RUN_WITHOUT_REQUEST: ("{resource} ({state}) has its labels, but no recorded request created it"),
    NoteCode.RUN_OF_OTHERS: "{resource} ({state}) has the same content and belongs to {owner}",
}
"""By code, with the places of the values."""
_AGAINST: Mapping[NotCancelled, str] = {
    NotCancelled.NO_CLAIM: "it is not cancelled: it has no claim",
    NotCancelled.NO_REQUEST: "it is not cancelled: no recorded request created it",
    NotCancelled.NO_MANIFEST: "nothing is cancelled while there is no manifest at all",
}
_WHERE = "where jobs run"
_EFFECTS = {
    "source": "which runs belong to this repository",
    "engine": _WHERE,
    "project": _WHERE,
    "location": _WHERE,
    "instance": "which runs and claims belong to the environment",
    "claimsBucket": "where claims are kept",
    "stagingBucket": "where code is uploaded",
    "submitter": "which account submits jobs",
    "limits": "the limits of each apply",
    "github": "where results are posted",
    "endpoints": "which services replace Google's",
    "defaults": "the settings of jobs",
    "outputs": "the folders that runs write to",
}
_PUBLISHED = "where models are published"


def note_text(note: Note) -> str:
    """Return the sentence of a note or of a detail of drift, without its period."""
    values = {name: _shown(value) for name, value in note.values.items()}
    said = _NOTES[note.code].format(**values)
    match note.code:
        case NoteCode.ATTEMPTS if values["is_retried"]:
            return f"{said}; if the last attempt failed, the job is retried"
        case NoteCode.EXPECT if values["is_judged"]:
            return f"{said}: the run is judged again"
        case NoteCode.PUBLISH if values["is_gone"]:
            return "no longer published; what was published stays"
        case NoteCode.PUBLISH if not values["is_trained"]:
            return f"{said}: nothing is trained again"
        case NoteCode.LABELS if values["has_run"]:
            return f"{said}; an existing run keeps its own"
        case _:
            return f"{said}; {_AGAINST[values['against']]}" if "against" in values else said


def setting_effect(pointer: str) -> str:
    """Return the effect of the setting at a JSON pointer, as a short phrase; "" for a minor setting."""
    if setting_of(pointer) == "defaults" and pointer.endswith("/publish"):
        return _PUBLISHED
    return _EFFECTS.get(setting_of(pointer), "")


def _shown(value: Any) -> Any:
    """Return a state in lower case, and "nobody" for a missing owner."""
    if value is None:
        return "nobody"
    return value.lower() if isinstance(value, State) else value
