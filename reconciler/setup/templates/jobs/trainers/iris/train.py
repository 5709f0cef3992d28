"""Random forest on Fisher's iris data, judged by cross-validation.

The model and its metrics go where the training service says: `AIP_MODEL_DIR`, a `gs://` URI.
"""

import argparse
import json
import os
from pathlib import Path

import joblib
from google.cloud import storage
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_score

MODEL_DIR = os.environ.get("AIP_MODEL_DIR")


def upload(name):
    """Copy the file `name` into the model's folder."""
    uri = MODEL_DIR.rstrip("/") + "/" + name
    bucket, _, path = uri[len("gs://") :].partition("/")
    storage.Client().bucket(bucket).blob(path).upload_from_filename(name)
    print("written:", uri)


def main():
    """Judge the model, train it on all flowers, upload it with its metrics."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trees", type=int, default=100, help="of the forest")
    parser.add_argument("--seed", type=int, default=42, help="of the forest's random choices")
    args = parser.parse_args()

    measures, kind = load_iris(return_X_y=True)
    forest = RandomForestClassifier(n_estimators=args.trees, random_state=args.seed)
    accuracy = cross_val_score(forest, measures, kind, cv=5).mean()
    print(f"accuracy {accuracy:.4f} with {args.trees} trees, mean of 5 folds", flush=True)

    joblib.dump(forest.fit(measures, kind), "model.joblib")
    metrics = {"accuracy": accuracy, "trees": args.trees, "rows": len(kind)}
    Path("metrics.json").write_text(json.dumps(metrics))
    if MODEL_DIR:
        upload("model.joblib")
        upload("metrics.json")
    else:
        print("not kept: no baseOutputDirectory is set, by the job or by the environment's defaults")


if __name__ == "__main__":
    main()
