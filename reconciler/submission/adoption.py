"""Whether a job that is found is the one that a request would make; only then it is taken for it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from reconciler.model.diff import diff, is_default, is_filled, is_left_out, is_spelling
from reconciler.model.job import ATTEMPT, CODE, INSTANCE, KEY, SOURCE, ActualJob
from reconciler.model.manifest import JsonObject
from reconciler.model.plan import FieldChange

_LABELS = (SOURCE, INSTANCE, KEY, ATTEMPT, CODE)
"""The labels that say which job it is; the others say who asked, when, and for whom."""

REQUESTED = frozenset(
    {
        "displayName",
        "jobId",
        "encryptionSpec",
        "jobSpec",
        "maxFailedTrialCount",
        "maxTrialCount",
        "parallelTrialCount",
        "studySpec",
        "trainingInput",
        "trialJobSpec",
    }
)
"""What a request may decide of a resource, besides what it names itself; the service writes the rest."""


def differences(body: JsonObject, job: ActualJob) -> tuple[FieldChange, ...]:
    """How a job differs from the one that a create would make: `before` is the job's, `after` the request's.

    The whole request counts, staged packages and all, whatever is there beside it too; but of the labels only
    those that say which job it is. What a service fills in or leaves out by itself is no difference.

    Args:
        body: The create's body.
        job: As it was read, with its `body`.
    """
    names = REQUESTED | (body.keys() - {"labels"})
    found = diff(_said(job.body, names), _said(body, names))
    return tuple(field for field in found if not _is_alike(field))


def _said(resource: JsonObject, names: Set[str]) -> dict[str, Any]:
    asked = {name: value for name, value in resource.items() if name in names}
    labels = resource.get("labels")
    known = labels if isinstance(labels, Mapping) else {}
    return {**asked, "labels": {name: known[name] for name in _LABELS if name in known}}


def _is_alike(field: FieldChange) -> bool:
    return is_spelling(field) or is_filled(field) or is_left_out(field) or is_default(field)
