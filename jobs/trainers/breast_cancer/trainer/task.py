"""Logistic regression on the Wisconsin breast cancer data, judged by cross-validation.

The model and its metrics go where Vertex AI says: `AIP_MODEL_DIR`, a `gs://` URI.
"""

import argparse
import json
import os
from pathlib import Path

import joblib
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from trainer.storage import upload

MODEL_DIR = os.environ["AIP_MODEL_DIR"]


def parse_args():
    """The job's arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folds", type=int, default=10, help="parts of the cross-validation")
    parser.add_argument("--c", type=float, default=1.0, help="inverse of the regularization's strength")
    return parser.parse_args()


def main():
    """Judge the model, train it on all rows, upload it with its metrics."""
    args = parse_args()
    features, target = load_breast_cancer(return_X_y=True)
    model = make_pipeline(StandardScaler(), LogisticRegression(C=args.c))
    scores = cross_val_score(model, features, target, cv=args.folds)
    for number, score in enumerate(scores, start=1):
        print(f"fold {number} of {args.folds}: accuracy {score:.4f}", flush=True)
    metrics = {"accuracy": scores.mean(), "rows": len(target), "folds": args.folds}
    print(f"accuracy {metrics['accuracy']:.4f}, mean of {args.folds} folds")

    model.fit(features, target)
    joblib.dump(model, "model.joblib")
    Path("metrics.json").write_text(json.dumps(metrics))
    for name in ("model.joblib", "metrics.json"):
        print("written:", upload(name, MODEL_DIR))


if __name__ == "__main__":
    main()
