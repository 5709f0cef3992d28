"""The wanted jobs of a whole repository, kept on disk between commands while no manifest of it is touched.

`manifestcache` knows each file by itself. Here the whole is known: where all files look as they did, nothing
is put together again, as nothing but the files' bytes and the environment's defaults decide which jobs they
ask for. So nothing is kept where more does: the code of a package, or a file that was written a moment ago.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import MsgspecError, Raw, Struct, msgpack

from reconciler.cachefile import CacheFile
from reconciler.manifest import JsonObject, Manifest, Packed, Reconcile, unpacked
from reconciler.plan import DesiredJob
from reconciler.validation.remembered import AS_IS

if TYPE_CHECKING:
    from reconciler.validation.files import Found

_LOOK_BYTES = 32
_FAST = 1  # of the levels that compress
_NAME = "jobs.bin"


class _Job(Struct, frozen=True, array_like=True, gc=False):
    """A job without code; `reconcile` is None where the manifest says nothing of it.

    `kind` is the number of its apiVersion and kind.
    """

    kind: int
    name: str
    labels: dict[str, str]
    reconcile: Reconcile | None
    path: str
    line: int
    identity: str
    job_name: str
    earlier: tuple[str, ...]
    keys: tuple[str, ...]
    digest: bytes


class _Content(Struct, frozen=True, array_like=True):
    """What the file holds behind the look of the manifests.

    Attributes:
        kinds: Each apiVersion and kind once.
        jobs: Sorted by base name.
        specs: Those of the jobs, compressed: of jobs that are as wanted, nobody looks at one.
        written: Those of the manifests, where the environment's defaults fill what they leave out; else b"".
    """

    kinds: list[tuple[str, str]]
    jobs: list[_Job]
    specs: bytes
    written: bytes


class _Specs:
    """The specs of jobs, unpacked once one is looked at."""

    def __init__(self, compressed: bytes) -> None:
        self._compressed = compressed

    def of(self, number: int) -> JsonObject:
        """That of one job."""
        found: JsonObject = msgpack.decode(self._all[number])
        return found

    @cached_property
    def _all(self) -> list[Raw]:
        return msgpack.decode(zlib.decompress(self._compressed), type=list[Raw])


_decode = msgpack.Decoder(_Content).decode


class DesiredCache:
    """The cache of one repository.

    Args:
        root: The repository's root.
        environ: The environment variables.
        defaults: What the environment gives where manifests leave it out.
    """

    def __init__(self, root: Path, environ: Mapping[str, str], defaults: JsonObject) -> None:
        self._file = CacheFile(root, _NAME, environ)
        self._defaults = defaults

    def seems_good(self) -> bool:
        """Whether there is a cache of this version and this key: only that all of it is so is to be seen."""
        return self._file.seems_good()

    def load(self, look: bytes) -> tuple[DesiredJob, ...] | None:
        """The jobs that files of this look ask for, sorted by base name; None where that isn't known."""
        body = self._file.load()
        if body is None or body[:_LOOK_BYTES] != look:
            return None
        with suppress(MsgspecError, ValueError, IndexError):
            content = _decode(body[_LOOK_BYTES:])
            kinds, specs = content.kinds, _Specs(content.specs)
            written = _Specs(content.written) if content.written else specs
            return tuple(
                _desired(job, kinds, partial(written.of, number), partial(specs.of, number))
                for number, job in enumerate(content.jobs)
            )
        return None

    def save(self, look: bytes, jobs: Sequence[DesiredJob]) -> bool:
        """Keep what the files of this look ask for, as they do for as long as they look so; whether it is."""
        if any(job.manifest.package for job in jobs):
            return False
        kinds = sorted({_kind_of(job) for job in jobs})
        numbers = {kind: number for number, kind in enumerate(kinds)}
        with suppress(ValueError, OverflowError):
            specs = _compressed(job.packed for job in jobs)
            written = _compressed(job.manifest.packed for job in jobs) if self._defaults else b""
            kept = [_kept(job, numbers[_kind_of(job)]) for job in jobs]
            content = _Content(kinds, kept, specs, written)
            return self._file.save(look + msgpack.encode(content))
        return False

    def look_of(self, found: Found) -> bytes:
        """A digest of which files there are, what they are called, what each looks like, and the defaults.

        It is as good as none where something can't be read: then nothing else has this look.
        """
        files, obstacles = found
        seen = msgpack.encode((self._defaults, files))
        return blake2b(seen, digest_size=_LOOK_BYTES).digest() if not obstacles else b""


def _compressed(specs: Iterable[Packed]) -> bytes:
    return zlib.compress(msgpack.encode([_raw(spec) for spec in specs]), _FAST)


def _raw(packed: Packed) -> Raw:
    return packed if isinstance(packed, Raw) else Raw(msgpack.encode(unpacked(packed)))


def _kind_of(job: DesiredJob) -> tuple[str, str]:
    return job.manifest.api_version, job.manifest.kind


def _kept(job: DesiredJob, kind: int) -> _Job:
    manifest = job.manifest
    return _Job(
        kind,
        manifest.name,
        dict(manifest.labels),
        None if manifest.reconcile == AS_IS else manifest.reconcile,
        manifest.path,
        manifest.line,
        job.identity,
        job.job_name,
        job.earlier,
        job.keys,
        manifest.digest,
    )


def _desired(job: _Job, kinds: Sequence[tuple[str, str]], written: Packed, packed: Packed) -> DesiredJob:
    # By position, which is made in half the time.
    api_version, kind = kinds[job.kind]
    reconcile = job.reconcile or AS_IS
    manifest = Manifest(
        api_version,
        kind,
        job.name,
        written,
        job.labels,
        None,
        reconcile,
        job.path,
        job.line,
        "",
        job.digest,
    )
    return DesiredJob(manifest, job.identity, job.job_name, "", packed, job.earlier, job.keys)
