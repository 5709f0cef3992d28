"""A published trainer's accesses to `gs://`, unmodified, in a real job on the service's storage."""

from __future__ import annotations

import json

from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from tests.support.training_service import runs, trainers
from tests.support.training_service.served import Service

TRAINER = """
import os
import subprocess

import gcsfs
import joblib
import pandas
from google.cloud import storage

subprocess.check_call(["gsutil", "-m", "cp", "gs://models/data/*.csv", "."])
frame = pandas.read_csv("gs://models/data/train.csv")
assert frame.equals(pandas.read_csv("train.csv"))
frame.assign(double=frame.x * 2).to_csv("gs://models/out/doubled.csv", index=False)

files = gcsfs.GCSFileSystem()
with files.open("gs://models/data/test.csv") as source, files.open("models/out/copy.csv", "wb") as copy:
    copy.write(source.read())

joblib.dump({"mean": float(frame.x.mean())}, "model.joblib")
storage.Client().bucket("models").blob("out/model.joblib").upload_from_filename("model.joblib")

os.makedirs("out/deep")
with open("out/deep/metrics.json", "w") as metrics:
    metrics.write('{"rows": %d}' % len(frame))
subprocess.check_call(["gcloud", "storage", "cp", "-r", "out", "gs://models/x/"])
"""
REQUIRES = ("gcsfs", "google-cloud-storage", "joblib", "pandas")
STORAGE = "http://127.0.0.1:9/jobs/x"  # the storage URL in the runs of tests
TRAIN, TEST = b"x,y\n1,2\n3,4\n", b"x,y\n5,6\n"


def test_a_trainer_reads_and_writes_gs_by_all_usual_ways(service: Service, trainer: runs.Starter) -> None:
    """pandas, gcsfs, Google's client and the two tools; read back by Google's client in another process."""
    spec = {"baseOutputDirectory": {"outputUriPrefix": "gs://models/out"}}
    job = service.store.add_job(trainers.custom_job(spec=spec))
    url = f"{service.url}/jobs/{job.gcs_secret}"
    (service.home / "gcs" / "models").mkdir(parents=True)
    bucket = storage.Client("p", AnonymousCredentials(), client_options={"api_endpoint": url}).bucket(
        "models"
    )
    bucket.blob("data/train.csv").upload_from_string(TRAIN)
    bucket.blob("data/test.csv").upload_from_string(TEST)

    run = trainer(TRAINER, requires=REQUIRES, job=job)
    written = run.folder.spec.read_text()
    assert STORAGE in json.loads(written)["replicas"][0]["env"].values()
    run.folder.spec.write_text(written.replace(STORAGE.removeprefix("http://"), url.removeprefix("http://")))
    run.environ = {"PIP_COMPILE": "0"}  # only imported modules are compiled: half the time
    assert run.start().end() == ("SUCCEEDED", 0, ""), run.log()

    made = {blob.name: blob.download_as_bytes() for blob in bucket.list_blobs()}
    model = made.pop("out/model.joblib")
    assert model == (run.folder.service_home / "gcs/models/out/model.joblib").read_bytes()
    assert b"mean" in model
    assert made == {
        "data/train.csv": TRAIN,
        "data/test.csv": TEST,
        "out/doubled.csv": b"x,y,double\n1,2,2\n3,4,6\n",
        "out/copy.csv": TEST,
        "x/out/deep/metrics.json": b'{"rows": 2}',
    }
