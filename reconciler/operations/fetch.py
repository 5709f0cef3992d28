"""Fetching of a model: the published one, or the files of a run, into a new folder of this machine.

A bucket's content may be anybody's: names, sizes and checksums are checked, and no file is run.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import google_crc32c
from msgspec import Struct

from reconciler.base.concurrency import run_ahead
from reconciler.base.errors import NotFoundError, ServiceError, UsageError
from reconciler.base.foreign_names import ForeignNameError, check_names
from reconciler.base.new_folder import NewFolder, new_folder
from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.google.object_store import ChangedObjectError, ObjectStore, StoredObject
from reconciler.google.publication_store import PublicationStore, place_of
from reconciler.google.responses import ApiError, NotFoundAtServiceError
from reconciler.model.job import ActualJob, State
from reconciler.model.plan import DesiredJob
from reconciler.model.publication import CURRENT, MANIFEST, MOST_FILES, CurrentModel
from reconciler.operations.load_desired import load_desired
from reconciler.operations.named_job import NamedJob, find_job
from reconciler.operations.session import Session

_PART = 8 * 1024 * 1024  # bytes of one request: several at once must arrive within its time limit
_Checksum: Any = google_crc32c.Checksum  # the package has no types
_CRC32C = re.compile("[A-Za-z0-9+/]{6}==")
_RANGE_UNSATISFIABLE = 416


class RemoteFile(Struct, frozen=True):
    """File to fetch.

    Attributes:
        name: Relative to its folder; with a slash at its end, a folder.
        size: In bytes.
        crc32c: In base64.
        stored: The object.
    """

    name: str
    size: int
    crc32c: str
    stored: StoredObject


class RemoteFolder(Struct, frozen=True):
    """Folder (gs://…) with all files to fetch.

    Attributes:
        uri: Without a slash at its end.
        job_name: The run that wrote the files.
        files: Sorted by name.
        current: The publication; None for a run's own folder.
    """

    uri: str
    job_name: str
    files: Sequence[RemoteFile]
    current: CurrentModel | None = None

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)


class Progress(Struct, frozen=True):
    """What of a folder has been fetched: whole files, and bytes of all."""

    files: int
    size: int


def find_folder(session: Session, name: str, run: str = "") -> RemoteFolder:
    """Return the folder to fetch for a name.

    It is the published model of a base name whose manifest has `publish`; else the output directory of the
    run of the manifest's content, or of the run that a job name means.

    Args:
        session: The environment.
        name: A base name, or a job name.
        run: The job name of another run with this base name; "" for none.

    Raises:
        NotFoundError: There is no such job, nothing is published, or there is no run, or not yet a whole one.
        ServiceError: Something can't be read, or isn't what was published.
        UsageError: The other run has another base name.
    """
    if run:
        other = find_job(session, run)
        names = {name, name.replace("-", "_")}
        if names.isdisjoint({other.base_name, other.base_name.replace("-", "_")}):
            raise UsageError(f"{run} is no run of {name}", hint=f"its base name is {other.base_name}")
        return folder_of(session, _run_of(other, run))
    desired = _desired(session, name)
    if desired is not None and desired.publish is not None:
        return published_folder(session, desired.publish.to)
    job = find_job(session, name)
    found = _run_of(job, name)
    if job.is_base_name:
        _check_is_wanted(job, found, name)
    return folder_of(session, found)


def published_folder(session: Session, to: str) -> RemoteFolder:
    """Return the model in place at an address; raise NotFoundError for none."""
    store = PublicationStore(session.connection, to)
    current = store.current().current
    if current is None:
        raise NotFoundError(
            f"nothing is published at {to} yet",
            hint="see `reconciler status`; `--run JOB_NAME` fetches the files of a run",
        )
    model = store.model(current.job_name)
    if model is None:
        raise NotFoundError(
            f"{to}/{CURRENT} names {current.folder}, which has no {MANIFEST}",
            hint="somebody deleted it: `reconciler apply` publishes again",
        )
    prefix = place_of(current.folder)[1]
    files = [
        RemoteFile(
            file.name,
            file.size,
            file.crc32c,
            # Without a generation: the recorded one is that of the run's own object.
            StoredObject(f"{prefix}/{file.name}", size=str(file.size)),
        )
        for file in model.files
    ]
    return RemoteFolder(current.folder, current.job_name, files, current)


def fetch(session: Session, remote: RemoteFolder, path: Path, report: Callable[[Progress], object]) -> None:
    """Fetch all files of a folder into a new one; after an error, there is no new one.

    Args:
        session: The environment.
        remote: The result of `find_folder`.
        path: Absolute; missing, or an empty folder.
        report: Called after each part of a file.

    Raises:
        UsageError: The path isn't new.
        ServiceError: A file has a name that can't be used here, or isn't as its size and checksum say.
        ReconcilerError: The files can't be written.
    """
    with new_folder(path) as folder:
        _check_names(remote, folder)
        folder.check_room(remote.size)
        for file in remote.files:
            if file.name.endswith("/"):
                folder.folder(file.name.removesuffix("/"))
        files = [file for file in remote.files if not file.name.endswith("/")]
        contents = _contents(session, remote.uri, files)
        size = 0
        for number, file in enumerate(files):
            checksum = _Checksum()
            with folder.file(file.name) as target:
                for content in islice(contents, len(_parts(file))):
                    target.write(content)
                    checksum.update(content)
                    size += len(content)
                    report(Progress(number, size))
            if base64.b64encode(checksum.digest()).decode() != file.crc32c:
                raise _changed(remote.uri, file)
            report(Progress(number + 1, size))


def _desired(session: Session, name: str) -> DesiredJob | None:
    """Return the job of the manifest with this base name; None for none, and for a job name."""
    try:
        jobs = load_desired(session.config, session.environment, []).jobs
    except UsageError:
        return None
    base = name.replace("-", "_")
    return next((job for job in jobs if job.manifest.base_name == base), None)


def _run_of(job: NamedJob, name: str) -> ActualJob:
    """Return the run of a named job; raise NotFoundError without one."""
    if "claim" in job.unread:
        # The claims tell our runs from others of the same name.
        raise ServiceError(job.unread["claim"])
    if job.run is None:
        raise NotFoundError(f'the service has no run of "{name}"', hint=f"see `reconciler show {name}`")
    return job.run


def _check_is_wanted(job: NamedJob, run: ActualJob, name: str) -> None:
    """Raise NotFoundError unless a run is that of the manifest's content, and succeeded."""
    other = f"`--run {run.job_name}` fetches"
    if job.place.relation != "current":
        raise NotFoundError(
            f'no manifest asks for the newest run of "{name}", {run.job_name}', hint=f"{other} its files"
        )
    if run.state is not State.SUCCEEDED:
        raise NotFoundError(
            f"{run.job_name} is {run.state}, so its files may not be whole",
            hint=f"{other} what it has written",
        )


def folder_of(session: Session, run: ActualJob) -> RemoteFolder:
    """Return the output directory of a run with all its files; raise NotFoundError without one."""
    engine = engine_spec(run.api_version)
    uri = engine.output_directory(run.kind, run.spec).rstrip("/")
    if not uri.startswith("gs://"):
        said = f"writes to {uri}, which is not in Cloud Storage" if uri else "has no output directory"
        field = ".".join(engine.output_directory_field(run.kind, run.spec))
        raise NotFoundError(f"{run.job_name} {said}", hint=f"set {field} in its manifest")
    prefix = place_of(uri)[1]
    objects = PublicationStore(session.connection, uri).files(uri, MOST_FILES)
    listed = (_listed(uri, stored, stored.name[len(prefix) + 1 if prefix else 0 :]) for stored in objects)
    files = sorted(listed, key=lambda file: file.name)
    if not files:
        raise NotFoundError(
            f"{run.job_name} has no files in {uri}", hint="it wrote none, or they were deleted"
        )
    return RemoteFolder(uri, run.job_name, files)


def _listed(uri: str, stored: StoredObject, name: str) -> RemoteFile:
    is_usable = stored.size.isdecimal() and len(stored.size) < 20 and _CRC32C.fullmatch(stored.crc32c)
    if not is_usable or not stored.generation:
        raise ServiceError(
            f"{uri}/{name} is listed without its size or its checksum",
            hint='check "endpoints" in reconciler.yaml, and any proxy between',
        )
    return RemoteFile(name, int(stored.size), stored.crc32c, stored)


def _check_names(remote: RemoteFolder, folder: NewFolder) -> None:
    try:
        check_names((file.name for file in remote.files), folder.longest_part, folder.longest)
        for file in remote.files:
            if file.name.endswith("/") and file.size:
                raise ForeignNameError(file.name, "it ends with a slash, and isn't empty")
    except ForeignNameError as error:
        raise ServiceError(
            f'{remote.uri} has an object "{error.name}", which can\'t be a file here: {error.why}',
            hint="nothing was fetched; have the job write other names",
        ) from None


def _parts(file: RemoteFile) -> Sequence[tuple[int, int]]:
    """Return the first and the last byte of each part of a file; an empty file has one part, 0 and -1."""
    firsts = range(0, max(1, file.size), _PART)
    return [(first, min(first + _PART, file.size) - 1) for first in firsts]


def _contents(session: Session, uri: str, files: Sequence[RemoteFile]) -> Iterator[bytes]:
    """Yield the content of each part of each file, in order; several parts are read at once from afar."""
    store = ObjectStore(session.connection, place_of(uri)[0], "name")
    reads = (partial(_part, store, uri, file, *part) for file in files for part in _parts(file))
    if session.connection.endpoint.distant:
        yield from run_ahead(reads)
    else:
        for read in reads:
            yield read()


def _part(store: ObjectStore, uri: str, file: RemoteFile, first: int, last: int) -> bytes:
    try:
        content = store.read_part(file.stored, first, last) if file.size else store.read(file.stored)
    except NotFoundAtServiceError:
        raise ServiceError(
            f"{uri}/{file.name} is gone",
            hint="a person or a lifecycle rule deleted it, or another version took its place: fetch again",
        ) from None
    except ChangedObjectError:
        raise _changed(uri, file) from None
    except ApiError as error:
        if error.status == _RANGE_UNSATISFIABLE:
            raise _changed(uri, file) from None
        hint = error.hint
        if error.status == 403 and not error.remedy:
            hint = f"grant this identity roles/storage.objectViewer on gs://{place_of(uri)[0]}"
        raise ServiceError(f"{uri} can't be read: {error.message}", hint=hint) from None
    if len(content) != last - first + 1:
        raise _changed(uri, file)
    return content


def _changed(uri: str, file: RemoteFile) -> ServiceError:
    return ServiceError(
        f"{uri}/{file.name} isn't what its size and checksum say",
        hint="somebody changed it, or stored it with a content encoding: nothing was fetched",
    )
