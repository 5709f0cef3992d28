"""Simulated Cloud Storage of models: the folders of runs, and what is published of them, behind faults."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import NamedTuple

from reconciler.base.errors import ServiceError
from reconciler.google.object_store import StoredObject
from reconciler.manifests.settings import Config, EngineName, Environment
from reconciler.model.job import ActualJob
from reconciler.model.plan import DesiredJob
from reconciler.model.ports import NO_CURRENT, Ports, VersionedCurrent
from reconciler.model.publication import (
    CURRENT,
    MANIFEST,
    CurrentModel,
    PublishedModel,
    current_json,
    current_of,
    model_folder,
    published_json,
    published_of,
)
from reconciler.operations.load_desired import Desired

from .model import OURS, Job, Place, folder_of, trials_of
from .process import Process
from .scenario import SOURCE, Commit
from .world import World

_FILES = ("labels.txt", "weights")
PUTS = "put "
"""Beginning of a reconciler's step that writes `current.json`, before its effect."""
_LATE = (0.5, 30.0, 900.0)
"""Seconds after which a write arrives that its sender has given up."""


class Object(NamedTuple):
    """Object as it is stored."""

    content: bytes
    generation: int

    @property
    def facts(self) -> tuple[int, str]:
        """The size and the checksum."""
        return len(self.content), _checksum(self.content)


@dataclass(frozen=True, slots=True)
class Write:
    """Write that had its effect.

    Attributes:
        uri: The object.
        before: What it replaced; None for a new object.
        after: What is there now.
        who: The reconciler.
    """

    uri: str
    before: Object | None
    after: Object
    who: str


class Models:
    """All objects of an environment's models, as Cloud Storage has them.

    Args:
        compares: True if a write of `current.json` checks the generation.
        beside: The models of another environment that publishes at the same addresses; None for none.

    Attributes:
        objects: The objects by their URI.
        written: Every content that an object of a run's folder ever had, by URI and generation.
        forbidden_until: The time until which every write is refused, for want of a permission or a quota.
        damaged: The published objects that a person deleted.
        replaced: By address, the run whose model was in the place before.
        watch: Callback for each effective write of a reconciler.
    """

    def __init__(self, *, compares: bool = True, beside: Models | None = None) -> None:
        self.objects: dict[str, Object] = {}
        self.written: dict[tuple[str, int], bytes] = {}
        self.forbidden_until = 0.0
        self.damaged: set[str] = set()
        self.replaced: dict[str, str] = {}
        self.watch: Callable[[Write], None] = lambda write: None
        self._compares = compares
        self._generations = beside._generations if beside else count(1)
        self._all = [*beside._all, self] if beside else [self]
        for models in self._all:
            models._all = self._all

    def put(self, uri: str, content: bytes, generation: int, who: str) -> bool:
        """Compare and set an object, in a single step."""
        before = self.objects.get(uri)
        is_compared = self._compares or not uri.endswith(f"/{CURRENT}")
        if is_compared and (before.generation if before else 0) != generation:
            return False
        after = Object(content, next(self._generations))
        for models in self._all:
            models._has(Write(uri, before, after, who))
        return True

    def _has(self, write: Write) -> None:
        uri, before = write.uri, write.before
        self.objects[uri] = write.after
        if before and uri.endswith(f"/{CURRENT}"):
            to = uri.removesuffix(f"/{CURRENT}")
            self.replaced[to] = current_of(before.content, to).job_name
        self.damaged.discard(uri)
        self.watch(write)

    def copy(self, source: str, generation: str, uri: str, who: str) -> bool:
        """Copy an object of this generation to a new name, in a single step."""
        found = self.objects.get(source)
        return bool(found and str(found.generation) == generation and self.put(uri, found.content, 0, who))

    def below(self, folder: str) -> dict[str, Object]:
        """Return the objects below a folder, by their names relative to it."""
        prefix = f"{folder}/"
        names = sorted(uri for uri in self.objects if uri.startswith(prefix))
        return {uri.removeprefix(prefix): self.objects[uri] for uri in names}

    def saves(self, job: Job, *, more: str = "") -> None:
        """Let a job, or each of its trials, write a model, or write to it again with something more."""
        for folder in folders_of_models(job):
            for name in _FILES[-1:] if more else _FILES:
                uri = f"{folder}/{name}"
                generation = next(self._generations)
                content = f"{name} of {job.name} in {folder}{more}".encode()
                self.objects[uri] = Object(content, generation)
                self.written[uri, generation] = content

    def empties(self, folder: str) -> None:
        """Let a lifecycle rule delete what is below a run's folder."""
        for name in self.below(folder):
            del self.objects[f"{folder}/{name}"]

    def loses(self, uri: str) -> None:
        """Let a person delete a published object."""
        for models in self._all:
            del models.objects[uri]
            models.damaged.add(uri)

    def current(self, to: str) -> CurrentModel | None:
        """Return the model in place at an address."""
        found = self.objects.get(f"{to}/{CURRENT}")
        return current_of(found.content, to) if found else None

    def record(self, to: str, job_name: str) -> PublishedModel | None:
        """Return the record of a published model."""
        found = self.objects.get(f"{model_folder(to, job_name)}/{MANIFEST}")
        return published_of(found.content, job_name) if found else None


def folders_of_models(job: Job) -> list[str]:
    """Return the folders of a job's models, that of the published one first; none without a folder."""
    folder = folder_of(job)
    if not folder:
        return []
    return [f"{folder}/{trial}/{SOURCE}" for trial in trials_of(job)] or [f"{folder}/{SOURCE}"]


class StillModels:
    """Publications at an address, read without faults."""

    def __init__(self, models: Models, to: str) -> None:
        self._models = models
        self._to = to

    def prepare(self) -> None:
        """Do nothing: there is a bucket."""

    def current(self) -> VersionedCurrent:
        """Return the model in place."""
        found, current = self._models.objects.get(f"{self._to}/{CURRENT}"), self._models.current(self._to)
        return VersionedCurrent(current, found.generation) if found else NO_CURRENT

    def model(self, job_name: str) -> PublishedModel | None:
        """Return the record of a job's published model."""
        return self._models.record(self._to, job_name)

    def files(self, folder_uri: str, most: int) -> list[StoredObject]:
        """Return the objects below a folder."""
        path = folder_uri.removeprefix("gs://").partition("/")[2]
        return [
            StoredObject(
                f"{path}/{name}", str(found.generation), size=str(found.facts[0]), crc32c=found.facts[1]
            )
            for name, found in self._models.below(folder_uri).items()
        ]

    def copy(self, source_uri: str, source: StoredObject, name: str) -> bool:
        """Refuse."""
        raise AssertionError("the judge copies nothing")

    def write_model(self, model: PublishedModel) -> bool:
        """Refuse."""
        raise AssertionError("the judge writes no record")

    def write_current(self, current: CurrentModel, generation: int) -> bool:
        """Refuse."""
        raise AssertionError("the judge publishes nothing")


class ModelsPort(StillModels):
    """Port to the publications at an address for a single reconciler."""

    def __init__(self, process: Process, world: World, models: Models, to: str) -> None:
        super().__init__(models, to)
        self._process = process
        self._world = world

    def current(self) -> VersionedCurrent:
        """Return the model in place."""
        self._reached(f"read the model in place at {self._to}")
        found = super().current()
        name = found.current.job_name if found.current else "nothing"
        self._process.turn(f"found {name} in place at {self._to}")
        return found

    def model(self, job_name: str) -> PublishedModel | None:
        """Return the record of a job's published model."""
        self._reached(f"read the record of {job_name}")
        found = super().model(job_name)
        self._process.turn(f"read {'the' if found else 'no'} record of {job_name}")
        return found

    def files(self, folder_uri: str, most: int) -> list[StoredObject]:
        """Return the objects below a folder."""
        self._reached(f"list {folder_uri}")
        found = super().files(folder_uri, most)
        self._process.turn(f"listed {len(found)} objects below {folder_uri}")
        return found

    def copy(self, source_uri: str, source: StoredObject, name: str) -> bool:
        """Copy an object."""
        bucket = source_uri.removeprefix("gs://").partition("/")[0]
        uri, models, who = f"gs://{bucket}/{source.name}", self._models, self._process.name
        copied = f"{self._to}/{name}"
        return self._written(f"copy {uri}", lambda: models.copy(uri, source.generation, copied, who))

    def write_model(self, model: PublishedModel) -> bool:
        """Write the record of a model."""
        uri, content = f"{model_folder(self._to, model.job_name)}/{MANIFEST}", published_json(model)
        models, who = self._models, self._process.name
        return self._written(f"record {model.job_name}", lambda: models.put(uri, content, 0, who))

    def write_current(self, current: CurrentModel, generation: int) -> bool:
        """Compare and set the model in place."""
        uri, content = f"{self._to}/{CURRENT}", current_json(current)
        models, who = self._models, self._process.name
        commit = current.commit[:7] or "no commit"
        said = f"{PUTS}{current.job_name} of {commit} in place at {self._to} over {generation}"
        return self._written(said, lambda: models.put(uri, content, generation, who))

    def _reached(self, doing: str) -> None:
        self._process.turn(doing)
        if self._world.faults.happens("publication not read"):
            self._process.turn(f"couldn't {doing}")
            raise ServiceError("Cloud Storage doesn't answer")

    def _written(self, doing: str, put: Callable[[], bool]) -> bool:
        """Write: it may fail, arrive late, have its effect without an answer, or be repeated below."""
        faults = self._world.faults
        self._process.turn(doing)
        if self._world.now < self._models.forbidden_until:
            self._process.turn(f"may not {doing}")
            raise ServiceError("this identity may not write there now")
        if faults.happens("publication not written"):
            raise ServiceError("Cloud Storage doesn't answer")
        if faults.happens("publication written late"):
            self._world.at(self._world.now + self._world.rng.choice(_LATE), lambda: self._late(doing, put))
            self._process.turn(f"gave up to {doing}")
            raise ServiceError("Cloud Storage doesn't answer")
        done = put()
        self._process.turn(f"{'did' if done else 'did not'} {doing}")
        if done and faults.happens("publication written, answer lost"):
            raise ServiceError("Cloud Storage doesn't answer")
        return done and not faults.happens("412 to its own publisher")

    def _late(self, doing: str, put: Callable[[], bool]) -> None:
        self._world.trace("storage", f"late: {doing}" if put() else f"refused: {doing}")


class Site:
    """Environment and checkout of one pass, as publications see them: the product's `PublishingSession`.

    Args:
        ports: Those of the pass.
        commit: The commit that is checked out.
        changed: The names of the jobs that the work tree has otherwise.
        store: Returns the publications at an address.
    """

    def __init__(
        self,
        world: World,
        place: Place,
        ports: Ports,
        commit: Commit,
        changed: Iterable[str],
        store: Callable[[str], StillModels],
    ) -> None:
        self.config = Config(Path(), OURS, {}, {}, None)
        self.is_local = place.engine == "local"
        engine: EngineName = "local" if self.is_local else "google"
        self.environment = Environment(place.environment, engine, "acme-ml", "us-central1", "", "")
        self.ports = ports
        self._world = world
        self._commit = commit
        self._changed = {*changed}
        self._store = store

    def now(self) -> datetime:
        """Return the time in whole seconds, as in a Date header."""
        return self._world.time(self._world.now).replace(microsecond=0)

    def read(self, job: ActualJob) -> ActualJob:
        """Read a job again."""
        return self.ports.jobs.read(job.api_version, job.kind, job.resource)

    def publications(self, to: str) -> StillModels:
        """Return the publications at an address."""
        return self._store(to)

    def history(self) -> Commit:
        """Return the history of the checkout."""
        return self._commit

    def is_committed(self, desired: Desired, job: DesiredJob) -> bool:
        """Return True if a job is that of the commit."""
        return job.job_name not in self._changed


def _checksum(content: bytes) -> str:
    return base64.b64encode(zlib.crc32(content).to_bytes(4, "big")).decode("ascii")
