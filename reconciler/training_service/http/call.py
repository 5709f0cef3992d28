"""What a method's handler is given, and what it may give back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from reconciler.training_service.http.auth import Reach
from reconciler.training_service.http.discovery import Form, Method
from reconciler.training_service.http.message import Request, Response
from reconciler.training_service.state.records import JsonObject


@dataclass(frozen=True, slots=True)
class Call:
    """One request for one method.

    Attributes:
        path: The variable parts of the path, decoded.
        parameters: The query's parameters by name, of their types.
        body: The request message; {} where the method takes none, or takes media.
        reach: What the caller may do.
    """

    request: Request
    method: Method
    form: Form
    path: Mapping[str, str]
    parameters: JsonObject
    body: JsonObject
    reach: Reach

    def text(self, parameter: str) -> str:
        """A parameter's text, "" where it wasn't given."""
        return str(self.parameters.get(parameter, ""))

    def number(self, parameter: str) -> int | None:
        """A parameter's number, None where it wasn't given."""
        found = self.parameters.get(parameter)
        return None if found is None else int(found)


Handler = Callable[[Call], Response | JsonObject]
"""Answers one method's calls: a message to be written as JSON, or a whole response."""
