"""The JSON Schemas and discovery documents that ship with the reconciler.

The schemas are JSON Schema 2020-12, made by `schemas/generate.py`; they are the only truth about what is
valid. Beside the standard keywords they carry, for messages:

x-message
    What is wrong, in the subschema whose keyword failed; replaces a sentence made from the keyword.
x-hint
    What to write instead; beside `x-message`, or alone.
x-gcloud-flag
    Beside `required`: field -> the gcloud flag that gives the same.
x-output-only, x-set-by-reconciler
    Beside `properties`: names that are no properties, because only the service, or only the reconciler, sets
    them.
x-refused
    Beside `properties`: other names that are no properties -> what to write instead.

A field that a condition forbids has the schema `{"not": {}, "x-message": …}` there, so that the failure's
place is the field. A wrong key is told by `propertyNames`: the failure's instance is the key, its place the
mapping.

A field's `format` is the API's: `int64` (an integer, or a string of its digits, within 64 bits), `int32`,
`double`, `google-duration`, `google-datetime`.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from reconciler.manifest import AIPLATFORM_V1, ML_V1

ENGINES = "reconciler.engines"
"""The entry point group in which other packages name their engines, by apiVersion."""

KINDS = {
    (AIPLATFORM_V1, "CustomJob"): "custom-job.schema.json",
    (AIPLATFORM_V1, "HyperparameterTuningJob"): "hyperparameter-tuning-job.schema.json",
    (ML_V1, "Job"): "job.schema.json",
}
"""(apiVersion, kind) of a manifest -> its schema's file."""

ANY_KIND = "manifest.schema.json"
"""The schema for editors, which chooses by apiVersion and kind."""

_shipped: list[Mapping[str, Any]] = []


def folder() -> Path:
    """Where the files are: inside the package when installed from a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "schemas"
    return installed if installed.is_dir() else package.parent / "schemas"


SETTINGS = "config.schema.json"
"""The file with the schema of `reconciler.yaml`."""


@cache
def document(name: str) -> dict[str, Any]:
    """The file `name`, such as "config.schema.json"; shared between callers, so not to be changed."""
    content = _read(name)
    _shipped.append(content)
    return content


def is_shipped(schema: Mapping[str, Any]) -> bool:
    """Whether it is one of the objects that `document` and `manifest_schema` made of the files here."""
    return any(schema is own for own in _shipped)


def fingerprint() -> bytes:
    """A digest, of 32 bytes, over the schemas of this package's kinds and settings, as their files are now.

    What was found valid is so only by the same schemas. Those of other packages' engines are not in it.
    """
    digest = blake2b(digest_size=32)
    for name in sorted([*KINDS.values(), SETTINGS]):
        content = (folder() / name).read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.digest()


def manifest_schema(
    api_version: str, kind: str, filled: frozenset[str] = frozenset()
) -> dict[str, Any] | None:
    """The schema of manifests of this kind; None where there is no such kind.

    `filled` names the fields of `trainingInput` that may be left out, as an environment's defaults give them.
    """
    name = KINDS.get((api_version, kind))
    if name is None:
        return _other_schema(api_version, kind)
    return _with_optional(name, filled) if filled and kind == "Job" else document(name)


@cache
def _with_optional(name: str, filled: frozenset[str]) -> dict[str, Any]:
    schema = deepcopy(document(name))
    training = schema["$defs"]["ml.TrainingInput"]
    training["required"] = [field for field in training["required"] if field not in filled]
    _shipped.append(schema)
    return schema


@cache
def _other_schema(api_version: str, kind: str) -> dict[str, Any] | None:
    """The schema that another package's engine gives."""
    if not api_version or any(api_version == own for own, _ in KINDS):
        return None
    from importlib.metadata import entry_points

    for found in entry_points(group=ENGINES, name=api_version):
        schema: dict[str, Any] | None = found.load().manifest_schema(kind)
        return schema
    return None


def discovery(name: str) -> dict[str, Any]:
    """A trimmed discovery document, such as "aiplatform.v1": a file of `schemas/discovery`.

    A fresh copy each time, because Google's client writes into the one it builds from.
    """
    return _read(f"discovery/{name}.json")


def _read(name: str) -> dict[str, Any]:
    return msgspec.json.decode((folder() / name).read_bytes(), type=dict[str, Any])
