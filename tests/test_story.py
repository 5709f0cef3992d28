"""Complete path of a user: manifests in a repository, `reconciler` as a process, running jobs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from reconciler.manifests import schemas
from tests.support.repository import Repository
from tests.support.waiting import PATIENCE, until

BAD_MANIFESTS = Path(__file__).parent / "bad_manifests"
ONLY_READING = (
    *(["validate"], ["plan"], ["plan", "--base", "HEAD"], ["render", "census"]),
    *(["status"], ["show", "census"], ["logs", "census"]),
)


def starts(repository: Repository) -> list[str]:
    return repository.starts.read_text().splitlines() if repository.starts.exists() else []


def left_in(repository: Repository) -> set[str]:
    """Return the names in the home of the embedded service."""
    return {entry.name for entry in repository.home.iterdir()} if repository.home.exists() else set()


def actions(repository: Repository) -> dict[str, str]:
    changes = repository.run("plan", "--format", "json").json["changes"]
    return {change["baseName"]: change["action"] for change in changes}


def test_apply_trains_and_a_second_plan_has_nothing_to_do(repository: Repository) -> None:
    repository.job("census", args=["--epochs=3"])
    repository.job("quiet", reconcile="{suspend: true}")
    before = repository.run("plan", "--detailed-exitcode")
    assert before.code == 2
    assert "+ submit census_" in before.out
    assert left_in(repository) == set(), "a plan starts nothing and writes nothing"

    applied = repository.run("apply", "--wait")
    assert applied.code == 0, applied.out + applied.err
    assert starts(repository) == ["start ['--epochs=3']"]
    (name,) = [job for job, state in repository.states().items() if state]
    assert repository.states()[name] == "SUCCEEDED"
    assert name.startswith("census_")
    assert f"SUCCEEDED   {name}" in applied.err

    after = repository.run("plan", "--detailed-exitcode")
    assert (after.code, after.out.splitlines()[-1]) == (0, "Nothing to do: 2 jobs (1 suspended).")
    assert repository.run("apply", "--wait").code == 0
    assert len(starts(repository)) == 1

    log = repository.run("logs", "census")
    assert "training with --epochs=3" in log.out
    assert log.out.splitlines()[-1].endswith("done")


def files_below(folder: Path) -> dict[str, object]:
    """Return each file with its content, and all paths with their time of change."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mtime_ns if path.name != "temporary" else 0,
            path.read_bytes() if path.is_file() and not path.is_symlink() else None,
        )
        for path in folder.rglob("*")
    }


def test_commands_that_only_read_write_nothing_while_no_service_runs(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the checkout and the user's folders; temporary copies are removed."""
    for name, folder in (
        ("HOME", "user"),
        ("XDG_STATE_HOME", "user/state"),
        ("XDG_CACHE_HOME", "user/cache"),
        ("TMPDIR", "temporary"),
    ):
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(name, str(tmp_path / folder))
    with (repository.root / "reconciler.yaml").open("a") as settings:
        settings.write("source: somebody\n")
    repository.job("census")
    repository.git("init", "-q")
    repository.git("add", "--all")
    repository.git("commit", "-q", "-m", "first")
    for has_log in (False, True):
        before = files_below(tmp_path)
        codes = [repository.run(*command).code for command in ONLY_READING]
        assert codes == [0, 0, 0, 0, 0, 0, 0 if has_log else 1]
        assert files_below(tmp_path) == before
        if not has_log:
            assert repository.run("apply", "--wait").code == 0
            assert repository.run("serve", "--stop").code == 0


def test_only_content_makes_a_new_job(repository: Repository) -> None:
    manifest = repository.job("census", args=["--epochs=3"])
    assert repository.run("apply", "--wait").code == 0

    text = manifest.read_text()
    reordered = text.replace("kind: CustomJob\n", "").replace("spec:\n", "kind: 'CustomJob'\nspec:\n")
    manifest.unlink()
    other = repository.write("jobs/deeper/renamed.yml", f"# another comment\n{reordered}")
    moved = (
        other.read_text()
        .replace("../trainer", "../../trainer")
        .replace("replicaCount: 1", 'replicaCount: "1"')
    )
    other.write_text(moved)
    assert actions(repository) == {"census": "none"}

    other.write_text(moved.replace("--epochs=3", "--epochs=4"))
    (change,) = repository.run("plan", "--format", "json").json["changes"]
    assert (change["action"], change["reason"]) == ("submit", "1 field changed")
    pointer = "/workerPoolSpecs/0/pythonPackageSpec/args/0"
    assert change["fields"] == [{"pointer": pointer, "before": "--epochs=3", "after": "--epochs=4"}]

    other.write_text(moved)
    trainer = repository.root / "trainer/task.py"
    trainer.write_text(trainer.read_text() + "\n")
    (change,) = repository.run("plan", "--format", "json").json["changes"]
    assert (change["action"], change["reason"]) == ("submit", "the code changed")


def test_service_killed_while_a_job_runs(repository: Repository) -> None:
    repository.job("census")
    repository.hold.touch()
    assert repository.run("apply").code == 0
    until(lambda: len(starts(repository)) == 1 and set(repository.states().values()) == {"RUNNING"})
    os.kill(repository.service()["pid"], signal.SIGKILL)

    # A killed service is read in its last state, and no process is started to read it.
    assert set(repository.states().values()) == {"RUNNING"}
    assert repository.run("plan", "--detailed-exitcode").code == 0

    waiting = repository.start("apply", "--wait")
    until(lambda: _answers(repository))
    repository.hold.unlink()
    out, err = waiting.communicate(timeout=PATIENCE)
    assert waiting.returncode == 0, out + err
    assert set(repository.states().values()) == {"SUCCEEDED"}
    assert len(starts(repository)) == 1, "the job ran once"


def test_service_killed_while_apply_waits(repository: Repository) -> None:
    repository.job("census")
    repository.hold.touch()
    waiting = repository.start("apply", "--wait")
    until(lambda: len(starts(repository)) == 1)
    first = repository.service()["pid"]
    os.kill(first, signal.SIGKILL)
    until(lambda: _answers(repository) and repository.service()["pid"] != first)
    repository.hold.unlink()
    out, err = waiting.communicate(timeout=PATIENCE)
    assert waiting.returncode == 0, out + err
    assert len(starts(repository)) == 1


def _answers(repository: Repository) -> bool:
    try:
        pid = repository.service()["pid"]
        os.kill(pid, 0)
    except (OSError, ValueError):
        return False
    if not Path("/proc").is_dir():
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it ended since the signal
        return False


def test_a_job_that_ended_while_the_service_was_dead_is_seen_as_ended(repository: Repository) -> None:
    repository.job("census")
    repository.hold.touch()
    repository.run("apply")
    until(lambda: len(starts(repository)) == 1)
    os.kill(repository.service()["pid"], signal.SIGKILL)
    repository.hold.unlink()
    until(lambda: set(repository.states().values()) == {"SUCCEEDED"})


def test_a_failed_training_fails_the_apply_and_says_why(repository: Repository) -> None:
    repository.job("census", args=["--fail"])
    applied = repository.run("apply", "--wait", "--format", "json")
    assert applied.code == 1
    (outcome,) = applied.json["outcomes"]
    assert (outcome["status"], outcome["state"]) == ("applied", "FAILED")
    assert "the loss is NaN" in outcome["error"]
    assert "the loss is NaN" in repository.run("status").out
    assert actions(repository) == {"census": "none"}
    assert repository.run("apply").code == 0
    # A repeated step isn't green after a failed job, however old the failure.
    assert repository.run("apply", "--wait").code == 1


def test_attempts_are_used_up_one_by_one(repository: Repository) -> None:
    repository.job("census", args=["--fail"], reconcile="{attempts: 2}")
    first = repository.run("apply", "--wait")
    assert first.code == 1
    assert first.err.strip().endswith("; the next apply starts attempt 2 of 2")
    assert actions(repository) == {"census": "retry"}
    last = repository.run("apply", "--wait")
    assert last.code == 1
    assert "the next apply starts" not in last.err
    assert actions(repository) == {"census": "none"}
    assert any(name.endswith("_2") for name in repository.states())
    assert len(starts(repository)) == 2


def test_cancel_says_how_the_run_ended(repository: Repository) -> None:
    repository.job("census")
    repository.hold.touch()
    repository.run("apply")
    until(lambda: len(starts(repository)) == 1)
    cancelled = repository.run("cancel", "census")
    assert cancelled.code == 0, cancelled.err
    assert cancelled.out.strip().endswith("ended CANCELLED")
    plan = repository.run("plan", "--format", "json").json
    assert plan["drift"] == []  # the claim records who asked for it
    assert plan["summary"]["submit"] == 0
    assert "had already ended: CANCELLED" in repository.run("cancel", "census").out


def test_json_is_as_the_schemas_say_and_the_same_twice(repository: Repository) -> None:
    repository.job("census", args=["--fail"])
    repository.job("quiet", reconcile="{suspend: true}")
    for name, *command in (
        ("validate-output", "validate", "--format", "json"),
        ("plan-output", "plan", "--format", "json"),
        ("apply-output", "apply", "--wait", "--format", "json"),
        ("status-output", "status", "--format", "json"),
        ("show-output", "show", "census", "--format", "json"),
        ("show-output", "show", "quiet", "--format", "json"),
        ("plan-output", "plan", "--format", "json"),
    ):
        first = repository.run(*command)
        Draft202012Validator(schemas.document(f"{name}.schema.json")).validate(first.json)
        if command[0] != "apply":
            assert repository.run(*command).out == first.out


@pytest.mark.fault(48)
def test_a_stale_plan_is_refused_before_anything_is_done(repository: Repository) -> None:
    manifest = repository.job("census")
    digest = repository.run("plan", "--format", "json").json["digest"]
    manifest.write_text(manifest.read_text().replace("n1-standard-4", "n1-standard-8"))
    refused = repository.run("apply", "--plan-digest", digest)
    assert refused.code == 4
    assert "changed since it was reviewed" in refused.err
    assert set(repository.states().values()) == {None}
    digest = repository.run("plan", "--format", "json").json["digest"]
    assert repository.run("apply", "--wait", "--plan-digest", digest).code == 0


@pytest.mark.fault(21)
def test_a_limit_is_kept_before_anything_is_done(repository: Repository) -> None:
    config = repository.root / "reconciler.yaml"
    config.write_text(config.read_text() + "limits: {submissions: 1}\n")
    repository.job("one")
    repository.job("two")
    refused = repository.run("apply")
    assert refused.code == 4
    assert "submissions: 2" in refused.err
    assert set(repository.states().values()) == {None}


def test_a_broken_manifest_stops_everything_and_hides_nothing(repository: Repository) -> None:
    repository.job("good")
    assert repository.run("apply", "--wait").code == 0
    repository.write("jobs/bad.yaml", "apiVersion: aiplatform.googleapis.com/v1\nkind: CustomJob\n")
    for command in ("validate", "plan", "apply"):
        refused = repository.run(command)
        assert refused.code == 3
        assert "jobs/bad.yaml:1:" in refused.out + refused.err
    assert "SUCCEEDED" in repository.run("status").out


def test_a_commit_is_remembered_with_its_jobs(repository: Repository) -> None:
    repository.job("census")
    repository.git("init", "-q")
    repository.git("add", "-A")
    repository.git("commit", "-q", "-m", "a job")
    assert repository.run("apply", "--wait").code == 0
    (job,) = repository.run("status", "--format", "json").json["jobs"]
    assert job["commit"] == repository.git("rev-parse", "HEAD")


def test_render_prints_what_is_sent(repository: Repository) -> None:
    repository.job("census", args=["--epochs=3"])
    body = repository.run("render", "census").json
    assert body["displayName"].startswith("census_")
    package = body["jobSpec"]["workerPoolSpecs"][0]["pythonPackageSpec"]
    assert package["args"] == ["--epochs=3"]
    (uri,) = package["packageUris"]
    assert uri.startswith("gs://reconciler-staging/reconciler/packages/")
    assert repository.run("apply", "--wait").code == 0
    staged = repository.home / "gcs" / uri.removeprefix("gs://")
    assert staged.is_file()


def test_a_staged_object_with_other_content_is_not_used(repository: Repository) -> None:
    repository.job("census")
    package = repository.run("render", "census").json["jobSpec"]["workerPoolSpecs"][0]["pythonPackageSpec"]
    staged = repository.home / "gcs" / package["packageUris"][0].removeprefix("gs://")
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"somebody else's code")
    refused = repository.run("apply", "--wait")
    assert refused.code == 1
    assert "holds something other" in refused.out
    assert starts(repository) == []


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["status", "nobody"], 1, 'there is no job "nobody"'),
        (["logs", "nobody"], 1, 'there is no job "nobody"'),
        (["cancel", "nobody"], 1, 'there is no job "nobody"'),
        (["render", "nobody"], 1, 'no manifest is named "nobody"'),
        (["schema", "Pod"], 1, "the kinds are"),
        (["plan", "--env", "nowhere"], 64, 'there is no environment "nowhere"'),
        (["plan", "nowhere/"], 64, "nowhere"),
        (["validate", "nowhere/"], 64, "nowhere"),
        (["plan", "trainer/"], 64, "no manifest below trainer"),
        (["apply", "--plan-digest", ""], 64, "not a digest"),
        (["plan", "--what"], 64, "--what"),
        (["nonsense"], 64, "nonsense"),
        ([], 64, "COMMAND"),
    ],
)
def test_what_cannot_be_is_one_clear_line(
    repository: Repository, command: list[str], code: int, said: str
) -> None:
    repository.job("census")
    result = repository.run(*command)
    assert (result.code, said in result.err) == (code, True), result.err
    assert result.out == ""


def test_without_a_jobs_folder_the_message_says_where_manifests_are_kept(repository: Repository) -> None:
    for command in ("validate", "plan", "apply"):
        refused = repository.run(command)
        assert refused.code == 64
        assert "keep the manifests there" in refused.err


def test_a_broken_configuration_is_told_with_its_place(repository: Repository) -> None:
    repository.job("census")
    repository.write("reconciler.yaml", "enviroments: {}\n")
    refused = repository.run("plan")
    assert refused.code == 3
    assert "reconciler.yaml:1:1" in refused.err
    assert "environments" in refused.err


def test_json_logs_are_json(repository: Repository) -> None:
    repository.job("census")
    applied = repository.run("apply", "--wait", "--log-format", "json")
    told = [json.loads(line) for line in applied.err.splitlines()]
    assert [event["event"] for event in told][-1] == "SUCCEEDED"


ML_JOB = """
apiVersion: ml.googleapis.com/v1
kind: Job
metadata: {name: old}
package: {path: ../trainer}
spec:
  trainingInput: {scaleTier: BASIC, runtimeVersion: "2.11", pythonModule: task}
"""


def test_warnings_about_the_settings_count_them_as_a_file(repository: Repository) -> None:
    (repository.root / "jobs").mkdir()
    settings = repository.root / "reconciler.yaml"
    settings.write_text(
        "source: acme-jobs\n"
        + settings.read_text()
        + "environments:\n  far:\n    engine: google\n    project: acme-ml\n    location: us-central9\n"
        "    stagingBucket: acme\n"
    )
    assert repository.run("validate").out.endswith("No manifests found; 1 warning in 1 file.\n")
    manifest = repository.job("census")
    assert repository.run("validate").out.endswith("2 files valid; 1 warning in 1 file.\n")
    manifest.write_text("kind: CustomJob\n")
    assert repository.run("validate").out.endswith("and 1 warning in 2 files of 2.\n")


def test_an_environments_defaults_fill_what_a_manifest_leaves_out_and_change_no_name(
    repository: Repository,
) -> None:
    repository.write("jobs/old.yaml", ML_JOB)
    repository.job("census")
    refused = repository.run("validate")
    assert refused.code == 3
    assert "--region" in refused.out
    config = repository.root / "reconciler.yaml"
    config.write_text(
        config.read_text()
        + "environments:\n  here:\n    engine: local\n    project: jobs-here\n    defaults:\n"
        "      region: europe-west4\n      timeout: 600s\n      baseOutputDirectory: gs://models/out\n"
    )
    assert repository.run("validate", "--env", "here").code == 0
    assert repository.run("validate").code == 3
    old = repository.run("render", "old", "--env", "here").json["trainingInput"]
    assert (old["region"], old["scheduling"]) == ("europe-west4", {"maxRunningTime": "600s"})
    body = repository.run("render", "census", "--env", "here").json
    assert old["jobDir"].startswith("gs://models/out/old_")
    assert body["jobSpec"]["baseOutputDirectory"] == {
        "outputUriPrefix": f"gs://models/out/{body['displayName']}"
    }
    (repository.root / "jobs/old.yaml").unlink()
    assert repository.run("render", "census").json["displayName"] == body["displayName"]


def test_every_bad_manifest_is_told_and_nothing_is_submitted(repository: Repository) -> None:
    shutil.copytree(BAD_MANIFESTS, repository.root / "jobs")
    cases = {case.name for case in BAD_MANIFESTS.iterdir() if case.is_dir()}
    assert len(cases) >= 40
    for command in (["apply", "--wait"], ["plan"]):
        refused = repository.run(*command)
        assert refused.code == 3
        told = re.findall(r"^jobs/([^/]+)/[^:]+:[0-9]+:[0-9]+: .", refused.err, re.MULTILINE)
        assert set(told) == cases
    assert left_in(repository) == set()


def test_what_was_submitted_is_told_even_if_commit_statuses_cannot_be(repository: Repository) -> None:
    repository.job("census")
    config = repository.root / "reconciler.yaml"
    settings = config.read_text()
    config.write_text(settings + "github: {}\n")
    refused = repository.run("apply")
    assert refused.code == 3
    assert "no repository is configured" in refused.err
    assert set(repository.states().values()) == {None}

    config.write_text(settings + "github: {repository: acme/models, apiUrl: 'https://localhost:1'}\n")
    repository.git("init", "-q")
    repository.git("add", "-A")
    repository.git("commit", "-q", "-m", "a job")
    environ = {"GITHUB_TOKEN": "t0ken", "RECONCILER_TOKEN_HOSTS": "localhost:1"}
    applied = repository.run("apply", "--wait", "--format", "json", **environ)
    assert applied.code == 0
    assert [outcome["state"] for outcome in applied.json["outcomes"]] == ["SUCCEEDED"]
    assert "was not posted" in applied.err


def test_a_home_that_cannot_be_is_told(repository: Repository) -> None:
    repository.job("census")
    refused = repository.run("apply", RECONCILER_HOME=str(repository.root / "reconciler.yaml"))
    assert refused.code == 3
    assert "RECONCILER_HOME" in refused.err


def test_following_a_log_ends_with_the_job_though_its_service_was_killed(repository: Repository) -> None:
    repository.job("census")
    repository.hold.touch()
    repository.run("apply")
    until(lambda: len(starts(repository)) == 1)
    os.kill(repository.service()["pid"], signal.SIGKILL)
    following = repository.start("logs", "census", "--follow")
    repository.hold.unlink()
    out, err = following.communicate(timeout=PATIENCE)
    assert following.returncode == 0, err
    assert out.splitlines()[-1].endswith("done")


def test_a_queued_job_says_in_its_log_and_to_a_waiting_apply_what_it_waits_for(
    repository: Repository,
) -> None:
    # The two jobs never fit on a machine together.
    for name in ("a_first", "b_second"):
        path = repository.job(name)
        path.write_text(path.read_text().replace("n1-standard-4", "n1-ultramem-160"))
    repository.hold.touch()
    applying = repository.start("apply", "--wait")
    until(lambda: len(starts(repository)) == 1)
    first, second = sorted(repository.states())
    held = rf"Queued: needs \d+ CPUs?.*; held by {first}"
    following = repository.start("logs", "b_second", "--follow")
    assert following.stdout is not None
    assert re.search(held, following.stdout.readline())
    assert re.fullmatch(rf"\S+ INFO    {held}\n", repository.run("logs", "b_second").out)
    assert applying.stderr is not None
    printed: list[str] = []
    for line in applying.stderr:
        printed.append(line)
        if re.search(rf"QUEUED +{second}  {held}", line):
            break
    else:
        raise AssertionError("".join(printed))
    repository.hold.unlink()
    _, err = applying.communicate(timeout=PATIENCE)
    assert applying.returncode == 0, err
    followed, _ = following.communicate(timeout=PATIENCE)
    assert followed.splitlines()[-1].endswith("done")


def test_a_job_that_is_queued_in_a_stopped_service_waits_for_it(repository: Repository) -> None:
    for name in ("a_first", "b_second"):
        path = repository.job(name)
        path.write_text(path.read_text().replace("n1-standard-4", "n1-ultramem-160"))
    repository.hold.touch()
    repository.run("apply")
    until(lambda: len(starts(repository)) == 1)
    os.kill(repository.service()["pid"], signal.SIGKILL)
    assert "Queued: the embedded training service isn't running." in repository.run("logs", "b_second").out


def test_status_of_a_name_is_its_newest_run_and_needs_no_manifest(repository: Repository) -> None:
    manifest = repository.job("census")
    repository.run("apply", "--wait")
    manifest.write_text(manifest.read_text().replace("n1-standard-4", "n1-standard-8"))
    assert "SUCCEEDED" in repository.run("status", "census").out
    shutil.rmtree(repository.root / "jobs")
    assert "SUCCEEDED" in repository.run("status").out
