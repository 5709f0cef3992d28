"""Hostile files: too much work, too much memory, the content of another file."""

from __future__ import annotations

import copy
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.manifests.validate import validate
from tests.support import preloaded
from tests.support.manifests import GOOD, write
from tests.support.meddler import Meddler
from tests.support.yaml_texts import BOMBS, PIECES

MEMORY = 400 * 1024 * 1024
"""Bytes of address space: an interpreter with what validation imports has some 100 MB."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "jobs").mkdir()
    return tmp_path


def limits(seconds: int) -> Callable[[], None]:
    """Return a function that sets the limits of a process before its program begins."""

    def set_them() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    return set_them


@pytest.mark.fault(37)
@pytest.mark.slow
def test_bombs_are_refused_within_narrow_limits(root: Path) -> None:
    for number, (text, _) in enumerate(BOMBS.values()):
        write(root, f"jobs/{number:02}.yaml", text)
    with (root / "jobs" / "holes.yaml").open("wb") as file:
        file.truncate(50 * 1024**3)
    done = subprocess.run(
        [sys.executable, "-m", "reconciler", "validate", "--format", "json"],
        cwd=root,
        capture_output=True,
        text=True,
        preexec_fn=limits(20),
    )
    assert done.returncode == 3, done.stderr
    wrong = {problem["path"] for problem in json.loads(done.stdout)["problems"]}
    assert wrong == {f"jobs/{number:02}.yaml" for number in range(len(BOMBS))} | {"jobs/holes.yaml"}


@pytest.mark.slow
@pytest.mark.fault(37, 38)
def test_no_text_brings_validation_down() -> None:
    """Hypothesis runs inside the limits: memory or time beyond them ends the process."""
    code = "from tests.manifests.test_hostile_manifests import validate_any_text; validate_any_text()"
    subprocess.run([sys.executable, "-c", code], check=True, preexec_fn=limits(60))


# A separate process has no profile: use the same examples each time, without deadline.
@settings(
    max_examples=400,
    database=None,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(data=st.data())
def validate_any_text(data: st.DataObject) -> None:
    """Check that a manifest with inserted pieces, or only pieces, raises no exception."""
    whole = json.dumps(copy.deepcopy(data.draw(st.sampled_from(list(GOOD.values())))), indent=1)
    text = data.draw(st.sampled_from(["", whole]))
    for piece in data.draw(st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=12)):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + piece + text[at + data.draw(st.integers(0, 3)) :]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "job.yaml")
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        found = validate(Path(folder), [file])
    assert found.problems or found.manifests
    for problem in found.problems:
        assert problem.message.isprintable()
        json.dumps([problem.pointer, problem.hint]).encode()


N = 120_000
"""Characters of a text that is made to take long: work by their square would take minutes."""
LONG = {
    "blanks before a sign": " " * 9_000 + "@\n",
    "blanks behind a key": "a:" + " " * 9_000 + "@\n",
    "blanks behind a dash": "-" + " " * 9_000 + "@\n",
    "blanks in brackets": "a: [b," + " " * 9_000 + "@]\n",
    "directives without a document": "a: 1\n---\n" + "%\n" * (N // 2) + "x\n",
    "directives": "%x\n" * (N // 3) + "---\na: 1\n",
    "zeros": "a: " + "0" * (N // 2) + "x\n",
    "digits and underscores": "a: " + "1_" * (N // 4) + "x\n",
    "sixties": "a: 1" + ":1" * (N // 4) + "x\n",
    "unclear values": "a: [" + "no, " * (N // 8) + "]\n",
    "repeated keys": "a: {" + "k: 1, " * (N // 16) + "}\n",
    "repeated merge keys": "a: {" + "<<: {}, " * (N // 16) + "}\n",
    "tags": "a: [" + "! x, " * (N // 8) + "]\n",
    "tabs": "a: [" + "x,\t" * (N // 8) + "]\n",
    "colons": "a: b\n" + "- " * (N // 2) + "x:y: z\n",
    "flow pairs": "a: [" + "b::" * (N // 3) + "@]\n",
    "unknown keys": "apiVersion: aiplatform.googleapis.com/v1\nkind: CustomJob\nspec:\n"
    + "".join(f"  workerPoolSpecs{number}: 1\n" for number in range(N // 22)),
}


@pytest.mark.slow
@pytest.mark.fault(37)
@pytest.mark.parametrize("name", LONG)
def test_no_repeated_token_takes_more_than_linear_time(root: Path, name: str) -> None:
    write(root, "jobs/job.yaml", LONG[name])
    done = subprocess.run(
        [sys.executable, "-m", "reconciler", "validate"],
        cwd=root,
        capture_output=True,
        preexec_fn=limits(20),
    )
    assert done.returncode == 3, done.stderr


# --- Links that are swapped in --------------------------------------------------------------------------

OUTSIDE = "sesame: [\n"


@pytest.fixture(scope="module")
def meddler() -> Meddler:
    return Meddler()


@pytest.mark.fault(39)
@pytest.mark.parametrize("swapped", ["jobs/deeper/job.yaml", "jobs/deeper", "jobs"])
def test_a_link_that_takes_a_place_after_the_search_is_not_followed(
    root: Path, meddler: Meddler, swapped: str
) -> None:
    root = root / "repository"
    write(root, "jobs/deeper/job.yaml", GOOD["Job"])
    for file in ("job.yaml", "deeper/job.yaml"):
        write(root.parent, f"outside/{file}", OUTSIDE)
    target = root.parent / "outside" / ("job.yaml" if swapped.endswith(".yaml") else "")

    def swap() -> None:
        (root / swapped).rename(root.parent / "moved")
        (root / swapped).symlink_to(target)

    with meddler.at_the_opening_of(Path(swapped).name, swap):
        (problem,) = validate(root, [root / "jobs"]).problems
    assert problem.message.startswith("this can't be read: ")


@pytest.mark.slow
@pytest.mark.fault(39)
def test_a_file_that_keeps_changing_into_a_link_is_never_read_through_it(root: Path) -> None:
    good = root / "good"
    write(root, "good", GOOD["Job"])
    write(root, "outside/job.yaml", OUTSIDE)
    repository = root / "repository"
    (repository / "jobs").mkdir(parents=True)
    place, new = repository / "jobs" / "job.yaml", repository / "new"
    os.link(good, place)
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            new.symlink_to(root / "outside" / "job.yaml")
            new.replace(place)
            # Make a second link, as renaming another link to the same file would have no effect.
            os.link(good, new)
            new.replace(place)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        told = {message for _ in range(500) for message in _told(repository)}
    finally:
        ended.set()
        swapping.join()
    assert told <= {
        "this can't be read: Too many levels of symbolic links",
        "this link leads out of the repository",
        "",
    }
    assert len(told) > 1


def _told(repository: Path) -> Iterator[str]:
    found = validate(repository, [repository / "jobs"])
    yield from (problem.message for problem in found.problems)
    yield from ("" for _ in found.manifests)


@pytest.mark.slow
@pytest.mark.fault(39)
def test_settings_behind_a_link_that_leads_out_are_not_read(root: Path) -> None:
    repository = root / "repository"
    (repository / "jobs").mkdir(parents=True)
    write(root, "outside.yaml", "token: sesame\n")
    (repository / "reconciler.yaml").symlink_to("../outside.yaml")
    done = preloaded.run("validate", cwd=repository, env=os.environ)
    assert done.returncode == 3
    assert "reconciler.yaml:1:1: this link leads out of the repository" in done.stderr
    assert "sesame" not in done.stderr + done.stdout
    (repository / "reconciler.yaml").unlink()
    write(repository, "settings/reconciler.yaml", "source: acme-jobs\n")
    (repository / "reconciler.yaml").symlink_to("settings/reconciler.yaml")
    done = preloaded.run("validate", cwd=repository, env=os.environ)
    assert "reconciler.yaml" not in done.stderr
