"""Buckets that reconciler.yaml declares for all jobs of the embedded service."""

from __future__ import annotations

from tests.support.repository import Repository

TRAINER = """
import os, urllib.error, urllib.request

def read(bucket):
    address = f"{os.environ['STORAGE_EMULATOR_HOST']}/{bucket}/x"
    try:
        return urllib.request.urlopen(address).read().decode()
    except urllib.error.HTTPError as error:
        return error.code

named = "".join(["my", "-", "features"])  # in the code alone, and in no form that could be found there
print("read", read(named), read("other"), os.path.exists(f"/gcs/{named}/x") or "UNABLE", flush=True)
# A file below /gcs would come before Google's for every job.
print("public", read("of-google"), os.path.exists("/gcs/of-google"), flush=True)
"""


def test_job_reaches_a_bucket_that_only_its_code_and_the_settings_name(repository: Repository) -> None:
    assert repository.run("env").code == 0  # creates the home
    for bucket in ("my-features", "other"):
        (repository.home / "gcs" / bucket).mkdir(parents=True)
        (repository.home / "gcs" / bucket / "x").write_text("content")
    repository.write("trainer/task.py", TRAINER)
    repository.job()
    assert repository.run("apply", "--wait").code == 0
    assert "read 403 403 " in repository.run("logs", "census").out
    settings = (repository.root / "reconciler.yaml").read_text()
    repository.write(
        "reconciler.yaml", f"{settings}buckets: [gs://my-features/]\npublicBuckets: [of-google]\n"
    )
    (repository.home / "gcs" / "of-google").mkdir()
    (repository.home / "gcs" / "of-google" / "x").write_text("by hand")
    # Buckets aren't part of a job's name: the job has run.
    assert "Nothing to do" in repository.run("apply", "--wait").out
    repository.job(reconcile="{rerun: '1'}")
    assert repository.run("apply", "--wait").code == 0
    printed = repository.run("logs", "census").out
    assert "read content 403 " in printed
    assert "public by hand False" in printed


def test_names_that_are_no_buckets_are_refused(repository: Repository) -> None:
    repository.job()
    for field in ("buckets", "publicBuckets"):
        repository.write("reconciler.yaml", f"{field}: [a/b]\n")
        refused = repository.run("plan")
        assert (refused.code, f"reconciler.yaml:1:{len(field) + 4}" in refused.err) == (3, True), refused.err
        assert "is not the name of a bucket" in refused.err
