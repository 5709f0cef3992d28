"""A repository migrated from gcloud: a single import, then every job trains."""

from __future__ import annotations

import json
import sys

import yaml

from tests.support.repository import IMAGE, Repository

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
TASK = """
import json, os, sys, time

print("trained with", *sys.argv[1:], flush=True)
file = os.environ.get("CLOUD_ML_HP_METRIC_FILE")
if file:
    os.makedirs(os.path.dirname(file), exist_ok=True)
    with open(file, "a") as metrics:
        line = {"timestamp": time.time(), "trial": os.environ.get("CLOUD_ML_TRIAL_ID", ""), "accuracy": "0.5"}
        metrics.write(json.dumps({**line, "global_step": "1"}) + "\\n")
"""
SCRIPT = f"""#!/bin/sh
set -eu
NAME="script-$(date +%s)"
STEPS=5
cd "$(dirname "$0")/.."
gcloud ai custom-jobs create --region=europe-west4 --display-name="$NAME" \\
  --worker-pool-spec="machine-type=n1-standard-4,executor-image-uri={IMAGE},local-package-path=.,\\
python-module=tide.task" \\
  --args="--steps=$STEPS"
"""
MAKEFILE = """
STEPS := 4

train:
\tgcloud ai-platform jobs submit training make_$$(date +%s) --region europe-west4 \\
\t  --runtime-version 2.11 --scale-tier basic --package-path tide --module-name tide.task \\
\t  --staging-bucket gs://tide-staging -- --steps $(STEPS)
"""
POOL = {
    "machineSpec": {"machineType": "n1-standard-4"},
    "replicaCount": 1,
    "pythonPackageSpec": {"executorImageUri": IMAGE, "pythonModule": "tide.task"},
}
TUNING = {
    "studySpec": {
        "metrics": [{"metricId": "accuracy", "goal": "MAXIMIZE"}],
        "parameters": [{"parameterId": "rate", "doubleValueSpec": {"minValue": 0.1, "maxValue": 0.9}}],
    },
    "maxTrialCount": 2,
    "parallelTrialCount": 1,
    "trialJobSpec": {"workerPoolSpecs": [POOL]},
}
OLD = {"trainingInput": {"scaleTier": "BASIC", "region": "europe-west4", "runtimeVersion": "2.11"}}
SOURCES = ("ops/train.sh", "Makefile", "notebooks/run.ipynb", "configs/tune.yaml", "configs/old.json")


def test_five_sources_become_five_jobs_that_train(repository: Repository) -> None:
    python = f'{{python: "{VERSION}", requirements: []}}'
    repository.write("reconciler.yaml", f'images:\n  {IMAGE}: {python}\n  "2.11": {python}\n')
    repository.write("tide/__init__.py", "")
    repository.write("tide/task.py", TASK)
    repository.write("ops/train.sh", SCRIPT)
    repository.write("Makefile", MAKEFILE)
    repository.write("configs/notebook.yaml", yaml.safe_dump({"workerPoolSpecs": [POOL]}))
    repository.write("configs/tune.yaml", yaml.safe_dump(TUNING))
    repository.write("configs/old.json", json.dumps(OLD))
    create = "!gcloud ai custom-jobs create --region={REGION} --display-name=notebook"
    cells = ["REGION = 'europe-west4'", f"{create} --config=../configs/notebook.yaml"]
    notebook = {"nbformat": 4, "cells": [{"cell_type": "code", "source": [cell]} for cell in cells]}
    repository.write("notebooks/run.ipynb", json.dumps(notebook))
    repository.git("init", "-q")

    done = repository.run("import", *SOURCES, "--set", "pythonModule=tide.task")
    assert done.code == 0, done.err
    assert done.out.count(": written, ") == 5
    assert done.out.count("fill in packageUris") == 3
    for name in ("notebook", "tune", "old"):
        # The report names the value that the configs lack: the path of the code.
        manifest = repository.root / f"jobs/{name}.yaml"
        manifest.write_text(f"package: {{path: ../tide}}\n{manifest.read_text()}")
    repository.has_jobs = True
    plan = repository.run("plan", "--format", "json")
    assert [change["action"] for change in plan.json["changes"]] == ["submit"] * 5, plan.err
    trained = repository.run("apply", "--wait")
    assert trained.code == 0, trained.out + trained.err
    assert set(repository.states().values()) == {"SUCCEEDED"}
    assert "trained with --steps=5" in repository.run("logs", "script").out
    assert "trained with --steps 4" in repository.run("logs", "make").out
