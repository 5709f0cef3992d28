"""What the end of a trainer's program means for its job."""

from __future__ import annotations

import signal

from reconciler.localservice.codes import Code
from reconciler.localservice.run_folder import FAILED, SUCCEEDED, Ending

_TAIL = 2048
_TRACEBACK = "Traceback (most recent call last):"


class Tail:
    """The end of what a program has printed: by default as much as an error message holds.

    Attributes:
        limit: Characters that are kept.
    """

    def __init__(self, limit: int = _TAIL) -> None:
        self._limit = limit
        self._text = ""

    def add(self, lines: list[str]) -> None:
        """Take in lines."""
        self._text = (self._text + "".join(f"{line}\n" for line in lines[-self._limit :]))[-self._limit :]

    def text(self) -> str:
        """The end of them, from the traceback on where there is one."""
        _, mark, rest = self._text.partition(_TRACEBACK)
        return f"{mark}{rest}" if mark else self._text


def killer_of(code: int) -> signal.Signals | None:
    """The signal that has ended a program; shells and containers tell of it as 128 and its number."""
    number = -code if code < 0 else code - 128
    return signal.Signals(number) if number in set(signal.Signals) else None


def ending_of(replica: str, code: int, errors: str, hint: str = "") -> Ending:
    """How a job ends whose replica has ended with this code.

    Args:
        replica: As the cloud's errors call it.
        errors: The end of what it has printed to its standard error.
        hint: What more there is to say, "" for nothing.
    """
    if code == 0:
        return Ending(SUCCEEDED)
    killer = killer_of(code)
    if killer is None:
        told = f"The replica {replica} exited with a non-zero status of {code}. Termination reason: Error."
    elif killer is signal.SIGKILL:
        told = f"The replica {replica} was killed by signal 9 (SIGKILL): out of memory, or killed by hand."
    else:
        told = f"The replica {replica} was killed by signal {killer} ({killer.name})."
    message = "\n".join(filter(None, (told, errors.rstrip(), hint)))
    # What a program does to itself the cloud calls an invalid argument.
    kind = Code.RESOURCE_EXHAUSTED if killer is signal.SIGKILL else Code.INVALID_ARGUMENT
    return Ending(FAILED, kind, message)
