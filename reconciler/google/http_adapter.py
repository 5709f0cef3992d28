"""Adapter of google-api-python-client to our transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from reconciler.base.http.message import HttpRequest, HttpResponse, Transport

if TYPE_CHECKING:
    import httplib2


class ClientHttp:
    """Replacement of `httplib2.Http` for google-api-python-client, which sends by our transport.

    Args:
        transport: Sends the requests.
        authorize: Returns the headers to add; called for each request, because tokens expire.
        timeout: Seconds for one exchange.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        authorize: Callable[[], Mapping[str, str]] | None = None,
        timeout: float = 60.0,
    ) -> None:
        self._transport = transport
        self._authorize = authorize
        self._timeout = timeout

    def request(
        self,
        uri: str,
        method: str = "GET",
        body: Any = None,
        headers: Mapping[str, Any] | None = None,
        redirections: int = 0,
        connection_type: object = None,
    ) -> tuple[httplib2.Response, bytes]:
        """Send as `httplib2.Http.request` does, but ignore `redirections` and `connection_type`.

        Raises:
            NotSentError, NoAnswerError: The transport failed.
        """
        all_headers = {name: str(value) for name, value in (headers or {}).items()}
        if self._authorize is not None:
            all_headers |= self._authorize()
        request = HttpRequest(method, uri, all_headers, _bytes(body), self._timeout)
        response = self._transport.send(request)
        return _client_response(response), response.body

    def close(self) -> None:
        """Do nothing: the transport's creator closes it."""


def _bytes(body: Any) -> bytes | None:
    # The client passes text, bytes, or for an upload in parts a file object.
    if body is None or isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else bytes(body.read())


def _client_response(response: HttpResponse) -> httplib2.Response:
    from http.client import responses

    import httplib2

    answer = httplib2.Response({**response.headers, "status": str(response.status)})
    answer.reason = responses.get(response.status, "")
    return answer
