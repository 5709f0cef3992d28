from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reconciler.training_service.environments import shared_caches
from reconciler.training_service.environments.shared_caches import CachedFolder, get_or_build, remove_unused

DAY = 24 * 3600.0


def making(path: Path) -> Callable[[int], None]:
    return lambda _lock: path.mkdir()


def make(path: Path, *, used: float = 0.0) -> CachedFolder:
    """Keep a folder, last used `used` seconds ago."""
    made = get_or_build(path, making(path), pytest.fail)
    os.utime(path / "complete", (time.time() - used,) * 2)
    return made


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_dir()}


def clean(folder: Path, most: int = 10) -> set[str]:
    """Remove unused folders; return the rest."""
    remove_unused(folder, most, lambda name: not name.startswith("other"))
    return names(folder)


def test_what_is_in_use_stays_however_old_it_is(tmp_path: Path) -> None:
    used = make(tmp_path / "used", used=99 * DAY)
    assert clean(tmp_path, most=0) == {"used"}
    os.close(used.lock)
    assert clean(tmp_path, most=0) == set()
    assert [*tmp_path.iterdir()] == []  # the lock's file has gone too


def test_what_wasn_t_used_for_a_month_goes(tmp_path: Path) -> None:
    for name, used in (("new", 0.0), ("weeks", 29 * DAY), ("month", 31 * DAY), ("other", 31 * DAY)):
        os.close(make(tmp_path / name, used=used).lock)
    assert clean(tmp_path) == {"new", "weeks", "other"}


def test_of_too_many_the_last_used_stay(tmp_path: Path) -> None:
    for number in range(6):
        os.close(make(tmp_path / str(number), used=100.0 * (number % 3) + number).lock)
    assert clean(tmp_path, most=4) == {"0", "3", "1", "4"}


def test_a_use_counts_from_its_beginning(tmp_path: Path) -> None:
    for name in ("a", "b"):
        os.close(make(tmp_path / name, used=31 * DAY).lock)
    os.close(get_or_build(tmp_path / "a", pytest.fail, pytest.fail).lock)
    assert clean(tmp_path) == {"a"}


def test_a_user_that_is_killed_holds_nothing(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from reconciler.training_service.environments.shared_caches import get_or_build
get_or_build(Path({str(tmp_path / "x")!r}), lambda _: None, lambda: None)
print("using", flush=True)
sys.stdin.read()
"""
    os.close(make(tmp_path / "x").lock)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == "using\n"
        assert clean(tmp_path, most=0) == {"x"}
        user.kill()
        user.wait(10)
    assert clean(tmp_path, most=0) == set()


def test_what_is_being_made_stays_and_what_was_left_half_made_goes(tmp_path: Path) -> None:
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "file").touch()

    def make_slowly(_lock: int) -> None:
        (tmp_path / "busy").mkdir()
        assert clean(tmp_path) == {"busy"}

    os.close(get_or_build(tmp_path / "busy", make_slowly, pytest.fail).lock)
    assert clean(tmp_path) == {"busy"}


def test_who_waits_can_be_called_off(tmp_path: Path) -> None:
    class CalledOff(Exception):
        pass

    def call_off() -> None:
        raise CalledOff

    def make_slowly(_lock: int) -> None:
        (tmp_path / "x").mkdir()
        with pytest.raises(CalledOff):
            get_or_build(tmp_path / "x", pytest.fail, call_off)

    os.close(get_or_build(tmp_path / "x", make_slowly, pytest.fail).lock)


def test_a_failed_maker_leaves_it_to_the_next(tmp_path: Path) -> None:
    def fail(_lock: int) -> None:
        (tmp_path / "x").mkdir()
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        get_or_build(tmp_path / "x", fail, pytest.fail)
    assert names(tmp_path) == set()
    os.close(make(tmp_path / "x").lock)


def test_made_again_it_is_another(tmp_path: Path) -> None:
    first = make(tmp_path / "x")
    os.close(first.lock)
    assert get_or_build(tmp_path / "x", pytest.fail, pytest.fail) == first
    assert clean(tmp_path, most=0) == {"x"}  # the comparison above still holds it


def test_a_folder_that_is_taken_into_use_just_before_its_removal_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A use begins after the remover has chosen the folder: the lock or the later use must protect it."""
    path = tmp_path / "x"
    os.close(make(path, used=99 * DAY).lock)
    taken: list[CachedFolder] = []

    def choose(folder: Path, last_use: float) -> None:
        taken.append(get_or_build(path, pytest.fail, pytest.fail))
        os.utime(path / "complete", (last_use,) * 2)  # as for two uses within a single tick of the clock
        removed(folder, last_use)

    removed = shared_caches._remove
    monkeypatch.setattr(shared_caches, "_remove", choose)
    assert clean(tmp_path, most=0) == {"x"}
    os.close(taken[0].lock)


def test_who_has_waited_for_a_lock_whose_file_was_removed_has_nothing(tmp_path: Path) -> None:
    """Otherwise two processes would make the folder: one with the old lock's file, another with the new."""
    path = tmp_path / "x"
    os.close(make(path, used=99 * DAY).lock)
    with shared_caches._lock(path, fcntl.LOCK_EX) as own:
        assert own is not None
        shared_caches._lock_of(path).unlink()
        assert not shared_caches._try_lock(own, shared_caches._lock_of(path), fcntl.LOCK_EX)


def test_nobody_takes_what_is_being_removed_into_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    os.close(make(path, used=99 * DAY).lock)

    class Waits(Exception):
        pass

    def wait() -> None:
        raise Waits

    def remove_slowly(folder: Path) -> None:
        with pytest.raises(Waits):
            get_or_build(path, pytest.fail, wait)
        remove(folder)

    remove = shared_caches.remove
    monkeypatch.setattr(shared_caches, "remove", remove_slowly)
    assert clean(tmp_path, most=0) == set()
