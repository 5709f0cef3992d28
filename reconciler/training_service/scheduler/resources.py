"""Resources that runs can't share: ports on loopback and GPUs."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from dataclasses import dataclass

# Below the ephemeral ports, which systems assign on request (Linux: from 32768; IANA: from 49152).
_FIRST, _END = 20_000, 32_000


@dataclass(frozen=True, slots=True)
class Reservation:
    """Ports and GPU ids reserved for a run."""

    ports: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()


class NoPortError(OSError):
    """Too few ports are free."""


class Reservations:
    """Reservations of all unfinished runs; no two share a port or a GPU.

    Attributes:
        gpus: The ids of all GPUs of this machine.
    """

    def __init__(self, gpus: Sequence[str] = ()) -> None:
        self._gpus = tuple(gpus)
        self._held: dict[str, Reservation] = {}
        # A random start, because other homes' services share these ports. The search then goes round, so a
        # port that has just become free comes last: late packets may still be meant for its former user.
        self._next = random.randrange(_FIRST, _END)  # noqa: S311 (a place to begin, no secret)

    def reserve(self, run_id: str, *, ports: int, gpus: int) -> Reservation:
        """Return the run's reservation; make it first if it is missing.

        Fewer than `gpus` GPUs are reserved if fewer are free.

        Raises:
            NoPortError: Fewer than `ports` ports are free.
        """
        held = self._held.get(run_id)
        if held is None or len(held.ports) != ports:
            self._held.pop(run_id, None)
            held = Reservation(self._free_ports(ports), self._free_gpus(gpus))
            self._held[run_id] = held
        return held

    def adopt(self, run_id: str, held: Reservation) -> None:
        """Add the reservation of a run that a former service started."""
        self._held[run_id] = held

    def release(self, run_id: str) -> None:
        """Free the resources of a finished run."""
        self._held.pop(run_id, None)

    def _free_gpus(self, count: int) -> tuple[str, ...]:
        taken = {gpu for held in self._held.values() for gpu in held.gpus}
        return tuple(gpu for gpu in self._gpus if gpu not in taken)[:count]

    def _free_ports(self, count: int) -> tuple[int, ...]:
        taken = {port for held in self._held.values() for port in held.ports}
        free: list[int] = []
        for port in [*range(self._next, _END), *range(_FIRST, min(self._next, _END))]:
            if len(free) == count:
                break
            self._next = port + 1
            if port not in taken and _is_free(port):
                free.append(port)
        if len(free) < count:
            raise NoPortError(f"no {count} ports are free between {_FIRST} and {_END - 1}")
        return tuple(free)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
