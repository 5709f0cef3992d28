"""Reading files by their names in open folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from reconciler.base.diagnostics import MAX_FILE_BYTES, Problem
from reconciler.manifests import files as filecontent
from reconciler.manifests.files import Folders, ManifestFile, find_manifests, read_file
from tests.support.manifests import write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a", "b", "deep/er/c", "deep/d", "other/e"):
        write(tmp_path, f"jobs/{name}.yaml", name)
    return tmp_path


def found(root: Path) -> list[ManifestFile]:
    return find_manifests(root, [root / "jobs"])[0]


def content(folders: Folders, file: ManifestFile) -> str:
    read = folders.read(file)
    assert isinstance(read, bytes)
    return read.decode()


def message(folders: Folders, file: ManifestFile) -> str:
    problem = folders.read(file)
    assert isinstance(problem, Problem)
    assert problem.path == file.path
    return problem.message


def test_files_in_any_order(root: Path) -> None:
    files = found(root)
    assert [file.path for file in files] == [
        *("jobs/a.yaml", "jobs/b.yaml", "jobs/deep/d.yaml", "jobs/deep/er/c.yaml", "jobs/other/e.yaml")
    ]
    with Folders() as folders:
        for file in [*files, *reversed(files), *files[::2], *files[::-3]]:
            assert content(folders, file) == file.path.removeprefix("jobs/").removesuffix(".yaml")


def test_file_is_found_with_its_size_and_read_whole(root: Path) -> None:
    for file in found(root):
        data = Path(file.real).read_bytes()
        assert file.size == len(data)
        with Folders() as folders:
            assert folders.read(file) == data


def test_a_file_behind_a_link_has_its_own_place_and_size(root: Path) -> None:
    write(root, "shared.yaml", "x")
    (root / "jobs" / "link.yaml").symlink_to("../shared.yaml")
    (file,) = (file for file in found(root) if file.path == "jobs/link.yaml")
    assert (file.real, file.size) == (str(root.resolve() / "shared.yaml"), 1)


@pytest.mark.fault(39)
@pytest.mark.parametrize("swapped", ["jobs/deep", "jobs"])
def test_no_link_is_followed_that_came_between_two_files(root: Path, swapped: str) -> None:
    """Check that the folders still open are the original folders."""
    files = {file.path: file for file in found(root)}
    write(root, "outside/deep/er/c.yaml", "SECRET")
    write(root, "outside/er/c.yaml", "SECRET")
    with Folders() as folders:
        assert content(folders, files["jobs/other/e.yaml"]) == "other/e"
        (root / swapped).rename(root / "moved")
        (root / swapped).symlink_to("outside")
        read = folders.read(files["jobs/deep/er/c.yaml"])
        assert isinstance(read, Problem) or read == b"deep/er/c"
        folders.close()
        assert message(folders, files["jobs/deep/er/c.yaml"]).startswith("this can't be read: ")


@pytest.mark.fault(39)
def test_a_link_that_takes_a_file_s_place_is_not_followed(root: Path) -> None:
    file = found(root)[0]
    Path(file.real).rename(root / "moved")
    Path(file.real).symlink_to(root / "moved")
    with Folders() as folders:
        assert message(folders, file) == "this can't be read: Too many levels of symbolic links"


@pytest.mark.fault(39)
def test_a_link_that_takes_a_file_s_place_during_the_search_is_not_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir, file = os.scandir, root / "jobs" / "a.yaml"

    @contextmanager
    def swapping(folder: str) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(folder) as entries:
            seen = list(entries)
        if not (root / "moved").exists():
            file.rename(root / "moved")
            file.symlink_to(root / "moved")
        yield seen

    monkeypatch.setattr(os, "scandir", swapping)
    files, obstacles = find_manifests(root, [root / "jobs"])
    assert "jobs/a.yaml" not in {found.path for found in files}
    assert [(part.path, part.problem.message) for part in obstacles] == [
        (file, "this can't be read: Too many levels of symbolic links")
    ]


def test_what_takes_a_file_s_place(root: Path) -> None:
    files = found(root)
    Path(files[0].real).unlink()
    os.mkfifo(Path(files[0].real))
    Path(files[1].real).unlink()
    Path(files[1].real).mkdir()
    os.truncate(Path(files[2].real), MAX_FILE_BYTES + 1)
    Path(files[3].real).unlink()
    with Folders() as folders:
        assert message(folders, files[0]).startswith("this is not a file")
        assert message(folders, files[1]).startswith("this is not a file")
        assert message(folders, files[2]) == "the file is larger than 10 MB"
        assert message(folders, files[3]) == "this can't be read: No such file or directory"
        assert content(folders, files[4]) == "other/e"
    os.truncate(Path(files[2].real), MAX_FILE_BYTES)
    assert read_file(Path(files[2].real), "x") == b"deep/d".ljust(MAX_FILE_BYTES, b"\0")


def test_what_cannot_be_opened_is_mixed_up_with_nothing(root: Path) -> None:
    with Folders() as folders:
        assert isinstance(folders.read_at(f"{root.resolve()}/jobs/a.yaml", "x"), bytes)
        assert isinstance(folders.read_at(f"{root.resolve()}/jobs/gone/a.yaml", "x"), Problem)
        assert isinstance(folders.read_at("/a.yaml", "x"), Problem)
        assert isinstance(folders.read_at(f"{root.resolve()}/a.yaml", "x"), Problem)
        assert isinstance(folders.read_at(f"{root.resolve()}/jobs/a.yaml", "x"), bytes)


def test_few_folders_are_open_at_a_time(root: Path) -> None:
    deep = "/".join(["d"] * 100)
    write(root, f"jobs/{deep}/x.yaml", "x")
    write(root, f"jobs/{deep}/y.yaml", "y")
    write(root, f"jobs/{deep}/d/z.yaml", "z")
    process = psutil.Process()
    before = process.num_fds()
    with Folders() as folders:
        for file in [*(files := found(root)), *files[::-1]]:
            assert content(folders, file) in file.path
            assert process.num_fds() <= before + 1
    assert process.num_fds() == before
    with Folders() as folders:
        folders.read_at(f"{root.resolve()}/jobs/gone/a.yaml", "x")
    assert process.num_fds() == before


def test_a_file_that_changes_while_it_is_read_is_read_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, changes, bytes_of = found(root)[0], ["one", "two, longer"], filecontent._bytes_of

    def changing(descriptor: int, size: int) -> bytes:
        data = bytes_of(descriptor, size)
        if changes:
            Path(file.real).write_text(changes.pop(0))
        return data

    monkeypatch.setattr(filecontent, "_bytes_of", changing)
    with Folders() as folders:
        assert folders.read(file) == b"two, longer"
        changes += ["a" * size for size in range(5, 20)]
        read = folders.read(file)
    assert isinstance(read, bytes)
    assert set(read) == {ord("a")}


@pytest.mark.parametrize("said", [0, 3, 10, 100])
@pytest.mark.parametrize("at_once", [4, 1000])
def test_all_of_a_file_is_read_whatever_its_size_was_said_to_be(
    root: Path, monkeypatch: pytest.MonkeyPatch, said: int, at_once: int
) -> None:
    write(root, "x", "0123456789")
    read = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: read(descriptor, min(size, at_once)))
    descriptor = os.open(root / "x", os.O_RDONLY)
    try:
        assert filecontent._bytes_of(descriptor, said) == b"0123456789"
    finally:
        os.close(descriptor)
