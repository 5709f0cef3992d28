"""Folders of runs: what `outputs` in reconciler.yaml means for retries, reverts and adopted jobs."""

from __future__ import annotations

import html
import json
import os

import pytest
from msgspec.structs import replace

from reconciler.engines.api.engine_jobs import EngineJobs
from reconciler.manifests.settings import load_config
from reconciler.operations.load_desired import load_desired
from reconciler.operations.observed_state import state_of
from reconciler.operations.plan import plan_of, wanted_of
from reconciler.operations.session import open_session
from reconciler.submission.look import keep_summary, look
from tests.support.live_jobs import PLACE, send
from tests.support.models import accuracies, job_of, settings, write
from tests.support.repository import Repository
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.slow


def revert(repository: Repository) -> tuple[str, str]:
    """Train a good content, a bad one, and apply the good one again; return both names."""
    names = []
    for accuracy in ("0.95", "0.60"):
        write(repository, f"--accuracy={accuracy}")
        assert repository.run("apply", "--wait").code == 0
        names.append(job_of(repository)["jobName"])
    write(repository, "--accuracy=0.95")
    good, bad = names
    return good, bad


@pytest.mark.fault(62)
def test_revert_leaves_both_models_when_outputs_are_own(models: Repository) -> None:
    settings(models, "outputs: own")
    good, bad = revert(models)
    done = models.run("apply", "--wait")
    assert (done.code, "Nothing to do" in done.out) == (0, True), done.out + done.err
    assert accuracies(models) == {
        f"census/{good}/model/metrics.json": 0.95,
        f"census/{bad}/model/metrics.json": 0.60,
    }
    assert job_of(models)["output"]["uri"] == f"gs://models/census/{good}"


@pytest.mark.fault(63)
@pytest.mark.parametrize("default", [False, True])
def test_retry_of_tuning_job_resumes_no_checkpoint_of_other_parameters(
    models: Repository, default: bool
) -> None:
    if default:
        settings(models, "environments: {local: {defaults: {baseOutputDirectory: gs://models/census}}}")
    else:
        settings(models, "outputs: own")
    write(models, "--resume", tuning=True, attempts=2, folder=not default)
    for _ in range(2):
        assert models.run("apply", "--wait").code == 1
    run = job_of(models)
    name = run["jobName"]
    assert name.endswith("_2")
    assert run["output"]["uri"] == f"gs://models/census/{name}"
    logs = [models.run("logs", job).out for job in (name.removesuffix("_2"), name)]
    assert ["resumes: nothing" in log for log in logs] == [True, True], logs


def test_retry_of_custom_job_resumes_its_checkpoint_in_folder_of_first_attempt(models: Repository) -> None:
    settings(models, "outputs: own")
    write(models, "--resume", attempts=2)
    for _ in range(2):
        assert models.run("apply", "--wait").code == 1
    run = job_of(models)
    assert run["output"]["uri"] == f"gs://models/census/{run['jobName'].removesuffix('_2')}"
    assert "resumes: ['--resume']" in models.run("logs", run["jobName"]).out


def test_setting_moves_no_folder_of_existing_run_and_submits_nothing(models: Repository) -> None:
    write(models, "--accuracy=0.95")
    assert models.run("apply", "--wait").code == 0
    before = job_of(models)
    assert before["output"]["uri"] == "gs://models/census"
    settings(models, "outputs: own")
    assert "Nothing to do" in models.run("apply", "--wait").out
    after = job_of(models)
    assert (after["jobName"], after["output"]["uri"]) == (before["jobName"], "gs://models/census")


def test_plan_render_and_comparison_name_the_whole_folder(models: Repository) -> None:
    settings(models, "outputs: own")
    models.git("init", "-q", "-b", "main")
    write(models, "--accuracy=0.95")
    models.git("add", "-A")
    models.git("commit", "-qm", "one")
    assert models.run("apply", "--wait").code == 0
    write(models, "--accuracy=0.60")
    (change,) = models.run("plan", "--format", "json").json["changes"]
    folder = f"gs://models/census/{change['jobName']}"
    assert change["outputDirectory"] == folder
    assert [field["pointer"] for field in change["fields"]] == ["/workerPoolSpecs/0/pythonPackageSpec/args/0"]
    assert f"      writes to {folder}\n" in models.run("plan").out
    assert f'"outputUriPrefix": "{folder}"' in models.run("render", "census").out
    models.git("switch", "-qc", "change")
    models.git("commit", "-qam", "two")
    comparison = models.run("plan", "--base", "main", "--format", "markdown").out
    assert f"- writes to <code>{folder}</code>" in html.unescape(comparison)


def test_live_job_of_another_client_is_adopted_with_its_folder_when_outputs_are_own(
    models: Repository,
) -> None:
    settings(models, "outputs: shared")
    models.write("trainer/task.py", "import time\ntime.sleep(600)\n")
    write(models)
    assert models.run("apply").code == 0
    resource = job_of(models)["resource"]
    body = json.loads(models.run("render", "census").out)
    models.run("cancel", "census")
    spec = body["jobSpec"]
    del spec["workerPoolSpecs"][0]["pythonPackageSpec"]["args"]
    made = send(models, "POST", f"{PLACE}/customJobs", {"displayName": "by hand", "jobSpec": spec})
    assert made["name"] != resource
    (models.root / "jobs/census.yaml").unlink()
    file = models.root / "reconciler.yaml"
    file.write_text(file.read_text().replace("outputs: shared", "outputs: own"))
    done = models.run("import", "--live", "--adopt", "by hand")
    assert f"adopted: its job is {made['name']}" in done.out, done.out + done.err
    assert models.run("cancel", "by hand").code == 0


@pytest.mark.fault(62)
def test_reverted_job_is_overwritten_and_not_green_when_folder_is_shared(models: Repository) -> None:
    settings(models, "outputs: shared")
    good, bad = revert(models)
    plan = models.run("plan", "--format", "json").json
    (change,) = plan["changes"]
    assert (change["action"], change["reasonCode"], change["jobName"]) == ("none", "overwritten", good)
    assert [(drift["kind"], drift["jobName"]) for drift in plan["drift"]] == [("overwritten", good)]
    assert f"{bad} wrote to its folder gs://models/census" in change["reason"]
    done = models.run("apply", "--wait")
    assert done.code == 1
    assert f"{good}: overwritten: {bad} wrote to its folder gs://models/census" in done.err
    assert accuracies(models) == {"census/model/metrics.json": 0.60}
    # The remedy, word for word.
    assert "run it again with `reconciler rerun census`" in done.err
    assert models.run("rerun", "census").code == 0
    assert models.run("apply", "--wait").code == 0
    assert accuracies(models) == {"census/model/metrics.json": 0.95}
    assert models.run("plan", "--format", "json").json["drift"] == []


def test_apply_is_not_green_when_newer_run_wrote_to_folder_during_its_wait(models: Repository) -> None:
    settings(models, "outputs: shared")
    trainer = (models.root / "trainer/task.py").read_text()
    hold = f"import time, pathlib\nwhile pathlib.Path({str(models.hold)!r}).exists(): time.sleep(0.02)\n"
    models.write("trainer/task.py", trainer + hold)
    models.hold.touch()
    names = []
    for accuracy in ("0.95", "0.60"):
        write(models, f"--accuracy={accuracy}", machine="n1-standard-1")  # two at a time on two cores
        assert models.run("apply").code == 0
        until(lambda: job_of(models)["state"] == "RUNNING")
        names.append(job_of(models)["jobName"])
    write(models, "--accuracy=0.95", machine="n1-standard-1")
    waiting = models.start("apply", "--wait")
    until(lambda: "overwritten" in models.run("plan").out)
    models.hold.unlink()
    _, err = waiting.communicate(timeout=PATIENCE)
    assert waiting.returncode == 1
    assert f"{names[0]}: overwritten: {names[1]} wrote to its folder gs://models/census" in err


def test_look_that_leaves_out_history_knows_run_that_overwrote_and_reads_no_folder_again(
    models: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings(models, "outputs: shared")
    revert(models)
    config = load_config(models.root)
    environment = config.environment(None)
    desired = load_desired(config, environment, [])
    with open_session(config, environment, os.environ, start=True) as session:
        ports = replace(session.ports, least_history=0)
        wanted = wanted_of(desired.jobs)
        seen = look(ports, wanted, full=True)
        state = state_of(session, desired, seen.observed)
        assert set(state.folders.values()) == {"gs://models/census"}
        seen = replace(seen, observed=replace(seen.observed, folders=state.folders))
        keep_summary(ports, seen, wanted)
        short = look(ports, wanted)
        assert not short.full
        monkeypatch.setattr(EngineJobs, "read", lambda *_: pytest.fail("a run is read"))
        plan = plan_of(session, desired, state_of(session, desired, short.observed))
        assert [drift.kind for drift in plan.drift] == ["overwritten"]
