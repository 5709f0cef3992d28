"""Details of one job as text for a terminal: a row for each of its parts, with its name at the left.

Everything is untrusted: trainers choose metrics, file names and log lines. Each line passes `one_line` before
it is painted.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from reconciler.base.diagnostics import counted
from reconciler.base.sanitize import lines, one_line
from reconciler.model.claim import Claim, ClaimState, time_of
from reconciler.model.details import JobDetails, Output, OutputFile, Study, Trial, Value, Workers
from reconciler.model.job import PREFIX, SERVICE, LogEntry, State, service_word
from reconciler.model.reason import ReasonCode, because, held_reason
from reconciler.output.review import yaml_lines
from reconciler.output.terminal import (
    GAP,
    SIGNS,
    Paint,
    age,
    column_widths,
    duration,
    fitted,
    number_text,
    painter,
    width_of,
)
from reconciler.output.text import short_error
from reconciler.output.wording.cause import cause_headline, cause_remedy
from reconciler.output.wording.plan import reason_text
from reconciler.output.wording.published_place import published_text

_LABEL = 13  # columns of a row's name
_LEAST_ROOM = 20
_ESCAPED = 3  # columns that an escaped character takes more
_INDENT = 2  # of a table
_LEAST = 5  # columns of a cell
_MOST_LINES = 12
_MOST_TRIALS = 20
_LONGEST = 2000
_TIMES = " \N{MULTIPLICATION SIGN} "
_WIDTH = 10**9  # of a line of YAML: none is folded
_SHORT_SHA = 12
_ERRORS = ("ERROR", "CRITICAL", "ALERT", "EMERGENCY")
_NUMERIC = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,30})?(e[+-]?[0-9]{1,2})?", re.IGNORECASE)

Row = tuple[str | None, str, bool]
"""A row's name, its text, and True if it is cut and not wrapped.

The name is "" for a further line of the same row, and None for a line of a table, of the whole width.
"""


def details_text(
    details: JobDetails, now: datetime, width: int | None = None, *, colour: bool = False
) -> str:
    """Return the details of a job.

    Args:
        now: The time that ages are computed from, in UTC.
        width: The terminal's columns; None for no limit.
        colour: True to add colours, and the sign of the state.
    """
    paint = painter(colour=colour)
    head = one_line(_headline(details, now))
    state = details.state
    sign = f"{SIGNS[state]} " if colour and state else ""
    shown = [paint(state or "head", f"{sign}{_fitted(head, width and width - len(sign))}"), ""]
    for row in _rows(details, now, width):
        shown += _lines(row, width, paint)
    return "\n".join(shown)


def _fitted(text: str, width: int | None) -> str:
    return fitted(text, width).rstrip() if width else text


def _lines(row: Row, width: int | None, paint: Paint) -> Iterator[str]:
    """Yield the lines of a row."""
    name, text, is_cut = row
    plain = one_line(text)
    if name is None:
        yield one_line(f"  {_fitted(plain, width and width - _INDENT)}".rstrip())
        return
    room = max(_LEAST_ROOM, width - _LABEL) if width else None
    if room is None:
        parts = [plain]
    elif is_cut:
        parts = [_fitted(plain, room)]
    else:
        # `textwrap` counts characters, and some take two columns.
        narrow = room if width_of(plain) <= len(plain) else room // 2
        # A part that would begin with a command is escaped below.
        narrow -= _ESCAPED if "::" in plain or "##[" in plain else 0
        # A word stays whole, because a broken address can't be copied: the terminal wraps it.
        parts = textwrap.wrap(plain, narrow, break_on_hyphens=False, break_long_words=False) or [""]
    for number, part in enumerate(parts):
        # A command of GitHub's runner may begin at a line's first visible character.
        line = one_line(f"{'' if number else name:{_LABEL}}{part}".rstrip())
        label, rest = line[: len(name)], line[len(name) :]
        yield paint("head", label) + rest if name and not number else line


def _rows(details: JobDetails, now: datetime, width: int | None) -> Iterator[Row]:
    yield from _record(details, now)
    yield "", "", False
    yield from _task(details)
    if details.output is not None:
        yield "Output", details.output.uri, False
        # Without a run, nothing is listed.
        yield from _files(details.output, details.unread.get("output", "")) if details.create_time else ()
    if details.model:
        yield "Model", details.model, False
    if published := published_text(details):
        yield "Published", published, False
    yield from _metrics(details)
    if details.study is not None:
        yield from _study(details, details.study, width and width - _INDENT)
    yield from _owned(details)
    yield from _links(details)
    if details.resource and not details.is_gone:
        yield "", "", False
        yield from _log(details)


def _headline(details: JobDetails, now: datetime) -> str:
    state, ended, begun = details.state, time_of(details.end_time), time_of(details.start_time)
    words = [f"{details.base_name}  {_state(details)}"]
    if ended and not details.is_gone:
        words += [f", {age(now - ended)} ago"]
    elif begun and state is State.RUNNING:
        words += [f" for {duration(now - begun)}"]
    return "".join(words)


def _state(details: JobDetails) -> str:
    if details.is_gone:
        known = f"deleted outside; it was {details.state}"
        return known if details.state else "gone: its final state is unknown"
    if details.state is None:
        claim = details.claim
        words = {
            ClaimState.PENDING: "outcome unknown",
            ClaimState.REJECTED: "refused",
            ClaimState.HELD: "held",
        }
        if claim and claim.given_up:
            return "given up"
        suspended = "suspended: " if details.is_suspended else ""
        return words[claim.state] if claim and claim.state in words else f"{suspended}not submitted"
    word = service_word(details.state, details.service_state)
    return f"{details.state} ({word})" if word else details.state


def _record(details: JobDetails, now: datetime) -> Iterator[Row]:
    """Yield the rows about the run: its cause, name, manifest, commit and times."""
    if details.cause is not None:
        yield "Cause", cause_headline(details.cause), False
        yield "Next step", cause_remedy(details.cause), False
    attempt = f", attempt {details.attempt}" if details.attempt > 1 else ""
    yield "Job", f"{details.job_name} ({details.kind}{attempt} in {details.environment})", False
    if other := details.other_run:
        yield "Other run", f"{other.job_name}: {other.state}, with other content", False
    yield from _manifest(details)
    if details.commit:
        who = f" ({details.author})" if details.author else ""
        yield "Commit", f"{details.commit[:_SHORT_SHA]} {details.subject}".rstrip() + who, False
    yield from _times(details, now)


def _manifest(details: JobDetails) -> Iterator[Row]:
    manifest, unread = details.manifest, details.unread.get("manifest", "")
    if manifest.path:
        notes = {
            "changed": " (changed since: `reconciler plan` shows how)",
            "missing": " (no longer exists: moved or removed)",
        }
        line = f":{manifest.line}" if manifest.line else ""
        note = f" ({unread})" if unread else notes.get(manifest.relation, "")
        yield "Manifest", f"{manifest.path}{line}{note}", False
    elif unread:
        yield "Manifest", unread, False


def _times(details: JobDetails, now: datetime) -> Iterator[Row]:
    created, prepared = time_of(details.create_time), time_of(details.prepare_time)
    started, ended = time_of(details.start_time), time_of(details.end_time)
    if created is None:
        return
    yield "Submitted", f"{created:%Y-%m-%d %H:%M:%S} UTC, {age(now - created)} ago", False
    waited = started or ended or now
    if prepared and created <= prepared <= waited:
        parts = f"{span_text(prepared - created)} queued, {span_text(waited - prepared)} preparing"
        yield "Waited", f"{span_text(waited - created)}: {parts}", False
    else:
        yield "Waited", f"{span_text(waited - created)} in the queue and preparing", False
    if started:
        until = f", until {ended:%H:%M:%S} UTC" if ended else " so far"
        yield "Ran", f"{span_text((ended or now) - started)}{until}", False


def span_text(time: timedelta) -> str:
    """Return a duration, with tenths of a second below ten seconds."""
    seconds = time.total_seconds()
    return f"{max(0.0, seconds):.1f}s" if seconds < 10 else duration(time)


def _task(details: JobDetails) -> Iterator[Row]:
    """Yield the rows about the machines and what runs on them."""
    workers = details.workers
    yield from _by_worker("Machine", workers, machine_text)
    yield from _by_worker("Image", workers, lambda pool: pool.image)
    yield from _by_worker("Module", workers, lambda pool: pool.module)
    yield from _by_worker("Command", workers, lambda pool: _words(pool.command))
    yield from _by_worker("Arguments", workers, lambda pool: _words(pool.args))
    yield from _environment(workers)
    if details.spec and not workers:
        yield from _listed("Spec", [(line, True) for line in yaml_lines(details.spec)])
    for name, text in (
        ("Account", details.service_account),
        ("Network", details.network),
        ("Time limit", details.timeout),
    ):
        if text:
            yield name, text, False


def _by_worker(name: str, workers: Sequence[Workers], get: Callable[[Workers], str]) -> Iterator[Row]:
    """Yield one row if all workers have the same value, else one for each."""
    texts = [get(pool) for pool in workers]
    if name != "Machine" and len(set(texts)) == 1:
        workers, texts = workers[:1], texts[:1]
    pairs = [(pool, text) for pool, text in zip(workers, texts, strict=True) if text]
    for number, (pool, text) in enumerate(pairs):
        prefix = f"{pool.name}: " if len(workers) > 1 else ""
        yield "" if number else name, f"{prefix}{text}", False


def machine_text(workers: Workers) -> str:
    """Return number, type and accelerators of the machines of some workers."""
    machine = f"{workers.count}{_TIMES}{workers.machine or 'unknown machine'}"
    if not workers.accelerator:
        return machine
    suffix = " each" if workers.count > 1 else ""
    return f"{machine}{suffix} with {workers.accelerator_count}{_TIMES}{workers.accelerator}"


def _words(words: Sequence[str]) -> str:
    text = shlex.join(words)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _environment(workers: Sequence[Workers]) -> Iterator[Row]:
    envs = [(pool.name, pool.env) for pool in workers if pool.env]
    is_same = len({pool.env for pool in workers}) == 1
    texts = [
        (f"{prefix}{name}={value}", False)
        for worker, env in (envs[:1] if is_same else envs)
        for prefix in ["" if is_same else f"{worker}: "]
        for name, value in env
    ]
    yield from _listed("Environment", texts)


def _listed(name: str, texts: Sequence[tuple[str, bool]], noun: str = "line") -> Iterator[Row]:
    """Yield a row with the first texts, and the number of the others."""
    shown = texts if len(texts) <= _MOST_LINES else texts[: _MOST_LINES - 1]
    for number, (text, is_cut) in enumerate(shown):
        yield "" if number else name, text, is_cut
    if left := len(texts) - len(shown):
        yield "", f"… and {counted(left, f'more {noun}')}", False


def _files(output: Output, unread: str) -> Iterator[Row]:
    if output.folder and output.files:
        yield "", output.folder, False
    if unread:
        yield "", f"can't be read: {unread}", False
        return
    if not output.files:
        yield "", "empty", False
        return
    more = "" if output.is_complete else " and more"
    total = size_text(sum(file.size for file in output.files))
    older = sum(file.is_older for file in output.files)
    note = f"; {older} from before this run" if older else ""
    yield "", f"{counted(len(output.files), 'file')}{more}, {total}{more}{note}", False
    entries = _entries(output.files)
    widest = max(len(size) for size, _ in entries)
    yield from _listed("", [(f"  {size:>{widest}}  {entry}", True) for size, entry in entries], "entry")


def _entries(files: Sequence[OutputFile]) -> list[tuple[str, str]]:
    """Return size and name of each file; of many files, those of each folder at the top."""
    if len(files) <= _MOST_LINES:
        return [(size_text(file.size), file.name) for file in files]
    folders: dict[str, list[OutputFile]] = {}
    for file in files:
        head, slash, _ = file.name.partition("/")
        folders.setdefault(head + slash, []).append(file)
    return [
        (
            size_text(sum(file.size for file in members)),
            f"{name}  {counted(len(members), 'file')}" if "/" in name else name,
        )
        for name, members in folders.items()
    ]


def size_text(number: int) -> str:
    """Return a number of bytes in its largest unit."""
    size, units = float(number), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{number} bytes" if units[0] == "bytes" else f"{size:.1f} {units[0]}"


def _metrics(details: JobDetails) -> Iterator[Row]:
    name = "Metrics"
    for file in details.metrics:
        texts = (f"{key} {number_text(value)}" for key, value in file.values.items())
        yield name, f"{', '.join(texts)}  ({file.name})", False
        name = ""
    if unread := details.unread.get("metrics"):
        yield name, f"can't be read: {unread}", False


def _study(details: JobDetails, study: Study, room: int | None) -> Iterator[Row]:
    best = study.best
    if best is not None:
        values = ", ".join(f"{name} {value_text(value)}" for name, value in best.parameters.items())
        goal = study.goals[0]
        yield (
            "Best trial",
            f"{best.id}: {goal.metric} {number_text(best.metrics[goal.metric])} with {values}",
            False,
        )
        if details.output is not None:
            yield "", f"{details.output.uri}/{best.id}/", False
    if not study.trials:
        yield "Trials", f"none of {study.planned} has started", False
        return
    shown = study.trials[:_MOST_TRIALS]
    if best is not None and best not in shown:
        shown = (*shown[:-1], best)
    states = Counter(trial.state for trial in study.trials)
    counts = ", ".join(f"{number} {state}" for state, number in states.items())
    yield "Trials", f"{len(study.trials)} of at most {study.planned}: {counts}", False
    for line in _table([_columns(study), *(_cells(study, trial) for trial in shown)], room):
        yield None, line, True
    if left := len(study.trials) - len(shown):
        yield "", f"… and {counted(left, 'more trial')}: `--format json` has all", False
    failed = [trial for trial in study.trials if trial.reason]
    reasons = [(f"trial {trial.id}: {short_error(trial.reason)}", False) for trial in failed]
    yield from _listed("", reasons, "trial without a result")


def _columns(study: Study) -> list[str]:
    metrics = [goal.metric for goal in study.goals]
    return ["TRIAL", "STATE", *metrics, *parameters_of(study), "TIME"]


def parameters_of(study: Study) -> list[str]:
    """Return each parameter that any trial has, once, in the order of first appearance."""
    return [*dict.fromkeys(name for trial in study.trials for name in trial.parameters)]


def _cells(study: Study, trial: Trial) -> list[str]:
    started, ended = time_of(trial.start_time), time_of(trial.end_time)
    is_best = study.best is not None and trial.id == study.best.id
    metrics = [trial.metrics.get(goal.metric) for goal in study.goals]
    return [
        f"{trial.id} ★" if is_best else trial.id,
        trial.state,
        *("-" if value is None else number_text(value) for value in metrics),
        *(value_text(trial.parameters.get(name)) for name in parameters_of(study)),
        span_text(ended - started) if started and ended else "-",
    ]


def value_text(value: Value | None) -> str:
    """Return a parameter's value; "-" for None."""
    if value is None:
        return "-"
    number = number_of(value)
    return str(value) if number is None else number_text(number)


def number_of(value: Value | None) -> float | None:
    """Return a parameter's value as a number; None for any other value."""
    if isinstance(value, str):
        # AI Platform writes numbers as text.
        return float(value) if _NUMERIC.fullmatch(value) else None
    return value


def _table(rows: Sequence[Sequence[str]], room: int | None) -> Iterator[str]:
    """Yield a table's rows within the room; the last columns are left out if they don't fit."""
    plain = [[one_line(cell) for cell in row] for row in rows]
    natural = [max(map(width_of, column)) for column in zip(*plain, strict=True)]
    # Only the heads shrink, as long as the values fit.
    least = [max(map(width_of, column), default=_LEAST) for column in zip(*plain[1:], strict=True)]
    widths = column_widths(natural, [max(width, _LEAST) for width in least], room)
    for row in plain:
        yield (" " * GAP).join(fitted(cell, width) for cell, width in zip(row, widths, strict=True) if width)


def _owned(details: JobDetails) -> Iterator[Row]:
    """Yield the rows about labels and claims."""
    labels = [f"{name}={value}" for name, value in details.labels.items() if not name.startswith(PREFIX)]
    if labels:
        yield "Labels", " ".join(labels), False
    unread = details.unread.get("claim", "")
    yield "Claim", f"can't be read: {unread}" if unread else claim_words(details.claim, details), False
    for claim in details.unsettled:
        yield "", f"{claim.job_name} too: {claim_words(claim, details)}", False


def claim_words(claim: Claim | None, details: JobDetails) -> str:
    """Return a sentence about the record of a submission."""
    if claim is None:
        return (
            "none: no recorded request created this job"
            if details.resource
            else "none: nothing was submitted"
        )
    if claim.state is ClaimState.BOUND:
        made = "its request created this job"
        if len(claim.request_ids) > 1:
            made = f"one of {len(claim.request_ids)} requests created this job"
        return f"bound: {made}{', which the service no longer has' if details.is_gone else ''}"
    if claim.state is ClaimState.PENDING:
        return "pending: a request may have created a job; the next apply looks for it"
    if claim.state is ClaimState.REJECTED:
        later = f" after {claim.not_before:%H:%M:%S} UTC" if claim.not_before else ""
        return f"rejected: {claim.error}; apply submits it again{later}"
    reason = because(ReasonCode.GIVEN_UP) if claim.given_up else held_reason(claim)
    return f"held: {reason_text(reason, details.base_name)}"


def _links(details: JobDetails) -> Iterator[Row]:
    links, env = details.links, "" if details.environment == "local" else f" --env {details.environment}"
    name = details.job_name
    texts = [links.console, links.workflow_run]
    if details.resource and not (details.is_gone or details.on_runner):
        texts.append(f"reconciler logs {name}{env}")
        texts += [f"reconciler tensorboard {name}{env}"] if links.tensorboard else []
    elif details.claim is None:
        texts.append(f"reconciler plan{env}")
    for number, text in enumerate(filter(None, texts)):
        yield "" if number else "See", text, False


def _log(details: JobDetails) -> Iterator[Row]:
    if unread := details.unread.get("log"):
        yield "Log", f"can't be read: {unread}", False
    elif not details.log:
        yield "Log", "empty", False
    has_replicas = len({entry.replica for entry in details.log} - {SERVICE}) > 1
    for number, entry in enumerate(details.log):
        # A traceback is worth its whole lines; a run that succeeded only logged to its standard error.
        may_explain = bool(entry.shown_severity) or details.state is not State.SUCCEEDED
        is_cut = entry.severity not in _ERRORS or not may_explain
        yield "" if number else "Log", _entry(entry, has_replicas=has_replicas), is_cut


def _entry(entry: LogEntry, *, has_replicas: bool) -> str:
    time = time_of(entry.timestamp)
    trial = f"trial {entry.trial} " if entry.trial else ""
    replica = f"{entry.replica} " if has_replicas else ""
    moment = f"{time:%H:%M:%S}" if time else entry.timestamp
    return f"{moment} {entry.shown_severity}{trial}{replica}{' '.join(lines(entry.text))}"


def resource_yaml(resource: Mapping[str, object]) -> str:
    """Return a resource as YAML, in ASCII and inert on a terminal and in a workflow's log."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writer without aliases, with double quotes around texts that may hold a command."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    def text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        is_plain = one_line(text) == text
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain else '"')

    Dumper.add_representer(str, text_node)
    shown: str = yaml.dump(dict(resource), Dumper=Dumper, sort_keys=False, width=_WIDTH)
    # GitHub's runner takes "##[" for a command anywhere in a line; such texts are in double quotes.
    return shown.replace("##[", r"#\x23[")
