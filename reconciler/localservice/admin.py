"""The service's own paths, below /_service/: its health, its end, and the settings that clients give it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from reconciler.localservice import wire
from reconciler.localservice.application import MAX_MESSAGE
from reconciler.localservice.gate import CLAIMS
from reconciler.localservice.message import Request, Response, invalid, json_response, not_found
from reconciler.localservice.records import Json, JsonObject
from reconciler.localservice.store import Store

IMAGES = "images"
"""The setting that holds the overrides of the image table: image -> {"python", "requirements"}."""

_DISTRIBUTION = "mljob-reconciler"


@cache
def own_version() -> str:
    """The installed version, "" where the code runs without being installed."""
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return ""


class Admin:
    """Answers the service's own paths; `stop` ends the service soon, not its jobs."""

    def __init__(self, store: Store, stop: Callable[[], None]) -> None:
        self._store = store
        self._stop = stop
        self._paths: dict[tuple[str, str], Callable[[Request], JsonObject]] = {
            ("GET", "/_service/health"): self._health,
            ("POST", "/_service/stop"): self._end,
            ("PUT", "/_service/images"): self._set_images,
            ("PUT", "/_service/claims"): self._set_claims,
        }

    def handle(self, request: Request) -> Response:
        """The answer to a request that was let through.

        Raises:
            ApiError, DatabaseError: It can't be answered.
        """
        answer = self._paths.get((request.method, request.path))
        if answer is None:
            raise not_found("Method not found.")
        return json_response(answer(request))

    def _health(self, request: Request) -> JsonObject:
        return {"version": own_version(), "pid": os.getpid()}

    def _end(self, request: Request) -> JsonObject:
        self._stop()
        return {}

    def _set_images(self, request: Request) -> JsonObject:
        """For jobs that are created from now on."""
        images = _body(request)
        for image, known in images.items():
            if not isinstance(known, dict) or known.keys() - {"python", "requirements"}:
                raise invalid(f"{image}: must hold python, requirements, and nothing else.")
            if not _is_text_list(known.get("requirements", [])) or not isinstance(
                known.get("python", ""), str
            ):
                raise invalid(f"{image}: python must be a text, requirements a list of texts.")
        self._store.set_setting(IMAGES, images)
        return {}

    def _set_claims(self, request: Request) -> JsonObject:
        """{"reserved": ["bucket", "bucket/beginning of names"]}: out of the reach of all jobs from now on."""
        reserved = _body(request).get("reserved")
        if not _is_text_list(reserved):
            raise invalid("reserved: must be a list of texts.")
        self._store.set_setting(CLAIMS, reserved)
        return {}


def _body(request: Request) -> JsonObject:
    return wire.read_json(request.body.read(MAX_MESSAGE))


def _is_text_list(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
