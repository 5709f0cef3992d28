"""HTTP, one request at a time: a request is sent at most once, and an error says whether it may have arrived.

`google-api-python-client` sends through httplib2, which repeats a POST whose answer got lost; a job created
twice is the one thing that must not happen. So the client only builds and parses, and this package sends.
"""

from reconciler.base.http.message import (
    READ_METHODS,
    HttpRequest,
    HttpResponse,
    NoAnswerError,
    NotSentError,
    Transport,
)
from reconciler.base.http.retry import RetryingReads, retry_after, send_idempotent
from reconciler.base.http.send import DirectTransport

__all__ = [
    "READ_METHODS",
    "DirectTransport",
    "HttpRequest",
    "HttpResponse",
    "NoAnswerError",
    "NotSentError",
    "RetryingReads",
    "Transport",
    "retry_after",
    "send_idempotent",
]
