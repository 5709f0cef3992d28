"""Boosted trees that classify flowers; copies data and model by gsutil, for either API."""

import argparse
import os
import platform
import subprocess

import hypertune
import pandas as pd
import xgboost as xgb

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", required=True)
parser.add_argument("--job-dir", default=os.environ.get("AIP_MODEL_DIR"))
parser.add_argument("--eta", type=float, default=0.3)
parser.add_argument("--max_depth", type=int, default=3)
args = parser.parse_args()

subprocess.check_call(["gsutil", "cp", args.data, "flowers.csv"])
table = pd.read_csv("flowers.csv").sample(frac=1, random_state=1)
train, test = table[:100], table[100:]


def matrix(rows):
    """Return measures and kinds in XGBoost's format."""
    return xgb.DMatrix(rows.drop(columns="species"), rows.species)


wanted = {"objective": "multi:softmax", "num_class": 3, "eta": args.eta, "max_depth": args.max_depth}
trees = xgb.train(wanted, matrix(train), 20)
accuracy = float((trees.predict(matrix(test)) == test.species).mean())
print("accuracy", accuracy)
hypertune.HyperTune().report_hyperparameter_tuning_metric("accuracy", accuracy, 20)

trees.save_model("model.bst")
subprocess.check_call(["gsutil", "cp", "model.bst", args.job_dir.rstrip("/") + "/model.bst"])
print("with Python", platform.python_version() + ", XGBoost", xgb.__version__)
