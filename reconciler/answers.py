"""What the answer to a create says about whether there is a job now: the table that submission rests on."""

from __future__ import annotations

from msgspec import Struct

from reconciler.job import ActualJob

REFUSALS = frozenset({400, 401, 403, 404, 412, 413, 429})
"""The HTTP statuses that can say for certain that nothing was made."""

REASONS = frozenset(
    {
        "FAILED_PRECONDITION",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "OUT_OF_RANGE",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "UNAUTHENTICATED",
    }
)
"""The words of `google.rpc.Status` that say so; another word, or none, may be a proxy's or a gateway's."""


class Created(Struct, frozen=True):
    """The service named the job that it made."""

    job: ActualJob


class Refused(Struct, frozen=True):
    """The service made nothing and said why; `retry_after` is in seconds, None where it doesn't say."""

    status: int
    reason: str
    message: str
    retry_after: float | None = None


class Taken(Struct, frozen=True):
    """A job has the name already; the service makes no second one of that name."""

    message: str


class NotSent(Struct, frozen=True):
    """Not a byte of the request left."""

    message: str


class Unknown(Struct, frozen=True):
    """There may be a job, or there may come one."""

    message: str


Answer = Created | Refused | Taken | NotSent | Unknown


def refusal(status: int, reason: str, message: str, retry_after: float | None = None) -> Answer:
    """What an error answer means: a refusal only where status and word both are known to mean one.

    Args:
        status: The HTTP status.
        reason: `error.status` of the answer's JSON body; "" where it has none.
        message: In one line, for people.
        retry_after: The seconds that the answer asks to wait.
    """
    if status == 409 and reason == "ALREADY_EXISTS":
        return Taken(message)
    if status in REFUSALS and reason in REASONS:
        return Refused(status, reason, message, retry_after)
    return Unknown(message)
