"""Fields by which a valid job of either API can't run on the embedded training service."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from reconciler.training_service.jobs.cluster import PYTHON_FIELD, RUNTIME_FIELD, Pool, pools_of
from reconciler.training_service.jobs.images import find_override, known_runtimes, unknown_image
from reconciler.training_service.jobs.launch import MOST_REPLICAS
from reconciler.training_service.jobs.machines import has_tpu
from reconciler.training_service.jobs.python_containers import (
    how_to_run_staged,
    is_staged_code,
    python_of_image,
)
from reconciler.training_service.state.records import TUNING_JOBS, JobRecord, Json
from reconciler.training_service.state.run_spec import ContainerTask
from reconciler.training_service.tuning import checks
from reconciler.training_service.tuning.checks import Mistake

_NO_TPUS = "The embedded training service has no TPUs. Take a machine without them, such as n1-standard-8."


def unsupported(job: JobRecord) -> Iterator[Mistake]:
    """Yield the fields of a valid job by which it can't run on the embedded service, each with the remedy."""
    pools = pools_of(job)
    total = sum(pool.size for pool in pools)
    if total > MOST_REPLICAS:
        message = f"The job has {total} replicas: the embedded training service runs {MOST_REPLICAS} at most."
        yield pools[-1].size_field, message
    mistakes = [mistake for pool in pools for mistake in _unsupported(pool, job)]
    yield from dict.fromkeys(mistakes)  # roles may share a field
    if job.collection == TUNING_JOBS:
        yield from checks.not_carried_out(job.body.get("studySpec", {}), "study_spec")


def _unsupported(pool: Pool, job: JobRecord) -> Iterator[Mistake]:
    if has_tpu(pool.machine_type, pool.accelerator):
        yield pool.machine_field, _NO_TPUS
    task = pool.task
    if isinstance(task, ContainerTask):
        yield from _without_place(pool, task, job.images)
        return
    if find_override(task.image, job.images):
        return
    is_runtime = pool.image_field == RUNTIME_FIELD
    unknown = unknown_image(task.image, job.images, is_runtime=is_runtime)
    if not is_runtime:
        if unknown:
            yield pool.image_field, ": ".join(unknown)
        return
    pythons = known_runtimes().get(task.image)
    if pythons is None:
        message = f"There was never a runtime version {task.image}: the last ones are 1.15 and 2.11."
        yield RUNTIME_FIELD, message
    elif task.python and task.python not in pythons:
        message = (
            f"The runtime version {task.image} has no Python {task.python}: write {' or '.join(pythons)}."
        )
        yield PYTHON_FIELD, message
    elif unknown:
        yield RUNTIME_FIELD, ": ".join(unknown)


def _without_place(pool: Pool, task: ContainerTask, images: Mapping[str, Json]) -> Iterator[Mistake]:
    # Other containers are taken: an engine may be there when they start.
    if not is_staged_code(task) or find_override(task.image, images) or python_of_image(task.image):
        return
    from reconciler.training_service.processes.container_engines import (
        any_engine,
    )  # with psutil; rarely needed

    if not any_engine(os.environ):
        message = f"No container engine works on this machine to run the image {task.image}"
        remedy = f"install or start Docker or Podman, or {how_to_run_staged(task.image)}"
        yield pool.image_field, f"{message}: {remedy}"
