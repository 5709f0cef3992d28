"""Faults of the simulated world, and how often each occurred."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

SET_UP = "set-up failed"
"""Fault from the world's own chance: it occurs in some runs only, and doesn't stop with the others."""

OF_A_SUMMARY = ("summary lost", "summary cut", "summary oversized", "summary of another environment")
"""Faults that the world's own chance inflicts on the summary."""

OF_A_PUBLICATION: Mapping[str, tuple[int, ...]] = {
    "publication not read": (66,),
    "publication not written": (66,),
    "publication written late": (66, 71),
    "publication written, answer lost": (66,),
    "412 to its own publisher": (66,),
    "no permission or quota to publish": (67, 68),
    "run's folder emptied": (69,),
    "late writer": (70,),
    "published file deleted": (70,),
    "older commit at once": (71,),
}
"""Faults of publications, of a chance of their own: runs without any stay unchanged."""

KINDS: Mapping[str, tuple[int, ...]] = {
    "request dropped": (2,),
    "request delayed": (2, 8),
    "request never sent": (2,),
    "request in pieces": (8,),
    "body delayed": (2, 8),
    "answer lost": (2,),
    "executed late": (2, 13),
    "HTML instead of an answer": (3,),
    "refused": (4,),
    "storm of 429": (4,),
    "storm of 503": (4,),
    "submission quota used up": (49,),
    "crash": (6, 7),
    "pause": (8,),
    "credential expired on arrival": (8,),
    "no credential": (10,),
    "claim not read": (10,),
    "claim not written": (10,),
    "claim written late": (9, 10),
    "claim store away": (10,),
    "acknowledgement lost": (9,),
    "412 to its own winner": (9,),
    "bucket emptied": (11,),
    "job not listed yet": (12,),
    "listing broke off": (14,),
    "trials listed as jobs": (16,),
    "backing job has labels": (72,),
    "cancel came too late": (17,),
    "cancel failed": (17,),
    "cancel's answer lost": (17,),
    "foreign copy": (18,),
    "foreign job with other content": (18,),
    "foreign job deleted": (18,),
    "cancelled by a person": (23,),
    "deleted by a person": (23,),
    "record dropped": (23,),
    "unknown state": (25,),
    "GitHub away": (50,),
    "status not posted": (50,),
    "status posted, answer lost": (26,),
    "commit record not reached": (50,),
    "commit record written, answer lost": (26, 50),
    "clock jumped": (32,),
    "machine suspended": (32,),
    "another installation": (52,),
    "summary not written": (55,),
    **dict.fromkeys(OF_A_SUMMARY, (55,)),
    SET_UP: (53,),
    **OF_A_PUBLICATION,
}
"""Each kind of fault, with its rows of the fault matrix."""

BEYOND: Mapping[str, tuple[int, ...]] = {
    "executed after the bound": (13,),
    "hidden beyond the bound": (13,),
    "made twice of one request": (13,),
    "listings go blind": (15,),
}
"""Faults that break the bounds of at-most-once; injected only on request."""

_RATES = (0.02, 0.05, 0.15, 0.4)
_OFTEN = (0.1, 0.3, 0.6)
_SELDOM = ("cancel came too late", "cancel failed", "cancel's answer lost")
"""Faults of rare actions: without a cancel, they have no effect."""
_OF_A_CREATE = (
    "request dropped",
    "request delayed",
    "request in pieces",
    "body delayed",
    "answer lost",
    "executed late",
    "HTML instead of an answer",
    "refused",
    "job not listed yet",
    "acknowledgement lost",
    "412 to its own winner",
    "trials listed as jobs",
    "backing job has labels",
    "summary not written",
    *_SELDOM,
    *BEYOND,
)
"""Faults of actions that occur only a few times in a run."""
_GREAT = (
    "bucket emptied",
    "foreign copy",
    "foreign job with other content",
    "another installation",
    "claim store away",
)
"""Faults that hide most other findings of a run."""
_OF_THEM = 0.4
"""Fraction of the runs with publications that have each fault of theirs."""
_OF_OTHERS = 0.3
"""Fraction of the other faults that these runs keep: few models are made where everything fails."""
_OF_MODELS = ("run's folder emptied", "late writer", "published file deleted")
"""Faults after which a model may never be published."""
_OF_A_STEP = ("crash", "pause", "clock jumped")
"""Faults at every step of a process; at a higher rate, no pass would ever end."""


class Faults:
    """Source of random faults, determined by a seed.

    Every run has its own mixture: a world with many rare faults finds less than many worlds with a few
    frequent faults.

    Attributes:
        counts: The number of injections by kind.
        on: False once faults have stopped.
    """

    def __init__(self, rng: random.Random, *, beyond: bool, publishers: random.Random | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self.on = True
        self._rng = rng
        self._publishers = publishers
        kinds = [kind for kind in KINDS if kind not in (SET_UP, *OF_A_SUMMARY, *OF_A_PUBLICATION)]
        self._rates = {kind: self._rate(kind, 0.1 if kind in _GREAT else 0.4) for kind in kinds}
        for kind in _OF_A_STEP:
            self._rates[kind] /= 20
        self._rates |= {kind: self._rate(kind, 0.8) for kind in _SELDOM}
        self._rates |= {kind: self._rate(kind, 0.8) if beyond else 0.0 for kind in BEYOND}
        for kind in OF_A_PUBLICATION:
            is_there = publishers is not None and publishers.random() < _OF_THEM
            self._rates[kind] = publishers.choice(_RATES) if publishers and is_there else 0.0
        if publishers:
            others = [kind for kind in kinds if kind not in _OF_A_STEP]
            self._rates |= {kind: 0.0 for kind in others if publishers.random() > _OF_OTHERS}
        for kind in _OF_MODELS:
            self._rates[kind] /= 10

    def happens(self, kind: str, times: int = 1) -> bool:
        """Return True if the fault occurs now, at `times` its usual rate."""
        rate = self._rates[kind] * times
        rng = self._publishers if self._publishers and kind in OF_A_PUBLICATION else self._rng
        if not (self.on and rate and rng.random() < rate):
            return False
        self.counts[kind] += 1
        return True

    def tells(self, kind: str) -> None:
        """Count a fault that follows from others, such as an expired credential."""
        self.counts[kind] += 1

    def _rate(self, kind: str, chance: float) -> float:
        rates = _OFTEN if kind in _OF_A_CREATE else _RATES
        return self._rng.choice(rates) if self._rng.random() < chance else 0.0
