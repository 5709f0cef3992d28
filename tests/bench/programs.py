"""Benchmarks of whole processes: the start of the program, and commands over many manifests."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from . import manifests
from .memory import peak_of
from .place import RECONCILER, Cost, Place

Costs = Mapping[str, list[Cost]]
"""Each run of each program, by its name; runs with the same index belong to the same repetition."""

NOTHING = "python -c pass"
HELP, VALIDATE_ONE, PLAN_ONE = "--help", "validate, one manifest", "plan, one manifest"
HEAVY = ("googleapiclient", "google.auth", "jsonschema", "requests", "rich", "structlog", "urllib3")
"""Packages that cost more than 10 ms to import."""

VALIDATE, PLAN = "validate", "plan"
PLAN_PUBLISHED = "plan, all published"

_PLAN = ("plan", "--detailed-exitcode")
_CHANGES_PENDING, _INVALID = 2, 3


@dataclass(frozen=True)
class Program:
    """A command over many manifests.

    Attributes:
        arguments: Arguments of `reconciler`.
        edit: The edit of manifests before the run, undone after it, or None.
        every: The step between edited manifests; 1 for all.
        code: The expected exit code: another code means other work.
        publishes: True to put the models of the edited manifests in their places.
    """

    arguments: Sequence[str]
    edit: manifests.Edit | None = None
    every: int = 100
    code: int = 0
    publishes: bool = False

    @contextmanager
    def prepared(self, place: Place) -> Iterator[None]:
        """Edit the manifests of a place during the block."""
        if self.edit is None:
            yield
            return
        with manifests.edited(place.files, self.edit, self.every):
            if self.publishes:
                place.module("published", str(place.root), str(place.home))
            yield
        if self.publishes:
            place.module("published", str(place.root), str(place.home))


PROGRAMS: Mapping[str, Program] = {
    VALIDATE: Program(["validate"]),
    PLAN: Program(_PLAN),
    "plan, in full": Program([*_PLAN, "--full"]),
    PLAN_PUBLISHED: Program(_PLAN, edit=manifests.publishing, every=1, publishes=True),
    "plan, 1 % changed": Program(_PLAN, edit=manifests.touched, code=_CHANGES_PENDING),
    "validate, 1 % invalid": Program(["validate"], edit=manifests.broken, code=_INVALID),
    # Pages of all jobs, and a page for each of the newest 1,000 runs.
    "report --html": Program(["report", "--html", "../pages"]),
    "validate, images by tag": Program(["validate"], edit=manifests.by_tag, every=1),
}


def start(place: Place, repeats: int) -> Costs:
    """Return the costs of starting the program, in a place with a single manifest and its service."""
    commands = {
        NOTHING: [sys.executable, "-c", "pass"],
        HELP: [*RECONCILER, "--help"],
        VALIDATE_ONE: [*RECONCILER, "validate"],
        PLAN_ONE: [*RECONCILER, *_PLAN],
    }
    for command in commands.values():
        place.run(command)  # fills the bytecode cache
    costs: dict[str, list[Cost]] = defaultdict(list)
    for _ in range(repeats):
        for name, command in commands.items():
            costs[name].append(place.run(command))
    return costs


def imported(place: Place, arguments: Sequence[str]) -> list[str]:
    """Return the heavy packages that a command imports, as reported by `-X importtime`."""
    command = [sys.executable, "-X", "importtime", "-m", "reconciler", *arguments]
    told = subprocess.run(command, cwd=place.root, env=place.environ, capture_output=True, text=True).stderr
    modules = set(re.findall(r"^import time:.*\| +(\S+)$", told, re.MULTILINE))
    return [package for package in HEAVY if package in modules]


def repeated(place: Place, repeats: int) -> tuple[Costs, Costs]:
    """Run every program in turn, `repeats` times; measure the limits before each repetition."""
    costs: dict[str, list[Cost]] = defaultdict(list)
    within: dict[str, list[Cost]] = defaultdict(list)
    for _ in range(repeats):
        for name, cost in place.module("limits", str(place.root)).items():
            within[name].append(cost)
        for name, program in PROGRAMS.items():
            costs[name].append(_run(place, program))
    return costs, within


def peaks(place: Place) -> Mapping[str, int]:
    """Return the peak memory of each program with its child processes, in bytes, from separate runs."""
    found = {}
    for name, program in PROGRAMS.items():
        with program.prepared(place):
            found[name] = peak_of([*RECONCILER, *program.arguments], place)
    return found


def _run(place: Place, program: Program) -> Cost:
    with program.prepared(place):
        return place.run([*RECONCILER, *program.arguments], codes=[program.code])
