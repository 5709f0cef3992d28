"""The parts of the loop: when passes are due, what is told, what is watched, what a remote can't do."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import io
import json
import logging
import math
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from watchdog.events import DirModifiedEvent
from watchdog.observers import Observer

from reconciler.base.errors import InvalidError, MachineError, ServiceError, UsageError
from reconciler.base.git_command import Git, GitError
from reconciler.base.listener.message import Response
from reconciler.base.state_dir import home_of
from reconciler.cli.events import events
from reconciler.cli.watch import written_by_services
from reconciler.model.claim import ClaimState
from reconciler.model.job import State
from reconciler.model.plan import DriftKind
from reconciler.operations.watch import loop as watch_loop
from reconciler.operations.watch.health import Health
from reconciler.operations.watch.loop import Loop, run_pass
from reconciler.operations.watch.metrics import Metrics
from reconciler.operations.watch.remote import Clone, RemoteBranch, checked_branch, checked_url
from reconciler.operations.watch.report import PassReporter
from reconciler.operations.watch.source import (
    FolderWatcher,
    KeptSettings,
    LocalFiles,
    WatchedFolder,
    watched_places,
)
from reconciler.operations.watch.state import Checkout, LoopCache, Pass, Result
from reconciler.operations.watch.wakeups import (
    LONGEST_BACKOFF,
    LONGEST_UNREST,
    STILL,
    Stopped,
    Wakes,
    backoff,
    due_after,
    still_at,
)
from reconciler.pages.listener import address_of, listening
from reconciler.submission.observe import Observed
from tests.support.in_memory import Commands, commands_in
from tests.support.planning import detail_of
from tests.support.repository import Repository
from tests.support.waiting import until

seconds = st.floats(0, 1e6)
chances = st.floats(0, 1, exclude_max=True)


class TestTiming:
    @given(st.integers(1, 10_000), chances)
    def test_a_backoff_has_bounds_that_grow(self, failures: int, chance: float) -> None:
        waits = backoff(failures, lambda: chance)
        assert 0 <= waits <= LONGEST_BACKOFF
        assert waits <= backoff(failures + 1, lambda: chance)
        assert backoff(failures, lambda: 0.0) == 0.0, "any wait may be short: full jitter"

    def test_a_backoff_begins_short_and_becomes_minutes(self) -> None:
        longest = [backoff(failures, lambda: 1.0) for failures in range(1, 12)]
        assert longest[:3] == [2.0, 4.0, 8.0]
        assert longest[-1] == LONGEST_BACKOFF == 300.0

    @given(st.integers(0, 50), st.booleans(), seconds, seconds, chances)
    def test_the_next_pass_is_never_later_than_the_resync_or_the_backoff(
        self, failures: int, live: bool, look: float, resync: float, chance: float
    ) -> None:
        due = due_after(failures, live=live, look=look, resync=resync, chance=lambda: chance)
        assert 0 <= due <= (LONGEST_BACKOFF if failures else resync)
        if not failures:
            assert due == (min(look, resync) if live else resync)

    @given(seconds, st.lists(st.floats(0, 1.0), max_size=50))
    def test_files_are_still_soon_after_the_last_change(self, first: float, steps: list[float]) -> None:
        last = first + sum(steps)
        at = still_at(first, last)
        assert first < at <= first + LONGEST_UNREST
        assert at == last + STILL or at == first + LONGEST_UNREST


class TestWakes:
    def test_it_is_over_without_a_change(self) -> None:
        assert Wakes().wait(0.01) is False

    def test_a_change_from_another_thread_is_told_once_files_are_still(self) -> None:
        wakes = Wakes()
        thread = threading.Thread(target=wakes.change)
        thread.start()
        assert wakes.wait(60) is True
        thread.join()
        assert wakes.wait(0) is False

    def test_a_pass_that_is_due_is_put_off_while_files_change(self) -> None:
        times = iter([0.0, 10.0, 10.0, 10.0, 10.2, 10.2, 99.0])
        wakes = Wakes(lambda: next(times))
        wakes.change()  # at 0
        wakes.change()  # at 10: after it was due
        assert wakes.wait(0) is True

    def test_the_end_ends_every_wait(self) -> None:
        wakes = Wakes()
        wakes.stop()
        assert wakes.stopping
        assert wakes.wait(math.inf) is False

    def test_only_what_can_be_left_off_is_interrupted(self) -> None:
        wakes = Wakes()
        with pytest.raises(Stopped), wakes.left_off_at_stop():
            wakes.stop()
        wakes.stop()
        with pytest.raises(Stopped), wakes.left_off_at_stop():
            pytest.fail("it must not begin any more")


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
        """There are so many of them that others are lost: each pass of any tool opens all files."""
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


class TestListener:
    @pytest.mark.parametrize(
        ("text", "address"),
        [
            ("127.0.0.1:9464", ("127.0.0.1", 9464)),
            ("127.0.0.2:0", ("127.0.0.2", 0)),
            ("localhost:1", ("127.0.0.1", 1)),
            ("[::1]:9464", ("::1", 9464)),
        ],
    )
    def test_addresses_of_this_machine(self, text: str, address: tuple[str, int]) -> None:
        assert address_of(text) == address

    @pytest.mark.parametrize(
        "text",
        ["", "9464", ":9464", "0.0.0.0:9464", "10.0.0.1:1", "[::]:1", "::1:1", "example.com:1",
         "127.0.0.1:65536", "127.0.0.1:", "127.0.0.1:٣", "127.0.0.1:1\n"],
    )  # fmt: skip
    def test_no_other_address_is_listened_at(self, text: str) -> None:
        with pytest.raises(UsageError):
            address_of(text)

    def test_health_is_gone_when_no_pass_has_ended_for_too_long(self) -> None:
        now = 0.0
        health = Health(100.0, lambda: now)
        with listening(("127.0.0.1", 0), {"/healthz": health.page}) as url:

            def asked() -> tuple[int, bytes]:
                answer = urllib3.request("GET", f"{url}/healthz", retries=False)
                return answer.status, answer.data

            now = 100.0
            assert asked() == (200, b"ok: the last pass ended 100 s ago\n")
            now = 101.0
            assert asked() == (503, b"stuck: the last pass ended 101 s ago\n")
            health.passed()
            assert asked()[0] == 200

    def test_who_asks_for_the_head_gets_all_but_the_text(self) -> None:
        with listening(("127.0.0.1", 0), {"/metrics": lambda: Response(200, (), b"some")}) as url:
            port = int(url.rpartition(":")[2])

            def asked(line: str) -> list[bytes]:
                with socket.create_connection(("127.0.0.1", port), 30) as connection:
                    connection.sendall(f"{line} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
                    head, _, text = connection.makefile("rb").read().partition(b"\r\n\r\n")
                found = {line for line in head.split(b"\r\n") if not line.startswith(b"Date")}
                return [*sorted(found), text]

            *head, text = asked("GET /metrics")
            assert (b"Content-Length: 4" in head, text) == (True, b"some")
            assert asked("HEAD /metrics") == [*head, b""]
            assert b"HTTP/1.0 404 Not Found" in asked("HEAD /else")

    def test_an_address_in_use_is_told(self) -> None:
        with listening(("127.0.0.1", 0), {}) as url:
            port = int(url.rpartition(":")[2])
            with pytest.raises(ServiceError, match="can't listen"), listening(("127.0.0.1", port), {}):
                pytest.fail("two listen at one address")

    @pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", ""])
    def test_a_name_of_another_host_reads_nothing(self, host: str) -> None:
        with listening(("127.0.0.1", 0), {"/metrics": lambda: Response(200, (), b"secret")}) as url:
            answer = urllib3.request("GET", f"{url}/metrics", headers={"Host": host}, retries=False)
            assert (answer.status, b"secret" in answer.data) == (403, False)


class Told:
    """A reporter of passes, and what it told."""

    def __init__(self) -> None:
        self._stream = io.StringIO()
        self.metrics = Metrics(lambda: 1000.0)
        self.reporter = PassReporter(events("json", logging.INFO, self._stream), self.metrics)

    def lines(self) -> list[dict[str, Any]]:
        """What was told since the last time."""
        told = [json.loads(line) for line in self._stream.getvalue().splitlines()]
        self._stream.seek(0)
        self._stream.truncate()
        return told

    def names(self) -> list[str]:
        return [line["event"] for line in self.lines()]

    def samples(self) -> dict[str, float]:
        families = text_string_to_metric_families(self.metrics.page().content.decode())
        return {
            " ".join([sample.name, *sample.labels.values()]): sample.value
            for family in families
            for sample in family.samples
        }


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    return commands_in(tmp_path, monkeypatch, capsys.readouterr)


class TestTelling:
    @pytest.fixture(autouse=True)
    def loop(self) -> None:
        self.remembered = LoopCache()

    def turn(self, commands: Commands, told: Told, before: Pass | None = None) -> Pass:
        checkout = Checkout(commands.root, "", os.environ, "prod")
        turn = run_pass(checkout, self.remembered, before, listener=told.reporter)
        told.reporter.passed(turn, 1.5, "")
        return turn

    def test_a_submission_is_told_before_the_next_look(
        self, commands: Commands, told: Told, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commands.job("census")
        before: list[str] = []
        follow_up = watch_loop.follow_up
        monkeypatch.setattr(
            watch_loop,
            "follow_up",
            lambda *given, **more: before.extend(told.names()) or follow_up(*given, **more),
        )
        self.turn(commands, told)
        assert before == ["submitted"]
        assert told.names() == ["pass"], "nothing is told twice"

    def test_each_thing_is_told_once_when_it_happens(self, commands: Commands, told: Told) -> None:
        commands.job("census")
        turn = self.turn(commands, told)
        assert told.names() == ["submitted", "pass"]
        assert turn.live
        turn = self.turn(commands, told, turn)
        assert told.names() == [], "nothing of a pass that does nothing"
        (job,) = commands.outside.jobs.jobs
        commands.outside.jobs.becomes(job, State.CANCELLED)
        turn = self.turn(commands, told, turn)
        assert told.names() == ["drift", "ended"]
        for _ in range(3):
            turn = self.turn(commands, told, turn)
        assert told.names() == []
        assert turn.at_rest
        samples = told.samples()
        assert samples["reconciler_drift_findings cancelled-outside"] == 1
        assert samples["reconciler_jobs CANCELLED"] == 1
        assert samples["reconciler_submissions_total"] == 1
        assert samples["reconciler_last_pass_duration_seconds"] == 1.5
        assert samples["reconciler_last_pass_timestamp_seconds"] == 1000.0
        assert samples["reconciler_claims held"] == 0

    def test_a_service_that_is_away_is_told_once_and_then_that_it_is_back(
        self, commands: Commands, told: Told, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away() -> Any:
            raise ServiceError("the store is away\x1b[2J ::error::", hint="wait")

        commands.job("census")
        with monkeypatch.context() as faulty:
            faulty.setattr(commands.outside.claims, "listed", away)
            turn = self.turn(commands, told)
            (line,) = told.lines()
            assert (line["event"], line["hint"], turn.result) == ("failed", "wait", Result.FAILED)
            assert "\x1b" not in line["message"]
            self.turn(commands, told, turn)
            assert told.names() == []
        self.turn(commands, told, turn)
        assert told.names() == ["goes-on", "submitted", "pass"]
        samples = told.samples()
        assert samples["reconciler_passes_total failed"] == 2
        assert samples["reconciler_passes_total succeeded"] == 1

    def test_a_mistake_with_a_place_is_the_only_line_about_it(self, commands: Commands, told: Told) -> None:
        commands.job("census")
        manifest = commands.root / "jobs/census.yaml"
        manifest.write_text(manifest.read_text().replace("replicaCount", "replicaCuont"))
        turn = self.turn(commands, told)
        lines = told.lines()
        assert lines
        assert {(line["event"], line["path"]) for line in lines} == {("invalid", "jobs/census.yaml")}
        self.turn(commands, told, turn)
        assert told.names() == []

    def test_a_run_that_is_superseded_is_told_once_whatever_its_state(
        self, commands: Commands, told: Told
    ) -> None:
        commands.job("census")
        turn = self.turn(commands, told)
        (first,) = commands.outside.jobs.jobs
        manifest = commands.root / "jobs/census.yaml"
        manifest.write_text(manifest.read_text().replace("n1-standard-4", "n1-standard-8"))
        turn = self.turn(commands, told, turn)
        assert "drift" in told.names()
        details = set()
        for state in (State.QUEUED, State.RUNNING, State.CANCELLING):
            commands.outside.jobs.becomes(first, state)
            turn = self.turn(commands, told, turn)
            assert turn.plan is not None
            details |= {detail_of(found) for found in turn.plan.drift if found.kind is DriftKind.SUPERSEDED}
        assert len(details) == 3
        assert told.names() == []

    @pytest.mark.parametrize("left", [None, "", "# source: x\n"])
    def test_settings_that_are_gone_for_a_moment_do_nothing(
        self, commands: Commands, told: Told, left: str | None
    ) -> None:
        commands.job("census")
        config = commands.root / "reconciler.yaml"
        text = config.read_text()
        settings = KeptSettings()
        checkout = Checkout(commands.root, "", os.environ, "prod", settings.read)

        def turned(before: Pass | None) -> Pass:
            turn = run_pass(checkout, self.remembered, before, listener=told.reporter)
            told.reporter.passed(turn, 1.5, "")
            return turn

        turn = turned(None)
        assert told.names() == ["submitted", "pass"]
        if left is None:
            config.unlink()
        else:
            config.write_text(left)
        for _ in range(2):
            turn = turned(turn)
            assert turn.result is Result.INVALID
        (line,) = told.lines()
        assert (line["event"], "reconciler.yaml is missing or empty" in line["message"]) == ("invalid", True)
        config.write_text(text)
        turn = turned(turn)
        assert turn.result is Result.SUCCEEDED
        assert told.names() == ["goes-on"]
        assert len(commands.outside.jobs.jobs) == 1

    def test_settings_that_were_never_there_are_the_defaults(self, tmp_path: Path) -> None:
        settings = KeptSettings()
        for _ in range(2):
            assert settings.read(tmp_path).source == "local"
        config = tmp_path / "reconciler.yaml"
        config.write_text("sauce: x\n")
        with pytest.raises(InvalidError) as raised:
            settings.read(tmp_path)
        assert raised.value.problems
        config.unlink()
        with pytest.raises(InvalidError, match="is missing or empty"):
            settings.read(tmp_path)

    def test_settings_are_checked_again_only_when_their_content_changed(self, tmp_path: Path) -> None:
        config = tmp_path / "reconciler.yaml"
        config.write_text("source: one\n")
        settings = KeptSettings()
        kept = settings.read(tmp_path)
        assert settings.read(tmp_path) is kept
        config.write_text("source: one\n")
        assert settings.read(tmp_path) is kept
        config.with_name("new").write_text("source: two\n")
        config.with_name("new").replace(config)
        assert [settings.read(tmp_path).source for _ in range(2)] == ["two", "two"]
        config.write_text("sauce: two\n")
        for _ in range(2):
            with pytest.raises(InvalidError):
                settings.read(tmp_path)

    def test_a_pass_is_the_same_as_the_last_one_only_where_that_left_nothing_open(
        self, commands: Commands, told: Told
    ) -> None:
        commands.job("census")
        turn = self.turn(commands, told)
        assert turn.inputs is not None
        assert not turn.holds_for(turn.inputs), "what it did isn't what it saw"
        turn = self.turn(commands, told, turn)
        assert turn.inputs is not None
        assert turn.after is not None
        assert turn.after.observed is not None
        assert turn.holds_for(turn.inputs)
        observed = turn.after.observed
        nothing = Observed({}, ())
        for other in (
            dataclasses.replace(turn, result=Result.REFUSED),
            dataclasses.replace(turn, plan=None),
            dataclasses.replace(turn, after=dataclasses.replace(turn.after, problems=("not kept",))),
            dataclasses.replace(turn, after=dataclasses.replace(turn.after, observed=nothing)),
        ):
            assert not other.holds_for(turn.inputs)
        for seen in (
            dataclasses.replace(turn.inputs, commit="another"),
            dataclasses.replace(turn.inputs, jobs=()),
            dataclasses.replace(turn.inputs, observed=nothing),
            dataclasses.replace(turn.inputs, config=replace(turn.inputs.config, source="another")),
        ):
            assert not turn.holds_for(seen)
        ((id, found),) = observed.versions.items()
        pending = replace(found, claim=replace(found.claim, state=ClaimState.PENDING))
        unknown = dataclasses.replace(turn.inputs, observed=Observed({id: pending}, observed.runs))
        left = dataclasses.replace(turn.after, observed=unknown.observed)
        assert not dataclasses.replace(turn, inputs=unknown, after=left).holds_for(unknown)

    def test_what_a_file_system_says_is_told_too(
        self, commands: Commands, told: Told, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*arguments: Any, **more: Any) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device", "/there")

        monkeypatch.setattr("reconciler.operations.watch.state.load_desired", full)
        turn = self.turn(commands, told)
        assert turn.result is Result.FAILED
        assert told.lines()[0]["message"] == "No space left on device: /there"

    def test_once_the_end_is_asked_for_nothing_more_is_begun(self, commands: Commands) -> None:
        commands.job("one")
        commands.job("two")
        asked = iter([True])
        checkout = Checkout(commands.root, "", os.environ, "prod")
        turn = run_pass(checkout, LoopCache(), None, lambda: next(asked, False))
        assert [str(outcome.status) for outcome in turn.outcomes] == ["applied", "skipped"]
        assert len(commands.outside.jobs.jobs) == 1

    def test_metrics_say_what_they_are(self, told: Told) -> None:
        page = told.metrics.page()
        assert "version=0.0.4" in dict(page.headers)["Content-Type"]
        families = list(text_string_to_metric_families(page.content.decode()))
        assert families
        for family in families:
            assert family.name.startswith("reconciler_")
            assert family.documentation.endswith(".") or "," in family.documentation
            assert not family.name.endswith("_created")


class TestLoop:
    def test_failures_are_followed_by_longer_waits_and_a_success_ends_them(
        self, commands: Commands, told: Told, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commands.job("census")
        results = iter([Result.FAILED, Result.FAILED, Result.FAILED, Result.SUCCEEDED, Result.FAILED])
        waits: list[float] = []
        wakes = Wakes()

        class Source:
            due = math.inf

            def refresh(self, changed: bool) -> bool:
                return True

            def checkout(self) -> Checkout:
                return Checkout(commands.root, "", os.environ, "prod")

            def follow(self, jobs: Any) -> None: ...

        def turned(*arguments: Any) -> Pass:
            return Pass(next(results))

        def waited(seconds: float) -> bool:
            waits.append(seconds)
            if len(waits) == 5:
                wakes.stop()
            return False

        monkeypatch.setattr("reconciler.operations.watch.loop.run_pass", turned)
        monkeypatch.setattr(wakes, "wait", waited)
        Loop(Source(), wakes, told.reporter, Health(1.0), 300.0, lambda: 1.0).run()
        assert [round(wait) for wait in waits] == [2, 4, 8, 300, 2]

    @pytest.mark.parametrize(
        "error",
        [MachineError("git can't be run: Too many open files"), OSError(24, "Too many"), MemoryError()],
    )
    def test_a_machine_that_fails_between_passes_ends_no_loop(
        self, commands: Commands, told: Told, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        commands.job("census")
        wakes, checkouts = Wakes(), iter([error, error, None])

        class Source:
            due = math.inf

            def refresh(self, changed: bool) -> bool:
                return True

            def checkout(self) -> Checkout:
                if broken := next(checkouts):
                    raise broken
                wakes.stop()
                return Checkout(commands.root, "", os.environ, "prod")

            def follow(self, jobs: Any) -> None: ...

        monkeypatch.setattr(wakes, "wait", lambda seconds: True)
        Loop(Source(), wakes, told.reporter, Health(1.0), 300.0, lambda: 1.0).run()
        assert told.samples()["reconciler_passes_total failed"] == 2
        assert [name for name in told.names() if name != "waiting"] == ["failed", "goes-on", "ending"]

    def test_mended_manifests_are_compared_with_what_was_before_they_were_broken(
        self, told: Told, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where nothing else has changed meanwhile, the service isn't even woken."""
        wakes, befores = Wakes(), list[Pass | None]()
        turns = [Pass(result) for result in (Result.SUCCEEDED, Result.INVALID, Result.INVALID, Result.FAILED)]
        turns.append(Pass(Result.SUCCEEDED))

        class Source:
            due = 1e9

            def refresh(self, changed: bool) -> bool:
                return True

            def checkout(self) -> Checkout:
                return Checkout(Path(), "", os.environ, "prod")

            def follow(self, jobs: Any) -> None: ...

        def turned(checkout: Checkout, cache: LoopCache, before: Pass | None, *rest: Any) -> Pass:
            befores.append(before)
            if len(befores) == len(turns):
                wakes.stop()
            return turns[len(befores) - 1]

        monkeypatch.setattr("reconciler.operations.watch.loop.run_pass", turned)
        monkeypatch.setattr(wakes, "wait", lambda seconds: True)
        Loop(Source(), wakes, told.reporter, Health(1.0), 300.0, lambda: 1.0).run()
        assert [before and turns.index(before) for before in befores] == [None, 0, 0, 0, 3]


@pytest.mark.parametrize(
    "url",
    ["https://example.com/a/b.git", "ssh://git@example.com/a", "ssh://example.com:22/a",
     "git@example.com:a/b.git", "file:///srv/a.git"],
)  # fmt: skip
def test_addresses_of_remotes(url: str) -> None:
    assert checked_url(url) == url


@pytest.mark.parametrize(
    "url",
    ["", "-x", "--upload-pack=touch x", "ext::sh -c 'touch x'", "git::x", "fd::3", "/srv/a.git", "../a", "a",
     "http://example.com/a", "git://example.com/a", "https://example.com", "file://host/a",
     "ssh://-oProxyCommand=x/a", "ssh://-x@example.com/a", "-x@example.com:a", "-x:a",
     "https://u:p@example.com/a", "https://t0ken@example.com/a", "ssh://u:p@example.com/a",
     "https://[::1/a", "https://example.com/a\nb", "https:/a"],
)  # fmt: skip
def test_what_is_no_address_of_a_remote_or_holds_a_secret_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        checked_url(url)
    assert "t0ken" not in refused.value.message


@pytest.mark.parametrize("name", ["", "-x", "a..b", "a b", "a:b", "a^", "refs/heads/*"])
def test_what_is_no_branch_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        checked_branch(name)
    assert checked_branch("team/main") == "team/main"


class Remote:
    """A bare repository, and a work tree that pushes to it."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.bare = folder / "bare.git"
        self.work.mkdir()
        self.git("init", "-q", "-b", "main")
        self.git("init", "-q", "--bare", "-b", "main", str(self.bare))

    def git(self, *arguments: str) -> str:
        settings = (
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@example.test",
            "-c",
            "protocol.file.allow=always",
        )
        environ = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        done = subprocess.run(
            ["git", *settings, *arguments],
            cwd=self.work,
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def push(self, *options: str) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "more", *options)
        self.git("push", "-q", "--force", str(self.bare), "main")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    return Remote(tmp_path)


@pytest.fixture
def cloned(tmp_path: Path, remote: Remote) -> Callable[..., Clone]:
    def make(**environ: str) -> Clone:
        clone = Clone(tmp_path / "home", f"file://{remote.bare}", "main", {**os.environ, **environ})
        clone.open()
        return clone

    return make


def files_of(tree: Path) -> set[str]:
    found = (path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file())
    return {path for path in found if path != ".git"}


class TestClone:
    def test_the_tree_is_exactly_the_commit_whatever_was_there(
        self, remote: Remote, cloned: Callable[..., Clone]
    ) -> None:
        (remote.work / "a").write_text("1")
        first = remote.push()
        clone = cloned()
        assert clone.refresh()
        assert (clone.commit, files_of(clone.tree)) == (first, {"a"})
        assert not clone.refresh()
        (clone.tree / "left").write_text("by somebody")
        (remote.work / "a").rename(remote.work / "b")
        second = remote.push("--amend")
        assert clone.refresh()
        assert (clone.commit, files_of(clone.tree)) == (second, {"b"})
        assert Git(clone.tree).commit("HEAD") == second
        assert Git(clone.tree).is_clean()
        clone.close()

    def test_a_branch_that_is_gone_leaves_what_was_fetched(
        self, remote: Remote, cloned: Callable[..., Clone]
    ) -> None:
        (remote.work / "a").write_text("1")
        first = remote.push()
        clone = cloned()
        clone.refresh()
        remote.git("--git-dir", str(remote.bare), "update-ref", "-d", "refs/heads/main")
        with pytest.raises(GitError, match="refs/heads/main"):
            clone.refresh()
        assert (clone.commit, files_of(clone.tree)) == (first, {"a"})
        clone.close()

    def test_what_a_killed_one_left_is_in_nobodys_way(
        self, remote: Remote, cloned: Callable[..., Clone], tmp_path: Path
    ) -> None:
        (remote.work / "a").write_text("1")
        remote.push()
        clone = cloned()
        clone.refresh()
        with pytest.raises(ServiceError, match="already being watched"):
            cloned()
        clone.close()
        git_folder = next((tmp_path / "home/watch").glob("*/git"))
        for left in (
            "index.lock",
            "HEAD.lock",
            "config.lock",
            "shallow.lock",
            "refs/watched.lock",
            "packed-refs.lock",
        ):
            (git_folder / left).touch()
        (git_folder.parent / "tree.new/half").mkdir(parents=True)
        (clone.tree / "a").write_text("changed")
        (remote.work / "b").write_text("2")
        remote.push()
        again = cloned()
        assert again.refresh()
        assert files_of(again.tree) == {"a", "b"}
        assert (again.tree / "a").read_text() == "1"
        again.close()
        shutil.rmtree(git_folder / "objects")
        (git_folder / "HEAD").unlink()
        broken = cloned()
        assert broken.refresh(), "a clone that never came to be is made anew"
        broken.close()

    def test_nothing_that_a_repository_or_the_settings_name_runs(
        self, remote: Remote, cloned: Callable[..., Clone], tmp_path: Path
    ) -> None:
        ran = tmp_path / "ran"
        canary = tmp_path / "canary"
        canary.write_text(f'#!/bin/sh\necho "$0 $@" >> {ran}\ncat\n')
        canary.chmod(0o755)
        hooks = tmp_path / "template/hooks"
        hooks.mkdir(parents=True)
        names = (
            "post-checkout",
            "reference-transaction",
            "post-merge",
            "post-index-change",
            "fsmonitor-watchman",
        )
        for name in names:
            shutil.copy(canary, hooks / name)
        settings = tmp_path / "gitconfig"
        settings.write_text(
            f"[core]\n\thooksPath = {hooks}\n\tfsmonitor = {canary}\n[init]\n\ttemplateDir = {hooks.parent}\n"
            "[submodule]\n\trecurse = true\n[fetch]\n\trecurseSubmodules = true\n"
            "[protocol]\n\tallow = always\n"
            + "".join(
                f'[filter "{name}"]\n\tsmudge = {canary}\n\tclean = {canary}\n\trequired = true\n'
                for name in ("lfs", "evil")
            )
            + f'[filter "lfs"]\n\tprocess = {canary}\n'
        )
        other = tmp_path / "other"
        other.mkdir()
        module = Remote(other)
        (module.work / "inner").write_text("1")
        module.push()
        remote.git("submodule", "add", "-q", f"file://{module.bare}", "module")
        (remote.work / ".gitattributes").write_text(
            "*.bin filter=lfs diff=lfs merge=lfs\n*.txt filter=evil\n"
        )
        pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
        (remote.work / "model.bin").write_text(pointer)
        (remote.work / "a.txt").write_text("as it is")
        remote.push()
        clone = cloned(GIT_CONFIG_GLOBAL=str(settings), GIT_TEMPLATE_DIR=str(hooks.parent))
        assert clone.refresh()
        assert (clone.tree / "model.bin").read_text() == pointer
        assert (clone.tree / "a.txt").read_text() == "as it is"
        assert list((clone.tree / "module").iterdir()) == []
        remote.push()
        assert clone.refresh()
        clone.close()
        assert not ran.exists(), ran.read_text()
        assert not list((tmp_path / "home").rglob("hooks"))

    def test_a_protocol_that_runs_programs_is_not_spoken_whatever_the_settings_make_of_an_address(
        self, remote: Remote, cloned: Callable[..., Clone], tmp_path: Path
    ) -> None:
        settings = tmp_path / "gitconfig"
        settings.write_text(
            f'[url "ext::touch {tmp_path}/ran "]\n\tinsteadOf = file://\n[protocol]\n\tallow = always\n'
        )
        clone = cloned(GIT_CONFIG_GLOBAL=str(settings))
        with pytest.raises(GitError, match="ext"):
            clone.refresh()
        assert not (tmp_path / "ran").exists()
        clone.close()

    def test_a_remote_that_cannot_be_reached_is_told_once_and_tried_later(
        self, remote: Remote, cloned: Callable[..., Clone], told: Told
    ) -> None:
        clone = cloned()
        branch = RemoteBranch(clone, os.environ, None, 60.0, Wakes(), told.reporter, lambda: 0.5)
        assert not branch.refresh(changed=False)
        assert branch.checkout() is None
        first = branch.due
        assert not branch.refresh(changed=False), "not before it is due"
        assert branch.due == first
        branch.due = 0.0
        branch.refresh(changed=False)
        (line,) = told.lines()
        assert line["event"] == "not-fetched"
        assert "couldn't find remote ref" in line["message"]
        assert branch.due - first > 0
        remote.push()
        branch.due = 0.0
        assert branch.refresh(changed=False)
        assert told.names() == ["goes-on", "fetched"]
        branch.due = 0.0
        assert not branch.refresh(changed=False)
        assert told.names() == []
        checkout = branch.checkout()
        assert checkout is not None
        assert checkout.commit == remote.git("rev-parse", "HEAD")
        assert checkout.is_exported
        clone.close()

    def test_pass_of_a_branch_refuses_code_in_git_lfs_and_in_submodules(
        self, remote: Remote, cloned: Callable[..., Clone], told: Told, tmp_path: Path
    ) -> None:
        """It fetches neither, and must not take a pointer or an empty folder for the code."""
        library = tmp_path / "library"
        library.mkdir()
        module = Remote(library)
        (module.work / "shared.py").write_text("")
        module.push()
        Repository(remote.work).job("census")
        remote.git("submodule", "add", "-q", f"file://{module.bare}", "trainer/lib")
        digest = hashlib.sha256(b"weights").hexdigest()
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize 7\n"
        (remote.work / "trainer" / "model.bin").write_text(pointer)
        remote.push()
        clone = cloned()
        branch = RemoteBranch(clone, os.environ, None, 60.0, Wakes(), told.reporter, lambda: 0.5)
        assert branch.refresh(changed=False)
        checkout = branch.checkout()
        assert checkout is not None
        error = run_pass(checkout, LoopCache(), None).error
        assert isinstance(error, InvalidError)
        assert [problem.message for problem in error.problems] == [
            '"trainer/lib" is a submodule that isn\'t fetched',
            '"trainer/model.bin" is a Git LFS pointer, and not the file itself',
        ]
        assert all("`watch --remote` gets none" in problem.hint for problem in error.problems)
        clone.close()

    def test_a_full_disk_is_told_and_the_branch_is_tried_later(
        self, remote: Remote, cloned: Callable[..., Clone], told: Told, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        remote.push()
        clone = cloned()
        branch = RemoteBranch(clone, os.environ, None, 60.0, Wakes(), told.reporter, lambda: 0.5)

        def full(*arguments: Any, **more: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as broken:
            broken.setattr(Path, "mkdir", full)
            assert not branch.refresh(changed=False)
        (line,) = told.lines()
        assert (line["event"], line["message"]) == ("not-fetched", "No space left on device")
        branch.due = 0.0
        assert branch.refresh(changed=False)
        assert told.names() == ["goes-on", "fetched"]
        clone.close()

    def test_why_it_cannot_be_fetched_is_gits_own_reason_and_not_its_advice(self, tmp_path: Path) -> None:
        url = f"file://{tmp_path}/none.git"
        clone = Clone(tmp_path / "home", url, "main", os.environ)
        clone.open()
        with pytest.raises(GitError) as raised:
            clone.refresh()
        clone.close()
        assert raised.value.message.startswith(
            f"{url} can't be fetched: fatal: '{tmp_path}/none.git' does not"
        )
        assert "credential helper" in raised.value.hint


class TestCommandLine:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--remote", "ext::sh"], "is not the address"),
            (["--remote", "https://t0ken@example.com/a"], "credentials"),
            (["--branch", "main"], "need --remote"),
            (["--interval", "5"], "need --remote"),
            (["--resync", "0"], "number of seconds"),
            (["--resync", "nan"], "number of seconds"),
            (["--listen", "0.0.0.0:1"], "only this machine"),
            (["--listen", "9000"], "HOST:PORT"),
            (["--listen", "127.0.0.1:abc"], "HOST:PORT"),
            (["--listen", "127.0.0.1:65536"], "HOST:PORT"),
            (["--env", "nowhere"], "no environment"),
        ],
    )
    def test_wrong_usage_is_told_before_anything_is_done(
        self, commands: Commands, arguments: list[str], said: str
    ) -> None:
        result = commands.run("watch", *arguments)
        assert (result.code, said in result.err, result.out) == (64, True, ""), result.err
        assert "t0ken" not in result.err
        assert not home_of(commands.root, os.environ).exists()

    @pytest.mark.parametrize("spelled", [["--log-format", "json"], ["--log-format=json"]])
    def test_errors_of_commands_are_json_where_the_log_is(
        self, commands: Commands, spelled: list[str]
    ) -> None:
        commands.job("census")
        for arguments, code in ((["plan", "nowhere/"], 64), (["nonsense"], 64), (["status", "nobody"], 64)):
            result = commands.run(*arguments, "--env", "nowhere", *spelled)
            assert result.code == code
            told = [json.loads(line) for line in result.err.splitlines()]
            assert [line["event"] for line in told] == ["error"]
            assert told[0]["message"]
        (commands.root / "jobs/census.yaml").write_text("kind: [\n")
        result = commands.run("plan", "--env", "prod", *spelled)
        told = [json.loads(line) for line in result.err.splitlines()]
        assert [line["event"] for line in told] == ["invalid", "error"]
        assert told[0]["path"] == "jobs/census.yaml"


def test_text_of_others_is_inert_in_both_forms() -> None:
    for form in ("json", "text"):
        stream = io.StringIO()
        events(form, logging.INFO, stream).info("drift", job="a\x1b[2Jb\n::error::c", detail="##[error]x")
        line = stream.getvalue()
        assert line.count("\n") == 1
        assert "\x1b" not in line
        assert "##[error]" not in line


def test_events_below_the_level_are_not_told() -> None:
    stream = io.StringIO()
    log = events("text", logging.WARNING, stream)
    log.info("pass")
    log.debug("pass")
    log.warning("failed", message="it")
    assert [line.split()[1:] for line in stream.getvalue().splitlines()] == [["failed", "it"]]
