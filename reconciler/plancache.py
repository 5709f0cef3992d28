"""What the last plan said, remembered where it found nothing to do: nearly every plan is the one before.

A plan follows from what is wanted, from what is listed, and from the tool, and from nothing else. So where
the manifests look as they did, and the service lists to the letter what it did, the plan is what it was.
Both are looked at each time, and in full; what is saved is to read once more what was read before.

Not every plan is remembered:

- One that has something to do is made anew, as it reads more of the service than its lists.
- One of a suspended job may have done so too, to compare it with what ran before.
- Where `DesiredCache` doesn't keep the jobs, the look of the manifests doesn't tell what is wanted.
- Where the listing left out a job that a claim names, the job was asked for by itself; so was a claim whose
  object lost its metadata. And the engine of another package may list what it will.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import MsgspecError, Struct, msgpack

from reconciler.cachefile import CacheFile

if TYPE_CHECKING:
    from reconciler.plan import Plan
    from reconciler.submission.observation import Observed

NAME = "plan.bin"
"""The file in the cache."""

_MOST = 64 * 1024
"""Characters of the longest text that is kept."""


class KeptPlan(Struct, frozen=True, array_like=True):
    """A plan that found nothing to do.

    Attributes:
        about: What was planned: all of the settings that the plan or its text depends on.
        wanted: What the manifests looked like, as `DesiredCache.look_of` has it.
        listed: The digest of what was listed, as `Listed` has it.
        runs: How many runs that were.
        text: What was said.
    """

    about: tuple[str, ...]
    wanted: bytes
    listed: bytes
    runs: int
    text: str


_decode = msgpack.Decoder(KeptPlan).decode


class PlanCache:
    """The cache of one repository.

    Args:
        root: The repository's root.
        environ: The environment variables.
        about: As `KeptPlan` has it.
    """

    def __init__(self, root: Path, environ: Mapping[str, str], about: tuple[str, ...]) -> None:
        self._file = CacheFile(root, NAME, environ)
        self._about = about

    def load(self) -> KeptPlan | None:
        """The last plan that found nothing to do; None where none of the same is kept."""
        body = self._file.load()
        if body is not None:
            with suppress(MsgspecError):
                kept = _decode(body)
                return kept if kept.about == self._about else None
        return None

    def save(self, plan: Plan, wanted: bytes, seen: Observed, text: str) -> None:
        """Keep what was said of a plan, where it follows from the look `wanted` and what was seen alone."""
        if wanted and seen.digest and len(text) <= _MOST and rests_on_lists(plan):
            kept = KeptPlan(self._about, wanted, seen.digest, len(seen.runs), text)
            with suppress(UnicodeError):
                self._file.save(msgpack.encode(kept))


def rests_on_lists(plan: Plan) -> bool:
    """Whether a plan has nothing to do, and was made without asking for a job by itself."""
    from reconciler.plan import Action, Stuck

    return all(
        change.action is Action.NONE and change.stuck is not Stuck.SUSPENDED for change in plan.changes
    )
