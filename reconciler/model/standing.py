"""Standing of the model that a manifest's `publish` asks for."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from reconciler.model.manifest import Publish
from reconciler.model.publication import CurrentModel, InPlace
from reconciler.model.reason import Reason


class Standing(StrEnum):
    """Standing of a model that a manifest's `publish` asks for."""

    IN_PLACE = "in-place"
    DUE = "due"
    """Apply publishes it."""
    REFUSED = "refused"
    """Apply may not, or can't, publish it."""


class Publication(Struct, frozen=True):
    """Standing of the desired content's model at its address.

    Attributes:
        publish: The address, and the folder of the run that is published.
        standing: The standing.
        reason: Why it is due or refused; None in its place.
        current: The model in place; None for none.
        generation: The generation of its `current.json`; 0 for none.
        is_copied: True if the model's files are at the address, so that `current.json` alone is written.
        mark: What the summary keeps of a model in its place; None for another standing.
        damaged: The files of the model in place that are missing, or aren't as they were published.
        was_published: True if it was published there before: `worse` isn't asked of it.
    """

    publish: Publish
    standing: Standing
    reason: Reason | None = None
    current: CurrentModel | None = None
    generation: int = 0
    is_copied: bool = False
    mark: InPlace | None = None
    damaged: tuple[str, ...] = ()
    was_published: bool = False
