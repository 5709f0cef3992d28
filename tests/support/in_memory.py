"""`reconciler` in this process over an outside in memory: each test chooses the next state of the service."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from reconciler.base.errors import ServiceError
from reconciler.base.http import HttpRequest, HttpResponse
from reconciler.cli import run
from reconciler.google.client import Connection, Endpoint
from reconciler.manifests.settings import Config, Environment
from reconciler.operations.session import Session
from tests.support.memory_ports import Outside
from tests.support.repository import Result

LONGEST = 20_000
"""The number of looks at a service after which a wait counts as endless."""

CONFIG = """
    source: acme
    environments:
      prod: {engine: google, project: acme-ml, location: us-central1, stagingBucket: acme-ml-staging}
"""
MANIFEST = """
    apiVersion: aiplatform.googleapis.com/v1
    kind: CustomJob
    metadata: {name: %s}
    reconcile: {%s}
    spec:
      workerPoolSpecs:
        - machineSpec: {machineType: n1-standard-4}
          replicaCount: 1
          containerSpec: {imageUri: "example.test/plain:1", args: [%s]}
"""


class NoService:
    """A transport without a service behind it."""

    def send(self, request: HttpRequest) -> HttpResponse:
        raise ServiceError(f"nothing answers at {request.url}")


def session_over(outside: Outside, config: Config, environment: Environment, **parts: object) -> Session:
    """Return a session that reaches no service but this outside; `parts` replace its own parts by name."""
    roots = {"storage": "http://storage.invalid/"}
    nowhere = Endpoint(NoService(), dict, environment.project, environment.location, roots)
    session = Session(config, environment, Connection(nowhere))
    names = ("ports", "jobs", "claims", "commits")
    for name, part in {**{name: getattr(outside, name) for name in names}, **parts}.items():
        setattr(session, name, part)
    return session


@dataclass
class Commands:
    """A repository, and the outside that its commands see.

    Attributes:
        meanwhile: The changes outside, each applied at the next wait of a command.
    """

    root: Path
    read: Callable[[], Any]
    outside: Outside = field(default_factory=Outside)
    meanwhile: list[Callable[[], None]] = field(default_factory=list)

    def job(self, name: str = "census", *args: str, reconcile: str = "") -> None:
        text = MANIFEST % (name, reconcile, ", ".join(json.dumps(arg) for arg in args))
        file = self.root / "jobs" / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(textwrap.dedent(text))

    def run(self, *arguments: str) -> Result:
        code = run([*arguments, "-q"])
        out, err = self.read()
        return Result(code, out, err)

    def sleep(self, seconds: float) -> None:
        time = self.outside.time
        time.slept.append(seconds)
        assert len(time.slept) < LONGEST, "a wait without an end"
        type(time).sleep(time, seconds)
        if self.meanwhile:
            self.meanwhile.pop(0)()


def commands_in(root: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[], Any]) -> Commands:
    """Return a repository without manifests and an empty service; `read` returns the printed output."""
    made = Commands(root, read)
    made.outside.time.sleep = made.sleep  # type: ignore[method-assign]
    (root / "reconciler.yaml").write_text(textwrap.dedent(CONFIG))
    monkeypatch.chdir(root)

    @contextmanager
    def opened(
        config: Config,
        environment: Environment,
        environ: Mapping[str, str],
        *,
        start: bool,
        is_exported: bool = False,
    ) -> Iterator[Session]:
        yield session_over(made.outside, config, environment)

    for opener in ("reconciler.cli.context", "reconciler.operations.watch.loop"):
        monkeypatch.setattr(f"{opener}.open_session", opened)
    return made
