"""Details of a job as text: within the terminal's width, inert, and complete in a pipe."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from reconciler.manifests import schemas
from reconciler.model.claim import Claim, ClaimId, ClaimState
from reconciler.model.details import (
    Goal,
    JobDetails,
    JobLinks,
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
from reconciler.model.reason import Reason, ReasonCode, because
from reconciler.output.details import claim_words, details_text, resource_yaml
from reconciler.output.json import details_json
from reconciler.output.terminal import width_of
from reconciler.output.wording.plan import reason_text

TIMES = "\N{MULTIPLICATION SIGN}"
NOW = datetime(2026, 1, 2, 4, 0, tzinfo=UTC)
DONE = JobDetails(
    job_name="census_0123456789abcdef",
    base_name="census",
    api_version="aiplatform.googleapis.com/v1",
    kind="CustomJob",
    environment="prod",
    state=State.SUCCEEDED,
    resource="projects/1/locations/l/customJobs/1",
    create_time="2026-01-02T03:00:00Z",
    start_time="2026-01-02T03:10:00Z",
    end_time="2026-01-02T03:30:00Z",
    log=(LogEntry("2026-01-02T03:29:00Z", "INFO", "done"),),
)
CLAIM = Claim(ClaimId("k"), ClaimState.BOUND, "census_0", "census", "v", "CustomJob", resource="r")

TO, SINCE = "gs://risk-models/census", datetime(2026, 11, 20, 9, tzinfo=UTC)


def row(text: str, name: str) -> list[str]:
    """Return the lines of a row."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(name))
    more = next((n for n in range(start + 1, len(lines)) if not lines[n].startswith(" ")), len(lines))
    return [lines[start][13:], *(line.strip() for line in lines[start + 1 : more])]


def hostile_details(text: str) -> JobDetails:
    """Return the details of a job with the same text in every field that others choose."""
    trials = (
        Trial("1", text, {text: text}, {text: 1.0}, reason=text),
        Trial("2", text, {text: 2.0}, {text: 3.0}),
    )
    pools = (
        Workers("a", 1, text, text, 1, text, text, (text,), (text,), ((text, text),)),
        Workers("b", 2, text),
    )
    return replace(
        DONE,
        workers=pools,
        author=text,
        commit="0" * 40,
        subject=text,
        labels={text: text},
        output=Output(f"gs://{text}", "", (OutputFile(text, 10**15),), is_complete=False),
        place=PublishedPlace(f"gs://{text}", text, NOW, reason=refused_by(text)),
        metrics=(MetricsFile(text, {text: 0.5}),),
        study=Study((Goal(text, is_maximum=True),), trials, 2),
        links=JobLinks(text, "", text),
        manifest=ManifestPlace(text, 3, "changed"),
        log=(LogEntry(text, "ERROR", text, replica=text), LogEntry("", text, text, trial=text)),
        unread={"metrics": text, "claim": text},
    )


def refused_by(text: str) -> Reason:
    """Return why a model isn't in place: another repository, which this is the name of, publishes there."""
    return because(ReasonCode.PUBLISHED_BY_OTHER, to=f"gs://{text}", other=text, same_source=False)


HOSTILE = st.text(st.sampled_from("a \x1b[2J\n\r:#\u202e漢\ud800é-"), max_size=60)


@given(text=HOSTILE, width=st.integers(40, 160))
def test_whatever_others_write_is_inert_and_fits_the_width(text: str, width: int) -> None:
    details = hostile_details(text)
    for line in details_text(details, NOW, width).splitlines():
        assert all(char.isprintable() for char in line)
        assert not line.lstrip().startswith("::")
        assert "##[" not in line
        assert width_of(line) <= width or len(line[13:].split()) == 1, "only a word is wider"
    plain = details_text(details, NOW)
    painted = details_text(details, NOW, colour=True)
    assert re.sub("\x1b\\[[0-9;]+m", "", painted).removeprefix("✓ ") == plain


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (None, None),
        (PublishedPlace(TO, "census_1", SINCE, is_own=True), f"{TO} (in place since 20 Nov 2026)"),
        (
            PublishedPlace(TO, "census_1163", SINCE),
            f"not at {TO}: census_1163 is there since 20 Nov 2026; `reconciler plan` shows why",
        ),
        (PublishedPlace(TO), f"not at {TO}: nothing is there; `reconciler plan` shows why"),
        (
            PublishedPlace(TO, "census_1163", SINCE, reason=because(ReasonCode.PUBLISHED_BEFORE_OTHER)),
            f"not at {TO}: {reason_text(because(ReasonCode.PUBLISHED_BEFORE_OTHER))}",
        ),
    ],
)
def test_published_model_is_shown_with_its_address_or_why_not(
    place: PublishedPlace | None, expected: str | None
) -> None:
    details = replace(DONE, place=place)
    text = details_text(details, NOW)
    assert (" ".join(row(text, "Published")) if expected else "Published" in text) == (expected or False)
    found = details_json(details)["publication"]
    assert found == (place and {"to": TO, "current": place.job_name or None})


def test_address_that_cannot_be_read_is_one_line_with_the_reason() -> None:
    text = details_text(replace(DONE, unread={"publication": "no permission"}), NOW)
    assert row(text, "Published")[0] == "can't be read: no permission"


def test_a_wrapped_line_begins_with_no_command() -> None:
    text = details_text(replace(DONE, links=JobLinks("x" * 26 + " ::error::no")), NOW, 40)
    assert row(text, "See")[:2] == ["x" * 26, "\\x3a:error::no"]


def test_a_pipe_gets_everything_and_a_terminal_what_fits() -> None:
    long = "gs://bucket/" + "folder/" * 30
    entry = LogEntry("2026-01-02T03:29:00Z", "INFO", "x" * 300)
    details = replace(DONE, output=Output(long), log=(entry, replace(entry, severity="ERROR")))
    whole = details_text(details, NOW)
    assert long in whole
    assert whole.count("x" * 300) == 2
    narrow = details_text(details, NOW, 80)
    assert row(narrow, "Output")[0] == long
    others = [line for line in narrow.splitlines() if long not in line and "x" * 300 not in line]
    assert max(map(width_of, others)) <= 80
    assert narrow.count("x") > 300, "an error is shown in full, other lines are cut"


def test_long_image_stays_whole_so_that_it_can_be_copied() -> None:
    image = "europe-west4-docker.pkg.dev/a-project/a-repository/a-trainer:2026-01-02"
    details = replace(DONE, workers=(Workers("workerpool0", 1, "n1-standard-4", image=image),))
    assert row(details_text(details, NOW, 80), "Image")[0] == image


def test_line_of_standard_error_is_not_called_an_error() -> None:
    printed = LogEntry("2026-01-02T03:29:00Z", "ERROR", "epoch 1 " * 20, replica="workerpool0-0")
    shown = row(details_text(replace(DONE, log=(printed,)), NOW, 80), "Log")
    assert [line.split()[:2] for line in shown] == [["03:29:00", "epoch"]], "and cut as other lines are"
    failed = row(details_text(replace(DONE, state=State.FAILED, log=(printed,)), NOW, 80), "Log")
    assert len(failed) == 3, "a traceback is shown in full"
    assert "ERROR" not in " ".join(failed)


@pytest.mark.parametrize("entry", [("ERROR", "service"), ("ERROR", ""), ("CRITICAL", "workerpool0-0")])
def test_error_of_the_service_or_of_a_trainers_own_severity_is_called_so(entry: tuple[str, str]) -> None:
    severity, replica = entry
    told = LogEntry("2026-01-02T03:29:00Z", severity, "no machine " * 20, replica=replica)
    shown = row(details_text(replace(DONE, log=(told,)), NOW, 80), "Log")
    assert shown[0].startswith(f"03:29:00 {severity} no machine")
    assert len(shown) > 1


def test_times_say_how_long_it_waited_and_ran() -> None:
    assert row(details_text(DONE, NOW), "Waited") == ["10m00s in the queue and preparing"]
    prepared = details_text(replace(DONE, prepare_time="2026-01-02T03:09:57.5Z"), NOW)
    assert row(prepared, "Waited") == ["10m00s: 9m57s queued, 2.5s preparing"]
    assert row(prepared, "Ran")[0] == "20m00s, until 03:30:00 UTC"
    assert prepared.startswith("census  SUCCEEDED, 30m ago\n")
    running = replace(DONE, state=State.RUNNING, end_time="")
    assert details_text(running, NOW).startswith("census  RUNNING for 50m00s\n")
    assert "Waited" not in details_text(replace(DONE, create_time="yesterday"), NOW)


def test_workers_that_differ_are_told_apart() -> None:
    env = (("A", "1"),)
    first = Workers("workerpool0", 1, "n1-standard-4", image="i", args=("--x=a b",), env=env)
    second = Workers("workerpool1", 2, "a2-highgpu-1g", "NVIDIA_TESLA_A100", 1, "i", args=("--y",), env=env)
    text = details_text(replace(DONE, workers=(first, second)), NOW)
    assert row(text, "Machine") == [
        f"workerpool0: 1 {TIMES} n1-standard-4",
        f"workerpool1: 2 {TIMES} a2-highgpu-1g each with 1 {TIMES} NVIDIA_TESLA_A100",
    ]
    assert row(text, "Image") == ["i"]
    assert row(text, "Arguments") == ["workerpool0: '--x=a b'", "workerpool1: --y"]
    assert row(text, "Environment") == ["A=1"]


def test_many_files_are_counted_by_folder() -> None:
    files = [OutputFile(f"checkpoints/{number}", 1024) for number in range(20)] + [OutputFile("model.bin", 5)]
    text = details_text(replace(DONE, output=Output("gs://b/a", files=tuple(files))), NOW)
    lines = row(text, "Output")
    assert lines == [
        "gs://b/a",
        "21 files, 20.0 KiB",
        "20.0 KiB  checkpoints/  20 files",
        "5 bytes  model.bin",
    ]


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (CLAIM, "bound: its request created this job"),
        (replace(CLAIM, request_ids=("a", "b")), "bound: one of 2 requests created this job"),
        (replace(CLAIM, state=ClaimState.PENDING), "pending: a request may have created a job"),
        (replace(CLAIM, state=ClaimState.REJECTED, error="quota"), "rejected: quota; apply submits it again"),
        (replace(CLAIM, state=ClaimState.HELD, error="odd"), "held: odd; run `reconciler resolve census_0"),
        (replace(CLAIM, state=ClaimState.HELD, given_up=True), "held: given up"),
        (None, "none: no recorded request created this job"),
    ],
)
def test_the_claim_is_said_in_words(claim: Claim | None, said: str) -> None:
    assert claim_words(claim, DONE).startswith(said)


def test_json_of_unusual_values_follows_the_schema() -> None:
    study = Study((Goal("m", is_maximum=False),), (Trial("1", "", {"x": 1}, {"m": float("nan")}),))
    details = replace(
        hostile_details("x\ud800"), study=study, metrics=(MetricsFile("a", {"b": float("inf")}),)
    )
    shown = json.loads(json.dumps(details_json(details), allow_nan=False))
    Draft202012Validator(schemas.document("show-output.schema.json")).validate(shown)
    assert (shown["study"]["best"], shown["metrics"][0]["values"]) == (None, {"b": None})


def test_the_best_trial_follows_the_goal_and_is_shown_among_many() -> None:
    trials = tuple(
        Trial(str(number), "SUCCEEDED", {"x": number}, {"m": float(number)}) for number in range(1, 40)
    )
    most = Study((Goal("m", is_maximum=True),), trials, 40)
    least = Study((Goal("m", is_maximum=False),), trials, 40)
    assert (most.best, least.best) == (trials[-1], trials[0])
    assert Study((*most.goals, *least.goals), trials).best is None
    text = details_text(replace(DONE, study=most), NOW)
    assert row(text, "Best trial")[0] == "39: m 39 with x 39"
    assert "39 ★" in text
    assert "… and 19 more trials" in text
    assert "none of 40 has started" in details_text(replace(DONE, study=Study(most.goals, (), 40)), NOW)


def test_a_resource_as_yaml_is_the_same_and_inert() -> None:
    hostile = "\x1b[2J\n::error::x\u202e ##[group]"
    resource = {"a": hostile, hostile: ["::stop", "##[x]", "plain text"], "n": "1", "time": "2026-01-01"}
    text = resource_yaml(resource)
    assert yaml.safe_load(text) == resource
    assert text.isascii()
    assert "##[" not in text
    assert all(line.isprintable() and not line.lstrip().startswith("::") for line in text.splitlines())
    assert "- plain text" in text
