"""Removal of a run's folders, whatever their content, without touching the folders of others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from reconciler.training_service.state.run_folder import RunFolder, remove, run_folder

# It uses relative paths only: other users can't search every machine's root folder.
AS_NOBODY = """
import os, tempfile
from pathlib import Path
from reconciler.training_service.state.run_folder import RunFolder
tempfile.gettempdir()
os.setgroups([]); os.setgid(65534); os.setuid(65534)
RunFolder(Path("1-1-a")).clean()
print(os.getresuid(), *sorted(map(str, Path("1-1-a").rglob("*"))))
"""

only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make folders for another user")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """Return the folder of a run, with `tmp_path / "tmp"` as the system's folder for temporary files."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    made = run_folder(tmp_path / "home", "1-1-a")
    made.path.mkdir(parents=True)
    return made


def a_place(folder: RunFolder, name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"reconciler-{folder.run_id}-{name}"


@only_root
def test_a_folder_of_another_user_stays_and_nothing_fails() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name, "1-1-a"))
        for path in (folder.path, folder.work, folder.home):
            path.mkdir(mode=0o755)
            os.chown(path, 65534, 65534)
        (folder.work / "foreign" / "full").mkdir(parents=True)
        (folder.home / "own").mkdir()
        os.chown(folder.home / "own", 65534, 65534)
        Path(name).chmod(0o755)
        command = [sys.executable, "-c", AS_NOBODY]
        done = subprocess.run(command, cwd=name, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        left = "1-1-a/work 1-1-a/work/foreign 1-1-a/work/foreign/full"
        assert done.stdout == f"(65534, 65534, 65534) {left}\n"
        assert (folder.work / "foreign" / "full").exists()
        assert not folder.home.exists()


@pytest.mark.slow
def test_folders_in_folders_without_end_don_t_fail_it(folder: RunFolder) -> None:
    deep = "import os\nfor _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')"
    folder.work.mkdir()
    folder.home.mkdir()
    subprocess.run([sys.executable, "-c", deep], cwd=folder.work, check=True)
    folder.clean()
    assert not folder.home.exists()
    subprocess.run(["rm", "-rf", str(folder.work)], check=True)


def test_the_temporary_folder_is_made_once_and_removed(folder: RunFolder) -> None:
    made = folder.temp()
    assert folder.temp() == made
    folder.clean()
    assert not made.exists()


def test_the_temporary_folder_of_a_run_whose_id_begins_the_same_stays(folder: RunFolder) -> None:
    other = RunFolder(folder.path.with_name("1-1"))
    made = folder.temp()
    assert other.temp() != made
    other.clean()
    assert made.exists()


@pytest.mark.parametrize("what", ["a link", "a file", "a folder for all"])
def test_what_lies_in_the_temporary_folder_s_place_is_not_taken_for_it(
    folder: RunFolder, tmp_path: Path, what: str
) -> None:
    other, place = tmp_path / "other", a_place(folder, "0")
    (other / "kept").mkdir(parents=True)
    other.chmod(0o700)
    if what == "a link":
        place.symlink_to(other)
    elif what == "a file":
        place.touch()
    else:
        place.mkdir()
        place.chmod(0o777)
    assert folder.temp() not in (place, other)
    folder.clean()
    assert (other / "kept").exists()
    assert place.exists() == (what != "a folder for all")


@only_root
def test_another_user_s_folder_is_neither_taken_nor_removed(folder: RunFolder) -> None:
    place = a_place(folder, "0")
    place.mkdir(mode=0o700)
    os.chown(place, 65534, 65534)
    assert folder.temp() != place
    folder.clean()
    assert place.exists()


def test_a_link_is_removed_and_not_what_it_leads_to(folder: RunFolder, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "kept").mkdir(parents=True)
    other.chmod(0o500)
    folder.work.symlink_to(other)
    remove(folder.work)
    assert not folder.work.is_symlink()
    assert other.stat().st_mode & 0o777 == 0o500
    shutil.rmtree(other)
