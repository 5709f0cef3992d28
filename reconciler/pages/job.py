"""Values of the page of one job: facts, charts and trials, files, spec and log."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from markupsafe import Markup, escape

from reconciler.base.diagnostics import counted
from reconciler.base.sanitize import lines, one_line
from reconciler.manifests.secrets import without_secrets
from reconciler.model.claim import time_of
from reconciler.model.details import JobDetails, Study, Workers
from reconciler.model.job import PREFIX, SERVICE, LogEntry, State
from reconciler.output.details import (
    claim_words,
    machine_text,
    parameters_of,
    size_text,
    span_text,
    value_text,
)
from reconciler.output.review import yaml_lines
from reconciler.output.terminal import number_text
from reconciler.output.wording.cause import cause_remedy
from reconciler.output.wording.published_place import published_text
from reconciler.pages.charts import figures
from reconciler.pages.template import PageClock, PageContent, safe_link, shown_spec
from reconciler.pages.timeline import Span

_RELATIONS = {"changed": " (changed since)", "missing": " (no longer there)"}
_OUTCOMES = {State.SUCCEEDED: "ended", State.FAILED: "broken", State.CANCELLED: "stopped"}

Fact = tuple[str, object]


def job_values(details: JobDetails, content: PageContent, clock: PageClock, commit: Markup) -> dict[str, Any]:
    """Return the values of a job's page, except those of its rows.

    Args:
        commit: Its commit, with a link to the commit's page.
    """
    output = details.output
    files = output.files if output else ()
    total = size_text(sum(file.size for file in files))
    more = "" if output is None or output.is_complete else " and more"
    return {
        "facts": [(name, value) for name, value in _facts(details, content, clock, commit) if value],
        "remedy": cause_remedy(details.cause) if details.cause else "",
        "study": _study(details.study) if details.study else None,
        "metrics": [
            {
                "name": file.name,
                "numbers": [(name, number_text(value)) for name, value in file.values.items()],
            }
            for file in details.metrics
        ],
        "files": [(file.name, size_text(file.size)) for file in files],
        "files_summary": f"{counted(len(files), 'file')}{more} in the output directory, {total}",
        "spec": yaml_lines(spec) if (spec := shown_spec(details.spec, content)) else [],
        "log": [*_log_lines(details.log)],
        "log_note": _log_note(details),
    }


def span_of(details_or_row: Any, prepared: str, now: datetime) -> Span | None:
    """Return the times of a run, from its row or its details; None without a readable time of creation."""
    created, ended = time_of(details_or_row.create_time), time_of(details_or_row.end_time)
    if created is None:
        return None
    state = details_or_row.state
    started = time_of(details_or_row.start_time)
    outcome = _OUTCOMES.get(state, "") if state else ""
    return Span(created, time_of(prepared), started, ended or max(now, created), outcome)


def span_words(span: Span) -> str:
    """Return the lengths of a run's bands as words."""
    words = {
        name: span_text(end - start)
        for name, start, end in span.bands()
        if name != "preparing" or end > start
    }
    if "preparing" not in words:
        words["queued and preparing"] = words.pop("queued")
        words = {name: words[name] for name in sorted(words)}
    return ", ".join(f"{name} {text}" for name, text in words.items())


def _facts(details: JobDetails, content: PageContent, clock: PageClock, commit: Markup) -> Iterator[Fact]:
    """Yield name and value of each fact; empty values are left out."""
    yield "Name", _code([details.job_name])
    yield "Kind", f"{details.kind} of {details.api_version}"
    yield "Attempt", str(details.attempt) if details.attempt > 1 else ""
    manifest = details.manifest
    line = f":{manifest.line}" if manifest.line else ""
    yield "Manifest", f"{manifest.path}{line}{_RELATIONS.get(manifest.relation, '')}" if manifest.path else ""
    yield "Commit", commit
    yield "Submitted", clock(details.create_time)
    yield "Started", clock(details.start_time)
    yield "Ended", clock(details.end_time)
    span = span_of(details, details.prepare_time, clock.now)
    yield "Times", span_words(span) if span else ""
    yield from _work(details.workers, content)
    yield "Account", details.service_account
    yield "Network", details.network
    yield "Time limit", details.timeout
    if details.output is not None:
        yield "Output", _code([details.output.uri, details.output.folder])
    yield "Model", details.model
    yield "Published", without_secrets(published_text(details))
    yield (
        "Labels",
        _code(f"{name}={value}" for name, value in details.labels.items() if not name.startswith(PREFIX)),
    )
    others = (f"{claim.job_name} too: {claim_words(claim, details)}" for claim in details.unsettled)
    yield "Claim", _broken([claim_words(details.claim, details), *others])
    if url := safe_link(details.links.console):
        yield "Console", Markup('<a href="{}" rel="noreferrer">{}</a>').format(url, one_line(url))
    if details.resource and not (details.is_gone or details.on_runner):
        env = "" if details.environment == "local" else f" --env {details.environment}"
        yield "Command", _code([f"reconciler logs {details.job_name}{env}"])
    yield "Not read", _broken(f"{part}: {reason}" for part, reason in sorted(details.unread.items()))


def _work(workers: Sequence[Workers], content: PageContent) -> Iterator[Fact]:
    """Yield the facts about machines and the programs on them, by worker pool if there are several."""
    for pool in workers:
        prefix = f"{pool.name}: " if len(workers) > 1 else ""
        yield f"{prefix}Machine", machine_text(pool)
        yield f"{prefix}Image", _code([pool.image])
        yield f"{prefix}Module", _code([pool.module])
        yield f"{prefix}Container command", _code([shlex.join(pool.command)])
        yield f"{prefix}Arguments", _code([shlex.join(pool.args)])
        texts = (f"{name}={value}" if content.env_values else name for name, value in pool.env)
        yield f"{prefix}Variables", _code(texts)


def _code(texts: Iterable[str]) -> Markup:
    return Markup("<br>").join(Markup("<code>{}</code>").format(one_line(text)) for text in texts if text)


def _broken(texts: Iterable[str]) -> Markup:
    return Markup("<br>").join(escape(one_line(text)) for text in texts)


def _study(study: Study) -> dict[str, Any]:
    """Return the values of a study: a summary, charts and a table."""
    states = Counter(trial.state for trial in study.trials)
    counts = ", ".join(f"{number} {state}" for state, number in states.items())
    summary = f"{len(study.trials)} of at most {study.planned} trials: {counts}." if study.trials else ""
    best, names = study.best, parameters_of(study)
    if best is not None:
        goal = study.goals[0]
        values = ", ".join(f"{name} {value_text(value)}" for name, value in best.parameters.items())
        summary += (
            f" Best: trial {best.id}, {goal.metric} {number_text(best.metrics[goal.metric])} with {values}."
        )
    metrics = [goal.metric for goal in study.goals]
    rows = []
    for trial in study.trials:
        started, ended = time_of(trial.start_time), time_of(trial.end_time)
        measured = (trial.metrics.get(metric) for metric in metrics)
        cells = [
            *("-" if value is None else number_text(value) for value in measured),
            *(value_text(trial.parameters.get(name)) for name in names),
            span_text(ended - started) if started and ended else "-",
        ]
        rows.append(
            {
                "id": trial.id,
                "state": trial.state,
                "best": trial is best,
                "cells": cells,
                "reason": without_secrets(trial.reason),
            }
        )
    return {
        "summary": summary or f"None of {study.planned} trials has begun.",
        "figures": [*figures(study)],
        "head": [*metrics, *names, "Time"],
        "rows": rows,
    }


def _log_lines(log: Sequence[LogEntry]) -> Iterator[str]:
    replicas = {entry.replica for entry in log} - {SERVICE}
    for entry in log:
        trial = f"trial {entry.trial} " if entry.trial else ""
        replica = f"{entry.replica} " if len(replicas) > 1 else ""
        for line in lines(entry.text):
            yield f"{entry.timestamp[:19]} {entry.shown_severity}{trial}{replica}{line}"


def _log_note(details: JobDetails) -> str:
    if not details.resource or details.is_gone:
        return ""
    return f"The newest entries: {len(details.log)}." if details.log else "The log is empty."
