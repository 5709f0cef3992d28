"""HTTP client that sends each request at most once; its errors report whether the request may have arrived.

`google-api-python-client` sends through httplib2, which repeats a POST after a lost response and so could
create a job twice. The Google client therefore only builds and parses, and this package sends, for it as for
GitHub and the training service. Begin at `DirectTransport`.
"""

from reconciler.base.http.retries import RetryingReads, retry_after
from reconciler.base.http.send import DirectTransport
from reconciler.base.http.wire import (
    READ_METHODS,
    HttpRequest,
    HttpResponse,
    NoAnswerError,
    NotSentError,
    Transport,
)

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
]
