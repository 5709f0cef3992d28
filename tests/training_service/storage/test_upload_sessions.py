"""Copies of files on the way to an object."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from reconciler.training_service.storage.upload_sessions import copy_range

MIB = 1024**2


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Yield a source of 16 MiB, all a hole but its second and its tenth, and a file for its copy."""
    with (tmp_path / "source").open("x+b") as source, (tmp_path / "copy").open("x+b") as copy:
        source.truncate(16 * MIB)
        for place in (1, 9):
            os.pwrite(source.fileno(), os.urandom(MIB), place * MIB)
        yield source, copy


def read(file: BinaryIO) -> bytes:
    file.seek(0)
    return file.read()


@pytest.mark.parametrize("able", [True, False], ids=["by the file system", "by reading and writing"])
@pytest.mark.parametrize("step", [16 * MIB, 3 * MIB, 10 * MIB - 1])
def test_holes_stay_holes(
    able: bool, step: int, opened: tuple[BinaryIO, BinaryIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, copy = opened
    if not able:

        def unable(*arguments: Any) -> int:
            raise OSError(errno.EXDEV, "Invalid cross-device link")

        monkeypatch.setattr(os, "copy_file_range", unable)
    for start in range(0, 16 * MIB, step):
        copy_range(source, copy, start, min(start + step, 16 * MIB))
        assert os.fstat(copy.fileno()).st_size == min(start + step, 16 * MIB)
    assert read(copy) == read(source)
    if os.fstat(source.fileno()).st_blocks * 512 > 3 * MIB:
        pytest.skip("this file system keeps no holes")
    assert os.fstat(copy.fileno()).st_blocks * 512 <= 3 * MIB


def test_a_source_that_became_shorter_ends_its_copy(opened: tuple[BinaryIO, BinaryIO]) -> None:
    source, copy = opened
    source.truncate(MIB + 1)
    copy_range(source, copy, 0, 16 * MIB)
    assert read(copy) == read(source) + bytes(15 * MIB - 1)


def test_what_a_copy_that_was_cut_off_left_behind_shows_through_no_hole(
    opened: tuple[BinaryIO, BinaryIO],
) -> None:
    source, copy = opened
    copy.write(b"torn" * 4 * MIB)
    copy.flush()
    copy_range(source, copy, 0, 16 * MIB)
    assert read(copy) == read(source)
