"""The error codes of google.rpc.Code that a job may end with."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """What kind of error it is."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
