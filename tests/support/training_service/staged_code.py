"""Staged code without an image, as it lies in a bucket, and jobs that run it."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reconciler.engines.spec.container_command import container_command
from reconciler.training_service.state.records import JobRecord
from tests.support.training_service import trainers

BUCKET = "staging"
PYTHON = f"docker.io/library/python:{sys.version_info.major}.{sys.version_info.minor}-slim"
"""The image of Docker Hub with this Python."""


def stage(buckets: Path, files: Mapping[str, str], name: str = "staged.tar.gz") -> tuple[str, str]:
    """Put an archive of these files into the bucket; return its address and its SHA-256."""
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
    """Return the command of a staged module."""
    return container_command(uri, sha, module, requirements)


def contained(job: JobRecord, image: str, words: Sequence[str], *args: str, **env: str) -> JobRecord:
    """Return the job with its package replaced by a container with this command."""
    spec = job.body["jobSpec" if "jobSpec" in job.body else "trialJobSpec"]
    for pool in spec["workerPoolSpecs"]:
        given: dict[str, Any] = {"imageUri": image, "command": list(words), "args": list(args)}
        held = [*pool.pop("pythonPackageSpec")["env"], *({"name": n, "value": v} for n, v in env.items())]
        pool["containerSpec"] = {**given, **({"env": held} if held else {})}
    return job


def a_job(image: str, words: Sequence[str], *args: str, **env: str) -> JobRecord:
    """Return a CustomJob with a single replica that also names the bucket `models`."""
    return contained(trainers.custom_job(), image, words, *args, MODELS="gs://models/x", **env)
