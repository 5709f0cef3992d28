"""Calls: decoded requests for a method, and the functions that answer them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from reconciler.base.listener.message import Request, Response
from reconciler.training_service.http.auth import Access
from reconciler.training_service.http.discovery import Form, Method
from reconciler.training_service.state.records import JsonObject


@dataclass(frozen=True, slots=True)
class Call:
    """A decoded request for one method.

    Attributes:
        path: The variable parts of the path, decoded.
        parameters: The query parameters by name, converted to their types.
        body: The request message; {} if the method takes none, or takes media.
        access: The caller's access rights.
    """

    request: Request
    method: Method
    form: Form
    path: Mapping[str, str]
    parameters: JsonObject
    body: JsonObject
    access: Access

    def text(self, parameter: str) -> str:
        """Return a parameter's text, "" if missing."""
        return str(self.parameters.get(parameter, ""))

    def number(self, parameter: str) -> int | None:
        """Return a parameter's number, None if missing."""
        value = self.parameters.get(parameter)
        return None if value is None else int(value)


Handler = Callable[[Call], Response | JsonObject]
"""Function that answers calls of one method: with a message to send as JSON, or a whole response."""
