"""Ordinary failures: the cause of a job's failure, the tool's message, and a person's remedy.

A story holds if the tool prints these words, and if following them, and no more, lets the job train.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.repository import Repository, Result

IMAGE = "example.test/plain:1"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
GOOD = 'print("done")\n'

_MANIFEST = """\
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: {name}}}
package: {{path: ../trainers/{name}}}
spec:
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-1}}
      replicaCount: 1
      pythonPackageSpec:
        executorImageUri: {image}
        pythonModule: task
        args: []
"""
_TUNED = """\
apiVersion: aiplatform.googleapis.com/v1
kind: HyperparameterTuningJob
metadata: {{name: {name}}}
package: {{path: ../trainers/{name}}}
spec:
  maxTrialCount: 2
  parallelTrialCount: 1
  studySpec:
    metrics: [{{metricId: accuracy, goal: MAXIMIZE}}]
    parameters: [{{parameterId: depth, integerValueSpec: {{minValue: 1, maxValue: 8}}}}]
  trialJobSpec:
    workerPoolSpecs:
      - machineSpec: {{machineType: n1-standard-1}}
        replicaCount: 1
        pythonPackageSpec:
          executorImageUri: {image}
          pythonModule: task
"""


@dataclass
class Story:
    """Failure with its message and its remedy.

    Attributes:
        name: A short description of the failure, which is also the job's name.
        breaks: Callback that prepares a repository with the failure.
        printed: The line that `apply --wait` prints. JOB stands for the job's name, and … for text that
            differs between machines.
        remedied: The person's remedy in words, as the line advises; its commands are run as printed.
        mends: Callback for the manual part of the remedy; commands are run without it.
        cause: The class in `status`; "" for a job that was never made.
    """

    name: str
    breaks: Callable[[Place, str], object]
    printed: str
    remedied: str
    mends: Callable[[Place, str], object] = lambda place, job: None
    cause: str = ""

    @property
    def job(self) -> str:
        """The job's base name."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


class Place:
    """User's repository with failing jobs."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.root = repository.root
        self.images: dict[str, str] = {}
        self.environ: dict[str, str] = {}
        self.image(IMAGE)
        repository.has_jobs = True

    def image(self, name: str, *requirements: str, python: str = PYTHON) -> None:
        """Write an entry under `images`."""
        listed = ", ".join(f'"{line}"' for line in requirements)
        self.images[name] = f'{{python: "{python}", requirements: [{listed}]}}'
        settings = self.root / "reconciler.yaml"
        rest = settings.read_text().partition("images:\n")[0] if settings.exists() else ""
        entries = "".join(f'  "{image}": {entry}\n' for image, entry in self.images.items())
        settings.write_text(f"{rest}images:\n{entries}")

    def job(self, name: str, code: str = GOOD, *, image: str = IMAGE, manifest: str = _MANIFEST) -> None:
        """Write a job with a trainer of its own."""
        self.repository.write(f"jobs/{name}.yaml", manifest.format(name=name, image=image))
        self.code(name, code)

    def tuned(self, name: str, code: str) -> None:
        """Write a tuning job with a trainer of its own."""
        self.job(name, code, manifest=_TUNED)

    def code(self, name: str, code: str) -> None:
        """Write a job's trainer."""
        self.repository.write(f"trainers/{name}/task.py", textwrap.dedent(code))

    def edit(self, name: str, old: str, new: str) -> None:
        """Change a job's manifest."""
        manifest = self.root / f"jobs/{name}.yaml"
        text = manifest.read_text()
        assert old in text, text
        manifest.write_text(text.replace(old, new))

    def run(self, *arguments: str, **environ: str) -> Result:
        """Run `reconciler …`."""
        return self.repository.run(*arguments, **{**self.environ, **environ})

    def printed(self, *arguments: str, **environ: str) -> str:
        """Return a command's output on both streams."""
        done = self.run(*arguments, **environ)
        return done.out + done.err


def play(place: Place, *stories: Story, code: int = 1) -> None:
    """Run the failures, read the output, follow its advice, and check that the jobs train.

    All stories run at once in a single repository; `apply` starts the service once for all.
    """
    for story in stories:
        story.breaks(place, story.job)
    failed = place.run("apply", "--wait")
    assert failed.code == code, failed.out + failed.err
    follow(place, failed, *stories)


def follow(place: Place, failed: Result, *stories: Story) -> None:
    """Follow a failed command's advice for each story, and check that the jobs train."""
    lines = {story.name: _line_of(story, failed.out + failed.err) for story in stories}
    wrong = {
        story.name: (story.printed, _normalised(story, failed.out + failed.err))
        for story in stories
        if not lines[story.name]
    }
    assert wrong == {}, "\n\n".join(f"{name}:\n{want}\n--\n{got}" for name, (want, got) in wrong.items())
    caused = [story for story in stories if story.cause]
    if caused:
        rows = {job["baseName"]: job for job in place.run("status", "--format", "json").json["jobs"]}
        causes = {story.name: (rows[story.job]["cause"] or {}).get("class") for story in caused}
        assert causes == {story.name: story.cause for story in caused}
    for story in caused[:2]:
        # A log shows the reason for the job's end, even if its trainer never began.
        assert _brief(story) in _normalised(story, place.printed("logs", story.job)), story.name

    for story in stories:
        story.mends(place, story.job)
        for command in _commands(lines[story.name]):
            done = place.run(*command)
            assert done.code == 0, (story.name, command, done.out + done.err)
    done = place.run("apply", "--wait")
    assert done.code == 0, done.out + done.err
    rows = place.run("status", "--format", "json").json["jobs"]
    trained = {job["baseName"] for job in rows if job["state"] == "SUCCEEDED"}
    assert {story.job for story in stories} - trained == set()
    _note(stories)


def _normalised(story: Story, text: str) -> str:
    """Return the lines with a name of the story's job, with each name replaced by JOB."""
    return "\n".join(line for line in re.sub(_name(story), "JOB", text).splitlines() if "JOB" in line)


def _name(story: Story) -> str:
    """Return a pattern for the names of the story's job."""
    return rf"{story.job.replace('-', '_')}_[0-9a-f]{{16}}(?:_\d+)?"


def _line_of(story: Story, text: str) -> str:
    """Return the output line with the story's words, or ""."""
    words = re.escape(story.printed).replace("…", ".*")
    found = re.search(rf"^(?:reconciler: )?{words.replace('JOB', _name(story))}$", text, re.MULTILINE)
    return found[0] if found else ""


def _brief(story: Story) -> str:
    """Return the part of the line that `logs` prints too: the class and the first words of the cause."""
    return re.split("[…;]", story.printed)[0]


def _commands(line: str) -> list[Sequence[str]]:
    """Return the remedial commands of a line; `apply` comes last in every story."""
    commands = [command.split() for command in re.findall("`reconciler ([^`]+)`", line)]
    return [command for command in commands if command[0] not in ("apply", "cancel")]


def _note(stories: Sequence[Story]) -> None:
    """Add rows to the table that `make failures` prints."""
    path = os.environ.get("FAILURES_TABLE")
    if not path:
        return
    with Path(path).open("a") as table:
        for story in stories:
            cells = (story.name, story.printed, story.remedied, "SUCCEEDED, exit code 0")
            row = " | ".join(cell.replace("|", "\\|").replace("\n    ", "<br>") for cell in cells)
            table.write(f"| {row} |\n")
