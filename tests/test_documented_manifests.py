"""Manifests of the README and of docs/: valid, and without a warning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from reconciler.cli import run

ROOT = Path(__file__).resolve().parent.parent
HEAD = "apiVersion: aiplatform.googleapis.com/v1\nkind: CustomJob\nmetadata: {name: census}\n"


def manifests() -> list[pytest.ParameterSet]:
    """Return each block of YAML that has a job's `spec`; those without a kind are of a CustomJob."""
    found = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for text in re.findall(r"^```yaml\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            value = yaml.safe_load(text)
            if isinstance(value, dict) and "spec" in value:
                found.append(pytest.param(text if "kind" in value else HEAD + text, id=page.name))
    return found


def test_pages_have_manifests() -> None:
    pages = {str(parameter.id) for parameter in manifests()}
    assert pages >= {"README.md", "containers.md", "pipelines.md"}


@pytest.mark.parametrize("text", manifests())
def test_manifest_of_a_page_has_no_mistake_and_no_warning(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = tmp_path / "trainers/census"
    (trainer / "trainer").mkdir(parents=True)
    (trainer / "trainer/task.py").write_text("")
    lock = ROOT / "reconciler/setup/templates/jobs/trainers/iris/requirements.lock"
    (trainer / "requirements.lock").write_text(lock.read_text("utf-8"))
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/census.yaml").write_text(text)
    (tmp_path / "reconciler.yaml").write_text("outputs: own\n")
    monkeypatch.chdir(tmp_path)
    assert run(["validate", "--strict"]) == 0, capsys.readouterr().out
