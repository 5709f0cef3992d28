"""Publications of a state's models: the contents of their addresses, and the standing of each model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime
from functools import cached_property, partial
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from reconciler.base.errors import NotFoundError, ServiceError
from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.google.object_store import StoredObject
from reconciler.manifests.settings import Config, Environment
from reconciler.model.applied_tree import AppliedTree, Relation, relation_of
from reconciler.model.details import PublishedPlace
from reconciler.model.job import ActualJob, State
from reconciler.model.manifest import Publish
from reconciler.model.plan import DesiredJob
from reconciler.model.ports import Ports, Publications
from reconciler.model.publication import (
    MANIFEST,
    MOST_ANCESTORS,
    MOST_FILES,
    CurrentModel,
    InPlace,
    PublishedModel,
    model_folder,
)
from reconciler.model.reason import Reason, ReasonCode, because
from reconciler.model.standing import Publication, Standing
from reconciler.operations.load_desired import Desired
from reconciler.operations.tree import CheckedOut
from reconciler.planning.overwriting import is_own_folder
from reconciler.planning.publishing import (
    NOT_COMPARED,
    Descent,
    Publisher,
    Stored,
    asks_for_publication,
    compares,
    has_rival,
    is_known_in_place,
    is_model_of,
    publication_of,
    published_attempt,
)
from reconciler.planning.state import NameState, TargetState


class ModelStore(Publications, Protocol):
    """Publications at an address, with the files of runs and of published models."""

    def prepare(self) -> None:
        """Create the bucket, if it is missing."""

    def files(self, folder_uri: str, most: int) -> list[StoredObject]:
        """Return the objects below a folder (gs://…) of any bucket, with generations, sizes and checksums."""

    def copy(self, source_uri: str, source: StoredObject, name: str) -> bool:
        """Copy an object to a new name below the address; return False if either has changed."""


class PublishingSession(Protocol):
    """Environment of publications, with the checkout: the part of a `Session` that they need."""

    @property
    def config(self) -> Config:
        """The repository's settings."""

    @property
    def environment(self) -> Environment:
        """The environment."""

    @property
    def ports(self) -> Ports:
        """The ports of planning and submission."""

    @property
    def is_local(self) -> bool:
        """True if the embedded service runs the jobs."""

    def now(self) -> datetime:
        """Return the time by Cloud Storage's clock."""

    def read(self, job: ActualJob) -> ActualJob:
        """Read a job again, with its spec; raise NotFoundError if it is missing."""

    def publications(self, to: str) -> ModelStore:
        """Return the publications at an address."""

    def history(self) -> CheckedOut:
        """Return the history of the commit that is checked out now."""

    def is_committed(self, desired: Desired, job: DesiredJob) -> bool:
        """Return True if a job's files are those of the commit that is checked out."""


def with_publications(
    session: PublishingSession,
    desired: Desired,
    state: TargetState,
    in_place: Mapping[str, InPlace],
    *,
    is_full: bool,
) -> TargetState:
    """Return the state with the standing of each model that a manifest asks to publish.

    Args:
        in_place: By the resource names of their runs, the models that the summary says are in their places.
        is_full: True to take nobody's word, and to compare the published files with their record.
    """
    asking = {base: name for base, name in state.names.items() if asks_for_publication(name)}
    if not asking:
        return state
    reader = PublicationReader(session, desired)
    standings: dict[str, Publication] = {}
    unknown: list[str] = []
    for base, name in asking.items():
        mark = in_place.get(name.last_wanted.resource) if name.last_wanted else None
        if mark and not is_full and is_known_in_place(name, mark):
            standings[base] = Publication(_publish_of(name), Standing.IN_PLACE, mark=mark)
        else:
            unknown.append(base)

    def read(base: str) -> tuple[str, Publication]:
        return base, reader.publication(asking[base], with_files=is_full)

    standings |= dict(session.ports.together([partial(read, base) for base in unknown]))
    named = {base: replace(asking[base], publication=standing) for base, standing in standings.items()}
    return replace(state, names={**state.names, **named})


def place_of_model(
    session: PublishingSession, name: NameState, mark: InPlace | None = None
) -> PublishedPlace | None:
    """Return whose model is in place where a base name's manifest publishes; None for nowhere.

    Args:
        name: What exists under the base name; its publication is taken as it is.
        mark: What the summary says of the desired run's model; None for nothing.

    Raises:
        ServiceError: The address can't be read.
    """
    publish = name.desired.publish if name.desired else None
    last = name.last_wanted
    if publish is None or last is None or last.state is not State.SUCCEEDED:
        return None
    known = name.publication
    mark = known.mark if known else mark
    if mark and is_known_in_place(name, mark):
        return PublishedPlace(publish.to, last.name, mark.time, is_own=True)
    current = known.current if known else session.publications(publish.to).current().current
    reason = known.reason if known else None
    if current is None:
        return PublishedPlace(publish.to, reason=reason)
    own = is_model_of(current, last.name, Publisher(session.config.source, session.environment.name))
    return PublishedPlace(publish.to, current.job_name, current.time, is_own=own, reason=reason)


def brought_back(
    session: PublishingSession, desired: Desired, state: TargetState, brought: Collection[str]
) -> TargetState:
    """Return the state with the publications that the checked-out commit has to record again as its own.

    These are of models in their places whose content it brought back: a slower apply of a commit between
    would find the older commit there, and put its model in the place.

    Args:
        brought: The base names whose content the commit brought, with '-' as '_'.
    """
    names = [state.names[base] for base in brought if base in state.names]
    in_place = [n for n in names if n.publication and n.publication.standing is Standing.IN_PLACE]
    if not in_place:
        return state
    reader = PublicationReader(session, desired, brought)

    def read(name: NameState) -> tuple[str, NameState]:
        return name.base_name, replace(name, publication=reader.publication(name, with_files=False))

    again = dict(session.ports.together([partial(read, name) for name in in_place]))
    return replace(state, names={**state.names, **again})


class RunFolder(Struct, frozen=True):
    """Folder (gs://…) of a run's published files."""

    folder: str
    resource: str


class PublicationReader:
    """Reader of addresses, beside the checkout of a session.

    Args:
        session: The environment.
        desired: The jobs.
        brought: The base names whose content the checked-out commit brought, as far as they are known.
    """

    def __init__(self, session: PublishingSession, desired: Desired, brought: Collection[str] = ()) -> None:
        self._brought = brought
        self._session = session
        self._desired = desired
        self._is_whole = desired.whole
        by_address = defaultdict[str, set[str]](set)
        for job in desired.jobs:
            if job.publish:
                by_address[job.publish.to].add(job.manifest.base_name)
        self._by_address = by_address

    @cached_property
    def history(self) -> CheckedOut:
        """The history of the checkout."""
        return self._session.history()

    def store(self, publish: Publish) -> ModelStore:
        """Return the store of an address."""
        return self._session.publications(publish.to)

    def publication(self, name: NameState, *, with_files: bool, is_first: bool = False) -> Publication:
        """Return the standing of a model, for which `asks_for_publication` is True.

        Args:
            name: What exists under its base name.
            with_files: True to compare the files of a model in place with its record.
            is_first: True if the address had no record of it when its publication began.
        """
        publish, attempt = _publish_of(name), published_attempt(name)
        stored = replace(self._stored(publish, attempt.name, with_files=with_files), is_first=is_first)
        checkout, publisher = NOT_COMPARED, self._publisher(name, publish)
        if stored.current and has_rival(name, stored, publisher):
            stored = self._with_rival(publish, stored, stored.current.job_name)
        if stored.current and compares(name, stored, publisher):
            checkout = self._checkout(name, stored.current)
        obstacle = None
        if not stored.is_written or stored.missing:
            source = self._source(name, stored) if not stored.unread else None
            obstacle = source if isinstance(source, Reason) else None
        return publication_of(name, publish, stored, publisher, checkout, obstacle)

    def _publisher(self, name: NameState, publish: Publish) -> Publisher:
        others = self._by_address[publish.to] - {name.base_name}
        return Publisher(
            self._session.config.source,
            self._session.environment.name,
            others,
            is_whole=self._is_whole,
            is_bringer=name.base_name in self._brought,
        )

    def source(self, name: NameState) -> RunFolder | Reason:
        """Return the folder of the run's published files, or why there is none; raise ServiceError."""
        publish, attempt = _publish_of(name), published_attempt(name)
        try:
            run = self._session.read(attempt.run) if attempt.run else None
        except NotFoundError:
            run = None
        if run is None:
            return because(ReasonCode.FOLDER_UNKNOWN)
        engine = engine_spec(run.api_version)
        folder = engine.output_directory(run.kind, run.spec)
        if not is_own_folder(folder, run):
            return because(ReasonCode.FOLDER_SHARED, folder=folder)
        study = engine.study(run)
        if study and not study.best:
            return because(ReasonCode.NO_BEST_TRIAL)
        parts = [folder, study.best.id if study and study.best else "", publish.source]
        return RunFolder("/".join(filter(None, parts)), run.resource)

    def _source(self, name: NameState, stored: Stored) -> RunFolder | Reason:
        try:
            return self.source(name)
        except ServiceError as error:
            return because(ReasonCode.PUBLICATION_UNREAD, why=error.message)

    def _stored(self, publish: Publish, job_name: str, *, with_files: bool) -> Stored:
        store = self.store(publish)
        try:
            versioned = store.current()
            current = versioned.current
            if current and current.job_name == job_name and not with_files:
                # Its files were there when it was published: a full look compares them.
                return Stored(current, versioned.generation, is_written=True)
            model = store.model(job_name)
            missing: tuple[str, ...] = (MANIFEST,) if current and current.job_name == job_name else ()
            changed: tuple[str, ...] = ()
            if model:
                missing, changed = differences(store, publish, model)
                own = self._session.config.source, self._session.environment.name
                if (model.source, model.environment) != own:
                    # A run of another environment has the same name, and other files.
                    changed = (MANIFEST, *changed)
            return Stored(current, versioned.generation, model is not None, missing, changed)
        except ServiceError as error:
            return Stored(unread=_said(error))

    def _with_rival(self, publish: Publish, stored: Stored, job_name: str) -> Stored:
        try:
            rival = self.store(publish).model(job_name)
        except ServiceError as error:
            return Stored(unread=_said(error))
        return replace(stored, rival_metrics=rival.metrics) if rival else stored

    def _checkout(self, name: NameState, current: CurrentModel) -> Descent:
        if not current.commit:
            # Of a work tree that was no commit's: any commit that has the content comes after it.
            is_recorded = bool(self.history.head) and self._is_committed(name)
            return Descent(Relation.NEWER) if is_recorded else NOT_COMPARED
        tree = AppliedTree(current.commit, current.time, "", current.ancestors)
        relation = relation_of(tree, self.history)
        is_behind = relation in (Relation.OLDER, Relation.DIVERGED, Relation.UNKNOWN)
        # On one machine, what a person tries out there may take the place of anything.
        if is_behind and self._session.is_local and not self._is_committed(name):
            return NOT_COMPARED
        is_head = relation is Relation.DIVERGED and self.history.is_branch_head
        return Descent(relation, is_head, self.history.remedy if relation is Relation.UNKNOWN else "")

    def _is_committed(self, name: NameState) -> bool:
        return name.desired is not None and self._session.is_committed(self._desired, name.desired)

    def ancestors(self) -> tuple[str, ...]:
        """Return the newest ancestors of the checked-out commit, as `current.json` names them."""
        return self.history.ancestors(MOST_ANCESTORS) if self.history.head else ()


def differences(
    store: ModelStore, publish: Publish, model: PublishedModel
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files of a model's record that are missing, and the objects that aren't as it says.

    Raises:
        ServiceError: The folder can't be listed.
    """
    folder = model_folder(publish.to, model.job_name)
    objects = {file.name: file for file in store.files(folder, MOST_FILES + 1)}
    prefix = folder.removeprefix("gs://").partition("/")[2] + "/"
    stored = {name.removeprefix(prefix): (file.size, file.crc32c) for name, file in objects.items()}
    stored.pop(MANIFEST, None)
    recorded = {file.name: (str(file.size), file.crc32c) for file in model.files}
    missing = tuple(sorted(recorded.keys() - stored.keys()))
    changed = tuple(sorted(name for name, file in stored.items() if recorded.get(name) != file))
    return missing, changed


def _said(error: ServiceError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


def _publish_of(name: NameState) -> Publish:
    publish = name.desired.publish if name.desired else None
    assert publish is not None, "only jobs with a publication are asked about"
    return publish
