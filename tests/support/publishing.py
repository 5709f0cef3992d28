"""Publications for tests, written as the embedded service's bucket has its objects: as files."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import google_crc32c
from msgspec.structs import replace

from reconciler.model.publication import (
    CURRENT,
    MANIFEST,
    CurrentModel,
    PublishedFile,
    PublishedModel,
    current_json,
    model_folder,
    published_json,
)

TO = "gs://risk-models/census"
JOB = "census_0011223344556677"
TIME = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)
FILES: Mapping[str, bytes] = {
    "model.txt": b"weights",
    "variables/größe 📊.bin": bytes(range(256)),
    "empty": b"",
}


def crc32c_of(content: bytes) -> str:
    """Return the CRC32C of a content as Cloud Storage has it."""
    checksum: Any = google_crc32c.Checksum(content)
    return base64.b64encode(checksum.digest()).decode()


def published_model(files: Mapping[str, bytes] = FILES, **changed: Any) -> PublishedModel:
    """Return the record of a model with these files, with some fields changed."""
    model = PublishedModel(
        job_name=JOB,
        base_name="census",
        hash="0" * 64,
        source="acme-jobs",
        environment="local",
        commit="",
        time=TIME,
        origin=f"gs://acme-runs/{JOB}/model",
        files=tuple(
            PublishedFile(name, "7", len(content), crc32c_of(content))
            for name, content in sorted(files.items())
        ),
    )
    return replace(model, **changed)


def current_model(model: PublishedModel, to: str = TO, **changed: Any) -> CurrentModel:
    """Return what `current.json` says of a model, with some fields changed."""
    current = CurrentModel(
        folder=model_folder(to, model.job_name),
        job_name=model.job_name,
        base_name=model.base_name,
        hash=model.hash,
        source=model.source,
        environment=model.environment,
        commit=model.commit,
        time=model.time,
    )
    return replace(current, **changed)


def path_of(home: Path, uri: str) -> Path:
    """Return the file of an object (gs://…) of the embedded service."""
    return home / "gcs" / uri.removeprefix("gs://")


def put(home: Path, uri: str, content: bytes) -> None:
    """Write an object (gs://…) of the embedded service as another program might."""
    path = path_of(home, uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def publish(
    home: Path, model: PublishedModel, files: Mapping[str, bytes] = FILES, to: str = TO, **changed: Any
) -> None:
    """Write a model's files, its record, and `current.json` with some fields changed."""
    folder = model_folder(to, model.job_name)
    for name, content in files.items():
        put(home, f"{folder}/{name}", content)
    put(home, f"{folder}/{MANIFEST}", published_json(model))
    put(home, f"{to}/{CURRENT}", current_json(current_model(model, to, **changed)))
