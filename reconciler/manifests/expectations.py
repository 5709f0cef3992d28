"""Expectations in manifests: their mistakes that the schema can't express."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reconciler.base.diagnostics import Finding, Keys, quote
from reconciler.manifests.messages import choices
from reconciler.manifests.pipelines import job_in
from reconciler.model.expectation import LEAST, MOST
from reconciler.model.fields import part_of, parts_of
from reconciler.model.manifest import DEFAULT_METRIC

_BETTER = {MOST: "greater", LEAST: "smaller"}


def expectation_findings(
    expect: Mapping[str, Any], spec: Mapping[str, Any], *, has_folder: bool, is_published: bool
) -> Iterator[Finding]:
    """Yield bounds that no value meets, and metrics that neither a file nor a study can give.

    Args:
        expect, spec: The manifest's fields; what the schema refuses in them is skipped.
        has_folder: True if the environment's defaults give the job an output folder.
        is_published: True if the manifest has `publish`.
    """
    for metric in expect:
        bounds = part_of(expect, metric)
        least, most = bounds.get("min"), bounds.get("max")
        if isinstance(least, int | float) and isinstance(most, int | float) and least > most:
            message = f'"min" is above "max": {least} > {most}'
            yield Finding(("expect", metric, "min"), message, "swap them")
        yield from _comparison_findings(metric, bounds, is_published=is_published)
    job, field = holder_of_folder(spec)
    names = study_metrics(spec)
    if has_folder or not job or field in job or not all(isinstance(name, str) for name in names):
        return  # the schema refuses a job without fields, and a name that isn't text
    hint = f"add {quote(field)}: the trainer writes metrics.json there"
    if names:
        hint = f"{hint}; the study gives {choices(map(quote, names))}"
    for metric in expect:
        if metric not in names:
            yield Finding(("expect", metric), "no file and no study gives this metric", hint, of_key=True)


def goal_of(bounds: Mapping[str, Any]) -> str:
    """Return which value of a metric is better, `MOST` or `LEAST`; "" if its bounds don't tell."""
    if goal := bounds.get("goal"):
        return goal if goal in (MOST, LEAST) else ""
    if ("min" in bounds) == ("max" in bounds):
        return ""
    return MOST if "min" in bounds else LEAST


def _comparison_findings(metric: str, bounds: Mapping[str, Any], *, is_published: bool) -> Iterator[Finding]:
    """Yield mistakes in how a metric is compared with that of the published model."""
    keys: Keys = ("expect", metric)
    goal, told = (
        bounds.get("goal"),
        goal_of({name: value for name, value in bounds.items() if name != "goal"}),
    )
    if "worse" not in bounds:
        if goal is not None:
            hint = 'write "worse" beside it: how much worse than the published model it may be; or remove it'
            yield Finding((*keys, "goal"), 'only "worse" needs a goal', hint, of_key=True)
        return
    if not is_published:
        message = "nothing is published to compare with"
        yield Finding((*keys, "worse"), message, 'add "publish: {}", or remove "worse"', of_key=True)
    if goal is None and not told:
        given = 'without "min" and "max"' if "min" not in bounds else 'with both "min" and "max"'
        message = f"{given}, it is not clear which value is better"
        hint = 'write "goal: max" if a greater value is better, else "goal: min"'
        yield Finding((*keys, "worse"), message, hint)
    elif told and goal in (MOST, LEAST) and goal != told:
        bound = "min" if told == MOST else "max"
        message = f'"goal: {goal}" contradicts {quote(bound)}: by that, the {_BETTER[told]} value is better'
        yield Finding((*keys, "goal"), message, f'write "goal: {told}", or remove it')


def holder_of_folder(spec: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return the part of a spec that names the job's output folder, and the name of its field there."""
    if "trainingInput" in spec:
        return part_of(spec, "trainingInput"), "jobDir"
    _, job = job_in(spec)
    is_tuning = "studySpec" in job or "trialJobSpec" in job
    return part_of(job, "trialJobSpec") if is_tuning else job, "baseOutputDirectory"


def study_metrics(spec: Mapping[str, Any]) -> list[Any]:
    """Return the names of the metrics that the trials of a spec report; empty for a spec without trials."""
    tuning = part_of(part_of(spec, "trainingInput"), "hyperparameters")
    if tuning:
        return [tuning.get("hyperparameterMetricTag") or DEFAULT_METRIC]
    study = part_of(job_in(spec)[1], "studySpec")
    return [metric.get("metricId") for metric in parts_of(study, "metrics")]
