"""A support vector classifier of hand-written digits, judged by cross-validation for one set of values.

The service passes the trial's values after the job's own arguments, and last `--job-dir`, where the model and
its metrics go.
"""

import argparse
import json
import logging
import tempfile
from pathlib import Path

import hypertune
import joblib
from google.cloud import storage
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

log = logging.getLogger("digits")


def parse_args():
    """The job's argument, the trial's values, and the service's own argument."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folds", type=int, default=3, help="parts of the cross-validation")
    parser.add_argument("--gamma", type=float, default=0.001, help="width of the kernel")
    parser.add_argument("--c", type=float, default=1.0, help="inverse of the regularization's strength")
    parser.add_argument("--components", type=int, default=64, help="principal components of the images")
    parser.add_argument("--job-dir", required=True, help="gs:// URI of the output")
    return parser.parse_args()


def save(model, metrics, job_dir):
    """Write both below the `gs://` URI `job_dir`."""
    bucket_name, _, prefix = job_dir[len("gs://") :].partition("/")
    bucket = storage.Client().bucket(bucket_name)
    with tempfile.TemporaryDirectory() as folder:
        joblib.dump(model, Path(folder, "model.joblib"))
        Path(folder, "metrics.json").write_text(json.dumps(metrics))
        for file in sorted(Path(folder).iterdir()):
            bucket.blob(prefix.rstrip("/") + "/" + file.name).upload_from_filename(str(file))
            log.info("written: %s/%s", job_dir.rstrip("/"), file.name)


def main():
    """Judge the model, report, train it on all images, save."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    args = parse_args()
    images, digits = load_digits(return_X_y=True)
    model = make_pipeline(PCA(args.components, random_state=0), SVC(C=args.c, gamma=args.gamma))
    accuracy = cross_val_score(model, images, digits, cv=args.folds).mean()
    log.info("accuracy %.4f, mean of %d folds", accuracy, args.folds)
    hypertune.HyperTune().report_hyperparameter_tuning_metric("accuracy", accuracy)
    values = {"gamma": args.gamma, "c": args.c, "components": args.components}
    save(model.fit(images, digits), {"accuracy": accuracy, **values}, args.job_dir)


if __name__ == "__main__":
    main()
