"""Fast check of files without mistakes, from their bytes alone.

A file accepted here has no problem but warnings, and those that depend on other files. Any irregular file is
left to the slow check in `diagnose`, whose verdict is final.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import msgpack
from msgspec.structs import replace

from reconciler.base.diagnostics import MAX_COUNTED_PER_FILE, UnplacedWarning
from reconciler.manifests import schemas
from reconciler.manifests.checked_files import CheckedFile
from reconciler.manifests.expectations import goal_of
from reconciler.manifests.plain_form import plain_form
from reconciler.manifests.rules import domain_findings, python_modules
from reconciler.manifests.schemas import is_valid
from reconciler.manifests.secrets import has_secrets
from reconciler.manifests.training_images import noted_images
from reconciler.manifests.yaml_load import CleanDocument, clean_documents
from reconciler.model.canonical import canonical_spec
from reconciler.model.expectation import Expectation
from reconciler.model.manifest import Manifest, Publish, Reconcile
from reconciler.model.naming import identities, label_of

# Most characters in a document with aliases: a few aliases can repeat a large amount of text.
_MAX_TEXT = 1_000_000


def check_files(
    contents: Mapping[bytes, bytes], filled: frozenset[str] = frozenset(), *, with_identities: bool = True
) -> dict[bytes, CheckedFile]:
    """Return the records of files that contain only valid manifests.

    Args:
        contents: The files' bytes by their digests.
        filled: The fields that manifests may omit.
        with_identities: False to leave the identities out: they are a sixth of the work.
    """
    # Each step runs for all files before the next step: parsing, matching a schema and the rest each fill a
    # processor's caches, and take a quarter longer when they alternate.
    read = {digest: clean_documents(data) or [] for digest, data in contents.items()}
    candidates = [
        _Candidate(digest, document, _schema(document.value, filled))
        for digest, documents in read.items()
        if not has_secrets(contents[digest], (document.value for document in documents))
        for document in documents
    ]
    valid = [
        plain
        for candidate in candidates
        if (plain := _valid(candidate, contents[candidate.digest])) is not None
    ]
    manifests: dict[bytes, list[Manifest]] = {}
    warnings: dict[bytes, list[UnplacedWarning]] = {}
    for candidate, of_document in [(candidate, _warnings(candidate, filled)) for candidate in valid]:
        if of_document is None:
            continue
        manifest = _manifest(candidate, contents[candidate.digest], with_identities=with_identities)
        if manifest is not None:
            manifests.setdefault(candidate.digest, []).append(manifest)
            if of_document:
                warnings.setdefault(candidate.digest, []).extend(of_document)
    return {
        digest: CheckedFile(
            digest,
            len(contents[digest]),
            sum(document.aliased for document in read[digest]),
            tuple(of_file),
            tuple(warnings.get(digest, ())[:MAX_COUNTED_PER_FILE]),
        )
        for digest, of_file in manifests.items()
        if len(of_file) == len(read[digest])
    }


def manifest_of(
    value: Mapping[str, Any],
    line: int,
    schema: Mapping[str, Any],
    *,
    with_identities: bool = True,
) -> Manifest:
    """Return the manifest, without its file, of a value that is valid by `schema`.

    `line` is its document's first in the file; `with_identities` is as in `check_files`.
    """
    spec = canonical_spec(value["spec"], schema)
    package = value.get("package", {})
    manifest = Manifest(
        value["apiVersion"],
        value["kind"],
        value["metadata"]["name"],
        _packer.encode(spec),
        value["metadata"].get("labels", {}),
        reconcile=_reconcile(value["reconcile"]) if "reconcile" in value else _DEFAULT_POLICY,
        line=line,
        written=package.get("path", ""),
        module=package.get("module", ""),
        requirements=package.get("requirements", ""),
        python_modules=tuple(module for _, module in python_modules(value)) if package else (),
        images=noted_images(value["spec"]),
        expect=_expectations(value["expect"]) if "expect" in value else (),
        publish=_publish(value["publish"]) if "publish" in value else None,
    )
    if manifest.written or not with_identities:
        return manifest  # with a package, its identities include the code, which is read later
    labelled = [(identity, label_of(identity)) for identity in identities(manifest, spec, "")]
    return replace(manifest, identities=tuple(labelled))


_DEFAULT_POLICY = Reconcile()
_packer = msgpack.Encoder(order="sorted")  # equal specs become equal bytes


class _Candidate(NamedTuple):
    """Document that may be a valid manifest of the file with this digest."""

    digest: bytes
    document: CleanDocument
    schema: Mapping[str, Any] | None


def _valid(candidate: _Candidate, data: bytes) -> _Candidate | None:
    """Return a valid candidate with its value in plain form; None for an invalid one."""
    document, schema = candidate.document, candidate.schema
    if schema is None:
        return None
    if is_valid(document.value, schema):
        return candidate  # in plain form already, as nearly all are
    plain = plain_form(document.value, schema)
    # A pointer to what is no secret is a pointer into the plain form.
    if not is_valid(plain, schema) or has_secrets(data, [plain]):
        return None
    return candidate._replace(document=CleanDocument(plain, document.line, document.aliased))


def _warnings(candidate: _Candidate, filled: frozenset[str]) -> list[UnplacedWarning] | None:
    """Return the warnings of a document, without its file; None if it has a mistake."""
    findings = [*domain_findings(candidate.document.value, filled)]
    if any(not finding.kind for finding in findings):
        return None
    return [UnplacedWarning.of("", candidate.document.line, finding) for finding in findings]


def _manifest(candidate: _Candidate, data: bytes, *, with_identities: bool) -> Manifest | None:
    """Return the manifest of a valid document in a file; None if it is too long or has no JSON form."""
    value, line, schema = candidate.document.value, candidate.document.line, candidate.schema
    if schema is None or (b"&" in data and _is_long(value)):
        return None
    try:
        return manifest_of(value, line, schema, with_identities=with_identities)
    except (ValueError, OverflowError, RecursionError):
        return None  # a value that has no JSON form


def _schema(value: Any, filled: frozenset[str]) -> dict[str, Any] | None:
    if value.__class__ is not dict:
        return None
    api_version, kind = value.get("apiVersion"), value.get("kind")
    if api_version.__class__ is not str or kind.__class__ is not str:
        return None
    return schemas.manifest_schema(api_version, kind, filled, value.get("spec"))


def _reconcile(policy: Mapping[str, Any]) -> Reconcile:
    return Reconcile(
        suspend=policy.get("suspend", False),
        attempts=int(policy.get("attempts", 1)),
        rerun=policy.get("rerun", ""),
        on_change=policy.get("onChange", "keep"),
        on_delete=policy.get("onDelete", "keep"),
        not_secret=tuple(policy.get("notSecret", ())),
    )


def _expectations(expect: Mapping[str, Mapping[str, Any]]) -> tuple[Expectation, ...]:
    return tuple(
        Expectation(
            metric,
            min=float(bounds["min"]) if "min" in bounds else None,
            max=float(bounds["max"]) if "max" in bounds else None,
            worse=float(bounds["worse"]) if "worse" in bounds else None,
            goal=goal_of(bounds) if "worse" in bounds else "",
        )
        for metric, bounds in expect.items()
    )


def _publish(publish: Mapping[str, str]) -> Publish:
    default = Publish()
    return Publish(
        publish.get("to", default.to).removesuffix("/"), publish.get("from", default.source).removesuffix("/")
    )


def _is_long(value: Any) -> bool:
    """Return True if the text in a value, with repetitions by aliases, is longer than `_MAX_TEXT`."""
    length = 0
    parts = [value]
    while parts:
        part = parts.pop()
        if part.__class__ is str:
            length += len(part)
        elif part.__class__ is dict:
            length += sum(map(len, part))
            parts += part.values()
        elif part.__class__ is list:
            parts += part
        if length > _MAX_TEXT:
            return True
    return False
