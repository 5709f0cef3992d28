"""Unmodified cloud trainers in real jobs: for `make trainers`, not for `make test`.

The jobs name images and runtimes of the cloud, without entries in reconciler.yaml, and all data and models
are at gs:// addresses. The images' packages come from the user's own package index.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconciler.base.state_dir import prepare_home
from reconciler.training_service.environments.prepare import pythons
from tests.support.documented import documented
from tests.support.repository import Repository

HERE = Path(__file__).resolve().parent
KEPT = HERE.parents[1] / ".venv" / "trainers"
DEADLINE = 1800.0  # includes the installation of a framework
USERS = dict(os.environ)  # before the tests' fixtures change them
OF_INSTALLERS = ("SSL_CERT_FILE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
IMAGES = "us-docker.pkg.dev/vertex-ai/training/"
DATA = "gs://flowers/iris.csv"

AI_PLATFORM = "ml.googleapis.com/v1"
VERTEX_AI = "aiplatform.googleapis.com/v1"


@dataclass(frozen=True)
class Trainer:
    """Trainer and its job.

    Attributes:
        title: Its title in the table.
        storage: Its access to gs://, for the table.
        image: The executor image's last part, or a runtime's version.
        folder: The folder of its package.
        made: Patterns of the objects that it writes to gs://models/.
        kind: CustomJob and HyperparameterTuningJob of Vertex AI, Job of AI Platform.
        tuned: Parameters of the job's trials, by name: type, minimum and maximum.
        trials: The number of its trials; each writes the objects of `made`.
    """

    title: str
    storage: str
    image: str
    folder: str
    made: Sequence[str]
    kind: str = "CustomJob"
    module: str = "task"
    args: Sequence[str] = (f"--data={DATA}",)
    workers: int = 0
    tuned: Mapping[str, tuple[str, float, float]] | None = None
    trials: int = 0

    @property
    def name(self) -> str:
        """The job's name."""
        return re.sub("[^a-z0-9]+", "-", self.title.lower()).strip("-")

    def manifest(self) -> Mapping[str, Any]:
        """Return the job as users write it."""
        api = AI_PLATFORM if self.kind == "Job" else VERTEX_AI
        spec = {"CustomJob": self._job, "Job": self._ml_job, "HyperparameterTuningJob": self._tuning_job}
        head = {"apiVersion": api, "kind": self.kind, "metadata": {"name": self.name}}
        return {**head, "package": {"path": f"../{self.folder}"}, "spec": spec[self.kind]()}

    def _job(self) -> Mapping[str, Any]:
        package = {
            "executorImageUri": f"{IMAGES}{self.image}:latest",
            "pythonModule": self.module,
            "args": [*self.args],
        }
        pools = [
            {"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": n, "pythonPackageSpec": package}
            for n in (1, self.workers)
            if n
        ]
        output = {"outputUriPrefix": f"gs://models/{self.name}"}
        return {"workerPoolSpecs": pools, "baseOutputDirectory": output}

    def _tuning_job(self) -> Mapping[str, Any]:
        types = {"INTEGER": "integerValueSpec", "DOUBLE": "doubleValueSpec"}
        assert self.tuned is not None
        parameters = [
            {"parameterId": name, types[kind]: {"minValue": low, "maxValue": high}}
            for name, (kind, low, high) in self.tuned.items()
        ]
        study = {"metrics": [{"metricId": "accuracy", "goal": "MAXIMIZE"}], "parameters": parameters}
        numbers = {"maxTrialCount": self.trials, "parallelTrialCount": 2}
        return {"studySpec": study, "trialJobSpec": self._job(), **numbers}

    def _ml_job(self) -> Mapping[str, Any]:
        tuned = [
            {"parameterName": name, "type": kind, "minValue": low, "maxValue": high}
            for name, (kind, low, high) in (self.tuned or {}).items()
        ]
        search = {"goal": "MAXIMIZE", "hyperparameterMetricTag": "accuracy", "params": tuned}
        given = {
            "scaleTier": "BASIC",
            "region": "us-central1",
            "runtimeVersion": self.image,
            "pythonVersion": "3.7",
            "pythonModule": self.module,
            "args": [*self.args],
            "jobDir": f"gs://models/{self.name}",
        }
        if tuned:
            given["hyperparameters"] = {**search, "maxTrials": self.trials, "maxParallelTrials": 2}
        return {"trainingInput": given}


ESTIMATOR = Trainer(
    "TensorFlow 1 estimator with `--job-dir`",
    "TensorFlow",
    "1.15",
    "estimator",
    ["checkpoint", "model.ckpt-400.index", "export/export/*/saved_model.pb"],
    kind="Job",
)
KERAS = Trainer(
    "Keras 3",
    "TensorFlow",
    "tf-cpu.2-17.py310",
    "keras",
    [
        *("model/model.keras", "model/saved/saved_model.pb", "model/saved/variables/variables.index"),
        *("checkpoints/checkpoint", "checkpoints/ckpt-1.index", "checkpoints/best.keras"),
        "logs/train/events.out.tfevents*",
    ],
    args=["--data=gs://flowers"],
)
KERAS_TWO = Trainer(
    "Keras, two replicas",
    "TensorFlow",
    "tf-cpu.2-17.py310",
    "keras",
    ["checkpoints/total-1.index", "checkpoints/worker-0/total-1.index"],
    module="together",
    args=(),
    workers=1,
)
PYTORCH = Trainer(
    "PyTorch", "pandas, google-cloud-storage", "pytorch-cpu.2-4.py310", "pytorch", ["model/model.pt"]
)
PYTORCH_THREE = Trainer(
    "PyTorch, three replicas", PYTORCH.storage, PYTORCH.image, PYTORCH.folder, PYTORCH.made, workers=2
)
SKLEARN = Trainer(
    "scikit-learn", "pandas, google-cloud-storage", "sklearn-cpu.1-6", "sklearn", ["model/model.joblib"]
)
XGBOOST = Trainer("XGBoost", "gsutil", "xgboost-cpu.1-6", "xgboost", ["model/model.bst"])
LIGHTGBM = Trainer(
    "LightGBM by `install_requires`",
    "`/gcs`",
    "sklearn-cpu.1-6",
    "lightgbm",
    ["model/model.txt"],
    module="trainer.task",
    args=(),
)
TUNED = Trainer(
    "scikit-learn, tuned",
    SKLEARN.storage,
    SKLEARN.image,
    "sklearn",
    SKLEARN.made,
    kind="HyperparameterTuningJob",
    tuned={"trees": ("INTEGER", 5, 50), "depth": ("INTEGER", 1, 6)},
    trials=6,
)
ML_TUNED = Trainer(
    "XGBoost, tuned, with `--job-dir`",
    "gsutil",
    "2.11",
    "xgboost",
    ["model.bst"],
    kind="Job",
    tuned={"eta": ("DOUBLE", 0.05, 1), "max_depth": ("INTEGER", 1, 6)},
    trials=6,
)
TRAINERS = (
    *(ESTIMATOR, KERAS, KERAS_TWO, PYTORCH, PYTORCH_THREE),
    *(SKLEARN, XGBOOST, LIGHTGBM, TUNED, ML_TUNED),
)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """Yield a repository with all trainers; its environments are kept between runs of the tests."""
    for name in [*os.environ]:
        if name.startswith("PIP_") or name in OF_INSTALLERS:
            monkeypatch.delenv(name)
    for name, value in USERS.items():
        if name.startswith("PIP_") or name in OF_INSTALLERS:
            monkeypatch.setenv(name, value)
    (KEPT / "environments").mkdir(parents=True, exist_ok=True)
    made = Repository(tmp_path / "repository", KEPT / "environments")
    made.has_jobs = True
    made.write("reconciler.yaml", "buckets: [models]\n")
    for folder in HERE.iterdir():
        if folder.is_dir():
            shutil.copytree(folder, made.root / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    prepare_home(made.home)
    (made.home / "gcs/flowers").mkdir(parents=True)
    shutil.copy(HERE / "iris.csv", made.home / "gcs/flowers")
    yield made
    made.stop()


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda trainer: trainer.name)
def test_a_published_trainer_runs_unmodified(
    trainer: Trainer, repository: Repository, rows: list[Sequence[str]]
) -> None:
    if trainer is ESTIMATOR and (3, 7) not in {python.minor for python in pythons(USERS)}:
        pytest.skip("TensorFlow 1 needs a Python 3.7")
    repository.write(f"jobs/{trainer.name}.yaml", yaml.safe_dump(trainer.manifest()))
    process = repository.start("apply", "--wait", "--format", "json")
    out, err = process.communicate(timeout=DEADLINE)
    log = repository.run("logs", trainer.name).out
    assert process.returncode == 0, out + err + log

    output = repository.home / "gcs" / "models" / trainer.name
    for folder in [output / str(number + 1) for number in range(trainer.trials)] or [output]:
        missing = [pattern for pattern in trainer.made if not any(folder.glob(pattern))]
        assert not missing, (folder, missing)
    accuracies = [float(found) for found in re.findall(r"accuracy (\S+)$", log, re.MULTILINE)]
    assert trainer is KERAS_TWO or (len(accuracies) == max(1, trainer.trials) and max(accuracies) >= 0.9), log
    (with_versions, *_) = re.findall(r"with (Python .*)$", log, re.MULTILINE)
    rows.append(
        [
            trainer.title,
            f"{trainer.kind}, `{trainer.image}`",
            with_versions,
            trainer.storage,
            needed(repository),
        ]
    )
    _CHECKS.get(trainer.name, lambda log: None)(log)


def needed(repository: Repository) -> str:
    """Return the service's warnings in the job's runs; the jobs have no `images` and no other settings."""
    lines = [
        json.loads(line)
        for file in (repository.home / "runs").glob("*/log.jsonl")
        for line in file.read_text().splitlines()
    ]
    warnings = dict.fromkeys(line["m"] for line in lines if line["s"] == "WARNING" and "r" not in line)
    return "; the log warns: ".join(["nothing", *filter(None, [" ".join(warnings)])])


def check_tensorflow_calls(log: str) -> None:
    tried = [name for names in re.findall(r"tried (.*)$", log, re.MULTILINE) for name in names.split()]
    assert tried == documented("TensorFlow")


def check_two_replicas(log: str) -> None:
    assert log.count("the total of 2 is 9.0") == 2


def check_three_replicas(log: str) -> None:
    weights = re.findall(r"replica \d of 3 has weights of (\S+)", log)
    assert len(weights) == 3
    assert len({*weights}) == 1


_CHECKS = {
    KERAS.name: check_tensorflow_calls,
    KERAS_TWO.name: check_two_replicas,
    PYTORCH_THREE.name: check_three_replicas,
}
