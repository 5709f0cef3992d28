"""A plan that found nothing to do is told again while all that it rests on is as it was, and no longer."""

from __future__ import annotations

import json
import os
import shutil
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import urllib3
from googleapiclient.http import MediaInMemoryUpload
from held_service import HeldService
from in_memory import MANIFEST
from msgspec.structs import replace

from reconciler import session
from reconciler.claim import ClaimState, claim_json
from reconciler.cli import run
from reconciler.config import load_config
from reconciler.engines.listing import Pages
from reconciler.job import ActualJob, State
from reconciler.labels import KEY, SOURCE
from reconciler.localservice.records import JobState
from reconciler.manifest import AIPLATFORM_V1, ML_V1
from reconciler.plan import Action, Change, Plan, Stuck, Target
from reconciler.plancache import PlanCache, rests_on_lists
from reconciler.session import open_session
from reconciler.submission.observation import Observed, listed, observe
from reconciler.transport import DirectTransport, HttpRequest, HttpResponse

ML_MANIFEST = """
    apiVersion: ml.googleapis.com/v1
    kind: Job
    metadata: {name: legacy}
    spec:
      trainingInput:
        scaleTier: BASIC
        region: us-central1
        masterConfig: {imageUri: "example.test/plain:1"}
"""
TWO = "environments: {local: {engine: local%s}, other: {engine: local, project: other-jobs}}\nsource: %s\n"

Told = tuple[int, str, str]


@dataclass
class Place:
    """A repository of jobs that were all submitted, and their service, which runs nothing by itself."""

    root: Path
    service: HeldService
    read: Callable[[], Any]

    def job(self, name: str, *args: str, reconcile: str = "") -> None:
        file = self.root / "jobs" / f"{name}.yaml"
        file.write_text(textwrap.dedent(MANIFEST % (name, reconcile, ", ".join(map(json.dumps, args)))))

    def package(self, name: str) -> None:
        """A job that brings code, submitted."""
        file = self.root / "jobs" / f"{name}.yaml"
        container = 'containerSpec: {imageUri: "example.test/plain:1", args: []}'
        package = 'pythonPackageSpec: {executorImageUri: "example.test/plain:1", pythonModule: task}'
        text = file.read_text().replace(container, package)
        file.write_text(text.replace("spec:\n", "package: {path: ../trainer}\nspec:\n", 1))
        (self.root / "trainer").mkdir()
        (self.root / "trainer" / "task.py").write_text("")
        assert self.run("apply")[0] == 0

    def run(self, *arguments: str) -> Told:
        code = run([*arguments, "-q"])
        out, err = self.read()
        return code, out, err

    def plan(self, *arguments: str) -> Told:
        return self.run("plan", "--detailed-exitcode", *arguments)

    def anew(self, *arguments: str) -> Told:
        """The same where no plan is remembered."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PlanCache, "load", lambda _: None)
            patch.setattr(PlanCache, "save", lambda *_: None)
            return self.plan(*arguments)

    @property
    def kept(self) -> Path:
        return self.service.home / "cache" / "plan.bin"

    def session(self) -> Any:
        config = load_config(self.root)
        return open_session(config, config.environment(None), os.environ, start=False)

    def becomes(self, name: str, state: JobState) -> None:
        store = self.service.store
        for job in store.unfinished():
            if name in json.dumps(job.body):
                store.move(job.id, JobState.RUNNING, only_from={JobState.QUEUED}, at=store.now())
                if state is not JobState.RUNNING:
                    store.move(job.id, state, only_from={JobState.RUNNING}, at=store.now())

    def forgets(self, name: str) -> None:
        """The service has a job no more."""
        store = self.service.store
        for job in store.unfinished():
            if name in json.dumps(job.body):
                store.delete(job.id)

    def claim_becomes(self, **fields: Any) -> None:
        with self.session() as opened:
            found, *_ = opened.claims.listed().read().values()
            assert opened.claims.write(replace(found.claim, **fields), found.generation)

    def claim_loses_its_metadata(self) -> None:
        """As an object does that is copied without it: what it says stands in its content too."""
        with self.session() as opened:
            found, *_ = opened.claims.listed().read().values()
            name = f"reconciler/claims/acme/local/local/{found.claim.id.key}/1"
            content = json.dumps(claim_json(found.claim)).encode()
            opened.connection.client("storage.objects").insert(
                bucket="reconciler-staging",
                body={"name": name},
                media_body=MediaInMemoryUpload(content, mimetype="application/json"),
            ).execute()

    def store_is_emptied(self) -> None:
        """The claims stay, and what says whose they are is gone."""
        address = f"{self.service.url}/storage/v1/b/reconciler-staging/o/reconciler%2Fclaims%2Facme%2Fgenesis"
        headers = {"Authorization": f"Bearer {self.service.token}"}
        assert urllib3.request("DELETE", address, headers=headers, retries=False).status == 204


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Place]:
    # What was written a moment ago is trusted at once, so that nobody has to wait here.
    monkeypatch.setattr("reconciler.validation.filecontent._COARSEST_TICK", 0)
    for name in ("XDG_STATE_HOME", "RECONCILER_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    root = tmp_path / "repository"
    (root / "jobs").mkdir(parents=True)
    (tmp_path / "user").mkdir()
    (root / "reconciler.yaml").write_text(TWO % ("", "acme"))
    monkeypatch.chdir(root)
    with HeldService(root / ".reconciler").running() as service:
        made = Place(root, service, capsys.readouterr)
        for name in ("census", "trees"):
            made.job(name)
        (root / "jobs" / "legacy.yaml").write_text(textwrap.dedent(ML_MANIFEST))
        assert made.run("apply")[0] == 0
        yield made


def spoil(place: Place) -> None:
    data = place.kept.read_bytes()
    place.kept.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def rewritten(place: Place, old: str, new: str) -> None:
    """Another content of the same length, with the same times: what only a look behind them shows."""
    file = place.root / "jobs" / "census.yaml"
    status = file.stat()
    file.write_text(file.read_text().replace(old, new))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES: dict[str, Callable[[Place], object]] = {
    "an argument": lambda place: place.job("census", "--more"),
    "a byte": lambda place: rewritten(place, "plain:1", "plain:2"),
    "another file": lambda place: place.job("new"),
    "a file less": lambda place: (place.root / "jobs" / "census.yaml").unlink(),
    "a comment": lambda place: rewritten(place, "kind: CustomJob", "kind: CustomJob # more"),
    "suspended": lambda place: place.job("census", reconcile="suspend: true"),
    "suspended, with another content": lambda place: place.job("census", "--more", reconcile="suspend: true"),
    "attempts": lambda place: (
        place.becomes("census", JobState.FAILED),
        place.job("census", reconcile="attempts: 2"),
    ),
    "broken": lambda place: (place.root / "jobs" / "census.yaml").write_text("- broken\n"),
    "running": lambda place: place.becomes("census", JobState.RUNNING),
    "succeeded": lambda place: place.becomes("legacy", JobState.SUCCEEDED),
    "failed": lambda place: place.becomes("census", JobState.FAILED),
    "gone": lambda place: place.forgets("census"),
    "gone, of ml": lambda place: place.forgets("legacy"),
    "a claim held": lambda place: place.claim_becomes(state=ClaimState.HELD, error="odd"),
    "a claim's labels": lambda place: place.claim_becomes(labels="0" * 16),
    "the store": lambda place: place.store_is_emptied(),
    "the source": lambda place: (place.root / "reconciler.yaml").write_text(TWO % ("", "acmf")),
    "defaults": lambda place: (place.root / "reconciler.yaml").write_text(
        TWO % (", defaults: {network: projects/1/global/networks/n}", "acme")
    ),
    "damage": spoil,
    "the cache's end": lambda place: shutil.rmtree(place.service.home / "cache"),
}
NO_NEWS = ("a comment", "damage", "defaults", "the cache's end")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("shown", ["", "-v"], ids=["short", "verbose"])
def test_whatever_changes_is_seen(place: Place, change: str, shown: str) -> None:
    arguments = [shown] if shown else []
    before = place.anew(*arguments)
    assert [place.plan(*arguments) for _ in range(3)] == [before] * 3
    assert place.kept.exists()
    CHANGES[change](place)
    after = place.anew(*arguments)
    assert [place.plan(*arguments) for _ in range(3)] == [after] * 3
    no_news = NO_NEWS if shown else (*NO_NEWS, "running", "succeeded")
    assert (after == before) == (change in no_news)


def test_what_is_as_it_was_is_not_read_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = place.plan()
    asked: list[str] = []
    send = DirectTransport.send

    def noted(transport: DirectTransport, request: HttpRequest) -> HttpResponse:
        asked.append(request.method)
        return send(transport, request)

    monkeypatch.setattr(DirectTransport, "send", noted)
    anew, at_first = place.anew(), len(asked)
    monkeypatch.setattr(Pages, "read", lambda *_: pytest.fail("a page was read"))
    monkeypatch.setattr("reconciler.desiredcache.DesiredCache.load", lambda *_: pytest.fail("jobs were read"))
    assert place.plan() == before == anew
    assert asked == ["GET"] * 2 * at_first, "everything is asked for"


def test_what_is_shown_otherwise_is_another_plan(place: Place) -> None:
    ways = [
        [],
        ["-v"],
        ["--format", "markdown"],
        ["--format", "json"],
        ["--env", "other"],
        ["jobs/census.yaml"],
    ]
    expected = [place.anew(*way) for way in ways]
    assert len({str(told) for told in expected}) == len(ways)
    for _ in range(2):
        for way, told in zip(ways, expected, strict=True):
            assert [place.plan(*way) for _ in range(2)] == [told] * 2


UNKEPT: dict[str, Callable[[Place], object]] = {
    "something to do": lambda place: place.job("new"),
    "a suspended job": lambda place: place.job("census", reconcile="suspend: true"),
    "a job that was asked for": lambda place: place.forgets("census"),
    "a package": lambda place: place.package("census"),
    "a claim that was asked for": lambda place: place.claim_loses_its_metadata(),
}


@pytest.mark.parametrize("change", UNKEPT)
def test_a_plan_that_rests_on_more_than_lists_is_not_kept(place: Place, change: str) -> None:
    UNKEPT[change](place)
    assert place.plan() == place.anew()
    assert not place.kept.exists()


def test_where_an_engine_of_another_package_lists_too_no_plan_is_kept(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[ActualJob] = []

    class Batch:
        def __init__(self, connection: object) -> None:
            pass

        def jobs(self, labels: dict[str, str]) -> list[ActualJob]:
            return runs

    own = session.engine_class
    monkeypatch.setattr(session, "api_versions", lambda: [AIPLATFORM_V1, "batch/v1", ML_V1])
    monkeypatch.setattr(session, "engine_class", lambda name: Batch if name == "batch/v1" else own(name))
    before = place.plan()
    assert not place.kept.exists()
    labels = {SOURCE: "acme", KEY: "a" * 52}
    name = "night_0123456789abcdef"
    runs.append(ActualJob("jobs/1", name, "batch/v1", "Batch", State.RUNNING, "RUNNING", labels))
    after = place.plan()
    assert after == place.anew() != before
    assert name in after[1]


@pytest.mark.parametrize("arguments", [["jobs"], ["--format", "json"]], ids=["paths", "json"])
def test_a_part_and_a_document_are_not_kept(place: Place, arguments: list[str]) -> None:
    assert place.plan(*arguments) == place.anew(*arguments)
    assert not place.kept.exists()


def a_plan(place: Place) -> tuple[Plan, Observed]:
    with place.session() as opened:
        seen = observe(opened.ports)
        assert seen.digest == listed(opened.ports).digest != b""
    return Plan(Target("local", "local", "local", "local"), (), (), None), seen


def test_only_what_is_known_and_short_is_kept(place: Place) -> None:
    plan, seen = a_plan(place)
    cache = PlanCache(place.root, os.environ, ("local",))
    cache.save(plan, b"", seen, "text")
    cache.save(plan, b"wanted", replace(seen, digest=b""), "text")
    cache.save(plan, b"wanted", seen, "x" * 70_000)
    cache.save(plan, b"wanted", seen, "half of a pair: \ud800")
    assert cache.load() is None
    cache.save(plan, b"wanted", seen, "text")
    kept = cache.load()
    assert kept is not None
    assert (kept.wanted, kept.listed, kept.runs, kept.text) == (b"wanted", seen.digest, 3, "text")
    assert PlanCache(place.root, os.environ, ("other",)).load() is None


def test_a_suspended_job_may_be_compared_with_what_ran_before() -> None:
    change = Change(Action.NONE, "", "", "", "CustomJob")
    plan = Plan(Target("local", "local", "local", "local"), (change,), (), None)
    assert rests_on_lists(plan)
    for other in (replace(change, stuck=Stuck.SUSPENDED), replace(change, action=Action.BLOCKED)):
        assert not rests_on_lists(replace(plan, changes=(change, other)))
