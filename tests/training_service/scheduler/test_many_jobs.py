"""Many jobs at once: all finish, as many run at a time as the machine holds, and the API stays responsive."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import psutil
import pytest

from reconciler.training_service.jobs.machines import Machine
from reconciler.training_service.processes import process_tree
from reconciler.training_service.scheduler.supervisor import Supervisor
from reconciler.training_service.state.records import JobState
from tests.support.training_service import trainers
from tests.support.training_service.served import Service
from tests.support.waiting import until

JOBS = 50
FOR_THREE = Machine(cpus=12, memory=45 * 2**30)
"""Room for three n1-standard-4."""
SLOWEST = 10
"""The limit of the median create, in ticks of the supervisor; both are slow on a slow machine."""
JOBS_PATH = "/v1/projects/my-project/locations/us-central1/customJobs"

# Records its start and end by a clock that all processes share.
TRAINER = """
import os, pathlib, time
out, name = pathlib.Path(os.environ["OUT"]), os.environ["NAME"]
began = time.monotonic()
(out / f"{name}.began").touch()
while (out / "hold").exists():
    time.sleep(0.02)
time.sleep(0.05)
(out / f"{name}.part").write_text(f"{began} {time.monotonic()}")
(out / f"{name}.part").rename(out / f"{name}.times")
"""


class Ticking:
    """A supervisor that ticks in a thread, as in the service."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.ticks = 0
        self.failure: BaseException | None = None
        self._supervisor = supervisor
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()

    def check(self) -> None:
        assert self.failure is None, self.failure

    def _tick(self) -> None:
        try:
            while not self._over.wait(0.02):
                self._supervisor.tick()
                self.ticks += 1
        except BaseException as failure:
            self.failure = failure


def most_at_once(spans: list[tuple[float, float]]) -> int:
    changes = sorted([(began, 1) for began, _ in spans] + [(ended, -1) for _, ended in spans])
    return max(accumulate(change for _, change in changes))


def test_fifty_jobs_at_once(
    service: Service, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (service.home / "environments").symlink_to(trainers.shared_environments(tmp_path_factory))
    trainers.wheel(service.home / "gcs" / trainers.URI.removeprefix("gs://"), TRAINER)
    service.store.set_setting("images", trainers.IMAGES)
    supervisor = Supervisor(
        service.store, service.home, storage_url=lambda job: f"{service.url}/x", machine=FOR_THREE
    )
    ticking = Ticking(supervisor)
    (out / "hold").touch()
    took = []
    with ticking.running():
        for number in range(JOBS):
            if number == 3:
                until(lambda: len([*out.glob("*.began")]) == 3, meanwhile=ticking.check)
            before = ticking.ticks
            body = trainers.custom_job(env={"OUT": str(out), "NAME": str(number)}).body
            answer = service.post(JOBS_PATH, body)
            assert answer.status == 200, answer.content
            took.append(ticking.ticks - before)
        # All jobs were accepted while the machine was full, and no further job was started.
        jobs = service.store.unfinished()
        assert [job.state for job in jobs] == [JobState.RUNNING] * 3 + [JobState.QUEUED] * (JOBS - 3)
        assert ticking.ticks > 0
        assert statistics.median(took) <= SLOWEST, took
        (out / "hold").unlink()
        until(lambda: not service.store.unfinished(), meanwhile=ticking.check)
    ticking.check()

    ended = [service.store.job(job.id) for job in jobs]
    assert [(job.state, job.error_message) for job in ended if job] == [(JobState.SUCCEEDED, "")] * JOBS
    spans = []
    for number in range(JOBS):
        began, finished = map(float, (out / f"{number}.times").read_text().split())
        spans.append((began, finished))
    assert most_at_once(spans) == 3
    assert all(len(service.store.runs(job.id)) == 1 for job in jobs)
    runs = {run.run_id for job in jobs for run in service.store.runs(job.id)}
    left = [process for run in runs for process in process_tree.marked(run)]
    assert not [process for process in left if process.status() != psutil.STATUS_ZOMBIE]
