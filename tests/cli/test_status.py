"""`status` and the selection of jobs, with the real service; and the pager on a real terminal."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from reconciler.base.errors import ServiceError
from reconciler.manifests import schemas
from reconciler.model.job import KEY, REQUEST_ID, ActualJob, State
from tests.support.in_memory import Commands
from tests.support.memory_ports import Outside
from tests.support.repository import Repository
from tests.support.terminal import on_terminal

RISK = "labels: {team: risk, stage: dev}"


def write_jobs(repository: Repository) -> None:
    """Write a job that fails, a labelled job that succeeds, and a suspended job."""
    repository.job("bad", args=["--fail"])
    good = repository.job("good-one")
    good.write_text(good.read_text().replace("name: good-one", f"name: good-one\n  {RISK}"))
    repository.job("later", reconcile="{suspend: true}")


def shown(repository: Repository, *arguments: str) -> list[str]:
    """Return the base names in the order of the table, and check that JSON has the same order."""
    text = repository.run("status", *arguments)
    assert text.code == 0, text.err
    rows = [] if text.out == "No jobs.\n" else text.out.splitlines()[1:-2]
    found = [row.split()[0] for row in rows]
    answer = repository.run("status", *arguments, "--format", "json").json
    Draft202012Validator(schemas.document("status-output.schema.json")).validate(answer)
    jobs: list[Any] = answer["jobs"]
    assert len(found) == len(jobs)
    # The table shows the job name only for a base name with several runs.
    assert all(name in (job["baseName"], job["jobName"]) for name, job in zip(found, jobs, strict=True))
    return [job["baseName"] for job in jobs]


def test_text_and_json_select_and_sort_the_same_jobs(repository: Repository) -> None:
    write_jobs(repository)
    assert repository.run("apply", "--wait").code == 1
    assert shown(repository) == ["bad", "good-one", "later"]
    assert shown(repository, "--state", "failed,suspended") == ["bad", "later"]
    assert shown(repository, "--state", "FAILED", "--state", "running") == ["bad"]
    assert shown(repository, "-l", "team=risk") == ["good-one"]
    assert shown(repository, "-l", "team,stage!=prod") == ["good-one"]
    assert shown(repository, "-l", "!team", "--limit", "1") == ["bad"]
    assert shown(repository, "good_one", "later", "-l", "team=other") == []
    assert shown(repository, "later", "good_one", "later") == ["good-one", "later"]

    # Changed content hides the earlier run from the newest runs, not from the history.
    repository.job("bad", args=["--fail", "again"])
    assert shown(repository) == ["bad", "good-one", "later"]
    assert [job["state"] for job in repository.run("status", "--format", "json").json["jobs"]] == [
        *(None, "SUCCEEDED", None)
    ]
    assert sorted(shown(repository, "--all")) == ["bad", "bad", "good-one", "later"]
    assert shown(repository, "--all", "--state", "failed") == ["bad"]
    assert shown(repository, "bad") == ["bad", "bad"]

    # So does a removed manifest; without readable manifests, each newest run counts.
    (repository.root / "jobs/good-one.yaml").unlink()
    assert shown(repository) == ["bad", "later"]
    assert shown(repository, "good_one") == ["good_one"] or shown(repository, "good_one") == ["good-one"]
    repository.write("jobs/broken.yaml", "kind: CustomJob\n")
    partial = repository.run("status")
    assert "only runs are known" in partial.err
    assert [line.split()[0] for line in partial.out.splitlines()[1:-2]] == ["bad", "good-one"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--state", "broken"], 64, 'there is no state "broken"'),
        (["-l", "a=b=c"], 64, "not labels, such as team=risk"),
        (["--limit", "0"], 64, "not a whole number from 1"),
        (["nobody"], 1, 'there is no job "nobody"'),
    ],
)
def test_wrong_filter_is_refused(
    repository: Repository, arguments: list[str], code: int, message: str
) -> None:
    repository.job("census")
    refused = repository.run("status", *arguments)
    assert (refused.code, message in refused.err) == (code, True)


def test_plan_and_apply_of_a_selection_are_partial(repository: Repository) -> None:
    write_jobs(repository)

    def planned(*arguments: str) -> list[str]:
        plan = repository.run("plan", *arguments, "--format", "json").json
        return [change["baseName"] for change in plan["changes"]]

    assert planned("-l", "team=risk") == planned("--job", "good_one") == ["good-one"]
    assert planned("--job", "bad", "--job", "good-one") == ["bad", "good-one"]
    digest = repository.run("plan", "-l", "team=risk", "--format", "json").json["digest"]
    applied = repository.run("apply", "--wait", "-l", "team=risk", "--plan-digest", digest)
    assert applied.code == 0, applied.err
    assert sorted(map(str, repository.states().values())) == ["None", "None", "SUCCEEDED"]
    for command in ("plan", "apply"):
        misspelt = repository.run(command, "--job", "good-on")
        assert misspelt.code == 1
        assert "did you mean good-one?" in misspelt.err
        nothing = repository.run(command, "-l", "team=nobody")
        assert (nothing.code, "no manifest has these names and labels" in nothing.err) == (1, True)


def test_plan_of_a_selection_judges_nothing_orphaned(repository: Repository) -> None:
    repository.hold.touch()
    repository.job("gone", reconcile="{onDelete: cancel}")
    repository.job("stays")
    assert repository.run("apply").code == 0
    (repository.root / "jobs/gone.yaml").unlink()
    assert repository.run("plan", "--format", "json").json["summary"]["cancel"] == 1
    partial = repository.run("plan", "--job", "stays", "--format", "json").json
    assert (partial["summary"]["cancel"], partial["drift"]) == (0, [])
    assert shown(repository) == ["gone", "stays"] or shown(repository) == ["stays", "gone"]


def test_cancel_takes_several_names_or_labels_and_reports_each_end(repository: Repository) -> None:
    repository.hold.touch()
    for name in ("a", "b", "c"):
        manifest = repository.job(name)
        labels = RISK if name == "c" else "labels: {team: fraud}"
        manifest.write_text(manifest.read_text().replace(f"name: {name}", f"name: {name}\n  {labels}"))
    assert repository.run("apply").code == 0
    misspelt = repository.run("cancel", "a", "nobody")
    assert (misspelt.code, "nobody" in misspelt.err) == (1, True)
    assert "CANCEL" not in "".join(map(str, repository.states().values()))
    labelled = repository.run("cancel", "-l", "team=risk")
    assert (labelled.code, labelled.out.count("ended CANCELLED")) == (0, 1), labelled.err
    named = repository.run("cancel", "a", "b", "c")
    assert named.code == 0, named.err
    assert (named.out.count(" ended CANCELLED"), named.out.count("had already ended: CANCELLED")) == (2, 1)
    assert repository.run("cancel", "-l", "team=risk").out == "No running job has these labels.\n"
    assert repository.run("cancel").code == 64
    assert repository.run("cancel", "-l", "team=nobody").code == 1


def test_a_refused_cancel_keeps_no_other_job_running(commands: Commands) -> None:
    for name in ("a", "b"):
        commands.job(name)
    assert commands.run("apply").code == 0
    jobs = commands.outside.jobs
    first, second = jobs.jobs
    send = jobs.cancel

    def cancel(job: ActualJob) -> None:
        if job.resource == first.resource:
            raise ServiceError("you may not")
        send(job)

    jobs.cancel = cancel  # type: ignore[method-assign]
    cancelled = commands.run("cancel", "a", "b")
    assert (cancelled.code, cancelled.out) == (1, f"{second.job_name} ended CANCELLED\n")
    assert cancelled.err == "reconciler: you may not\n"


def test_labels_never_cancel_a_run_without_a_claim(commands: Commands) -> None:
    commands.job("a")
    assert commands.run("apply").code == 0
    jobs = commands.outside.jobs
    (own,) = jobs.jobs
    body = dict(own.body)
    body["labels"] = {**own.labels, REQUEST_ID: "0" * 26}
    jobs.add(body)
    assert len(jobs.jobs) == 2
    cancelled = commands.run("cancel", "-l", KEY)
    assert cancelled.out == f"{own.job_name} ended CANCELLED\n"
    assert jobs.cancelled == [own.resource]


TUNING = """\
apiVersion: aiplatform.googleapis.com/v1
kind: HyperparameterTuningJob
metadata: {name: tuned}
spec:
  maxTrialCount: 1
  parallelTrialCount: 1
  studySpec:
    metrics: [{metricId: accuracy, goal: MAXIMIZE}]
    parameters: [{parameterId: rate, doubleValueSpec: {minValue: 0.1, maxValue: 1}}]
  trialJobSpec:
    workerPoolSpecs:
      - machineSpec: {machineType: n1-standard-4}
        replicaCount: 1
        containerSpec: {imageUri: "example.test/plain:1"}
"""


@pytest.mark.slow
def test_result_is_the_best_metric_else_the_output_directory_and_is_read_for_30_jobs_at_most(
    commands: Commands,
) -> None:
    for number in range(40):
        commands.job(f"z-{number:02}")
    (commands.root / "jobs/tuned.yaml").write_text(TUNING)
    with (commands.root / "reconciler.yaml").open("a") as settings:
        settings.write("limits: {submissions: 100}\n")
    assert commands.run("apply").code == 0
    measured = {
        "id": "1",
        "state": "SUCCEEDED",
        "finalMeasurement": {"metrics": [{"metricId": "accuracy", "value": 0.97273}]},
    }
    written = {"baseOutputDirectory": {"outputUriPrefix": "gs://models/z"}}
    jobs = commands.outside.jobs
    jobs.jobs = [
        replace(job, state=State.SUCCEEDED, body={**job.body, "trials": [measured]}, spec=written)
        for job in jobs.jobs
    ]
    read, resources = jobs.read, []

    def count(api_version: str, kind: str, resource: str) -> ActualJob:
        resources.append(resource)
        return read(api_version, kind, resource)

    jobs.read = count  # type: ignore[method-assign]
    lines = commands.run("status").out.splitlines()
    assert lines[1].startswith("tuned ")
    assert lines[1].endswith(" accuracy 0.97273 in trial 1")
    assert lines[2].endswith(" gs://models/z")
    assert len(resources) == 30
    assert sum("gs://models/z" in line for line in lines) == 29
    assert commands.run("status", "--format", "json").code == 0
    assert len(resources) == 30


PAGER = f"{sys.executable} -c \"import sys; print('PAGED', sys.stdin.read().count('STATE'))\""


def test_pager_is_used_only_for_long_output_on_a_terminal_outside_of_ci(repository: Repository) -> None:
    for number in range(12):
        repository.job(f"job-{number}")
    paged: Any = {"PAGER": PAGER, "rows": 10}
    assert "PAGED 1" in on_terminal(repository, "status", **paged)
    assert "PAGED" not in on_terminal(repository, "status", **{**paged, "rows": 40})
    assert "PAGED" not in on_terminal(repository, "status", CI="true", **paged)
    assert "PAGED" not in on_terminal(repository, "status", RECONCILER_PAGER="cat", **paged)
    assert "PAGED" not in on_terminal(repository, "status", "--format", "json", **paged)
    assert "12 jobs" in on_terminal(repository, "status", **{**paged, "PAGER": "no-such-pager"})
    assert "PAGED" not in repository.run("status", PAGER=PAGER, LINES="5").out


def test_table_fits_a_real_terminal_and_has_colours(repository: Repository) -> None:
    repository.job("a-job-with-a-name-that-is-longer-than-many-others-" + "x" * 40)
    output = on_terminal(repository, "status", columns=60)
    assert "\x1b[" in output
    plain = on_terminal(repository, "status", columns=60, NO_COLOR="1")
    assert "\x1b[" not in plain
    assert max(map(len, plain.splitlines())) == 60
    assert "…" in plain


@pytest.mark.fault(55)
def test_status_and_plan_say_when_and_what_the_last_full_look_found(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = Outside.ports.fget  # type: ignore[attr-defined]
    at_once = property(lambda outside: replace(ports(outside), least_history=0))
    monkeypatch.setattr(Outside, "ports", at_once)
    commands.job("census")
    assert commands.run("apply", "--yes").code == 0
    outside = commands.outside
    outside.jobs.becomes(outside.jobs.jobs[0], State.SUCCEEDED)
    outside.time.now += timedelta(hours=1)
    assert "when all were last read" in commands.run("status").err
    assert commands.run("apply", "--yes").code == 0
    assert commands.run("apply", "--yes").code == 0
    assert "as of 2026-01-01 00:00 UTC, when all were last read" in commands.run("status").err
    assert "when all were last read" not in commands.run("status", "--all").err
    # The record of a settled run is deleted: short looks don't read it, and a full look does.
    outside.claims.held.clear()
    assert "census" in commands.run("status").out
    assert "has no claim any more" in commands.run("plan", "--full").err
    assert len(outside.jobs.sent) == 1
