"""An evaluator of the condition under which Google Cloud gives a run its identity."""

from __future__ import annotations

from functools import cache
from typing import Any

import celpy

GENUINE = {
    "iss": "https://token.actions.githubusercontent.com",
    "repository": "ORG/MODELS",
    "repository_id": "1296269",
    "repository_owner": "ORG",
    "repository_owner_id": "583231",
    "ref": "refs/heads/main",
    "ref_type": "branch",
    "sha": "0" * 40,
    "event_name": "push",
    "workflow_ref": "ORG/MODELS/.github/workflows/reconciler-apply.yml@refs/heads/main",
    "job_workflow_ref": "ORG/MODELS/.github/workflows/reconciler-apply.yml@refs/heads/main",
    "runner_environment": "github-hosted",
    "sub": "repo:ORG/MODELS:ref:refs/heads/main",
}


@cache
def program(text: str) -> celpy.Runner:
    environment = celpy.Environment()
    return environment.program(environment.compile(text))


def allows(text: str, claims: dict[str, Any]) -> bool:
    """Return whether the condition allows the claims; Google takes an error for a refusal."""
    try:
        return bool(program(text).evaluate({"assertion": celpy.json_to_cel(claims)}))
    except celpy.CELEvalError:
        return False
