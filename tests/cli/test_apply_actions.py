"""`apply` in GitHub Actions: the job's summary with the plan and the ends of the jobs, and annotations."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from reconciler.model.job import State
from reconciler.output.document import SUMMARY_LIMIT
from tests.support.in_memory import Commands, Result, commands_in
from tests.support.repository import Repository

BLOCKED = """\
apiVersion: ml.googleapis.com/v1
kind: Job
metadata: {name: gone}
spec: {trainingInput: {scaleTier: BASIC, region: us-central1, masterConfig: {imageUri: gcr.io/acme/x:1}}}
"""


@pytest.fixture
def summary(tmp_path: Path) -> Path:
    return tmp_path / "summary.md"


@pytest.fixture
def commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], summary: Path
) -> Commands:
    """Return a repository in a run of GitHub Actions that may not post statuses."""
    (tmp_path / "team").mkdir()
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("RECONCILER_ENV", "prod")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_REPOSITORY", "acme/models")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    return commands_in(tmp_path / "team", monkeypatch, capsys.readouterr)


def annotations(done: Result) -> list[str]:
    assert "\n::" not in f"\n{done.out}", "stdout may be JSON"
    return [line for line in done.err.splitlines() if line.startswith("::error ")]


def rows(summary: Path) -> list[list[str]]:
    """Return the cells of the last table."""
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(summary.read_text())
    table = page[page.rindex("<tbody>") :]
    found = [
        re.findall("<td.*?>(.*?)</td>", row, re.DOTALL)
        for row in re.findall("<tr>(.*?)</tr>", table, re.DOTALL)
    ]
    return [[re.sub("<.*?>", "", cell) for cell in row] for row in found]


def test_summary_has_the_plan_and_the_ends_of_the_jobs(commands: Commands, summary: Path) -> None:
    summary.write_text("A line of the step's own")
    commands.job("good")
    commands.job("bad")
    (commands.root / "jobs/gone.yaml").write_text(BLOCKED)

    def end() -> None:
        for job in list(commands.outside.jobs.jobs):
            state = State.FAILED if job.job_name.startswith("bad") else State.SUCCEEDED
            commands.outside.jobs.becomes(job, state)

    commands.meanwhile = [end]
    done = commands.run("apply", "--wait", "--yes", "--format", "json")
    assert done.code == 1
    assert len(done.json["outcomes"]) == 3
    text = summary.read_text()
    assert text.startswith("A line of the step's own\n### Plan for prod")
    assert "### Apply&#58; 2 applied, 1 skipped, 1 job FAILED" in text
    ends = [(re.sub("_[0-9a-f]{16}", "", name), *cells) for name, *cells in rows(summary)]
    assert [end[:4] for end in ends] == [
        ("bad", "submit", "applied", "FAILED"),
        ("gone", "blocked", "blocked", ""),
        ("good", "submit", "applied", "SUCCEEDED"),
    ]
    assert ends[1][4].startswith("Google shut down AI Platform")
    found = annotations(done)
    assert [line.split("::")[1] for line in found] == [
        "error file=team/jobs/gone.yaml,line=1,title=Blocked",
        "error file=team/jobs/bad.yaml,line=2,title=Not succeeded",
    ]


def test_job_that_ended_before_is_in_the_table_without_an_action(commands: Commands, summary: Path) -> None:
    commands.job("bad")
    commands.run("apply", "--yes")
    (job,) = commands.outside.jobs.jobs
    commands.outside.jobs.becomes(job, State.FAILED)
    summary.unlink()
    done = commands.run("apply", "--yes")
    ((name, state, *_),) = rows(summary)  # without the columns for its action and result
    assert (name, state) == (job.job_name, "FAILED")
    assert (done.code, annotations(done)) == (0, []), "its end before this run doesn't fail it"
    (found,) = annotations(commands.run("apply", "--wait", "--yes"))
    assert found.startswith("::error file=team/jobs/bad.yaml,line=2,title=Not succeeded::bad_")


def test_refused_plan_is_annotated_and_in_the_summary(commands: Commands, summary: Path) -> None:
    settings = commands.root / "reconciler.yaml"
    settings.write_text(f"{settings.read_text()}limits: {{submissions: 0}}\n")
    commands.job()
    done = commands.run("apply", "--yes")
    assert done.code == 4
    (found,) = annotations(done)
    assert found.startswith(
        "::error title=Refused::the plan has 1 submissions, but one apply may do at most 0"
    )
    text = summary.read_text()
    assert "**Apply refused this plan:** the plan has 1 submissions" in text
    assert "<code>census_" in text
    assert "### Apply" not in text


def test_invalid_manifests_are_annotated_and_in_the_summary(commands: Commands, summary: Path) -> None:
    for number in range(12):
        (commands.root / "jobs").mkdir(exist_ok=True)
        (commands.root / f"jobs/{number:02}.yaml").write_text("- '@octocat'\n")
    done = commands.run("apply", "--yes", "--format", "json")
    assert done.code == 3
    found = annotations(done)
    assert found[0].startswith("::error file=team/jobs/00.yaml,line=1,col=1,title=Invalid manifest::")
    assert len(found) == 10
    assert "3 more problems" in found[-1]
    text = summary.read_text()
    assert text.count("<code>team/jobs/") == 12
    assert "@octocat" not in text


def test_invalid_settings_are_annotated(commands: Commands, summary: Path) -> None:
    (commands.root / "reconciler.yaml").write_text("sauce: acme\n")
    done = commands.run("apply", "--yes")
    assert done.code == 3
    assert annotations(done)[0].startswith("::error file=team/reconciler.yaml,line=1,col=1,title=Invalid")
    assert "sauce" in summary.read_text()


def test_summary_that_cant_be_written_is_a_line_and_no_failure(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "missing" / "summary.md"))
    commands.job()
    done = commands.run("apply", "--yes")
    assert done.code == 0
    assert "summary.md can't be written: No such file or directory" in done.err


def test_outside_of_actions_there_is_neither(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, summary: Path
) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY")
    (commands.root / "jobs").mkdir()
    (commands.root / "jobs/gone.yaml").write_text(BLOCKED)
    done = commands.run("apply", "--yes")
    assert (done.code, annotations(done), summary.exists()) == (1, [], False)


@pytest.mark.slow
def test_lines_of_json_stay_lines_of_json(commands: Commands) -> None:
    (commands.root / "jobs").mkdir()
    (commands.root / "jobs/gone.yaml").write_text(BLOCKED)
    done = commands.run("apply", "--yes", "--log-format", "json")
    assert done.code == 1
    assert all(json.loads(line) for line in done.err.splitlines())


@pytest.mark.slow
def test_summary_stays_within_githubs_limit(commands: Commands, summary: Path) -> None:
    settings = commands.root / "reconciler.yaml"
    settings.write_text(f"{settings.read_text()}limits: {{submissions: null}}\n")
    for number in range(300):
        commands.job(f"job-{number}", *("x" * 100 for _ in range(100)))
    assert commands.run("apply", "--yes").code == 0
    size = len(summary.read_bytes())
    assert 500_000 < size < SUMMARY_LIMIT
    assert "Not shown of the details" in summary.read_text()
    assert len(rows(summary)) == 300


@pytest.mark.slow
def test_jobs_that_train_on_the_runner_are_in_the_summary(repository: Repository, summary: Path) -> None:
    repository.job("bad", args=["--fail"])
    repository.job("good")
    done = repository.run("apply", "--wait", GITHUB_STEP_SUMMARY=str(summary))
    assert done.code == 1
    assert [row[1:5] for row in rows(summary)] == [
        ["submit", "applied", "FAILED", "user code: exit code 1"],
        ["submit", "applied", "SUCCEEDED", ""],
    ]
    assert "::error" not in done.err
