"""A model that is published, and a worse one that isn't: what apply, plan, status, show and the pages say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from reconciler.manifests import schemas
from tests.support.models import job_of, settings, write
from tests.support.repository import Repository

pytestmark = pytest.mark.slow

TO = "gs://risk-models/census"
EXPECT = f"{{accuracy: {{min: 0.5, worse: 0.01}}}}\npublish: {{to: {TO}}}"


@pytest.fixture
def own(models: Repository) -> Repository:
    """Return a repository whose runs have folders of their own."""
    settings(models, "outputs: own")
    return models


def output_of(repository: Repository, command: str, *arguments: str) -> Any:
    """Return the JSON of a command, checked against its schema."""
    found = repository.run(command, *arguments, "--format", "json").json
    Draft202012Validator(schemas.document(f"{command}-output.schema.json")).validate(found)
    return found


def current(repository: Repository) -> str:
    """Return the job whose model is in place."""
    path = repository.home / "gcs/risk-models/census/current.json"
    name: str = json.loads(path.read_text())["jobName"]
    return name


def test_worse_model_is_not_published_and_every_output_says_so(own: Repository) -> None:
    write(own, "--accuracy=0.95", expect=EXPECT)
    done = own.run("apply", "--wait")
    assert done.code == 0, done.err
    good = job_of(own)["jobName"]
    assert current(own) == good
    assert "accuracy 0.95 (at least 0.5); published" in own.run("status").out
    assert output_of(own, "show", "census")["publication"] == {"to": TO, "current": good}
    assert f"Published    {TO} (in place since " in own.run("show", "census").out
    assert output_of(own, "plan")["summary"]["publish"] == 0

    write(own, "--accuracy=0.9", expect=EXPECT)
    done = own.run("apply", "--wait")
    assert done.code == 1
    why = f"accuracy 0.9, expected at most 0.01 below the published 0.95 ({good})"
    assert why in " ".join((done.out + done.err).split())
    assert current(own) == good
    plan = output_of(own, "plan")
    found = {change["action"]: (change["reasonCode"], change["publication"]) for change in plan["changes"]}
    assert found == {
        "none": ("not-published", None),
        "blocked": ("worse-than-published", {"to": TO, "current": good}),
    }
    assert why in " ".join(own.run("plan").out.split())
    assert "accuracy 0.9 (at least 0.5); not published" in own.run("status").out
    assert f"not at {TO}: {good} is there since" in own.run("show", "census").out
    rendered = own.run("report", "--html", "site")
    assert rendered.code == 0, rendered.err
    pages = [page.read_text() for page in (own.root / "site").rglob("*.html")]
    assert any("accuracy 0.9; not published" in page for page in pages)
    assert any(why in page for page in pages)

    # A revert trains nothing, and is never compared.
    write(own, "--accuracy=0.95", expect=EXPECT.replace("0.01", "0"))
    assert own.run("apply", "--wait").code == 0
    assert current(own) == good
    assert len(own.states()) == 2
    assert "; published" in own.run("status").out
