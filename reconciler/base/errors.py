"""Exceptions that end a command, with their exit codes.

Mistakes in manifests are `diagnostics.Problem` values instead, so that a command reports all of them
together.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reconciler.base.diagnostics import Problem


class ExitCode(IntEnum):
    """Exit codes of the process; fixed, because scripts and workflows branch on them."""

    DONE = 0
    FAILED = 1
    CHANGES_PENDING = 2
    INVALID = 3
    REFUSED = 4
    USAGE = 64


class ReconcilerError(Exception):
    """Error that ends the command, with a sentence for the user and, if known, a hint to the remedy."""

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ServiceError(ReconcilerError):
    """Error for a service that refused a request or could not be reached."""


class MachineError(ReconcilerError):
    """Error of this machine, such as no descriptor, memory or disk left; no file of the user is wrong."""


# A change of the file, or of its name or its permissions, mends these alone.
_OF_A_FILE = frozenset(
    (
        *(errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST),
        *(errno.ENOTEMPTY, errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.ENXIO, errno.ENODEV),
    )
)
_OPEN_FILES = "end other programs, or raise the limit of open files: ulimit -n"
_ROOM = "make room on the disk"
_REMEDIES = {
    errno.EMFILE: _OPEN_FILES,
    errno.ENFILE: _OPEN_FILES,
    errno.ENOMEM: "end other programs, which use its memory",
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EIO: "check the disk",
}


def check_machine(error: OSError, what: str) -> None:
    """Raise MachineError unless a change of a file can mend the error.

    Args:
        error: The error of the system.
        what: What failed, as the beginning of a sentence, such as `jobs/a.yaml can't be read`.
    """
    if error.errno not in _OF_A_FILE:
        hint = _REMEDIES.get(error.errno or 0, "try again; no file is wrong")
        raise MachineError(f"{what}: {error.strerror or error}", hint=hint) from None


def machine_error(error: OSError | MemoryError) -> MachineError:
    """Return the error for one of the system that nothing else explains."""
    if isinstance(error, MemoryError):
        return MachineError("this machine has no memory left", hint=_REMEDIES[errno.ENOMEM])
    named = f": {error.filename}" if error.filename else ""
    return MachineError(f"{error.strerror or error}{named}", hint=_REMEDIES.get(error.errno or 0, ""))


class NotFoundError(ReconcilerError):
    """Error for a missing object that the user named."""


class InvalidError(ReconcilerError):
    """Error for unusable manifests or configuration; no request was sent to a service.

    Attributes:
        problems: The mistakes with their places; empty if the message alone describes the mistake.
    """

    exit_code = ExitCode.INVALID

    def __init__(self, message: str, *, hint: str = "", problems: Sequence[Problem] = ()) -> None:
        super().__init__(message, hint=hint)
        self.problems = tuple(problems)


class RefusedError(ReconcilerError):
    """Error for a command stopped before its first write, by a limit or a change since the plan's review."""

    exit_code = ExitCode.REFUSED


class UsageError(ReconcilerError):
    """Error for an invalid command line."""

    exit_code = ExitCode.USAGE
