"""`reconciler migrate`: either all manifests are replaced or none is, and they keep their comments."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from reconciler.cli import run
from reconciler.convert.migrating.code_search import Looked, search
from reconciler.convert.migrating.jobs import Migration, Options, migrate
from reconciler.convert.migrating.rewrite import NewDocument, convert, rewritten
from reconciler.manifests.schemas import document
from reconciler.manifests.settings import find_root, load_config
from reconciler.manifests.validate import validate
from reconciler.manifests.yaml_load import load_documents
from reconciler.packaging.source_tree import SourceFile

Json = dict[str, Any]
CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "gcloud" / "flags.jsonl").read_text("utf-8").splitlines()
]
JOB = """\
# about the job
apiVersion: ml.googleapis.com/v1   # the old service
kind: Job
metadata: {name:   tide-fit}  # its name
package:
  path: ../code

# about the spec
spec:
  trainingInput:  # the input
    region: us-central1
    scaleTier: BASIC
    # which TensorFlow
    runtimeVersion: "2.11"
    pythonVersion: "3.7"
    pythonModule: tide.fit
    args:
      - --steps=3   # few
      # about the rate
      - --rate=0.1#no-comment
    jobDir: gs://tide/out  # where it goes
    scheduling:
      priority: 3  # it was urgent
      maxRunningTime: 3600s  # an hour
    # the end
"""
OTHER = """\
# another job
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {name:   other}
spec:
  workerPoolSpecs:  # as it is
  - machineSpec: {machineType: n1-standard-4}
    replicaCount: 1
    containerSpec: {imageUri: 'gcr.io/tide/fit:1'}
"""
POD = """\
    workerType: cloud_tpu
    workerCount: 1
    workerConfig: {acceleratorConfig: {type: TPU_V2_POD, count: 32}}
"""
TUNING = """\
apiVersion: ml.googleapis.com/v1
kind: Job
metadata:
  name: tide-tuned
spec:
  trainingInput:
    region: us-central1
    scaleTier: BASIC
    runtimeVersion: "2.11"
    pythonModule: tide.fit
    packageUris: [gs://tide/code-1.tar.gz]
    hyperparameters:
      goal: MAXIMIZE
      # what is searched
      params:
        - parameterName: rate  # first
          type: DOUBLE
          minValue: 0.1
          maxValue: 0.5
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with the code of a job."""
    write(tmp_path, "reconciler.yaml", "source: tide\n")
    write(tmp_path, "code/tide/__init__.py", "")
    write(tmp_path, "code/tide/fit.py", "raise SystemExit('run by migrate')\n")
    (tmp_path / "jobs").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(root: Path, path: str, text: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode())
    return file


def migrated(root: Path, *, run: bool = False) -> Migration:
    config = load_config(find_root(root))
    return migrate(config, config.environment(None), [], options(run=run))


def options(*, run: bool = False, image: str = "") -> Options:
    return Options(run=run, image=image, today=date(2026, 11, 23))


def new_text(root: Path, text: str, *, run: bool = False) -> str:
    write(root, "jobs/job.yaml", text)
    found = migrated(root, run=run)
    assert found.problems == []
    return found.texts["jobs/job.yaml"][1].decode()


def value(text: str) -> Any:
    (document,), problems = load_documents(text.encode(), "")
    assert problems == []
    return document.value


def test_comments_go_where_their_fields_go(root: Path) -> None:
    assert (
        new_text(root, JOB)
        == """\
# about the job
apiVersion: aiplatform.googleapis.com/v1   # the old service
kind: CustomJob
metadata: {name:   tide-fit}  # its name
package:
  path: ../code

reconcile:
  suspend: true # Migrated from AI Platform. Remove this line to run the job on Vertex AI.
# about the spec
spec: # the input
  workerPoolSpecs:
    - machineSpec: {machineType: n1-standard-4}
      replicaCount: 1
      pythonPackageSpec:
        # which TensorFlow
        executorImageUri: us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-11:latest
        pythonModule: tide.fit
        args:
          - "--steps=3" # few
          # about the rate
          - "--rate=0.1#no-comment"
          - "--job-dir"
          - gs://tide/out
  # it was urgent
  scheduling: {timeout: "3600s"} # an hour
  baseOutputDirectory: # where it goes
    outputUriPrefix: gs://tide/out
  # the end
"""
    )


def test_parts_that_do_not_change_keep_their_bytes(root: Path) -> None:
    before = {
        line for line in JOB.split("spec:\n")[0].splitlines() if "Version" not in line and "kind" not in line
    }
    assert before <= set(new_text(root, JOB).splitlines())


def comments_of(text: str) -> list[str]:
    return sorted(re.findall(r"(?:^|\s)(# ?[a-z][^\n]*)", text, re.MULTILINE))


@pytest.mark.parametrize(
    "text",
    [
        JOB.replace("\n", "\r\n"),
        "\ufeff" + JOB,
        JOB.replace("pythonModule: tide.fit", 'pythonModule: "tide.\\\n      fit"  # folded'),
        JOB.replace("args:\n", "args:  # behind a key\n"),
        JOB.replace(
            "    args:\n      - --steps=3   # few\n", "    args:\n      - |  # a block\n        # inside\n"
        ),
        JOB.replace("# about the spec\n", "# about the spec\n# in two lines\n"),
        "# file\n---\n" + JOB + "...\n# behind\n",
        JOB.replace("    # the end\n", "    # the end\n# the very end\n"),
        TUNING + "---\n" + JOB + "---\n# other\n" + JOB.replace("tide-fit", "tide-other"),
    ],
    ids=["crlf", "mark", "folded", "key", "block", "two", "markers", "end", "several"],
)
def test_each_comment_is_kept_once(root: Path, text: str) -> None:
    after = new_text(root, text)
    assert comments_of(after) == comments_of(text)
    assert after.count("\r\n") == (after.count("\n") if "\r\n" in text else 0)
    assert after.startswith("\ufeff") == text.startswith("\ufeff")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("reconcile: {attempts: 2}\n", "reconcile: {suspend: true, attempts: 2}\n"),
        ("reconcile: {}\n", "reconcile: {suspend: true}\n"),
        ("reconcile: {suspend: false}\n", "reconcile: {suspend: true}\n"),
        ("reconcile:\n  attempts: 2 # two\n", "  suspend: true # Migrated from"),
        ("reconcile:\n  suspend: false\n", "  suspend: true # Migrated from"),
        ("reconcile:\n  suspend: false # no\n", "  suspend: true # no\n"),
        ("reconcile:\n  suspend: true # why\n", "reconcile:\n  suspend: true # why\n"),
        ("", "reconcile:\n  suspend: true # Migrated from"),
    ],
)
def test_migrated_job_is_suspended_with_a_comment(root: Path, policy: str, expected: str) -> None:
    after = new_text(root, JOB.replace("package:", f"{policy}package:"))
    assert expected in after
    assert value(after)["reconcile"]["suspend"] is True
    assert ("Migrated from AI Platform" in after) == ("suspend: true" not in policy)
    assert migrated(root).submitted == []


def test_expectations_keep_their_bytes(root: Path) -> None:
    expect = "expect:\n  # of the study\n  training/hptuning/metric: {min:   0.9} # good\n"
    after = new_text(root, TUNING.replace("spec:", f"{expect}spec:", 1))
    assert expect in after
    assert value(after)["expect"] == {"training/hptuning/metric": {"min": 0.9}}


def test_run_suspends_no_job_that_was_not_suspended(root: Path) -> None:
    write(
        root,
        "jobs/held.yaml",
        JOB.replace("tide-fit", "held").replace("package:", "reconcile: {suspend: true}\npackage:"),
    )
    assert "reconcile" not in value(new_text(root, JOB, run=True))
    (name,) = migrated(root, run=True).submitted
    assert re.fullmatch("tide_fit_[0-9a-f]{16}", name)
    run(["migrate", "--write", "--run", "-q"])
    (manifest, held) = sorted(
        validate(root, [root / "jobs"]).manifests, key=lambda each: each.name, reverse=True
    )
    assert (manifest.reconcile.suspend, held.reconcile.suspend) == (False, True)


@pytest.mark.parametrize(
    "text",
    [
        TUNING.replace(
            "      params:\n        - parameterName: rate  # first\n          type",
            "      params:\n          parameterName: rate  # first\n          type",
        ),
        TUNING + "    jobDir: null\n    masterConfig:\n",
        TUNING + "          scaleType: null\n    useChiefInTfConfig: null\n",
        TUNING.replace("goal: MAXIMIZE\n", "goal: MAXIMIZE\n      algorithm: ALGORITHM_UNSPECIFIED\n"),
    ],
    ids=["mapping for a list", "null", "null deeper", "unspecified"],
)
def test_other_forms_of_a_spec_become_the_same_spec(root: Path, text: str) -> None:
    assert text != TUNING
    assert value(new_text(root, text))["spec"] == value(new_text(root, TUNING))["spec"]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(value(JOB)),
        "# about it\n{apiVersion: ml.googleapis.com/v1, kind: Job, metadata: {name: a},\n"
        " package: {path: ../code}, spec: {trainingInput: {region: us-central1,\n"
        "   scaleTier: BASIC, runtimeVersion: '2.11', pythonModule: tide.fit}}} # behind\n",
        JOB.replace("metadata: {name:   tide-fit}", "metadata: &m {name: tide-fit}"),
        JOB.replace('"3.7"', '&v "3.7"').replace("      - --steps=3 ", "      - *v "),
        JOB.replace("  trainingInput:  # the input\n", "  trainingInput: &i\n"),
    ],
    ids=["json", "braces", "anchor", "alias", "anchor of the input"],
)
def test_every_layout_is_migrated(root: Path, text: str) -> None:
    after = new_text(root, text)
    assert value(after)["apiVersion"] == "aiplatform.googleapis.com/v1"
    assert comments_of(after) == comments_of(text)


def test_policy_behind_an_alias_is_written_anew(root: Path) -> None:
    text = JOB.replace("metadata: {name:   tide-fit}", "metadata: {name: tide-fit, labels: &p {rerun: two}}")
    policy = value(new_text(root, text.replace("package:", "reconcile: *p\npackage:")))["reconcile"]
    assert policy == {"suspend": True, "rerun": "two"}
    text = JOB.replace("package:", "reconcile: {rerun: &r again} # why\npackage:")
    after = new_text(root, text.replace("--steps=3 ", "*r "))
    assert value(after)["spec"]["workerPoolSpecs"][0]["pythonPackageSpec"]["args"][0] == "again"
    assert comments_of(after) == sorted([*comments_of(JOB), "# why"])


def test_other_documents_of_a_file_stay(root: Path) -> None:
    other = OTHER
    after = new_text(root, f"{other}---\n{JOB}---\n{TUNING}")
    assert after.startswith(f"{other}---\n# about the job\n")
    assert after.count("\n---\n") == 2


def test_write_replaces_the_files_and_a_second_migration_changes_nothing(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(root, "jobs/job.yaml", JOB)
    file.chmod(0o640)
    assert run(["migrate"]) == 0
    shown = capsys.readouterr().out
    assert file.read_text() == JOB
    assert "+kind: CustomJob\n" in shown
    assert shown.endswith(
        "The next apply submits none of these jobs: remove suspend from those that are to run.\n"
    )
    assert run(["migrate", "--write"]) == 0
    assert "+kind" not in capsys.readouterr().out
    after = file.read_text()
    assert value(after)["kind"] == "CustomJob"
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in file.parent.iterdir()] == ["job.yaml"]
    assert run(["migrate", "--write"]) == 0
    assert capsys.readouterr().out == "There is nothing to migrate in 1 file.\n"
    assert file.read_text() == after
    assert run(["validate"]) == 0


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (JOB.replace('"2.11"', '"1.14"').replace('"3.7"', '"3.5"'), "14:21", "has no image on Vertex AI"),
        (
            TUNING.replace("goal: MAXIMIZE", "goal: MAXIMIZE\n      hyperparameterMetricTag: my loss"),
            "14:32",
            "blank",
        ),
        (
            TUNING.replace("goal: MAXIMIZE", "goal: MAXIMIZE\n      algorithm: GRID_SEARCH"),
            "18:17",
            "grid search",
        ),
        (
            JOB.replace("BASIC", "CUSTOM\n    masterType: n1-standard-8") + POD,
            "29:46",
            "TPU_V2_POD",
        ),
    ],
    ids=["runtime", "metric", "grid search", "pod"],
)
def test_nothing_is_written_while_a_job_needs_a_decision(
    root: Path, capsys: pytest.CaptureFixture[str], text: str, place: str, words: str
) -> None:
    files = {
        write(root, "jobs/a.yaml", JOB.replace("tide-fit", "good")): "",
        write(root, "jobs/b.yaml", text): "",
    }
    before = {file: file.read_text() for file in files}
    assert run(["migrate", "--write"]) == 3
    out, err = capsys.readouterr()
    assert {file: file.read_text() for file in files} == before
    assert f"jobs/b.yaml:{place}" in err
    assert words in err
    assert "migrated" in err
    assert out == "" or "Nothing is written" in out


def test_invalid_manifest_is_named_and_nothing_is_migrated(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root, "jobs/a.yaml", JOB)
    write(root, "jobs/b.yaml", JOB.replace("scaleTier", "scaleTear"))
    assert run(["migrate", "--write"]) == 3
    assert "jobs/b.yaml:12:5" in capsys.readouterr().err
    assert (root / "jobs/a.yaml").read_text() == JOB


def test_file_that_cannot_be_replaced_leaves_the_others(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [write(root, f"jobs/{name}.yaml", JOB.replace("tide-fit", name)) for name in ("a", "b")]
    before = [file.read_text() for file in files]
    change_mode = os.chmod

    def fails_for_the_second(path: str, *arguments: Any, **more: Any) -> None:
        if path.startswith("b.yaml."):
            raise PermissionError(1, "not allowed")
        change_mode(path, *arguments, **more)

    monkeypatch.setattr(os, "chmod", fails_for_the_second)
    assert run(["migrate", "--write"]) == 1
    assert [file.read_text() for file in files] == before
    assert sorted(path.name for path in (root / "jobs").iterdir()) == ["a.yaml", "b.yaml"]


def test_pointers_to_values_that_are_no_secret_move(root: Path) -> None:
    value_like_secret = "--token=AIzaSyD-fake0fake0fake0fake0fake0fake0f"
    text = JOB.replace("      - --steps=3 ", f"      - {value_like_secret} ").replace(
        "package:", "reconcile:\n  # no token\n  notSecret: [/spec/trainingInput/args/0]\npackage:"
    )
    after = new_text(root, text)
    pointer = "/spec/workerPoolSpecs/0/pythonPackageSpec/args/0"
    assert value(after)["reconcile"]["notSecret"] == [pointer]
    assert "# no token" in after


def test_environment_in_another_location_is_reported(root: Path) -> None:
    settings = "{engine: google, project: tide-ml, location: europe-west4, stagingBucket: tide-staging}"
    write(root, "reconciler.yaml", f"source: tide\nenvironments:\n  prod: {settings}\n")
    write(root, "jobs/job.yaml", JOB)
    config = load_config(find_root(root))
    sentences = {}
    for name in ("prod", "local"):
        (job,) = migrate(config, config.environment(name), [], options()).jobs
        ((_, row),) = [each for each in job.rows if each[1].source == "region"]
        sentences[row.verdict] = row.sentence
    assert "in europe-west4, so the job would run there" in sentences["changes behaviour"]
    assert "should be us-central1" in sentences["translated"]


# --- Formats --------------------------------------------------------------------------------------------


def test_json_has_fields_code_and_diff(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(root, "jobs/job.yaml", JOB)
    assert run(["migrate", "--run", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    Draft202012Validator(document("migrate-output.schema.json")).validate(found)
    (job,) = found["jobs"]
    assert (job["name"], job["path"], job["line"], job["kind"]) == (
        "tide-fit",
        "jobs/job.yaml",
        2,
        "CustomJob",
    )
    assert found["submitted"] == [job["jobName"]]
    assert found["written"] is False
    assert {"source", "target", "verdict", "sentence", "line"} == set(job["fields"][0])
    lines = {field["source"]: field["line"] for field in job["fields"]}
    assert (lines["scheduling.priority"], lines["jobDir"]) == (23, 21)
    (file,) = found["files"]
    assert "\n+kind: CustomJob\n" in file["diff"]


def test_markdown_is_inert_and_ends_with_the_jobs(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = JOB.replace("--steps=3", '"--note=```\\n<img src=x>@octocat"').replace(
        "us-central1", "us-east1"
    )
    write(root, "jobs/job.yaml", hostile)
    assert run(["migrate", "--run", "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert "| field | becomes | verdict | next step |" in out
    assert re.search(r"The next apply submits <code>tide.*[0-9a-f]{4}</code>\.$", out.rstrip())
    prose = re.sub(r"^(`{3,})diff\n.*?^\1$", "", out, flags=re.MULTILINE | re.DOTALL)
    assert "<img" not in prose
    assert "@octocat" not in prose


def test_report_text_has_a_line_for_each_field_that_differs(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root, "jobs/job.yaml", JOB)
    run(["migrate"])
    out = capsys.readouterr().out
    assert (
        "jobs/job.yaml:2: tide-fit becomes a CustomJob\n  lost\n    jobs/job.yaml:23: scheduling.priority\n"
        in out
    )
    assert "  exact\n    scaleTier, packageUris, pythonModule, args\n" in out


# --- Code -----------------------------------------------------------------------------------------------

SOURCE = b"""\
import argparse, json, os
raise SystemExit('run by migrate')
parser = argparse.ArgumentParser()
parser.add_argument("--job-dir")
config = json.loads(os.environ["TF_CONFIG"])
if config["task"]["type"] in ("master", "chief"):
    folder = config["job"]["job_dir"]
folder = config.get("job", {}).get("job_dir")
HyperTune().report_hyperparameter_tuning_metric(hyperparameter_metric_tag="loss", metric_value=1)
HyperTune().report_hyperparameter_tuning_metric("accuracy", 1)
tf.summary.scalar("accuracy", 1)
tf.distribute.cluster_resolver.TPUClusterResolver(tpu="grpc://x")
"""


def found_in(content: bytes, **looked: Any) -> list[tuple[int, str]]:
    given = {"replicas": 1, "job_dir": False, **looked}
    places = search([SourceFile("t.py", False, content)], "code", Looked(**given))
    assert all(place.path in ("code/t.py", "") for place in places)
    return [(place.line, place.topic) for place in places]


def test_places_in_the_code_are_shown_by_line() -> None:
    assert found_in(SOURCE) == [(5, "TF_CONFIG"), (6, "chief"), (7, "TF_CONFIG"), (8, "TF_CONFIG")]
    tuned = found_in(SOURCE, metric="accuracy", job_dir=True, on_tpu=True)
    added = [(4, "job-dir"), (9, "metric"), (10, "metric"), (11, "metric"), (12, "TPU")]
    assert sorted(tuned) == sorted([*found_in(SOURCE), *added])


def test_metric_under_another_name_is_shown() -> None:
    (_, other, same, summary) = search([SourceFile("t.py", False, SOURCE)], "", Looked(1, True, "accuracy"))[
        -4:
    ]
    assert "reports the metric loss, but the manifest names accuracy" in other.sentence
    assert "as Vertex AI wants it" in same.sentence
    assert "TensorFlow summaries" in summary.sentence


def test_code_that_reports_nothing_is_shown_for_a_tuning_job() -> None:
    assert found_in(b"print(1)\n", metric="accuracy") == [(0, "metric")]
    assert found_in(b"print(1)\n") == []


@pytest.mark.parametrize("content", [b"print 'two'\n", b"\xff\n", b"(" * 10_000, b"x = 1\0\n"])
def test_file_that_is_no_python_3_is_named_as_not_searched(content: bytes) -> None:
    (place,) = found_in(content)
    assert place[1] == "not searched"


def test_package_is_searched_and_not_run(root: Path) -> None:
    write(root, "code/tide/fit.py", SOURCE.decode())
    write(root, "code/tide/ignored/other.py", SOURCE.decode())
    write(root, "code/.gitignore", "ignored/\n")
    new_text(root, JOB)
    (job,) = migrated(root).jobs
    assert {place.path for place in job.code} == {"code/tide/fit.py"}
    assert [place.line for place in job.code] == [4, 5, 6, 7, 8]


def test_code_outside_the_repository_is_said_not_to_be_searched(root: Path) -> None:
    write(root, "jobs/job.yaml", TUNING)
    (job,) = migrated(root).jobs
    assert [place.topic for place in job.code] == ["not searched"]


# --- Laws -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [each for each in CASES if each["id"].startswith("aip-") and "body" in each],
    ids=lambda each: each["id"],
)
def test_jobs_of_gcloud_are_migrated_or_refused_with_a_reason(
    root: Path, case: Json, capsys: pytest.CaptureFixture[str]
) -> None:
    from reconciler.convert.importing.manifest import yaml_text
    from reconciler.convert.importing.tidy_spec import tidy
    from reconciler.model.manifest import ML_V1

    spec = tidy(ML_V1, "Job", {"trainingInput": case["body"]["trainingInput"]})
    manifest = {"apiVersion": ML_V1, "kind": "Job", "metadata": {"name": "tide"}, "spec": spec}
    write(root, "jobs/job.yaml", yaml_text(manifest))
    if validate(root, [root / "jobs"]).problems:
        return
    code = run(["migrate", "--write", "-q"])
    assert code in (0, 3), capsys.readouterr()
    if code == 0:
        assert validate(root, [root / "jobs"]).problems == ()
        assert "ml.googleapis" not in (root / "jobs/job.yaml").read_text()


COMMENT = st.sampled_from(["", "  # one", " # two: [", "\n      # three"])


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(COMMENT, min_size=12, max_size=12), st.booleans())
def test_comments_anywhere_are_kept(comments: list[str], flow: bool) -> None:
    left = iter(comments)
    text = re.sub(
        r"(?<=[a-z0-9:\"])$",
        lambda _: next(left, ""),
        TUNING.replace("      # what is searched\n", ""),
        flags=re.MULTILINE,
    )
    if flow:
        text = text.replace("goal: MAXIMIZE", "goal: MAXIMIZE\n      algorithm: RANDOM_SEARCH")
    (document,), problems = load_documents(text.encode(), "")
    assert problems == []
    found = convert(document.value["spec"]["trainingInput"], "tide", has_labels=False)
    new = {**document.value, "spec": found.spec}
    moves = {("spec", "trainingInput", *old): ("spec", *place) for old, place in found.report.moves.items()}
    after = rewritten(text.encode(), [NewDocument(1, new, {**moves, ("spec", "trainingInput"): ("spec",)})])
    assert comments_of(after.decode()) == comments_of(text)


# Is killed before the renaming of a given number.
KILLED = """
import os, signal, sys
from reconciler.__main__ import main

numbers = iter(range(int(os.environ["KILLED_AT"]), -1, -1))
rename = os.replace
def replace(source, target, **more):
    if os.fspath(target).endswith(".yaml") and next(numbers) == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target, **more)
os.replace = replace
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_migration_that_was_killed_at_a_file_is_completed_by_another(root: Path, number: int) -> None:
    """Until then, git adds only whole manifests of the migration."""
    names = ("a", "b", "c", "d")
    for name in names:
        write(root, f"jobs/{name}.yaml", JOB.replace("tide-fit", name))
    whole = {path: after for path, (_, after) in migrated(root).texts.items()}

    def started(*arguments: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "KILLED_AT": str(number)}
        return subprocess.run(
            [sys.executable, *arguments, "migrate", "--write"],
            cwd=root,
            env=environ,
            capture_output=True,
            text=True,
        )

    git = partial(subprocess.run, cwd=root, check=True, capture_output=True, text=True)
    git(["git", "init", "-q"])
    git(["git", "add", "jobs"])
    assert started("-c", KILLED).returncode == -9
    changed = git(["git", "status", "--porcelain", "--untracked-files=all", "--", "jobs"]).stdout.splitlines()
    assert [line for line in changed if line[:2] != "A "] == [
        f"AM jobs/{name}.yaml" for name in names[:number]
    ]
    assert migrated(root).texts.keys() == {f"jobs/{name}.yaml" for name in names[number:]}, "it only reads"
    assert (root / ".git" / "reconciler-writes").exists()
    again = started("-m", "reconciler")
    assert again.returncode == 0, again.stderr
    left = f"{4 - number} files" if number < 3 else "1 file"
    said = f"an earlier migration was killed before it had replaced {left}; this one has completed it"
    assert again.stderr.splitlines()[-1:] == [f"reconciler: {said}"]
    assert {path: (root / path).read_bytes() for path in whole} == whole
    assert not (root / ".git" / "reconciler-writes").exists()
    assert "nothing to migrate" in started("-m", "reconciler").stdout
