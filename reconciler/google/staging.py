"""The staging bucket: archives of packages.

Packages are staged under names that contain their hashes and differ from users' own URIs.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from reconciler.base.errors import ServiceError
from reconciler.google.client import Connection, execute, object_of
from reconciler.google.responses import ApiError, NotFoundAtServiceError
from reconciler.packaging.staged_uri import staged_name, staged_uri

if TYPE_CHECKING:
    from reconciler.packaging.sdist import Sdist


class Staging:
    """Staging bucket of an environment."""

    def __init__(self, connection: Connection, bucket: str) -> None:
        self._connection = connection
        self._bucket = bucket

    def put(self, archive: Sdist) -> str:
        """Upload the archive if it is missing; return its `gs://` URI.

        An existing object is used only if it has the archive's size and MD5. Any other object raises
        ServiceError, because it would run unreviewed code.
        """
        metadata = self._find(archive) or self._insert(archive)
        expected = base64.b64encode(bytes.fromhex(archive.md5)).decode("ascii")
        if "size" not in metadata:
            raise ServiceError(
                f"Cloud Storage's answer doesn't say what {staged_uri(self._bucket, archive)} holds",
                hint='check "endpoints" in reconciler.yaml, and any proxy between',
            )
        if (metadata["size"], metadata.get("md5Hash")) != (str(len(archive.data)), expected):
            raise ServiceError(
                f"{staged_uri(self._bucket, archive)} holds something other than the package of that name",
                hint="find out who may write to the staging bucket, then delete the object",
            )
        return staged_uri(self._bucket, archive)

    def holds(self, uri: str, archive: Sdist) -> bool:
        """Return True if the object of a `gs://` URI has exactly the archive's bytes, by size and MD5."""
        bucket, _, name = uri.removeprefix("gs://").partition("/")
        if not (uri.startswith("gs://") and bucket and name):
            return False
        try:
            answer = self._connection.get("storage.objects.get", bucket=bucket, object=name)
        except NotFoundAtServiceError:
            return False
        metadata = object_of(answer.body)
        expected = base64.b64encode(bytes.fromhex(archive.md5)).decode("ascii")
        return (metadata.get("size"), metadata.get("md5Hash")) == (str(len(archive.data)), expected)

    def _find(self, archive: Sdist) -> Any:
        objects = self._connection.client("storage.objects")
        try:
            return execute(objects.get(bucket=self._bucket, object=staged_name(archive)))
        except NotFoundAtServiceError:
            return None

    def _insert(self, archive: Sdist) -> Any:
        from googleapiclient.http import MediaInMemoryUpload

        request = self._connection.client("storage.objects").insert(
            bucket=self._bucket,
            name=staged_name(archive),
            ifGenerationMatch="0",
            media_body=MediaInMemoryUpload(archive.data, mimetype="application/gzip"),
        )
        try:
            return execute(request)
        except NotFoundAtServiceError as error:
            raise ServiceError(
                f"there is no bucket {self._bucket}: {error.message}",
                hint='create it, or name another under "stagingBucket" in reconciler.yaml',
            ) from None
        except ApiError as error:
            # 412: another process has just staged the same archive.
            metadata = self._find(archive) if error.status == 412 else None
            if metadata is not None:
                return metadata
            if error.status == 403:
                role = (
                    "the account that runs this needs the role roles/storage.objectUser on the staging bucket"
                )
                raise ServiceError(
                    f"can't write to gs://{self._bucket}: {error.message}", hint=error.remedy or role
                ) from None
            raise
