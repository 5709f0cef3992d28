"""Config files that gcloud accepts, pasted under `spec`: the manifests are valid, and send the same body."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconciler.manifests import schemas
from reconciler.manifests.plain_form import plain_form
from reconciler.manifests.validate import validate
from reconciler.model.canonical import canonical_spec

CASES = Path(__file__).resolve().parent.parent / "gcloud" / "flags.jsonl"
KINDS = {
    "aip": ("ml.googleapis.com/v1", "Job"),
    "cj": ("aiplatform.googleapis.com/v1", "CustomJob"),
    "hp": ("aiplatform.googleapis.com/v1", "HyperparameterTuningJob"),
}
# gcloud sends these; the services refuse them, or ignore the values.
GRID = "a grid search can't enumerate"
REFUSED = {
    "aip-019": "brings its own machines",
    "aip-027": "needs a machine",
    "aip-032": 'not together with "args"',
    "aip-085": "scaleTeir",
    "aip-086": "training_input",
    "aip-096": "custom",
    "aip-097": "HUGE",
    "aip-098": "scaleTier",
    "cj-035": "worker_pool_specs",
    "cj-036": "jobSpec",
    "cj-038": "labelz",
    "cj-039": "the first pool",
    "cj-043": "full name of a network",
    "cj-073": "image_uri",
    "cj-076": "NVIDIA_T4000",
    **{f"hp-{number:03}": GRID for number in (1, 2, 3, 4, 6, 7, 8, 9, 10, 13, 18, 21)},
}


class Loader(yaml.SafeLoader):
    """A YAML loader that reads numbers like gcloud."""


Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[0-9.]+e-?[0-9]+"), list("0123456789"))


def pasted() -> list[Any]:
    """Return the cases with a body from the config file alone, except for name, labels and code."""
    found = []
    for line in CASES.read_text("utf-8").splitlines():
        case = json.loads(line)
        if "body" not in case or "--config" not in case["argv"]:
            continue
        name = case["argv"][case["argv"].index("--config") + 1]
        text = case["stdin"] if name == "-" else case["files"][name]
        found.append(pytest.param(case["id"], yaml.load(text, Loader), case["body"], id=case["id"]))
    return found


def manifest_of(id: str, config: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """Return the pasted config, with the fields that gcloud takes from flags."""
    api_version, kind = KINDS[id.partition("-")[0]]
    spec = {key: value for key, value in config.items() if key not in ("jobId", "labels", "displayName")}
    if kind == "CustomJob" and id in REFUSED:
        spec = config
    if kind == "Job":
        given = dict(body["trainingInput"])
        given.pop("enableWebAccess")
        if "masterConfig" not in given:
            given = {"runtimeVersion": "2.11", **given}
        spec["trainingInput"] = {**given, **config.get("trainingInput", {})}
        # gcloud takes a single text for a list of texts.
        if isinstance(spec["trainingInput"].get("args"), str):
            spec["trainingInput"]["args"] = [spec["trainingInput"]["args"]]
    if kind == "HyperparameterTuningJob":
        spec = {"maxTrialCount": 1, "parallelTrialCount": 1, **spec}
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "pasted"}, "spec": spec}


@pytest.mark.parametrize(("id", "config", "body"), pasted())
def test_config_that_gcloud_accepts_is_valid_under_spec(
    id: str, config: dict[str, Any], body: dict[str, Any], tmp_path: Path
) -> None:
    manifest = manifest_of(id, config, body)
    (tmp_path / "job.yaml").write_text(json.dumps(manifest))
    found = validate(tmp_path, [tmp_path])
    if id in REFUSED:
        assert any(REFUSED[id] in problem.message for problem in found.problems), found.problems
        return
    assert found.problems == ()
    schema = schemas.manifest_schema(manifest["apiVersion"], manifest["kind"])
    assert schema is not None
    published = schemas.document(schemas.KINDS[manifest["apiVersion"], manifest["kind"]])
    assert schemas.is_valid(manifest, published)
    plain = plain_form(manifest, schema)
    assert found.manifests[0].spec == canonical_spec(plain["spec"], schema)
