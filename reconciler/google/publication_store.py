"""Publications in Cloud Storage, at one address, as `model/publication.py` describes them.

Others may write there too: every object is bounded before it is read, and checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from reconciler.base.errors import ServiceError
from reconciler.google.client import Connection
from reconciler.google.object_store import ObjectStore, StoredObject, ensure_bucket
from reconciler.google.responses import ApiError, NotFoundAtServiceError
from reconciler.model.ports import NO_CURRENT, VersionedCurrent
from reconciler.model.publication import (
    CURRENT,
    LARGEST_CURRENT,
    LARGEST_MANIFEST,
    MANIFEST,
    CurrentModel,
    PublishedModel,
    current_json,
    current_of,
    model_folder,
    published_json,
    published_of,
)

_FIELDS = "name,generation,size"
_FILE_FIELDS = "name,generation,size,crc32c"
_TRIES = 5
"""Number of times that an object is listed which is replaced before it is read."""
_FORBIDDEN = 403

_Stored = TypeVar("_Stored")


class PublicationStore:
    """Implementation of the port `Publications`.

    Args:
        to: The address (gs://…), without a slash at its end.
    """

    def __init__(self, connection: Connection, to: str) -> None:
        self._connection = connection
        self._to = to

    def prepare(self) -> None:
        """Create the bucket, if it is missing."""
        ensure_bucket(self._connection, place_of(self._to)[0])

    def current(self) -> VersionedCurrent:
        """Return the content of `current.json`; raise ServiceError for an unusable object."""
        read = self._read(f"{self._to}/{CURRENT}", LARGEST_CURRENT, lambda text: current_of(text, self._to))
        return VersionedCurrent(*read) if read else NO_CURRENT

    def model(self, job_name: str) -> PublishedModel | None:
        """Return the record of a job's published model; raise ServiceError for an unusable object."""
        uri = f"{model_folder(self._to, job_name)}/{MANIFEST}"
        read = self._read(uri, LARGEST_MANIFEST, lambda text: published_of(text, job_name))
        return read[0] if read else None

    def files(self, folder_uri: str, most: int) -> list[StoredObject]:
        """Return the objects below a folder (gs://…) of any bucket, with generations, sizes and checksums.

        Objects with a slash at their end, which consoles make to show an empty folder, are left out.

        Raises:
            ServiceError: There are more than `most`, or they can't be listed.
        """
        bucket, path = place_of(folder_uri)
        with _explained(folder_uri, bucket):
            store = ObjectStore(self._connection, bucket, _FILE_FIELDS, fresh=True)
            objects = store.list_objects(f"{path}/" if path else "", most)
        if len(objects) > most:
            raise ServiceError(
                f"{folder_uri} has more than {most:,} objects",
                hint="put many small files into few archives, or write them to another folder",
            )
        return [stored for stored in objects if not stored.name.endswith("/")]

    def copy(self, source_uri: str, source: StoredObject, name: str) -> bool:
        """Copy an object of a bucket (gs://…) to a new name below the address, as `ObjectStore.copy`."""
        bucket, path = place_of(self._to)
        with _explained(self._to, bucket, does="written"):
            source_bucket, _ = place_of(source_uri)
            return self._store(bucket).copy(source_bucket, source, f"{path}/{name}")

    def write_model(self, model: PublishedModel) -> bool:
        """Write the record of a model; return False if there is one."""
        bucket, path = place_of(model_folder(self._to, model.job_name))
        content = published_json(model)
        if len(content) > LARGEST_MANIFEST:  # it could never be read again
            raise ServiceError(
                f"the record of {model.job_name} takes more than {LARGEST_MANIFEST:,} bytes",
                hint="publish fewer files, or files with shorter names",
            )
        with _explained(self._to, bucket, does="written"):
            return self._store(bucket).write(f"{path}/{MANIFEST}", content, 0) is not None

    def write_current(self, current: CurrentModel, generation: int) -> bool:
        """Replace `current.json` of this generation, 0 for none; return False if there is another one."""
        bucket, path = place_of(self._to)
        content = current_json(current)
        with _explained(self._to, bucket, does="written"):
            return self._store(bucket).write(f"{path}/{CURRENT}", content, generation) is not None

    def _store(self, bucket: str) -> ObjectStore:
        return ObjectStore(self._connection, bucket, _FIELDS, fresh=True)

    def _read(self, uri: str, largest: int, decode: Callable[[bytes], _Stored]) -> tuple[_Stored, int] | None:
        """Return an object's content and generation; None if there is no such object, or no bucket."""
        bucket, name = place_of(uri)
        store = self._store(bucket)
        with _explained(uri, bucket):
            for _ in range(_TRIES):
                try:
                    stored, _ = store.find(name)
                except NotFoundAtServiceError:
                    return None
                if stored is None:
                    return None
                with suppress(NotFoundAtServiceError):  # replaced since it was listed
                    return _decoded(uri, store, stored, largest, decode)
        raise ServiceError(f"{uri} changes again and again while it is read", hint="try again later")


def _decoded(
    uri: str, store: ObjectStore, stored: StoredObject, largest: int, decode: Callable[[bytes], _Stored]
) -> tuple[_Stored, int]:
    try:
        # Don't request the content of an object that is too large.
        if not stored.size.isdecimal() or len(stored.size) > 19 or int(stored.size) > largest:
            raise ValueError(f"it is larger than {largest:,} bytes")
        return decode(store.read(stored)), int(stored.generation)
    except (ValueError, RecursionError) as error:
        raise ServiceError(
            f"{uri} can't be used: {error}",
            hint="update the reconciler if a newer version wrote it, else delete it: it is written again",
        ) from None


def place_of(uri: str) -> tuple[str, str]:
    """Return the bucket and the name of gs://BUCKET/NAME, without slashes at its end; "" for no name."""
    bucket, _, name = uri.removeprefix("gs://").rstrip("/").partition("/")
    return bucket, name


@contextmanager
def _explained(uri: str, bucket: str, *, does: str = "read") -> Iterator[None]:
    """Add the address and a remedy to every failure."""
    try:
        yield
    except ApiError as error:
        hint = error.hint or "try again later"
        if isinstance(error, NotFoundAtServiceError):
            hint = f"create gs://{bucket}, or correct its name in the manifest"
        elif error.status == _FORBIDDEN and not error.remedy:
            role = "objectViewer" if does == "read" else "objectUser"
            hint = f"grant this identity roles/storage.{role} on gs://{bucket}"
        raise ServiceError(f"{uri} can't be {does}: {error.message}", hint=hint) from None
