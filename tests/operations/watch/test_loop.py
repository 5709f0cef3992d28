"""The loop: the reports of its passes, and the delay of the next pass after a failure."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from reconciler.base.errors import InvalidError, MachineError, ServiceError
from reconciler.model.claim import ClaimState
from reconciler.model.job import State
from reconciler.model.plan import DriftKind
from reconciler.operations.watch import loop as watch_loop
from reconciler.operations.watch.health import Health
from reconciler.operations.watch.loop import Loop, run_pass
from reconciler.operations.watch.source import KeptSettings
from reconciler.operations.watch.state import Checkout, LoopCache, Pass, Result
from reconciler.operations.watch.wakeups import Wakes
from reconciler.submission.observe import Observed
from tests.support.in_memory import Commands
from tests.support.planning import detail_of
from tests.support.watching import Told


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
        """Check that the service isn't started when no other change was made meanwhile."""
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
