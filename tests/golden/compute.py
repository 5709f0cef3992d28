"""Computes the golden vectors anew, by whichever Python runs it: `python compute.py < vectors.json`.

It needs nothing but the standard library and the reconciler's own source on PYTHONPATH.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from reconciler import schemas
from reconciler.canonical import canonical_json, canonical_spec
from reconciler.manifest import Manifest, Reconcile
from reconciler.naming import identity, job_name, label_of
from reconciler.sources.sdist import build_sdist
from reconciler.sources.sourcetree import SourceFile, SourceTree


def job(vector: dict[str, Any]) -> dict[str, Any]:
    """A vector about a manifest, with its results as computed now."""
    manifest = Manifest(
        vector["apiVersion"],
        vector["kind"],
        vector["name"],
        vector["spec"],
        reconcile=Reconcile(rerun=vector["rerun"]),
    )
    schema = schemas.manifest_schema(manifest.api_version, manifest.kind)
    assert schema is not None
    spec = canonical_spec(manifest.spec, schema)
    whole = identity(manifest, spec, vector["code"])
    return vector | {
        "canonical": canonical_json(spec).decode("utf-8"),
        "identity": whole,
        "jobName": job_name(manifest.base_name, whole),
        "secondAttempt": job_name(manifest.base_name, whole, 2),
        "label": label_of(whole),
    }


def package(vector: dict[str, Any]) -> dict[str, Any]:
    """A vector about a package's files, with its results as computed now."""
    tree = SourceTree(tuple(map(_file, vector["files"])))
    archive = build_sdist(tree, vector["name"], vector["module"])
    return vector | {
        "code": tree.digest,
        "fileName": archive.file_name,
        "size": len(archive.data),
        "sha256": archive.sha256,
        "md5": archive.md5,
    }


def _file(file: dict[str, Any]) -> SourceFile:
    return SourceFile(file["path"], file["executable"], file["text"].encode("utf-8") * file.get("times", 1))


def computed(vectors: dict[str, Any]) -> dict[str, Any]:
    """The same vectors, with all results as computed now."""
    return {"jobs": [*map(job, vectors["jobs"])], "packages": [*map(package, vectors["packages"])]}


if __name__ == "__main__":
    json.dump(computed(json.load(sys.stdin)), sys.stdout, indent=2, ensure_ascii=True)
