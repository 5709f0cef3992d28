"""Capacity: no part of the machine is allocated twice, and every job gets its turn."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.training_service.jobs import machines as hardware
from reconciler.training_service.jobs.machines import Machine
from reconciler.training_service.scheduler import jobs as scheduler_jobs
from reconciler.training_service.scheduler.jobs import Reservation, Reservations
from reconciler.training_service.scheduler.supervisor import QueuedJob, jobs_to_begin

WHOLE = Machine(cpus=8, memory=100, gpus=2)
DEMANDS = st.builds(Machine, st.integers(0, 8), st.integers(0, 100), st.integers(0, 2))


def total(machines: list[Machine]) -> Machine:
    return Machine(
        sum(machine.cpus for machine in machines),
        sum(machine.memory for machine in machines),
        sum(machine.gpus for machine in machines),
    )


@given(
    waiting=st.lists(st.tuples(st.integers(0, 3), DEMANDS), max_size=12),
    data=st.data(),
)
def test_all_have_their_turn_in_order_and_never_more_than_there_is(
    waiting: list[tuple[int, Machine]], data: st.DataObject
) -> None:
    queue = {id: QueuedJob(id, priority, demand) for id, (priority, demand) in enumerate(waiting, 1)}
    in_order = sorted(queue.values(), key=lambda job: (-job.priority, job.id))
    running: dict[int, Machine] = {}
    begun = []
    while queue:
        new = jobs_to_begin(WHOLE, running.values(), data.draw(st.permutations([*queue.values()])))
        running |= {id: queue.pop(id).demand for id in new}
        begun += new
        held = total([*running.values()])
        assert held.cpus <= WHOLE.cpus
        assert held.memory <= WHOLE.memory
        assert held.gpus <= WHOLE.gpus
        assert new or running, "all wait for nothing"
        if running:
            del running[data.draw(st.sampled_from(sorted(running)))]
    assert begun == [job.id for job in in_order]


def test_a_job_that_doesn_t_fit_holds_back_those_behind_it() -> None:
    large, small = Machine(cpus=8, memory=1), Machine(cpus=1, memory=1)
    waiting = [QueuedJob(1, 0, small), QueuedJob(2, 0, large), QueuedJob(3, 0, small)]
    assert jobs_to_begin(WHOLE, [], waiting) == [1]
    assert jobs_to_begin(WHOLE, [small], waiting[1:]) == []
    assert jobs_to_begin(WHOLE, [], waiting[1:]) == [2]
    assert jobs_to_begin(WHOLE, [], [*waiting, QueuedJob(4, 9, large)]) == [4]


def test_more_held_than_there_is_lets_nothing_begin() -> None:
    """The machine has become smaller while jobs were running."""
    assert jobs_to_begin(WHOLE, [Machine(cpus=16, memory=1)], [QueuedJob(1, 0, Machine(0, 0))]) == []


def test_ports_belong_to_one_run_until_it_is_over() -> None:
    held = Reservations()
    one = held.reserve("1", ports=3, gpus=0)
    two = held.reserve("2", ports=3, gpus=0)
    assert len({*one.ports, *two.ports}) == 6
    assert held.reserve("1", ports=3, gpus=0) == one
    held.release("1")
    assert held.reserve("1", ports=3, gpus=0) != one, "late packets may still be meant for the former owner"


def test_a_port_that_somebody_uses_or_a_former_run_has_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        scheduler_jobs, "_FIRST", first := Reservations().reserve("x", ports=3, gpus=0).ports[0]
    )
    monkeypatch.setattr(scheduler_jobs, "_END", first + 3)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", first + 1))
        listening.listen()
        held = Reservations()
        held.adopt("former", Reservation(ports=(first,)))
        assert held.reserve("new", ports=1, gpus=0).ports == (first + 2,)
        with pytest.raises(OSError, match="ports are free"):
            held.reserve("another", ports=1, gpus=0)
        held.release("former")
        assert held.reserve("another", ports=1, gpus=0).ports == (first,)


def test_gpus_are_given_as_far_as_they_are_free() -> None:
    held = Reservations(["0", "GPU-4f", "2"])
    assert held.reserve("1", ports=0, gpus=2).gpus == ("0", "GPU-4f")
    assert held.reserve("2", ports=0, gpus=2).gpus == ("2",)
    assert held.reserve("3", ports=0, gpus=0).gpus == ()
    held.release("1")
    assert held.reserve("4", ports=0, gpus=1).gpus == ("0",)


@pytest.mark.parametrize(
    ("own", "files", "limits"),
    [
        ("0::/\n", {}, ([], [])),
        ("0::/a/b\n", {"a/cpu.max": "150000 100000", "a/b/memory.max": "1000"}, ([1], [1000])),
        ("0::/a\n", {"a/cpu.max": "max 100000", "a/memory.max": "max"}, ([], [])),
        ("0::/host/x\n", {"cpu.max": "20000 100000", "memory.max": "5"}, ([1], [5])),
        (
            "4:memory:/a\n3:cpu,cpuacct:/a\n",
            {
                "memory/a/memory.limit_in_bytes": "7",
                "cpu,cpuacct/a/cpu.cfs_quota_us": "400000",
                "cpu,cpuacct/a/cpu.cfs_period_us": "100000",
                "cpu,cpuacct/cpu.cfs_quota_us": "-1",
            },
            ([4], [7]),
        ),
    ],
    ids=["none", "version 2", "no limit", "container", "version 1"],
)
def test_a_container_s_limits_count(
    tmp_path: Path, own: str, files: dict[str, str], limits: tuple[list[int], list[int]]
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    assert hardware._of_control_groups(tmp_path, own) == limits


def test_this_machine_holds_something() -> None:
    machine = hardware.this_machine()
    assert machine.cpus >= 1
    assert machine.memory > 2**20
    assert machine.gpus == len(hardware.gpu_ids())


@pytest.mark.parametrize(
    ("own", "files"),
    [
        (
            "0::/a\n",
            {"a/memory.max": "1000", "a/memory.current": "700", "a/memory.stat": "anon 1\ninactive_file 50"},
        ),
        (
            "4:memory:/a\n",
            {
                "memory/a/memory.limit_in_bytes": "1000",
                "memory/a/memory.usage_in_bytes": "700",
                "memory/a/memory.stat": "inactive_file 9\ntotal_inactive_file 50",
            },
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_a_container_spares_what_its_limit_leaves_beside_files_that_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str]
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    monkeypatch.setattr(hardware, "_GROUPS", tmp_path)
    monkeypatch.setattr(hardware, "_own_groups", lambda: own)
    assert hardware.spare_memory() == 350
