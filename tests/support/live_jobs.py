"""Jobs that other clients sent to a repository's training service."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from tests.support.repository import Repository
from tests.support.training_service.bodies import VERTEX

PLACE = VERTEX.replace("demo", "local").replace("us-central1", "local")


def send(repository: Repository, method: str, path: str, body: Any = None) -> Any:
    """Call the embedded service's API as its owner."""
    told = repository.service()
    request = urllib.request.Request(
        told["url"] + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {told['token']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())


def rows(repository: Repository) -> dict[str, dict[str, Any]]:
    """Return the rows of `status` by base name."""
    found = repository.run("status", "--all", "--format", "json").json["jobs"]
    return {row["baseName"]: row for row in found}
