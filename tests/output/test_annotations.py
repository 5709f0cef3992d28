"""Annotations by GitHub's runner: at most ten in a step, each at a file of the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.cli import run

MANIFEST = f"""\
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: plain}}
spec:
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-4}}
      replicaCount: 1
      containerSpec: {{imageUri: "example.com/trainer@sha256:{"0" * 64}"}}
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "team" / "jobs").mkdir(parents=True)
    (tmp_path / "team" / "reconciler.yaml").write_text("environments: {}\n")
    monkeypatch.chdir(tmp_path / "team")
    return tmp_path


def annotations(capsys: pytest.CaptureFixture[str], code: int) -> list[str]:
    assert run(["validate", "--format", "github"]) == code
    out, err = capsys.readouterr()
    assert err == ""
    return out.splitlines()


def test_files_are_named_from_the_top_of_the_checkout(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "team" / "jobs" / "a.yaml").write_text("apiVersion: x\n")
    first = annotations(capsys, 3)[0]
    assert first.startswith("::error file=team/jobs/a.yaml,line=1,col=")
    (checkout / "team" / ".git").write_text("gitdir: elsewhere\n")
    assert annotations(capsys, 3)[0].startswith("::error file=jobs/a.yaml,line=1,col=")


def test_a_file_outside_of_the_repository_keeps_its_path(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path_factory.mktemp("other") / "a.yaml"
    other.write_text("apiVersion: x\n")
    run(["validate", "--format", "github", str(other)])
    assert capsys.readouterr().out.startswith(f"::error file={other},")


def test_the_tenth_counts_the_others(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(30):
        (checkout / "team" / "jobs" / f"{number}.yaml").write_text("- 1\n")
    lines = annotations(capsys, 3)
    assert len(lines) == 10
    assert all(line.startswith("::error ") for line in lines)
    assert lines[-1].endswith("::21 more problems; run `reconciler validate`")


def test_without_problems_it_says_so(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout / "team" / "jobs" / "a.yaml").write_text(MANIFEST)
    assert annotations(capsys, 0) == ["1 file valid."]
