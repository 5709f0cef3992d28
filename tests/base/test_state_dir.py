"""The home: it lies outside of the repository, and no other user can write to it."""

from __future__ import annotations

import os
import pwd
import re
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from reconciler.base.errors import ServiceError
from reconciler.base.http import HttpRequest
from reconciler.base.state_dir import HomeError, check_home, home_of, location_of, prepare_home
from reconciler.cli import arguments
from reconciler.training_service.address import Address, UntrustedAddressError, read_address, write_address
from reconciler.training_service.client import ROOT, EmbeddedService
from tests.support.commands import COMMANDS
from tests.support.repository import Repository

MAKEFILE = Path(__file__).resolve().parents[2] / "Makefile"


def test_list_of_commands_is_whole() -> None:
    names = {*arguments.COMMANDS}
    assert {command.split()[0] for command in COMMANDS} == names - arguments._WITHOUT_NOTES
    assert {"completion", "schema"} == arguments._WITHOUT_NOTES


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
    repository.job("census")
    old = repository.root / ".reconciler"
    old.mkdir()
    write_address(old, Address(1, f"http://127.0.0.1:{recorder.port}", "t0ken", ""))
    repository.git("init", "-q")
    repository.git("add", "-A", "-f")
    repository.git("commit", "-qm", "a home")
    for command in ("plan", "apply --wait", "status", "logs census", "serve --stop"):
        assert repository.run(*command.split()).code == 0
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
        EmbeddedService(home, start=False) as service,
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


# --- The path of the home ---------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Return a git repository."""
    root = tmp_path / "made"
    root.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def assert_refused(root: Path, reason: str, **environ: str) -> None:
    with pytest.raises(HomeError, match=reason):
        home_of(root, {**os.environ, **environ})


def test_home_is_named_for_folder_and_its_real_path(made: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    (tmp_path / "link").symlink_to(made)
    home = location_of(made, {"XDG_STATE_HOME": str(state), "HOME": "/nowhere"})
    assert home.parent == state / "reconciler"
    assert re.fullmatch(r"made-[0-9a-f]{16}", home.name)
    assert location_of(tmp_path / "link", {"XDG_STATE_HOME": str(state)}) == home
    (tmp_path / "other" / "made").mkdir(parents=True)
    assert location_of(tmp_path / "other" / "made", {"XDG_STATE_HOME": str(state)}) != home


def test_home_is_below_home_directory_when_state_home_is_unset_or_relative(made: Path) -> None:
    for more in ({}, {"XDG_STATE_HOME": ""}, {"XDG_STATE_HOME": "state"}):
        home = location_of(made, {"HOME": "/home/me", **more})
        assert home.parent == Path("/home/me/.local/state/reconciler")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("my models\n\x1b[2J", "my_models___2J-"),
        ("Modèles", "Mod_les-"),
        ("x" * 255, f"{'x' * 50}-"),
    ],
)
def test_name_of_home_is_plain_and_short(tmp_path: Path, name: str, part: str) -> None:
    home = location_of(tmp_path / name, {"HOME": "/home/me"})
    assert home.name.startswith(part)
    assert len(home.name) == len(part) + 16


@pytest.mark.parametrize("variables", [{"HOME": ""}, {"HOME": "me", "XDG_STATE_HOME": "state"}])
def test_apply_asks_for_reconciler_home_when_no_place_is_known(
    repository: Repository, tmp_path: Path, variables: dict[str, str]
) -> None:
    repository.job("census", reconcile="{suspend: true}")
    variables = {"XDG_STATE_HOME": "", **variables}
    assert repository.run("validate", **variables).code == 0
    refused = repository.run("apply", **variables)
    assert refused.code == 3
    assert "set RECONCILER_HOME to a folder of yours outside of the repository" in refused.err
    outside = str(tmp_path / "outside")
    assert repository.run("apply", **variables, RECONCILER_HOME=outside).code == 0
    assert repository.run("serve", "--stop", **variables, RECONCILER_HOME=outside).code == 0


def test_named_home_in_repository_is_refused(made: Path, tmp_path: Path) -> None:
    (made / "link").symlink_to(tmp_path)
    (tmp_path / "own").symlink_to(made / "link")
    (tmp_path / "way").symlink_to(made)
    (made / "models").mkdir()
    (made / "models" / "reconciler.yaml").touch()
    for root in (made, made / "models", tmp_path / "way"):
        for named in (
            made,
            made / ".reconciler",
            tmp_path / "way" / "home",
            made / "link",  # a branch may contain it, with any target
            made / "link" / "home",
            tmp_path / "own" / "home",
        ):
            assert_refused(root, f"lies in the repository {made}", RECONCILER_HOME=str(named))
    assert home_of(made, {"RECONCILER_HOME": str(tmp_path / "made-home")}) == tmp_path / "made-home"


def test_named_home_in_unpacked_repository_is_refused(tmp_path: Path) -> None:
    named = str(tmp_path / "home")
    assert home_of(tmp_path, {"RECONCILER_HOME": named}) == tmp_path / "home"  # a working directory alone
    (tmp_path / "reconciler.yaml").touch()
    assert_refused(tmp_path, "lies in the repository", RECONCILER_HOME=named)


def test_command_refuses_named_home_in_repository_and_runs_after_the_remedy(repository: Repository) -> None:
    repository.job("census", reconcile="{suspend: true}")
    refused = repository.run("apply", RECONCILER_HOME=".reconciler")
    assert refused.code == 3
    assert f"unset RECONCILER_HOME, so that the state is in {repository.home}; or name" in refused.err
    assert not (repository.root / ".reconciler").exists()
    assert repository.run("apply").code == 0


def test_home_may_lie_in_repository_of_home_directory(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    home = home_of(tmp_path, {"HOME": str(tmp_path)})
    assert home.is_relative_to(tmp_path / ".local" / "state")
    prepare_home(home)
    listing = ["git", "status", "--porcelain"]
    assert subprocess.run(listing, cwd=tmp_path, check=True, capture_output=True).stdout == b""


# --- Other users -----------------------------------------------------------------------------------------


def test_new_home_is_closed_to_others_with_the_folders_above(made: Path, tmp_path: Path) -> None:
    home = tmp_path / "state" / "reconciler" / "home"
    before = os.umask(0)
    try:
        prepare_home(home)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (home, *home.parents[:2])] == [0o700] * 3
    home.chmod(0o755)
    prepare_home(home)
    assert home.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_home_is_used_when_several_commands_make_it_at_once(made: Path) -> None:
    code = (
        "import os; from pathlib import Path; from reconciler.base.state_dir import home_of, prepare_home; "
    )
    code += "prepare_home(home_of(Path.cwd(), os.environ))"
    command = [sys.executable, "-c", code]
    started = [subprocess.Popen(command, cwd=made, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    ends = [(process.communicate()[1], process.returncode) for process in started]
    assert ends == [("", 0)] * 6
    assert home_of(made, os.environ).is_dir()


@pytest.mark.parametrize("named", [False, True])
def test_home_needs_owner_and_mode(
    made: Path, tmp_path: Path, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"RECONCILER_HOME": str(tmp_path / "outside")} if named else {}
    environ = {**os.environ, **variables}
    home = location_of(made, environ)
    home.mkdir(mode=0o755, parents=True)
    assert home_of(made, environ) == home
    for mode in (0o775, 0o757):
        home.chmod(mode)
        with pytest.raises(HomeError, match="other users can write") as refused:
            home_of(made, environ)
        assert f"chmod 700 {home}" in refused.value.hint
    home.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert_refused(made, "another user", **variables)
    with pytest.raises(HomeError, match="another user"):
        prepare_home(home)


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
def test_home_is_refused_where_another_user_can_exchange_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Folder, user: int, why: str
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
    home = shared / "missing"
    if not why:
        check_home(home)
        return
    with pytest.raises(HomeError, match="can replace it") as refused:
        check_home(home)
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


@pytest.mark.parametrize(
    ("named", "reason"), [("file", "not a folder"), ("file/home", "not a folder"), ("x" * 300, "too long")]
)
def test_named_home_that_is_no_folder_is_refused(made: Path, tmp_path: Path, named: str, reason: str) -> None:
    (tmp_path / "file").touch()
    assert_refused(made, reason, RECONCILER_HOME=str(tmp_path / named))


def test_state_home_in_repository_is_refused_unless_the_repository_is_the_home_directory(
    tmp_path: Path,
) -> None:
    root = tmp_path / "repository"
    (root / ".git").mkdir(parents=True)
    (root / ".git" / "HEAD").touch()
    environ = {"XDG_STATE_HOME": str(root / "state"), "HOME": str(tmp_path / "home")}
    with pytest.raises(HomeError, match="lies in the repository"):
        location_of(root, environ)
    home = location_of(root, {**environ, "HOME": str(root)})
    assert home.parent == root / "state" / "reconciler"


def test_make_clean_finds_the_home_with_a_python_without_packages(tmp_path: Path) -> None:
    program = (
        MAKEFILE.read_text("utf-8").partition("PRINT_HOME := ")[2].partition("\n\n")[0].replace("\\\n", "")
    )
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-S", "-c", program]
    done = subprocess.run(
        command, cwd=MAKEFILE.parent, env=environ, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()) == location_of(MAKEFILE.parent, environ)
