"""Buckets as files below /gcs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trainers
from runs import Run, Starter, lives, nothing_is_left_of, until
from served import Service

from reconciler.training_service.processes import process_tree
from reconciler.training_service.runner import mounts

OWN_GCS = Path("/gcs").exists()


def works(folder: Path) -> bool:
    """Whether this system lets this user mount."""
    buckets, root = folder / "probe-buckets", folder / "probe-root"
    buckets.mkdir()
    root.mkdir()
    return mounts.mount_problem(buckets, root, folder) == ""


@pytest.fixture
def mountable(tmp_path: Path) -> None:
    if not works(tmp_path):
        pytest.skip("this system doesn't let this user mount")


@pytest.fixture
def shown(tmp_path: Path, mountable: None) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a Python program that sees the buckets in `buckets`."""
    buckets, root = tmp_path / "buckets", tmp_path / "root"
    (buckets / "models").mkdir(parents=True)
    root.mkdir()
    started: list[subprocess.Popen[str]] = []

    def start(source: str) -> subprocess.Popen[str]:
        tie = process_tree.tie_to_parent()

        def first() -> None:
            mounts.show(buckets, root, tmp_path)
            assert tie is not None
            tie()

        started.append(
            subprocess.Popen(
                [sys.executable, "-c", source],
                cwd=tmp_path,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, process_tree.MARK: tmp_path.name},
                preexec_fn=first,
            )
        )
        return started[-1]

    yield start
    for child in started:
        child.kill()
        child.communicate()


def told(child: subprocess.Popen[str]) -> object:
    return json.loads(child.communicate()[0])


def test_a_program_sees_the_buckets_and_everything_else(
    shown: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    (tmp_path / "buckets" / "models" / "given").write_text("from outside")
    child = shown(
        "import json, os, pathlib\n"
        "pathlib.Path('/gcs/models/made').write_text('from inside')\n"
        "print(json.dumps([pathlib.Path('/gcs/models/given').read_text(), sorted(os.listdir('/')),\n"
        "    os.getcwd(), os.getuid(), os.getpid(), os.path.exists('/proc/self/environ')]))"
    )
    given, root, work, user, pid, has_proc = told(child)  # type: ignore[misc]
    assert given == "from outside"
    assert sorted({*(path.name for path in Path("/").iterdir()), "gcs"}) == root
    assert (work, user, pid, has_proc) == (str(tmp_path), os.getuid(), child.pid, True)
    assert (tmp_path / "buckets" / "models" / "made").read_text() == "from inside"


def test_nothing_of_it_is_seen_outside(shown: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    child = shown("print(1, flush=True); input()")
    assert child.stdout is not None
    child.stdout.readline()
    assert Path("/proc/self/mountinfo").read_text() == before
    assert Path("/gcs").exists() == OWN_GCS
    assert [*(tmp_path / "root").iterdir()] == []
    child.kill()
    child.wait()
    assert Path("/proc/self/mountinfo").read_text() == before
    (tmp_path / "root").rmdir()


def test_its_processes_are_found_by_their_mark(
    shown: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    child = shown("print(1, flush=True); input()")
    assert child.stdout is not None
    child.stdout.readline()
    assert [process.pid for process in process_tree.marked(tmp_path.name)] == [child.pid]


def test_it_still_dies_with_its_parent(shown: Callable[..., subprocess.Popen[str]]) -> None:
    child = shown(
        "import ctypes; number = ctypes.c_int()\n"
        "ctypes.CDLL(None).prctl(2, ctypes.byref(number), 0, 0, 0); print(number.value)"
    )
    assert told(child) == signal.SIGKILL


def test_a_program_may_make_such_a_place_for_its_own(shown: Callable[..., subprocess.Popen[str]]) -> None:
    """Programs that put others into sandboxes work as before."""
    child = shown(
        "import json, subprocess\n"
        "done = subprocess.run(['unshare', '--user', '--map-root-user', '--mount', 'true'])\n"
        "print(json.dumps(done.returncode))"
    )
    outside = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"], check=False)
    assert told(child) == outside.returncode


# As another user, who may write its own maps as if it had been started so.
AS_NOBODY = """
import ctypes, os, sys
from pathlib import Path
from reconciler.training_service.runner import mounts
os.setgroups([]); os.setgid(65534); os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
places = [Path(place) for place in sys.argv[1:]]
problem = mounts.mount_problem(*places)
if problem:
    sys.exit("can't: " + problem)
mounts.show(*places)
command = "echo hello > /gcs/models/x; id -u; pwd; grep CapEff /proc/self/status; touch /x 2>/dev/null"
os.execv("/bin/sh", ["sh", "-c", command + " || echo no"])
"""


@pytest.mark.skipif(os.getuid() != 0, reason="the other tests are run by an ordinary user")
def test_an_ordinary_user_sees_them_too() -> None:
    """In a user namespace: as the same user, with no more rights."""
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder, name) for name in ("buckets", "root", "work")]
        for place in (*places, places[0] / "models"):
            place.mkdir()
            os.chown(place, 65534, 65534)
        Path(folder).chmod(0o755)
        command = [sys.executable, "-c", AS_NOBODY, *map(str, places)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.stderr.startswith("can't: "):
            pytest.skip(done.stderr)
        assert done.stdout.splitlines() == ["65534", str(places[2]), "CapEff:\t0000000000000000", "no"]
        assert (places[0] / "models" / "x").read_text() == "hello\n"


def runs_with(trainer: Starter, source: str) -> Run:
    run = trainer(source)
    (run.folder.service_home / "gcs" / "models").mkdir()
    return run


def test_a_trainer_writes_and_reads_below_gcs(trainer: Starter, mountable: None) -> None:
    run = runs_with(
        trainer,
        """
        import os, pathlib
        place = pathlib.Path("/gcs/models/wine/model.txt")
        place.parent.mkdir()
        place.write_text("a model")
        print(place.read_text(), os.getcwd(), os.path.expanduser("~"))
        """,
    ).start()
    assert run.end() == ("SUCCEEDED", 0, "")
    work, home = run.folder.work / "workerpool0-0", run.folder.home / "workerpool0-0"
    assert run.printed() == [f"a model {work} {home}"]
    assert (run.folder.service_home / "gcs" / "models" / "wine" / "model.txt").read_text() == "a model"
    assert Path("/gcs").exists() == OWN_GCS
    assert nothing_is_left_of(run)


def test_a_killed_runner_takes_a_trainer_with_mounts_along(trainer: Starter, mountable: None) -> None:
    run = runs_with(
        trainer,
        """
        import os, pathlib, time
        pathlib.Path(os.environ["OUT"], "pid").write_text(str(os.getpid()))
        os.listdir("/gcs")
        while True:
            time.sleep(60)
        """,
    ).start()
    pid = int(run.wrote("pid"))
    assert run.runner is not None
    run.runner.kill()
    run.runner.wait()
    until(lambda: not lives(pid))
    until(run.folder.over)


def test_what_is_written_there_is_an_object(service: Service, trainer: Starter, mountable: None) -> None:
    run = runs_with(trainer, "open('/gcs/models/x', 'w').write('hello')").start()
    assert run.end()[0] == "SUCCEEDED"
    assert service.home == run.folder.service_home
    assert service.get("/storage/v1/b/models/o/x").json["size"] == "5"


# In a user namespace that can have none below it, and without the right to mount.
UNABLE = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
user, group = os.geteuid(), os.getegid()
if libc.unshare(0x10000000) == 0:
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")
    libc.prctl(24, 21, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.parametrize("by", ["an argument", "a variable", "its source", "nothing"])
def test_the_log_says_so_once_where_a_trainer_wants_what_it_can_t_have(
    trainer: Starter, tmp_path: Path, by: str
) -> None:
    job = trainers.custom_job(
        args=["--model=/gcs/models/x"] if by == "an argument" else [],
        env={"OUT": str(tmp_path), "MODEL": "/gcs/models/x" if by == "a variable" else "gs://models/x"},
    )
    source = "import os; print(os.path.exists('/gcs'), os.path.isdir(os.environ['RECONCILER_GCS_DIR']))"
    run = trainer(source + ("  # '/gcs/models'" if by == "its source" else ""), job=job)
    run.through = (sys.executable, "-c", UNABLE)
    assert run.start().end() == ("SUCCEEDED", 0, "")
    assert run.printed() == [f"{OWN_GCS} True"]
    warnings = [text for severity, text in run.log() if severity == "WARNING"]
    assert len(warnings) == (by != "nothing")
    assert all("unshare" in text and "RECONCILER_GCS_DIR" in text for text in warnings)


def test_a_killed_program_s_place_is_free_again(
    shown: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    children = [shown("print(1, flush=True); input()") for _ in range(2)]  # side by side, on the same place
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
        child.kill()
        child.wait()
    assert told(shown("import os, json; print(json.dumps(os.listdir('/gcs')))")) == ["models"]
