"""The exceptions that end a command, each with the exit code it stands for.

Mistakes in manifests are not exceptions: they are `diagnostics.Problem` values, collected and shown together.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reconciler.base.diagnostics import Problem


class ExitCode(IntEnum):
    """What the process ends with; fixed, because scripts and workflows branch on it."""

    DONE = 0
    FAILED = 1
    CHANGES_PENDING = 2
    INVALID = 3
    REFUSED = 4
    USAGE = 64


class ReconcilerError(Exception):
    """Something that ends the command: one sentence for the user, and where known what to do about it."""

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ServiceError(ReconcilerError):
    """A service refused a request, or could not be reached."""


class NotFoundError(ReconcilerError):
    """What the user named isn't there."""


class InvalidError(ReconcilerError):
    """Manifests or configuration that can't be used: nothing was asked of a service.

    Attributes:
        problems: The mistakes with their places; empty where the message alone says it.
    """

    exit_code = ExitCode.INVALID

    def __init__(self, message: str, *, hint: str = "", problems: Sequence[Problem] = ()) -> None:
        super().__init__(message, hint=hint)
        self.problems = tuple(problems)


class RefusedError(ReconcilerError):
    """A brake stopped the command before its first write: a limit, or a plan that isn't the reviewed one."""

    exit_code = ExitCode.REFUSED


class UsageError(ReconcilerError):
    """The command line is wrong."""

    exit_code = ExitCode.USAGE
