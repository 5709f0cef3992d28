"""Manifests of imported jobs: their content, their layout as a person would write it, their check."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from reconciler.base.diagnostics import ERROR, Problem
from reconciler.base.sanitize import one_line
from reconciler.convert.importing.placeholders import (
    SECRET,
    is_marked,
    mark,
    names_in,
    shown,
    without_dates,
)
from reconciler.manifests import schemas
from reconciler.manifests.diagnose import diagnose
from reconciler.manifests.files import ManifestFile
from reconciler.manifests.packages import package_folder
from reconciler.manifests.plain_form import plain_form
from reconciler.manifests.secrets import value_at, without_secrets
from reconciler.model.canonical import canonical_spec
from reconciler.model.manifest import Manifest
from reconciler.model.naming import identity, job_name
from reconciler.model.tracking import Index
from reconciler.packaging.source_tree import SourceTreeError, read_source_tree

if TYPE_CHECKING:
    from yaml import Node, SafeDumper


Json = dict[str, Any]
_HIDDEN = "***"
_MOST_NAME = 80  # leaves room for a number behind it
_WIDTH = 88
_PLAIN = re.compile(r"[A-Za-z][\w./@-]*(?::[\w./@-]+)*|[A-Za-z][\w/-]*://[\w./@-]+", re.ASCII)
_WORDS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null"])
_MISSING = " is missing"


class Imported(Struct):
    """One imported job.

    Attributes:
        api_version: Of its manifest.
        kind: Of its manifest.
        name: Its base name.
        labels: The user's labels.
        spec: The body without name and labels, with marks for unknown values.
        source: The place that it comes from, for a comment and for messages.
        package: The folder of its code, without links; None without code.
        notes: Sentences about differences.
        suspended: The reason for `suspend: true`; "" for a job that the next apply may submit.
        live: The resource name of the live job that it was made from; "" for any other job.
        resource: The resource name of the job that it was made from, ended or not; "" without one.
        backing: The resource name of the job that trains for that job; "" if it is no pipeline.
    """

    api_version: str
    kind: str
    name: str
    labels: Json
    spec: Json
    source: str
    package: Path | None = None
    notes: list[str] = field(default_factory=list)
    suspended: str = ""
    live: str = ""
    resource: str = ""
    backing: str = ""

    @property
    def unknown(self) -> list[str]:
        """The names of unknown values, sorted."""
        return sorted({*names_in(self.spec), *names_in(self.labels)})


def base_name(written: str, otherwise: str) -> str:
    """Return a base name from a job's name, without the time of the call; `otherwise` if nothing is left."""
    for text in (without_dates(written), otherwise):
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[:_MOST_NAME].rstrip("-_")
        name = re.sub("-{2,}", "-", name)
        if name:
            return name if name[0].isalpha() else f"job-{name}"
    return "job"


def spec_of(kind: str, body: Mapping[str, Any]) -> tuple[Json, Json]:
    """Return the `spec` and labels of a request's body."""
    rest = {key: part for key, part in body.items() if key not in ("displayName", "jobId", "labels")}
    labels = body.get("labels") or {}
    if kind == "CustomJob":
        job_spec = rest.pop("jobSpec", None) or {}
        rest = {**job_spec, **rest} if isinstance(job_spec, dict) else body["jobSpec"]
    return rest, labels


def hide_secrets(job: Imported) -> list[str]:
    """Replace the secrets in a spec and labels by marks, and return their places; mask those in notes."""
    hidden: list[str] = []
    job.spec = _hidden(job.spec, without_secrets(job.spec), "spec", hidden)
    job.labels = _hidden(job.labels, without_secrets(job.labels), "labels", hidden)
    job.notes = [str(without_secrets(note)) for note in job.notes]
    return hidden


def _hidden(value: Any, shown: Any, path: str, hidden: list[str]) -> Any:
    if isinstance(value, dict):
        return {key: _hidden(part, shown[key], f"{path}.{key}", hidden) for key, part in value.items()}
    if isinstance(value, list):
        pairs = enumerate(zip(value, shown, strict=True))
        return [_hidden(part, other, f"{path}[{index}]", hidden) for index, (part, other) in pairs]
    if value == shown or not isinstance(value, str) or is_marked(value):
        return value
    hidden.append(path)
    return str(shown).replace(_HIDDEN, mark(SECRET))


def document(job: Imported, folder: Path) -> Json:
    """Return the manifest of a job as the content of a file in a folder."""
    metadata: Json = {"name": job.name}
    if job.labels:
        metadata["labels"] = job.labels
    made: Json = {"apiVersion": job.api_version, "kind": job.kind, "metadata": metadata}
    if job.package:
        made["package"] = {"path": Path(os.path.relpath(job.package, folder)).as_posix()}
    if job.suspended:
        made["reconcile"] = {"suspend": True}
    shown_document: Json = shown({**made, "spec": job.spec})
    return shown_document


def full_name(job: Imported, root: Path, index: Index) -> str:
    """Return the job name that apply gives; the base name if the package can't be staged.

    `index` says what git tracks below the root.
    """
    schema = schemas.manifest_schema(job.api_version, job.kind, spec=job.spec)
    assert schema is not None, "imported kinds have schemas"
    try:
        tree = read_source_tree(job.package, root, index) if job.package else None
    except SourceTreeError:
        return job.name  # `validate` names the files that can't be staged
    if tree and not tree.has_name:
        return job.name  # so does `plan`, if a submodule isn't fetched
    code = tree.digest if tree else ""
    spec = canonical_spec(plain_form(document(job, root), schema)["spec"], schema)
    manifest = Manifest(job.api_version, job.kind, job.name, spec)
    return job_name(manifest.base_name, identity(manifest, spec, code))


def text_of(job: Imported, folder: Path) -> str:
    """Return the text of a job's manifest: comments, then YAML."""
    comments = [f"Imported from {job.source}.", *job.notes]
    comments += [f'"<{name}>" stands for an unknown value: fill it in.' for name in job.unknown]
    if job.suspended:
        comments.append(f"Suspended: {job.suspended}.")
    lines = [f"# {one_line(str(shown(comment)))}".rstrip() for comment in comments]
    return "\n".join([*lines, yaml_text(document(job, folder))])


@cache
def _dumper() -> type[SafeDumper]:
    """Return a writer of YAML with short collections in one line."""
    import yaml  # slow to import

    class Dumper(yaml.SafeDumper):
        """Writer without aliases, and with list items below their key."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            super().increase_indent(flow, False)

    def text_node(dumper: SafeDumper, text: str) -> Node:
        style = None if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else '"'
        if "\n" in text and all(line.isprintable() and line == line.rstrip() for line in text.split("\n")):
            style = "|"
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    def mapping_node(dumper: SafeDumper, value: Json) -> Node:
        return dumper.represent_mapping("tag:yaml.org,2002:map", value.items(), flow_style=_is_short(value))

    def list_node(dumper: SafeDumper, value: Sequence[Any]) -> Node:
        return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=_is_short(value))

    Dumper.add_representer(str, text_node)
    Dumper.add_representer(dict, mapping_node)
    Dumper.add_representer(list, list_node)
    return Dumper


def _is_short(value: Any) -> bool:
    """Return True for a collection of single values that fits into a line."""
    parts = [*value.values()] if isinstance(value, dict) else value
    if any(isinstance(part, dict | list) for part in parts):
        return not value
    texts = [str(part) for part in (*value, *parts)]
    # A colon would need quotes inside a line.
    has_lines = any("\n" in text or ":" in text for text in texts if isinstance(value, dict))
    return not has_lines and sum(len(text) + 2 for text in texts) < _WIDTH - (
        20 if isinstance(value, dict) else 0
    )


def yaml_text(value: Json) -> str:
    """Return a value as YAML, in the layout of a person."""
    import yaml

    text: str = yaml.dump(value, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=10**9)
    return text


def problems_of(job: Imported, text: str, path: str, real: Path, root: Path) -> list[Problem]:
    """Return the problems that `validate` finds in a job's manifest at a place that is maybe not written."""
    data = text.encode("utf-8", "backslashreplace")
    file = ManifestFile(path, str(real), len(data))
    diagnosed = diagnose(
        file, data, frozenset(), lambda file, written: package_folder(Path(file.real), written)
    )
    diagnosed.check(root)
    return [problem for problem in diagnosed.problems if problem.level == ERROR]


def is_to_fill_in(job: Imported, problem: Problem) -> bool:
    """Return True for a problem that a value which the source leaves open solves."""
    if _MISSING in problem.message:
        return True
    marked = {"spec": job.spec, "metadata": {"labels": job.labels}}
    return any(True for _ in names_in(value_at(marked, problem.pointer)))


def fill_missing(job: Imported, problem: Problem, values: Mapping[str, str]) -> bool:
    """Set the field that a problem misses, if a value of its name is given; return True if it was set."""
    match = re.match(r'"(\w+)"', problem.message)
    name = match[1] if match else ""
    around = value_at({"spec": job.spec}, problem.pointer)
    if name not in values or not isinstance(around, dict):
        return False
    around[name] = values[name]
    return True
