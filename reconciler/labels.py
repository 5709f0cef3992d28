"""The labels that the reconciler puts on a job, beside the user's own.

Label keys and values of both APIs are at most 63 characters of lower-case letters, digits, '_' and '-'.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from reconciler.job import ActualJob

PREFIX = "reconciler-"
SOURCE = PREFIX + "source"
"""The id of the repository that owns the job."""
KEY = PREFIX + "key"
"""The whole identity, base32."""
ATTEMPT = PREFIX + "attempt"
"""Which attempt the run is, from 1."""
CODE = PREFIX + "code"
"""The digest of the source tree, base32; absent without a package."""
COMMIT = PREFIX + "commit"
"""The commit that asked for the job, 40 hex digits; absent where the work tree wasn't a clean checkout."""
TRY = PREFIX + "try"
"""The random mark of the one request that made the job."""

_SERVICES_OWN = "goog-"
"""What Google's services begin the labels with that they add by themselves."""
_DIGITS = 9


def attempt_of(run: ActualJob) -> int:
    """Which attempt a run is, from its label; 1 where the label says nothing."""
    text = run.labels.get(ATTEMPT, "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0
    return number or 1


class ReadLabels(dict[str, str]):
    """Labels with their digest, worked out as they are read: there is time for it while a service answers."""

    __slots__ = ("digest",)

    def __init__(self, labels: Mapping[str, str]) -> None:
        super().__init__(labels)
        self.digest = labels_digest(labels)


def labels_digest(labels: Mapping[str, str]) -> str:
    """16 hex digits that change when somebody changes a job's labels; those of Google's own don't count."""
    if isinstance(labels, ReadLabels):
        return labels.digest
    text = "\n".join([*map("=".join, sorted(labels.items())), ""])
    if _SERVICES_OWN in text:
        own = [name for name in sorted(labels) if not name.startswith(_SERVICES_OWN)]
        text = "".join([f"{name}={labels[name]}\n" for name in own])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
