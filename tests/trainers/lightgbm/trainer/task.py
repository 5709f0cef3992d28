"""LightGBM on the breast cancer data of scikit-learn; writes its model below /gcs."""

import argparse
import os
import platform
from pathlib import Path

import lightgbm
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split


def main():
    """Train until the test loss stops falling, and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leaves", type=int, default=15)
    args = parser.parse_args()

    measures, malignant = load_breast_cancer(return_X_y=True)
    train, test, train_kinds, test_kinds = train_test_split(measures, malignant, random_state=1)
    model = lightgbm.LGBMClassifier(num_leaves=args.leaves, n_estimators=200, random_state=1, verbose=-1)
    stop = lightgbm.early_stopping(10, verbose=False)
    model.fit(train, train_kinds, eval_set=[(test, test_kinds)], callbacks=[stop])
    print("accuracy", model.score(test, test_kinds))

    folder = Path(os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/"))
    folder.mkdir(parents=True, exist_ok=True)
    model.booster_.save_model(str(folder / "model.txt"))
    print(f"with Python {platform.python_version()}, LightGBM {lightgbm.__version__}")


if __name__ == "__main__":
    main()
