"""Watched folders: the changes that wake the loop."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from watchdog.events import DirModifiedEvent
from watchdog.observers import Observer

from reconciler.base.state_dir import home_of
from reconciler.cli.watch import written_by_services
from reconciler.operations.watch.loop import run_pass
from reconciler.operations.watch.source import FolderWatcher, LocalFiles, WatchedFolder, watched_places
from reconciler.operations.watch.state import Checkout, LoopCache
from reconciler.operations.watch.wakeups import Wakes
from tests.support.in_memory import Commands
from tests.support.waiting import until
from tests.support.watching import Told


class TestFolderWatcher:
    def test_folders_are_watched_from_their_first_one_below_the_root(self, tmp_path: Path) -> None:
        found = watched_places(tmp_path, [tmp_path / "jobs", tmp_path / "code/a", tmp_path / "code/b"])
        deep = {place.folder.name for place in found if place.deep}
        assert deep == {"jobs", "code"}
        assert {place.folder.name for place in found if not place.deep} == {tmp_path.name, ".git"}
        assert WatchedFolder(tmp_path, True) in watched_places(tmp_path, [tmp_path, tmp_path / "jobs"])

    @pytest.fixture
    def changed(self) -> threading.Event:
        return threading.Event()

    @pytest.fixture
    def files(self, tmp_path: Path, changed: threading.Event) -> Iterator[FolderWatcher]:
        before = set(threading.enumerate())
        made = FolderWatcher([tmp_path / "home"], changed.set)
        yield made
        made.close()
        until(lambda: set(threading.enumerate()) <= before)

    def test_a_folder_that_was_removed_and_made_again_is_watched_again(
        self, tmp_path: Path, files: FolderWatcher, changed: threading.Event
    ) -> None:
        jobs = tmp_path / "jobs"
        jobs.mkdir()
        wanted = watched_places(tmp_path, [jobs])
        assert files.follow(wanted)
        assert not files.follow(wanted), "nothing new"
        shutil.rmtree(jobs)
        assert changed.wait(30)
        assert not files.follow(wanted)
        changed.clear()
        (jobs / "deep").mkdir(parents=True)
        assert changed.wait(30)
        assert files.follow(wanted)
        changed.clear()
        (jobs / "deep/a.yaml").write_text("")
        assert changed.wait(30)
        shutil.move(jobs, tmp_path / "away")
        jobs.mkdir()
        assert files.follow(wanted), "another folder of the same name"

    def test_training_services_of_this_and_earlier_versions_wake_nobody(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The home may lie in a checkout that is a home directory."""
        monkeypatch.delenv("XDG_STATE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path))
        written = [home_of(tmp_path, os.environ), tmp_path / ".reconciler"]
        for folder in written:
            folder.mkdir(parents=True)
        changes: list[str] = []
        files = FolderWatcher(written_by_services(tmp_path), lambda: changes.append(files.changed_last))
        try:
            files.follow({WatchedFolder(tmp_path, deep=True)})
            for folder in (*written, tmp_path / "code"):
                folder.mkdir(exist_ok=True)
                (folder / "state.db").touch()
            until(lambda: str(tmp_path / "code/state.db") in changes)
        finally:
            files.close()
        assert {Path(change).relative_to(tmp_path).parts[0] for change in changes} == {"code"}

    def test_code_that_is_watched_from_now_on_may_have_changed_before(
        self, commands: Commands, files: FolderWatcher, told: Told
    ) -> None:
        commands.job("census")
        checkout = Checkout(commands.root, "", os.environ, "prod")
        turn = run_pass(checkout, LoopCache(), None)
        assert turn.jobs is not None
        (job,) = turn.jobs
        wakes = Wakes()
        tree = LocalFiles(commands.root, os.environ, "prod", files, wakes, told.reporter)
        tree.follow([job])
        assert wakes.wait(0) is False
        (commands.root / "code").mkdir()
        with_code = replace(job, manifest=replace(job.manifest, package=commands.root / "code"))
        tree.follow([with_code])
        assert wakes.wait(0) is True
        tree.follow([with_code])
        assert wakes.wait(0) is False

    def test_what_lies_in_the_home_is_no_change(
        self, tmp_path: Path, files: FolderWatcher, changed: threading.Event
    ) -> None:
        files.follow([WatchedFolder(tmp_path, True)])
        (tmp_path / "home").mkdir()
        (tmp_path / "home/state.db").write_text("")
        (tmp_path / "homely").write_text("")
        assert changed.wait(30)
        changed.clear()
        (tmp_path / "home/state.db").write_text("more")
        (tmp_path / "homely").read_text()
        assert not changed.wait(0.5)

    def test_that_files_are_opened_or_closed_is_nobodys_event(
        self, tmp_path: Path, files: FolderWatcher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """These events are so frequent that others are lost: each pass of any tool opens all files."""
        asked: list[Any] = []
        schedule = Observer.schedule

        def noted(observer: Any, *arguments: Any, **more: Any) -> Any:
            asked.append(more.get("event_filter"))
            return schedule(observer, *arguments, **more)

        monkeypatch.setattr(Observer, "schedule", noted)
        (tmp_path / "jobs").mkdir()
        assert files.follow(watched_places(tmp_path, [tmp_path / "jobs"]))
        assert len(asked) == 2
        for kinds in asked:
            assert {kind.event_type for kind in kinds} == {"created", "deleted", "modified", "moved"}
            assert DirModifiedEvent not in kinds

    def test_a_limit_of_the_system_is_told_and_tried_again(
        self, tmp_path: Path, files: FolderWatcher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*arguments: Any, **more: Any) -> None:
            raise OSError(errno.ENOSPC, "inotify watch limit reached")

        with monkeypatch.context() as limited:
            limited.setattr(Observer, "schedule", full)
            assert not files.follow([WatchedFolder(tmp_path, False)])
        assert "inotify watch limit reached" in files.problem
        assert files.follow([WatchedFolder(tmp_path, False)])
        assert files.problem == ""
