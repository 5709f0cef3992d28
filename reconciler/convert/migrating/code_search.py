"""Search of a trainer's source for places that Vertex AI treats differently.

The code is only parsed; a file of Python 2 is named, and not searched.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from reconciler.convert.migrating.rules import rules
from reconciler.packaging.source_tree import SourceFile

Topic = Literal["job-dir", "TF_CONFIG", "chief", "metric", "TPU", "not searched"]
_MOST_BYTES = 1_000_000
_REPORTS = "report_hyperparameter_tuning_metric"
_TAG = "hyperparameter_metric_tag"
_JOB_DIR = ("--job-dir", "--job_dir", "job-dir", "job_dir")
_RESOLVERS = ("TPUClusterResolver",)


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
    code_places: list[CodePlace] = []
    for file in files:
        if file.path.endswith(".py") and len(file.content) <= _MOST_BYTES:
            path = file.path if folder in ("", ".") else f"{folder}/{file.path}"
            code_places += _search_file(file.content, path, looked)
    if looked.metric and not any(_REPORTS.encode() in file.content for file in files):
        code_places.append(CodePlace("", 0, "metric", rules().code["noReports"].format(metric=looked.metric)))
    return sorted(set(code_places))


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
        tags = _texts([keyword.value for keyword in node.keywords if keyword.arg == _TAG]) or first[:1]
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
    texts = []
    for node in nodes:
        inner = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
        texts += [
            element.value
            for element in inner
            if isinstance(element, ast.Constant) and isinstance(element.value, str)
        ]
    return texts


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
