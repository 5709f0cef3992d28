"""The labels that the reconciler puts on a job, beside the user's own.

Label keys and values of both APIs are at most 63 characters of lower-case letters, digits, '_' and '-'.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import itemgetter

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
INSTANCE = PREFIX + "instance"
"""The environment's `instance` in reconciler.yaml; absent without one."""

_SERVICES_OWN = "goog-"
"""What Google's services begin the labels with that they add by themselves."""
_DIGITS = 9


def attempt_of(run: ActualJob) -> int:
    """Which attempt a run is, from its label; 1 where the label says nothing."""
    text = run.labels.get(ATTEMPT, "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0
    return number or 1


def is_of_other_instance(run: ActualJob, source: str, instance: str) -> bool:
    """Return whether a run belongs to another instance of the same repository in this project and location.

    Args:
        run: The run, with its labels.
        source: The repository's id.
        instance: The own environment's; "" for none.
    """
    return run.labels.get(SOURCE) == source and run.labels.get(INSTANCE, "") != instance


def labels_digest(labels: Mapping[str, str]) -> str:
    """16 hex digits that change when somebody changes a job's labels; those of Google's own don't count."""
    text, values = _text_of(tuple(labels))
    return hashlib.sha256((text % values(labels)).encode()).hexdigest()[:16]


@lru_cache(maxsize=1000)
def _text_of(names: tuple[str, ...]) -> tuple[str, Callable[[Mapping[str, str]], tuple[str, ...]]]:
    """What is hashed of labels of these names, "%s" for each value, and what gives the values.

    Most jobs have labels of the same names, in the same order.
    """
    own = sorted(name for name in names if not name.startswith(_SERVICES_OWN))
    text = "".join([name.replace("%", "%%") + "=%s\n" for name in own])
    if len(own) > 1:
        return text, itemgetter(*own)
    return text, lambda labels: tuple([labels[name] for name in own])
