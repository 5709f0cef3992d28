"""Local code of imported jobs: the same modules reach the trainer as with gcloud's own packaging."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from reconciler.base.errors import InvalidError
from reconciler.convert.importing.import_result import Found
from reconciler.convert.importing.jobs import Importer, ImportPlan, ImportSource
from reconciler.packaging.sdist import build_sdist
from reconciler.packaging.source_tree import read_source_tree

SCENARIOS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "gcloud" / "packaging.jsonl").read_text("utf-8").splitlines()
]
Json = dict[str, Any]

# gcloud fails only during the upload, or during its run of setup.py; import does neither.
LATER = {"setup-broken", "bucket-missing", "packages-clash-with-built"}

# gcloud packs a folder "tide-fit" that Python can't import; import stages it as the package "tide".
OTHER_NAMES = {"dashed-name": ("tide-fit/", "tide/")}
# Without a setup.py, gcloud leaves out sub-packages and data files, and the trainer fails when it needs them.
MORE = {
    "no-setup-subpackage": {"tide/sub/__init__.py", "tide/sub/x.py"},
    "no-setup-data": {"tide/table.csv"},
    "setup-reads-file": {"version.txt"},
}
# Files of a build: none is on the trainer's import path.
OF_BUILDS = {"PKG-INFO", "setup.cfg", "setup.py", "MANIFEST.in", "README.md", "pyproject.toml"}


def imported(scenario: Json, root: Path, output: str = "manifests/jobs") -> ImportPlan:
    (root / "reconciler.yaml").touch()
    for name, text in scenario["files"].items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    working = root / scenario["cwd"]
    found = Found(1, scenario["argv"])
    importer = Importer(root, working, root / output, {"runtimeVersion": "2.11"})
    return importer.plan([ImportSource("the command line", working, entries=[found])])


def staged(folder: Path, root: Path) -> set[str]:
    """Return the files of the archive that apply stages."""
    archive = build_sdist(read_source_tree(folder, root), "tide.fit").data
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        return {member.name.partition("/")[2] for member in members if member.isfile()}


def wanted(scenario: Json) -> set[str]:
    """Return the files that gcloud packs, under the names that they have for import."""
    old, new = OTHER_NAMES.get(scenario["name"], ("", ""))
    return {name.replace(old, new, 1) for name in scenario["members"] if not name.endswith("/")}


@pytest.mark.parametrize(
    "scenario", [one for one in SCENARIOS if "packages" in one], ids=lambda one: one["name"]
)
def test_files_of_local_code_are_those_that_gcloud_packs(scenario: Json, tmp_path: Path) -> None:
    plan = imported(scenario, tmp_path)
    ((job, _),) = plan.jobs
    stored = [uri for uri in scenario["packages"] if "<sha256>" not in uri]
    given = job.spec["trainingInput"].get("packageUris", [])
    assert [uri for uri in given if "BUCKET" not in uri] == stored
    if not scenario["members"]:
        return
    assert job.package is not None
    more = MORE.get(scenario["name"], set()) - {"version.txt"}
    assert staged(job.package, tmp_path) - OF_BUILDS == wanted(scenario) - OF_BUILDS | more
    beside = {"setup.py", "setup.cfg", "pyproject.toml"} & set(scenario["files"])
    notes = [note for note in job.notes if "is staged without" in note]
    assert all(any(name in note for note in notes) for name in beside)


@pytest.mark.parametrize(
    "scenario",
    [one for one in SCENARIOS if one["name"].startswith("setup") and "packages" in one],
    ids=lambda one: one["name"],
)
def test_project_in_a_folder_of_its_own_is_staged_with_its_setup(scenario: Json, tmp_path: Path) -> None:
    files = {f"code/{name}": text for name, text in scenario["files"].items()}
    moved = {**scenario, "files": files, "cwd": f"code/{scenario['cwd']}"}
    ((job, _),) = imported(moved, tmp_path, "jobs").jobs
    assert job.package == tmp_path / "code"
    made = {"PKG-INFO", "setup.cfg"} - scenario["files"].keys()
    assert staged(job.package, tmp_path) == wanted(scenario) - made | MORE.get(scenario["name"], set())


@pytest.mark.parametrize(
    "scenario", [one for one in SCENARIOS if "packages" not in one], ids=lambda one: one["name"]
)
def test_code_that_gcloud_refuses_is_refused(scenario: Json, tmp_path: Path) -> None:
    if scenario["name"] in LATER:
        assert imported(scenario, tmp_path).jobs
        return
    with pytest.raises(InvalidError) as refused:
        imported(scenario, tmp_path)
    assert refused.value.problems[0].message.startswith("--")
