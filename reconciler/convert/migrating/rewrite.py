"""Conversion of AI Platform's `trainingInput` to a Vertex AI spec, and the text of migrated documents.

In a document `spec` is written anew, with its comments; the other parts stay.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import yaml
from msgspec import Struct
from yaml import BlockEntryToken, MappingNode, Node, ScalarNode, ScalarToken, SequenceNode

from reconciler.base.diagnostics import Keys
from reconciler.convert.importing.manifest import yaml_text
from reconciler.convert.migrating.pools import (
    POOLS,
    TRIAL,
    Machines,
    fits_flex_start,
    machines_of,
    report_environment,
    report_region,
    report_task,
    worker_pools,
)
from reconciler.convert.migrating.report import Report, mapping
from reconciler.manifests.yaml_load import load_documents
from reconciler.model.manifest import DEFAULT_METRIC

_SCALES = "scaleType"


class Converted(Struct, frozen=True):
    """A migrated job.

    Attributes:
        kind: `CustomJob` or `HyperparameterTuningJob`.
        spec: The new `spec`.
        replicas: Number of replicas, of a trial for a tuning job.
        report: About each field.
    """

    kind: str
    spec: Json
    replicas: int
    report: Report


def convert(
    given: Json,
    name: str,
    *,
    has_labels: bool,
    location: str = "",
    overridden: Collection[str] = (),
    image: str = "",
) -> Converted:
    """Convert a valid `trainingInput` in plain form.

    Args:
        given: The `trainingInput`.
        name: The manifest's base name.
        has_labels: True if the manifest has labels.
        location: The environment's; "" if it has none.
        overridden: The images and runtimes that `images` of `reconciler.yaml` has.
        image: The image that will replace the runtime's, for the report; "" for none.
    """
    report = Report()
    report.add("name", name=name)
    if has_labels:
        report.add("labels")
        report.add("later labels")
    region = str(given.get("region") or location)
    if given.get("region"):
        report_region(region, location, report)
    machines = machines_of(given, report)
    report_task(given, machines, region, report, overridden=overridden, image=image)
    words = _job_dir(given, report)
    spec: Json = {POOLS: worker_pools(given, machines, words, region, report)}
    _add_scheduling(given, machines, spec, report)
    _add_rest(given, spec, report)
    replicas = sum(group.count for group in machines)
    report_environment(given, machines, replicas, report)
    key = mapping(given.get("encryptionConfig")).get("kmsKeyName")
    encryption = {"encryptionSpec": {"kmsKeyName": key}} if key else {}
    if key:
        report.add("key", ("encryptionConfig", "kmsKeyName"))
    if "hyperparameters" in given:
        # What moved into the job's spec moves once more.
        report.moves = {old: (TRIAL, *new) for old, new in report.moves.items()}
        whole = {**_study(dict(given["hyperparameters"]), report), TRIAL: spec, **encryption}
        return Converted("HyperparameterTuningJob", whole, replicas, report)
    return Converted("CustomJob", {**spec, **encryption}, replicas, report)


def _job_dir(given: Json, report: Report) -> list[str]:
    """Report `jobDir`, and return the arguments that AI Platform appended for it."""
    if not (folder := given.get("jobDir")):
        return []
    rule = "job-dir of trials" if "hyperparameters" in given else "job-dir"
    report.add(rule, ("jobDir",), ("baseOutputDirectory",))
    report.add("output variables", ("jobDir",), base=f"{folder.rstrip('/')}/")
    return ["--job-dir", folder]


def _add_scheduling(given: Json, machines: list[Machines], spec: Json, report: Report) -> None:
    scheduling, new = mapping(given.get("scheduling")), {}
    keys = ("scheduling",)
    report.move(keys, keys)
    if "maxRunningTime" in scheduling:
        new["timeout"] = scheduling["maxRunningTime"]
        report.add("timeout", (*keys, "maxRunningTime"), (*keys, "timeout"))
    if "maxWaitTime" in scheduling:
        wait_keys = (*keys, "maxWaitTime")
        if fits_flex_start(machines, scheduling):
            new |= {"strategy": "FLEX_START", "maxWaitDuration": scheduling["maxWaitTime"]}
            report.add("wait", wait_keys, (*keys, "maxWaitDuration"))
        else:
            report.add("lost wait", wait_keys, machines="L4, A100, H100, H200 and B200")
    if "priority" in scheduling:
        report.add("priority", (*keys, "priority"))
    if new:
        spec["scheduling"] = new


def _add_rest(given: Json, spec: Json, report: Report) -> None:
    """Add the fields that both services have."""
    rules = {"network": "network", "serviceAccount": "account", "enableWebAccess": "web access"}
    for field in rules:
        if field in given:
            spec[field] = given[field]
            report.add(rules[field], (field,), (field,))
    if given.get("jobDir"):
        spec["baseOutputDirectory"] = {"outputUriPrefix": given["jobDir"]}


# --- Tuning ---------------------------------------------------------------------------------------------


def _study(tuning: Json, report: Report) -> Json:
    """Return the parts of a HyperparameterTuningJob beside its trials' job."""
    keys, study_keys = ("hyperparameters",), ("studySpec",)
    report.add("tuning", keys, study_keys)
    metric = tuning.get("hyperparameterMetricTag", DEFAULT_METRIC)
    report.add("goal", (*keys, "goal"), (*study_keys, "metrics", 0, "goal"))
    metric_keys = (*study_keys, "metrics", 0, "metricId")
    report.add("metric", (*keys, "hyperparameterMetricTag"), metric_keys, metric=metric)
    report.move((*keys, "params"), (*study_keys, "parameters"))
    parameters = enumerate(tuning.get("params", ()))
    study: Json = {
        "metrics": [{"metricId": metric, "goal": tuning.get("goal", "MAXIMIZE")}],
        "parameters": [_parameter(dict(parameter), index, report) for index, parameter in parameters],
    }
    if "algorithm" in tuning:
        study["algorithm"] = tuning["algorithm"]
        report.add("algorithm", (*keys, "algorithm"), (*study_keys, "algorithm"))
    if tuning.get("enableTrialEarlyStopping"):
        stopping = "medianAutomatedStoppingSpec"
        study[stopping] = {}
        report.add("early stopping", (*keys, "enableTrialEarlyStopping"), (*study_keys, stopping))
    whole: Json = {"studySpec": study, "maxTrialCount": tuning.get("maxTrials", 1)}
    report.add("trials", (*keys, "maxTrials"), ("maxTrialCount",))
    whole["parallelTrialCount"] = tuning.get("maxParallelTrials", 1)
    report.move((*keys, "maxParallelTrials"), ("parallelTrialCount",))
    if "maxFailedTrials" in tuning:
        whole["maxFailedTrialCount"] = tuning["maxFailedTrials"]
        report.add("failed trials", (*keys, "maxFailedTrials"), ("maxFailedTrialCount",))
    if "resumePreviousJobId" in tuning:
        report.add("resume", (*keys, "resumePreviousJobId"))
    return whole


def _parameter(given: Json, index: int, report: Report) -> Json:
    keys: Keys = ("hyperparameters", "params", index)
    new_keys: Keys = ("studySpec", "parameters", index)
    report.move(keys, new_keys)
    report.add("parameter", (*keys, "parameterName"), (*new_keys, "parameterId"))
    kind, scale = given.get("type", ""), given.get(_SCALES)
    field = f"{kind.lower()}ValueSpec"
    new: Json = {"parameterId": given.get("parameterName", "")}
    if kind in ("CATEGORICAL", "DISCRETE"):
        source = f"{kind.lower()}Values"
        new[field] = {"values": given.get(source, [])}
        report.add("values", (*keys, source), (*new_keys, field, "values"))
    else:
        bounds = {bound: given.get(bound, 0) for bound in ("minValue", "maxValue")}
        wholes = {bound: _whole(value) for bound, value in bounds.items()}
        new[field] = wholes if kind == "INTEGER" else bounds
        report.add(kind, (*keys, "type"))
        for bound in bounds:
            report.move((*keys, bound), (*new_keys, field, bound))
    if scale == "NONE":
        report.add("no scale", (*keys, _SCALES))
    elif scale:
        new[_SCALES] = scale
        report.add("parameter scale", (*keys, _SCALES), (*new_keys, _SCALES))
    return new


def _whole(value: Any) -> Any:
    """Return a bound as an integer, if it is one in another form."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return int(value) if isinstance(value, str) and value.lstrip("-").isdecimal() else value


Json = dict[str, Any]
_KEPT = ("metadata", "package")
_HEADER = re.compile(r"[|>][-+0-9]*\s+(#.*)")
_END = re.compile(r"(---|\.\.\.)(\s|$)")


class NewDocument(Struct, frozen=True):
    """New content of one document of a file.

    Attributes:
        line: First line of the document's content in the file, from 1.
        value: All of its content.
        moves: Path of a value in the old document -> its path in the new one.
        remark: The comment on `suspend: true`; "" for a document that isn't suspended anew.
    """

    line: int
    value: Json
    moves: Mapping[Keys, Keys]
    remark: str = ""


class _Comment(Struct, frozen=True):
    """Comment of a document: its line from 0, its text, and True if it is behind a value."""

    line: int
    text: str
    is_trailing: bool


def rewritten(data: bytes, documents: Sequence[NewDocument]) -> bytes:
    """Return a file with other content in some of its documents.

    Raises:
        ValueError: The file isn't written in a form that can be changed safely.
    """
    text = data.decode("utf-8-sig")
    mark = data[: len(data) - len(text.encode())]
    is_dos = "\r\n" in text
    lines = text.replace("\r\n", "\n").split("\n")
    before, _ = load_documents(data, "")
    changed = {document.line: document for document in documents}
    expected = [
        changed[document.line].value if document.line in changed else document.value for document in before
    ]
    try:
        _replace(lines, documents)
    except yaml.YAMLError as error:
        raise ValueError("it isn't written in a form that can be changed safely") from error
    whole = "\n".join(lines)
    after = mark + (whole.replace("\n", "\r\n") if is_dos else whole).encode()
    new_documents, problems = load_documents(after, "")
    if problems or [document.value for document in new_documents] != expected:
        raise ValueError("it isn't written in a form that can be changed safely")
    return after


def _replace(lines: list[str], documents: Sequence[NewDocument]) -> None:
    """Replace the lines of documents, the last one first."""
    for document in sorted(documents, key=lambda document: -document.line):
        first = document.line - 1
        last = next((at for at in range(first + 1, len(lines)) if _END.match(lines[at])), len(lines))
        while last > first and not lines[last - 1].strip():
            last -= 1
        lines[first:last] = _new_lines(lines[first:last], document)


def _new_lines(lines: list[str], document: NewDocument) -> list[str]:
    """Return the lines of one document: part by part, or all anew if it can't be taken apart."""
    new = None
    # An alias may lead to an anchor in another part.
    with suppress(yaml.YAMLError):
        new = _by_parts(lines, document)
    if new is not None:
        new_documents, problems = load_documents("\n".join([*new, ""]).encode(), "")
        if not problems and [new_document.value for new_document in new_documents] == [document.value]:
            return new
    return _anew(lines, document.value, document.moves, document.remark)


def _by_parts(lines: list[str], document: NewDocument) -> list[str] | None:
    """Return the lines with only the changed parts written anew; None if that fails."""
    root = yaml.compose("\n".join(lines), Loader=yaml.SafeLoader)
    if not isinstance(root, MappingNode) or root.flow_style or root.start_mark.column:
        return None
    starts = [(key.value, key.start_mark.line, value) for key, value in root.value]
    if any(value.start_mark.line < line for _, line, value in starts):
        return None  # an alias: its value is in another place
    new = lines[: starts[0][1]]
    ends = [_above_comments(lines, line) for _, line, _ in starts[1:]]
    has_policy = any(name == "reconcile" for name, _, _ in starts)
    for (name, line, value), begin, end in zip(
        starts, [starts[0][1], *ends], [*ends, len(lines)], strict=True
    ):
        leading, part = lines[begin:line], lines[line:end]
        if name == "spec":
            if document.remark and not has_policy:
                new += ["reconcile:", f"  suspend: true # {document.remark}"]
            new += _part(leading, part, document.value["spec"], document.moves)
        elif name in ("apiVersion", "kind") and value.start_mark.line == value.end_mark.line == line:
            start, stop = value.start_mark.column, value.end_mark.column
            new += [*leading, part[0][:start] + document.value[name] + part[0][stop:], *part[1:]]
        elif name == "package" and (module := document.value["package"].get("module", "")):
            new += [*leading, *_with_module(part, value, line, module)]
        elif name == "reconcile" and document.remark:
            new += [*leading, *_suspended(part, value, line, document.remark)]
        else:
            new += [*leading, *part]
    return new


def _part(leading: list[str], part: list[str], spec: Json, moves: Mapping[Keys, Keys]) -> list[str]:
    """Return the lines of `spec`, and blank lines behind it."""
    stop = len(part)
    while stop and not part[stop - 1].strip():
        stop -= 1
    return [*leading, *_anew(part[:stop], {"spec": spec}, moves), *part[stop:]]


def _with_module(part: list[str], value: Node, first: int, module: str) -> list[str]:
    """Return the lines of `package`, which is a mapping, with a module behind its last entry."""
    assert isinstance(value, MappingNode), "a valid manifest has a mapping there"
    new, entry = list(part), f"module: {module}"
    if any(key.value == "module" for key, _ in value.value):
        return new
    end = value.value[-1][1].end_mark
    row = end.line - first
    if value.flow_style:
        new[row] = f"{new[row][: end.column]}, {entry}{new[row][end.column :]}"
        return new
    return [*new[: row + 1], f"{' ' * value.start_mark.column}{entry}", *new[row + 1 :]]


def _suspended(part: list[str], value: Node, first: int, remark: str) -> list[str]:
    """Return the lines of `reconcile`, which is a mapping, with `suspend: true`."""
    assert isinstance(value, MappingNode), "a valid manifest has a mapping there"
    given = next((entry for key, entry in value.value if key.value == "suspend"), None)
    new = list(part)
    if given is not None:
        row, start, stop = given.start_mark.line - first, given.start_mark.column, given.end_mark.column
        new[row] = f"{new[row][:start]}true{new[row][stop:]}"
        if value.flow_style or "#" in new[row][start:]:
            return [f"# {remark}", *new]
        return [*new[:row], f"{new[row]} # {remark}", *new[row + 1 :]]
    row, column = value.start_mark.line - first, value.start_mark.column
    if value.flow_style:
        comma = ", " if value.value else ""
        new[row] = f"{new[row][: column + 1]}suspend: true{comma}{new[row][column + 1 :]}"
        return [f"# {remark}", *new]
    return [*new[:row], f"{' ' * column}suspend: true # {remark}", *new[row:]]


def _above_comments(lines: list[str], line: int) -> int:
    """Return the first of the comment lines right above a line."""
    while line and lines[line - 1].startswith("#"):
        line -= 1
    return line


def _anew(lines: list[str], value: Json, moves: Mapping[Keys, Keys], remark: str = "") -> list[str]:
    """Return a value as lines of YAML, with the comments of the old lines at the new places."""
    old = "\n".join(lines)
    new = yaml_text(value).rstrip("\n").split("\n")
    line_numbers = {keys: line for line, keys in _places("\n".join(new))}
    above: dict[int, list[str]] = {}
    behind: dict[int, str] = {}
    if remark and "reconcile" in value:
        above[line_numbers["reconcile",]] = [f"# {remark}"]
    olds = list(_places(old))
    for comment in _comments(old):
        line, is_exact = _new_line(comment, olds, line_numbers, moves, len(new))
        is_free = is_exact and line < len(new) and line not in behind
        if comment.is_trailing and is_free and _takes_comment(new[line]):
            behind[line] = comment.text
        else:
            above.setdefault(line, []).append(comment.text)
    made: list[str] = []
    for number, text in enumerate(new):
        indent = text[: len(text) - len(text.lstrip())]
        made += (f"{indent}{comment}" for comment in above.get(number, ()))
        made.append(f"{text} {behind[number]}" if number in behind else text)
    return [*made, *(f"  {comment}" for comment in above.get(len(new), ()))]


def _takes_comment(line: str) -> bool:
    return not line.rstrip().endswith(("|", "|-", "|+", ">", ">-", ">+")) and "\t" not in line


def _new_line(
    comment: _Comment,
    olds: list[tuple[int, Keys]],
    line_numbers: Mapping[Keys, int],
    moves: Mapping[Keys, Keys],
    end: int,
) -> tuple[int, bool]:
    """Return the new line of a comment, and True if its own field is there; `end` behind everything."""
    if comment.is_trailing:
        at = max((line for line, _ in olds if line <= comment.line), default=0)
    else:
        following = [line for line, _ in olds if line > comment.line]
        if not following:
            return end, False
        at = min(following)
    candidates = [keys for line, keys in olds if line == at]
    keys = min(candidates, key=len, default=())
    return _moved(keys, line_numbers, moves)


def _moved(keys: Keys, line_numbers: Mapping[Keys, int], moves: Mapping[Keys, Keys]) -> tuple[int, bool]:
    """Return the line of a moved value and True, or that of its nearest parent that moved and False."""
    for length in range(len(keys), -1, -1):
        head, tail = keys[:length], keys[length:]
        target = moves.get(head, head if not moves or head[:2] != ("spec", "trainingInput") else None)
        if target is None:
            continue
        for rest in range(len(tail), -1, -1):
            if (*target, *tail[:rest]) in line_numbers:
                return line_numbers[(*target, *tail[:rest])], rest == len(tail)
    return min(line_numbers.values(), default=0), False


def _places(text: str) -> Iterator[tuple[int, Keys]]:
    """Yield the line, from 0, and the path of each value of a document."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    waiting: list[tuple[Keys, Node]] = [((), root)] if root is not None else []
    seen: set[int] = set()
    while waiting:
        keys, node = waiting.pop()
        # An alias leads to a node a second time, maybe to one around itself.
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, MappingNode):
            for key, value in node.value:
                if isinstance(key, ScalarNode):
                    yield key.start_mark.line, (*keys, key.value)
                    waiting.append(((*keys, key.value), value))
        elif isinstance(node, SequenceNode):
            for index, value in enumerate(node.value):
                yield value.start_mark.line, (*keys, index)
                waiting.append(((*keys, index), value))


def _comments(text: str) -> Iterator[_Comment]:
    """Yield the comments of a document: "#" outside of all values, at a line's start or behind a blank."""
    lines = text.split("\n")
    covered: dict[int, int] = {}
    inside: set[int] = set()
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        first, last = token.start_mark, token.end_mark
        if isinstance(token, BlockEntryToken) or first.index == last.index:
            continue
        if isinstance(token, ScalarToken) and token.style in ("|", ">"):
            header = lines[first.line][first.column :]
            if match := _HEADER.match(header):
                yield _Comment(first.line, match[1], True)
            inside.update(range(first.line, last.line if last.column == 0 else last.line + 1))
            continue
        inside.update(range(first.line + 1, last.line))
        covered[last.line] = max(covered.get(last.line, 0), last.column)
        if last.line > first.line:
            inside.add(first.line)
    for number, line in enumerate(lines):
        if number in inside:
            continue
        start = line.find("#", covered.get(number, 0))
        if start >= 0 and (start == 0 or line[start - 1] in " \t"):
            is_trailing = bool(line[:start].strip())
            yield _Comment(number, line[start:].rstrip(), is_trailing)
