"""Search of a trainer's source for places that Vertex AI treats differently.

The code is only parsed; a file of Python 2 is named, and not searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from reconciler.convert.migrating.rules import rules
from reconciler.packaging.code_facts import REPORT, FileFacts, Use, UseKind
from reconciler.packaging.python_syntax import MAX_FILES, UnreadCodeError
from reconciler.packaging.source_tree import SourceFile
from reconciler.packaging.trainer_code import TrainerReader

Topic = Literal["job-dir", "TF_CONFIG", "chief", "metric", "TPU", "not searched"]
_JOB_DIR = frozenset({"job-dir", "job_dir"})


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
    reader = TrainerReader()
    python_files = [file for file in files if file.path.endswith(".py")]
    for file in python_files[:MAX_FILES]:
        path = file.path if folder in ("", ".") else f"{folder}/{file.path}"
        try:
            facts = reader.file_facts(file)
        except UnreadCodeError as error:
            sentence = rules().code["notRead"].format(reason=error.reason)
            code_places.append(CodePlace(path, error.line, "not searched", sentence))
            continue
        code_places += (CodePlace(path, *place) for place in _places(facts, looked))
    if len(python_files) > MAX_FILES:
        code_places.append(CodePlace("", 0, "not searched", rules().code["many"].format(files=MAX_FILES)))
    if looked.metric and not any(REPORT.encode() in file.content for file in files):
        code_places.append(CodePlace("", 0, "metric", rules().code["noReports"].format(metric=looked.metric)))
    return sorted(set(code_places))


def _places(facts: FileFacts, looked: Looked) -> Iterator[tuple[int, Topic, str]]:
    """Yield line, topic and sentence of what matters in a file."""
    for use in facts.uses:
        for topic, sentence in _of_use(use, looked):
            yield use.line, topic, sentence
    for option in facts.options:
        if looked.job_dir and not _JOB_DIR.isdisjoint(option.names):
            yield option.line, "job-dir", rules().code["jobDirOfTrials" if looked.metric else "jobDir"]


def _of_use(use: Use, looked: Looked) -> Iterator[tuple[Topic, str]]:
    code = rules().code
    match use.kind:
        case UseKind.NAMES_VARIABLE if use.name == "TF_CONFIG":
            yield "TF_CONFIG", code["severalReplicas" if looked.replicas > 1 else "oneReplica"]
        case UseKind.COMPARES_WITH_MASTER:
            yield "chief", code["master"]
        case UseKind.JOB_DIR_IN_TF_CONFIG:
            yield "TF_CONFIG", code["jobDirInTfConfig"]
        case UseKind.REPORTS_METRIC if looked.metric:
            sentence = code["otherMetric" if use.name not in ("", looked.metric) else "reports"]
            yield "metric", sentence.format(found=use.name, metric=looked.metric)
        case UseKind.WRITES_SUMMARY if looked.metric:
            yield "metric", code["summaries"].format(metric=looked.metric)
        case UseKind.RESOLVES_TPU if looked.on_tpu:
            yield "TPU", code["tpu"]
