"""A run's GPUs: which replica gets which, and what to say where there are too few."""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.localservice.cluster import Pool, Replica
from reconciler.localservice.frameworks import find_image
from reconciler.localservice.run_spec import PythonTask


def dealt(replicas: Sequence[Replica], gpus: Sequence[str]) -> list[tuple[str, ...]]:
    """Each replica's GPUs: as many as it asks for, else equal shares.

    Where there isn't one for each, none gets any: replicas that work together have to be alike.
    """
    wanted = [replica.pool.gpus for replica in replicas]
    if sum(wanted) > len(gpus):
        share = len(gpus) // sum(number > 0 for number in wanted)
        wanted = [min(number, share) for number in wanted]
    left = iter(gpus)
    return [tuple(next(left) for _ in range(number)) for number in wanted]


def warnings(pools: Sequence[Pool], gpus: Sequence[str]) -> tuple[str, ...]:
    """What differs from the cloud: one line, or none."""
    asking = [pool for pool in pools if pool.gpus]
    if not asking:
        return _of_image(pools)
    wanted = sum(pool.size * pool.gpus for pool in asking)
    what = asking[0].accelerator or asking[0].machine_type
    if wanted <= len(gpus):
        return ()
    if len(gpus) < sum(pool.size for pool in asking):
        return (f"{what} asks for accelerators: the job runs on the CPU here.",)
    return (f"The job asks for {wanted} accelerators ({what}), and has {len(gpus)} here.",)


def _of_image(pools: Sequence[Pool]) -> tuple[str, ...]:
    for pool in pools:
        image = find_image(pool.task.image) if isinstance(pool.task, PythonTask) else None
        if image is not None and image.on_accelerators:
            return (f"The image {pool.task.image} asks for accelerators: the job runs on the CPU here.",)
    return ()
