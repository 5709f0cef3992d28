"""Trainers' packages as they lie in a bucket, and jobs that run them."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import textwrap
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from reconciler.training_service.state.records import CUSTOM_JOBS, ML_JOBS, TUNING_JOBS, JobRecord

PLAIN = "example.test/plain:1"
OWN_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
IMAGES = {PLAIN: {"python": OWN_PYTHON, "requirements": []}}
URI = "gs://code/trainer-0.1-py3-none-any.whl"

SETUP = """\
from setuptools import find_packages, setup
setup(name="trainer", version="0.1", packages=find_packages())
"""


def shared_environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the base environments of all tests and workers: each takes seconds to make."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "environments"
    folder.mkdir(exist_ok=True)
    return folder


def wheel(path: Path, source: str, requires: Sequence[str] = ()) -> Path:
    """Write a wheel with the module `trainer.task`; it installs quickly, because it needs no build."""
    files = {"trainer/__init__.py": "", "trainer/task.py": textwrap.dedent(source)}
    return _wheel(path, "trainer", "0.1", files, requires)


def library(folder: Path, name: str, version: str, requires: Sequence[str] = (), source: str = "") -> Path:
    """Write a wheel with a module of its name that knows its version."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    return _wheel(path, name, version, {f"{name}/__init__.py": f"VERSION = {version!r}\n{source}"}, requires)


def _wheel(path: Path, name: str, version: str, modules: Mapping[str, str], requires: Sequence[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {line}" for line in requires]
    files = {
        **modules,
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(file, content)
    return path


def source_distribution(path: Path, files: Mapping[str, str]) -> Path:
    """Write a .tar.gz with these files below one folder, as setuptools makes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            data = textwrap.dedent(content).encode()
            member = tarfile.TarInfo(f"trainer-0.1/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def custom_job(
    *,
    packages: Sequence[str] = (URI,),
    image: str = PLAIN,
    env: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
    **package: Any,
) -> JobRecord:
    """Return a CustomJob with a single replica; `package` and `spec` are further fields of the two."""
    python = {
        "executorImageUri": image,
        "packageUris": list(packages),
        "pythonModule": "trainer.task",
        "env": [{"name": name, "value": value} for name, value in (env or {}).items()],
        **package,
    }
    pool = {"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": "1", "pythonPackageSpec": python}
    body = {"displayName": "census", "jobSpec": {"workerPoolSpecs": [pool], **(spec or {})}}
    return _job(CUSTOM_JOBS, "us-central1", "4242424242424242424", body)


def cluster_job(*pools: Mapping[str, Any], **first: Any) -> JobRecord:
    """Return a CustomJob whose further pools copy the first with these fields; an empty pool stays empty."""
    job = custom_job(**first)
    primary = job.body["jobSpec"]["workerPoolSpecs"][0]
    for pool in pools:
        own = {name: value for name, value in {**primary, **pool}.items() if value is not None}
        if "replicaCount" not in pool:
            own.pop("replicaCount")
        job.body["jobSpec"]["workerPoolSpecs"].append(own if pool else {})
    return job


def tuning_job(study: Mapping[str, Any] | None = None, **job: Any) -> JobRecord:
    """Return a HyperparameterTuningJob whose trials are `custom_job`s; its other fields are of the job."""
    trial = custom_job(**job).body["jobSpec"]
    spec = {"metrics": [{"metricId": "accuracy", "goal": "MAXIMIZE"}], "parameters": [], **(study or {})}
    body = {"displayName": "census", "studySpec": spec, "trialJobSpec": trial, "maxTrialCount": 4}
    return _job(TUNING_JOBS, "us-central1", "4242424242424242424", {**body, "parallelTrialCount": 2})


def ml_job(**training_input: Any) -> JobRecord:
    """Return a Job of ml.googleapis.com with these fields."""
    given = {
        "scaleTier": "BASIC",
        "region": "us-east1",
        "pythonModule": "trainer.task",
        "packageUris": [URI],
        "runtimeVersion": "2.11",
        **training_input,
    }
    return _job(ML_JOBS, "", "census_1", {"jobId": "census_1", "trainingInput": given})


def _job(collection: str, location: str, job_id: str, body: dict[str, Any]) -> JobRecord:
    time = "2026-01-02T03:04:05.000000Z"
    return JobRecord(
        collection, "my-project", location, job_id, body, f"secret-{job_id}", time, time, images=IMAGES
    )
