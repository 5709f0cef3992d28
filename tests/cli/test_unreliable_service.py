"""`apply`, `cancel` and `plan` with a service that lags, loses answers, and has several jobs of a name."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.base.errors import NotFoundError, ServiceError, UsageError
from reconciler.cli.arguments import parse
from reconciler.cli.progress import progress
from reconciler.model.claim import ClaimState
from reconciler.model.job import REQUEST_ID, ActualJob, State
from reconciler.model.ports import Credential, Unknown
from tests.support.github_server import GitHubServer
from tests.support.in_memory import Commands
from tests.support.planning import bound_to, claim_on, run_of, wanted
from tests.support.terminal import Terminal


def only(commands: Commands) -> ActualJob:
    (job,) = commands.outside.jobs.jobs
    return job


def becomes(commands: Commands, job: ActualJob, state: State) -> None:
    commands.outside.jobs.becomes(job, state)


def nothing() -> None:
    """Let time pass, and do no more."""


# Waiting for the job that a claim is bound to


@pytest.mark.fault(12)
@pytest.mark.parametrize(("end", "code"), [(State.SUCCEEDED, 0), (State.FAILED, 1)])
def test_a_young_job_that_listings_lack_is_waited_for(commands: Commands, end: State, code: int) -> None:
    commands.job()
    jobs = commands.outside.jobs
    jobs.hidden.add("projects/acme/locations/here/customJobs/1")
    commands.meanwhile = [
        *[nothing] * 2000,
        lambda: becomes(commands, only(commands), end),
        jobs.hidden.clear,
    ]
    applied = commands.run("apply", "--wait", "--format", "json")
    (outcome,) = applied.json["outcomes"]
    assert (applied.code, outcome["state"]) == (code, end), applied.err
    assert sum(commands.outside.time.slept) > 300


@pytest.mark.fault(23)
def test_that_the_end_of_a_job_was_not_seen_is_told(commands: Commands) -> None:
    commands.job("a")
    commands.job("b")
    jobs = commands.outside.jobs

    def first_succeeds() -> None:
        becomes(commands, jobs.jobs[0], State.SUCCEEDED)

    def both_are_gone() -> None:
        jobs.jobs.clear()

    commands.meanwhile = [first_succeeds, nothing, both_are_gone]
    applied = commands.run("apply", "--wait", "--format", "json")
    assert applied.code == 1
    assert [outcome["state"] for outcome in applied.json["outcomes"]] == ["SUCCEEDED", "QUEUED"]
    assert applied.err == (
        "reconciler: the wait ended before projects/acme/locations/here/customJobs/2 did\n"
    )


@pytest.mark.fault(18)
@pytest.mark.parametrize(
    ("own", "other", "code"),
    [
        (State.FAILED, State.SUCCEEDED, 1),
        (State.SUCCEEDED, State.FAILED, 0),
        (State.SUCCEEDED, State.RUNNING, 0),
        (State.CANCELLED, State.SUCCEEDED, 1),
    ],
)
def test_a_stranger_of_the_same_name_is_not_taken_for_the_job(
    commands: Commands, own: State, other: State, code: int
) -> None:
    commands.job()
    jobs = commands.outside.jobs

    def a_stranger_comes() -> None:
        mine = only(commands)
        stranger = jobs.add({**mine.body, "labels": {**mine.labels, REQUEST_ID: "unknown"}})
        becomes(commands, stranger, other)
        becomes(commands, mine, own)

    commands.meanwhile = [nothing, a_stranger_comes]
    applied = commands.run("apply", "--wait", "--format", "json")
    (outcome,) = applied.json["outcomes"]
    assert (applied.code, outcome["state"]) == (code, own)


@pytest.mark.parametrize(("before", "after"), [(State.FAILED, State.FAILED), (State.RUNNING, State.FAILED)])
def test_an_adopted_job_that_failed_fails_the_wait_whenever_that_was(
    commands: Commands, before: State, after: State
) -> None:
    commands.job()
    assert commands.run("apply").code == 0
    commands.outside.claims.held.clear()
    becomes(commands, only(commands), before)
    commands.meanwhile = [lambda: becomes(commands, only(commands), after)]
    applied = commands.run("apply", "--wait", "--format", "json")
    (outcome,) = applied.json["outcomes"]
    assert (outcome["status"], outcome["state"]) == ("applied", after)
    assert applied.code == 1
    assert "failed, " in applied.err


@pytest.mark.fault(2)
def test_waiting_settles_an_unknown_outcome_also_where_tokens_last_an_hour(commands: Commands) -> None:
    commands.job()
    outside = commands.outside

    def mint() -> Credential:
        return Credential({}, outside.time.now + timedelta(hours=1))

    outside.credentials.mint = mint  # type: ignore[method-assign]
    outside.jobs.answers = [Unknown("no answer came")]

    def succeeds() -> None:
        if outside.jobs.jobs:
            becomes(commands, only(commands), State.SUCCEEDED)
        commands.meanwhile = [succeeds]

    succeeds()
    applied = commands.run("apply", "--wait", "--env", "prod")
    assert applied.code == 0, applied.out
    assert len(outside.jobs.sent) == 2


@pytest.mark.parametrize(("end", "code"), [(State.SUCCEEDED, 0), (State.FAILED, 1)])
def test_a_wanted_job_that_runs_already_is_waited_for(commands: Commands, end: State, code: int) -> None:
    commands.job()
    assert commands.run("apply").code == 0
    commands.meanwhile = [nothing, lambda: becomes(commands, only(commands), end)]
    assert commands.run("apply", "--wait").code == code
    assert commands.run("apply", "--wait").code == code, "a repeated step isn't green over a failed job"
    assert commands.run("apply").code == 0


@pytest.mark.fault(13)
def test_a_second_job_that_is_cancelled_is_told_beside_the_one_that_stays(commands: Commands) -> None:
    commands.job()
    jobs = commands.outside.jobs
    assert commands.run("apply").code == 0
    elder = only(commands)
    commands.outside.time.now += timedelta(seconds=1)
    younger = jobs.add(elder.body)
    commands.meanwhile = [nothing, lambda: becomes(commands, elder, State.SUCCEEDED)]
    applied = commands.run("apply", "--wait", "--format", "json")
    (outcome,) = applied.json["outcomes"]
    assert (outcome["action"], outcome["state"]) == ("cancel", "CANCELLED")
    assert (applied.code, jobs.cancelled) == (1, [younger.resource])
    assert jobs.read("", "", elder.resource).state is State.SUCCEEDED


@pytest.mark.fault(18)
def test_a_job_that_is_not_adopted_is_not_waited_for(commands: Commands) -> None:
    commands.job()
    jobs = commands.outside.jobs
    assert commands.run("apply").code == 0
    commands.outside.claims.held.clear()
    jobs.jobs = [replace(only(commands), body={**only(commands).body, "jobSpec": {}})]
    applied = commands.run("apply", "--wait", "--format", "json")
    (outcome,) = applied.json["outcomes"]
    assert (applied.code, outcome["status"]) == (1, "failed")
    assert "is another job" in outcome["error"]
    assert commands.outside.time.slept == []


# Records written at the end of a pass


@pytest.mark.slow
@pytest.mark.fault(10)
def test_a_claim_that_cannot_be_written_does_not_keep_commits_from_being_told(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.job()
    config = commands.root / "reconciler.yaml"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.test"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "a job"]):
        subprocess.run([*git, *command], cwd=config.parent, check=True)
    asked = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=config.parent, text=True).strip()
    with GitHubServer(commits={asked}, tokens={"t0ken": "write"}).running() as github:
        for name, value in (("ACTIONS", "true"), ("API_URL", github.url), ("TOKEN", "t0ken")):
            monkeypatch.setenv(f"GITHUB_{name}", value)
        monkeypatch.setenv("GITHUB_REPOSITORY", github.repository)
        assert commands.run("apply").code == 0
        becomes(commands, only(commands), State.SUCCEEDED)
        commands.outside.claims.faults = ["failed"]
        applied = commands.run("apply")
        assert applied.code == 0
        assert "the store is away" in applied.err
        for context in ("reconciler/local", "reconciler/local/census"):
            assert github.states(asked, context) == ["pending", "success"]
        assert github.violations == []


@pytest.mark.fault(11)
@pytest.mark.parametrize(("environment", "there"), [("local", True), ("prod", False)])
def test_a_claims_bucket_is_founded_by_apply_only_where_nobody_prepares_it(
    commands: Commands, environment: str, there: bool
) -> None:
    """A later apply would otherwise take a bucket emptied after the check for a new bucket."""
    commands.job()
    claims = commands.outside.claims
    claims.genesis, claims.check = False, lambda runs: None  # type: ignore[method-assign]
    commands.run("apply", "--env", environment)
    assert claims.genesis == there


# The plan


@pytest.mark.fault(23)
def test_a_run_that_is_only_listed_any_more_stops_no_plan(commands: Commands) -> None:
    jobs = commands.outside.jobs
    for number, args in enumerate((["a", "b"], ["c", "d"])):
        commands.job("census", *args)
        assert commands.run("apply").code == 0
        commands.outside.time.now += timedelta(seconds=1)
        jobs.jobs[number] = replace(jobs.jobs[number], spec=jobs.jobs[number].body["jobSpec"])
    read, deleted = jobs.read, jobs.jobs[1].resource

    def reading(api_version: str, kind: str, resource: str) -> ActualJob:
        if resource == deleted:
            raise NotFoundError(f"no {resource}")
        return read(api_version, kind, resource)

    jobs.read = reading  # type: ignore[method-assign]
    commands.job("census", "a", "e")
    planned = commands.run("plan", "--format", "json")
    assert planned.code == 0, planned.err
    (change,) = planned.json["changes"]
    assert change["action"] == "submit"
    # The plan compares with the remaining run.
    assert [(field["before"], field["after"]) for field in change["fields"]] == [("b", "e")]


# Cancelling


@pytest.fixture
def submitted(commands: Commands) -> Commands:
    """Return commands with a single submitted job."""
    commands.job()
    assert commands.run("apply").code == 0
    return commands


@pytest.mark.fault(12)
def test_a_young_job_that_listings_lack_can_be_cancelled(submitted: Commands) -> None:
    job = only(submitted)
    submitted.outside.jobs.hidden.add(job.resource)
    for name in ("census", job.job_name):
        becomes(submitted, job, State.RUNNING)
        cancelled = submitted.run("cancel", name)
        assert (cancelled.code, cancelled.out) == (0, f"{job.job_name} ended CANCELLED\n")


@pytest.mark.fault(18)
def test_of_two_jobs_of_one_attempt_the_one_that_stays_is_meant_and_only_it_is_waited_for(
    submitted: Commands,
) -> None:
    jobs = submitted.outside.jobs
    elder = only(submitted)
    submitted.outside.time.now += timedelta(seconds=1)
    jobs.add(elder.body)
    cancelled = submitted.run("cancel", "census")
    assert (cancelled.code, cancelled.out) == (0, f"{elder.job_name} ended CANCELLED\n")
    assert jobs.cancelled == [elder.resource]


def test_a_run_that_the_command_cancelled_does_not_count_as_cancelled_outside(submitted: Commands) -> None:
    assert submitted.run("cancel", "census").code == 0
    plan = submitted.run("plan", "--format", "json").json
    assert plan["drift"] == []
    assert plan["changes"][0]["reason"].startswith("cancelled by `reconciler cancel`; ")
    (status,) = submitted.run("status", "--format", "json").json["jobs"]
    assert status["cause"]["message"] == "cancelled by `reconciler cancel`"


def test_a_run_that_somebody_else_cancelled_counts_as_cancelled_outside(submitted: Commands) -> None:
    becomes(submitted, only(submitted), State.CANCELLED)
    assert submitted.run("cancel", "census").code == 0
    (finding,) = submitted.run("plan", "--format", "json").json["drift"]
    assert finding["kind"] == "cancelled-outside"
    (status,) = submitted.run("status", "--format", "json").json["jobs"]
    assert status["cause"]["message"] == "cancelled outside the reconciler"


def test_a_cancel_is_sent_although_it_cannot_be_recorded_and_says_so(submitted: Commands) -> None:
    submitted.outside.claims.faults = ["failed"]
    cancelled = submitted.run("cancel", "census")
    assert (cancelled.code, cancelled.out) == (0, f"{only(submitted).job_name} ended CANCELLED\n")
    assert "reconciler: the cancellation isn't recorded, so the run will count as cancelled" in cancelled.err


@pytest.mark.fault(17)
@pytest.mark.parametrize("end", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
def test_a_cancel_that_comes_too_late_tells_how_the_job_ended(submitted: Commands, end: State) -> None:
    def cancel(job: ActualJob) -> None:
        becomes(submitted, job, end)
        raise ServiceError("the job has ended")

    submitted.outside.jobs.cancel = cancel  # type: ignore[method-assign]
    cancelled = submitted.run("cancel", "census")
    assert cancelled.out == f"{only(submitted).job_name} ended {end}\n"
    assert cancelled.code == (0 if end is State.CANCELLED else 1)


@pytest.mark.fault(17)
@pytest.mark.parametrize("taken", [True, False])
def test_a_lost_answer_to_a_cancel_does_not_hide_the_end(submitted: Commands, taken: bool) -> None:
    jobs, asked = submitted.outside.jobs, []

    def cancel(job: ActualJob) -> None:
        asked.append(job.resource)
        if taken or len(asked) > 1:
            becomes(submitted, job, State.CANCELLING)
            submitted.meanwhile = [nothing, lambda: becomes(submitted, job, State.CANCELLED)]
        if len(asked) == 1:
            raise ServiceError("no answer came")

    jobs.cancel = cancel  # type: ignore[method-assign]
    cancelled = submitted.run("cancel", "census")
    assert (cancelled.code, cancelled.out) == (0, f"{only(submitted).job_name} ended CANCELLED\n")
    assert len(asked) == (1 if taken else 2)


def test_a_cancel_that_is_refused_is_told(submitted: Commands) -> None:
    def cancel(job: ActualJob) -> None:
        raise ServiceError("you may not", hint="ask")

    submitted.outside.jobs.cancel = cancel  # type: ignore[method-assign]
    refused = submitted.run("cancel", "census")
    assert (refused.code, refused.out, refused.err) == (1, "", "reconciler: you may not\n    ask\n")


def test_a_job_that_is_gone_while_its_end_is_waited_for(submitted: Commands) -> None:
    job = only(submitted)
    submitted.outside.jobs.cancel = lambda job: None  # type: ignore[method-assign]
    submitted.meanwhile = [submitted.outside.jobs.jobs.clear]
    gone = submitted.run("cancel", "census")
    assert (gone.code, gone.out) == (1, "")
    assert gone.err == f"reconciler: {job.job_name} is gone; its final state is unknown\n"


@pytest.mark.fault(16)
@pytest.mark.parametrize("labelled", [True, False])
def test_a_trial_is_not_taken_for_its_tuning_job(commands: Commands, labelled: bool) -> None:
    job = wanted()
    job = replace(job, manifest=replace(job.manifest, kind="HyperparameterTuningJob"))
    tuning = run_of(job, State.RUNNING)
    trial = run_of(wanted(), State.RUNNING, number=2, **({} if labelled else {"labels": {}}))
    commands.outside.claims.write(bound_to(job, tuning), 0)
    commands.outside.jobs.jobs = [tuning, trial]
    for name in ("census", tuning.job_name):
        assert commands.run("cancel", name).code == 0
        assert commands.outside.jobs.cancelled == [tuning.resource]


def test_a_name_whose_submission_is_not_settled_has_no_run(commands: Commands) -> None:
    claim = claim_on(wanted(), ClaimState.PENDING, credential_expiry=commands.outside.time.now)
    commands.outside.claims.write(claim, 0)
    for name in ("census", wanted().job_name):
        refused = commands.run("cancel", name)
        assert (refused.code, refused.out) == (1, "")
        assert f'the service has no run of "{name}"' in refused.err


# Display while waiting


@pytest.mark.fault(51)
@pytest.mark.parametrize("create", ["", "soon", "2026-01-01T00:00:00", "0001-01-01T00:00:00+23:59"])
@pytest.mark.parametrize("end", ["", "x", "2026-01-01T00:01:00", "2026-01-01T00:01:00Z"])
def test_no_time_that_a_service_gives_ends_the_wait(create: str, end: str) -> None:
    job = run_of(wanted(), State.RUNNING, create_time=create, end_time=end, error="no machine is free")
    session: Any = None
    with progress(session, Namespace(quiet=False, log_format="text"), Terminal()) as tell:
        tell((job,))


@pytest.mark.slow
def test_a_librarys_warning_is_not_printed_unless_python_is_asked_for_it() -> None:
    script = (
        "import sys, warnings; from reconciler.__main__ import main; sys.argv = ['reconciler', 'schema'];"
        "main(); warnings.warn('of a library', RuntimeWarning)"
    )
    for options, shown in ([], False), (["-W", "default"], True):
        done = subprocess.run(
            [sys.executable, *options, "-c", script], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0
        assert ("of a library" in done.stderr) is shown


@pytest.mark.parametrize(
    ("line", "mistake", "remedy"),
    [
        ("vaildate", "there is no command 'vaildate'", "did you mean validate? See `reconciler --help`"),
        ("frobnicate", "there is no command 'frobnicate'", "see `reconciler --help`"),
        (
            "plan --formt json",
            "plan has no flag --formt",
            "did you mean --format? See `reconciler plan --help`",
        ),
        ("apply --wiat=1", "apply has no flag --wiat", "did you mean --wait? See `reconciler apply --help`"),
        ("logs a b", "logs takes no such argument: 'b'", "see `reconciler logs --help`"),
    ],
)
def test_unknown_command_or_flag_is_refused_with_the_most_similar_one(
    line: str, mistake: str, remedy: str
) -> None:
    with pytest.raises(UsageError) as refused:
        parse(line.split())
    assert (str(refused.value), refused.value.hint) == (mistake, remedy)


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("version", "reconciler "),
        ("help plan", "usage: reconciler plan "),
        ("--env prod -v help plan", "usage: reconciler plan "),
    ],
)
def test_version_and_help_are_commands_too(line: str, first: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        parse(line.split())
    assert capsys.readouterr().out.startswith(first)


def test_logs_of_a_manifest_that_was_not_submitted_says_so(commands: Commands) -> None:
    commands.job()
    done = commands.run("logs", "census")
    assert done.code == 1
    assert "it wasn't submitted yet: see `reconciler plan`" in done.err
