"""Recompute the golden vectors with the running Python: `python compute.py < vectors.json`.

It needs only the standard library and the reconciler's own source on PYTHONPATH. Without msgspec, Python's
own `json` replaces it, so that both implementations are checked against the same vectors.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any


class _Struct:
    def __init_subclass__(cls, **options: Any) -> None: ...

    def __init__(self, *values: Any, **named: Any) -> None:
        vars(self).update(zip(type(self).__annotations__, values, strict=False), **named)


class _NoEncoder:
    def __init__(self, **options: Any) -> None: ...

    def encode(self, value: Any) -> bytes:
        raise TypeError("left to Python's json")


def _replace(struct: Any, **changes: Any) -> Any:
    return type(struct)(**{**vars(struct), **changes})


def _stand_in() -> ModuleType:
    module: Any = ModuleType("msgspec")
    module.Struct = _Struct
    module.json = SimpleNamespace(Encoder=_NoEncoder, decode=lambda data, type: json.loads(data))
    module.msgpack = SimpleNamespace(Encoder=_NoEncoder)
    found: ModuleType = module
    return found


if find_spec("msgspec") is None:
    structs: Any = ModuleType("msgspec.structs")
    structs.replace = _replace
    sys.modules |= {"msgspec": _stand_in(), "msgspec.structs": structs}

# Imported only here, since all of it imports msgspec.
from reconciler.manifests import schemas  # noqa: E402
from reconciler.manifests.plain_form import plain_form  # noqa: E402
from reconciler.model.canonical import canonical_json, canonical_spec  # noqa: E402  # noqa: E402
from reconciler.model.manifest import Manifest, Reconcile  # noqa: E402
from reconciler.model.naming import identity, job_name, label_of  # noqa: E402  # noqa: E402
from reconciler.packaging.sdist import build_sdist  # noqa: E402
from reconciler.packaging.source_tree import SourceFile, SourceTree  # noqa: E402


def job(vector: dict[str, Any]) -> dict[str, Any]:
    """Return a vector about a manifest, with recomputed results."""
    manifest = Manifest(
        vector["apiVersion"],
        vector["kind"],
        vector["name"],
        vector["spec"],
        reconcile=Reconcile(rerun=vector["rerun"]),
    )
    schema = schemas.manifest_schema(manifest.api_version, manifest.kind, spec=manifest.spec)
    assert schema is not None
    spec = canonical_spec(plain_form({"spec": manifest.spec}, schema)["spec"], schema)
    whole = identity(manifest, spec, vector["code"])
    return vector | {
        "canonical": canonical_json(spec).decode("utf-8"),
        "identity": whole,
        "jobName": job_name(manifest.base_name, whole),
        "secondAttempt": job_name(manifest.base_name, whole, 2),
        "label": label_of(whole),
    }


def package(vector: dict[str, Any]) -> dict[str, Any]:
    """Return a vector about a package's files, with recomputed results."""
    tree = SourceTree(tuple(map(_file, vector["files"])))
    archive = build_sdist(tree, vector["module"])
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
    """Return the same vectors, with all results recomputed."""
    return {"jobs": [*map(job, vectors["jobs"])], "packages": [*map(package, vectors["packages"])]}


if __name__ == "__main__":
    json.dump(computed(json.load(sys.stdin)), sys.stdout, indent=2, ensure_ascii=True)
