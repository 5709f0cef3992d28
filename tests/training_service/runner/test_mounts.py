"""Buckets as files below /gcs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reconciler.training_service.processes import process_tree
from reconciler.training_service.runner import mounts
from tests.support.training_service import trainers
from tests.support.training_service.mounts import works
from tests.support.training_service.runs import UNABLE, Run, Starter, lives, nothing_is_left_of
from tests.support.training_service.served import Service
from tests.support.waiting import until

pytestmark = pytest.mark.slow

OWN_GCS = Path("/gcs").exists()


@pytest.fixture
def mountable(tmp_path: Path) -> None:
    if not works(tmp_path):
        pytest.skip("this system doesn't let this user mount")


@pytest.fixture
def shown(tmp_path: Path, mountable: None) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Yield a function that starts a Python program with a view of the buckets in `buckets`."""
    buckets, root = tmp_path / "buckets", tmp_path / "root"
    (buckets / "models").mkdir(parents=True)
    root.mkdir()
    started: list[subprocess.Popen[str]] = []

    def start(
        source: str, bundle: Path | None = None, visible: tuple[str, ...] = ("models",)
    ) -> subprocess.Popen[str]:
        tie = process_tree.tie_to_parent()

        def first() -> None:
            mounts.show(mounts.View(buckets, visible, bundle), root, tmp_path)
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


def names(folder: str) -> set[str]:
    """Return the content of the folder, empty if this machine lacks it."""
    return {path.name for path in Path(folder).iterdir()} if Path(folder).is_dir() else set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", ["/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/none/of/these.crt", "/none/of/these.crt"]
)
def test_a_program_sees_its_own_file_of_authorities(
    shown: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    monkeypatch.setattr(mounts, "BUNDLE", place)
    bundle = tmp_path / "bundle"
    bundle.write_text("trusted")
    before = {path: path.read_bytes() for path in [Path(place)] if path.exists()}
    folders = [str(Path(place).parent), "/etc", "/etc/ssl"]
    child = shown(
        "import json, os\n"
        f"print(json.dumps([open({place!r}).read(), *map(sorted, map(os.listdir, {folders!r}))]))",
        bundle=bundle,
    )
    text, beside, *others = told(child)  # type: ignore[misc]
    assert text == "trusted"
    assert beside == sorted({Path(place).name, *names(folders[0])})
    assert {*others[0]} == names("/etc")
    assert {*others[1]} - {Path(place).parts[-3]} == names("/etc/ssl") - {Path(place).parts[-3]}
    assert {path: path.read_bytes() for path in before} == before
    assert Path(place).exists() == bool(before)


LISTING = """
import json, os, sys
def entries(folder):
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else None
def writes(file):
    try:
        open(file, "w").close()
    except OSError:
        return False
    return True
def seen(folder):
    names = ("models/data", "models/locks", "split", "other")
    found = [folder, *(os.path.join(folder, name) for name in names)]
    tried = [os.path.join(folder, name) for name in ("x", "new/x", "models/locks/x", "split/claims/x")]
    return [entries(each) for each in found], [writes(file) for file in tried]
"""
VISIBLE = ("absent", "models", "split", "models/locks/", "models/later/cl", "split/cl")


def make_buckets(folder: Path) -> None:
    for place in ("models/data", "models/locks", "other", "split"):
        (folder / place).mkdir(parents=True, exist_ok=True)
        (folder / place / "claim").touch()


def test_a_program_sees_its_job_s_buckets_alone_and_none_of_the_claims(
    shown: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    buckets = tmp_path / "buckets"
    make_buckets(buckets)
    source = LISTING + f"print(json.dumps([seen('/gcs'), seen({str(buckets)!r})]))"
    everywhere = told(shown(source, visible=VISIBLE))
    expected = [[["models"], ["claim"], [], None, None], [False] * 4]
    assert everywhere == [expected, expected]
    assert sorted(path.name for path in buckets.iterdir()) == ["models", "other", "split"]
    assert [path.name for path in (buckets / "models/locks").iterdir()] == ["claim"]


def test_without_mounts_the_folder_of_buckets_holds_the_job_s_alone(trainer: Starter, tmp_path: Path) -> None:
    job = trainers.custom_job(env={"MINE": "$(RECONCILER_GCS_DIR)/models/data"})
    source = """
        import os
        folder = os.environ["RECONCILER_GCS_DIR"]
        print(sorted(os.listdir(folder)), os.listdir(os.environ["MINE"]))
        open(os.path.join(folder, "models/new"), "w").close()
        print({name: open(os.path.join(folder, "split", name, "code")).read() for name in
               os.listdir(os.path.join(folder, "split")) if name != "claim"})
        print(os.listdir(os.path.join(folder, "split/a")))
        """
    run = trainer(source, job=job, buckets=("absent", "models", "split", "split/a/claims/"))
    buckets = run.folder.service_home / "gcs"
    make_buckets(buckets)
    (buckets / "split/a/claims").mkdir(parents=True)
    (buckets / "split/a/code").write_text("staged")
    run.through = (sys.executable, "-c", UNABLE)
    assert run.start().end() == ("SUCCEEDED", 0, ""), run.log()
    assert run.printed() == ["['models', 'split'] ['claim']", "{'a': 'staged'}", "['code']"]
    assert (buckets / "models" / "new").exists()
    assert [text for severity, text in run.log() if severity == "WARNING"] == [
        "The bucket split holds claims as well: its files are seen as they are now."
    ]
    assert nothing_is_left_of(run)


def own_mounts(tmp_path: Path) -> list[str]:
    """Return the lines about /gcs and the test's folders: containers of other tests come and go meanwhile."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if " /gcs" in line or str(tmp_path) in line]


def test_nothing_of_it_is_seen_outside(shown: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    before = own_mounts(tmp_path)
    child = shown("print(1, flush=True); input()")
    assert child.stdout is not None
    child.stdout.readline()
    assert own_mounts(tmp_path) == before
    assert Path("/gcs").exists() == OWN_GCS
    assert [*(tmp_path / "root").iterdir()] == []
    child.kill()
    child.wait()
    assert own_mounts(tmp_path) == before
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
    """Programs that run others in sandboxes work as before."""
    child = shown(
        "import json, subprocess\n"
        "done = subprocess.run(['unshare', '--user', '--map-root-user', '--mount', 'true'])\n"
        "print(json.dumps(done.returncode))"
    )
    outside = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"], check=False)
    assert told(child) == outside.returncode


# Mounts as another user, who may write its own maps as if started by that user. Root mounts first: its root
# folder can be searched by other users, unlike the root folder of some machines.
AS_NOBODY = """
import ctypes, os, sys
from pathlib import Path
from reconciler.training_service.runner import mounts
libc = ctypes.CDLL(None)

def may_map():
    child = os.fork()
    if child == 0:
        try:
            assert libc.unshare(0x10000000) == 0
            with open("/proc/self/setgroups", "w") as file:
                file.write("deny")
            with open("/proc/self/uid_map", "w") as file:
                file.write("65534 65534 1")
            os._exit(0)
        except Exception as error:
            print(f"{error!r}, as {os.getresuid()}", file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0

outer, *places = [Path(place) for place in sys.argv[1:]]
mounts.show(mounts.View(places[0], ("models",)), outer, places[2])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
libc.prctl(4, 1, 0, 0, 0)
view = mounts.View(places[0], ("models",))
problem = mounts.mount_problem(view, *places[1:])
if not may_map():
    print("unable:", problem)
    sys.exit()
mounts.show(view, *places[1:])
command = "echo hello > /gcs/models/x; id -u; pwd; grep CapEff /proc/self/status; touch /x 2>/dev/null"
os.execv("/bin/sh", ["sh", "-c", command + " || echo no"])
"""


@pytest.mark.skipif(os.getuid() != 0, reason="the other tests are run by an ordinary user")
def test_an_ordinary_user_sees_them_too(mountable: None) -> None:
    """A user namespace allows mounts as the same user without more rights; a system without it reports so."""
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder, name) for name in ("outer", "buckets", "root", "work")]
        for place in (*places, places[1] / "models"):
            place.mkdir()
            os.chown(place, 65534, 65534)
        Path(folder).chmod(0o755)
        command = [sys.executable, "-c", AS_NOBODY, *map(str, places)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        if done.stdout.startswith("unable: "):
            assert re.match(r"unable: \[Errno \d+\] .*(unshare|/proc/self/)", done.stdout), done
            assert not (places[1] / "models" / "x").exists()
        else:
            told = ["65534", str(places[3]), "CapEff:\t0000000000000000", "no"]
            assert done.stdout.splitlines() == told, done.stderr
            assert (places[1] / "models" / "x").read_text() == "hello\n"


def runs_with(trainer: Starter, source: str) -> Run:
    run = trainer(source, buckets=("models",))
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


@pytest.mark.slow
def test_a_killed_program_s_place_is_free_again(
    shown: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    children = [shown("print(1, flush=True); input()") for _ in range(2)]  # side by side, on the same path
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
        child.kill()
        child.wait()
    assert told(shown("import os, json; print(json.dumps(os.listdir('/gcs')))")) == ["models"]
