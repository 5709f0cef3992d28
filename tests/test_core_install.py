"""Tool without its extra `local`: its functions, and its request for the extra."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from uv import find_uv_bin

from reconciler.base.errors import InvalidError
from reconciler.training_service import client
from tests.support.github_server import WRITE, GitHubServer
from tests.support.google_place import HURRIED, google_place
from tests.support.held_service import HeldService
from tests.support.repository import Repository, Result
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).resolve().parent.parent
NUMBER, TOKEN = 7, "ghs_of-the-run"
IMPORTS = """
import pkgutil, sys
from importlib import import_module
import reconciler

skipped = ("reconciler.training_service.", "reconciler.__main__", "reconciler.setup.templates")
found = [module.name for module in pkgutil.walk_packages(reconciler.__path__, "reconciler.")]
core = [name for name in found if not name.startswith(skipped)]
for name in core:
    import_module(name)
print(len(core))
"""
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path) -> Path:
    """Return the Python of an environment with the tool without its extra, as an installer makes it."""
    made = tmp_path_factory.mktemp("core") / "venv"
    uv = [find_uv_bin(), "--quiet", "--no-config", "--offline"]
    offered = ["--no-index", "--find-links", str(wheelhouse)]
    subprocess.run([*uv, "venv", "--python", sys.executable, made], check=True)
    subprocess.run([*uv, "pip", "install", "--python", made / "bin" / "python", *offered, ROOT], check=True)
    return made / "bin" / "python"


@pytest.fixture
def run(python: Path, repository: Repository, tmp_path: Path) -> Run:
    """Run `reconciler …` of that environment, without its pauses; fail on a traceback."""
    program = tmp_path / "hurried.py"
    program.write_text(HURRIED)

    def run(*arguments: str, cwd: Path | None = None, **environ: str) -> Result:
        done = subprocess.run(
            [python, program, *arguments],
            cwd=cwd or repository.root,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert not re.search("^Traceback", done.stderr + done.stdout, re.MULTILINE), done.stderr
        return Result(done.returncode, done.stdout, done.stderr)

    return run


def test_core_modules_import_no_package_of_the_extra(python: Path) -> None:
    done = subprocess.run([python, "-c", IMPORTS], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


def test_commands_that_need_no_service_work_in_a_local_environment(
    run: Run, repository: Repository, tmp_path: Path
) -> None:
    repository.job("census")
    repository.git("init", "-q", "-b", "main")
    repository.git("add", "-A")
    repository.git("commit", "-qm", "first")
    repository.job("census", args=["--epochs=3"])
    assert run("validate").code == 0
    assert json.loads(run("schema", "CustomJob").out)
    assert json.loads(run("render", "census").out)
    planned = run("plan", "--base", "HEAD")
    assert planned.code == 0
    assert "--epochs=3" in planned.out
    new = tmp_path / "new"
    new.mkdir()
    assert run("init", cwd=new).code == 0
    assert run("validate", cwd=new).code == 0


def test_a_comment_is_kept_in_a_local_environment(run: Run, tmp_path: Path) -> None:
    (tmp_path / "comment.md").write_text("Plan: nothing to do.\n")
    (tmp_path / "event.json").write_text(json.dumps({"pull_request": {"number": NUMBER}}))
    github = GitHubServer(tokens={TOKEN: WRITE}, comments={NUMBER: []})
    with github.running():
        done = run(
            *("report", "--comment", str(tmp_path / "comment.md")),
            GITHUB_ACTIONS="true",
            GITHUB_API_URL=github.url,
            GITHUB_REPOSITORY=github.repository,
            GITHUB_EVENT_NAME="pull_request",
            GITHUB_EVENT_PATH=str(tmp_path / "event.json"),
            GITHUB_TOKEN=TOKEN,
        )
    assert done.out == f"Comment on pull request {NUMBER}: created.\n", done.err


@pytest.mark.parametrize(
    "command",
    [
        *("plan", "apply", "status", "logs census", "tensorboard census", "cancel census", "watch"),
        *("fetch census", "fetch census --run census"),
        *("resolve census --give-up", "init --claims", "env", "serve", "serve --stop"),
    ],
)
def test_a_command_that_needs_the_service_ends_with_the_line_that_installs_it(
    command: str, run: Run, python: Path, repository: Repository
) -> None:
    repository.job("census")
    done = run(*command.split())
    assert done.code == 3
    assert "the embedded training service is not installed" in done.err
    line = f"uv pip install --python {python} 'mljob-reconciler[local] @ {ROOT.as_uri()}'"
    assert f"    install it: {line}\n" in done.err
    assert not (repository.home / "service.log").exists()


def test_every_command_but_serve_works_on_google_cloud(
    run: Run, repository: Repository, tmp_path: Path
) -> None:
    repository.job("census")
    service = HeldService(tmp_path / "google")
    with (
        service.running(),
        google_place(repository, service, service.url, tmp_path, submitter=False) as environ,
    ):
        prepared = run("init", "--claims", **environ)
        assert prepared.code == 0, prepared.err
        assert run("plan", "--detailed-exitcode", **environ).code == 2
        applied = run("apply", **environ)
        assert applied.code == 0, applied.err
        assert "census" in run("status", **environ).out
        assert run("logs", "census", **environ).code == 0
        assert run("report", **environ).code == 0
        assert "nothing to resolve" in run("resolve", "census", "--give-up", **environ).err
        assert "census_" in run("cancel", "census", **environ).out
        assert "clients need no settings for it" in run("env", **environ).err
        assert run("serve", **environ).code == 3


# The command that installs the extra

URL = "https://git.example.test/acme/reconciler"
GIT = {"vcs": "git", "commit_id": "1" * 40}
NAME = "mljob-reconciler[local]"


@pytest.mark.parametrize(
    ("origin", "file", "line"),
    [
        (
            {"url": URL, "vcs_info": GIT},
            "uv-receipt.toml",
            f"uv tool install '{NAME} @ git+{URL}'",
        ),
        (
            {"url": URL, "vcs_info": {**GIT, "requested_revision": "v1"}},
            "pipx_metadata.json",
            f"pipx install --force '{NAME} @ git+{URL}@v1'",
        ),
        (
            {"url": "file:///a b/tool.whl", "archive_info": {}},
            "",
            f"'/the python' -m pip install '{NAME} @ file:///a b/tool.whl'",
        ),
        (
            {"url": "file:///src", "dir_info": {"editable": True}},
            "uv-receipt.toml",
            "uv tool install --editable '/src[local]'",
        ),
        (None, "", f"'/the python' -m pip install '{NAME}'"),
    ],
)
def test_the_line_is_for_the_program_and_the_source_of_the_installation(
    origin: object, file: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "mljob_reconciler-1.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: mljob-reconciler\nVersion: 1\n")
    if origin:
        (made / "direct_url.json").write_text(json.dumps(origin))
    if file:
        (tmp_path / file).touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/the python")
    monkeypatch.setattr(client, "_EXTRA", (*client._EXTRA, "a_missing_package"))
    with pytest.raises(InvalidError) as raised:
        client.check_installed()
    assert raised.value.hint == f"install it: {line}"


def test_nothing_is_asked_for_where_the_extra_is_installed() -> None:
    client.check_installed()
