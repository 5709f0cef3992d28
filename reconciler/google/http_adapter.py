"""google-api-python-client on top of a transport of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from reconciler.base.http.message import HttpRequest, HttpResponse, Transport

if TYPE_CHECKING:
    import httplib2


class ClientHttp:
    """What google-api-python-client takes for an `httplib2.Http`: the client builds and parses, we send.

    Args:
        transport: What sends.
        authorize: Gives the headers to add to a request, asked for each one, as a token expires.
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
        """Send as `httplib2.Http.request` does; `redirections` and `connection_type` mean nothing here.

        Raises:
            NotSentError, NoAnswerError: As the transport does.
        """
        all_headers = {name: str(value) for name, value in (headers or {}).items()}
        if self._authorize is not None:
            all_headers |= self._authorize()
        request = HttpRequest(method, uri, all_headers, _bytes(body), self._timeout)
        response = self._transport.send(request)
        return _client_response(response), response.body

    def close(self) -> None:
        """Do nothing: the transport belongs to whoever made it."""


def _bytes(body: Any) -> bytes | None:
    """A body as the client gives it: text, bytes, or for an upload in parts something to read."""
    if body is None or isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else bytes(body.read())


def _client_response(response: HttpResponse) -> httplib2.Response:
    from http.client import responses

    import httplib2

    answer = httplib2.Response({**response.headers, "status": str(response.status)})
    answer.reason = responses.get(response.status, "")
    return answer
