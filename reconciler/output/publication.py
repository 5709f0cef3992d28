"""Publications as text and JSON: what `fetch` and `verify` print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from reconciler.model.publication import CurrentModel, PublishedModel

UNSIGNED = "The record is unsigned: whoever can write to the bucket can write the record too."

Json = dict[str, Any]
_VERSION = 1


def publication_line(current: CurrentModel) -> str:
    """Return in a line which job is published, by whom and when."""
    time = current.time.strftime("%Y-%m-%d %H:%M UTC")
    commit = f", commit {current.commit[:12]}" if current.commit else ""
    return (
        f"{current.job_name}, published {time} by {current.source}, environment {current.environment}{commit}"
    )


def fetched_json(
    current: CurrentModel | None,
    job_name: str,
    uri: str,
    folder: str,
    files: Iterable[tuple[str, int, str]],
) -> Json:
    """Return the output of `fetch --format json`.

    Args:
        current: The publication; None for the files of a run.
        job_name: The run that wrote the files.
        uri: The folder (gs://…) that they were in.
        folder: The new folder of this machine.
        files: The name, the size and the checksum of each.
    """
    listed = [{"name": name, "size": size, "crc32c": crc32c} for name, size, crc32c in files]
    return {
        "formatVersion": _VERSION,
        "jobName": job_name,
        "uri": uri,
        "published": _current_json(current) if current else None,
        "folder": folder,
        "size": sum(file["size"] for file in listed),
        "files": listed,
    }


def verified_json(
    to: str, current: CurrentModel, model: PublishedModel | None, differences: Sequence[tuple[str, str]]
) -> Json:
    """Return the output of `verify --format json`; `differences` have a kind and a sentence each."""
    files = model.files if model else ()
    return {
        "formatVersion": _VERSION,
        "verified": not differences,
        "signed": False,
        "notice": UNSIGNED,
        "to": to,
        "jobName": current.job_name,
        "hash": current.hash,
        "uri": current.folder,
        "published": _current_json(current),
        "files": len(files),
        "size": sum(file.size for file in files),
        "differences": [{"kind": kind, "message": message} for kind, message in differences],
    }


def _current_json(current: CurrentModel) -> Json:
    return {
        "baseName": current.base_name,
        "source": current.source,
        "environment": current.environment,
        "commit": current.commit or None,
        "time": current.time.isoformat().replace("+00:00", "Z"),
    }
