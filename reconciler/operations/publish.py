"""Publication of models: copies first, then their record, and last `current.json`, by its generation.

A process that dies leaves objects that the next pass finds and uses. Who loses the last step begins again:
what is in the place by then decides anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

from msgspec import ValidationError, convert

from reconciler.base.errors import ReconcilerError, ServiceError
from reconciler.google.object_store import StoredObject
from reconciler.google.publication_store import place_of
from reconciler.model.plan import Action, Change, Plan
from reconciler.model.publication import (
    MANIFEST,
    MOST_FILES,
    CurrentModel,
    PublishedFile,
    PublishedModel,
    model_folder,
)
from reconciler.model.reason import Reason, ReasonCode, because
from reconciler.model.standing import Publication, Standing
from reconciler.operations.load_desired import Desired
from reconciler.operations.origin import Origin
from reconciler.operations.publications import ModelStore, PublicationReader, PublishingSite, Source
from reconciler.planning.outcome import Outcome, Status, failed
from reconciler.planning.state import NameState, TargetState

_TRIES = 5


class _CopyError(ServiceError):
    """Error for an object that another process copied or that changed: they are compared again."""


class Publisher:
    """Executor of the publications of one plan.

    Args:
        session: The environment.
        desired: The jobs.
        state: The state that the plan was made of; only the jobs that the plan publishes are looked up in it.
        origin: The commit of the jobs.
        brought: The base names whose content the checked-out commit brought, with '-' as '_'.
        withheld: Returns why nothing may be replaced, None for nothing; raises ServiceError.
        on_progress: Called with a line about each copied file.
    """

    def __init__(
        self,
        session: PublishingSite,
        desired: Desired,
        state: TargetState,
        origin: Origin,
        brought: Collection[str],
        withheld: Callable[[], Reason | None],
        on_progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._session = session
        self._reader = PublicationReader(session, desired, brought)
        self._state = state
        self._origin = origin
        self._withheld = withheld
        self._on_progress = on_progress

    def run(self, plan: Plan) -> Iterator[Outcome]:
        """Carry out the publications of a plan; yield their outcomes."""
        changes = [change for change in plan.changes if change.action is Action.PUBLISH]
        try:
            self._announce(changes)
        except ReconcilerError as error:
            yield from (failed(change, error) for change in changes)
            return
        for change in changes:
            try:
                reason = self._publish(change)
                status = Status.SKIPPED if reason else Status.APPLIED
                yield Outcome(change, status, reason=reason)
            except ReconcilerError as error:
                yield failed(change, error)

    def _announce(self, changes: Iterable[Change]) -> None:
        """Announce publications at once, as the summary takes one write per second.

        A short look must not take its word for the models that were in the places.
        """
        addresses = {change.publication.publish.to for change in changes if change.publication}
        self._session.ports.claims.announce_publications(addresses)

    def _publish(self, change: Change) -> Reason | None:
        """Publish a model; return why it may not be published, None once it is in its place."""
        name = self._state.names[change.base_name.replace("-", "_")]
        lost: ServiceError | None = None
        for _ in range(_TRIES):
            publication = self._reader.publication(name, with_files=True)
            if publication.standing is Standing.IN_PLACE:
                return None
            if publication.standing is Standing.REFUSED:
                return publication.reason
            try:
                if not publication.is_copied and (reason := self._copy(name, publication)):
                    return reason
            except _CopyError as error:
                lost = error
                continue
            if not publication.is_copied and _is_named(publication, change):
                # An older checkout may repair the model, and its commit must not take that place.
                continue
            # Another apply may have recorded a newer commit since.
            if reason := self._withheld():
                return reason
            if self._write_current(change, name, publication):
                return None
        raise lost or ServiceError(
            f"{_address(publication)}/current.json keeps changing: other processes publish there",
            hint="apply again",
        )

    def _write_current(self, change: Change, name: NameState, publication: Publication) -> bool:
        job = name.desired
        assert job is not None, "only desired jobs are published"
        to = _address(publication)
        current = CurrentModel(
            folder=model_folder(to, change.job_name),
            job_name=change.job_name,
            base_name=job.manifest.name,
            hash=job.identity,
            source=self._session.config.source,
            environment=self._session.environment.name,
            commit=self._commit(name),
            time=self._session.now(),
            ancestors=self._reader.ancestors() if self._commit(name) else (),
        )
        return self._store(publication).write_current(current, publication.generation)

    def _commit(self, name: NameState) -> str:
        """Return the checked-out commit if the job's files are its; "" otherwise."""
        job, head = name.desired, self._reader.history.head
        is_its = job is not None and self._origin.commit == head and job.job_name in self._origin.made
        return head if is_its else ""

    def _copy(self, name: NameState, publication: Publication) -> Reason | None:
        """Copy the run's files and write their record; return why that may not be done."""
        source = self._reader.source(name)
        if isinstance(source, Reason):
            return source
        store, to = self._store(publication), _address(publication)
        if self._session.is_local:  # a person creates it in Google Cloud
            store.prepare()
        job_name = name.last_wanted.name if name.last_wanted else ""
        folder, run_files = model_folder(to, job_name), _files(store, source.folder)
        earlier = store.model(job_name)
        if earlier is None:
            _check_files(run_files, source.folder)
        # What the run's folder got after the publication is no part of the model.
        recorded = earlier.files if earlier else run_files
        copies = [file for file in _files(store, folder, MOST_FILES + 1) if file.name != MANIFEST]
        missing, changed, lost = _compared(recorded, copies, run_files)
        if changed:
            return because(ReasonCode.PUBLICATION_CHANGED, to=to, job_name=job_name, files=changed)
        if lost:
            raise ServiceError(
                f"{lost[0]} is missing below {folder}, and in the run's folder {source.folder}",
                hint=f"restore it, or run the job again with `reconciler rerun {name.name}`",
            )
        copies_to_make = [partial(self._copy_one, store, source, file, job_name) for file in missing]
        for number, name_of_copy in enumerate(self._session.ports.together(copies_to_make), 1):
            self._on_progress(f"{job_name}: copied {name_of_copy} ({number} of {len(missing)} files)")
        if earlier is None and not store.write_model(self._model(name, source, run_files)):
            raise _CopyError(f"another process wrote the record of {job_name}", hint="apply again")
        return None

    def _copy_one(self, store: ModelStore, source: Source, file: PublishedFile, job_name: str) -> str:
        _, path = place_of(source.folder)
        stored = StoredObject(f"{path}/{file.name}", file.generation)
        if not store.copy(source.folder, stored, f"{job_name}/{file.name}"):
            raise _CopyError(
                f"{source.folder}/{file.name} changed while it was copied, or another process copied it",
                hint="apply again",
            )
        return file.name

    def _model(self, name: NameState, source: Source, files: list[PublishedFile]) -> PublishedModel:
        job, last = name.desired, name.last_wanted
        assert job is not None, "only desired jobs are published"
        assert last is not None, "its run succeeded"
        judged = name.judgement.judged if name.judgement else ()
        return PublishedModel(
            job_name=last.name,
            base_name=job.manifest.name,
            hash=job.identity,
            source=self._session.config.source,
            environment=self._session.environment.name,
            commit=self._commit(name),
            time=self._session.now(),
            origin=source.folder,
            resource=source.resource,
            metrics={
                one.expectation.metric: one.measured.value for one in judged if one.measured.value is not None
            },
            files=tuple(files),
        )

    def _store(self, publication: Publication) -> ModelStore:
        return self._reader.store(publication.publish)


def _address(publication: Publication) -> str:
    return publication.publish.to


def _files(store: ModelStore, folder: str, most: int = MOST_FILES) -> list[PublishedFile]:
    """Return the files below a folder (gs://…), by names relative to it, sorted.

    Raises:
        ServiceError: They can't be listed or published.
    """
    _, path = place_of(folder)
    return [_file(folder, path, stored) for stored in store.files(folder, most)]


def _check_files(files: Sequence[PublishedFile], folder: str) -> None:
    """Raise ServiceError if a run's files can't become a publication."""
    if not files:
        raise ServiceError(
            f"the run wrote no file below {folder}",
            hint='save the model there, or write its folder in "publish: {from: …}"',
        )
    if any(file.name == MANIFEST for file in files):
        raise ServiceError(
            f"{folder}/{MANIFEST} has the name of the record that a publication gets",
            hint="give that file another name",
        )


def _file(folder: str, path: str, stored: StoredObject) -> PublishedFile:
    fields = {"generation": stored.generation, "size": stored.size, "crc32c": stored.crc32c}
    name = stored.name.removeprefix(f"{path}/")
    try:
        return convert({"name": name, **fields}, PublishedFile, strict=False)
    except ValidationError as error:
        raise ServiceError(
            f"{folder}/{name} can't be published: {error}", hint="rename or remove it"
        ) from None


def _compared(
    recorded: Iterable[PublishedFile], copies: Iterable[PublishedFile], run_files: Iterable[PublishedFile]
) -> tuple[list[PublishedFile], tuple[str, ...], tuple[str, ...]]:
    """Compare the files of a model with the copies of them and, where these are missing, with the run's.

    Returns:
        The run's files that have to be copied; the files whose copy, or whose original, differs, with the
        copies of no file; and the files that are in neither folder.
    """
    wanted = {file.name: _content(file) for file in recorded}
    copied = {file.name: _content(file) for file in copies}
    originals = {file.name: file for file in run_files if file.name in wanted.keys() - copied.keys()}
    changed = {name for name, content in copied.items() if wanted.get(name) != content}
    changed |= {name for name, file in originals.items() if wanted[name] != _content(file)}
    lost = wanted.keys() - copied.keys() - originals.keys()
    return [*originals.values()], tuple(sorted(changed)), tuple(sorted(lost))


def _content(file: PublishedFile) -> tuple[int, str]:
    return file.size, file.crc32c


def _is_named(publication: Publication, change: Change) -> bool:
    """Return True if `current.json` names the model already."""
    return publication.current is not None and publication.current.job_name == change.job_name
