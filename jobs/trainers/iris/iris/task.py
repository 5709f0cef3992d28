"""Multinomial logistic regression on Fisher's irises, by gradient descent on several replicas.

Each replica computes the gradient of its share of the rows; all make the same step with the sum. The
primary writes the model and its metrics to where Vertex AI says: `AIP_MODEL_DIR`, a `gs://` URI.
"""

import argparse
import json
import os
from pathlib import Path

import joblib
import numpy as np
from google.cloud import storage
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from iris.replicas import Replicas


def parse_args():
    """The job's arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000, help="of the gradient descent")
    parser.add_argument("--rate", type=float, default=1.0, help="length of a step along the gradient")
    parser.add_argument("--c", type=float, default=1.0, help="inverse of the regularization's strength")
    return parser.parse_args()


def gradient(weights, features, target):
    """Of the summed logarithmic loss of these rows; the last column of `features` is ones."""
    scores = features @ weights
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    return features.T @ (chances - np.eye(weights.shape[1])[target])


def train(features, target, replicas, args):
    """The weights, one column for each kind of iris; the same in every replica."""
    inputs = np.column_stack([features, np.ones(len(features))])
    mine = slice(replicas.rank, None, replicas.count)
    print(f"replica {replicas.rank} of {replicas.count} has {len(target[mine])} rows", flush=True)
    weights = np.zeros((inputs.shape[1], target.max() + 1))
    for step in range(1, args.steps + 1):
        slope = replicas.summed(gradient(weights, inputs[mine], target[mine]))
        slope[:-1] += weights[:-1] / args.c
        weights -= args.rate / len(target) * slope
        if step % 250 == 0 and replicas.rank == 0:
            print(f"step {step}: slope {np.abs(slope).max():.6f}", flush=True)
    return weights


def save(folder, *names):
    """Upload these files to the `gs://` URI `folder`."""
    bucket, _, prefix = folder[len("gs://") :].partition("/")
    for name in names:
        storage.Client().bucket(bucket).blob(prefix.rstrip("/") + "/" + name).upload_from_filename(name)
        print("written:", folder.rstrip("/") + "/" + name)


def main():
    """Train with the other replicas; the primary measures and saves."""
    args = parse_args()
    features, target = load_iris(return_X_y=True)
    train_features, test_features, train_target, test_target = train_test_split(
        features, target, test_size=0.5, random_state=0, stratify=target
    )
    scaler = StandardScaler().fit(train_features)
    replicas = Replicas()
    weights = train(scaler.transform(train_features), train_target, replicas, args)
    if replicas.rank:
        return

    classifier = LogisticRegression(C=args.c)
    classifier.classes_, classifier.coef_, classifier.intercept_ = np.arange(3), weights[:-1].T, weights[-1]
    model = make_pipeline(scaler, classifier)
    metrics = {
        "accuracy": model.score(test_features, test_target),
        "replicas": replicas.count,
        "test_rows": len(test_target),
    }
    print(f"accuracy {metrics['accuracy']:.4f}")
    joblib.dump(model, "model.joblib")
    Path("metrics.json").write_text(json.dumps(metrics))
    save(os.environ["AIP_MODEL_DIR"], "model.joblib", "metrics.json")


if __name__ == "__main__":
    main()
