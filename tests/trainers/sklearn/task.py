"""Random forest that classifies flowers; reads gs:// by pandas, and reports its accuracy to a tuning job."""

import argparse
import os
import platform

import hypertune
import joblib
import pandas
import sklearn
from google.cloud import storage
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_score


def main():
    """Evaluate the forest by cross-validation, train it on all flowers, upload it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--trees", type=int, default=50)
    parser.add_argument("--depth", type=int, default=4)
    args = parser.parse_args()

    table = pandas.read_csv(args.data)
    measures, kinds = table.drop(columns="species"), table.species
    forest = RandomForestClassifier(args.trees, max_depth=args.depth, random_state=1)
    accuracy = cross_val_score(forest, measures, kinds, cv=5).mean()
    print("accuracy", accuracy)
    hypertune.HyperTune().report_hyperparameter_tuning_metric(
        hyperparameter_metric_tag="accuracy", metric_value=accuracy, global_step=args.trees
    )

    joblib.dump(forest.fit(measures, kinds), "model.joblib")
    model = storage.blob.Blob.from_string(os.environ["AIP_MODEL_DIR"] + "model.joblib", storage.Client())
    model.upload_from_filename("model.joblib")
    print(f"with Python {platform.python_version()}, scikit-learn {sklearn.__version__}")


if __name__ == "__main__":
    main()
