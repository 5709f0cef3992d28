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

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from reconciler.base.diagnostics import quote
from reconciler.manifests.findings import Finding, same_word, similar_word
from reconciler.manifests.messages import choices
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1

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
    package = Path(__file__).resolve().parent.parent
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


_API_VERSIONS = list(dict.fromkeys(api_version for api_version, _ in KINDS))
_PAIRS = "\n".join(f"apiVersion: {api_version}, kind: {kind}" for api_version, kind in KINDS)
# What gcloud's --config files, and what the APIs take and give, have at the top, and where that goes.
_PASTED = {
    "trainingInput": (ML_V1, "Job"),
    "studySpec": (AIPLATFORM_V1, "HyperparameterTuningJob"),
    "trialJobSpec": (AIPLATFORM_V1, "HyperparameterTuningJob"),
    "workerPoolSpecs": (AIPLATFORM_V1, "CustomJob"),
    "jobSpec": (AIPLATFORM_V1, "CustomJob"),
}


def schema_of(value: Any, filled: frozenset[str] = frozenset()) -> dict[str, Any] | Finding:
    """The schema of a manifest's kind, by its `apiVersion` and `kind`, or why there is none.

    `filled` is as in `schemas.manifest_schema`.
    """
    if not isinstance(value, dict):
        return _no_mapping(value)
    api_version, kind = _text(value, "apiVersion"), _text(value, "kind")
    schema = manifest_schema(api_version, kind, filled)
    if schema is not None:
        return schema
    pasted = next((same_word(key, _PASTED) for key in value if same_word(key, _PASTED)), "")
    if pasted and not api_version and "spec" not in value:
        return _pasted(pasted)
    if api_version in _API_VERSIONS:
        return _wrong_kind(value, api_version, kind)
    return _wrong_api_version(value, api_version, kind)


def _text(value: Mapping[str, Any], name: str) -> str:
    """The text under a key, its name misspelt in no more than case and signs."""
    found = value[name] if name in value else value.get(same_word(name, value))
    return found if isinstance(found, str) else ""


def _no_mapping(value: Any) -> Finding:
    if isinstance(value, list):
        message = "a manifest is a mapping, not a list"
        return Finding((), message, "write each job as a document of its own, with a line --- between them")
    return Finding((), "this is no manifest", _example(AIPLATFORM_V1, "CustomJob", "workerPoolSpecs"))


def _pasted(key: str) -> Finding:
    api_version, kind = _PASTED[key]
    below = "workerPoolSpecs" if key == "jobSpec" else key
    message = f"{quote(key)} is a part of a job, and the manifest around it is missing"
    return Finding((key,), message, _example(api_version, kind, below), of_key=True)


def _example(api_version: str, kind: str, below: str) -> str:
    return f"write\napiVersion: {api_version}\nkind: {kind}\nmetadata:\n  name: NAME\nspec:\n  {below}: …"


def _wrong_kind(value: Mapping[str, Any], api_version: str, kind: str) -> Finding:
    kinds = [known for version, known in KINDS if version == api_version]
    listed = f"one of: {choices(kinds)}" if len(kinds) > 1 else f"write kind: {kinds[0]}"
    if not kind:
        return _missing(value, "kind", listed)
    others = [version for version, known in KINDS if known == kind]
    if others:
        hint = f"{kind} is of {others[0]}; with {api_version}, {listed}"
    else:
        meant = same_word(kind, kinds) or similar_word(kind, kinds)
        hint = f"did you mean {meant}?" if meant else listed
    return Finding(("kind",), f"{api_version} has no kind {quote(kind)}", hint)


def _wrong_api_version(value: Mapping[str, Any], api_version: str, kind: str) -> Finding:
    fitting = [version for version, known in KINDS if known == kind]
    if not api_version:
        return _missing(value, "apiVersion", f"write apiVersion: {fitting[0]}" if fitting else _pairs())
    meant = similar_word(api_version, _API_VERSIONS)
    hint = f"did you mean {meant}?" if meant else _pairs()
    return Finding(("apiVersion",), f"unknown apiVersion {quote(api_version)}", hint)


def _pairs() -> str:
    return f"there are\n{_PAIRS}"


def _missing(value: Mapping[str, Any], name: str, hint: str) -> Finding:
    if name not in value:
        return Finding((), f"{quote(name)} is missing", hint)
    state = "has no value" if value[name] is None else "must be text"
    return Finding((name,), f"{quote(name)} {state}", hint)


_Check = Callable[[Any], bool]
_PANIC = "PanicException"
_BLANKS = "\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""What `\\s` is in Python, for a class of characters."""

_checks: dict[int, tuple[Mapping[str, Any], _Check]] = {}


def is_valid(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether jsonschema surely finds no error in `value`; False where that can't be told in a moment.

    Args:
        value: Made as `load_documents` makes it, of mappings, lists, text, numbers, booleans and None; a
            tuple would count as a list.
        schema: Not to be changed afterwards. One that isn't this package's own gives False for everything.
    """
    found = _checks.get(id(schema))
    if found is None:
        # The schema is kept beside its check, so that its id can't become another one's.
        found = _checks[id(schema)] = (schema, _check(schema))
    try:
        return found[1](value)
    except BaseException as error:
        # A failed assertion in Rust is no `Exception` in Python; it too is about this one value.
        if isinstance(error, Exception) or type(error).__name__ == _PANIC:
            return False
        raise


def _check(schema: Mapping[str, Any]) -> _Check:
    if not is_shipped(schema):
        return lambda value: False
    from jsonschema_rs import Draft202012Validator  # slow to import

    validator = Draft202012Validator(portable(schema), validate_formats=False, retriever=_refuse)
    return validator.is_valid


def _refuse(uri: str) -> NoReturn:
    raise LookupError(f"{uri} is no schema of ours")


def portable(schema: Any) -> Any:
    """A copy whose patterns mean in Rust what they mean in Python.

    They lose the lookahead that is there only because Python's `$` passes over a last line end. Rust's
    doesn't, and matching takes half the time then.
    """
    if isinstance(schema, list):
        return [portable(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _pattern(part) if key == "pattern" and isinstance(part, str) else portable(part)
        for key, part in schema.items()
    }


def _pattern(pattern: str) -> str:
    pattern = pattern.replace(r"$(?!\n)", "$")
    return pattern.replace(r"[^\s", f"[^{_BLANKS}").replace(r"\S", f"[^{_BLANKS}]")
