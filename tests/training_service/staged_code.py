"""Code without an image, as it lies in a bucket, and jobs that run it."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trainers

from reconciler.training_service.state.records import JobRecord

BUCKET = "staging"
PYTHON = f"docker.io/library/python:{sys.version_info.major}.{sys.version_info.minor}-slim"
"""The image of Docker Hub with this Python."""

PROGRAM = """
import hashlib, importlib, io, os, runpy, subprocess, sys, tarfile, tempfile
uri, sha, module, requirements = sys.argv[1:5]
def give_up(why):
    sys.exit("reconciler: " + why)
path = os.environ.get("RECONCILER_GCS_DIR", "/gcs") + "/" + uri[5:]
try:
    data = open(path, "rb").read()
except OSError as error:
    give_up("%s can't be read: %s" % (path, error))
if hashlib.sha256(data).hexdigest() != sha:
    give_up("%s has another SHA-256 than the job names" % path)
with tempfile.TemporaryDirectory() as folder:
    tarfile.open(fileobj=io.BytesIO(data)).extractall(folder)
    sys.path.insert(0, folder)
    if requirements:
        target = os.path.join(folder, "target")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        if importlib.util.find_spec("pip") is None:
            give_up("the image has no pip, which installs %s" % requirements)
        if subprocess.call(pip + ["--target", target, "-r", os.path.join(folder, requirements)]):
            give_up("pip can't install %s" % requirements)
        sys.path.insert(1, target)
    sys.argv = [module] + sys.argv[5:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def stage(buckets: Path, files: Mapping[str, str], name: str = "staged.tar.gz") -> tuple[str, str]:
    """Put an archive of these files into the bucket; its address and its SHA-256."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for path, text in files.items():
            content = textwrap.dedent(text).encode()
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    folder = buckets / BUCKET
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data.getvalue())
    return f"gs://{BUCKET}/{name}", hashlib.sha256(data.getvalue()).hexdigest()


def command(uri: str, sha: str, module: str = "task", requirements: str = "") -> list[str]:
    """The command of a staged module."""
    return ["python3", "-c", PROGRAM, uri, sha, module, requirements]


def contained(job: JobRecord, image: str, words: Sequence[str], *args: str, **env: str) -> JobRecord:
    """The job with its package replaced by a container with this command."""
    spec = job.body["jobSpec" if "jobSpec" in job.body else "trialJobSpec"]
    for pool in spec["workerPoolSpecs"]:
        given: dict[str, Any] = {"imageUri": image, "command": list(words), "args": list(args)}
        held = [*pool.pop("pythonPackageSpec")["env"], *({"name": n, "value": v} for n, v in env.items())]
        pool["containerSpec"] = {**given, **({"env": held} if held else {})}
    return job


def a_job(image: str, words: Sequence[str], *args: str, **env: str) -> JobRecord:
    """A CustomJob of one replica, which names the bucket `models` too."""
    return contained(trainers.custom_job(), image, words, *args, MODELS="gs://models/x", **env)
