"""Names: their parts, their form, and their stability."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler.manifests.settings import Environment
from reconciler.model.expectation import Expectation
from reconciler.model.job import State
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1, Manifest, Publish, Reconcile
from reconciler.model.naming import HASH_VERSION, VERSIONS, identities, identity, job_name, label_of
from reconciler.model.plan import Action
from reconciler.operations.load_desired import desired_jobs
from tests.golden.compute import computed
from tests.support.planning import bound_to, plan, run_of

VECTORS = json.loads((Path(__file__).parents[1] / "golden" / "vectors.json").read_text(encoding="utf-8"))

SPEC = {"workerPoolSpecs": [{"replicaCount": "1"}]}
CODE = "0123456789abcdef" * 4
MANIFEST = Manifest(AIPLATFORM_V1, "CustomJob", "census-income", SPEC)
BASE_NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,99}", fullmatch=True)
IDENTITIES = st.binary(min_size=32, max_size=32).map(bytes.hex)


def compute_changed_identity(**fields: Any) -> str:
    return identity(replace(MANIFEST, **fields), SPEC, CODE)


@pytest.mark.fault(19)
def test_computed_names_match_golden_vectors() -> None:
    """Names are permanent: a changed vector renames every submitted job."""
    assert computed(VECTORS) == VECTORS


def test_identity_is_hash_of_header_line_and_json_object() -> None:
    hashed = (
        b"reconciler job\n"
        b'{"apiVersion":"aiplatform.googleapis.com/v1","baseName":"census_income","code":"%s","kind":"CustomJob",'
        b'"rerun":"","spec":{"workerPoolSpecs":[{"replicaCount":"1"}]},"version":1}' % CODE.encode()
    )
    assert identity(MANIFEST, SPEC, CODE) == hashlib.sha256(hashed).hexdigest()


@pytest.mark.fault(19)
def test_identity_includes_module_and_requirements_of_package() -> None:
    hashed = (
        b"reconciler job\n"
        b'{"apiVersion":"aiplatform.googleapis.com/v1","baseName":"census_income","code":"%s","kind":"CustomJob",'
        b'"package":{"module":"trainer.task","requirements":"lock.txt"},'
        b'"rerun":"","spec":{"workerPoolSpecs":[{"replicaCount":"1"}]},"version":1}' % CODE.encode()
    )
    expected = hashlib.sha256(hashed).hexdigest()
    assert compute_changed_identity(module="trainer.task", requirements="lock.txt") == expected
    assert compute_changed_identity(requirements="lock.txt") == compute_changed_identity()


@pytest.mark.fault(19)
def test_job_has_identity_of_every_hash_version_newest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert max(VERSIONS) == HASH_VERSION
    first = identity(MANIFEST, SPEC, CODE)
    assert identities(MANIFEST, SPEC, CODE) == (first,)
    second = hashlib.sha256(b"a second version").hexdigest()
    monkeypatch.setitem(VERSIONS, 10, lambda manifest, spec, code: second)
    monkeypatch.setitem(VERSIONS, 2, lambda manifest, spec, code: first[::-1])
    assert identities(MANIFEST, SPEC, CODE) == (second, first[::-1], first)
    assert identity(MANIFEST, SPEC, CODE) == second


@pytest.mark.fault(19)
def test_identity_of_hash_version_is_unchanged_by_newer_version(monkeypatch: pytest.MonkeyPatch) -> None:
    first = VERSIONS[1](MANIFEST, SPEC, CODE)
    monkeypatch.setitem(VERSIONS, 2, lambda manifest, spec, code: "2" * 64)
    assert VERSIONS[1](MANIFEST, SPEC, CODE) == first
    assert identities(MANIFEST, SPEC, CODE)[1] == first


@pytest.mark.fault(19)
def test_wanted_job_includes_names_of_older_hash_versions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment = Environment("local", "local", "local", "local", "bucket", "bucket")
    spec = {"workerPoolSpecs": [{"containerSpec": {"imageUri": "x"}, "machineSpec": {"machineType": "n1"}}]}
    manifest = replace(MANIFEST, packed=spec)
    (before,) = desired_jobs(tmp_path, [manifest], environment).jobs
    assert before.earlier == ()
    monkeypatch.setitem(VERSIONS, 2, lambda manifest, spec, code: "2" * 64)
    (after,) = desired_jobs(tmp_path, [manifest], environment).jobs
    assert (after.identity, after.earlier) == ("2" * 64, (before.identity,))
    assert after.job_name == "census_income_" + "2" * 16
    run = run_of(before, State.SUCCEEDED)
    (change,) = plan([after], [run], [bound_to(before, run)]).changes
    assert (change.action, change.job_name) == (Action.NONE, before.job_name)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "census_income"},
        {"labels": {"team": "risk"}},
        {"package": Path("/elsewhere")},
        {"path": "jobs/other.yaml", "line": 7},
        {"reconcile": Reconcile(suspend=True, attempts=3, on_change="cancel", on_delete="cancel")},
        {"expect": (Expectation("accuracy", min=0.95),)},
        {"publish": Publish("gs://models/census", "export")},
    ],
    ids=lambda fields: ",".join(fields),
)
def test_identity_ignores_fields_that_do_not_change_content(fields: dict[str, Any]) -> None:
    assert compute_changed_identity(**fields) == identity(MANIFEST, SPEC, CODE)


def test_identity_changes_with_each_relevant_field() -> None:
    others = [
        identity(MANIFEST, SPEC, CODE),
        compute_changed_identity(api_version=ML_V1),
        compute_changed_identity(kind="HyperparameterTuningJob"),
        compute_changed_identity(name="Census-income"),
        compute_changed_identity(name="census.income"),
        compute_changed_identity(reconcile=Reconcile(rerun="1")),
        compute_changed_identity(reconcile=Reconcile(rerun="2")),
        identity(MANIFEST, SPEC, ""),
        identity(MANIFEST, SPEC, CODE[::-1]),
        identity(MANIFEST, {}, CODE),
        identity(MANIFEST, {**SPEC, "enableWebAccess": False}, CODE),
        # A field's end must not read as the beginning of the next field.
        identity(replace(MANIFEST, kind='CustomJob","rerun":"x'), SPEC, CODE),
        identity(replace(MANIFEST, reconcile=Reconcile(rerun=CODE)), SPEC, ""),
    ]
    assert len(set(others)) == len(others)


@given(BASE_NAMES, IDENTITIES, st.integers(1, 99))
def test_job_name_is_valid_job_id(base_name: str, whole: str, attempt: int) -> None:
    name = job_name(base_name, whole, attempt)
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,127}", name, re.ASCII)
    base, digits, *rest = re.fullmatch(r"(.*)_([0-9a-f]{16})(?:_([0-9]+))?", name).groups()  # type: ignore[union-attr]
    assert (base, digits, rest) == (
        base_name.replace("-", "_"),
        whole[:16],
        [None if attempt == 1 else str(attempt)],
    )


@given(st.lists(st.tuples(BASE_NAMES, IDENTITIES, st.integers(1, 99)), unique=True))
def test_different_runs_have_different_job_names(runs: list[tuple[str, str, int]]) -> None:
    told_apart = {(base.replace("-", "_"), whole[:16], attempt) for base, whole, attempt in runs}
    assert len({job_name(*run) for run in runs}) == len(told_apart)


@given(IDENTITIES)
def test_key_label_encodes_whole_identity(whole: str) -> None:
    label = label_of(whole)
    assert re.fullmatch(r"[a-z2-7]{52}", label)
    assert base64.b32decode(label.upper() + "====").hex() == whole
