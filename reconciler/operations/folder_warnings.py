"""Warnings about output folders that several runs share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from reconciler.base.diagnostics import Keys, Problem, UnplacedWarning, Warned, quote
from reconciler.base.warning_kinds import WarningKind
from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.manifests.settings import FILE_NAME, Environment
from reconciler.model.manifest import AIPLATFORM_V1, Manifest

_FIELDS = (b"outputUriPrefix", b"jobDir")
_ARGUMENTS = ("args", "containerArgs", "command", "containerCommand")


def folder_warnings(manifests: Iterable[Manifest], environment: Environment) -> list[Warned]:
    """Return the warnings about the folders that valid manifests name, as the environment's `outputs` is.

    With own folders, each argument or variable that names a place in the written folder: it stays shared.
    Otherwise each folder of two manifests; and, if the settings don't say which, that they should.
    """
    folders = [(manifest, folder) for manifest in manifests if (folder := written_folder(manifest))]
    if not folders:
        return []
    if environment.outputs == "own":
        return [warning for manifest, folder in folders for warning in _shared_texts(manifest, folder)]
    unsaid = [_unsaid(folders[0][1])] if environment.outputs is None else []
    return [*unsaid, *_shared_folders(folders)]


def written_folder(manifest: Manifest) -> str:
    """Return the output folder (gs://…) that a manifest names, without a slash at its end; "" for none."""
    packed = manifest.packed
    # Of 10,000 manifests, most needn't be decoded.
    if isinstance(packed, bytes) and not any(field in packed for field in _FIELDS):
        return ""
    return engine_spec(manifest.api_version).output_directory(manifest.kind, manifest.spec)


def _unsaid(folder: str) -> Problem:
    """Return the warning that the settings don't say where runs write."""
    message = (
        f"all runs of a job write to one folder, such as {folder}, so that after a revert the reverted run's "
        "model stays there"
    )
    hint = (
        'write "outputs: own", which gives each run a folder of its own and changes no job\'s name; or '
        '"outputs: shared" to keep this'
    )
    return Problem(FILE_NAME, 1, 1, "", message, hint, WarningKind.OUTPUTS)


def _shared_folders(folders: Sequence[tuple[Manifest, str]]) -> Iterator[UnplacedWarning]:
    first: dict[str, Manifest] = {}
    for manifest, folder in folders:
        other = first.setdefault(folder, manifest)
        if other is not manifest:
            engine = engine_spec(manifest.api_version)
            keys: Keys = tuple(engine.output_directory_field(manifest.kind, manifest.spec))
            message = (
                f"{quote(other.name)} and {quote(manifest.name)} write to this folder: a model of one "
                "overwrites the model of the other"
            )
            hint = f'write another folder, such as {folder}/{manifest.name}, or "outputs: own" in {FILE_NAME}'
            yield _warning(manifest, keys, message, hint)


def _shared_texts(manifest: Manifest, folder: str) -> Iterator[UnplacedWarning]:
    packed = manifest.packed
    if isinstance(packed, bytes) and packed.count(folder.removeprefix("gs:/").encode()) < 2:
        return
    is_vertex = manifest.api_version == AIPLATFORM_V1
    given = "the variable AIP_MODEL_DIR or AIP_CHECKPOINT_DIR" if is_vertex else "the argument --job-dir"
    for keys, text in _texts_of_programs(manifest.spec, ("spec",)):
        places = (folder, f"/gcs/{folder.removeprefix('gs://')}")
        if any(_is_below(text, place) for place in places):
            message = f"all runs share this place in {folder}, below which each run has a folder of its own"
            yield _warning(manifest, keys, message, f"take the run's folder from {given}")


def _is_below(text: str, place: str) -> bool:
    """Return True if a text names a place or something below it."""
    start = text.find(place)
    return start >= 0 and text[start + len(place) :][:1] in ("", "/")


def _texts_of_programs(value: Any, keys: Keys) -> Iterator[tuple[Keys, str]]:
    """Yield path and text of each argument and variable of a spec."""
    for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
        if key in _ARGUMENTS and isinstance(part, list):
            yield from (((*keys, key, number), text) for number, text in enumerate(part))
        elif key == "env" and isinstance(part, list):
            yield from (((*keys, key, n, "value"), str(one.get("value", ""))) for n, one in enumerate(part))
        elif isinstance(part, Mapping | list):
            yield from _texts_of_programs(part, (*keys, key))


def _warning(manifest: Manifest, keys: Keys, message: str, hint: str) -> UnplacedWarning:
    return UnplacedWarning(manifest.path, manifest.line, keys, message, hint, WarningKind.SHARED_FOLDER)
