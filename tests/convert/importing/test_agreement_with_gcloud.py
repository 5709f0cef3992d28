"""Agreement with gcloud: each recorded call becomes gcloud's own body, or is refused as by gcloud."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconciler.base.errors import InvalidError
from reconciler.convert.importing.import_result import Found
from reconciler.convert.importing.jobs import Importer, ImportPlan, ImportSource
from reconciler.manifests import schemas
from reconciler.manifests.plain_form import plain_form
from reconciler.model.canonical import canonical_spec

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "gcloud" / "flags.jsonl").read_text("utf-8").splitlines()
]
Json = dict[str, Any]
GRID = "a grid search can't enumerate"

# Bodies that gcloud sends, and a service refuses or ignores in part; import names the field.
REFUSED_ON_PURPOSE = {
    "aip-019": "workerCount",
    "aip-027": "acceleratorConfig",
    "aip-032": "containerArgs",
    "aip-037": "pythonVersion",
    "aip-085": "scaleTeir",
    "aip-086": "training_input",
    "aip-096": "scaleTier",
    "aip-097": "scaleTier",
    "aip-098": "scaleTier",
    "cj-013": "replicaCount",
    "cj-035": "worker_pool_specs",
    "cj-036": "jobSpec",
    "cj-038": "labelz",
    "cj-039": "replicaCount",
    "cj-043": "network",
    "cj-066": "tide.nothere",
    "cj-073": "image_uri",
    "cj-076": "acceleratorType",
    "cj-077": "replicaCount",
    **{f"hp-{number:03}": GRID for number in (1, 3, 4, 6, 8, 9, 10, 13, 18, 21)},
}

# The image that gcloud builds and pushes of local code; import stages the code instead, or keeps its name.
BUILT = {"cj-056", "cj-057", "cj-059", "cj-060", "cj-070"}
# Docker fails in gcloud; import builds no image.
NOT_BUILT = {"cj-071"}


def imported(case: Json, root: Path) -> ImportPlan:
    """Import the command line of a case in a repository with its files."""
    (root / "reconciler.yaml").touch()
    for name, text in case.get("files", {}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    environ = {"CLOUDSDK_CORE_PROJECT": case["project"], **case.get("env", {})}
    found = Found(1, case["argv"], environ=environ, stdin=case.get("stdin"))
    return Importer(root, root, root / "jobs", {}).plan(
        [ImportSource("the command line", root, entries=[found])]
    )


def canonical(kind: tuple[str, str], spec: Json) -> Json:
    """Return a spec in plain and canonical form."""
    schema = schemas.manifest_schema(*kind)
    assert schema is not None
    return canonical_spec(plain_form({"spec": spec}, schema)["spec"], schema)


def body_of(case: Json) -> tuple[Json, Json]:
    """Return the spec and labels of gcloud's body."""
    body = copy.deepcopy(case["body"])
    labels = body.pop("labels", {})
    body.pop("jobId", None)
    body.pop("displayName", None)
    if body.get("trainingInput", {}).get("enableWebAccess") is False:
        del body["trainingInput"]["enableWebAccess"]
    return {**body.pop("jobSpec", {}), **body}, labels


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if "body" in case], ids=lambda case: case["id"])
def test_imported_body_is_the_one_that_gcloud_sends(case: Json, tmp_path: Path) -> None:
    if case["id"] in REFUSED_ON_PURPOSE:
        with pytest.raises(InvalidError) as refused:
            imported(case, tmp_path)
        problems = [problem.message for problem in refused.value.problems]
        assert any(REFUSED_ON_PURPOSE[case["id"]] in message for message in problems), problems
        return
    plan = imported(case, tmp_path)
    ((_, place),) = plan.jobs
    manifest = yaml.safe_load(plan.texts[place])
    spec, labels = body_of(case)
    assert manifest["metadata"].get("labels", {}) == labels
    kind = (manifest["apiVersion"], manifest["kind"])
    expected, actual = canonical(kind, spec), canonical(kind, manifest["spec"])
    if case["id"] in BUILT:
        assert manifest["package"]["path"] == "../code"
        for pool in (*expected["workerPoolSpecs"], *actual["workerPoolSpecs"]):
            task = pool.pop("containerSpec", None) or pool.pop("pythonPackageSpec")
            pool["args"] = task.get("args")
    assert actual == expected


@pytest.mark.parametrize("case", [case for case in CASES if "refused" in case], ids=lambda case: case["id"])
def test_line_that_gcloud_refuses_is_refused_with_the_flag(case: Json, tmp_path: Path) -> None:
    if case["id"] in NOT_BUILT:
        assert imported(case, tmp_path).jobs
        return
    with pytest.raises(InvalidError) as refused:
        imported(case, tmp_path)
    (problem, *_) = refused.value.problems
    assert case["names"] in problem.message
    assert problem.hint


def test_few_bodies_are_refused_on_purpose() -> None:
    assert len(REFUSED_ON_PURPOSE) <= 30
