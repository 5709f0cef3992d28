"""`reconciler logs` over a service with runs that the test itself writes, line by line."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler import cli
from reconciler.base.errors import NotFoundError
from reconciler.cli import logs
from reconciler.cli.logs import PrintedEntries
from reconciler.engines.spec import ai_platform
from reconciler.model.job import ActualJob, LogEntry, State
from reconciler.training_service.state.records import UNFINISHED, JobRecord, JobState
from reconciler.training_service.state.run_folder import run_folder
from tests.support.held_service import HeldService
from tests.support.repository import Repository, Result
from tests.support.waiting import PATIENCE, until

NOW = datetime.now(UTC)

HEAD = """
apiVersion: aiplatform.googleapis.com/v1
kind: {kind}
metadata: {{name: census}}
"""
POOLS = """
workerPoolSpecs:
  - {{replicaCount: 1, machineSpec: {{machineType: n1-standard-4}}, containerSpec: {{imageUri: a.test/a}}}}
  - {{replicaCount: {workers}, machineSpec: {{machineType: n1-standard-4}}, containerSpec: {{imageUri: a/a}}}}
"""
STUDY = """
  maxTrialCount: 4
  parallelTrialCount: 2
  studySpec:
    metrics: [{metricId: accuracy, goal: MAXIMIZE}]
    parameters: [{parameterId: c, doubleValueSpec: {minValue: 0.1, maxValue: 1.0}}]
  trialJobSpec:
"""


def indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in text.strip("\n").splitlines())


@dataclass
class Job:
    """A submitted job that no runner starts."""

    repository: Repository
    service: HeldService
    record: JobRecord

    def run(self, trial: int = 0) -> Callable[..., None]:
        """Begin a run; return a function that writes a line of its log."""
        run = self.service.store.add_run(self.record.id, trial)
        path = run_folder(self.service.home, run.run_id).log
        path.parent.mkdir(parents=True)

        def write(
            text: str, replica: str = "workerpool0-0", *, at: float = 0.0, severity: str = "INFO"
        ) -> None:
            moment = (NOW + timedelta(seconds=at)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            line = {"t": moment, "s": severity, "m": text} | ({"r": replica} if replica else {})
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")

        return write

    def move(self, state: JobState) -> None:
        self.service.store.move(self.record.id, state, only_from=UNFINISHED, at="2026-01-01T00:00:00Z")

    def logs(self, *arguments: str) -> Result:
        return in_process("logs", "census", *arguments)

    @contextmanager
    def following(self, *arguments: str) -> Iterator[list[str]]:
        """Yield the growing list of lines printed by `logs --follow`; it ends with the job."""
        process = self.repository.start("logs", "census", "--follow", *arguments)
        printed: list[str] = []
        assert process.stdout is not None
        assert process.stderr is not None
        reader = threading.Thread(target=printed.extend, args=(process.stdout,))
        reader.start()
        try:
            yield printed
            self.move(JobState.SUCCEEDED)
            assert process.wait(PATIENCE) == 0, process.stderr.read()
        finally:
            process.kill()
            reader.join(PATIENCE)
            process.stdout.close()
            process.stderr.close()


def in_process(*arguments: str) -> Result:
    """Run `reconciler …` in this process, for speed."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.run(arguments)
    return Result(code, out.getvalue(), err.getvalue())


def submitted(repository: Repository, service: HeldService, kind: str, spec: str) -> Job:
    repository.write("jobs/census.yaml", f"{HEAD.format(kind=kind)}spec:\n{spec}")
    applied = in_process("apply")
    assert applied.code == 0, applied.out + applied.err
    (record,) = service.store.unfinished()
    return Job(repository, service, record)


@pytest.fixture
def one(repository: Repository, service: HeldService) -> Job:
    """Return a job of a single replica: its second pool is empty."""
    spec = indented(POOLS.format(workers=1), 2).splitlines()[:2]
    return submitted(repository, service, "CustomJob", "\n".join(spec))


@pytest.fixture
def several(repository: Repository, service: HeldService) -> Job:
    return submitted(repository, service, "CustomJob", indented(POOLS.format(workers=2), 2))


@pytest.fixture
def tuned(repository: Repository, service: HeldService) -> Job:
    spec = STUDY.strip("\n") + "\n" + indented(POOLS.format(workers=1), 4)
    return submitted(repository, service, "HyperparameterTuningJob", spec)


def told(result: Result) -> list[str]:
    """Return the text after the time of each line."""
    assert result.code == 0, result.err
    return [line.partition("Z ")[2] for line in result.out.splitlines()]


def test_lines_of_one_replica_have_no_column_for_it(one: Job) -> None:
    write = one.run()
    write("it begins", "", at=1)
    write("epoch 1", at=2, severity="WARNING")
    assert told(one.logs()) == ["INFO    it begins", "WARNING epoch 1"]


def test_the_log_of_a_job_without_lines_says_its_state_and_why(one: Job) -> None:
    name = next(iter(one.repository.states()))
    assert one.logs().out == f"{name} is QUEUED: it has no log yet\n"
    one.service.store.move(
        one.record.id,
        JobState.FAILED,
        only_from=UNFINISHED,
        at="2026-01-01T00:00:00Z",
        error_code=3,
        error_message="The index can't be reached.\nAsk again.",
    )
    said = one.logs().out
    assert said.startswith(
        f"{name} is FAILED: The index can't be reached.\nAsk again.\n{name} failed, user code: "
    )


def test_several_replicas_stand_beside_their_lines(several: Job) -> None:
    write = several.run()
    write("it begins", "", at=1)
    write("chief", "workerpool0-0", at=2)
    write("worker", "workerpool1-1", at=3)
    assert told(several.logs()) == [
        "INFO    service       it begins",
        "INFO    workerpool0-0 chief",
        "INFO    workerpool1-1 worker",
    ]
    assert told(several.logs("--replica", "workerpool1-1")) == ["INFO    worker"]
    assert told(several.logs("--replica", "service")) == ["INFO    it begins"]


def test_a_replica_that_the_job_has_not_is_told(several: Job) -> None:
    several.run()("chief")
    for name, hint in {
        "workerpool1_1": "did you mean workerpool1-1?",
        "workerpool1-2": "did you mean workerpool1-",
        "ps-replica-0": "it has workerpool0-0, workerpool1-0 to workerpool1-1; and service",
    }.items():
        refused = several.logs("--replica", name)
        assert (refused.code, refused.out) == (1, "")
        assert f'has no replica "{name}"' in refused.err
        assert hint in refused.err


def test_a_replica_or_trial_that_has_not_begun_is_told(several: Job) -> None:
    waiting = several.logs("--replica", "workerpool1-0")
    assert waiting.code == 1
    assert "hasn't started yet: the job is QUEUED" in waiting.err
    assert "--follow waits for it" in waiting.err
    several.move(JobState.RUNNING)
    assert several.logs("--replica", "workerpool1-0").code == 0


def test_trials_that_run_at_once_are_merged_and_can_be_read_alone(tuned: Job) -> None:
    first, second = tuned.run(1), tuned.run(2)
    first("a", at=1)
    second("b", "workerpool1-0", at=2)
    first("c", "", at=3)
    assert told(tuned.logs()) == [
        "INFO    trial 1 workerpool0-0 a",
        "INFO    trial 2 workerpool1-0 b",
        "INFO    trial 1 service       c",
    ]
    assert told(tuned.logs("--trial", "1")) == ["INFO    workerpool0-0 a", "INFO    service       c"]
    assert told(tuned.logs("--trial", "2", "--replica", "workerpool1-0")) == ["INFO    b"]

    unbegun = tuned.logs("--trial", "3")
    assert (unbegun.code, unbegun.out) == (1, "")
    assert "trial 3 of census_" in unbegun.err
    assert "hasn't started yet: the job is QUEUED" in unbegun.err
    none = tuned.logs("--trial", "5")
    assert none.code == 1
    assert "has no trial 5" in none.err
    assert "numbered from 1 to 4" in none.err
    tuned.move(JobState.FAILED)
    ended = tuned.logs("--trial", "3")
    assert ended.code == 1
    assert "never started: the job ended FAILED" in ended.err


def test_wrong_trials_are_refused(one: Job) -> None:
    assert one.logs("--trial", "0").code == 64
    assert one.logs("--trial", "first").code == 64
    without = one.logs("--trial", "1")
    assert without.code == 1
    assert "has no trials" in without.err


def test_trials_that_go_on_from_an_earlier_job_have_larger_numbers_than_planned() -> None:
    """AI Platform counts a resumed job's trials on from the earlier job's."""
    tuning = {"maxTrials": 4, "resumePreviousJobId": "census_0"}
    body = {
        "trainingInput": {"hyperparameters": tuning},
        "trainingOutput": {"trials": [{"trialId": "10", "state": "RUNNING"}]},
    }
    job = ActualJob("r", "census_1", "ml.googleapis.com/v1", "Job", State.RUNNING, "RUNNING", body=body)
    trials = ai_platform.trials(job)
    logs._check_trial(10, trials, job)
    logs._check_trial(11, trials, job)
    source = logs._Part(job, {"master-replica-": 1}, trials, "", "").source()
    assert source(LogEntry("", "INFO", "a", trial="10")) == "trial 10 "
    assert source(LogEntry("", "INFO", "a", trial="9")) == "trial 9  "
    del tuning["resumePreviousJobId"]
    with pytest.raises(NotFoundError):
        logs._check_trial(11, ai_platform.trials(job), job)


def test_what_a_replica_is_called_and_says_does_nothing_where_it_is_shown(several: Job) -> None:
    several.run()("::error::\x1b]0;title\x07\rgone", "\x1b[2Jworker\n::stop-commands::x")
    lines = several.logs().out.splitlines()
    assert len(lines) == 2
    assert all(line.isprintable() and not line.startswith("::") for line in lines)


def test_following_tells_late_lines_of_another_run_and_none_twice(tuned: Job) -> None:
    tuned.move(JobState.RUNNING)
    first, second = tuned.run(1), tuned.run(2)
    first("a", at=10)
    with tuned.following() as printed:
        until(lambda: len(printed) == 1)
        second("late", at=9)
        until(lambda: len(printed) == 2)
        again = tuned.run(1)
        again("after the restart", at=9.5)
        until(lambda: len(printed) == 3)
        first("a", at=10)
        until(lambda: len(printed) == 4)
        again("the last", at=11)
    said = [line.split(maxsplit=4)[-1].rsplit("workerpool0-0 ")[-1].strip() for line in printed]
    assert said == ["a", "late", "after the restart", "a", "the last"]


def test_following_waits_for_a_trial_that_has_not_begun(tuned: Job) -> None:
    tuned.run(1)("of the first")
    with tuned.following("--trial", "2", "--replica", "workerpool0-0") as printed:
        write = tuned.run(2)
        write("of another replica", "workerpool1-0")
        write("of the second")
        until(lambda: len(printed) == 1)
    (line,) = printed
    assert line.endswith("INFO    of the second\n")


TRAINER_THAT_LOGS = """
import logging
import google.cloud.logging
from google.cloud.logging_v2 import Resource

client = google.cloud.logging.Client()
client.setup_logging()
logging.getLogger("trainer").warning("epoch %d", 1)
mine = client.logger("mine")
mine.log_struct({"loss": 0.5}, severity="NOTICE")
mine.log_text("of another", resource=Resource("ml_job", {"job_id": "1", "task_name": "service"}))
print("printed")
"""


def test_lines_that_a_trainer_writes_by_google_cloud_logging_are_in_its_log(repository: Repository) -> None:
    """The library asks Google's own address, with the credentials of the supposed machine."""
    settings = repository.root / "reconciler.yaml"
    settings.write_text(
        settings.read_text().replace("requirements: []", "requirements: [google-cloud-logging]")
    )
    repository.write("trainer/task.py", TRAINER_THAT_LOGS)
    repository.job("census")
    applied = repository.run("apply", "--wait")
    assert applied.code == 0, applied.err + repository.run("logs", "census").out
    lines = [line.split("Z ", 1)[1] for line in repository.run("logs", "census").out.splitlines()]
    assert {"WARNING epoch 1", 'NOTICE  {"loss": 0.5}', "DEFAULT of another", "INFO    printed"} <= {*lines}


# --- entries remembered while a log is followed -----------------------------------------------------------

LATENESS = 10.0
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def entry(second: float, number: int = 0) -> LogEntry:
    return LogEntry(
        (BEGIN + timedelta(seconds=second)).isoformat().replace("+00:00", "Z"), "INFO", "", str(number)
    )


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def look(printed: PrintedEntries, log: list[LogEntry]) -> list[LogEntry]:
    """Return the entries that a single look prints from a log."""
    found = sorted((each for each in log if each.timestamp >= printed.since), key=lambda each: each.timestamp)
    new = [each for each in found if printed.add(each)]
    printed.forget()
    return new


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=60),
    st.lists(st.integers(1, 7), min_size=1, max_size=30),
)
def test_an_entry_that_is_late_within_the_limit_is_told_once(
    written: list[tuple[int, int]], pauses: list[int]
) -> None:
    # Each entry has its time, and appears in the log after its delay in seconds.
    log = [(at + late, entry(at, number)) for number, (at, late) in enumerate(written)]
    clock = Clock()
    printed = PrintedEntries(LATENESS, clock)
    found: list[LogEntry] = []
    for pause in [*pauses, 100]:
        clock.seconds += pause
        found += look(printed, [each for seen, each in log if seen <= clock.seconds])
    assert sorted(found, key=str) == sorted((each for _, each in log), key=str)


def test_what_is_remembered_has_an_end() -> None:
    printed = PrintedEntries(LATENESS, Clock(), most=100)
    for number in range(1000):
        assert printed.add(entry(number / 1000, number))
    assert len(printed._times) < 200
    printed.forget()
    assert printed.since > "2026-01-01T00:00:00.8"
    assert not printed.add(entry(0.999, 999))


def test_a_quiet_log_is_not_read_again_and_again() -> None:
    clock = Clock()
    printed = PrintedEntries(LATENESS, clock)
    for number in range(50):
        printed.add(entry(number, number))
    printed.forget()
    assert printed.since == "2026-01-01T00:00:39.000000Z"
    clock.seconds += LATENESS + 1
    printed.forget()
    assert printed.since == "2026-01-01T00:00:49.000000Z"
    assert len(printed._times) == 1


def test_an_entry_of_tomorrow_hides_nothing_of_today() -> None:
    clock = Clock()
    printed = PrintedEntries(LATENESS, clock)
    now = datetime.now(UTC)
    tomorrow = LogEntry((now + timedelta(days=1)).isoformat(), "INFO", "", "1")
    assert printed.add(tomorrow)
    clock.seconds += LATENESS + 1
    printed.forget()
    assert printed.since <= now.isoformat()
    assert not printed.add(tomorrow)


def test_entries_without_a_readable_time_are_told_too() -> None:
    printed = PrintedEntries(LATENESS, Clock())
    assert printed.add(LogEntry("", "INFO", "", "1"))
    assert printed.add(LogEntry("yesterday", "INFO", "", "1"))
    printed.forget()
    assert printed.since == ""
