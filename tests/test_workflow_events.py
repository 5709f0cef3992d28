"""Events of the workflows: the jobs for each event, and the runs that share a concurrency group.

It covers the workflows of this repository, those that `init` writes, and those in docs/github.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconciler.manifests.settings import Environment
from reconciler.setup.files import Setup, apply_workflow, plan_workflow
from reconciler.setup.next_steps import CHECK
from tests.support.expressions import Situation

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "github.md"
CALLED = {"plan.yml": ("pull_request", "merge_group"), "apply.yml": ("push", "schedule", "workflow_dispatch")}
"""Events of the callers, for workflows on `workflow_call`."""
TYPES = ["opened", "synchronize", "reopened", "edited"]
EXPRESSION = re.compile(r"\$\{\{.*?\}\}")

Workflow = dict[str, Any]


def loaded(text: str) -> Workflow:
    # YAML 1.1 takes the key `on` for true, which GitHub doesn't.
    found = yaml.load(text, Loader=yaml.BaseLoader)
    return found if isinstance(found, dict) else {}


def all_workflows() -> Iterator[tuple[str, Workflow]]:
    for path in sorted((ROOT / ".github" / "workflows").iterdir()):
        yield path.name, loaded(path.read_text())
    google = Environment("production", "google", "my-project", "us-central1", "staging", "claims")
    for place, setup in (("local", Setup("jobs")), ("google", Setup("jobs", google=google))):
        yield f"init plan {place}", loaded(plan_workflow(setup))
        yield f"init apply {place}", loaded(apply_workflow(setup))
    for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", DOCUMENT.read_text(), re.M | re.S)):
        if {"jobs", "concurrency"} & loaded(block).keys():
            yield f"docs {number}", loaded(block)


WORKFLOWS = dict(all_workflows())
every_workflow = pytest.mark.parametrize("name", WORKFLOWS)


def events_of(name: str) -> list[str]:
    """Return the events of a workflow, or of its callers; all events for a part without `on:`."""
    events = WORKFLOWS[name].get("on", dict.fromkeys(["pull_request", "merge_group", *CALLED["apply.yml"]]))
    names = [events] if isinstance(events, str) else list(events)
    return list(CALLED[name]) if names == ["workflow_call"] else names


def situation(
    name: str, event: str, number: int, more: dict[str, Any] | None = None, *, has_failed: bool = False
) -> Situation:
    """Return the context of a workflow's expressions in a numbered run, each for its own commit."""
    called = WORKFLOWS[name].get("on", {})
    inputs = called.get("workflow_call", {}).get("inputs", {}) if isinstance(called, dict) else {}
    sha, ref = f"{number:040x}", "refs/heads/main"
    about: dict[str, Any] = {}
    match event:
        case "pull_request":
            ref, about = f"refs/pull/{number}/merge", {"pull_request": {"number": number}, "action": "opened"}
        case "merge_group":
            ref = f"refs/heads/gh-readonly-queue/main/pr-{number}-{'b' * 40}"
            about = {"merge_group": {"head_sha": sha, "base_sha": "b" * 40}, "action": "checks_requested"}
        case "schedule":
            about = {"schedule": "17,47 * * * *"}
    github = {"event_name": event, "sha": sha, "ref": ref, "event": {**about, **(more or {})}}
    values = {each: declared.get("default", "") for each, declared in inputs.items()}
    return Situation({"github": github, "inputs": values}, has_failed)


def plan_jobs(workflow: Workflow) -> Iterator[dict[str, Any]]:
    """Yield the jobs that plan, and the jobs whose check a protected branch requires."""
    for job in workflow.get("jobs", {}).values():
        uses = [job.get("uses", ""), *(step.get("uses", "") for step in job.get("steps", []))]
        if job.get("name") == CHECK or any(re.search(r"/plan(\.yml)?(@|$)", each) for each in uses):
            yield job


PLANNING = [name for name, workflow in WORKFLOWS.items() if list(plan_jobs(workflow))]
every_planning_workflow = pytest.mark.parametrize("name", PLANNING)


def test_there_are_workflows_of_each_kind() -> None:
    assert {"ci.yml", "jobs.yml", "jobs-plan.yml", "plan.yml", "apply.yml"} <= WORKFLOWS.keys()
    assert {"jobs-plan.yml", "plan.yml", "init plan local", "init plan google"} <= set(PLANNING)
    documented = [name for name in WORKFLOWS if name.startswith("docs")]
    assert len(documented) == 5
    assert len(set(documented) & set(PLANNING)) == 2


# Checks that a protected branch requires


@every_planning_workflow
def test_plan_job_runs_for_each_event_of_its_workflow(name: str) -> None:
    """A job skipped by a condition counts as passed, under the same name as the red job before it."""
    for job in plan_jobs(WORKFLOWS[name]):
        for event in events_of(name):
            actions = TYPES if event == "pull_request" else ["checks_requested"]
            for action in actions:
                for has_failed in {False, "needs" in job}:
                    seen = situation(name, event, 1, {"action": action}, has_failed=has_failed)
                    assert seen.runs(job.get("if")), (event, action, has_failed)


@every_planning_workflow
def test_plan_is_made_again_for_every_edit_and_for_a_merge_group(name: str) -> None:
    events = WORKFLOWS[name]["on"]
    if "workflow_call" not in events:
        assert set(events) == {"pull_request", "merge_group"}
        # A filter of paths or branches would leave a pull request without its check.
        assert events["pull_request"] == {"types": TYPES}
        assert not events["merge_group"]


@every_planning_workflow
def test_check_of_the_plan_has_the_required_name(name: str) -> None:
    by_name = [job.get("name") for job in plan_jobs(WORKFLOWS[name]) if "uses" not in job]
    assert by_name == [CHECK] or all("uses" in job for job in plan_jobs(WORKFLOWS[name]))


@pytest.mark.parametrize(
    "condition",
    [
        "${{ github.event_name == 'pull_request' }}",
        "github.event.action != 'edited' || github.event.changes.base",
        "${{ github.event_name != 'merge_group' && !cancelled() }}",
    ],
)
def test_condition_that_skips_a_plan_would_be_found(condition: str) -> None:
    edited = situation("plan.yml", "pull_request", 1, {"action": "edited", "changes": {}})
    assert not (edited.runs(condition) and situation("plan.yml", "merge_group", 1).runs(condition))


def test_job_that_needs_a_failed_one_is_skipped_unless_it_always_runs() -> None:
    failed = situation("jobs-plan.yml", "pull_request", 1, has_failed=True)
    assert not failed.runs(None)
    assert failed.runs("${{ always() }}")


# Concurrency


def groups(workflow: Workflow) -> Iterator[str]:
    for holder in (workflow, *workflow.get("jobs", {}).values()):
        if "concurrency" in holder:
            yield holder["concurrency"]["group"]


def is_in_order(workflow: Workflow) -> bool:
    """Return True if a run applies the commits of others: these wait for each other on purpose."""
    steps = (step for job in workflow.get("jobs", {}).values() for step in job.get("steps", []))
    return any("workload-identity-provider" in step.get("with", {}) for step in steps)


@every_workflow
def test_concurrency_group_is_empty_for_no_event(name: str) -> None:
    for group in groups(WORKFLOWS[name]):
        for event in events_of(name):
            seen = situation(name, event, 1)
            for expression in EXPRESSION.findall(group):
                assert seen.text(expression), (expression, event)


@every_workflow
def test_unrelated_runs_share_no_concurrency_group_unless_one_does_the_others_work(name: str) -> None:
    for group in groups(WORKFLOWS[name]):
        for event in events_of(name):
            first, second = (situation(name, event, number).text(group) for number in (1, 2))
            assert (first == second) == is_in_order(WORKFLOWS[name]), (group, event)


def test_group_of_a_pull_requests_number_alone_would_be_found() -> None:
    alone = "plan-${{ github.event.pull_request.number }}"
    assert situation("plan.yml", "merge_group", 1).text(alone) == "plan-"
    assert situation("plan.yml", "pull_request", 1).text(alone) == "plan-1"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("'a' == 'A' && 1 || 2", 1),
        ("'' || github.nothing.there || 'other'", "other"),
        ("!(true && false) && 'it''s'", "it's"),
        ("github.event_name != 'push'", True),
    ],
)
def test_expressions_have_githubs_values(expression: str, value: object) -> None:
    assert situation("plan.yml", "pull_request", 1).value(expression) == value
