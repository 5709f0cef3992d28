"""Hostile repository under every command: the kernel's record of programs run and addresses reached."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from reconciler.base.state_dir import OLD_HOME, location_of
from reconciler.manifests.settings import load_config
from reconciler.model.claim import Claim, ClaimId, ClaimState
from reconciler.model.naming import label_of
from reconciler.operations.load_desired import load_desired
from reconciler.operations.session import open_session
from tests.support.commands import COMMANDS
from tests.support.hostile_repository import HostileRepository, is_plumbing
from tests.support.raw_server import RawServer, answer
from tests.support.repository import Repository, Result
from tests.support.tls import server_tls
from tests.support.traced import STRACE, Traced, traced
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.skipif(STRACE is None, reason="`make adversary` installs strace")

PROGRAM = str(Path(sys.executable).with_name("reconciler"))
GITHUB_TOKEN = "ghs_AdversaryCanary0123456789abcdefghijkl"
GOOGLE_SECRET = "ya29.AdversaryCanary0123456789abcdefghijkl"


class Victim:
    """User who has checked out the adversary's repository and runs commands in it.

    Attributes:
        hostile: The checkout.
        recorder: The server that the checkout's settings and its `service.json` name.
    """

    def __init__(self, folder: Path, environments: Path, recorder: RawServer, *, with_home: bool) -> None:
        self.hostile = HostileRepository(folder, environments, recorder.url, with_home=with_home)
        self.recorder = recorder
        self._folder = folder

    @property
    def repository(self) -> Repository:
        return self.hostile.repository

    def runs(self, command: str, *, without: tuple[str, ...] = (), **more: str) -> Traced:
        """Run a command with tokens in the environment, and check the rules for every command."""
        credentials = self._folder / "user" / "gcloud.json"
        credentials.parent.mkdir(exist_ok=True)
        credentials.write_text(f'{{"type": "authorized_user", "refresh_token": "{GOOGLE_SECRET}"}}')
        environ = {
            **os.environ,
            "HOME": str(credentials.parent),
            "GOOGLE_APPLICATION_CREDENTIALS": str(credentials),
            "GITHUB_TOKEN": GITHUB_TOKEN,
            "GITHUB_REPOSITORY": "acme/models",
            **more,
        }
        for name in without:
            del environ[name]
        goes_on = command.split()[0] in ("watch", "serve", "open") and "--stop" not in command
        done = traced(
            [PROGRAM, *command.split()],
            self._folder / "traces",
            cwd=self.repository.root,
            environ=environ,
            enough=(lambda printed: self._is_up(command, printed, environ)) if goes_on else None,
            settle=lambda: self.stop(more),
        )
        assert "Traceback" not in done.err + done.out, done.err
        assert not self.hostile.trace.exists(), command
        assert self.recorder.connections == 0, command
        assert not done.sends(GITHUB_TOKEN), command
        assert not done.sends(GOOGLE_SECRET), command
        return done

    def _is_up(self, command: str, printed: str, environ: Mapping[str, str]) -> bool:
        """Return True once a long-running command has finished its start-up work."""
        if command == "serve":
            return (location_of(self.repository.root, environ) / "service.json").exists()
        if command.startswith("open"):
            return "link=" in printed
        return "invalid" in printed or "SUCCEEDED" in printed

    def stop(self, environ: dict[str, str]) -> None:
        """End the training service, for which strace waits."""
        self.run("serve", "--stop", **environ)

    def run(self, *arguments: str, **environ: str) -> Result:
        """Run a command untraced, as users do: `python -m` would put the checkout on Python's path."""
        done = subprocess.run(
            [PROGRAM, *arguments],
            cwd=self.repository.root,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def recorder() -> Iterator[RawServer]:
    with RawServer([answer()], server_tls()).running() as server:
        yield server


def opened_below(folder: Path, done: Traced) -> set[str]:
    """Return the names by which a command opened the folder or its files, except git's own comparisons."""
    names = {name for name in done.opened_but_by(is_plumbing) if folder.name in Path(name).parts}
    return {name for name in names if Path(name).is_absolute() or (folder.parent / name).exists()}


STARTS_SERVICE = ("cancel", "env", "init", "report", "resolve", "run", "serve")
"""Commands that may start the training service, besides those that train."""


@pytest.mark.parametrize("is_archive", [False, True], ids=["clone", "archive"])
def test_commands_that_do_not_train_start_no_job_and_reach_the_service_alone(
    tmp_path: Path, environments: Path, wheelhouse: Path, recorder: RawServer, is_archive: bool
) -> None:
    """Check also that they don't read the home that the repository brings."""
    victim = Victim(tmp_path, environments, recorder, with_home=True)
    home, brought = victim.repository.home, victim.repository.root / OLD_HOME
    assert (brought / "state.db").exists()
    if is_archive:
        shutil.rmtree(victim.repository.root / ".git")
    for command in COMMANDS:
        name = command.split()[0]
        for environment in ("local", "prod"):
            # With a token in the environment, the checkout's `apiUrl` stops apply, report and watch.
            done = victim.runs(command, RECONCILER_ENV=environment)
            assert done.err.count(f"{brought} is ignored") == 1, (command, done.err)
            assert "mv " not in done.err, (command, done.err)
            assert not opened_below(brought, done), command
            services = [words for words in done.programs[2:] if not is_plumbing(words)]
            if name == "run":  # the program that the person names, and its proxy
                proxy = ["-P", "-m", "reconciler.training_service.runner.proxy_server"]
                services = [words for words in services if words != ["true"] and words[1:] != proxy]
            assert all(words[1:4] == ["-P", "-m", "reconciler.training_service"] for words in services), (
                services
            )
            assert not services or name in STARTS_SERVICE or command.endswith("--adopt"), command
            assert len(services) <= 1, services
            assert done.addresses <= {("127.0.0.1", port) for _, port in done.addresses}, done.addresses
            assert len(done.addresses) <= len(services), (command, done.addresses)
            if environment == "prod" and name in ("apply", "cancel", "logs", "plan", "report", "resolve"):
                assert done.code == 3 or "--base" in command, (command, done.err)
            assert not victim.repository.starts.exists(), command
            assert not [*home.glob("runs/*")], command


@pytest.mark.parametrize("command", ["apply --wait", "watch", "resolve census --resubmit"])
def test_only_jobs_that_manifests_name_are_trained(
    command: str, tmp_path: Path, environments: Path, wheelhouse: Path, recorder: RawServer
) -> None:
    victim = Victim(tmp_path, environments, recorder, with_home=False)
    home = tmp_path / "outside"
    home.mkdir(mode=0o700)
    (home / "environments").symlink_to(environments)
    variables = {"RECONCILER_HOME": str(home), "RECONCILER_ENV": "local"}
    if command.startswith("resolve"):
        refuse_submission(victim, "census", variables)
    done = victim.runs(command, without=("GITHUB_TOKEN",), **variables)
    jobs = victim.run("status", "--format", "json", **variables).json["jobs"]
    assert {job["baseName"]: job["state"] for job in jobs} == {"asleep": None, "census": "SUCCEEDED"}
    assert victim.repository.starts.read_text().splitlines() == ["start ['--epochs=1']"]
    strange = [words for words in done.programs if words[0].startswith(str(victim.repository.root))]
    assert not strange
    assert {address for address, _ in done.addresses} == {"127.0.0.1"}


def refuse_submission(victim: Victim, name: str, variables: dict[str, str]) -> None:
    """Write a claim that records the service's refusal of the job."""
    root = victim.repository.root
    config = load_config(root)
    environment = config.environment("local")
    with open_session(config, environment, {**os.environ, **variables}, start=True) as session:
        (job,) = (job for job in load_desired(config, environment, []).jobs if job.manifest.name == name)
        session.claims.prepare()
        claim = Claim(
            ClaimId(label_of(job.identity)),
            ClaimState.REJECTED,
            job.job_name,
            name,
            job.manifest.api_version,
            job.manifest.kind,
            error="refused",
        )
        assert session.claims.write(claim, 0)
    victim.stop(variables)


def test_traps_of_the_repository_run_for_a_careless_user(
    tmp_path: Path, environments: Path, wheelhouse: Path, recorder: RawServer
) -> None:
    victim = Victim(tmp_path, environments, recorder, with_home=False)
    root, trace = victim.repository.root, victim.hostile.trace
    careless: list[list[str]] = [
        ["git", "diff", "HEAD"],
        [sys.executable, "-c", "import yaml"],
        [sys.executable, "-m", "reconciler"],
        [str(root / "pip")],
    ]
    for command in careless:
        os.utime(root / "jobs" / "census.yaml", (1, 1))
        subprocess.run(command, cwd=root, capture_output=True, check=False, timeout=PATIENCE)
        assert trace.exists(), command
        trace.unlink()


def test_trace_shows_programs_connections_files_and_secrets(tmp_path: Path, recorder: RawServer) -> None:
    code = (
        "import socket, subprocess; subprocess.run(['true']); open('a-file', 'w').write('a-secret'); "
        f"socket.create_connection(('127.0.0.1', {recorder.port})).close()"
    )
    command = [sys.executable, "-c", code]
    done = traced(command, tmp_path / "traces", cwd=tmp_path, environ=dict(os.environ))
    assert ["true"] in done.programs
    assert ("127.0.0.1", recorder.port) in done.addresses
    assert "a-file" in done.opened
    assert done.sends("a-secret")
    assert not done.sends("another")
