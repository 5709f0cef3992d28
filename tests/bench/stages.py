"""`python -m tests.bench.stages REPEATS ROOT HOME [ROOT HOME]`: the costs of each stage of a plan, as JSON.

Each stage is a function here, and leaves in `Data` the input of the next stages. Each runs first in a forked
process, whose memory is measured; then all run in turn, once for each repetition, together with the limits.
With a second, smaller repository, each stage runs over it just before, so that drift in the machine's speed
doesn't appear as growth.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from msgspec.structs import replace

from reconciler.base.http import HttpRequest, HttpResponse, Transport
from reconciler.cli import json_text
from reconciler.google.client import Connection
from reconciler.manifests import plain_reader
from reconciler.manifests.files import Folders, ManifestFile, find_manifests
from reconciler.manifests.rules import domain_findings
from reconciler.manifests.schemas import is_valid, schema_of
from reconciler.manifests.secrets import may_hold_secrets
from reconciler.manifests.settings import JOBS_FOLDER, load_config
from reconciler.manifests.validate import validate
from reconciler.manifests.yaml_load import CleanDocument, clean_documents
from reconciler.model.manifest import Manifest
from reconciler.model.plan import Plan
from reconciler.operations.load_desired import Desired, desired_jobs
from reconciler.operations.observed_state import state_of
from reconciler.operations.plan import plan_of, target_of
from reconciler.operations.session import Session, embedded_endpoint
from reconciler.output.json import plan_json
from reconciler.output.text import plan_text
from reconciler.pages.charts import figures
from reconciler.pages.rendering import Pages
from reconciler.pages.site import Site
from reconciler.planning.state import target_state
from reconciler.planning.status_rows import job_statuses
from reconciler.submission.observe import Observed, observe
from reconciler.training_service.client import EmbeddedService
from tests.support.sites import study_of

from . import limits
from .place import Cost


@dataclass
class Data:
    """Data that the stages pass to each other."""

    root: Path
    home: Path
    manifests: tuple[Manifest, ...] = ()
    files: Sequence[ManifestFile] = ()
    contents: Sequence[bytes] = ()
    documents: Sequence[CleanDocument] = ()
    desired: Desired = field(default_factory=lambda: Desired((), {}))
    observed: Observed = field(default_factory=lambda: Observed({}, ()))
    plan: Plan | None = None
    answers: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.config = load_config(self.root)
        self.environment = self.config.environment(None)


def _walk(data: Data) -> None:
    data.files, _ = find_manifests(data.root, [data.root / JOBS_FOLDER])


def _read(data: Data) -> None:
    with Folders() as folders:
        data.contents = [folders.read(file) for file in data.files]


def _parse(data: Data) -> None:
    # As in a new process: it remembers no line. No document is kept either, as the program holds only those
    # of a few files at a time.
    plain_reader._lines.clear()
    for content in data.contents:
        clean_documents(content)


def _validate(data: Data) -> None:
    for content, document in zip(data.contents, data.documents, strict=True):
        assert not may_hold_secrets(content)
        assert is_valid(document.value, schema_of(document.value))
        assert not any(domain_findings(document.value))


def _name(data: Data) -> None:
    data.desired = desired_jobs(data.root, data.manifests, data.environment)


def _list(data: Data) -> None:
    with EmbeddedService(data.home, start=False) as service:
        transport = _Noting(service)
        endpoint = replace(embedded_endpoint(service, data.environment), transport=transport)
        data.observed = observe(Session(data.config, data.environment, Connection(endpoint)).ports)
    data.answers = transport.answers


def _plan(data: Data) -> None:
    with EmbeddedService(data.home, start=False) as service:
        session = Session(
            data.config, data.environment, Connection(embedded_endpoint(service, data.environment))
        )
        data.plan = plan_of(session, data.desired, state_of(session, data.desired, data.observed))


def _render(data: Data) -> None:
    assert data.plan is not None
    plan_text(data.plan)
    json_text(plan_json(data.plan))


def _overview(data: Data) -> None:
    rows = job_statuses(target_state(data.desired.jobs, data.observed.runs, data.observed.claims))
    target = target_of(data.config, data.environment)
    Pages(Site("bench", target, datetime.now(UTC), rows, plan=data.plan)).page("index.html")


def _draw(data: Data) -> None:
    # The same trials at every size.
    assert all(figures(study_of(1000)))


STAGES: Mapping[str, Callable[[Data], None]] = {
    "walk": _walk,
    "read": _read,
    "parse": _parse,
    "validate": _validate,
    "canonical form and hash": _name,
    "list": _list,
    "plan": _plan,
    "render": _render,
    "page of the overview": _overview,
    "charts of 1,000 trials": _draw,
}


_LEAVES = {
    "walk": ["files"],
    "read": ["contents"],
    "canonical form and hash": ["desired"],
    "list": ["observed", "answers"],
}
"""Results that stages leave in `Data`, beside the plan."""


class _Noting:
    """Transport that keeps every answer."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.answers: list[bytes] = []

    def send(self, request: HttpRequest) -> HttpResponse:
        answer = self._transport.send(request)
        self.answers.append(answer.body)
        return answer


def prepared(root: Path, home: Path) -> Data:
    """Return the data before the first stage, with all late imports done."""
    data = Data(root, home)
    found = validate(root, [root / JOBS_FOLDER])
    assert found.manifests
    assert not found.problems
    data.manifests = found.manifests
    return data


def measured(repeats: int, root: Path, home: Path, *smaller_one: Path) -> dict[str, Any]:
    """Return all figures, as the module's docstring describes."""
    data = prepared(root, home)
    memory = _ran_once(data)
    smaller: Data | None = None
    if smaller_one:
        smaller = prepared(*smaller_one)
        _ran_once(smaller)
    costs: dict[str, list[Cost]] = {name: [] for name in (limits.LOADING, limits.LISTING, *STAGES)}
    of_smaller: dict[str, list[Cost]] = {name: [] for name in STAGES}
    for _ in range(repeats):
        costs[limits.LOADING].append(limits.took(lambda: limits.load(data.contents)))
        costs[limits.LISTING].append(limits.took(lambda: [json.loads(text) for text in data.answers]))
        for each in (data, smaller):
            if each is not None:
                each.plan = None  # holds results of other stages
        for name, stage in STAGES.items():
            if smaller is not None:
                of_smaller[name].append(_took(name, stage, smaller))
            costs[name].append(_took(name, stage, data))
    return {
        "limits": {name: costs[name] for name in (limits.LOADING, limits.LISTING)},
        "stages": {
            name: {"costs": costs[name], "smaller": of_smaller[name], **memory[name]} for name in STAGES
        },
        "listing": {"answers": len(data.answers), "bytes": sum(map(len, data.answers))},
    }


def _ran_once(data: Data) -> dict[str, dict[str, int]]:
    """Run each stage once, for the input of the next stages; return each stage's memory."""
    memory = {}
    for name, stage in STAGES.items():
        memory[name] = _memory(stage, data)
        stage(data)
        if stage is _parse:
            data.documents = [clean_documents(content)[0] for content in data.contents]
    return memory


def _took(name: str, stage: Callable[[Data], None], data: Data) -> Cost:
    for left in _LEAVES.get(name, ()):
        # In the program, no results of an earlier pass exist, for the stage to free.
        setattr(data, left, None)
    return limits.took(partial(stage, data))


def _memory(stage: Callable[[Data], None], data: Data) -> dict[str, int]:
    """Return the peak of a process that runs a stage, and the stage's share of it, in bytes."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            before = psutil.Process().memory_info().rss
            stage(data)
            unit = 1 if sys.platform == "darwin" else 1024
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
            os.write(writer, json.dumps({"peak": peak, "added": max(0, peak - before)}).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as told:
        text = told.read()
    os.waitpid(child, 0)
    assert text, "the stage ended as it should"
    found: dict[str, int] = json.loads(text)
    return found


if __name__ == "__main__":
    print(json.dumps(measured(int(sys.argv[1]), *map(Path, sys.argv[2:]))))
