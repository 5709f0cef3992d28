"""A support vector classifier of hand-written digits.

The model and its metrics go to `--job-dir`, which the service passes after the job's own arguments.
"""

import argparse
import json
import logging
import tempfile
from pathlib import Path

import joblib
from google.cloud import storage
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

log = logging.getLogger("digits")


def parse_args():
    """The job's arguments and the one that the service adds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gamma", type=float, required=True, help="width of the kernel")
    parser.add_argument("--test-fraction", type=float, default=0.5, help="rows kept for the test")
    parser.add_argument("--job-dir", required=True, help="gs:// URI of the output")
    return parser.parse_args()


def train(gamma, test_fraction):
    """Train on the first rows, test on the last ones; return the model and its metrics."""
    images, digits = load_digits(return_X_y=True)
    parts = train_test_split(images, digits, test_size=test_fraction, shuffle=False)
    train_images, test_images, train_digits, test_digits = parts
    log.info("training on %d images, testing on %d", len(train_digits), len(test_digits))
    model = SVC(gamma=gamma).fit(train_images, train_digits)
    return model, {"accuracy": model.score(test_images, test_digits), "test_rows": len(test_digits)}


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
    """Train, tell the accuracy, save."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    args = parse_args()
    model, metrics = train(args.gamma, args.test_fraction)
    log.info("accuracy %.4f", metrics["accuracy"])
    save(model, metrics, args.job_dir)


if __name__ == "__main__":
    main()
