"""Tuning jobs under the supervisor: trials in parallel, stopped, lost, cancelled, and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reconciler.training_service.jobs.machines import Machine
from reconciler.training_service.scheduler.recovery import recover_states, with_measurements
from reconciler.training_service.scheduler.supervisor import Supervisor
from reconciler.training_service.state.records import JobRecord, JobState
from reconciler.training_service.state.run_folder import CANCELLED, Ending, run_folder, write_measurements
from reconciler.training_service.state.trial_records import (
    Measurement,
    TrialRecord,
    TrialState,
    UnusableReports,
)
from reconciler.training_service.tuning.measurements import MOST_MEASUREMENTS
from tests.support.training_service import trainers
from tests.support.training_service.supervised import SUPERVISING, Bench, supervised, tuned, tuned_ml
from tests.support.waiting import until

# Notes its start, reports its trial's values from the file `plan`, and waits while `hold` exists.
TUNED = """
import argparse, fcntl, json, os, pathlib, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float, required=True)
parser.add_argument("--out", default=os.environ.get("OUT"))
args = parser.parse_args()
out, trial = pathlib.Path(args.out), os.environ["CLOUD_ML_TRIAL_ID"]
lock = open(out / f"lock{trial}", "w")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
with (out / "starts").open("a") as starts:
    starts.write(f"start {trial} {args.x!r}\\n")
(out / f"now{trial}").touch()
with (out / "beside").open("a") as beside:
    beside.write(f"{len(list(out.glob('now*')))}\\n")
plan = json.loads((out / "plan").read_text()) if (out / "plan").exists() else {}
file = pathlib.Path(os.environ["CLOUD_ML_HP_METRIC_FILE"])
file.parent.mkdir(parents=True, exist_ok=True)
lines = []
for step, merit in enumerate(plan.get(trial, [args.x]), 1):
    if merit is None:
        raise ValueError("the loss is NaN")
    lines.append(json.dumps({"merit": str(merit), "global_step": str(step), "timestamp": time.time(),
                             "trial": trial, "checkpoint_path": ""}) + "\\n")
    part = file.with_suffix(".part")
    part.write_text("".join(lines))
    part.replace(file)
(out / f"running{trial}").touch()
while (out / "hold").exists() or (out / f"hold{trial}").exists():
    time.sleep(0.02)
(out / f"now{trial}").unlink()
"""


@pytest.fixture
def bench(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path) -> Iterator[Bench]:
    with supervised(tmp_path, trainers.shared_environments(tmp_path_factory)) as running:
        yield running


def started(bench: Bench) -> list[str]:
    """Return the number of each started trial, once for each start."""
    return [start.split()[1] for start in bench.starts()]


def states(bench: Bench, job: JobRecord) -> list[TrialState]:
    return [trial.state for trial in bench.trials(job)]


def plan(bench: Bench, text: str) -> None:
    """Write the values that the trials report: a list of steps by trial number; a trial fails at null."""
    (bench.out / "plan").write_text(text)


def test_trials_run_side_by_side_to_the_job_s_end(bench: Bench) -> None:
    bench.hold()
    job = bench.submit(TUNED, shape=tuned(4, parallel=2))
    other = bench.submit("")
    bench.until(lambda: bench.running("1") and bench.running("2"))
    bench.until(lambda: states(bench, job) == [TrialState.RUNNING] * 2)
    bench.until(lambda: all(trial.measurements for trial in bench.trials(job)))
    assert bench.state(other) is JobState.QUEUED, "the two trials have the whole machine"
    bench.release()
    found = bench.ended(job)
    assert (found.state, found.error_message) == (JobState.SUCCEEDED, "")
    trials = bench.trials(job)
    assert [trial.number for trial in trials] == [1, 2, 3, 4]
    assert [trial.state for trial in trials] == [TrialState.SUCCEEDED] * 4
    assert [start.split()[1:] for start in sorted(bench.starts())] == [
        [str(trial.number), repr(trial.parameters["x"])] for trial in trials
    ]
    assert [trial.final and trial.final.metrics["merit"] for trial in trials] == [
        trial.parameters["x"] for trial in trials
    ]
    assert len({trial.parameters["x"] for trial in trials}) == 4
    for trial in trials:
        assert trial.create_time <= trial.start_time < trial.end_time
    assert found.start_time in {trial.start_time for trial in trials[:2]}
    assert max(map(int, (bench.out / "beside").read_text().split())) == 2
    assert bench.ended(other).state is JobState.SUCCEEDED
    assert bench.processes() == []


def test_field_without_effect_is_told_once_for_all_trials(bench: Bench) -> None:
    job = bench.submit(TUNED, shape=tuned(3, parallel=2), spec={"network": "projects/1/global/networks/n"})
    assert bench.ended(job).state is JobState.SUCCEEDED
    lines = [line for line in bench.whole_log(job) if "has no effect here" in line]
    assert lines == ["network has no effect here: the job runs as if it weren't set."]


def test_trials_on_gpus_take_turns_with_those_that_there_are(bench: Bench) -> None:
    bench.hold()
    machine = Machine(cpus=8, memory=32 * 2**30, gpus=1)
    supervisor = Supervisor(
        bench.store, bench.home, storage_url=lambda job: "http://x", machine=machine, gpus=["7"]
    )
    bench.supervisor = supervisor
    job = bench.submit(TUNED, shape=on_gpus(tuned(2, parallel=2)))
    bench.until(lambda: bench.running("1"))
    for _ in range(3):
        bench.supervisor.tick()
    assert len(bench.trials(job)) == 1
    bench.release()
    assert bench.ended(job).state is JobState.SUCCEEDED
    specs = [json.loads(bench.folder_of(run).spec.read_text()) for run in bench.store.runs(job.id)]
    assert [spec["gpus"] for spec in specs] == [["7"], ["7"]]


def on_gpus(shape: Callable[[JobRecord], JobRecord]) -> Callable[[JobRecord], JobRecord]:
    def shaped(job: JobRecord) -> JobRecord:
        machine = job.body["jobSpec"]["workerPoolSpecs"][0]["machineSpec"]
        machine |= {"acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 1}
        return shape(job)

    return shaped


def test_metric_under_another_tag_ends_the_job_before_another_trial(bench: Bench) -> None:
    job = bench.submit(TUNED.replace('"merit": str(merit)', '"val_merit": str(merit)'), shape=tuned(4))
    found = bench.ended(job)
    assert found.state is JobState.FAILED
    assert found.error_message == (
        "1 of 1 trials failed. Trial 1: The trial has ended without reporting merit: it reported val_merit."
    )
    assert found.error_details["reported"] == "val_merit"
    assert "The trial reported val_merit, and its study wants merit." in bench.log(job)
    assert started(bench) == ["1"]


def test_metric_that_is_no_number_is_logged_before_another_trial(bench: Bench) -> None:
    plan(bench, '{"1": ["nan"], "2": [0.5]}')
    job = bench.submit(TUNED, shape=tuned(2))
    assert bench.ended(job).state is JobState.SUCCEEDED
    assert "its value is no finite number" in bench.trials(job)[0].message
    assert "The trial reported a value of merit that is no finite number." in bench.whole_log(job)


def test_a_grid_that_is_used_up_ends_the_job(bench: Bench) -> None:
    grid = {
        "algorithm": "GRID_SEARCH",
        "parameters": [{"parameterId": "x", "discreteValueSpec": {"values": [1, 2]}}],
    }
    job = bench.submit(TUNED, shape=tuned(5, study=grid))
    assert bench.ended(job).state is JobState.SUCCEEDED
    assert sorted(trial.parameters["x"] for trial in bench.trials(job)) == [1, 2]


@pytest.mark.fault(34)
def test_supervisors_killed_at_any_moment_repeat_no_trial_and_leave_none_out(bench: Bench) -> None:
    job = bench.submit(TUNED, shape=tuned(4, parallel=2))
    for moment in ["runs/1-1-*", "runs/1-2-*/started", "runs/1-3-*", "runs/1-3-*/exit.json", "runs/1-4-*"]:
        with subprocess.Popen([sys.executable, "-c", SUPERVISING, str(bench.home)]) as former:
            until(lambda what=moment: [*bench.home.glob(what)])
            former.kill()
    bench.new_supervisor()
    assert bench.ended(job).state is JobState.SUCCEEDED
    assert states(bench, job) == [TrialState.SUCCEEDED] * 4
    assert sorted(started(bench)) == ["1", "2", "3", "4"]
    assert [run.trial for run in bench.store.runs(job.id)] == [1, 2, 3, 4]
    until(lambda: bench.processes() == [])


@pytest.mark.fault(34)
def test_a_trial_that_was_only_meant_is_the_one_that_is_started(bench: Bench) -> None:
    job = bench.submit(TUNED, shape=tuned(2))
    bench.store.move(job.id, JobState.PREPARING, only_from={JobState.QUEUED}, at=bench.store.now())
    bench.store.add_trial(job.id, {"x": 0.25})
    bench.new_supervisor()
    assert bench.ended(job).state is JobState.SUCCEEDED
    assert bench.starts()[0] == "start 1 0.25"
    assert started(bench) == ["1", "2"]


@pytest.mark.fault(35)
def test_a_lost_trial_is_run_again_and_no_other_one(bench: Bench) -> None:
    bench.hold()
    job = bench.submit(TUNED, shape=tuned(2, parallel=2))
    bench.until(lambda: bench.running("1") and bench.running("2"))
    bench.until(lambda: all(trial.measurements for trial in bench.trials(job)))
    first = bench.trials(job)
    kill_runner(bench, job, trial=1)
    bench.until(lambda: started(bench).count("1") == 2)
    bench.release()
    assert bench.ended(job).state is JobState.SUCCEEDED
    assert sorted(started(bench)) == ["1", "1", "2"]
    assert [run.trial for run in bench.store.runs(job.id)][2:] == [1]
    found = bench.trials(job)
    assert [trial.parameters for trial in found] == [trial.parameters for trial in first]
    assert [len(trial.measurements) for trial in found] == [1, 1]
    assert "The process that ran the trial was lost: it starts again from the beginning." in bench.log(job)


def kill_runner(bench: Bench, job: JobRecord, trial: int) -> None:
    (folder,) = (bench.folder_of(run) for run in bench.store.runs(job.id) if run.trial == trial)
    pid = folder.runner()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_disabled_retries_let_a_lost_trial_fail_alone(bench: Bench) -> None:
    bench.hold()
    job = bench.submit(TUNED, shape=tuned(3), spec={"scheduling": {"disableRetries": True}})
    bench.until(lambda: bench.running("1"))
    kill_runner(bench, job, trial=1)
    bench.release()
    assert bench.ended(job).state is JobState.SUCCEEDED
    assert states(bench, job) == [TrialState.FAILED, TrialState.SUCCEEDED, TrialState.SUCCEEDED]
    assert "disableRetries" in bench.trials(job)[0].message


def test_a_cancelled_job_ends_with_all_its_trials(bench: Bench) -> None:
    bench.hold()
    job = bench.submit(TUNED, shape=tuned(9, parallel=2))
    bench.until(lambda: bench.running("1") and bench.running("2"))
    bench.until(lambda: bench.state(job) is JobState.RUNNING)
    bench.cancel(job, "The user has had enough.")
    found = bench.ended(job)
    assert (found.state, found.error_code) == (JobState.CANCELLED, 1)
    assert found.error_message == "The user has had enough."
    assert states(bench, job) == [TrialState.CANCELLED] * 2
    assert bench.processes() == []


def test_a_job_cancelled_before_its_first_trial(bench: Bench) -> None:
    job = bench.submit(TUNED, shape=tuned(9))
    bench.store.move(job.id, JobState.PREPARING, only_from={JobState.QUEUED}, at=bench.store.now())
    bench.cancel(job)
    assert bench.ended(job).state is JobState.CANCELLED
    assert bench.trials(job) == []


def test_a_hopeless_trial_is_stopped_early_also_by_the_next_supervisor(bench: Bench) -> None:
    plan(bench, '{"1": [1, 1, 1], "2": [1, 1, 1], "3": [1, 1, 1], "4": [0.5, 0.5, 0.5]}')
    job = bench.submit(TUNED, shape=tuned(4, study={"medianAutomatedStoppingSpec": {}}))
    (bench.out / "hold4").touch()
    bench.until(lambda: states(bench, job)[3:] == [TrialState.STOPPING])
    bench.new_supervisor()
    assert bench.ended(job).state is JobState.SUCCEEDED
    assert states(bench, job) == [TrialState.SUCCEEDED] * 4
    assert [trial.stopped_early for trial in bench.trials(job)] == [False, False, False, True]
    last = bench.trials(job)[3].final
    assert last is not None
    assert last.metrics == {"merit": 0.5}
    assert bench.processes() == []


def test_too_many_failed_trials_end_the_others_and_the_job(bench: Bench) -> None:
    plan(bench, '{"1": [null]}')
    (bench.out / "hold2").touch()
    job = bench.submit(TUNED, shape=tuned(9, parallel=2, maxFailedTrialCount=1))
    found = bench.ended(job)
    assert found.state is JobState.FAILED
    assert "ValueError: the loss is NaN" in found.error_message
    assert states(bench, job) == [TrialState.FAILED, TrialState.CANCELLED]
    assert bench.processes() == []


def test_a_trainer_that_always_fails_fails_the_job_although_a_trial_is_cancelled(bench: Bench) -> None:
    plan(bench, json.dumps({str(number): [None] for number in (1, 3, 4, 5, 6)}))
    (bench.out / "hold2").touch()
    job = bench.submit(TUNED, shape=tuned(6, parallel=2))
    bench.until(lambda: bench.running("2"))
    found = bench.ended(job)
    assert found.state is JobState.FAILED
    assert found.error_message.startswith("3 of 3 trials failed.")
    assert states(bench, job) == [
        TrialState.FAILED,
        TrialState.CANCELLED,
        TrialState.FAILED,
        TrialState.FAILED,
    ]


def test_what_can_t_run_here_fails_without_a_trial(bench: Bench) -> None:
    job = bench.submit(TUNED, shape=tuned(3), image="")
    found = bench.ended(job)
    assert found.state is JobState.FAILED
    assert "executorImageUri" in found.error_message
    assert bench.trials(job) == []


def test_a_job_that_resumes_another_goes_on_with_its_knowledge(bench: Bench) -> None:
    grid: dict[str, Any] = {
        "algorithm": "GRID_SEARCH",
        "params": [{"parameterName": "x", "type": "DISCRETE", "discreteValues": [1, 2, 3, 4]}],
    }
    first = bench.submit(TUNED, shape=tuned_ml(bench.out, 2, **grid))
    assert bench.ended(first).error_message == ""
    second = bench.submit(TUNED, shape=tuned_ml(bench.out, 9, **grid, resumePreviousJobId=first.job_id))
    assert bench.ended(second).error_message == ""
    assert [trial.number for trial in bench.trials(second)] == [3, 4]
    tried = [trial.parameters["x"] for trial in bench.trials(first) + bench.trials(second)]
    assert sorted(tried) == [1, 2, 3, 4]


def untuned(out: Path) -> Callable[[JobRecord], JobRecord]:
    def shape(job: JobRecord) -> JobRecord:
        found = tuned_ml(out, 1)(job)
        del found.body["trainingInput"]["hyperparameters"]
        return found

    return shape


@pytest.mark.parametrize("which", ["none", "no tuning job", "unfinished"])
def test_a_job_that_can_t_be_resumed_fails_the_one_that_would(bench: Bench, which: str) -> None:
    names = {"none": "j0"}
    if which == "no tuning job":
        names[which] = bench.submit("", shape=untuned(bench.out)).job_id
    if which == "unfinished":
        bench.hold()
        names[which] = bench.submit(TUNED, shape=tuned_ml(bench.out, 1)).job_id
    job = bench.submit(TUNED, shape=tuned_ml(bench.out, 1, resumePreviousJobId=names[which]))
    found = bench.ended(job)
    assert (found.state, found.error_code) == (JobState.FAILED, 3)
    assert "resumePreviousJobId" in found.error_message
    assert bench.trials(job) == []


def test_the_time_limit_is_the_whole_job_s_on_ai_platform(bench: Bench) -> None:
    bench.hold()
    job = bench.submit(TUNED, shape=tuned_ml(bench.out, 3, scheduling={"maxRunningTime": "3600s"}))
    bench.until(lambda: bench.running("1") and bench.state(job) is JobState.RUNNING)
    bench.has_run_for(bench.folder(job), 3601)
    kill_runner(bench, job, trial=1)
    found = bench.ended(job)
    assert (found.state, found.error_code) == (JobState.CANCELLED, 1)
    assert "scheduling.maxRunningTime" in found.error_message
    assert states(bench, job) == [TrialState.CANCELLED]


def test_the_time_limit_is_each_trial_s_on_vertex_ai(bench: Bench) -> None:
    (bench.out / "hold1").touch()
    job = bench.submit(TUNED, shape=tuned(2), spec={"scheduling": {"timeout": "3600s"}})
    bench.until(lambda: bench.running("1") and states(bench, job) == [TrialState.RUNNING])
    bench.has_run_for(bench.folder(job), 3601)
    kill_runner(bench, job, trial=1)
    assert bench.ended(job).state is JobState.SUCCEEDED
    assert states(bench, job) == [TrialState.FAILED, TrialState.SUCCEEDED]
    message = "The trial was ended: it ran for longer than scheduling.timeout."
    assert bench.trials(job)[0].message == message


TOO_LONG = Ending(CANCELLED, 1, "The job was cancelled: it ran for too long.", "2026-01-01T00:00:00.000000Z")


def test_settling_tells_a_trial_s_time_limit_from_a_cancellation(bench: Bench) -> None:
    jobs = [
        bench.submit(shape=shape)
        for shape in (tuned(3, parallel=2), tuned(2, parallel=2), tuned_ml(bench.out, 2))
    ]
    for job in jobs:
        bench.store.move(job.id, JobState.RUNNING, only_from={JobState.QUEUED}, at=bench.store.now())
        for number in (1, 2):
            bench.store.add_trial(job.id, {"x": 0.5})
            run = run_folder(bench.home, bench.store.add_run(job.id, number).run_id)
            run.path.mkdir(parents=True)
            run.set_phase("RUNNING")
            run.end(TOO_LONG if number == 1 else replace(TOO_LONG, state="SUCCEEDED", code=0, message=""))
    bench.cancel(jobs[0])
    bench.store.save_trial(replace(bench.trials(jobs[0])[0], state=TrialState.STOPPING))
    recover_states(bench.store, bench.home)
    vertex = [TrialState.FAILED, TrialState.SUCCEEDED]
    cancelled = [TrialState.CANCELLED, TrialState.SUCCEEDED]
    assert [states(bench, job) for job in jobs] == [cancelled, vertex, cancelled]
    assert [bench.state(job) for job in jobs] == [
        JobState.CANCELLED,
        JobState.FAILED,
        JobState.CANCELLED,
    ]
    assert [bench.now(job).error_message for job in jobs[::2]] == ["Enough.", TOO_LONG.message]


def test_a_trial_s_measurements_are_the_newest_however_often_it_was_run(bench: Bench) -> None:
    record = TrialRecord(
        1,
        1,
        {},
        "",
        measurements=tuple(Measurement(step, 0, {"merit": 0}) for step in range(MOST_MEASUREMENTS)),
    )
    folder = run_folder(bench.home, "1-1-a")
    folder.path.mkdir(parents=True)
    write_measurements(folder, [Measurement(MOST_MEASUREMENTS + 1, 0, {"merit": 1})], UnusableReports())
    found = with_measurements(record, folder).measurements
    assert len(found) == MOST_MEASUREMENTS
    assert (found[0].step, found[-1].step) == (1, MOST_MEASUREMENTS + 1)


def test_settling_tells_what_trials_came_to_while_no_supervisor_lived(bench: Bench) -> None:
    bench.hold()
    job = bench.submit(TUNED, shape=tuned(2, parallel=2))
    with subprocess.Popen([sys.executable, "-c", SUPERVISING, str(bench.home)]) as former:
        until(lambda: bench.running("1") and bench.running("2"))
        former.kill()
    recover_states(bench.store, bench.home)
    assert bench.state(job) is JobState.RUNNING
    assert states(bench, job) == [TrialState.RUNNING] * 2
    bench.release()
    folders = [bench.folder_of(run) for run in bench.store.runs(job.id)]
    until(lambda: all(folder.ending() and folder.runner() is None for folder in folders))
    recover_states(bench.store, bench.home)
    found = bench.now(job)
    assert found.state is JobState.SUCCEEDED
    assert found.end_time == max(trial.end_time for trial in bench.trials(job))
    assert [trial.final and trial.final.metrics for trial in bench.trials(job)] == [
        {"merit": trial.parameters["x"]} for trial in bench.trials(job)
    ]
