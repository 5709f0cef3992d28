"""Trainers that misbehave: each fails with a specific error, and leaves no process or file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.support.training_service import trainers
from tests.support.training_service.misbehaving import failure_of, of_small_machines
from tests.support.training_service.runs import Starter, lives, nothing_is_left_of
from tests.support.waiting import until

MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def trainer(installed: Starter) -> Starter:
    """Return a function that makes runs without an installation."""
    return partial(installed, plain=True)


def test_one_that_prints_without_end(trainer: Starter) -> None:
    limit = 2 * 1024 * 1024
    run = trainer(
        """
        import sys
        line = b"x" * 99 + b"\\n"
        while True:
            sys.stdout.buffer.write(line * 1000)
        """,
        log_limit=limit,
    )
    code, message = failure_of(run)
    assert code == 8
    assert message == (
        "The job was ended: its log has reached 2 MiB, the limit of a run;"
        " the replica workerpool0-0 printed last."
    )
    assert limit * 0.9 < run.folder.log.stat().st_size < limit * 1.1
    assert run.log()[-1] == ("ERROR", message)


def test_one_that_prints_too_much_and_ends(trainer: Starter) -> None:
    code, message = failure_of(trainer("print('x' * 100_000)", log_limit=50_000))
    assert code == 8
    assert "its log has reached 50000 bytes" in message


def test_one_that_prints_a_line_without_end(trainer: Starter) -> None:
    run = trainer(
        """
        import sys
        while True:
            sys.stderr.buffer.write(b"." * 100_000)
        """,
        log_limit=1024 * 1024,
    ).start()
    assert run.runner is not None
    runner = psutil.Process(run.runner.pid)
    most = 0

    def ended() -> bool:
        nonlocal most
        with suppress(psutil.Error):
            most = max(most, runner.memory_info().rss)
        assert run.runner is not None
        return run.runner.poll() is not None

    until(ended)
    assert "its log has reached 1 MiB" in run.end()[2]
    assert most < 256 * 1024 * 1024
    assert nothing_is_left_of(run)


def test_one_that_prints_no_text(trainer: Starter) -> None:
    run = trainer("import os, sys; sys.stderr.buffer.write(bytes(range(256)) * 100); sys.exit(4)")
    code, message = failure_of(run)
    assert code == 3
    assert message.startswith("The replica workerpool0-0 exited with a non-zero status of 4.")
    message.encode()


def test_one_that_forks_children_without_end(trainer: Starter, tmp_path: Path) -> None:
    """All of the children fork as fast as they can, up to a bound that keeps the machine safe."""
    source = """
        import os, signal
        left, more = os.pipe()
        os.write(more, b"." * 300)
        os.set_blocking(left, False)
        while True:
            try:
                os.read(left, 1)
            except BlockingIOError:
                signal.pause()
            os.fork()
    """
    code, message = failure_of(trainer(source, process_limit=40))
    assert code == 8
    told = re.fullmatch(
        r"The job was ended: it had (\d+) processes at once, and a run may have 40\.", message
    )
    assert told
    assert int(told[1]) > 40


def test_children_that_start_new_ones_when_one_is_killed(trainer: Starter) -> None:
    """Each child is in a session of its own, and its parent replaces it at once."""
    source = """
        import os, pathlib, signal, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        def keeper(depth):
            os.setsid()
            while depth:
                child = os.fork()
                if child == 0:
                    keeper(depth - 1)
                    os._exit(0)
                pathlib.Path(os.environ["OUT"], f"ready.{depth}").touch()
                os.waitpid(child, 0)
            while True:
                time.sleep(60)
        if os.fork() == 0:
            keeper(5)
        while not pathlib.Path(os.environ["OUT"], "ready.1").exists():
            time.sleep(0.01)
        sys.exit(6)
    """
    assert "status of 6" in failure_of(trainer(source))[1]


def test_one_that_forks_and_fails(trainer: Starter) -> None:
    source = """
        import os, pathlib, sys, time
        if os.fork() == 0:
            os.setsid()
            pathlib.Path(os.environ["OUT"], "child.part").write_text(str(os.getpid()))
            pathlib.Path(os.environ["OUT"], "child.part").rename(pathlib.Path(os.environ["OUT"], "child"))
            while True:
                time.sleep(60)
        while not pathlib.Path(os.environ["OUT"], "child").exists():
            time.sleep(0.01)
        sys.exit(6)
    """
    run = trainer(source)
    assert "status of 6" in failure_of(run)[1]
    assert not lives(int(run.wrote("child")))


def test_one_that_writes_into_a_closed_pipe(trainer: Starter) -> None:
    source = """
        import subprocess
        child = subprocess.Popen(["true"], stdin=subprocess.PIPE)
        child.wait()
        child.stdin.write(b"x" * 1_000_000)
    """
    code, message = failure_of(trainer(source))
    assert code == 3
    assert message.endswith("BrokenPipeError: [Errno 32] Broken pipe")


def test_one_that_is_ended_by_a_closed_pipe(trainer: Starter) -> None:
    source = """
        import os, signal
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        reading, writing = os.pipe()
        os.close(reading)
        os.write(writing, b"x")
    """
    code, message = failure_of(trainer(source))
    assert (code, message) == (3, "The replica workerpool0-0 was killed by signal 13 (SIGPIPE).")


def test_one_that_closes_its_output(trainer: Starter) -> None:
    """The trainer prints no more; its end is known all the same, and the runner doesn't spin."""
    source = """
        import os, pathlib, time
        os.close(1)
        os.close(2)
        out = pathlib.Path(os.environ["OUT"])
        (out / "closed").write_text("x")
        while not (out / "go").exists():
            time.sleep(0.01)
        os._exit(9)
    """
    run = trainer(source).start()
    run.wrote("closed")
    assert run.runner is not None
    runner = psutil.Process(run.runner.pid)
    turns = runner.num_ctx_switches()
    until(lambda: runner.num_ctx_switches().voluntary >= turns.voluntary + 5)
    used = runner.cpu_times().user
    until(lambda: runner.num_ctx_switches().voluntary >= turns.voluntary + 15)
    assert runner.cpu_times().user - used < 0.5
    (run.out / "go").touch()
    assert run.end()[2].startswith("The replica workerpool0-0 exited with a non-zero status of 9.")
    assert nothing_is_left_of(run)


def test_one_that_writes_onto_a_full_disk(trainer: Starter) -> None:
    code, message = failure_of(trainer("open('/dev/full', 'w', buffering=1).write('weights\\n')"))
    assert code == 3
    assert message.endswith("OSError: [Errno 28] No space left on device")


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a disk of 4 MB at this path."""
    folder.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "small", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("only root may mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.fault(33)
def test_one_that_fills_the_disk_of_the_service(trainer: Starter, tmp_path: Path) -> None:
    """The trainer's files and its log are on the same disk; the record of the end still fits."""
    with small_disk(tmp_path / "home" / "runs"):
        run = trainer(
            """
            import sys
            with open("weights", "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError as error:
                    print(error, file=sys.stderr)
                    raise
            """
        )
        state, code, message = run.start().end()
        assert state == "FAILED"
        assert code in (3, 8)
        assert "No space left on device" in message
        assert nothing_is_left_of(run)


def test_one_that_the_kernel_kills_for_its_memory(trainer: Starter, tmp_path: Path) -> None:
    group = MEMORY_GROUPS / f"reconciler-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text("64M")
    except OSError:
        pytest.skip("no memory limit can be set here")
    try:
        source = f"""
            import os, pathlib
            pathlib.Path("{group}", "cgroup.procs").write_text(str(os.getpid()))
            held = []
            while True:
                held.append(bytearray(os.urandom(1024 * 1024)))
        """
        code, message = failure_of(trainer(source))
    finally:
        until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
    assert code == 8
    assert message.startswith(
        "The replica workerpool0-0 was killed by signal 9 (SIGKILL): out of memory, or killed by hand."
    )


# Takes memory in steps of 8 MB and records each step, until it is ended.
GREEDY = """
import os, pathlib, time
held = []
while True:
    held.append(os.urandom(8 * 1024 * 1024))
    pathlib.Path(os.environ["OUT"], "taken").write_text(f"{len(held) * 8} {time.time()}")
    time.sleep(0.01)
"""


def test_one_that_takes_more_memory_than_its_machine_has(trainer: Starter) -> None:
    run = of_small_machines(trainer(GREEDY))
    code, message = failure_of(run)
    assert code == 8
    told = re.fullmatch(
        r"The job was ended: the replica workerpool0-0 took (\d+) MiB of memory,"
        r" and its machine has 128 MiB here\.",
        message,
    )
    assert told
    assert int(told[1]) > 128
    assert run.log()[-1] == ("ERROR", message)


# Runs the runner on a computer with 100 MB of free memory, less the amount that the trainer records.
CROWDED = """
import os, pathlib, runpy, sys
from reconciler.training_service.jobs import machines
taken = pathlib.Path(os.environ["TAKEN"])
def spare():
    text = taken.read_text().split() if taken.exists() else []
    return (164 - int(text[0] if text else 0)) * 2**20
machines.spare_memory = spare
machines.whole_memory = lambda: 20 * 64 * 2**20
sys.argv = sys.argv[4:]
runpy.run_module("reconciler.training_service.runner.main", run_name="__main__")
"""


def test_one_that_takes_more_memory_than_the_computer_can_spare(trainer: Starter) -> None:
    run = trainer(GREEDY)
    run.through = (sys.executable, "-c", CROWDED)
    run.environ = {"TAKEN": str(run.out / "taken")}
    code, message = failure_of(run)
    assert code == 8
    told = re.fullmatch(
        r"The job was ended: it took (\d+) MiB of memory, and this computer can spare (\d+) MiB\.", message
    )
    assert told
    assert int(told[1]) > int(told[2])


def test_memory_that_processes_share_counts_once(trainer: Starter) -> None:
    """Eight processes share 64 MB: their sum counts, although no process alone exceeds the limit."""
    source = """
        import mmap, os, pathlib, time
        shared, own = os.urandom(64 * 1024 * 1024), mmap.mmap(-1, 64 * 1024 * 1024)
        own[:] = shared
        children = []
        for number in range(8):
            child = os.fork()
            if not child:
                sum(memoryview(shared)[::4096]) + sum(memoryview(own)[::4096])
                pathlib.Path(os.environ["OUT"], str(number)).touch()
                out = pathlib.Path(os.environ["OUT"])
                while not (out / "go").exists():
                    time.sleep(0.01)
                os.setsid()
                held = os.urandom(32 * 1024 * 1024)
                time.sleep(60)
            children.append(child)
        os.waitpid(children[0], 0)
    """
    run = of_small_machines(trainer(source), 256).start()
    until(lambda: run.folder.ending() or all((run.out / str(number)).exists() for number in range(8)))
    assert run.runner is not None
    runner = psutil.Process(run.runner.pid)
    turns = runner.num_ctx_switches().voluntary
    until(lambda: run.folder.ending() or runner.num_ctx_switches().voluntary >= turns + 20)  # two seconds
    assert run.folder.ending() is None
    (run.out / "go").touch()
    state, code, message = run.end()
    assert (state, code) == ("FAILED", 8)
    assert "MiB of memory" in message
    assert nothing_is_left_of(run)


def test_files_that_are_mapped_count_as_little_as_files_that_are_read(trainer: Starter) -> None:
    source = """
        import mmap, os, pathlib
        path = pathlib.Path(os.environ["OUT"], "data")
        with path.open("wb") as file:
            for _ in range(20):
                file.write(os.urandom(16 * 1024 * 1024))
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        import time
        for _ in range(15):
            sum(memoryview(data)[::4096])
            time.sleep(0.1)
    """
    assert of_small_machines(trainer(source)).start().end() == ("SUCCEEDED", 0, "")


def test_a_package_that_takes_too_much_memory_while_it_is_built(installed: Starter) -> None:
    run = installed("", job=trainers.custom_job(packages=["gs://code/greedy-1.0.tar.gz"]))
    archive = run.folder.service_home / "gcs" / "code" / "greedy-1.0.tar.gz"
    setup = f"import os\nos.environ['OUT'] = {str(run.out)!r}\n{GREEDY}"
    trainers.source_distribution(archive, {"setup.py": setup})
    code, message = failure_of(of_small_machines(run, 256))
    assert code == 8
    assert re.search(r"it took \d+ MiB of memory, and its machines have 256 MiB here", message)


def test_one_that_has_no_memory_left(trainer: Starter) -> None:
    source = """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (200_000_000, 200_000_000))
        held = bytearray(400_000_000)
    """
    code, message = failure_of(trainer(source))
    assert code == 3
    assert message.endswith("MemoryError")


def test_one_that_crashes(trainer: Starter) -> None:
    code, message = failure_of(trainer("import ctypes; ctypes.string_at(0)"))
    assert code == 3
    assert message.startswith("The replica workerpool0-0 was killed by signal 11 (SIGSEGV).")


def test_one_whose_module_isn_t_there(installed: Starter) -> None:
    run = installed("import no_such_module", job=trainers.custom_job())
    assert failure_of(run)[1].endswith("ModuleNotFoundError: No module named 'no_such_module'")


def test_one_whose_package_can_t_be_installed(installed: Starter) -> None:
    run = installed("", job=trainers.custom_job(packages=["gs://code/broken-1.0.tar.gz"]))
    archive = run.folder.service_home / "gcs" / "code" / "broken-1.0.tar.gz"
    trainers.source_distribution(archive, {"setup.py": "raise RuntimeError('no compiler')"})
    code, message = failure_of(run)
    assert code == 3
    assert message.startswith("The package broken-1.0.tar.gz could not be installed: ")
    assert "no compiler" in message


def test_one_that_removes_its_own_folders(trainer: Starter) -> None:
    source = """
        import os, shutil
        shutil.rmtree(os.getcwd())
        shutil.rmtree(os.environ["HOME"])
        shutil.rmtree(os.environ["TMPDIR"])
        raise SystemExit(7)
    """
    assert "status of 7" in failure_of(trainer(source))[1]


def test_one_whose_folders_can_t_be_written(trainer: Starter) -> None:
    source = """
        import os
        os.makedirs("a/b")
        open("a/b/c", "w").close()
        os.chmod("a/b", 0)
        os.chmod("a", 0)
        raise SystemExit(7)
    """
    assert "status of 7" in failure_of(trainer(source))[1]


def test_one_that_stops_itself_can_be_cancelled(trainer: Starter) -> None:
    run = trainer(
        """
        import os, pathlib, signal
        pathlib.Path(os.environ["OUT"], "ready").write_text("x")
        os.kill(os.getpid(), signal.SIGSTOP)
        """,
        grace=0.3,
    ).start()
    run.wrote("ready")
    run.folder.ask_to_cancel("Enough.")
    assert run.end() == ("CANCELLED", 1, "Enough.")
    assert nothing_is_left_of(run)


def test_a_log_keeps_the_service_s_own_lines_beyond_its_limit(trainer: Starter) -> None:
    run = trainer("print('x')", log_limit=10, warnings=("Take care.",))
    assert "its log has reached 10 bytes" in failure_of(run)[1]
    entries = [json.loads(line) for line in run.folder.log.read_text().splitlines()]
    assert entries[0]["m"] == "Take care."
    assert not [entry for entry in entries if "r" in entry]
