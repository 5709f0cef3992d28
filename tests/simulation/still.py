"""Ports that show the world at a moment: without faults, without passing time, without other processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from reconciler.base.errors import NotFoundError
from reconciler.model.claim import ClaimId
from reconciler.model.job import KEY, SOURCE, ActualJob
from reconciler.model.manifest import ML_V1
from reconciler.model.ports import Bounds, ClaimRead, Ports, StoredSummary, Versioned

from .model import OURS, PARENT, Job, Place
from .store import Claims, place_of
from .world import World


class StillStore:
    """Read-only claims of an environment."""

    def __init__(self, world: World, claims: Claims, place: Place) -> None:
        self._world = world
        self._claims = claims
        self._place = place

    def check(self, runs: int) -> None:
        """Do nothing: these ports never look at an emptied store."""

    def listed(self) -> Mapping[ClaimId, Versioned]:
        """Return every claim."""
        return self._claims.all()

    def of_key(self, key: str) -> Mapping[ClaimId, Versioned]:
        """Return the claims of a content."""
        return {id: found for id, found in self._claims.all().items() if id.key == key}

    def read(self, id: ClaimId) -> ClaimRead:
        """Return a claim."""
        return ClaimRead(self._claims.get(id), self._now())

    def summary(self) -> StoredSummary:
        """Return the summary of ended runs."""
        content, generation = self._claims.summary
        return StoredSummary(place_of(self._place), content, generation, self._claims.marks, self._now())

    def _now(self) -> datetime:
        return self._world.time(self._world.now)


class StillJobs:
    """Read-only jobs of the service, all of them visible."""

    def __init__(self, world: World) -> None:
        self._world = world

    def runs(self) -> tuple[ActualJob, ...]:
        """Return this repository's jobs."""
        return self._picked(lambda job: job.labels.get(SOURCE) == OURS)

    def live(self) -> tuple[ActualJob, ...]:
        """Return this repository's live jobs."""
        return self._picked(lambda job: job.labels.get(SOURCE) == OURS and not job.state.ended)

    def lists(self, api_version: str) -> bool:
        """Return True if listings include the jobs of an apiVersion."""
        return True

    def with_key(self, api_version: str, kind: str, key: str) -> tuple[ActualJob, ...]:
        """Return the jobs of a kind with a key."""
        return self._picked(lambda job: job.kind == kind and job.labels.get(KEY) == key)

    def read(self, api_version: str, kind: str, resource: str) -> ActualJob:
        """Return a job with its spec."""
        job = self._world.found(resource)
        if job is None:
            raise NotFoundError(f"there is no {resource}")
        return self._world.shown(job, spec=True)

    def named(self, api_version: str, kind: str, job_name: str) -> str | None:
        """Return the job of a name: only ml lets the caller choose names."""
        return f"{PARENT}/jobs/{job_name}" if api_version == ML_V1 else None

    def _picked(self, pick: Callable[[Job], bool]) -> tuple[ActualJob, ...]:
        return tuple(self._world.shown(job) for job in self._world.jobs if not job.gone and pick(job))


def still_ports(world: World, claims: Claims, place: Place, bounds: Bounds, least_history: int) -> Ports:
    """Return ports for looks and plans only."""
    unused: Any = _refuse
    return Ports(
        source=OURS,
        claims=StillStore(world, claims, place),  # type: ignore[arg-type]
        jobs=StillJobs(world),  # type: ignore[arg-type]
        credentials=unused,
        clock=unused,
        chance=unused,
        bounds=bounds,
        owner="the judge",
        instance=place.instance,
        neighbours=place.neighbours,
        least_history=least_history,
    )


def _refuse(*arguments: object) -> NoReturn:
    raise AssertionError("the judge changes nothing")
