"""A run's own output folder, below the folder of the manifest or the default one of the environment.

A folder of a run's own has the name of the content's first attempt: a retry of a job without trials finds its
checkpoints there. It is added after the hash, so that no job gets another name by it. A run that exists keeps
its folder, which is read from the run.
"""

from __future__ import annotations

from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.model.manifest import JsonObject, Packed, unpacked


def with_own_folder(api_version: str, kind: str, packed: Packed, job_name: str) -> Packed:
    """Return a manifest's spec with the folder of the run `job_name` below the written one, if it has one."""
    engine, spec = engine_spec(api_version), unpacked(packed)
    written = engine.output_directory(kind, spec)
    return engine.with_output_directory(kind, spec, f"{written}/{job_name}") if written else packed


def spec_of_attempt(api_version: str, kind: str, spec: JsonObject, first: str, job_name: str) -> JsonObject:
    """Return the effective spec of an attempt.

    Each attempt at a job with trials numbers them from 1, so it gets its own folder: in a shared one, trial 1
    of the second attempt would resume the checkpoint of trial 1 of the first, which has other parameters.

    Args:
        api_version: The manifest's.
        kind: The manifest's.
        spec: That of the first attempt.
        first: The first attempt's name.
        job_name: The attempt's name.
    """
    engine = engine_spec(api_version)
    folder = engine.output_directory(kind, spec)
    if job_name == first or not engine.has_trials(kind, spec) or not folder.endswith(f"/{first}"):
        return spec
    return engine.with_output_directory(kind, spec, f"{folder.removesuffix(first)}{job_name}")
