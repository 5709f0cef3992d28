"""Sites of pages: values as services and trainers could send them, in any number."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from math import exp
from random import Random
from typing import Any

from msgspec.structs import replace

from reconciler.model.cause import Cause, CauseClass
from reconciler.model.details import (
    Goal,
    JobDetails,
    JobLinks,
    Measurement,
    MetricsFile,
    Output,
    OutputFile,
    PublishedPlace,
    Study,
    Trial,
    Workers,
)
from reconciler.model.job import LogEntry, State
from reconciler.model.manifest import ManifestPlace
from reconciler.model.plan import Target
from reconciler.model.reason import ReasonCode, because
from reconciler.pages.site import CommitInfo, Site, row_key
from reconciler.pages.template import PageContent
from reconciler.planning.outcome import JobStatus

NOW = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
TARGET = Target("prod", "google", "acme-ml", "us-central1")
STATES = [State.SUCCEEDED] * 12 + [
    State.FAILED,
    State.RUNNING,
    State.QUEUED,
    State.CANCELLED,
    State.PREPARING,
]
WORKERS = Workers("workerpool0", 2, "n1-standard-4", image="image:1", module="task", args=("--epochs=3",))


def at(minutes: float) -> str:
    """Return a time before NOW."""
    return (NOW - timedelta(minutes=minutes)).isoformat().replace("+00:00", "Z")


def name_of(number: int) -> str:
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    return f"job_{number}_{digest[:16]}"


def sha_of(number: int) -> str:
    return hashlib.sha1(str(number).encode()).hexdigest()


def row_of(number: int, state: State | None = State.SUCCEEDED, **fields: Any) -> JobStatus:
    """Return a run; a higher number means an older run."""
    ended = state is not None and state.ended
    begun = ended or state is State.RUNNING
    values: dict[str, Any] = {
        "create_time": at(number + 9) if state else "",
        "start_time": at(number + 8) if begun else "",
        "end_time": at(number + 5) if ended else "",
        "resource": f"projects/1/locations/l/customJobs/{number}" if state else "",
        "commit": sha_of(number // 20),
        "run_labels": {"team": f"team-{number % 7}", "reconciler-key": "k"},
        "current": True,
        "claim": "bound",
        "job_name": name_of(number),
        "base_name": f"job-{number}",
        "kind": "CustomJob",
    }
    if state is State.FAILED:
        said = {"exit_code": "1", "last": "ValueError: the loss is NaN"}
        values["cause"] = Cause(CauseClass.USER_CODE, ReasonCode.NON_ZERO_EXIT, said, values["base_name"])
    return JobStatus(state=state, **{**values, **fields})


def details_of(row: JobStatus, **fields: Any) -> JobDetails:
    values: dict[str, Any] = {
        "state": row.state,
        "cause": row.cause,
        "error": row.error,
        "resource": row.resource,
        "create_time": row.create_time,
        "start_time": row.start_time,
        "end_time": row.end_time,
        "commit": row.commit,
        "manifest": ManifestPlace(f"jobs/{row.base_name}.yaml", 1, "current"),
        "workers": (WORKERS,),
        "labels": row.run_labels,
        "spec": {"workerPoolSpecs": [{"replicaCount": 2, "pythonPackageSpec": {"pythonModule": "task"}}]},
    }
    api = "aiplatform.googleapis.com/v1"
    return JobDetails(row.job_name, row.base_name, api, row.kind, "prod", **{**values, **fields})


def site_of(rows: Sequence[JobStatus], detailed: int = 1000, **fields: Any) -> Site:
    """Return a site of these rows, with pages for the first `detailed` rows."""
    commits = {row.commit: CommitInfo(row.commit, "Ada", at(60), "Train more") for row in rows if row.commit}
    values: dict[str, Any] = {
        "details": {row_key(row): details_of(row) for row in rows[:detailed]},
        "commits": commits,
        "whole": False,
    }
    return Site("acme", TARGET, NOW, rows, **{**values, **fields})


def large_site(number: int, detailed: int = 1000) -> Site:
    return site_of([row_of(n, STATES[n % len(STATES)]) for n in range(number)], detailed)


def study_of(trials: int, *, seed: int = 1, points: int = 10) -> Study:
    """Return a study of a learning rate, a depth and an optimizer; every tenth trial has no result."""
    random = Random(seed)
    made = []
    for number in range(1, trials + 1):
        rate, depth = 10 ** random.uniform(-5, -1), random.randint(1, 9)
        value = 1 - abs(rate - 0.003) * 2 - depth / 100 + random.uniform(-0.02, 0.02)
        parameters = {"learning_rate": rate, "depth": depth, "optimizer": random.choice(["adam", "sgd"])}
        steps = [
            Measurement(10 * step, {"accuracy": value * (1 - exp(-4 * step / points))})
            for step in range(1, points + 1)
        ]
        is_failed = number % 10 == 0
        made.append(
            Trial(
                str(number),
                "INFEASIBLE" if is_failed else "SUCCEEDED",
                parameters,
                {} if is_failed else {"accuracy": value},
                at(60),
                at(59),
                "the trial has failed" if is_failed else "",
                () if is_failed else tuple(steps),
            )
        )
    return Study((Goal("accuracy", is_maximum=True),), tuple(made), trials, frozenset({"learning_rate"}))


def hostile_site(text: str, number: float) -> Site:
    """Return a site whose externally chosen values are all one text, or one number."""
    values = {"exit_code": text, "last": text}
    cause = Cause(CauseClass.USER_CODE, ReasonCode.NON_ZERO_EXIT, values, text)
    row = replace(
        row_of(1, State.FAILED),
        job_name=text,
        base_name=text,
        kind=text,
        service_state=text,
        error=text,
        resource=text,
        url=text,
        commit=text,
        cause=cause,
        run_labels={text: text},
        result=text,
    )
    other = replace(
        row_of(2, State.RUNNING), job_name=text, resource=f"{text}2", commit=sha_of(1), cause=None
    )
    study = Study(
        (Goal(text, is_maximum=True), Goal("m", is_maximum=False)),
        (
            Trial("1", "SUCCEEDED", {text: text, "x": number}, {text: number, "m": 1.0}, reason=text),
            Trial(text, "SUCCEEDED", {text: number, "x": -number}, {text: -number}),
            Trial("3", text, {"x": 1.0}, {text: 1.0}, measurements=(Measurement(1, {text: number}),)),
            Trial(
                "4", "SUCCEEDED", {}, {}, "", "", "", tuple(Measurement(n, {text: number}) for n in (1, 2))
            ),
        ),
        3,
        frozenset({text, "x"}),
    )
    details = replace(
        details_of(row),
        job_name=text,
        base_name=text,
        environment=text,
        service_account=text,
        network=text,
        timeout=text,
        author=text,
        subject=text,
        labels={text: text},
        place=PublishedPlace(
            text,
            text,
            NOW,
            reason=because(ReasonCode.PUBLISHED_BY_OTHER, to=text, other=text, same_source=False),
        ),
        workers=(
            Workers(text, 1, text, text, 1, text, text, (text,), (text,), ((text, text),)),
            Workers("b", 2),
        ),
        manifest=ManifestPlace(text, 1, "changed"),
        spec={text: [text, {"env": [{"name": text, "value": text}]}]},
        output=Output(f"gs://{text}", text, (OutputFile(text, 10**15),), is_complete=False),
        metrics=(MetricsFile(text, {text: number}),),
        study=study,
        links=JobLinks(console=text),
        log=(
            LogEntry(text, text, text, replica=text, trial=text),
            LogEntry(at(1), "INFO", text, replica="b"),
        ),
        unread={"log": text},
    )
    return Site(
        text,
        replace(TARGET, environment=text),
        NOW,
        [row, other],
        notes=[text],
        details={row_key(row): details, row_key(other): details},
        commits={sha_of(1): CommitInfo(sha_of(1), text, text, text)},
        content=PageContent(logs=True, env_values=True),
        whole=False,
    )


PAYLOADS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg/onload=alert(1)>",
    "</style><script>alert(1)</script>",
    "</title></pre></table></svg><iframe src=//evil.test>",
    "javascript:alert(1)",
    "https://evil.test/\"onmouseover='alert(1)'",
    "{{ 7 * 7 }}{% raw %}",
    "../../../etc/passwd",
    "<!--",
    "]]>",
    "&lt;b&gt;&amp;",
    "\x00\x1b]0;x\x07\u202e\ud800",
    "a" * 300,
]
