"""Condition under which Google Cloud grants a run its identity: every forged claim set fails it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from reconciler.setup.files import Setup
from reconciler.setup.next_steps import attribute_condition
from tests.support.identity_condition import GENUINE, allows

DOCS = Path(__file__).resolve().parents[2] / "docs" / "github.md"
CLAIM = re.compile(r"assertion\.(\w+)")

WORKFLOW = "ORG/MODELS/.github/workflows/"
PULL = {"event_name": "pull_request", "ref": "refs/pull/7/merge", "base_ref": "main"}
PULL_WORKFLOW = {"workflow_ref": f"{WORKFLOW}reconciler-apply.yml@refs/pull/7/merge"}

# Claims that a foreign run, or another run of the repository, could truly make.
FORGED: dict[str, dict[str, Any]] = {
    "another repository of the same owner": {"repository": "ORG/OTHER", "repository_id": "1296270"},
    "another repository that copied the workflow": {
        "repository": "EVIL/MODELS",
        "repository_id": "9",
        "repository_owner_id": "9",
        "workflow_ref": "EVIL/MODELS/.github/workflows/reconciler-apply.yml@refs/heads/main",
    },
    "a fork": {"repository": "EVIL/MODELS", "repository_id": "10", "repository_owner_id": "9"},
    "a new repository under the old name": {"repository_id": "77", "sub": GENUINE["sub"]},
    "a new owner under the old name": {"repository_id": "77", "repository_owner_id": "78"},
    "the repository, moved to another owner": {"repository_owner_id": "78"},
    "an id that begins alike": {"repository_id": "12962690"},
    "an id with a blank": {"repository_id": "1296269 "},
    "an id as a number": {"repository_id": 1296269},
    "an empty id": {"repository_id": ""},
    "another branch": {"ref": "refs/heads/feature"},
    "a branch that begins alike": {"ref": "refs/heads/main-2"},
    "a branch that ends alike": {"ref": "refs/heads/refs/heads/main"},
    "a branch in other letters": {"ref": "refs/heads/Main"},
    "a tag of the branch's name": {"ref": "refs/tags/main", "ref_type": "tag"},
    "the branch's short name": {"ref": "main"},
    "a pull request": PULL | PULL_WORKFLOW,
    "a pull request with the workflow of main": PULL,
    "pull_request_target, which runs on main": {"event_name": "pull_request_target"},
    "workflow_run, which runs on main": {"event_name": "workflow_run"},
    "a comment, which runs on main": {"event_name": "issue_comment"},
    "an issue, which runs on main": {"event_name": "issues"},
    "a fork's event": {"event_name": "fork"},
    "a push in capitals": {"event_name": "PUSH"},
    "a dispatch by the API": {"event_name": "repository_dispatch"},
    "another workflow of the repository": {"workflow_ref": f"{WORKFLOW}reconciler-plan.yml@refs/heads/main"},
    "the workflow of another branch": {"workflow_ref": f"{WORKFLOW}reconciler-apply.yml@refs/heads/feature"},
    "a workflow whose name ends alike": {
        "workflow_ref": f"{WORKFLOW}my-reconciler-apply.yml@refs/heads/main"
    },
    "the called workflow's name alone": {
        "workflow_ref": f"{WORKFLOW}evil.yml@refs/heads/main",
        "job_workflow_ref": GENUINE["workflow_ref"],
    },
    "the same file of another repository": {
        "workflow_ref": "EVIL/MODELS/.github/workflows/reconciler-apply.yml@refs/heads/main"
    },
    "somebody's own runner": {"runner_environment": "self-hosted"},
    "a runner of an unknown kind": {"runner_environment": ""},
}


def _documented() -> str:
    found = re.findall(r'--attribute-condition="(.*?)"', DOCS.read_text(), re.DOTALL)
    assert len(found) == 1
    return str(found[0])


CONDITIONS = {
    "of the documentation": _documented(),
    "of init": attribute_condition(Setup("models-1a2b", "ORG/MODELS"), "1296269", "583231"),
}
PARTS = [
    pytest.param(condition, claim, id=f"{claim} {name}")
    for name, condition in CONDITIONS.items()
    for claim in CLAIM.findall(condition)
]
every_condition = pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS)
every_part = pytest.mark.parametrize(("condition", "claim"), PARTS)


@every_condition
@pytest.mark.parametrize("event", ["push", "schedule", "workflow_dispatch"])
def test_the_default_branchs_own_run_gets_an_identity(condition: str, event: str) -> None:
    assert allows(condition, GENUINE | {"event_name": event})


@pytest.mark.fault(42)
@every_condition
@pytest.mark.parametrize("name", FORGED)
def test_no_other_run_does(condition: str, name: str) -> None:
    assert not allows(condition, GENUINE | FORGED[name])


@pytest.mark.fault(42)
@every_part
def test_a_run_that_leaves_a_claim_out_gets_none(condition: str, claim: str) -> None:
    assert not allows(condition, {name: value for name, value in GENUINE.items() if name != claim})


@pytest.mark.slow
@every_part
def test_each_part_of_the_condition_is_needed(condition: str, claim: str) -> None:
    """Check that each part rejects a forged run: the table above has a case for each."""
    parts = [part for part in condition.split("&&") if f"assertion.{claim} " not in part]
    assert any(allows("&&".join(parts), GENUINE | forged) for forged in FORGED.values())


def test_the_table_of_claims_names_those_of_the_condition() -> None:
    (table,) = re.findall(r"\| claim \| without it \|\n\|---\|---\|\n((?:\|.*\n)+)", DOCS.read_text())
    cells = [line.split("|")[1] for line in table.splitlines()]
    assert re.findall(r"`(\w+)`", "".join(cells)) == CLAIM.findall(_documented())
