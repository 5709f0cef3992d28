"""`reconciler watch` run as a process: it sees files, branches, services and signals."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus, urlsplit

import pytest
from msgspec.structs import replace

from reconciler.base.errors import ServiceError
from reconciler.base.http import DirectTransport, HttpRequest, HttpResponse
from reconciler.base.state_dir import home_of
from reconciler.manifests import fast_validate
from reconciler.manifests.checked_files import CheckedFile
from reconciler.operations.session import Session
from reconciler.operations.watch import loop as watch_loop
from reconciler.operations.watch.loop import run_pass
from reconciler.operations.watch.source import KeptSettings
from reconciler.operations.watch.state import Checkout, LoopCache, Pass, Result
from reconciler.training_service.state.records import JobState
from tests.support.fault_proxy import FaultProxy, Request
from tests.support.github_server import GitHubServer
from tests.support.held_service import HeldService
from tests.support.in_memory import Commands
from tests.support.repository import Repository
from tests.support.waiting import PATIENCE, until
from tests.support.watching import Watch, watching


@pytest.fixture
def service(repository: Repository) -> Iterator[HeldService]:
    """Return the service of the repository's home; it runs no submitted job."""
    with HeldService(repository.home).running() as running:
        yield running


def saved(file: Path, text: str) -> None:
    """Save a file like an editor: write another file and rename it."""
    other = file.with_name(f".{file.name}.new")
    other.write_text(text)
    other.replace(file)


def of_machine(text: str, number: int) -> str:
    return text.replace("n1-standard-4", f"n1-standard-{number}")


def test_a_change_of_any_file_that_counts_is_a_submission(
    repository: Repository, service: HeldService
) -> None:
    manifest = repository.job("census")
    text = manifest.read_text()
    with watching(repository) as watch:
        watch.awaits("submitted", 1)
        saved(manifest, of_machine(text, 8))
        watch.awaits("submitted", 2)
        with (repository.root / "trainer/task.py").open("a") as code:
            code.write("# more\n")
        watch.awaits("submitted", 3)
        repository.write(
            "jobs/deeper/still/more.yaml", text.replace("census", "more").replace("../", "../../../")
        )
        name = watch.awaits("submitted", 4)["job"]
        assert name.startswith("more_")

        shutil.move(repository.root / "jobs", repository.root / "away")
        # Without git, a missing folder is a mistake; an empty folder means that the manifests were removed.
        (repository.root / "jobs").mkdir()
        watch.awaits("drift", kind="orphaned")
        (repository.root / "jobs").rmdir()
        shutil.move(repository.root / "away", repository.root / "jobs")
        saved(repository.root / "jobs/census.yaml", of_machine(text, 16))
        watch.awaits("submitted", 5)
        assert watch.end() == 0
    assert set(service.names().values()) == {1}
    assert service.names().total() == 5


def test_a_probable_mistake_is_told_once_and_stops_nothing(
    repository: Repository, service: HeldService
) -> None:
    manifest = repository.job("census")
    text = manifest.read_text()
    manifest.write_text(of_machine(text, 5))
    with watching(repository, "--resync", "1") as watch:
        told = watch.awaits("warning", pointer="/spec/workerPoolSpecs/0/machineSpec/machineType")
        assert (told["path"], told["line"] > 1) == ("jobs/census.yaml", True)
        assert "n1-standard-5" in told["message"]
        watch.awaits("submitted")
        watch.awaits_rest()
        assert watch.end() == 0
    assert len(watch.told("warning", pointer=told["pointer"])) == 1


def test_a_broken_manifest_is_told_once_with_its_place_and_stops_nothing_for_good(
    repository: Repository, service: HeldService
) -> None:
    manifest = repository.job("census")
    text = manifest.read_text()
    manifest.write_text(text.replace("replicaCount", "replicaCuont"))
    with watching(repository, "--resync", "1", "--listen", "127.0.0.1:0") as watch:
        told = watch.awaits("invalid", pointer="/spec/workerPoolSpecs/0/replicaCuont")
        assert (told["path"], told["line"] > 1) == ("jobs/census.yaml", True)
        watch.awaits_rest()
        assert watch.metrics()["reconciler_manifests_invalid"] == 1
        manifest.write_text(text)
        watch.awaits("submitted")
        watch.awaits("goes-on")
        assert len(watch.told("invalid", path="jobs/census.yaml")) == len(
            {str(event) for event in watch.told("invalid", path="jobs/census.yaml")}
        )
        watch.awaits_rest()
        assert watch.metrics()["reconciler_manifests_invalid"] == 0
        assert watch.end() == 0


def test_a_settings_file_that_is_away_for_a_moment_submits_nothing_again(
    repository: Repository, service: HeldService
) -> None:
    """An editor that saves, or a branch switch, causes this; the default settings would rename every job."""
    repository.job("census")
    config = repository.root / "reconciler.yaml"
    with watching(repository, "--resync", "1") as watch:
        watch.awaits("submitted")
        watch.awaits_rest()
        config.rename(config.with_name("away"))
        assert "is missing or empty" in watch.awaits("invalid")["message"]
        watch.awaits_rest()
        config.with_name("away").rename(config)
        watch.awaits("goes-on")
        watch.awaits_rest()
        assert watch.end() == 0
        assert len(watch.told("invalid")) == 1
    assert service.names().total() == 1


def test_a_limit_is_told_once_and_tried_again_when_files_change(
    repository: Repository, service: HeldService
) -> None:
    config = repository.root / "reconciler.yaml"
    settings = config.read_text()
    config.write_text(settings + "limits: {submissions: 1}\n")
    repository.job("one")
    repository.job("two")
    with watching(repository, "--resync", "1", "--listen", "127.0.0.1:0") as watch:
        assert "submissions" in watch.awaits("refused")["message"]
        watch.awaits_rest()
        assert watch.metrics()["reconciler_refused"] == 1
        assert len(watch.told("refused")) == 1
        assert service.names().total() == 0
        saved(config, settings)
        watch.awaits("submitted", 2)
        watch.awaits_rest()
        assert watch.metrics()["reconciler_refused"] == 0
        assert watch.end() == 0


def test_health_and_metrics_are_for_programs_of_this_machine(
    repository: Repository, service: HeldService
) -> None:
    repository.job("census")
    with watching(repository, "--listen", "127.0.0.1:0") as watch:
        watch.awaits("submitted")
        watch.awaits_rest()
        status, text = watch.get("/healthz")
        assert (status, text[:3]) == (200, "ok:")
        told = watch.metrics()
        assert told["reconciler_submissions_total"] == 1
        assert told["reconciler_passes_total succeeded"] >= 2
        assert told["reconciler_jobs QUEUED"] == 1
        assert told["reconciler_jobs RUNNING"] == 0
        assert (
            told["reconciler_last_success_timestamp_seconds"]
            == told["reconciler_last_pass_timestamp_seconds"]
        )
        assert watch.get("/healthz", Host="evil.example")[0] == 403
        assert watch.get("/metrics", Origin="http://evil.example")[0] == 403
        assert watch.get("/else")[0] == 404  # pages need a link and its cookie
        assert watch.end(signal.SIGINT) == 0


def test_the_service_is_started_again_where_it_is_needed_and_else_left_alone(repository: Repository) -> None:
    (repository.root / "jobs").mkdir()
    with watching(repository, "--resync", "1") as watch:
        watch.awaits("pass", 4)
        first = repository.service()["pid"]
        repository.run("serve", "--stop")
        watch.awaits_rest()
        assert not (repository.home / "service.json").exists(), "a service that rests is not woken"
        repository.job("census")
        watch.awaits("submitted")
        second = repository.service()["pid"]
        os.kill(second, signal.SIGKILL)
        until(lambda: _pid(repository) not in (None, first, second))
        watch.awaits_rest()
        assert watch.end() == 0
    assert len(repository.states()) == 1


def _pid(repository: Repository) -> int | None:
    """Return the process ID in the service's file, or None while the file is being rewritten."""
    try:
        pid: int = repository.service()["pid"]
    except (OSError, ValueError):
        return None
    return pid


@contextmanager
def ended_in_a_submission(
    repository: Repository, service: HeldService
) -> Iterator[tuple[Watch, threading.Event]]:
    """Yield a `watch` that got a signal while a create's answer is held until the event."""
    made, go_on = threading.Event(), threading.Event()

    def hold(request: Request, answered: bool) -> None:
        if answered and request.method == "POST" and "customJobs" in request.target:
            made.set()
            assert go_on.wait(PATIENCE)

    with FaultProxy(service.url).running() as proxy:
        proxy.watch(hold)
        service.found_at(proxy.url)
        with watching(repository) as watch:
            assert made.wait(PATIENCE)
            watch.process.send_signal(signal.SIGTERM)
            yield watch, go_on


def test_a_signal_ends_it_after_the_submission_under_way(
    repository: Repository, service: HeldService
) -> None:
    repository.job("one")
    repository.job("two")
    with ended_in_a_submission(repository, service) as (watch, go_on):
        go_on.set()
        assert watch.end_of() == 0
        assert len(watch.told("submitted")) == 1
        assert watch.told("ending")
    assert service.names().total() == 1
    (claim,) = service.claims()
    assert claim["state"] == "bound"
    assert not [path for path in repository.home.rglob("*") if "tmp" in path.name]


def test_a_second_signal_ends_it_at_once(repository: Repository, service: HeldService) -> None:
    repository.job("one")
    with ended_in_a_submission(repository, service) as (watch, go_on):
        # The kernel may deliver a signal that arrives before the first is handled to another thread, and the
        # main thread waits on; people press the keys again.
        until(lambda: watch.process.send_signal(signal.SIGINT) or watch.process.poll() is not None)
        assert watch.process.returncode in (-signal.SIGTERM, -signal.SIGINT)
        assert "Traceback" not in "".join(watch.lines)
        go_on.set()


class Origin:
    """A watched bare repository, and a clone to push to it from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "origin.git"
        self.url = f"file://{self.folder}"
        self.clone = Repository(folder / "clone")
        self.clone.git("init", "-q", "-b", "main")
        self.clone.git("init", "-q", "--bare", "-b", "main", str(self.folder))

    def push(self, github: GitHubServer, *options: str) -> str:
        """Commit all files, push `main`, and make the commit known to GitHub; return its SHA."""
        self.clone.git("add", "-A")
        self.clone.git("commit", "-q", "-m", "more", *options)
        sha = self.clone.git("rev-parse", "HEAD")
        github.commits.add(sha)
        self.clone.git("push", "-q", "--force", str(self.folder), "main")
        return sha


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin(tmp_path)


def test_a_branch_is_fetched_and_its_commits_are_told(
    repository: Repository, service: HeldService, origin: Origin
) -> None:
    manifest = origin.clone.job("census")
    text = manifest.read_text()
    with (
        GitHubServer(tokens={"t0ken": "write"}).running() as github,
        GitHubServer().running() as elsewhere,
    ):
        settings = (origin.clone.root / "reconciler.yaml").read_text()
        saved(
            origin.clone.root / "reconciler.yaml",
            f"{settings}github: {{repository: {github.repository}, apiUrl: '{elsewhere.url}'}}\n",
        )
        first = origin.push(github)
        remote = ("--remote", origin.url, "--interval", "1", "--resync", "2", "--listen", "127.0.0.1:0")
        with watching(repository, *remote, GITHUB_TOKEN="t0ken", GITHUB_API_URL=github.url) as watch:
            watch.awaits("submitted", commit=first)
            until(lambda: "reconciler/local/census" in _contexts(github, first))

            manifest.write_text(of_machine(text, 8))
            rewritten = origin.push(github, "--amend")
            watch.awaits("submitted", commit=rewritten)
            until(lambda: "reconciler/local/census" in _contexts(github, rewritten))

            origin.clone.git("push", "-q", str(origin.folder), "main:other")
            origin.clone.git("--git-dir", str(origin.folder), "update-ref", "-d", "refs/heads/main")
            assert "refs/heads/main" in watch.awaits("not-fetched")["message"]
            watch.awaits("pass", len(watch.told("pass")) + 1)
            assert watch.metrics()["reconciler_fetch_failures_total"] >= 1
            assert not watch.told("invalid"), "what was fetched last goes on"

            manifest.write_text(of_machine(text, 16))
            watch.awaits("submitted", commit=origin.push(github))
            assert watch.end() == 0
            assert "t0ken" not in "".join(watch.lines)
        assert github.violations == []
        assert not elsewhere.requests, "the branch must not say where the token goes"
    assert set(service.names().values()) == {1}
    assert service.names().total() == 3


def test_token_in_a_file_is_read_at_each_pass(
    repository: Repository, service: HeldService, origin: Origin, tmp_path: Path
) -> None:
    """An App's token lasts an hour: another program replaces the file, and GitHub forgets the old token."""
    manifest = origin.clone.job("census")
    text = manifest.read_text()
    file = tmp_path / "token"
    with GitHubServer(tokens={"first-t0ken": "write"}).running() as github:
        with (origin.clone.root / "reconciler.yaml").open("a") as settings:
            settings.write(f"github: {{repository: {github.repository}}}\n")
        first = origin.push(github)
        remote = ("--remote", origin.url, "--interval", "1", "--resync", "1")
        environ = {"GITHUB_TOKEN_FILE": str(file), "GITHUB_TOKEN": "0ther", "GITHUB_API_URL": github.url}
        with watching(repository, *remote, **environ) as watch:
            watch.awaits("submitted", commit=first)
            assert f'GITHUB_TOKEN_FILE names "{file}"' in watch.awaits("not-kept")["message"]
            assert github.requests == []

            saved_for_its_owner(file, "first-t0ken\n")
            until(lambda: "reconciler/local/census" in _contexts(github, first))

            github.tokens = {"second-t0ken": "write"}
            saved_for_its_owner(file, "second-t0ken\n")
            manifest.write_text(of_machine(text, 8))
            second = origin.push(github)
            until(lambda: "reconciler/local/census" in _contexts(github, second))
            assert watch.end() == 0
            assert "t0ken" not in "".join(watch.lines)


def saved_for_its_owner(file: Path, text: str) -> None:
    """Replace a file by one that nobody else can read, as a program that renews a token does."""
    other = file.with_name(f".{file.name}.new")
    other.touch(0o600)
    other.write_text(text)
    other.replace(file)


def test_where_nothing_says_githubs_address_a_branch_does_not_either(
    repository: Repository,
    service: HeldService,
    origin: Origin,
) -> None:
    """The reconciler asks api.github.com instead of the branch's address; it can't be reached here."""
    origin.clone.job("census")
    with GitHubServer(tokens={"t0ken": "write"}).running() as elsewhere:
        with (origin.clone.root / "reconciler.yaml").open("a") as settings:
            settings.write(f"github: {{repository: {elsewhere.repository}, apiUrl: '{elsewhere.url}'}}\n")
        origin.push(elsewhere)
        environ = {"GITHUB_TOKEN": "t0ken", "GITHUB_API_URL": "", "HTTPS_PROXY": "http://127.0.0.1:1"}
        with watching(repository, "--remote", origin.url, **environ) as watch:
            assert "api.github.com" in watch.awaits("not-kept")["message"]
            assert watch.end() == 0
        assert not elsewhere.requests


@pytest.mark.usefixtures("service")
def test_an_error_of_the_machine_is_a_failed_pass_and_posts_no_status(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = repository.job("census")
    with GitHubServer(tokens={"t0ken": "write"}).running() as github:
        with (repository.root / "reconciler.yaml").open("a") as settings:
            settings.write(f"github: {{repository: {github.repository}, apiUrl: '{github.url}'}}\n")
        repository.git("init", "-q")
        repository.git("add", "-A")
        repository.git("commit", "-q", "-m", "one")
        sha = repository.git("rev-parse", "HEAD")
        github.commits.add(sha)
        monkeypatch.setenv("GITHUB_TOKEN", "t0ken")
        monkeypatch.setenv("GITHUB_API_URL", github.url)
        monkeypatch.chdir(repository.root)

        def turn() -> Pass:
            return run_pass(Checkout(repository.root, sha, os.environ, None), LoopCache(), None)

        with monkeypatch.context() as broken:
            opened = os.open

            def failing(path: Any, *more: Any, **named: Any) -> int:
                if path == "census.yaml":
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                return opened(path, *more, **named)

            broken.setattr(os, "open", failing)
            failed = turn()
        assert failed.result is Result.FAILED
        assert failed.error is not None
        assert failed.error.message == "jobs/census.yaml can't be read: Too many open files"
        assert not github.statuses
        # The commit gets a status about a real mistake.
        manifest.write_text("kind: [\n")
        repository.git("commit", "-q", "-a", "--amend", "-m", "two")
        sha = repository.git("rev-parse", "HEAD")
        github.commits.add(sha)
        assert turn().result is Result.INVALID
        assert [status["state"] for status in github.statuses[sha]] == ["error"]


def _contexts(github: GitHubServer, sha: str) -> set[str]:
    return {status["context"] for status in github.statuses.get(sha, [])}


class Killed(BaseException):
    """The death of the process."""


@pytest.mark.fault(30)
def test_after_days_without_a_pass_the_next_ones_converge(
    repository: Repository, service: HeldService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository.root)
    for name in ("one", "two", "three"):
        repository.job(name)
    checkout = Checkout(repository.root, "", os.environ, None)
    send = DirectTransport.send

    def killed(transport: DirectTransport, request: HttpRequest) -> HttpResponse:
        answer = send(transport, request)
        if request.method == "POST" and "customJobs" in request.url:
            raise Killed
        return answer

    with monkeypatch.context() as faulty:
        faulty.setattr(DirectTransport, "send", killed)
        with pytest.raises(Killed):
            run_pass(checkout, LoopCache(), None)
    assert [claim["state"] for claim in service.claims()] == ["pending"]

    service.ahead += timedelta(days=9)
    turn = run_pass(checkout, LoopCache(), None)
    assert turn.result is Result.SUCCEEDED
    assert set(service.names().values()) == {1}
    assert service.names().total() == 3
    assert {claim["state"] for claim in service.claims()} == {"bound"}


class Loop:
    """The passes of a single loop, and its requests to the service."""

    def __init__(self, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[str] = []
        self.before: Pass | None = None
        self.cache = LoopCache()
        self.checkout = Checkout(repository.root, "", os.environ, None, KeptSettings().read)
        send = DirectTransport.send

        def noted(transport: DirectTransport, request: HttpRequest) -> HttpResponse:
            self.requests.append(
                f"{request.method} {urlsplit(request.url).path} {urlsplit(request.url).query}"
            )
            return send(transport, request)

        monkeypatch.setattr(DirectTransport, "send", noted)

    def turn(self) -> Pass:
        self.requests.clear()
        self.before = run_pass(self.checkout, self.cache, self.before)
        assert self.before.error is None, self.before.error
        return self.before


@pytest.fixture
def loop(repository: Repository, service: HeldService, monkeypatch: pytest.MonkeyPatch) -> Loop:
    """Return an up-to-date loop with three submitted jobs that go on running."""
    for name in ("one", "two", "three"):
        repository.job(name)
    made = Loop(repository, monkeypatch)
    for _ in range(3):
        made.turn()
    assert service.names().total() == 3
    return made


def all_succeed(service: HeldService) -> None:
    store = service.store
    for job in store.unfinished():
        store.move(job.id, JobState.RUNNING, only_from={JobState.QUEUED}, at=store.now())
        store.move(job.id, JobState.SUCCEEDED, only_from={JobState.RUNNING}, at=store.now())


LISTINGS = ("/o ", "/customJobs ", "/hyperparameterTuningJobs ", "/trainingPipelines ", "/jobs ")


class TestPasses:
    def test_without_a_change_each_page_is_asked_for_once(self, loop: Loop, service: HeldService) -> None:
        turn = loop.turn()
        assert turn.live, "the jobs go on"
        listed = [request for request in loop.requests if any(part in request for part in LISTINGS)]
        assert len(listed) == 7, "the summary, the genesis, the claims, and the jobs of four collections"
        assert len({*loop.requests}) == len(loop.requests)
        assert len(loop.requests) == 12, "and the service's health, images, places, buckets, and its bucket"

        all_succeed(service)
        for _ in range(3):
            turn = loop.turn()
        assert turn.at_rest
        assert loop.turn() is turn
        assert len({*loop.requests}) == len(loop.requests) == 8, "a service that rests is only looked at"
        assert {request.partition(" ")[0] for request in loop.requests} == {"GET"}

    def test_full_look_is_made_once_an_hour_and_not_while_a_local_service_rests(
        self, loop: Loop, service: HeldService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = Session.ports.func
        ports = property(lambda session: replace(made(session), least_history=0))
        monkeypatch.setattr(Session, "ports", ports)

        def is_full() -> bool:
            loop.turn()
            listed = [unquote_plus(request) for request in loop.requests if "/customJobs " in request]
            return any("state!=" not in request and "reconciler-key" not in request for request in listed)

        assert [is_full() for _ in range(3)] == [True, False, False]
        with monkeypatch.context() as later:
            later.setattr(watch_loop, "FULL_AFTER", timedelta(seconds=-1))
            assert [is_full() for _ in range(2)] == [True, True]
        assert not is_full()
        all_succeed(service)
        for _ in range(3):
            loop.turn()
        monkeypatch.setattr(watch_loop, "FULL_AFTER", timedelta(seconds=-1))
        assert not is_full()

    def test_only_manifests_with_new_content_are_checked(
        self, loop: Loop, repository: Repository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        check, checked = fast_validate.check_files, list[bytes]()

        def noting(
            contents: dict[bytes, bytes], filled: frozenset[str], *, with_identities: bool
        ) -> dict[bytes, CheckedFile]:
            checked.extend(contents.values())
            return check(contents, filled, with_identities=with_identities)

        monkeypatch.setattr("reconciler.manifests.validate.check_files", noting)
        loop.turn()
        assert checked == []
        file = repository.job("two", args=["--other"])
        loop.turn()
        assert checked == [file.read_bytes()]
        loop.turn()
        assert checked == [file.read_bytes()]

    def test_changes_of_manifests_code_and_settings_are_seen(
        self, loop: Loop, repository: Repository, service: HeldService
    ) -> None:
        repository.job("two", args=["--other"])
        loop.turn()
        assert service.names().total() == 4
        repository.write("trainer/task.py", "# other code\n")
        loop.turn()
        assert service.names().total() == 7
        for _ in range(3):
            before = loop.turn()
        assert loop.turn().plan is before.plan, "nothing was decided anew"
        with (repository.root / "reconciler.yaml").open("a") as settings:
            settings.write("limits: {submissions: 1}\n")
        assert loop.turn().plan is not before.plan

    def test_what_fails_leaves_nothing_wrong_behind(
        self, loop: Loop, service: HeldService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        all_succeed(service)
        send = DirectTransport.send

        def away(transport: DirectTransport, request: HttpRequest) -> HttpResponse:
            if "/jobs" in request.url:
                raise ServiceError("away")
            return send(transport, request)

        with monkeypatch.context() as faulty:
            faulty.setattr(DirectTransport, "send", away)
            failed = run_pass(loop.checkout, loop.cache, loop.before)
            assert failed.result is Result.FAILED
        loop.before = failed
        for _ in range(3):
            turn = loop.turn()
        assert turn.at_rest
        assert turn.after is not None
        assert turn.after.observed is not None
        assert {str(run.state) for run in turn.after.observed.runs} == {"SUCCEEDED"}

    def test_what_is_gone_is_forgotten(self, loop: Loop, repository: Repository) -> None:
        (repository.root / "jobs/two.yaml").unlink()
        loop.turn()
        assert len(loop.cache.manifests) == 2


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
