"""Migrated jobs run on the training service, and write the same files as the original jobs."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.base.state_dir import prepare_home
from tests.support.repository import Repository

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-11:latest"
# Each replica writes its arguments and its place in the cluster; the primary waits for all files.
TRAINER = """
import json, os, sys, time
from pathlib import Path

config = json.loads(os.environ.get("TF_CONFIG", "{}"))
cluster = config.get("cluster", {"chief": ["here"]})
sizes = {{"master": "chief"}.get(role, role): len(hosts) for role, hosts in cluster.items()}
task = config.get("task", {"type": "chief", "index": 0})
role = {"master": "chief"}.get(task["type"], task["type"])
folder = Path(os.environ["RECONCILER_GCS_DIR"], sys.argv[-1].removeprefix("gs://"))
folder.mkdir(parents=True, exist_ok=True)
content = {"args": sys.argv[1:], "cluster": sizes, "role": role}
new = folder / f"{role}-{task['index']}.new"
new.write_text(json.dumps(content, sort_keys=True))
new.rename(new.with_suffix(".json"))
expected = sum(sizes.values())
while len([*folder.glob("*.json")]) < expected or role == "ps":
    time.sleep(0.02)
"""
JOB = """\
apiVersion: ml.googleapis.com/v1
kind: Job
metadata: {name: tide}
package: {path: ../trainer}
spec:
  trainingInput:
    region: us-central1
    runtimeVersion: "%s"
    pythonVersion: "3.7"
    pythonModule: task
    args: [--rate=0.1, two words]
    jobDir: gs://tide-models/out
%s
"""
CUSTOM = """\
    scaleTier: CUSTOM
    masterType: complex_model_m
    workerType: standard
    workerCount: 2
    parameterServerType: large_model
    parameterServerCount: 1
"""


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the content of each file below a folder, and move the folder away."""
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*.*")
        if path.is_file()
    }
    shutil.rmtree(folder)
    return found


@pytest.mark.parametrize(
    ("tier", "replicas", "runtime"),
    [
        ("    scaleTier: BASIC", 1, "2.11"),
        ("    scaleTier: STANDARD_1", 8, "2.11"),
        (CUSTOM, 4, "1.15"),
    ],
    ids=["BASIC", "STANDARD_1", "CUSTOM"],
)
def test_migrated_job_writes_the_files_of_the_original(
    repository: Repository, tier: str, replicas: int, runtime: str
) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    entry = f'{{python: "{version}", requirements: []}}'
    images = [runtime, IMAGE.replace("2-11", runtime.replace(".", "-"))]
    settings = "buckets: [tide-models]\nimages:\n" + "".join(f'  "{image}": {entry}\n' for image in images)
    repository.write("reconciler.yaml", settings)
    repository.write("trainer/task.py", TRAINER)
    repository.write("jobs/tide.yaml", JOB % (runtime, tier))
    repository.has_jobs = True
    out = repository.home / "gcs/tide-models/out"

    original = repository.run("apply", "--wait")
    assert original.code == 0, original.out + original.err
    expected = files_in(out)
    assert len(expected) == replicas

    done = repository.run("migrate", "--write", "--run")
    assert done.code == 0, done.err
    again = repository.run("apply", "--wait")
    assert again.code == 0, again.out + again.err
    assert files_in(out) == expected
    kinds = {job["kind"] for job in repository.run("status", "--all", "--format", "json").json["jobs"]}
    assert kinds == {"Job", "CustomJob"}


@pytest.fixture
def examples(tmp_path: Path, wheelhouse: Path, environments: Path) -> Iterator[Repository]:
    """Return a copy of the examples of AI Platform."""
    made = Repository(tmp_path / "repository", environments)
    shutil.rmtree(made.root / "trainer")
    for name in ("digits", "digits_tuned"):
        shutil.copytree(ROOT / "jobs/trainers" / name, made.root / "jobs/trainers" / name)
        shutil.copy(ROOT / "jobs" / f"{name.replace('_', '-')}.yaml", made.root / "jobs")
    settings = (ROOT / "reconciler.yaml").read_text("utf-8")
    # The report also names the runtime's entry to write for the image.
    entry = settings[settings.index('  "2.11":') :].partition("\n\n")[0]
    # A migrated job names the folder in its arguments: the files of both are compared in one place.
    settings = settings.replace("outputs: own", "outputs: shared")
    made.write("reconciler.yaml", f"{settings}{entry.replace('2.11', IMAGE, 1)}\n")
    made.has_jobs = True
    prepare_home(made.home)
    yield made
    made.stop()


def test_migrated_examples_write_the_files_of_the_originals(examples: Repository) -> None:
    bucket = examples.home / "gcs/example-models"
    original = examples.run("apply", "--wait")
    assert original.code == 0, original.out + original.err
    expected = files_in(bucket)

    report = examples.run("migrate", "--write", "--run", "--format", "json").json
    advice = [place for job in report["jobs"] for place in job["code"] if place["topic"] == "job-dir"]
    tuned = "jobs/trainers/digits_tuned/digits_tuned/task.py"
    (place,) = [place for place in advice if place["path"] == tuned]
    assert "CLOUD_ML_TRIAL_ID" in place["sentence"]
    images = [
        field["sentence"] for job in report["jobs"] for field in job["fields"] if IMAGE in field["sentence"]
    ]
    assert len(images) == 2
    # Follow the report's advice on the trials' folder.
    code = (examples.root / tuned).read_text("utf-8")
    trial = 'args.job_dir + "/" + os.environ["CLOUD_ML_TRIAL_ID"])'
    (examples.root / tuned).write_text("import os\n" + code.replace("args.job_dir)", trial))

    again = examples.run("apply", "--wait")
    assert again.code == 0, again.out + again.err
    found = files_in(bucket)
    assert sorted(found) == sorted(expected)
    assert len(found) == 2 + 2 * 6
    for name in ("digits/metrics.json", "digits/model.joblib"):
        assert found[name] == expected[name]
    # Sampled values depend on the jobs' names; check each result as before.
    measured = [_metrics(files) for files in (expected, found)]
    for trials in measured:
        assert max(each["accuracy"] for each in trials) > 0.9
        assert all(1e-5 <= each["gamma"] <= 0.1 and 8 <= each["components"] <= 64 for each in trials)


def _metrics(files: dict[str, bytes]) -> list[dict[str, Any]]:
    return [json.loads(files[f"digits-tuned/{number}/metrics.json"]) for number in range(1, 7)]


@pytest.mark.parametrize(
    ("tier", "pools"),
    [
        (
            "PREMIUM_1",
            [("n1-highcpu-16", "1", None), ("n1-highcpu-16", "19", None), ("n1-highmem-8", "11", None)],
        ),
        ("BASIC_GPU", [("n1-standard-8", "1", "NVIDIA_TESLA_T4")]),
        ("BASIC_TPU", [("cloud-tpu", "1", "TPU_V2")]),
    ],
)
def test_request_of_a_migrated_job_has_the_machines_of_its_tier(
    repository: Repository, tier: str, pools: list[tuple[str, str, str | None]]
) -> None:
    repository.write("jobs/tide.yaml", JOB % ("2.11", f"    scaleTier: {tier}"))
    before = repository.run("render", "tide").json["trainingInput"]
    assert repository.run("migrate", "--write").code == 0
    spec = repository.run("render", "tide").json["jobSpec"]
    found = [
        (machine["machineType"], pool["replicaCount"], machine.get("acceleratorType"))
        for pool in spec["workerPoolSpecs"]
        for machine in [pool["machineSpec"]]
    ]
    assert found == pools
    image = IMAGE.replace("cpu", "gpu") if tier == "BASIC_GPU" else IMAGE
    for pool in spec["workerPoolSpecs"]:
        package = pool["pythonPackageSpec"]
        assert package["executorImageUri"] == image
        assert package["pythonModule"] == before["pythonModule"]
        assert package["args"] == [*before["args"], "--job-dir", before["jobDir"]]
        assert [Path(uri).name for uri in package["packageUris"]] == [
            Path(uri).name for uri in before["packageUris"]
        ]
    assert spec["baseOutputDirectory"] == {"outputUriPrefix": before["jobDir"]}
