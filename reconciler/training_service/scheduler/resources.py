"""What only one run at a time may have: its ports on loopback, and its GPUs."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Below the ports that systems give to whoever asks for any (Linux: from 32768; IANA: from 49152).
_FIRST, _END = 20_000, 32_000


@dataclass(frozen=True, slots=True)
class Allotment:
    """What is one run's alone: ports that nobody listened at, and GPUs by their ids."""

    ports: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()


class NoPortError(OSError):
    """There aren't as many free ports."""


class Allotments:
    """What runs that aren't over have; no two of them have the same.

    Attributes:
        gpus: All GPUs that there are.
    """

    def __init__(self, gpus: Sequence[str] = ()) -> None:
        self._gpus = tuple(gpus)
        self._held: dict[str, Allotment] = {}
        # Not from the first on: another home's service shares these ports. And a port that has just become
        # free comes last, because late packets may still be meant for whoever had it.
        self._next = random.randrange(_FIRST, _END)  # noqa: S311 (a place to begin, no secret)

    def of(self, run_id: str, *, ports: int, gpus: int) -> Allotment:
        """What a run has, or gets now: so many ports, and so many GPUs as far as some are free.

        Raises:
            NoPortError: There aren't as many free ports.
        """
        held = self._held.get(run_id)
        if held is None or len(held.ports) != ports:
            self._held.pop(run_id, None)
            held = Allotment(self._free_ports(ports), self._free_gpus(gpus))
            self._held[run_id] = held
        return held

    def note(self, run_id: str, held: Allotment) -> None:
        """Take in what a run was given by a former service."""
        self._held[run_id] = held

    def release(self, run_id: str) -> None:
        """The run is over; what it had is free."""
        self._held.pop(run_id, None)

    def _free_gpus(self, wanted: int) -> tuple[str, ...]:
        taken = {gpu for held in self._held.values() for gpu in held.gpus}
        return tuple(gpu for gpu in self._gpus if gpu not in taken)[:wanted]

    def _free_ports(self, wanted: int) -> tuple[int, ...]:
        taken = {port for held in self._held.values() for port in held.ports}
        found: list[int] = []
        for port in self._from_next():
            if len(found) == wanted:
                break
            self._next = port + 1
            if port not in taken and _is_free(port):
                found.append(port)
        if len(found) < wanted:
            raise NoPortError(f"no {wanted} ports are free between {_FIRST} and {_END - 1}")
        return tuple(found)

    def _from_next(self) -> Iterable[int]:
        return [*range(self._next, _END), *range(_FIRST, min(self._next, _END))]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
