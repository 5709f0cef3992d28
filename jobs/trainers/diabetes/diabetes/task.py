"""Gradient boosting on the diabetes data, its hyper-parameters from the command line.

While it trains it reports the error on the test rows, which is what the job is tuned by. The model and its
metrics go where Vertex AI says: `AIP_MODEL_DIR`, a `gs://` URI, in a tuning job one for each trial.
"""

import argparse
import json
import os
import time
from pathlib import Path

import joblib
from google.cloud import storage
from sklearn.datasets import load_diabetes
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.metrics import mean_absolute_error
from sklearn.model_selection import train_test_split

EVERY = 20  # trees between two reports
# Where Vertex AI looks for the lines that cloudml-hypertune writes; that library comes without a wheel.
REPORTS = Path(os.environ.get("CLOUD_ML_HP_METRIC_FILE", "/tmp/hypertune/output.metrics"))  # noqa: S108


def parse_args():
    """The job's own argument, and those that the service adds for each trial."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trees", type=int, default=120)
    parser.add_argument("--learning_rate", type=float, default=0.1)
    parser.add_argument("--max_depth", type=int, default=3)
    parser.add_argument("--subsample", type=float, default=1.0, help="part of the rows for each tree")
    parser.add_argument("--loss", default="squared_error")
    parser.add_argument("--alpha", type=float, default=0.9, help="quantile of the loss `huber`")
    return parser.parse_args()


def upload(names, folder):
    """Copy the files below the `gs://` URI `folder`."""
    bucket_name, _, prefix = folder[len("gs://") :].rstrip("/").partition("/")
    bucket = storage.Client().bucket(bucket_name)
    for name in names:
        bucket.blob(prefix + "/" + name).upload_from_filename(name)
        print("written:", folder.rstrip("/") + "/" + name)


def report(error, trees):
    """Report the error of the model with so many trees."""
    REPORTS.parent.mkdir(parents=True, exist_ok=True)
    trial = os.environ.get("CLOUD_ML_TRIAL_ID", "0")
    measured = {"timestamp": time.time(), "trial": trial, "mean_absolute_error": str(error)}
    with REPORTS.open("a") as file:
        file.write(json.dumps({**measured, "global_step": str(trees)}) + "\n")


def main():
    """Train tree by tree, report, upload the model with its metrics."""
    args = parse_args()
    rows, progress = load_diabetes(return_X_y=True)
    train_rows, test_rows, train, test = train_test_split(rows, progress, test_size=0.4, random_state=0)
    model = GradientBoostingRegressor(
        learning_rate=args.learning_rate,
        max_depth=args.max_depth,
        subsample=args.subsample,
        loss=args.loss,
        alpha=args.alpha,
        warm_start=True,
        random_state=0,
    )
    for trees in range(EVERY, args.trees + 1, EVERY):
        model.set_params(n_estimators=trees).fit(train_rows, train)
        error = mean_absolute_error(test, model.predict(test_rows))
        print(f"{trees} trees: mean absolute error {error:.2f}", flush=True)
        report(error, trees)

    joblib.dump(model, "model.joblib")
    Path("metrics.json").write_text(json.dumps({"mean_absolute_error": error, **vars(args)}))
    upload(["model.joblib", "metrics.json"], os.environ["AIP_MODEL_DIR"])


if __name__ == "__main__":
    main()
