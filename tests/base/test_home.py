"""The home: used only if this user made it, whatever a checkout brings."""

from __future__ import annotations

import io
import os
import pty
import pwd
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from held_service import HeldService
from repository import Repository
from waiting import PATIENCE, until

from reconciler.base.errors import ServiceError
from reconciler.base.http import HttpRequest
from reconciler.base.state_dir import MARK, Home, HomeError, check_mark, locate, prepare_home
from reconciler.base.state_dir_trust import accept, home_of, refuse_tracked
from reconciler.cli import arguments
from reconciler.google.embedded import ROOT, EmbeddedService, service_command
from reconciler.training_service.address import Address, UntrustedAddressError, read_address, write_address
from reconciler.training_service.contents import contents_of

GITHUB = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_REPOSITORY": "acme/jobs",
    "GITHUB_TOKEN": "t0ken",
    "GITHUB_API_URL": "http://127.0.0.1:9",
}
COMMANDS = (
    "apply",
    "cancel census",
    "env",
    "import --live",
    "import --live --adopt",
    "import jobs/census.yaml",
    "init",
    "init --claims",
    "logs census",
    "migrate --write",
    "open --no-browser",
    "plan",
    "plan --base HEAD",
    "render census",
    "report",
    "rerun census",
    "resolve census --resubmit",
    "run -- true",
    "serve",
    "serve --stop",
    "show census",
    "status",
    "tensorboard census",
    "validate",
    "validate --format github",
    "watch",
)


@pytest.fixture
def strange(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A repository whose home another user made: a job waits in it, and its manifest is suspended."""
    with monkeypatch.context() as stranger:
        stranger.setenv("XDG_STATE_HOME", str(tmp_path / "stranger"))
        (tmp_path / "stranger").mkdir()
        repository.job("census")
        with HeldService(repository.home).running():
            assert repository.run("apply").code == 0
    repository.job("census", reconcile="{suspend: true}")
    (repository.home / "environments").unlink()
    repository._environments = None  # so that no link of the test's comes back
    return repository


@pytest.fixture
def committed(strange: Repository) -> Repository:
    """The same, with the home in a commit."""
    commit_home(strange)
    return strange


def commit_home(repository: Repository) -> None:
    (repository.home / ".gitignore").unlink(missing_ok=True)
    (repository.home / MARK).unlink(missing_ok=True)
    repository.git("init", "-q")
    repository.git("add", "-A")
    repository.git("add", "-f", ".reconciler")
    repository.git("commit", "-qm", "a home")


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def assert_untouched(repository: Repository, command: str, reason: str) -> None:
    before = files_below(repository.root)
    refused = repository.run(*command.split(), **GITHUB)
    assert refused.code == 3, (command, refused)
    assert reason in refused.err, command
    assert "RECONCILER_HOME" in refused.err
    assert refused.out == ""
    assert files_below(repository.root) == before
    assert not repository.starts.exists()


def test_every_command_refuses_home_that_git_tracks(committed: Repository) -> None:
    for command in COMMANDS:
        assert_untouched(committed, command, "git tracks")


def test_every_command_refuses_home_that_another_user_made(strange: Repository) -> None:
    for command in COMMANDS:
        assert_untouched(strange, command, "`reconciler trust`")


def test_list_of_commands_is_whole() -> None:
    names = {*arguments.COMMANDS}
    assert {command.split()[0] for command in COMMANDS} == names - arguments._WITHOUT_HOME
    assert {"completion", "schema", "trust"} == arguments._WITHOUT_HOME


def test_command_ignores_committed_home_when_home_lies_outside(committed: Repository, tmp_path: Path) -> None:
    before = files_below(committed.home)
    outside = str(tmp_path / "outside")
    status = committed.run("status", "--format", "json", RECONCILER_HOME=outside)
    assert (status.code, [job["state"] for job in status.json["jobs"]]) == (0, [None])
    assert committed.run("apply", RECONCILER_HOME=outside).code == 0
    assert committed.run("serve", "--stop", RECONCILER_HOME=outside).code == 0
    assert files_below(committed.home) == before
    assert not committed.starts.exists()


# --- service.json ----------------------------------------------------------------------------------------


class Recorder:
    """A server that counts connections and answers none."""

    def __init__(self) -> None:
        self.connections = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]

    @contextmanager
    def listening(self) -> Iterator[Recorder]:
        thread = threading.Thread(target=self._accept)
        thread.start()
        try:
            yield self
        finally:
            self._socket.shutdown(socket.SHUT_RDWR)
            thread.join()
            self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            connection.close()


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with Recorder().listening() as made:
        yield made


def test_committed_service_json_gets_no_request(repository: Repository, recorder: Recorder) -> None:
    repository._environments = None
    repository.job("census")
    repository.home.mkdir()
    write_address(repository.home, Address(1, f"http://127.0.0.1:{recorder.port}", "t0ken", ""))
    commit_home(repository)
    for command in ("plan", "status", "logs census", "apply", "serve --stop"):
        assert repository.run(*command.split()).code == 3
        assert recorder.connections == 0


def linked(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


def piped(file: Path) -> None:
    file.unlink()
    os.mkfifo(file, 0o600)


SPOILED: dict[str, Callable[[Path], None]] = {
    "mode": lambda file: file.chmod(0o644),
    "link": linked,
    "pipe": piped,
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED.keys())
def test_service_json_that_others_could_write_gets_no_request(
    tmp_path: Path, recorder: Recorder, spoil: Callable[[Path], None]
) -> None:
    write_address(tmp_path, Address(1, f"http://127.0.0.1:{recorder.port}", "t0ken", ""))
    spoil(tmp_path / "service.json")
    assert_refused_address(tmp_path)
    assert recorder.connections == 0


def test_service_json_of_another_user_gets_no_request(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_address(tmp_path, Address(1, f"http://127.0.0.1:{recorder.port}", "t0ken", ""))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert_refused_address(tmp_path)
    assert recorder.connections == 0


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:PORT",
        "http://127.0.0.1:PORT/",
        "http://127.0.0.1:PORT@127.0.0.1:PORT",
        "http://u@127.0.0.1:PORT",
        "http://127.0.0.1",
        "https://127.0.0.1:PORT",
        "http://127.0.0.1.example.test:PORT",
        "http://127.1:PORT",
        "http://127.0.0.256:PORT",
        "http://0.0.0.0:PORT",
        "http://10.0.0.1:PORT",
        "http://127.0.0.1:0",
        "http://127.0.0.1:65536",
        "http://127.0.0.1:PORT\n",
        "http://[::ffff:127.0.0.1]:PORT",
        "",
    ],
)
def test_service_json_with_url_beyond_loopback_gets_no_request(
    tmp_path: Path, recorder: Recorder, url: str
) -> None:
    write_address(tmp_path, Address(1, url.replace("PORT", str(recorder.port)), "t0ken", ""))
    assert_refused_address(tmp_path)
    assert recorder.connections == 0


def test_service_json_with_token_that_ends_a_header_is_refused(tmp_path: Path) -> None:
    write_address(tmp_path, Address(1, "http://127.0.0.1:9", "t0ken\r\nHost: other", ""))
    assert_refused_address(tmp_path)


def assert_refused_address(home: Path) -> None:
    with pytest.raises(UntrustedAddressError):
        read_address(home)
    with (
        EmbeddedService(home, start=False, checkout=None) as service,
        pytest.raises(ServiceError, match=r"service\.json isn't used: it"),
    ):
        service.send(HttpRequest("GET", f"{ROOT}v1/projects"))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://127.255.0.9:65535", "http://[::1]:80"])
def test_service_json_with_loopback_url_is_used(tmp_path: Path, url: str) -> None:
    write_address(tmp_path, Address(1, url, "t0ken", ""))
    found = read_address(tmp_path)
    assert found is not None
    assert found.url == url


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "[" * 100_000])
def test_broken_service_json_counts_as_no_service(tmp_path: Path, text: str) -> None:
    (tmp_path / "service.json").write_text(text)
    (tmp_path / "service.json").chmod(0o600)
    assert read_address(tmp_path) is None


# --- The mark --------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A git repository with a home that the product made."""
    root = tmp_path / "made"
    root.mkdir()
    (root / "README").write_text("")
    git(root, "init", "-q")
    git(root, "add", "README")
    git(root, "commit", "-qm", "one")
    prepare_home(home_of(root, os.environ), os.environ)
    (root / ".reconciler" / "state.db").write_text("")
    return root


def git(folder: Path, *arguments: str) -> None:
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    settings = ("user.name=a", "user.email=a@example.test", "protocol.file.allow=always")
    options = [word for setting in settings for word in ("-c", setting)]
    subprocess.run(["git", *options, *arguments], cwd=folder, env=environ, check=True, capture_output=True)


def assert_refused(root: Path, reason: str, **environ: str) -> None:
    with pytest.raises(HomeError, match=reason):
        home_of(root, {**os.environ, **environ})


def test_new_home_is_used_and_closed_to_others(made: Path) -> None:
    home = home_of(made, os.environ)
    assert home.path == made / ".reconciler"
    assert home.path.stat().st_mode & 0o777 == 0o700
    state = Path(os.environ["XDG_STATE_HOME"], "reconciler")
    assert [path.stat().st_mode & 0o777 for path in (state, state / "key")] == [0o700, 0o600]


def test_home_of_copied_checkout_is_refused(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "copy")
    assert_refused(tmp_path / "copy", "no mark")


def test_home_of_moved_checkout_is_refused_until_it_is_back(made: Path, tmp_path: Path) -> None:
    made.rename(tmp_path / "moved")
    assert_refused(tmp_path / "moved", "no mark")
    (tmp_path / "moved").rename(made)
    home_of(made, os.environ)


def test_copy_in_place_of_its_original_is_refused(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "copy")
    made.rename(tmp_path / "original")
    (tmp_path / "copy").rename(made)
    assert_refused(made, "no mark")


@pytest.mark.parametrize("text", [b"", b"reconciler home 1\n", b"reconciler home 1\n" + b"0" * 64])
def test_home_with_forged_mark_is_refused(made: Path, text: bytes) -> None:
    (made / ".reconciler" / MARK).write_bytes(text)
    assert_refused(made, "no mark")


def test_home_with_link_as_mark_is_refused(made: Path) -> None:
    mark = made / ".reconciler" / MARK
    mark.rename(made / "mark")
    mark.symlink_to(made / "mark")
    assert_refused(made, "no mark")


def test_home_of_another_user_is_refused(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert_refused(made, "another user")


def test_home_is_used_when_several_commands_make_it_at_once(made: Path) -> None:
    shutil.rmtree(made / ".reconciler")
    code = "import os; from pathlib import Path; from reconciler.base.state_dir import prepare_home; "
    code += "from reconciler.base.state_dir_trust import home_of; "
    code += "prepare_home(home_of(Path.cwd(), os.environ), os.environ)"
    command = [sys.executable, "-c", code]
    started = [subprocess.Popen(command, cwd=made, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    ends = [(process.communicate()[1], process.returncode) for process in started]
    assert ends == [("", 0)] * 6
    home_of(made, os.environ)
    assert sorted(path.name for path in (made / ".reconciler").iterdir()) == [".gitignore", MARK]


def test_preparing_home_writes_through_no_link(made: Path, tmp_path: Path) -> None:
    shutil.rmtree(made / ".reconciler")
    (made / ".reconciler").mkdir()
    (made / ".reconciler" / ".gitignore").symlink_to(tmp_path / "victim")
    with pytest.raises(HomeError):
        prepare_home(locate(made, os.environ), os.environ)
    assert not (tmp_path / "victim").exists()


# --- Git -------------------------------------------------------------------------------------------------


def add_home(root: Path, path: str = ".reconciler/state.db") -> None:
    (root / path).parent.mkdir(exist_ok=True)
    (root / path).touch()
    git(root, "add", "-f", path)


def split_index(root: Path) -> None:
    add_home(root)
    git(root, "update-index", "--split-index")


def index_of_version_4(root: Path) -> None:
    add_home(root, ".reconcile")  # the next path is kept as what it has more
    add_home(root)
    git(root, "update-index", "--index-version", "4")


def submodule(root: Path) -> None:
    shutil.rmtree(root / ".reconciler")
    git(root.parent, "clone", "-q", "made", "module")
    git(root, "submodule", "add", "-q", "-f", str(root.parent / "module"), ".reconciler")


TRACKED: dict[str, Callable[[Path], None]] = {
    "a file": add_home,
    "in other letters": lambda root: add_home(root, ".Reconciler/x"),
    "split index": split_index,
    "version 4": index_of_version_4,
    "submodule": submodule,
}


@pytest.mark.parametrize("track", TRACKED.values(), ids=TRACKED.keys())
def test_marked_home_is_refused_when_git_tracks_it(made: Path, track: Callable[[Path], None]) -> None:
    home_of(made, os.environ)
    track(made)
    assert_refused(made, "git tracks")
    assert_refused(made, "git tracks", GIT_LITERAL_PATHSPECS="1")
    with pytest.raises(HomeError, match="git tracks"):
        accept(locate(made, os.environ), os.environ)


def test_home_is_refused_when_git_tracks_it_below_folder_of_sparse_index(made: Path) -> None:
    add_home(made, "jobs/a")
    (made / "ml").mkdir()
    add_home(made, "ml/.reconciler/state.db")
    git(made, "commit", "-qm", "two")
    git(made, "sparse-checkout", "set", "--cone", "--sparse-index", "jobs")
    assert b".reconciler" not in (made / ".git" / "index").read_bytes()
    (made / "ml").mkdir()
    (made / "ml" / "reconciler.yaml").touch()
    prepare_home(locate(made / "ml", os.environ), os.environ)
    (made / "ml" / ".reconciler" / "state.db").touch()
    assert_refused(made / "ml", "git tracks")


def test_empty_home_is_refused_when_git_tracks_it_as_submodule(made: Path, tmp_path: Path) -> None:
    submodule(made)
    git(made, "commit", "-qm", "two")
    git(tmp_path, "clone", "-q", "made", "clone")
    assert not [*(tmp_path / "clone" / ".reconciler").iterdir()]
    assert_refused(tmp_path / "clone", "git tracks")


def test_home_in_linked_work_tree_is_refused_only_when_git_tracks_it(made: Path, tmp_path: Path) -> None:
    git(made, "worktree", "add", "-q", str(tmp_path / "linked"))
    prepare_home(home_of(tmp_path / "linked", os.environ), os.environ)
    home_of(tmp_path / "linked", os.environ)
    add_home(tmp_path / "linked")
    assert_refused(tmp_path / "linked", "git tracks")
    home_of(made, os.environ)


def test_home_below_top_of_repository_is_refused_when_git_tracks_it(made: Path) -> None:
    (made / "ml").mkdir()
    (made / "ml" / "reconciler.yaml").write_text("")
    prepare_home(home_of(made / "ml", os.environ), os.environ)
    home_of(made / "ml", os.environ)
    add_home(made, "ml/.reconciler/state.db")
    assert_refused(made / "ml", "git tracks")


def test_home_is_used_without_git_program_when_index_has_all_paths(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(made))
    home_of(made, os.environ)


def test_home_is_refused_when_git_can_not_answer(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (made / ".git" / "index").write_bytes(b"DIRC")
    assert_refused(made, "git doesn't say")
    monkeypatch.setenv("PATH", str(made))
    assert_refused(made, "git can't be run")


def test_mark_alone_decides_without_repository(tmp_path: Path) -> None:
    prepare_home(home_of(tmp_path, os.environ), os.environ)
    (tmp_path / ".reconciler" / "state.db").touch()
    home_of(tmp_path, os.environ)
    (tmp_path / ".reconciler" / MARK).unlink()
    assert_refused(tmp_path, "no mark")


def test_own_home_is_refused_while_branch_with_a_home_is_checked_out(made: Path) -> None:
    git(made, "checkout", "-qb", "stranger")
    add_home(made)
    git(made, "commit", "-qm", "two")
    git(made, "checkout", "-q", "-")
    home_of(made, os.environ)
    (made / ".reconciler" / "state.db").write_text("mine")
    git(made, "checkout", "-q", "-f", "stranger")
    assert_refused(made, "git tracks")
    git(made, "checkout", "-q", "-")
    home_of(made, os.environ)
    assert not (made / ".reconciler" / "state.db").exists()


def test_home_loses_its_mark_when_git_tracks_it(made: Path) -> None:
    home = locate(made, os.environ)
    add_home(made)
    assert_refused(made, "git tracks")
    git(made, "reset", "-q")
    assert_refused(made, "no mark")
    accept(home, os.environ)
    home_of(made, os.environ)


def test_home_is_refused_when_an_outer_repository_tracks_it(made: Path) -> None:
    """git checks out a branch's files through a repository that lies in its work tree."""
    outer = made.parent
    git(outer, "init", "-q")
    blob = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"  # the empty one
    place = f"{made.name}/.reconciler/gcs/bucket/package.tar.gz"
    git(outer, "update-index", "--add", "--cacheinfo", f"100644,{blob},{place}")
    assert_refused(made, "git tracks")
    git(outer, "rm", "-q", "--cached", place)
    assert_refused(made, "no mark")


def test_home_outside_the_checkout_keeps_its_mark_when_git_tracks_it(made: Path) -> None:
    add_home(made)
    with pytest.raises(HomeError, match="git tracks"):
        refuse_tracked(Home(made / ".reconciler", None), os.environ)
    assert (made / ".reconciler" / MARK).exists()


# --- A branch with a home, checked out while jobs wait --------------------------------------------------


STRANGERS = """
import pathlib
pathlib.Path({trace!r}).touch()
"""


@pytest.fixture
def waiting(repository: Repository) -> Repository:
    """A checkout with a queued job, and a branch `stranger` that tracks another package in its place."""
    repository.job("census")
    repository.git("init", "-q", "-b", "main")
    repository.git("add", "-A")
    repository.git("commit", "-qm", "one")
    with HeldService(repository.home).running():
        assert repository.run("apply").code == 0
    (package,) = repository.home.glob("gcs/*/**/*.tar.gz")
    own = package.read_bytes()
    package.write_bytes(strangers_package(own, repository.root.parent / "stranger-ran"))
    repository.git("checkout", "-qb", "stranger")
    repository.git("add", "-f", str(package))
    repository.git("commit", "-qm", "a package")
    repository.git("checkout", "-q", "main")
    package.parent.mkdir(parents=True, exist_ok=True)
    package.write_bytes(own)
    return repository


def strangers_package(own: bytes, trace: Path) -> bytes:
    """Return a package with the same files, whose trainer leaves a trace."""
    changed = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(own)) as found, tarfile.open(fileobj=changed, mode="w:gz") as made:
        for member in found.getmembers():
            file = found.extractfile(member)
            content = file.read() if file else b""
            if member.name.endswith("/task.py"):
                content = STRANGERS.format(trace=str(trace)).encode()
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return changed.getvalue()


def service_log(repository: Repository) -> str:
    log = repository.home / "service.log"
    return log.read_text() if log.exists() else ""


@contextmanager
def serving(repository: Repository) -> Iterator[None]:
    """Run the service that commands start, without their check of the home."""
    command = service_command(locate(repository.root, os.environ), stay=True)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


def test_queued_job_never_runs_the_package_of_a_branch(waiting: Repository) -> None:
    waiting._share_environments()
    (package,) = waiting.home.glob("gcs/*/**/*.tar.gz")
    own = package.read_bytes()
    trace = waiting.root.parent / "stranger-ran"
    waiting.git("checkout", "-q", "stranger")
    assert package.read_bytes() != own
    with serving(waiting):
        until(lambda: "no job begins" in service_log(waiting) or trace.exists())
        assert not trace.exists()
        assert not (waiting.home / MARK).exists()
        # git keeps the stranger's file, and tracks it no more: the home has no mark that stands for it.
        waiting.git("symbolic-ref", "HEAD", "refs/heads/main")
        waiting.git("reset", "-q")
        until(lambda: "no mark" in service_log(waiting) or trace.exists())
        assert not trace.exists()
        assert not waiting.starts.exists()
        assert waiting.run("status").code == 3
        package.write_bytes(own)
        accepted = waiting.run("trust", "--yes")
        assert (accepted.code, "jobs: 1 QUEUED" in accepted.out) == (0, True)
        until(waiting.starts.exists)
        assert waiting.run("apply", "--wait").code == 0
    assert list(waiting.states().values()) == ["SUCCEEDED"]
    assert service_log(waiting).count("git tracks") == 1
    assert not trace.exists()


# --- Where the home lies ---------------------------------------------------------------------------------


def test_link_as_home_is_refused(made: Path, tmp_path: Path) -> None:
    (made / ".reconciler").rename(tmp_path / "elsewhere")
    (made / ".reconciler").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HomeError, match="it is a symbolic link") as refused:
        home_of(made, os.environ)
    assert (
        f"if the link is yours, remove it and name the folder that it leads to: RECONCILER_HOME={tmp_path}"
        in (refused.value.hint)
    )
    with pytest.raises(HomeError, match="it is a symbolic link"):
        accept(locate(made, os.environ), os.environ)
    assert home_of(made, {**os.environ, "RECONCILER_HOME": str(tmp_path / "elsewhere")}).checkout is None


def test_named_home_inside_checkout_needs_mark(made: Path, tmp_path: Path) -> None:
    (made / "kept").mkdir()
    (made / "kept" / "state.db").touch()
    (tmp_path / "link").symlink_to(made)
    for named in (made / "kept", tmp_path / "link" / "kept", made / ".." / "made" / "kept"):
        assert_refused(made, "no mark", RECONCILER_HOME=str(named))
    assert_refused(made, "the checkout itself", RECONCILER_HOME=str(made))


def test_named_home_beyond_link_of_checkout_is_refused(made: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "home").mkdir(parents=True)
    (made / "link").symlink_to(tmp_path / "elsewhere")
    for named in (made / "link", made / "link" / "home"):
        assert_refused(made, "a link inside the checkout", RECONCILER_HOME=str(named))
    (tmp_path / "own").symlink_to(tmp_path / "elsewhere")
    for fine in (tmp_path / "own" / "home", made / ".." / "elsewhere" / "home"):
        assert home_of(made, {**os.environ, "RECONCILER_HOME": str(fine)}).checkout is None


def test_named_home_below_working_directory_that_is_no_checkout_needs_no_mark(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "state.db").touch()
    named = {**os.environ, "RECONCILER_HOME": str(tmp_path / "home")}
    assert home_of(tmp_path, named).checkout is None
    (tmp_path / "reconciler.yaml").touch()
    assert_refused(tmp_path, "no mark", RECONCILER_HOME=named["RECONCILER_HOME"])


def test_named_home_outside_needs_owner_and_mode_and_no_mark(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "state.db").touch()
    named = {"RECONCILER_HOME": str(outside)}
    assert home_of(made, {**os.environ, **named}) == (outside, None)
    for mode in (0o775, 0o757):
        outside.chmod(mode)
        with pytest.raises(HomeError, match="other users can write") as refused:
            home_of(made, {**os.environ, **named})
        assert f"chmod 700 {outside}" in refused.value.hint
    outside.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert_refused(made, "another user", **named)


def test_named_home_inside_another_checkout_needs_mark(made: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "kept").mkdir(parents=True)
    git(other, "init", "-q")
    named = {**os.environ, "RECONCILER_HOME": str(other / "kept")}
    prepare_home(home_of(made, named), named)
    (other / "kept" / "state.db").touch()
    home_of(made, named)
    (other / "kept" / MARK).unlink()
    assert_refused(made, f"no mark.* the checkout {other}", RECONCILER_HOME=str(other / "kept"))
    assert_refused(tmp_path, "no mark", RECONCILER_HOME=str(other / "kept"))
    accept(locate(made, named), named)
    home_of(made, named)
    git(other, "add", "-f", "kept")
    assert_refused(made, "git tracks", RECONCILER_HOME=str(other / "kept"))
    assert_refused(made, "the checkout itself", RECONCILER_HOME=str(other))
    (tmp_path / "outside").mkdir()
    (other / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "own").symlink_to(other / "link")
    for through in (other / "link", tmp_path / "own", tmp_path / "own" / "home"):
        assert_refused(made, f"through {other}/link, a link inside", RECONCILER_HOME=str(through))


def test_named_home_inside_unpacked_checkout_needs_mark(made: Path, tmp_path: Path) -> None:
    (tmp_path / "other" / "kept").mkdir(parents=True)
    (tmp_path / "other" / "reconciler.yaml").touch()
    (tmp_path / "other" / "kept" / "state.db").touch()
    assert_refused(made, "no mark", RECONCILER_HOME=str(tmp_path / "other" / "kept"))


def test_trust_accepts_old_home_inside_another_checkout(repository: Repository, tmp_path: Path) -> None:
    kept = tmp_path / "other" / "kept"
    kept.mkdir(parents=True)
    git(kept.parent, "init", "-q")
    (kept / "state.db").touch()
    (repository.root / "jobs").mkdir()
    named = {"RECONCILER_HOME": str(kept)}
    assert "`reconciler trust`" in repository.run("status", **named).err
    assert repository.run("trust", "--yes", **named).code == 0
    assert repository.run("validate", **named).code == 0


def test_repository_of_home_directory_asks_for_no_mark_that_it_could_not_get(
    made: Path, tmp_path: Path
) -> None:
    """The key lies in that repository too: nothing could be marked."""
    user = tmp_path / "user"
    (user / "kept").mkdir(parents=True)
    git(user, "init", "-q")
    (user / "kept" / "state.db").touch()
    environ = {"HOME": str(user), "RECONCILER_HOME": str(user / "kept")}
    assert home_of(made, environ).checkout is None
    assert_refused(made, "no mark", **environ)  # with the key outside it


class Folder(NamedTuple):
    owner: int
    group: int
    mode: int


OTHER = 4242


@pytest.mark.parametrize(
    ("folder", "user", "why"),
    [
        (Folder(1000, 1000, 0o755), 1000, ""),
        (Folder(0, 0, 0o755), 1000, ""),
        (Folder(0, 0, 0o1777), 1000, ""),
        (Folder(1000, 1000, 0o775), 1000, ""),
        (Folder(1000, OTHER, 0o775), 1000, "mode 0775"),
        (Folder(0, 0, 0o775), 1000, "mode 0775"),
        (Folder(1000, 1000, 0o777), 1000, "mode 0777"),
        (Folder(OTHER, 1000, 0o755), 1000, "uid 4242"),
        (Folder(OTHER, 1000, 0o1777), 1000, "uid 4242"),
        (Folder(OTHER, OTHER, 0o775), 0, ""),
        (Folder(OTHER, OTHER, 0o777), 0, "mode 0777"),
        (Folder(0, OTHER, 0o775), 0, "mode 0775"),
        (Folder(0, 0, 0o775), 0, ""),
    ],
)
def test_named_home_is_refused_where_another_user_can_exchange_it(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Folder, user: int, why: str
) -> None:
    """The kernel's answers stand in for folders that only root could make."""
    shared = tmp_path / "shared"
    (shared / "home").mkdir(parents=True)
    real, account = Path.stat, Account(user)

    def answered(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        status = real(path, follow_symlinks=follow_symlinks)
        fields = [*status]
        fields[0] = stat.S_IFDIR | 0o755
        fields[4] = 0
        if path == shared:
            fields[0], fields[4], fields[5] = stat.S_IFDIR | folder.mode, folder.owner, folder.group
        return os.stat_result(fields)

    monkeypatch.setattr(Path, "stat", answered)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: account)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    home = Home(shared / "missing", None)
    if not why:
        check_mark(home, os.environ)
        return
    with pytest.raises(HomeError, match="can replace it") as refused:
        check_mark(home, os.environ)
    assert f"{shared} " in refused.value.message
    assert why in refused.value.message
    assert f"chmod go-w {shared}" in refused.value.hint


class Account(NamedTuple):
    pw_gid: int


def test_every_folder_on_the_way_to_named_home_counts(made: Path, tmp_path: Path) -> None:
    """Others can exchange a link, too."""
    (tmp_path / "fine" / "home").mkdir(parents=True, mode=0o755)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "link").symlink_to(tmp_path / "fine")
    (tmp_path / "own").symlink_to(tmp_path / "shared" / "link")
    named = {"RECONCILER_HOME": str(tmp_path / "own" / "home")}
    home_of(made, {**os.environ, **named})
    (tmp_path / "shared").chmod(0o777)
    assert_refused(made, f"as {tmp_path}/shared is writable by others", **named)
    (tmp_path / "shared").chmod(0o1777)
    home_of(made, {**os.environ, **named})
    tmp_path.chmod(0o757)
    try:
        assert_refused(made, "is writable by others", RECONCILER_HOME=str(tmp_path / "not" / "yet"))
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("command", ["status", "trust"])
@pytest.mark.parametrize("place", ["repository", "elsewhere"])
def test_name_that_is_too_long_is_refused(
    repository: Repository, tmp_path: Path, command: str, place: str
) -> None:
    (tmp_path / place).mkdir(exist_ok=True)
    named = str(tmp_path / place / ("x" * 300) / "home")
    refused = repository.run(command, RECONCILER_HOME=named)
    assert refused.code == 3
    assert "File name too long" in refused.err


# --- The key ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [".reconciler", "../outside"])
def test_empty_home_of_another_user_or_open_to_others_is_refused(
    made: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner can exchange what is written into it later."""
    shutil.rmtree(made / ".reconciler")
    empty = (made / place).resolve()
    empty.mkdir()
    named = {} if place == ".reconciler" else {"RECONCILER_HOME": str(empty)}
    empty.chmod(0o777)
    with pytest.raises(HomeError, match="other users can write"):
        home_of(made, {**os.environ, **named})
    empty.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert_refused(made, "another user", **named)
    with pytest.raises(HomeError, match="another user"):
        prepare_home(locate(made, {**os.environ, **named}), {**os.environ, **named})
    assert [*empty.iterdir()] == []


def test_home_that_is_a_file_is_refused(made: Path) -> None:
    shutil.rmtree(made / ".reconciler")
    (made / ".reconciler").write_text("")
    assert_refused(made, "not a folder")


@pytest.mark.parametrize("home", ["", "/nowhere/at/all", "REPOSITORY"])
def test_message_names_reconciler_home_when_no_key_can_be_kept(
    repository: Repository, tmp_path: Path, home: str
) -> None:
    repository._environments = None
    repository.job("census", reconcile="{suspend: true}")
    variables = {"XDG_STATE_HOME": "", "HOME": home.replace("REPOSITORY", str(repository.root))}
    assert repository.run("validate", **variables).code == 0
    assert repository.run("plan", **variables).code == 0
    for prepare in (lambda: None, repository.home.mkdir):
        prepare()
        before = [*repository.root.rglob("*")]
        refused = repository.run("apply", **variables)
        assert refused.code == 3
        assert "no private key can be kept" in refused.err
        assert [*repository.root.rglob("*")] == before
    assert "set RECONCILER_HOME" in refused.err
    outside = str(tmp_path / "outside")
    assert repository.run("apply", **variables, RECONCILER_HOME=outside).code == 0
    assert repository.run("serve", "--stop", **variables, RECONCILER_HOME=outside).code == 0


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_key_that_others_can_read_proves_nothing(made: Path, mode: int) -> None:
    key = Path(os.environ["XDG_STATE_HOME"], "reconciler", "key")
    key.chmod(mode)
    try:
        assert_refused(made, "no private key")
    finally:
        key.chmod(0o600)
    home_of(made, os.environ)


# --- reconciler trust ------------------------------------------------------------------------------------


def test_trust_shows_content_and_accepts_home(strange: Repository) -> None:
    before = files_below(strange.home)
    shown = strange.run("trust")
    assert shown.code == 64
    assert "--yes" in shown.err
    assert "jobs: 1 QUEUED" in shown.out
    assert "gs://reconciler-staging: " in shown.out
    assert "environments: none" in shown.out
    assert "service.json: none" in shown.out
    assert files_below(strange.home) == before
    assert strange.run("status").code == 3
    accepted = strange.run("trust", "--yes")
    assert accepted.code == 0
    assert accepted.out.splitlines()[:-1] == shown.out.splitlines()
    assert strange.run("status").code == 0
    assert strange.run("trust").out.endswith("is already trusted\n")


def test_trust_never_accepts_home_that_git_tracks(committed: Repository) -> None:
    assert_untouched(committed, "trust --yes", "git tracks")


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_trust_asks_at_terminal(strange: Repository, answer: str, code: int) -> None:
    terminal, end = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "reconciler", "trust"],
            cwd=strange.root,
            stdin=end,
            stderr=end,
            stdout=subprocess.DEVNULL,
        )
        os.write(terminal, f"{answer}\n".encode())
        assert process.wait(60) == code
    finally:
        os.close(terminal)
        os.close(end)
    assert strange.run("status").code == (0 if code == 0 else 3)


def test_trust_has_nothing_to_do_for_empty_home_and_home_outside(
    repository: Repository, tmp_path: Path
) -> None:
    assert "is empty" in repository.run("trust").out
    repository.home.mkdir()
    repository.home.chmod(0o777)
    refused = repository.run("trust")
    assert (refused.code, refused.out) == (3, "")
    assert "other users can write to it" in refused.err
    outside = repository.run("trust", RECONCILER_HOME=str(tmp_path / "outside"))
    assert (outside.code, "needs no mark" in outside.out) == (0, True)


def test_home_of_version_before_goes_on_with_one_command_while_its_job_runs(repository: Repository) -> None:
    repository.job("census")
    repository.hold.touch()
    assert repository.run("apply").code == 0
    until(repository.starts.exists)
    (repository.home / MARK).unlink()  # that version made no mark
    repository.home.chmod(0o755)
    assert "`reconciler trust`" in repository.run("status").err
    accepted = repository.run("trust", "--yes")
    assert (accepted.code, accepted.err) == (0, "")
    assert "jobs: 1 RUNNING" in accepted.out
    assert "service.json: present" in accepted.out
    repository.hold.unlink()
    assert repository.run("apply", "--wait").code == 0
    assert list(repository.states().values()) == ["SUCCEEDED"]
    assert len(repository.starts.read_text().splitlines()) == 1


# --- Hostile homes, shown --------------------------------------------------------------------------------


def database(home: Path, *statements: str) -> None:
    with closing(sqlite3.connect(home / "state.db")) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def test_shown_text_is_inert(repository: Repository) -> None:
    evil = "\x1b[2J\n##[error]x\u202e"
    (repository.home / "gcs" / evil).mkdir(parents=True)
    database(repository.home, "CREATE TABLE jobs (state)", f"INSERT INTO jobs VALUES ('{evil}')")
    shown = repository.run("trust")
    assert shown.code == 64
    assert not any(char in shown.out for char in ("\x1b", "\u202e"))
    assert len(shown.out.splitlines()) == 5
    assert "##[" not in shown.out


def test_links_in_place_of_folders_are_shown_as_inert_text(repository: Repository) -> None:
    evil = "\x1b[2J\n##[error]x\u202e"
    for name in ("gcs", "environments", "state.db", evil):
        repository.home.mkdir(exist_ok=True)
        (repository.home / name).symlink_to("/" if name == "gcs" else evil)
    (repository.home / "runs").mkdir()
    (repository.home / "runs" / "1").symlink_to("/etc")
    shown = repository.run("trust")
    assert shown.code == 64
    assert 'symbolic link, not followed: "gcs" -> "/"' in shown.out
    assert 'symbolic link, not followed: "runs/1" -> "/etc"' in shown.out
    assert "jobs: unknown" in shown.out
    assert "buckets: unknown" in shown.out
    assert "environments: unknown" in shown.out
    assert not any(char in shown.out for char in ("\x1b", "\u202e"))
    assert "##[" not in shown.out
    for number in range(30):
        (repository.home / "runs" / f"more{number}").symlink_to("/etc")
    shown = repository.run("trust")
    assert shown.out.count("symbolic link, not followed") == 20
    assert "and 15 more symbolic links" in shown.out
    assert repository.run("trust", "--yes").code == 0


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS state FROM n"


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE other (a)"],
        [f"CREATE VIEW jobs AS {ENDLESS}"],
        ["CREATE VIEW jobs AS SELECT zeroblob(900000000) AS state"],
        ["CREATE VIEW jobs AS SELECT load_extension('/tmp/x.so') AS state"],
        [
            f"CREATE VIEW jobs AS SELECT group_concat(printf('%0900d', state)) OVER () AS state "
            f"FROM ({ENDLESS})"
        ],
    ],
)
def test_hostile_database_is_shown_as_unreadable(
    tmp_path: Path, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.training_service.contents._SECONDS", 0.1)
    database(tmp_path, *statements)
    found = contents_of(tmp_path)
    assert found.jobs == {}
    assert "it can't be read" in found.problem


@pytest.mark.slow
def test_showing_hostile_database_takes_little_memory(tmp_path: Path) -> None:
    view = f"SELECT group_concat(printf('%0900d', state)) OVER (ORDER BY state) AS state FROM ({ENDLESS})"
    database(tmp_path, f"CREATE VIEW jobs AS {view}")
    code = (
        "import resource, sys; from pathlib import Path; "
        "from reconciler.training_service.contents import contents_of; "
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29)); "
        "print(contents_of(Path(sys.argv[1])).problem)"
    )
    command = [sys.executable, "-P", "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert "it can't be read" in done.stdout


MEMORY = """
import sys
from pathlib import Path
from reconciler.training_service.contents import contents_of
print(contents_of(Path(sys.argv[1])).jobs)
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


def test_database_that_asks_for_large_cache_is_shown_in_little_memory(tmp_path: Path) -> None:
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 70000)"
    database(
        tmp_path,
        "PRAGMA default_cache_size = 2000000",
        "CREATE TABLE jobs (state, rest)",
        f"{numbers} INSERT INTO jobs SELECT 'QUEUED', zeroblob(1800) FROM n",
    )
    # Not ru_maxrss: on Linux it counts the memory of the process that started this one, too.
    command = [sys.executable, "-P", "-c", MEMORY, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    jobs, peak = done.stdout.splitlines()
    assert jobs == "{'QUEUED': 70000}"
    assert int(peak) < 70 * 1024


def test_jobs_are_unknown_beside_journal_which_is_left_alone(repository: Repository) -> None:
    """The file on the disk is a write that was cut short: SQLite would undo it."""
    repository.home.mkdir()
    code = (
        "import os, sqlite3; c = sqlite3.connect('state.db', isolation_level=None); "
        "c.execute('CREATE TABLE jobs (state, rest)'); c.execute('PRAGMA cache_size = 1'); "
        "c.execute('INSERT INTO jobs VALUES (1, 2)'); c.execute('BEGIN'); c.execute('DELETE FROM jobs'); "
        "c.execute('CREATE TABLE more (a)'); "
        "[c.execute('INSERT INTO more VALUES (zeroblob(9000))') for _ in range(50)]; os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=repository.home, check=True)
    assert (repository.home / "state.db-journal").stat().st_size
    before = files_below(repository.home)
    shown = repository.run("trust")
    assert "jobs: unknown: state.db exists, but state.db-journal may change what it says" in shown.out
    assert files_below(repository.home) == before


def test_damaged_or_foreign_file_as_database_is_shown_as_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "state.db"
    file.write_bytes(os.urandom(5000))
    assert contents_of(tmp_path).problem
    monkeypatch.setattr("reconciler.training_service.contents.MOST_DATABASE", 4999)
    assert "larger than" in contents_of(tmp_path).problem
    file.unlink()
    os.mkfifo(file)
    assert "not a regular file" in contents_of(tmp_path).problem
    file.unlink()
    file.symlink_to("/etc/passwd")
    assert contents_of(tmp_path).problem


def test_links_are_not_followed_and_counting_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = tmp_path / "gcs" / "bucket"
    bucket.mkdir(parents=True)
    (bucket / "a").write_bytes(b"12345")
    (bucket / "loop").symlink_to(bucket)
    (tmp_path / "environments").symlink_to("/")
    found = contents_of(tmp_path)
    assert [(one.name, one.files, one.size) for one in found.buckets] == [("bucket", 1, 5)]
    assert found.environments == 0
    assert {(link.name, link.target) for link in found.links} == {
        ("gcs/bucket/loop", str(bucket)),
        ("environments", "/"),
    }
    assert found.complete
    monkeypatch.setattr("reconciler.training_service.contents.MOST_FILES", 2)
    assert not contents_of(tmp_path).complete
