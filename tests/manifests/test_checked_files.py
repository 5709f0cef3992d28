"""Checked files: found again by content, never wrong; and the checks of many processes."""

from __future__ import annotations

import copy
import itertools
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.base import workers
from reconciler.base.errors import InvalidError
from reconciler.manifests.checked_files import CheckedFile, CheckedFiles
from reconciler.manifests.settings import load_config
from reconciler.manifests.validate import Validation, validate
from reconciler.operations.load_desired import load_desired
from tests.support.manifests import GOOD, write

ROOT = Path(__file__).parents[2]
NOTHING: frozenset[str] = frozenset()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a repository with three jobs; a single job has code."""
    root = tmp_path / "repository"
    for name, kind in (("one", "HyperparameterTuningJob"), ("two", "Job")):
        write(root, f"jobs/{name}.yaml", named(name, kind))
    write(root, "jobs/three.yaml", named("three", "CustomJob"))
    write(root, "trainers/census/task.py", "")
    return root


def named(name: str, kind: str = "HyperparameterTuningJob") -> dict[str, Any]:
    value = copy.deepcopy(GOOD[kind])
    value["metadata"]["name"] = name
    return value


def check(root: Path, checked: CheckedFiles) -> Validation:
    return validate(root, [root / "jobs"], checked=checked)


def no_checking(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> dict[bytes, CheckedFile]:
        raise AssertionError("a file is checked again")

    monkeypatch.setattr("reconciler.manifests.validate.check_files", refuse)


# --- Kept results ---------------------------------------------------------------------------------------


def test_content_is_checked_once_wherever_its_file_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = CheckedFiles()
    first = check(root, checked)
    no_checking(monkeypatch)
    again = check(root, checked)
    assert again == first
    (root / "jobs" / "one.yaml").rename(root / "jobs" / "moved.yaml")
    assert [(manifest.path, manifest.name) for manifest in check(root, checked).manifests] == [
        ("jobs/moved.yaml", "one"),
        ("jobs/three.yaml", "three"),
        ("jobs/two.yaml", "two"),
    ]


def test_problems_of_several_files_are_reported_though_each_was_checked(root: Path) -> None:
    """Check duplicate names, and a package that changes."""
    checked = CheckedFiles()
    write(root, "jobs/four.yaml", named("one", "Job"))
    expected = validate(root, [root / "jobs"])
    assert ["is already used" in problem.message for problem in expected.problems] == [True]
    assert check(root, checked) == check(root, checked) == expected
    (root / "jobs" / "four.yaml").unlink()
    (root / "trainers" / "census" / "task.py").rename(root / "trainers" / "census" / "other.py")
    found = check(root, checked)
    assert ["has no module" in problem.message for problem in found.problems] == [True]
    shutil.rmtree(root / "trainers")
    assert ["no such folder" in problem.message for problem in check(root, checked).problems] == [True]
    write(root, "trainers/census/task.py", "")
    assert check(root, checked).problems == ()


def test_checked_file_is_of_one_set_of_filled_fields(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fields that an environment fills in affect validity."""
    value = named("two", "Job")
    del value["spec"]["trainingInput"]["region"]
    write(root, "jobs/two.yaml", value)
    checked = CheckedFiles()
    for filled, valid in ((frozenset({"region"}), True), (NOTHING, False)):
        found = validate(root, [root / "jobs"], filled, checked=checked)
        assert (not found.problems) is valid
    no_checking(monkeypatch)
    assert not validate(root, [root / "jobs"], frozenset({"region"}), checked=checked).problems


# --- Processes that share the reading -------------------------------------------------------------------

# Use a separate process: the fork of a process with threads might wait for ever.
SHARED = """
import json, os, signal, sys
from pathlib import Path
from msgspec.structs import asdict, replace
from reconciler.manifests import validate as reading
from reconciler.base import workers
from reconciler.manifests.validate import validate

root, mode = Path(sys.argv[1]), sys.argv[2]
started = []
workers.count_of_processors = lambda: 3
reading.FEWEST = 1 if mode != "alone" else 10**9
reading._PIECE = 4
main, check_files = os.getpid(), reading.check_files

def or_end(contents, filled, *, with_identities):
    if os.getpid() != main:
        if mode == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if mode == "killed later" and any(b'"census-7"' in data for data in contents.values()):
            os.kill(os.getpid(), signal.SIGKILL)
        if mode == "raising":
            raise MemoryError
    return check_files(contents, filled, with_identities=with_identities)

reading.check_files = or_end
if mode == "no forks":
    def refuse():
        raise OSError(11, "Resource temporarily unavailable")
    os.fork = refuse
fork = os.fork
def counting():
    pid = fork()
    if pid:
        started.append(pid)
    return pid
os.fork = counting
found = validate(root, [root / "jobs"])
try:
    os.waitpid(-1, os.WNOHANG)
    left = True
except ChildProcessError:
    left = False
print(json.dumps({
    "manifests": [repr(replace(manifest, packed=manifest.spec)) for manifest in found.manifests],
    "problems": [asdict(problem) for problem in found.problems],
    "invalid": sorted(found.invalid),
    "started": len(started),
    "left": left,
}))
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return thirty jobs: some with mistakes, two with the same name, and a package."""
    root = tmp_path_factory.mktemp("many")
    for number in range(30):
        value = named(f"census-{number}", "Job" if number % 3 else "CustomJob")
        if number % 10 == 4:
            value["spec"]["trainingInput" if number % 3 else "workerPoolSpecs"] = 5
        write(root, f"jobs/{number % 4}/{number}.yaml", value)
    write(root, "jobs/twice.yaml", named("census_11"))
    (root / "jobs" / "broken.yaml").write_bytes(b"\xff")
    write(root, "jobs/trainers/census/task.py", "")
    return root


def shared(root: Path, mode: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SHARED, str(root), mode], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    assert not found.pop("left")
    return found


@pytest.fixture(scope="module")
def alone(many: Path) -> dict[str, Any]:
    """Return the result of a single process."""
    found = shared(many, "alone")
    assert found.pop("started") == 0
    assert len(found["manifests"]) == 27
    assert len(found["problems"]) >= 5
    return found


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["together", "killed", "killed later", "raising", "no forks"])
def test_many_processes_find_what_one_does_whatever_becomes_of_them(
    many: Path, alone: dict[str, Any], mode: str
) -> None:
    found = shared(many, mode)
    assert found.pop("started") == (0 if mode == "no forks" else 2)
    assert found == alone


def test_there_are_no_other_processes_beside_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert workers.can_fork() is (sys.platform != "darwin")
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert not workers.can_fork()
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not workers.can_fork()


# --- The jobs of a repository ----------------------------------------------------------------------------


@pytest.fixture
def plain(root: Path) -> Path:
    """Return a repository with jobs that bring no code."""
    for name, kind in (("one", "Job"), ("two", "HyperparameterTuningJob"), ("three", "Job")):
        value = named(name, kind)
        value["reconcile"] = {"attempts": 3, "rerun": "again"} if name == "two" else {"onDelete": "cancel"}
        write(root, f"jobs/{name}.yaml", value)
    shutil.rmtree(root / "trainers")
    return root


def desired(root: Path, checked: CheckedFiles | None = None) -> list[Any]:
    """Return the jobs that a repository asks for with all their fields."""
    config = load_config(root)
    return [
        replace(job, packed=job.spec, manifest=replace(job.manifest, packed=job.manifest.spec))
        for job in load_desired(config, config.environment(None), [], checked).jobs
    ]


def edited(root: Path, old: str, new: str, path: str = "jobs/one.yaml") -> None:
    file = root / "jobs/one.yaml"
    (root / path).write_text(file.read_text().replace(old, new))


EDITS: dict[str, Callable[[Path], object]] = {
    "same size": lambda root: edited(root, '"one"', '"won"'),
    "renamed": lambda root: (root / "jobs" / "one.yaml").rename(root / "jobs" / "other.yaml"),
    "removed": lambda root: (root / "jobs" / "one.yaml").unlink(),
    "added": lambda root: edited(root, '"one"', '"sub"', "jobs/sub.yaml"),
    "broken": lambda root: (root / "jobs" / "one.yaml").write_text("- broken\n"),
    "a link out": lambda root: (root / "jobs" / "out.yaml").symlink_to("/etc/hostname"),
    "code": lambda root: (
        write(root, "trainers/census/task.py", ""),
        write(root, "jobs/one.yaml", named("one", "CustomJob")),
    ),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_load_desired_with_checked_files_sees_every_change(
    plain: Path, edit: Callable[[Path], object]
) -> None:
    checked = CheckedFiles()
    before = desired(plain)
    assert [job.manifest.name for job in before] == ["one", "three", "two"]
    assert [desired(plain, checked) for _ in range(2)] == [before] * 2
    edit(plain)
    for _ in range(2):
        try:
            expected: Any = desired(plain)
        except InvalidError as error:
            expected = error.problems
        try:
            found: Any = desired(plain, checked)
        except InvalidError as error:
            found = error.problems
        assert found == expected
        assert found != before


NETWORK = {"network": "projects/1/global/networks/n"}


def test_load_desired_with_checked_files_fills_the_defaults_of_the_settings(plain: Path) -> None:
    seen, checked = [], CheckedFiles()
    for defaults in ({}, NETWORK, {"network": f"{NETWORK['network']}2"}, {**NETWORK, "timeout": "60s"}):
        write(
            plain, "reconciler.yaml", {"environments": {"local": {"engine": "local", "defaults": defaults}}}
        )
        expected = desired(plain)
        assert [desired(plain, checked) for _ in range(2)] == [expected] * 2
        filled = [job.spec != job.manifest.spec for job in expected]
        assert all(filled) if defaults else not any(filled)
        seen.append(expected)
    assert all(one != other for one, other in itertools.combinations(seen, 2))


def test_load_desired_forgets_what_the_last_pass_has_not_met(plain: Path) -> None:
    checked = CheckedFiles()
    for number in range(5):
        edited(plain, '"one"', f'"one{number}"', "jobs/four.yaml")
        desired(plain, checked)
        assert len(checked) == 4
    (plain / "jobs" / "four.yaml").unlink()
    desired(plain, checked)
    assert len(checked) == 3
