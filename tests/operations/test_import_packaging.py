"""Local code of imported jobs: the same modules reach the trainer as with gcloud's own packaging."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from reconciler.base.errors import InvalidError
from reconciler.operations.importing.found import Found
from reconciler.operations.importing.jobs import Importer, Plan, Source
from reconciler.packaging.sdist import build_sdist
from reconciler.packaging.source_tree import read_source_tree

SCENARIOS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "gcloud" / "packaging.jsonl").read_text("utf-8").splitlines()
]
Json = dict[str, Any]

# gcloud fails only while it uploads, or while it runs setup.py, which import never does.
LATER = {"setup-broken", "bucket-missing", "packages-clash-with-built"}

# gcloud packs a folder "tide-fit", which Python can't import; import stages it as the package "tide".
OTHER_NAMES = {"dashed-name": ("tide-fit/", "tide/")}
# A job with an image of its own runs no staged code: the service ignores it.
REFUSED = {"image-and-path"}


def imported(scenario: Json, root: Path) -> Plan:
    (root / "reconciler.yaml").touch()
    for name, text in scenario["files"].items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    working = root / scenario["cwd"]
    found = Found(1, scenario["argv"])
    importer = Importer(root, working, root / "manifests" / "jobs", {"runtimeVersion": "2.11"})
    return importer.plan([Source("the command line", working, found=[found])])


@pytest.mark.parametrize(
    "scenario", [one for one in SCENARIOS if "packages" in one], ids=lambda one: one["name"]
)
def test_modules_of_local_code_are_those_that_gcloud_packs(scenario: Json, tmp_path: Path) -> None:
    if scenario["name"] in REFUSED:
        with pytest.raises(InvalidError, match="nothing is imported"):
            imported(scenario, tmp_path)
        return
    plan = imported(scenario, tmp_path)
    ((job, _),) = plan.jobs
    stored = [uri for uri in scenario["packages"] if "<sha256>" not in uri]
    given = job.spec["trainingInput"].get("packageUris", [])
    assert [uri for uri in given if "BUCKET" not in uri] == stored
    wanted = {name for name in scenario["members"] if name.endswith(".py") and name != "setup.py"}
    if not wanted:
        return
    assert job.package is not None
    archive = build_sdist(read_source_tree(job.package, tmp_path), "tide.fit").data
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        names = {member.name.partition("/")[2] for member in members}
    old, new = OTHER_NAMES.get(scenario["name"], ("", ""))
    assert {name.replace(old, new, 1) for name in wanted} <= names


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
