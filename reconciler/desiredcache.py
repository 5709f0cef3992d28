"""The wanted jobs of a whole repository, kept on disk between commands while no manifest of it is touched.

`manifestcache` knows each file by itself. Here the whole is known: where all files look as they did, nothing
is put together again, as nothing but the files' bytes decides which jobs they ask for. So nothing is kept
where more does: the code of a package, an environment's defaults, or a file that was written a moment ago.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import MsgspecError, Raw, Struct, msgpack

from reconciler.cachefile import CacheFile
from reconciler.manifest import Manifest, Reconcile
from reconciler.plan import DesiredJob
from reconciler.validation.remembered import AS_IS

if TYPE_CHECKING:
    from reconciler.validation.files import Found

LOOK_BYTES = 32
_LARGE = 256 * 1024
"""Bytes of a cache; of some 800 manifests."""
_NAME = "jobs.bin"


class _Job(Struct, frozen=True, array_like=True, gc=False):
    """A job without code, of an environment without defaults; `reconcile` is None for the defaults."""

    api_version: str
    kind: str
    name: str
    packed: Raw
    labels: dict[str, str]
    reconcile: Reconcile | None
    path: str
    line: int
    identity: str
    job_name: str
    earlier: tuple[str, ...]
    keys: tuple[str, ...]


_decode = msgpack.Decoder(list[_Job]).decode


class DesiredThen(NamedTuple):
    """What was wanted when all files had this look; the jobs are sorted by base name."""

    look: bytes
    jobs: tuple[DesiredJob, ...]


class DesiredCache:
    """The cache of one repository.

    Args:
        root: The repository's root.
        environ: The environment variables.
    """

    def __init__(self, root: Path, environ: Mapping[str, str]) -> None:
        self._file = CacheFile(root, _NAME, environ)

    def seems_good(self) -> bool:
        """Whether there is a cache of this version and this key: only that all of it is so is to be seen."""
        return self._file.seems_good()

    def is_large(self) -> bool:
        """Whether it is about so many files that to look at them takes longer than to start a process."""
        return self._file.size() >= _LARGE

    def load(self) -> DesiredThen | None:
        """What was kept; None where there is nothing that can be believed."""
        body = self._file.load()
        if body is None or len(body) <= LOOK_BYTES:
            return None
        with suppress(MsgspecError, ValueError):
            jobs = tuple(map(_desired, _decode(body[LOOK_BYTES:])))
            return DesiredThen(bytes(body[:LOOK_BYTES]), jobs)
        return None

    def save(self, look: bytes, jobs: Sequence[DesiredJob]) -> None:
        """Keep what the files of this look ask for: they do for as long as they look so."""
        kept = [_kept(job) for job in jobs if job.manifest.package is None]
        if len(kept) == len(jobs):
            with suppress(ValueError, OverflowError):
                self._file.save(look + msgpack.encode(kept))


def look_of(found: Found) -> bytes:
    """A digest of which files there are, what they are called, and what each looks like.

    It is as good as none where something can't be read: then nothing else has this look.
    """
    files, obstacles = found
    return blake2b(msgpack.encode(files), digest_size=LOOK_BYTES).digest() if not obstacles else b""


def _kept(job: DesiredJob) -> _Job:
    manifest = job.manifest
    packed = manifest.packed if isinstance(manifest.packed, Raw) else Raw(msgpack.encode(manifest.packed))
    return _Job(
        manifest.api_version,
        manifest.kind,
        manifest.name,
        packed,
        dict(manifest.labels),
        None if manifest.reconcile == AS_IS else manifest.reconcile,
        manifest.path,
        manifest.line,
        job.identity,
        job.job_name,
        job.earlier,
        job.keys,
    )


def _desired(job: _Job) -> DesiredJob:
    # By position, which is made in half the time.
    reconcile = job.reconcile or AS_IS
    manifest = Manifest(
        job.api_version, job.kind, job.name, job.packed, job.labels, None, reconcile, job.path, job.line
    )
    return DesiredJob(manifest, job.identity, job.job_name, "", job.packed, job.earlier, job.keys)
