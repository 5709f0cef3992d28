"""Warnings about what a job's code needs and its manifest doesn't give."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconciler.base.diagnostics import Problem
from reconciler.base.errors import ExitCode
from reconciler.cli import run
from reconciler.git.index import GitIndex
from reconciler.manifests.places import placed
from reconciler.manifests.settings import load_config
from reconciler.manifests.validate import validate
from reconciler.operations.code_warnings import code_warnings
from reconciler.operations.staged_code import readable_code
from reconciler.packaging import python_syntax
from reconciler.packaging.trainer_code import TrainerReader

FOLDER = {"baseOutputDirectory": {"outputUriPrefix": "gs://acme-models/flowers"}}
STUDY = {"metrics": [{"metricId": "accuracy", "goal": "MAXIMIZE"}]}
NAMED_VARIABLE = 'import os\nD = os.environ["AIP_MODEL_DIR"]\n'
ARGUMENTS = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float)
parser.add_argument("--batch-size", type=int)
{more}
args = parser.parse_args()
"""


def custom_job(args: Any = (), env: Any = (), pools: int = 1, **fields: Any) -> dict[str, Any]:
    package = {
        "executorImageUri": "us-docker.pkg.dev/acme/training/base@sha256:" + "0" * 64,
        "pythonModule": "trainer.task",
        "args": [*args],
        "env": [*env],
    }
    pool = {"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": 1, "pythonPackageSpec": package}
    return {"workerPoolSpecs": [pool] * pools, **fields}


def container_job() -> dict[str, Any]:
    container = {"imageUri": "docker.io/library/python@sha256:" + "0" * 64}
    pool = {"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": 1, "containerSpec": container}
    return {"workerPoolSpecs": [pool]}


def tuning_job(*parameters: str, **fields: Any) -> dict[str, Any]:
    values = [
        {"parameterId": name, "doubleValueSpec": {"minValue": 0.1, "maxValue": 1}} for name in parameters
    ]
    study = {**STUDY, "parameters": values}
    return {
        "studySpec": study,
        "trialJobSpec": custom_job(**fields),
        "maxTrialCount": 4,
        "parallelTrialCount": 2,
    }


def ml_job(**fields: Any) -> dict[str, Any]:
    given = {"scaleTier": "BASIC", "region": "us-central1", "runtimeVersion": "2.11", "pythonVersion": "3.7"}
    return {"trainingInput": {**given, "pythonModule": "trainer.task", **fields}}


def write(root: Path, files: dict[str, str | bytes]) -> None:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        (root / path).write_bytes(data)


def write_job(root: Path, spec: dict[str, Any], name: str = "flowers", **package: str) -> None:
    kind = (
        "Job"
        if "trainingInput" in spec
        else "HyperparameterTuningJob"
        if "studySpec" in spec
        else "CustomJob"
    )
    api = "ml.googleapis.com/v1" if kind == "Job" else "aiplatform.googleapis.com/v1"
    manifest = {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name},
        "package": {"path": "../code", **package},
        "spec": spec,
    }
    write(root, {f"jobs/{name}.yaml": yaml.safe_dump(manifest, sort_keys=False)})


def warnings_in(root: Path) -> list[Problem]:
    environment = load_config(root).environment(None)
    found = validate(root, [root / "jobs"], environment.filled)
    assert not found.problems
    code, problems = readable_code(root, found.manifests)
    assert not problems
    return placed(root, code_warnings(root, code, environment))


def warnings_of(root: Path, code: str | bytes, spec: dict[str, Any], **package: str) -> list[Problem]:
    """Return the warnings of a job with this spec that runs this code."""
    write(root, {"code/trainer/__init__.py": "", "code/trainer/task.py": code})
    write_job(root, spec, **package)
    return warnings_in(root)


# --- Public reports -------------------------------------------------------------------------------------


def test_variable_of_a_folder_that_the_manifest_lacks_is_a_warning_with_the_field(tmp_path: Path) -> None:
    code = 'import os\nprint("model goes to", os.environ["AIP_MODEL_DIR"])\n'
    (warning,) = warnings_of(tmp_path, code, custom_job())
    said = 'code/trainer/task.py:2 reads AIP_MODEL_DIR, which Vertex AI sets only with "baseOutputDirectory"'
    assert (warning.path, warning.line, warning.pointer) == ("jobs/flowers.yaml", 6, "/package/path")
    assert (warning.message, warning.level) == (said, "warning")
    assert warning.hint == 'add to "spec":\nbaseOutputDirectory: {outputUriPrefix: gs://BUCKET/flowers}'
    added = yaml.safe_load(warning.hint.partition("\n")[2].replace("BUCKET", "acme-models"))
    assert warnings_of(tmp_path, code, custom_job(**added)) == []


def test_gs_path_that_is_opened_as_a_file_is_a_warning_with_the_local_path(tmp_path: Path) -> None:
    code = 'import os\nwith open(os.path.join(os.environ["AIP_MODEL_DIR"], "m"), "w") as f: f.write("x")\n'
    (warning,) = warnings_of(tmp_path, code, custom_job(**FOLDER))
    assert warning.message == (
        "code/trainer/task.py:2 passes AIP_MODEL_DIR, a gs:// path, to open(), "
        "which takes paths of files only"
    )
    assert "/gcs/acme-models/…, or use a client of Cloud Storage" in warning.hint
    mended = code.replace('["AIP_MODEL_DIR"]', '["AIP_MODEL_DIR"].replace("gs://", "/gcs/")')
    assert warnings_of(tmp_path, mended, custom_job(**FOLDER)) == []


def test_tf_config_of_a_single_replica_is_a_warning(tmp_path: Path) -> None:
    code = 'import json, os\nc = json.loads(os.environ["TF_CONFIG"]); print(c["task"])\n'
    (warning,) = warnings_of(tmp_path, code, custom_job())
    said = "code/trainer/task.py:2 reads TF_CONFIG, which Vertex AI sets only for several replicas"
    assert warning.message == said
    assert "workerPoolSpecs" in warning.hint
    assert warnings_of(tmp_path, code, custom_job(pools=2)) == []
    mended = code.replace('os.environ["TF_CONFIG"]', 'os.environ.get("TF_CONFIG", "{}")')
    assert warnings_of(tmp_path, mended, custom_job()) == []


# --- Variables ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "variable", "why"),
    [
        (custom_job(), "AIP_CHECKPOINT_DIR", "baseOutputDirectory"),
        (custom_job(), "AIP_TENSORBOARD_LOG_DIR", "baseOutputDirectory"),
        (custom_job(), "AIP_TRAINING_DATA_URI", "inputDataConfig"),
        (custom_job(), "CLOUD_ML_TRIAL_ID", "trials of a tuning job"),
        (tuning_job("rate"), "AIP_MODEL_DIR", "baseOutputDirectory"),
        (ml_job(jobDir="gs://acme/out"), "AIP_MODEL_DIR", "AI Platform doesn't set"),
        (ml_job(), "CLUSTER_SPEC", "custom containers"),
    ],
)
def test_variable_that_the_service_does_not_set_is_a_warning(
    tmp_path: Path, spec: dict[str, Any], variable: str, why: str
) -> None:
    code = f'import os, sys\nprint(os.environ["{variable}"], sys.argv)\n'
    (warning,) = warnings_of(tmp_path, code, spec)
    assert f"task.py:2 reads {variable}, which" in warning.message
    assert why in warning.message


@pytest.mark.parametrize(
    ("spec", "variable"),
    [
        (custom_job(), "CLUSTER_SPEC"),
        (custom_job(), "HOME"),
        (custom_job(env=[{"name": "AIP_MODEL_DIR", "value": "/tmp/model"}]), "AIP_MODEL_DIR"),
        (tuning_job("rate"), "CLOUD_ML_TRIAL_ID"),
        (ml_job(), "TF_CONFIG"),
    ],
)
def test_variable_that_the_job_has_is_no_warning(tmp_path: Path, spec: dict[str, Any], variable: str) -> None:
    code = f'import os, sys\nprint(os.environ["{variable}"], sys.argv)\n'
    assert warnings_of(tmp_path, code, spec) == []


def test_default_folder_of_the_environment_counts_as_given(tmp_path: Path) -> None:
    defaults = "environments: {local: {engine: local, defaults: {baseOutputDirectory: gs://acme-models}}}\n"
    write(tmp_path, {"reconciler.yaml": defaults})
    assert warnings_of(tmp_path, NAMED_VARIABLE, custom_job()) == []


@pytest.mark.parametrize(
    "code",
    [
        'import os\nD = os.environ.get("AIP_MODEL_DIR", "/tmp")\nprint(D + "/x")\n',
        'import os\nD = os.getenv("AIP_MODEL_DIR") or "/tmp"\nprint(D + "/x")\n',
        'import os\nD = os.getenv("AIP_MODEL_DIR")\nif D:\n    print(D + "/x")\n',
        'import os\ntry:\n    D = os.environ["AIP_MODEL_DIR"]\nexcept KeyError:\n    D = "/tmp"\n',
        'import os\nif "AIP_MODEL_DIR" in os.environ:\n    D = os.environ["AIP_MODEL_DIR"]\n',
        'import os\nif "AIP_MODEL_DIR" not in os.environ:\n    exit()\nos.environ["AIP_MODEL_DIR"]\n',
        'import os\nos.environ["AIP_MODEL_DIR"] = "/tmp"\nD = os.environ["AIP_MODEL_DIR"]\n',
        'import os\nos.environ.setdefault("AIP_MODEL_DIR", "/tmp")\nD = os.environ["AIP_MODEL_DIR"]\n',
        'import contextlib, os\nwith contextlib.suppress(KeyError):\n    D = os.environ["AIP_MODEL_DIR"]\n',
        'import os\nD = "/tmp" if os.sep else os.environ["AIP_MODEL_DIR"]\n',
        'import os\ndef unused():\n    return os.environ["AIP_MODEL_DIR"]\n',
        'import os\ndef f():\n    return os.environ["AIP_MODEL_DIR"]\nif os.sep != "/":\n    f()\n',
        '"""Reads os.environ["AIP_MODEL_DIR"]."""\n',
        '# os.environ["AIP_MODEL_DIR"]\n',
    ],
)
def test_code_that_is_prepared_for_the_absence_is_no_warning(tmp_path: Path, code: str) -> None:
    assert warnings_of(tmp_path, code, custom_job()) == []


@pytest.mark.parametrize(
    "code",
    [
        'from os import environ as e, environ\nD = environ["AIP_MODEL_DIR"]\n',
        'import os\nNAME = "AIP_MODEL_DIR"\nD = os.environ[NAME]\n',
        'import os\nD = os.getenv("AIP_MODEL_DIR")\nprint(os.path.join(D, "model"))\n',
        'import os\nD = os.environ.get("AIP_MODEL_DIR").rstrip("/")\n',
        'import os\nD = os.getenv("AIP_MODEL_DIR")\nprint(f"{D}/model")\n',
        'import os\ndef f():\n    return os.environ["AIP_MODEL_DIR"]\nif __name__ == "__main__":\n    f()\n',
        'import os\nclass T:\n    def __init__(self):\n        self.d = os.environ["AIP_MODEL_DIR"]\nT()\n',
        'import os\nrank = 0\nif rank == 0:\n    D = os.environ["AIP_MODEL_DIR"]\n',
        "import argparse, os\np = argparse.ArgumentParser()\n"
        'p.add_argument("--model-dir", default=os.environ["AIP_MODEL_DIR"])\n',
    ],
)
def test_code_that_fails_without_the_variable_is_a_warning(tmp_path: Path, code: str) -> None:
    (warning,) = warnings_of(tmp_path, code, custom_job())
    assert "reads AIP_MODEL_DIR" in warning.message


def test_function_of_another_module_counts_if_the_module_is_imported_and_calls_it(tmp_path: Path) -> None:
    util = 'import os\n\ndef folder():\n    return os.environ["AIP_MODEL_DIR"]\n'
    write(tmp_path, {"code/trainer/util.py": util, "code/other.py": NAMED_VARIABLE})
    (warning,) = warnings_of(tmp_path, "from . import util\nprint(util.folder())\n", custom_job())
    assert "code/trainer/util.py:4 reads" in warning.message
    (warning,) = warnings_of(tmp_path, "from trainer.util import (\n  folder as f,\n)\nf()\n", custom_job())
    assert "code/trainer/util.py:4 reads" in warning.message
    assert warnings_of(tmp_path, "from trainer import util\n", custom_job()) == []
    assert warnings_of(tmp_path, "print(1)\n", custom_job()) == []


def test_folder_that_is_the_package_itself_is_read(tmp_path: Path) -> None:
    write(tmp_path, {"code/task.py": "from trainer.util import D\n", "code/util.py": NAMED_VARIABLE})
    write_job(tmp_path, custom_job())
    (warning,) = warnings_in(tmp_path)
    assert "code/util.py:2 reads" in warning.message


def test_code_below_src_of_a_package_with_its_own_build_is_read(tmp_path: Path) -> None:
    build = "from setuptools import setup\nsetup(package_dir={'': 'src'})\n"
    write(tmp_path, {"code/setup.py": build, "code/src/trainer/task.py": "import trainer.util\n"})
    write(tmp_path, {"code/src/trainer/util.py": NAMED_VARIABLE})
    write_job(tmp_path, custom_job())
    (warning,) = warnings_in(tmp_path)
    assert "code/src/trainer/util.py:2 reads" in warning.message


# --- Paths that are opened ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        'open("gs://acme/x.csv")\n',
        'import os\nD = os.environ["AIP_MODEL_DIR"]\nP = f"{D}/model.txt"\nopen(P, "w")\n',
        'import os\nD = os.getenv("AIP_MODEL_DIR", "/tmp")\nos.makedirs(D + "/model")\n',
        'import os, joblib\njoblib.dump([], os.path.join(os.environ["AIP_MODEL_DIR"], "m.joblib"))\n',
        'import os\nfrom pathlib import Path\n(Path(os.environ["AIP_MODEL_DIR"]) / "m").write_text("x")\n',
        "import argparse, os\np = argparse.ArgumentParser()\n"
        'p.add_argument("--model-dir", default=os.environ["AIP_MODEL_DIR"])\nargs = p.parse_args()\n'
        'open(args.model_dir + "/m", "w")\n',
    ],
)
def test_gs_path_that_a_function_for_files_gets_is_a_warning(tmp_path: Path, code: str) -> None:
    (warning,) = warnings_of(tmp_path, code, custom_job(**FOLDER))
    assert "which takes paths of files only" in warning.message


@pytest.mark.parametrize(
    "code",
    [
        'open("metrics.json", "w")\n',
        'import os, tensorflow as tf\ntf.io.gfile.GFile(os.environ["AIP_MODEL_DIR"] + "m")\n',
        'import os\nfrom fsspec import open\nopen(os.environ["AIP_MODEL_DIR"] + "m")\n',
        'import os\nD = os.environ["AIP_MODEL_DIR"]\nif D.startswith("gs://"):\n    D2 = 1\nopen(D)\n',
        'import os\nD = os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/")\nopen(D)\n',
        'import os\nfrom upath import UPath as Path\nPath(os.environ["AIP_MODEL_DIR"]).write_text("x")\n',
        'import os\nD = os.environ["AIP_MODEL_DIR"]\ndef save(D):\n    open(D)\nsave("x")\n',
        'import os\nD = os.environ["AIP_MODEL_DIR"]\ntry:\n    open(D)\nexcept OSError:\n    pass\n',
    ],
)
def test_path_that_may_be_another_is_no_warning(tmp_path: Path, code: str) -> None:
    assert warnings_of(tmp_path, code, custom_job(**FOLDER)) == []


def test_argument_with_a_gs_path_that_is_opened_is_a_warning(tmp_path: Path) -> None:
    code = ARGUMENTS.format(more='parser.add_argument("--data")') + "open(args.data)\n"
    (warning,) = warnings_of(tmp_path, code, custom_job(["--data=gs://acme/x.csv"]))
    assert "passes --data, a gs:// path, to open()" in warning.message
    assert "/gcs/acme/…" in warning.hint
    assert warnings_of(tmp_path, code, custom_job(["--data", "/gcs/acme/x.csv"])) == []
    assert warnings_of(tmp_path, code, custom_job()) == []


def test_variable_with_a_local_path_of_the_manifest_may_be_opened(tmp_path: Path) -> None:
    env = [{"name": "AIP_MODEL_DIR", "value": "/gcs/acme/models"}]
    code = NAMED_VARIABLE + 'open(D + "m")\n'
    assert warnings_of(tmp_path, code, custom_job(env=env, **FOLDER)) == []


# --- Arguments ------------------------------------------------------------------------------------------

REQUIRED = [
    ARGUMENTS.format(more='parser.add_argument("--job-dir", required=True)'),
    'from absl import flags as f\nf.DEFINE_string("job_dir", None, "")\nf.mark_flag_as_required("job_dir")\n',
    'from absl import flags\nflags.DEFINE_string("job_dir", None, "x", required=True)\n',
    'import click\n@click.command()\n@click.option("--job-dir", required=True)\ndef f(job_dir): ...\nf()\n',
]


@pytest.mark.parametrize("code", REQUIRED)
def test_required_job_dir_that_no_argument_gives_is_a_warning(tmp_path: Path, code: str) -> None:
    (warning,) = warnings_of(tmp_path, code, custom_job(["--rate=1"]))
    assert "needs the argument --job" in warning.message
    assert 'to "args" of "pythonPackageSpec"' in warning.hint
    (warning,) = warnings_of(tmp_path, code, ml_job())
    assert "jobDir: gs://BUCKET/FOLDER" in warning.hint
    spelling = "--job-dir" if "job-dir" in code else "--job_dir"
    assert warnings_of(tmp_path, code, custom_job([f"{spelling}=gs://acme/x"])) == []
    assert warnings_of(tmp_path, code, custom_job([spelling, "gs://acme/x"])) == []
    assert warnings_of(tmp_path, code, ml_job(jobDir="gs://acme/x")) == []


def test_required_argument_of_one_command_of_several_is_no_warning(tmp_path: Path) -> None:
    more = 'sub = parser.add_subparsers().add_parser("x")\nsub.add_argument("--job-dir", required=True)'
    assert warnings_of(tmp_path, ARGUMENTS.format(more=more), custom_job()) == []


def test_parameter_that_the_code_has_no_argument_for_is_a_warning_at_the_parameter(tmp_path: Path) -> None:
    code = ARGUMENTS.format(more="")
    (warning,) = warnings_of(tmp_path, code, tuning_job("rate", "depth"))
    assert warning.pointer == "/spec/studySpec/parameters/1/parameterId"
    assert "--depth, which isn't among the arguments that the code takes" in warning.message
    assert "code/trainer/task.py:3" in warning.message
    hyperparameters = {
        "goal": "MAXIMIZE",
        "hyperparameterMetricTag": "accuracy",
        "maxTrials": 2,
        "params": [{"parameterName": "depth", "type": "DOUBLE", "minValue": 0.1, "maxValue": 1}],
    }
    (warning,) = warnings_of(tmp_path, code, ml_job(hyperparameters=hyperparameters))
    assert warning.pointer == "/spec/trainingInput/hyperparameters/params/0/parameterName"


def test_conditional_parameter_without_an_argument_is_a_warning(tmp_path: Path) -> None:
    spec = tuning_job("rate")
    inner = {"parameterId": "depth", "doubleValueSpec": {"minValue": 0.1, "maxValue": 1}}
    spec["studySpec"]["parameters"][0] = {
        "parameterId": "rate",
        "discreteValueSpec": {"values": [1, 2]},
        "conditionalParameterSpecs": [
            {"parentDiscreteValues": {"values": [1]}, "parameterSpec": inner},
        ],
    }
    (warning,) = warnings_of(tmp_path, ARGUMENTS.format(more=""), spec)
    assert warning.pointer.endswith("/0/conditionalParameterSpecs/0/parameterSpec/parameterId")


def test_parameter_in_the_other_spelling_is_named_because_argparse_refuses_it(tmp_path: Path) -> None:
    code = ARGUMENTS.format(more="")
    task = tmp_path / "code/trainer/task.py"
    (warning,) = warnings_of(tmp_path, code, tuning_job("batch_size"))
    assert "write parameterId: batch-size" in warning.hint
    refused = subprocess.run([sys.executable, task, "--batch_size=3"], capture_output=True, check=False)
    assert b"unrecognized arguments: --batch_size=3" in refused.stderr
    absl = 'from absl import flags\nflags.DEFINE_float("batch_size", 1, "x")\n'
    assert warnings_of(tmp_path, absl, tuning_job("batch_size")) == []


@pytest.mark.parametrize(
    "code",
    [
        ARGUMENTS.format(more='parser.add_argument("--depth-of-tree")'),  # argparse takes a beginning
        ARGUMENTS.format(more="").replace("parse_args()", "parse_known_args()[0]"),
        ARGUMENTS.format(more='for name in "abc":\n    parser.add_argument("--" + name)'),
        ARGUMENTS.format(more="import library\nlibrary.add_arguments(parser)"),
        "import sys\nprint(sys.argv)\n",
        "import fire\nfire.Fire()\n",
        "import library\nlibrary.main_with_args()\nfrom absl import app\n",
    ],
)
def test_code_that_may_take_the_parameter_is_no_warning(tmp_path: Path, code: str) -> None:
    assert warnings_of(tmp_path, code, tuning_job("depth")) == []


def test_parameter_of_code_that_reads_no_arguments_is_a_warning(tmp_path: Path) -> None:
    (warning,) = warnings_of(tmp_path, "print(1)\n", tuning_job("depth"))
    assert "--depth, and code/trainer/task.py reads no arguments" in warning.message


# --- Requirements ---------------------------------------------------------------------------------------


def test_requirements_that_no_container_installs_are_a_warning(tmp_path: Path) -> None:
    write(tmp_path, {"code/requirements.txt": "numpy>=2\n"})
    (warning,) = warnings_of(tmp_path, "print(1)\n", container_job(), module="trainer.task")
    assert warning.message == "nothing installs what code/requirements.txt lists"
    assert 'write "requirements: requirements.lock"' in warning.hint
    write(tmp_path, {"code/requirements.lock": f"numpy==2.0 --hash=sha256:{'0' * 64}\n"})
    locked = {"module": "trainer.task", "requirements": "requirements.lock"}
    assert warnings_of(tmp_path, "print(1)\n", container_job(), **locked) == []
    write(tmp_path, {"code/Dockerfile": "FROM python\nRUN pip install -r requirements.txt\n"})
    assert warnings_of(tmp_path, "print(1)\n", container_job(), module="trainer.task") == []


@pytest.mark.parametrize(
    ("files", "remedy"),
    [
        ({"code/requirements.txt": "numpy>=2\n"}, ""),
        ({"code/requirements.txt": "numpy>=2\n", "code/trainer/requirements.txt": "scipy\n"}, ""),
        ({"code/trainer/requirements.txt": "numpy>=2\n"}, "move it to code/requirements.txt"),
        ({"code/trainer/requirements.txt": "# none\n"}, ""),
        ({"code/tools/requirements.txt": "numpy>=2\n"}, ""),
        (
            {"code/requirements.txt": "numpy\n", "code/setup.py": "import setuptools\nsetuptools.setup()\n"},
            "install_requires",
        ),
        ({"code/requirements.txt": "numpy\n", "code/setup.py": "setup(install_requires=[])\n"}, ""),
        ({"code/requirements.txt": "numpy\n", "code/setup.py": "open('requirements.txt')\n"}, ""),
        ({"code/requirements.txt": "numpy\n", "code/pyproject.toml": "[tool.ruff]\nline-length = 9\n"}, ""),
        (
            {"code/requirements.txt": "numpy\n", "code/pyproject.toml": "[project]\nname = 'x'\n"},
            "install_requires",
        ),
    ],
)
def test_requirements_that_no_package_installs_are_a_warning(
    tmp_path: Path, files: dict[str, str], remedy: str
) -> None:
    write(tmp_path, {**files})
    hints = [warning.hint for warning in warnings_of(tmp_path, "print(1)\n", custom_job())]
    assert len(hints) == bool(remedy)
    assert all(remedy in hint for hint in hints)


# --- Hostile code, and limits ---------------------------------------------------------------------------

HOSTILE = {
    "open brackets": b"(" * 100_000,
    "deep brackets": b"AIP_MODEL_DIR\n" + b"(" * 150 + b")" * 150 + b".a" * 1000,
    "signs": b'x = "AIP_MODEL_DIR"\n' + b"-" * 900_000 + b"1",
    "attributes": b'x = "AIP_MODEL_DIR"\na' + b".b" * 400_000,
    "sum": b'x = "AIP_MODEL_DIR"\n1' + b"+1" * 400_000,
    "alternatives": b'x = "AIP_MODEL_DIR"\nif a: pass\n' + b"elif a: pass\n" * 70_000,
    "lambdas": b'x = "AIP_MODEL_DIR"\n' + b"lambda:" * 100_000 + b"1",
    "many nodes": b'x = "AIP_MODEL_DIR"\n' + b"a," * 150_000,
    "huge": b"#" * 2_000_000,
    "no UTF-8": b"x = '\xff\xfe'\n",
    "zero byte": b'"AIP_MODEL_DIR"\0',
    "no Python": b'os.environ["AIP_MODEL_DIR"',
}


@pytest.mark.parametrize("code", HOSTILE.values(), ids=HOSTILE)
def test_hostile_file_is_a_warning_and_leaves_the_manifest_valid(
    tmp_path: Path, code: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (warning,) = warnings_of(tmp_path, code, custom_job())
    assert "code/trainer/task.py:" in warning.message
    assert "can't be checked: " in warning.message
    monkeypatch.chdir(tmp_path)
    assert run(["validate", "--format", "json"]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["valid"] is True


def test_statement_of_an_import_that_never_ends_is_read_once(tmp_path: Path) -> None:
    code = b"from a import (\n" * 50_000 + b"import " + b"a." * 20_000 + b"a\n"
    assert warnings_of(tmp_path, code, custom_job()) == []


def test_program_of_many_files_is_read_up_to_a_limit(tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(2_000)]
    write(tmp_path, {f"code/{name}.py": NAMED_VARIABLE for name in names})
    imports = "".join(f"import {name}\n" for name in names)
    cut, first = sorted(warnings_of(tmp_path, imports, custom_job()))
    assert "only the first 200 files that trainer.task imports are checked" in first.message
    assert "reads AIP_MODEL_DIR" in cut.message


def test_code_runs_neither_at_validate_nor_at_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trap = f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n{NAMED_VARIABLE}"
    write(tmp_path, {"code/trainer/__init__.py": trap})
    (warning,) = warnings_of(tmp_path, trap, custom_job())
    assert "reads AIP_MODEL_DIR" in warning.message
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert run(["plan"]) == ExitCode.DONE
    assert not (tmp_path / "ran").exists()


def test_link_out_of_the_package_and_fifo_are_never_opened(tmp_path: Path) -> None:
    outside = tmp_path / "secret.py"
    outside.write_text(NAMED_VARIABLE)
    root = tmp_path / "repository"
    write(root, {"code/trainer/task.py": "import trainer.link, trainer.pipe\n"})
    (root / "code/trainer/link.py").symlink_to(outside)
    os.mkfifo(root / "code/trainer/pipe.py")
    write_job(root, custom_job())
    found = validate(root, [root / "jobs"])
    code, problems = readable_code(root, found.manifests)
    assert code == []
    assert ["link.py" in problem.message or "pipe.py" in problem.message for problem in problems] == [
        True
    ] * 2


def test_each_content_is_parsed_once_for_all_manifests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = []
    parse = python_syntax.parse

    def counted(content: bytes) -> Any:
        parsed.append(content)
        return parse(content)

    monkeypatch.setattr("reconciler.packaging.trainer_code.parse", counted)
    write(tmp_path, {"code/trainer/other.py": "print(1)\n"})
    for number in range(5):
        write_job(tmp_path, custom_job(), name=f"job-{number}")
    found = warnings_of(tmp_path, f"from trainer import other\n{NAMED_VARIABLE}", custom_job())
    assert len(found) == 6
    assert len(parsed) == 1


def test_file_without_a_word_that_matters_is_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainerReader, "file_facts", None)
    code = 'import json\nwith open("x.json") as file:\n    print(json.load(file))\n'
    assert warnings_of(tmp_path, code, custom_job(**FOLDER)) == []
    assert warnings_of(tmp_path, NAMED_VARIABLE + 'open("x")\n', custom_job(**FOLDER)) == []


# --- Commands, and published code -----------------------------------------------------------------------


def test_plan_prints_the_warnings_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    warnings_of(tmp_path, NAMED_VARIABLE, custom_job())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert run(["plan"]) == ExitCode.DONE
    assert "jobs/flowers.yaml:6:9: warning: code/trainer/task.py:2 reads" in capsys.readouterr().err


def test_jobs_of_this_repository_have_no_warning() -> None:
    root = Path(__file__).parents[2]
    found = validate(root, [root / "jobs"], index=GitIndex(root, os.environ))
    code, _ = readable_code(root, found.manifests)
    assert len(code) > 5
    assert code_warnings(root, code, load_config(root).environment(None)) == []


@pytest.mark.parametrize(
    ("folder", "module", "is_ml"),
    [
        ("estimator", "task", True),
        ("keras", "task", False),
        ("keras", "together", False),
        ("pytorch", "task", False),
        ("sklearn", "task", False),
        ("xgboost", "task", True),
        ("lightgbm", "trainer.task", False),
    ],
)
def test_published_trainer_has_no_warning(tmp_path: Path, folder: str, module: str, is_ml: bool) -> None:
    trainers = Path(__file__).parents[1] / "trainers"
    write(
        tmp_path,
        {
            f"code/{path.relative_to(trainers / folder)}": path.read_bytes()
            for path in (trainers / folder).rglob("*.py")
        },
    )
    data = ["--data=gs://flowers/iris.csv"]
    spec = ml_job(args=data, jobDir="gs://acme/flowers") if is_ml else custom_job(data, pools=2, **FOLDER)
    text = json.dumps(spec).replace("trainer.task", module)
    write_job(tmp_path, json.loads(text))
    assert warnings_in(tmp_path) == []
