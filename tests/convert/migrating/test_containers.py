"""`reconciler migrate --image`: Python packages in containers, for images past their end."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from reconciler.base.errors import UsageError
from reconciler.cli import run
from reconciler.convert.migrating.containers import (
    Containers,
    framework,
    in_containers,
    moves_to_container,
)
from reconciler.convert.migrating.dependencies import dependencies
from reconciler.convert.migrating.jobs import Migration, Options, migrate
from reconciler.manifests.settings import find_root, load_config
from reconciler.manifests.training_images import (
    has_ended,
    image_warnings,
    training_image_uri,
    training_images,
)
from reconciler.manifests.validate import validate
from reconciler.manifests.yaml_load import load_documents
from reconciler.model.manifest import AIPLATFORM_V1, Manifest, NotedImage
from reconciler.operations.load_desired import desired_jobs
from reconciler.packaging.source_tree import SourceFile

Json = dict[str, Any]
IMAGE = "gcr.io/tide/python@sha256:" + "0" * 64
TODAY = date(2026, 11, 23)
OLD = "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest"
TOKEN = "--token=AIzaSyD-fake0fake0fake0fake0fake0fake0f"  # as an example might contain
ENDED = "us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-11:latest"  # past its end at any time of the test
RAY = "us-docker.pkg.dev/vertex-ai/training/ray-cpu.2-47.py311:latest"

JOB = f"""\
# about the job
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name:   tide-fit}}  # its name
package:
  path: ../code  # the code

# about the spec
spec:
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-4}}
      replicaCount: 1
      # what runs
      pythonPackageSpec:
        executorImageUri: {OLD}  # the image
        pythonModule: tide.fit
        args: [--steps=3]  # few
        env: [{{name: TIDE, value: high}}]
"""
TUNING = f"""\
apiVersion: aiplatform.googleapis.com/v1
kind: HyperparameterTuningJob
metadata: {{name: tide-tuned}}
package: {{path: ../code}}
reconcile:
  notSecret: [/spec/trialJobSpec/workerPoolSpecs/0/pythonPackageSpec/args/0]
spec:
  maxTrialCount: 2
  parallelTrialCount: 1
  studySpec:
    metrics: [{{metricId: loss, goal: MINIMIZE}}]
    parameters: [{{parameterId: rate, doubleValueSpec: {{minValue: 0.1, maxValue: 0.5}}}}]
  trialJobSpec:
    workerPoolSpecs:
      - machineSpec: {{machineType: n1-standard-4}}
        pythonPackageSpec: {{executorImageUri: '{OLD}', pythonModule: tide.fit, args: [{TOKEN}]}}
"""
AI_PLATFORM = """\
apiVersion: ml.googleapis.com/v1
kind: Job
metadata: {name: tide-old}
package: {path: ../code}
spec:
  trainingInput:
    region: us-central1
    scaleTier: STANDARD_1
    runtimeVersion: "2.11"
    pythonVersion: "3.7"
    pythonModule: tide.fit
    args: [--steps=3]
    jobDir: gs://tide/out
"""
POOL = """\
    - machineSpec: {machineType: n1-standard-4}
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with the code of a job."""
    write(tmp_path, "reconciler.yaml", "source: tide\n")
    write(tmp_path, "code/tide/__init__.py", "")
    write(tmp_path, "code/tide/fit.py", "raise SystemExit('run by migrate')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def migrated(
    root: Path, text: str, *, image: str = IMAGE, run: bool = False, today: date = TODAY
) -> Migration:
    write(root, "jobs/job.yaml", text)
    config = load_config(find_root(root))
    return migrate(config, config.environment(None), [], Options(run=run, image=image, today=today))


def new_value(root: Path, text: str) -> Json:
    found = migrated(root, text)
    assert not found.problems
    (document,), problems = load_documents(found.texts["jobs/job.yaml"][1], "")
    assert problems == []
    value: Json = document.value
    return value


def sentences(found: Migration) -> dict[str, str]:
    (job,) = found.jobs
    return {row.source: row.sentence for _, row in job.rows}


def test_package_of_a_custom_job_moves_to_a_container_with_its_comments(root: Path) -> None:
    found = migrated(root, JOB)
    assert (
        found.texts["jobs/job.yaml"][1].decode()
        == f"""\
# about the job
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name:   tide-fit}}  # its name
package:
  path: ../code  # the code
  module: tide.fit

reconcile:
  suspend: true # Moved to another image. Remove this line to run the job again.
# about the spec
spec:
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-4}}
      replicaCount: 1
      # what runs
      containerSpec:
        imageUri: {IMAGE} # the image
        args: ["--steps=3"] # few
        env:
          - {{name: TIDE, value: high}}
"""
    )


@pytest.mark.parametrize("above", [("trainingTaskInputs",), ("trainingTaskInputs", "trialJobSpec")])
def test_package_of_a_pipeline_moves_to_a_container_in_its_inputs(above: tuple[str, ...]) -> None:
    package = {"executorImageUri": OLD, "pythonModule": "tide.fit", "args": ["--steps=3"]}
    job: Json = {"workerPoolSpecs": [{"pythonPackageSpec": package}], "network": "n"}
    for key in reversed(above):
        job = {key: job, "kept": key}
    made = in_containers(job, IMAGE, TODAY)
    assert isinstance(made, Containers)
    inside = made.spec
    for key in above:
        assert inside["kept"] == key
        inside = inside[key]
    assert inside == {
        "workerPoolSpecs": [{"containerSpec": {"imageUri": IMAGE, "args": ["--steps=3"]}}],
        "network": "n",
    }
    assert made.module == "tide.fit"
    old = (*above, "workerPoolSpecs", 0, "pythonPackageSpec", "executorImageUri")
    assert moves_to_container(job)[old] == (*above, "workerPoolSpecs", 0, "containerSpec", "imageUri")


def test_trials_of_a_tuning_job_move_and_pointers_follow(root: Path) -> None:
    new = new_value(root, TUNING)
    assert new["kind"] == "HyperparameterTuningJob"
    assert new["package"] == {"path": "../code", "module": "tide.fit"}
    (pool,) = new["spec"]["trialJobSpec"]["workerPoolSpecs"]
    assert pool["containerSpec"] == {"imageUri": IMAGE, "args": [TOKEN]}
    assert "pythonPackageSpec" not in pool
    place = "/spec/trialJobSpec/workerPoolSpecs/0/containerSpec/args/0"
    assert new["reconcile"] == {"notSecret": [place], "suspend": True}


def test_job_of_ai_platform_moves_with_every_pool_and_its_last_arguments(root: Path) -> None:
    new = new_value(root, AI_PLATFORM)
    assert new["package"] == {"path": "../code", "module": "tide.fit"}
    args = ["--steps=3", "--job-dir", "gs://tide/out"]
    pools = new["spec"]["workerPoolSpecs"]
    assert [pool["containerSpec"] for pool in pools] == [{"imageUri": IMAGE, "args": args}] * 3


def test_report_names_the_end_of_the_image_and_what_the_new_one_needs(root: Path) -> None:
    found = migrated(root, AI_PLATFORM)
    sentence = sentences(found)["runtimeVersion, pythonVersion"]
    assert "ended the availability of tf-cpu.2-11 on 2024-11-15" in sentence
    assert IMAGE in sentence
    assert "TensorFlow 2.11" in sentence
    assert "libraries of the runtime" not in sentences(found)
    (job,) = found.jobs
    assert not any("executorImageUri" in row.target for _, row in job.rows)
    (moved,) = migrated(root, JOB).jobs
    ((line, row),) = moved.rows
    assert (line, row.source) == (15, "pythonPackageSpec.executorImageUri")
    assert "sklearn-cpu.1-6 on 2026-07-11" in row.sentence


def test_migrated_manifest_is_valid_runs_and_is_not_migrated_again(root: Path) -> None:
    write(root, "jobs/job.yaml", JOB.replace(OLD, ENDED))
    assert run(["migrate", "--image", IMAGE, "--run", "--write"]) == 0
    found = validate(root, [root / "jobs"])
    assert not found.problems
    config = load_config(root)
    (job,) = desired_jobs(root, found.manifests, config.environment(None)).jobs
    assert job.manifest.module == "tide.fit"
    after = (root / "jobs/job.yaml").read_text()
    assert run(["migrate", "--image", IMAGE, "--run", "--write"]) == 0
    assert (root / "jobs/job.yaml").read_text() == after


def test_name_in_the_report_is_the_name_of_the_job(root: Path) -> None:
    found = migrated(root, JOB, run=True)
    for path, content in found.contents.items():
        path.write_bytes(content)
    manifests = validate(root, [root / "jobs"]).manifests
    (job,) = desired_jobs(root, manifests, load_config(root).environment(None)).jobs
    assert found.submitted == [job.job_name]


@pytest.mark.parametrize("image", [RAY, "gcr.io/tide/executor:1"])
def test_job_whose_image_is_not_past_its_end_stays(root: Path, image: str) -> None:
    assert migrated(root, JOB.replace(OLD, image)).jobs == []


def test_job_stays_until_the_day_after_its_image_ends(root: Path) -> None:
    assert migrated(root, JOB, today=date(2026, 7, 11)).jobs == []
    assert len(migrated(root, JOB, today=date(2026, 7, 12)).jobs) == 1


def test_pool_with_another_image_keeps_it_in_its_container(root: Path) -> None:
    pool = f"{POOL}      pythonPackageSpec: {{executorImageUri: '{RAY}', pythonModule: tide.fit}}\n"
    first, second = new_value(root, JOB + pool)["spec"]["workerPoolSpecs"]
    assert first["containerSpec"]["imageUri"] == IMAGE
    assert second["containerSpec"] == {"imageUri": RAY}


@pytest.mark.parametrize("line", ["package: {path: ../code}", 'package: {"path": "../code"}  # code'])
def test_package_in_one_line_gets_the_module_in_it(root: Path, line: str) -> None:
    text = JOB.replace("package:\n  path: ../code  # the code", line)
    found = migrated(root, text).texts["jobs/job.yaml"][1].decode()
    assert line.replace("}", ", module: tide.fit}") in found


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (
            JOB.replace("pythonModule", "packageUris: ['gs://tide/code-1.tar.gz']\n        pythonModule"),
            (16, "packageUris"),
            "from a folder of the repository",
        ),
        (
            f"{JOB}{POOL}      pythonPackageSpec: {{executorImageUri: '{OLD}', pythonModule: tide.serve}}\n",
            (20, "pythonModule"),
            "different modules",
        ),
        (
            f"{JOB}{POOL}      containerSpec: {{imageUri: '{IMAGE}'}}\n",
            (20, "containerSpec"),
            "a container of its own",
        ),
        (
            AI_PLATFORM.replace("package: {path: ../code}\n", "").replace(
                "    args", "    packageUris: ['gs://tide/code-1.tar.gz']\n    args"
            ),
            (11, "packageUris"),
            "from a folder of the repository",
        ),
    ],
    ids=["packages elsewhere", "two modules", "a container", "packages of AI Platform"],
)
def test_job_that_containers_cannot_express_is_refused_at_its_place(
    root: Path, text: str, place: tuple[int, str], message: str
) -> None:
    write(root, "code/tide/serve.py", "")
    (problem,) = migrated(root, text).problems
    assert (problem.line, problem.pointer.rpartition("/")[2]) == place
    assert message in problem.message
    assert problem.hint


def test_module_that_only_an_installed_package_has_is_refused(root: Path) -> None:
    write(root, "code/setup.py", "from setuptools import setup\nsetup(package_dir={'': 'src'})\n")
    (root / "code/tide").rename(root / "code/fit")
    (problem,) = migrated(root, JOB).problems
    assert "no module" in problem.message
    assert problem.pointer in ("/package/path", "/spec")


def test_image_past_its_end_is_no_way_out(root: Path) -> None:
    with pytest.raises(UsageError, match="past its end itself"):
        migrated(root, JOB, image=OLD)


def test_without_an_image_jobs_of_vertex_ai_stay(root: Path) -> None:
    assert migrated(root, JOB, image="").jobs == []


def test_report_of_ai_platform_names_the_way_out(root: Path) -> None:
    sentence = sentences(migrated(root, AI_PLATFORM, image=""))["runtimeVersion, pythonVersion"]
    assert "migrate with --image IMAGE" in sentence


@pytest.mark.parametrize(
    ("field", "way_out"),
    [("executorImageUri", "reconciler migrate --image IMAGE"), ("imageUri", "name another image")],
)
def test_warning_of_an_image_past_its_end_names_the_way_out(field: str, way_out: str) -> None:
    placed = NotedImage(("spec", "workerPoolSpecs", 0, field), OLD)
    manifest = Manifest(AIPLATFORM_V1, "CustomJob", "job", {}, images=(placed,))
    (warning,) = image_warnings([manifest], TODAY)
    assert "on 2026-07-11" in warning.message
    assert way_out in warning.hint


# --- Dependencies of the package ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("setup.py", "setup(install_requires=['pandas>=2', 'gcsfs'])", "pandas>=2, gcsfs"),
        ("setup.py", "NEEDS = ('pandas',)\nsetup(install_requires=NEEDS)", "pandas"),
        ("setup.cfg", "[options]\ninstall_requires =\n    pandas\n    gcsfs\n", "pandas, gcsfs"),
        ("pyproject.toml", "[project]\nname = 'tide'\ndependencies = ['pandas']\n", "pandas"),
        ("requirements.txt", "# needed\npandas>=2  # newer\n", "pandas>=2"),
    ],
)
def test_report_lists_what_the_package_installed(root: Path, path: str, text: str, expected: str) -> None:
    write(root, f"code/{path}", text)
    sentence = sentences(migrated(root, JOB))["dependencies of the package"]
    assert f"code/{path} lists: {expected}." in sentence
    assert f"--generate-hashes code/{path} -o code/requirements.lock" in sentence


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("setup.py", "setup(install_requires=open('needs').read().split())"),
        ("setup.py", "setup(install_requires=['pandas', needed()])"),
        ("setup.py", "print 'Python 2'"),
        ("pyproject.toml", "[project]\nname = 'tide'\ndynamic = ['dependencies']\n"),
    ],
)
def test_report_says_that_code_computes_the_dependencies(root: Path, path: str, text: str) -> None:
    write(root, f"code/{path}", text)
    sentence = sentences(migrated(root, JOB))["dependencies of the package"]
    assert f"code/{path} computes what it needs" in sentence


def test_package_without_dependencies_has_no_row_about_them(root: Path) -> None:
    write(root, "code/setup.py", "from setuptools import setup\nsetup(name='tide', packages=['tide'])\n")
    assert "dependencies of the package" not in sentences(migrated(root, JOB))
    assert dependencies([SourceFile("tide/fit.py", False, b"")]) is None


@pytest.mark.parametrize("name", training_images())
def test_every_prebuilt_image_is_named_for_its_framework(name: str) -> None:
    assert framework(name).split()[-1][0].isdecimal()
    end = training_images()[name].end_of_availability
    assert not has_ended(training_image_uri(name, ""), end)
    assert has_ended(training_image_uri(name, ""), date.max)
