"""Naive Bayes on two principal components of the wine data, with or without scaling first."""

import argparse
import io
import json
import os

import joblib
from google.cloud import storage
from sklearn.datasets import load_wine
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--scale", action="store_true", help="scale all columns to unit variance first")
parser.add_argument("--seed", type=int, default=42, help="of the split into training and test rows")
parser.add_argument("--model-dir", default=os.environ.get("AIP_MODEL_DIR"), help="gs:// URI of the output")
args = parser.parse_args()

columns, cultivar = load_wine(return_X_y=True)
train_columns, test_columns, train_cultivar, test_cultivar = train_test_split(
    columns, cultivar, test_size=0.3, random_state=args.seed
)
steps = [StandardScaler()] if args.scale else []
model = make_pipeline(*steps, PCA(n_components=2), GaussianNB()).fit(train_columns, train_cultivar)
accuracy = model.score(test_columns, test_cultivar)
print("accuracy", round(accuracy, 4), "on", len(test_cultivar), "wines")

bucket, _, folder = args.model_dir[len("gs://") :].rstrip("/").partition("/")
outputs = storage.Client().bucket(bucket)
buffer = io.BytesIO()
joblib.dump(model, buffer)
outputs.blob(folder + "/model.joblib").upload_from_string(buffer.getvalue())
metrics = {"accuracy": accuracy, "scaled": args.scale, "test_rows": len(test_cultivar)}
outputs.blob(folder + "/metrics.json").upload_from_string(json.dumps(metrics))
