"""Exceptions that end a command, with their exit codes.

Mistakes in manifests are `diagnostics.Problem` values instead, so that a command reports all of them
together.
"""

from __future__ import annotations

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
