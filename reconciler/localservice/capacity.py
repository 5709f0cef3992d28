"""Which waiting jobs may begin: strictly in order, as far as the machine holds what they ask for.

A job that doesn't fit yet holds back all behind it, so that none waits for ever while smaller ones pass by.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from reconciler.localservice.machines import Machine


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that hasn't begun; of those with the same priority the lowest `id` is the first."""

    id: int
    priority: int
    demand: Machine


def admitted(whole: Machine, held: Iterable[Machine], waiting: Iterable[Waiting]) -> list[int]:
    """The ids of the jobs that may begin now, the first one first.

    Args:
        whole: What there is.
        held: What the jobs hold that have begun.
        waiting: In any order; none may ask for more than there is, or it waits for ever.
    """
    begin = []
    free = whole
    for taken in held:
        free = _less(free, taken)
    for job in sorted(waiting, key=lambda job: (-job.priority, job.id)):
        free = _less(free, job.demand)
        if min(free.cpus, free.memory, free.gpus) < 0:
            break
        begin.append(job.id)
    return begin


def _less(one: Machine, other: Machine) -> Machine:
    return Machine(one.cpus - other.cpus, one.memory - other.memory, one.gpus - other.gpus)
