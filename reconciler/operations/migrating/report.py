"""Report of a migration: a row for each field of a job, places in its trainer's source, and its requirements.

The rules and sentences are in `schemas/migration.json`. The code is only parsed; a file of Python 2 is named,
and not searched.
"""

from __future__ import annotations

import ast
import configparser
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal

from msgspec import Struct, field, json

from reconciler.base.diagnostics import Keys
from reconciler.manifests.schemas import folder
from reconciler.packaging.source_tree import SourceFile

Verdict = Literal["exact", "translated", "changes behaviour", "lost"]
VERDICTS: tuple[Verdict, ...] = ("lost", "changes behaviour", "translated", "exact")
"""The verdicts, those that need attention first."""


Topic = Literal["job-dir", "TF_CONFIG", "chief", "metric", "TPU", "not searched"]
_MOST_BYTES = 1_000_000
_REPORTS = "report_hyperparameter_tuning_metric"
_TAG = "hyperparameter_metric_tag"
_JOB_DIR = ("--job-dir", "--job_dir", "job-dir", "job_dir")
_RESOLVERS = ("TPUClusterResolver",)


class FieldRule(Struct, frozen=True):
    """Rule for one field of AI Platform; `sentence` has names in braces, to fill in."""

    source: str
    target: str
    verdict: Verdict
    sentence: str


class PoolRule(Struct, frozen=True, rename="camel"):
    """Machines of one pool of a scale tier."""

    machine_type: str
    replica_count: int
    accelerator_type: str = ""
    accelerator_count: int = 0


class TierRule(Struct, frozen=True):
    """Rule for a scale tier; CUSTOM has no pools of its own."""

    verdict: Verdict
    pools: tuple[PoolRule, ...]
    sentence: str = ""


class MachineRule(Struct, frozen=True, rename="camel"):
    """Rule for one of AI Platform's own names of machines."""

    machine_type: str
    verdict: Verdict
    accelerator_type: str = ""
    accelerator_count: int = 0
    sentence: str = ""


class RuntimeRule(Struct, frozen=True):
    """Rule for a runtime version; `image` ends the names of its images."""

    image: str
    verdict: Verdict


class Rules(Struct, frozen=True, rename="camel"):
    """Content of `schemas/migration.json`.

    Attributes:
        libraries: Other libraries of a runtime version.
        fields: By a short name.
        code: Sentences about places in a trainer's code.
        way_out: The advice for an image past its end.
    """

    tiers: dict[str, TierRule]
    machines: dict[str, MachineRule]
    runtimes: dict[str, RuntimeRule]
    libraries: dict[str, str]
    fields: dict[str, FieldRule]
    code: dict[str, str]
    way_out: str


@cache
def rules() -> Rules:
    """Return the rules of migration."""
    return json.decode((folder() / "migration.json").read_bytes(), type=Rules)


class Row(Struct, frozen=True):
    """Line of the report about one field.

    Attributes:
        source: The field of AI Platform, or the part of its behaviour.
        target: The place in the new manifest; "" for none.
        sentence: The next step, or the difference; "" if nothing differs.
        keys: The path of the field in `trainingInput`; () for no single field.
    """

    source: str
    target: str
    verdict: Verdict
    sentence: str
    keys: Keys = ()


class Obstacle(Struct, frozen=True):
    """Reason why a job can't be migrated before a person has decided.

    Attributes:
        keys: The path of the field in `trainingInput`.
    """

    keys: Keys
    message: str
    hint: str


class Report(Struct):
    """Findings about one job, filled while it is converted.

    Attributes:
        rows: In the order of the fields.
        obstacles: What prevents the migration.
        moves: Path in `trainingInput` -> path in the new `spec`, for comments and problems.
    """

    rows: list[Row] = field(default_factory=list)
    obstacles: list[Obstacle] = field(default_factory=list)
    moves: dict[Keys, Keys] = field(default_factory=dict)

    def add(self, rule: str, keys: Keys = (), moved: Keys = (), **values: object) -> None:
        """Add the row of a rule, and record the field's new place if `moved` has one.

        `values` fill the names in the rule's texts.
        """
        found = rules().fields[rule]
        source, target = found.source.format(**values), found.target.format(**values)
        # A value may contain braces, which are no names.
        self.rows.append(Row(source, target, found.verdict, found.sentence.format(**values), keys))
        if moved:
            self.move(keys, moved)

    def add_row(self, source: str, target: str, verdict: Verdict, sentence: str, keys: Keys) -> None:
        """Add a row of another table."""
        self.rows.append(Row(source, target, verdict, sentence, keys))

    def refuse(self, keys: Keys, message: str, hint: str) -> None:
        """Add an obstacle."""
        self.obstacles.append(Obstacle(keys, message, hint))

    def move(self, source: Keys, target: Keys) -> None:
        """Record the new place of a field; the first place counts."""
        self.moves.setdefault(source, target)


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping itself, and an empty one for other values."""
    return value if isinstance(value, dict) else {}


# --- Code ---------------------------------------------------------------------------------------------------


class CodePlace(Struct, frozen=True, order=True):
    """Place in a trainer's source.

    Attributes:
        path: The file, relative to the repository's root; "" for the package as a whole.
        line: From 1; 0 for the package as a whole.
        topic: What it is about.
        sentence: What the code does, and what to do about it.
    """

    path: str
    line: int
    topic: Topic
    sentence: str


class Dependencies(Struct, frozen=True):
    """Requirements that pip installed with a package.

    Attributes:
        file: The file in the package that lists them.
        found: The requirements; empty if code computes them.
    """

    file: str
    found: tuple[str, ...]


class Looked(Struct, frozen=True):
    """Properties of the job that decide which places matter.

    Attributes:
        replicas: Number of replicas.
        job_dir: True if the job has a `jobDir`.
        metric: The metric of a tuning job; "" for other jobs.
        on_tpu: True if it runs on a TPU.
    """

    replicas: int
    job_dir: bool
    metric: str = ""
    on_tpu: bool = False


def search(files: Sequence[SourceFile], folder: str, looked: Looked) -> list[CodePlace]:
    """Return what matters for migration in a package's code; `folder` is its path from the root."""
    found: list[CodePlace] = []
    for file in files:
        if file.path.endswith(".py") and len(file.content) <= _MOST_BYTES:
            path = file.path if folder in ("", ".") else f"{folder}/{file.path}"
            found += _search_file(file.content, path, looked)
    if looked.metric and not any(_REPORTS.encode() in file.content for file in files):
        found.append(CodePlace("", 0, "metric", rules().code["noReports"].format(metric=looked.metric)))
    return sorted(set(found))


def _search_file(content: bytes, path: str, looked: Looked) -> Iterator[CodePlace]:
    try:
        with warnings.catch_warnings():
            # Python warns of odd escapes in the code; these are not this command's warnings.
            warnings.simplefilter("ignore")
            tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        reason = getattr(error, "msg", None) or "it can't be parsed"
        yield CodePlace(path, line, "not searched", rules().code["notRead"].format(reason=reason))
        return
    for node in ast.walk(tree):
        for topic, sentence in _of_node(node, looked):
            yield CodePlace(path, getattr(node, "lineno", 1), topic, sentence)


def _of_node(node: ast.AST, looked: Looked) -> Iterator[tuple[Topic, str]]:
    code = rules().code
    if isinstance(node, ast.Constant) and node.value == "TF_CONFIG":
        yield "TF_CONFIG", code["severalReplicas" if looked.replicas > 1 else "oneReplica"]
    elif isinstance(node, ast.Compare) and "master" in _texts([node.left, *node.comparators]):
        yield "chief", code["master"]
    elif isinstance(node, ast.Subscript) and _is_job_dir(node):
        yield "TF_CONFIG", code["jobDirInTfConfig"]
    elif isinstance(node, ast.Call):
        yield from _of_call(node, looked)


def _of_call(node: ast.Call, looked: Looked) -> Iterator[tuple[Topic, str]]:
    code, name = rules().code, _name(node.func)
    first = _texts(node.args)
    is_option = name == "add_argument" or name.startswith("DEFINE_")  # argparse, absl and TensorFlow's flags
    if is_option and looked.job_dir and any(text in _JOB_DIR for text in first):
        yield "job-dir", code["jobDirOfTrials" if looked.metric else "jobDir"]
    elif name == "get" and first[:1] == ["job_dir"] and _is_job(node.func):
        yield "TF_CONFIG", code["jobDirInTfConfig"]
    elif name == _REPORTS and looked.metric:
        tags = _texts([each.value for each in node.keywords if each.arg == _TAG]) or first[:1]
        is_other = bool(tags) and tags[0] != looked.metric
        sentence = code["otherMetric"] if is_other else code["reports"]
        yield "metric", sentence.format(found=tags[0] if tags else "", metric=looked.metric)
    elif looked.metric and _is_summary(node.func):
        yield "metric", code["summaries"].format(metric=looked.metric)
    elif name in _RESOLVERS and looked.on_tpu:
        yield "TPU", code["tpu"]


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _texts(nodes: Sequence[ast.expr]) -> list[str]:
    """Return the literal texts among some expressions, and in literal lists of them."""
    found = []
    for node in nodes:
        inner = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
        found += [
            each.value for each in inner if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
    return found


def _is_job_dir(node: ast.Subscript) -> bool:
    return _texts([node.slice]) == ["job_dir"] and _names_job(node.value)


def _is_job(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and _names_job(function.value)


def _names_job(node: ast.expr) -> bool:
    """Return True for `x["job"]` and `x.get("job", …)`."""
    if isinstance(node, ast.Subscript):
        return _texts([node.slice]) == ["job"]
    return isinstance(node, ast.Call) and _name(node.func) == "get" and _texts(node.args)[:1] == ["job"]


def _is_summary(function: ast.expr) -> bool:
    """Return True for `….summary.scalar` and `add_scalar`."""
    if not isinstance(function, ast.Attribute):
        return False
    return function.attr == "add_scalar" or (function.attr == "scalar" and _name(function.value) == "summary")


def dependencies(files: Sequence[SourceFile]) -> Dependencies | None:
    """Return what pip installed with a package, by its build files; None for nothing. Runs no code."""
    contents = {file.path: file.content for file in files}
    readers = {"setup.py": _of_setup, "setup.cfg": _of_configuration, "pyproject.toml": _of_project}
    for name, read in readers.items():
        found = read(contents[name]) if name in contents else ()
        if found is None or found:
            return Dependencies(name, found or ())
    if "setup.py" in contents or "requirements.txt" not in contents:
        return None
    lines = contents["requirements.txt"].decode("utf-8", "replace").splitlines()
    listed = tuple(line for each in lines if (line := each.partition("#")[0].strip()))
    return Dependencies("requirements.txt", listed) if listed else None


def _of_setup(content: bytes) -> tuple[str, ...] | None:
    """Return `install_requires` of a setup.py; None if it isn't written out."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    values = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            if keyword.arg == "install_requires":
                named = keyword.value
                return _literals(values.get(named.id) if isinstance(named, ast.Name) else named)
    return ()


def _literals(node: ast.expr | None) -> tuple[str, ...] | None:
    if not isinstance(node, ast.List | ast.Tuple):
        return None
    found = [each.value for each in node.elts if isinstance(each, ast.Constant)]
    texts = tuple(each for each in found if isinstance(each, str))
    return texts if len(texts) == len(node.elts) else None


def _of_configuration(content: bytes) -> tuple[str, ...] | None:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(content.decode("utf-8", "replace"))
    except configparser.Error:
        return None
    lines = parser.get("options", "install_requires", fallback="").splitlines()
    return tuple(line.strip() for line in lines if line.strip())


def _of_project(content: bytes) -> tuple[str, ...] | None:
    try:
        project = tomllib.loads(content.decode("utf-8", "replace")).get("project", {})
    except (ValueError, RecursionError):
        return None
    if "dependencies" in mapping(project).get("dynamic", ()):
        return None
    listed = mapping(project).get("dependencies", ())
    return tuple(map(str, listed)) if isinstance(listed, list | tuple) else None
