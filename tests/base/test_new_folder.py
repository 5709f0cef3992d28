"""New folders: their files appear all at once or not at all, and nothing but them is written."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reconciler.base.errors import MachineError, ReconcilerError, UsageError
from reconciler.base.new_folder import check_new, new_folder
from tests.support.waiting import PATIENCE

NEW = "name a folder that is new or empty"


def nothing() -> None:
    pass


def filled(
    path: Path,
    name: str = "a/b/model.bin",
    content: bytes = b"weights",
    before: Callable[[], object] = nothing,
    after: Callable[[], object] = nothing,
) -> None:
    """Write a new folder with one file; the functions are called before and after it is written."""
    with new_folder(path) as folder:
        before()
        with folder.file(name) as file:
            file.write(content)
        after()


def tree(folder: Path) -> set[str]:
    """Return the relative paths of all entries below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@contextmanager
def masked(mask: int) -> Iterator[None]:
    old = os.umask(mask)
    try:
        yield
    finally:
        os.umask(old)


@pytest.mark.parametrize("is_there", [False, True])
def test_files_are_there_after_the_block_and_not_before(tmp_path: Path, is_there: bool) -> None:
    path = tmp_path / "model"
    if is_there:
        path.mkdir()
    with new_folder(path) as folder:
        with folder.file("a/b/model.bin") as file:
            file.write(b"weights")
        folder.folder("a/empty")
        folder.folder("a")
        assert not path.exists() or not tree(path)
        assert tree(tmp_path) - {"model"} == {
            *(".model.incomplete", ".model.incomplete/lock", ".model.incomplete/files"),
            *(f".model.incomplete/files/{name}" for name in ("a", "a/b", "a/b/model.bin", "a/empty")),
        }
    assert tree(tmp_path) == {"model", "model/a", "model/a/b", "model/a/b/model.bin", "model/a/empty"}
    assert (path / "a/b/model.bin").read_bytes() == b"weights"


@pytest.mark.parametrize(("mask", "of_file", "of_folder"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)])
def test_umask_decides_who_may_read(tmp_path: Path, mask: int, of_file: int, of_folder: int) -> None:
    with masked(mask):
        filled(tmp_path / "model")
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").rglob("*")}
    expected = {path: of_folder if path.is_dir() else of_file for path in modes}
    assert modes == expected
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == of_folder


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_after_an_error(tmp_path: Path, error: type[BaseException]) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(error):
        filled(tmp_path / "model", after=fail)
    assert tree(tmp_path) == set()


def not_empty(path: Path) -> None:
    path.mkdir()
    (path / ".hidden").touch()


OBSTACLES = {
    "is not empty": not_empty,
    "is no folder": Path.touch,
    "is no folder (link)": lambda path: path.symlink_to("elsewhere"),
    "is no folder (broken link)": lambda path: path.symlink_to("missing"),
    "is no folder (pipe)": os.mkfifo,
}


@pytest.mark.parametrize("why", OBSTACLES)
def test_path_that_is_not_new_is_refused_and_left_alone(tmp_path: Path, why: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    OBSTACLES[why](tmp_path / "model")
    before = tree(tmp_path)
    with pytest.raises(UsageError, match=f"{tmp_path}/model {why.partition(' (')[0]}") as raised:
        filled(tmp_path / "model")
    assert raised.value.hint == NEW
    assert tree(tmp_path) == before


def test_path_without_folder_above_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder") as raised:
        filled(tmp_path / "a b/model")
    assert raised.value.hint == f"make it: mkdir -p '{tmp_path}/a b'"


def test_working_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is the working directory"):
        check_new(tmp_path)


def test_folder_that_is_filled_meanwhile_is_left_alone(tmp_path: Path) -> None:
    def fill() -> None:
        (tmp_path / "model").mkdir()
        (tmp_path / "model/a").write_bytes(b"theirs")

    with pytest.raises(UsageError, match="was filled meanwhile"):
        filled(tmp_path / "model", "a", b"ours", after=fill)
    assert tree(tmp_path) == {"model", "model/a"}
    assert (tmp_path / "model/a").read_bytes() == b"theirs"


def test_link_that_is_put_at_the_path_meanwhile_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(UsageError, match="was filled meanwhile"):
        filled(tmp_path / "model", after=lambda: (tmp_path / "model").symlink_to("elsewhere"))
    assert tree(tmp_path) == {"model", "elsewhere"}


@pytest.mark.parametrize(("link", "target"), [("file", "outside/file"), ("below", "outside")])
def test_links_in_the_folder_are_not_written_through(tmp_path: Path, link: str, target: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_bytes(b"theirs")

    def plant() -> None:
        (tmp_path / ".model.incomplete/files" / link).symlink_to(tmp_path / target)

    with pytest.raises(ReconcilerError, match="can't be written"):
        filled(tmp_path / "model", "file" if link == "file" else "below/new", before=plant)
    assert tree(tmp_path) == {"outside", "outside/file"}
    assert (tmp_path / "outside/file").read_bytes() == b"theirs"


@pytest.mark.parametrize("is_folder", [True, False])
def test_link_in_the_place_of_the_temporary_folder_is_not_followed(tmp_path: Path, is_folder: bool) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    (tmp_path / ".model.incomplete").symlink_to(outside if is_folder else outside / "file")
    with pytest.raises(ReconcilerError, match=r"\.model\.incomplete can't be written"):
        filled(tmp_path / "model")
    assert tree(tmp_path) == {".model.incomplete", "outside", "outside/file"}


KILLED = """
import os, signal, sys
from pathlib import Path
from reconciler.base.new_folder import new_folder

with new_folder(Path(sys.argv[1])) as folder, folder.file("half/model.bin") as file:
    file.write(b"weights")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


RACING = """
import sys
from pathlib import Path
from reconciler.base.new_folder import new_folder

with new_folder(Path(sys.argv[1])) as folder:
    for number in range(50):
        with folder.file(str(number)) as file:
            file.write(sys.argv[2].encode())
"""


@pytest.mark.slow
def test_killed_process_leaves_the_temporary_folder_which_the_next_one_removes(tmp_path: Path) -> None:
    path = tmp_path / "model"
    done = subprocess.run([sys.executable, "-c", KILLED, path], timeout=PATIENCE)
    assert done.returncode == -signal.SIGKILL
    (tmp_path / ".model.incomplete/files/half/link").symlink_to(tmp_path)
    left = ("lock", "files", "files/half", "files/half/model.bin", "files/half/link")
    assert tree(tmp_path) == {".model.incomplete", *(f".model.incomplete/{name}" for name in left)}
    filled(path, "model.bin")
    assert tree(tmp_path) == {"model", "model/model.bin"}


def test_second_process_for_the_same_folder_is_refused(tmp_path: Path) -> None:
    with new_folder(tmp_path / "model") as folder:
        with folder.file("a") as file:
            file.write(b"first")
        with pytest.raises(UsageError, match="another process fills"):
            filled(tmp_path / "model")
        filled(tmp_path / "other")
    assert (tmp_path / "model/a").read_bytes() == b"first"
    assert tree(tmp_path) == {"model", "model/a", "other", "other/a", "other/a/b", "other/a/b/model.bin"}


@pytest.mark.parametrize("renames", [True, False])
def test_temporary_folder_that_its_process_removes_meanwhile_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: bool
) -> None:
    """Another process ends between the opening of its lock here and the locking."""
    temporary, path = tmp_path / ".model.incomplete", tmp_path / "model"
    (temporary / "files").mkdir(parents=True)
    (temporary / "files/a").write_bytes(b"theirs")
    flock = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        if renames:
            (temporary / "files").rename(path)
        shutil.rmtree(temporary)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    if renames:
        with pytest.raises(UsageError, match="was filled meanwhile"):
            filled(path, "a", b"ours")
    else:
        filled(path, "a", b"ours")
    assert tree(tmp_path) == {"model", "model/a"}
    assert (path / "a").read_bytes() == (b"theirs" if renames else b"ours")


@pytest.mark.slow
def test_processes_that_fill_one_folder_at_once_leave_the_files_of_one(tmp_path: Path) -> None:
    for number in range(5):
        path = tmp_path / f"model-{number}"
        commands = [[sys.executable, "-c", RACING, path, word] for word in ("one", "two", "three")]
        running = [subprocess.Popen(command, stderr=subprocess.PIPE) for command in commands]
        errors = [process.communicate(timeout=PATIENCE)[1].decode() for process in running]
        assert [process.returncode for process in running].count(0) == 1, errors
        assert all("UsageError" in error for error in errors if error)
        words = {file.read_text() for file in path.iterdir()}
        assert (len(words), len(tree(path))) == (1, 50)
    assert {path.name for path in tmp_path.iterdir()} == {f"model-{number}" for number in range(5)}


def test_full_disk_leaves_nothing_and_is_told_with_remedy(tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
        with pytest.raises(MachineError, match=r"model/a/b can't be written: ") as raised:
            filled(tmp_path / "model", "a/b", b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert raised.value.hint
    assert tree(tmp_path) == set()


def test_more_than_the_disk_has_is_refused_before_it_is_written(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    with new_folder(tmp_path / "model") as folder:
        folder.check_room(1000)
        with pytest.raises(MachineError, match=f"takes {2 * free:,} bytes") as raised:
            folder.check_room(2 * free)
    assert "make room" in raised.value.hint


def test_limits_are_those_of_the_file_system(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with new_folder(path) as folder:
        assert folder.longest_part == os.pathconf(tmp_path, "PC_NAME_MAX")
        long = "a" * folder.longest_part
        with folder.file(long):
            pass
        with pytest.raises(ReconcilerError, match="File name too long"), folder.file(long + "a"):
            pass
        name = ("b" * 199 + "/") * (folder.longest // 200) + "b" * (folder.longest % 200)
        with folder.file(name):
            pass
    assert os.path.lexists(path / name)
    with pytest.raises(OSError, match="File name too long"):
        os.lstat(f"{path}/{name}b")
