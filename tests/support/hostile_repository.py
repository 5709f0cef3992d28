"""A repository with a hostile version of every file that the tool ever reads.

Its traps touch a file when they run. Its settings and its `service.json` name a server that records incoming
requests. Its home holds a database with a queued job whose package is a trap.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from reconciler.base.state_dir import OLD_HOME
from tests.support.held_service import HeldService
from tests.support.repository import TRAINER, Repository

TRAP = """
import pathlib
pathlib.Path({trace!r}).touch()
"""
MODULES = (
    *("yaml", "jsonschema", "jsonschema_rs", "msgspec", "structlog", "waitress", "json", "sitecustomize"),
    *("usercustomize", "conftest", "setup", "google/__init__", "googleapiclient/__init__"),
    *("reconciler/__init__", "reconciler/__main__", "reconciler/training_service/__main__"),
)
"""Modules that Python would find first if the working directory were on its path."""
SCRIPTS = ("git", "python", "python3", "pip", "uv", "gcloud", "tensorboard", "podman", "docker", "code", "sh")
EDITORS = {
    ".vscode/settings.json": '{"yaml.schemas": {"https://evil.test/schema.json": "jobs/*"}}',
    ".vscode/tasks.json": '{"tasks": [{"command": "./sh", "runOptions": {"runOn": "folderOpen"}}]}',
    ".idea/workspace.xml": "<project/>",
    ".editorconfig": "root = true\n",
    ".envrc": "./sh\n",
    ".env": "RECONCILER_HOME=.reconciler\nRECONCILER_TOKEN_HOSTS=evil.test\nGITHUB_API_URL=http://evil.test\n",
}
CREDENTIALS = (
    *(
        "key.json",
        "application_default_credentials.json",
        ".config/gcloud/application_default_credentials.json",
    ),
    *(".netrc", ".boto", ".config/mljob-reconciler/token-hosts", ".config/reconciler/token-hosts"),
    *(
        ".local/state/mljob-reconciler/key",
        ".local/state/reconciler/key",
        ".cache/mljob-reconciler/cache-key",
    ),
)
GIT_SETTINGS = (
    *(
        "filter.trap.clean",
        "filter.trap.smudge",
        "filter.trap.process",
        "diff.trap.textconv",
        "diff.external",
    ),
    *("core.fsmonitor", "core.pager", "core.sshCommand", "core.gitProxy", "core.askPass", "core.editor"),
    *("credential.helper", "gpg.program", "uploadpack.packObjectsHook", "core.alternateRefsCommand"),
)
HOOKS = ("post-index-change", "post-checkout", "pre-auto-gc", "reference-transaction", "fsmonitor-watchman")
SETTINGS = """
source: acme-jobs
environments:
  prod:
    engine: google
    project: acme-ml
    location: us-central1
    stagingBucket: gs://acme-staging
    endpoints: {{aiplatform: "{url}", ml: "{url}", storage: "{url}", logging: "{url}"}}
github: {{repository: acme/models, apiUrl: "{url}"}}
"""
STRANGERS_JOB = "strangers"


class HostileRepository:
    """The repository, as its victim cloned it.

    Attributes:
        repository: The clone.
        trace: The file that every trap touches.

    Args:
        folder: The parent folder of everything.
        environments: As in `Repository`.
        recorder: The URL that settings and `service.json` name.
        with_home: True to put a home into it, as earlier versions did; git tracks it.
    """

    def __init__(self, folder: Path, environments: Path, recorder: str, *, with_home: bool) -> None:
        self.trace = folder / "a-trap-ran"
        made = Repository(folder / "made", environments)
        images = (made.root / "reconciler.yaml").read_text()
        if with_home:
            self._make_home(made, recorder)
        self._add_traps(made)
        made.write("reconciler.yaml", SETTINGS.format(url=recorder) + images)
        made.write(".gitignore", "")
        made.job("census", args=["--epochs=1"])
        made.job("asleep", reconcile="{suspend: true}")
        made.git("init", "-q", "-b", "main")
        made.git("add", "--all", "--force")
        made.git("commit", "-q", "-m", "one")
        made.write("jobs/census.yaml", (made.root / "jobs/census.yaml").read_text() + "# a comment\n")
        made.git("add", "--all", "--force")
        made.git("commit", "-q", "-m", "two")
        self.repository = Repository(folder / "clone", environments)
        shutil.rmtree(self.repository.root)
        made.git("clone", "-q", str(made.root), str(self.repository.root))
        self._set_git_traps()
        self.repository.hold = made.hold
        self.repository.starts = made.starts

    def _make_home(self, made: Repository, recorder: str) -> None:
        """Leave a home with a queued job whose package is a trap; the next service would run it."""
        made.write("trainer/task.py", TRAP.format(trace=str(self.trace)))
        manifest = made.job(STRANGERS_JOB)
        with HeldService(made.home).running():
            applied = made.run("apply")
            assert applied.code == 0, applied.err
        manifest.unlink()
        old = shutil.move(made.home, made.root / OLD_HOME)
        service = {"pid": os.getpid(), "url": recorder, "token": "a-strangers-token", "version": "0"}
        (old / "service.json").write_text(json.dumps(service))

    def _add_traps(self, made: Repository) -> None:
        trap = TRAP.format(trace=str(self.trace))
        for name in MODULES:
            made.write(f"{name}.py", trap)
        made.write("trainer/task.py", TRAINER)
        script = f"#!/bin/sh\ntouch '{self.trace}'\n"
        for name in SCRIPTS:
            made.write(name, script).chmod(0o755)
        for name, text in EDITORS.items():
            made.write(name, text)
        for name in CREDENTIALS:
            made.write(name, json.dumps({"type": "service_account", "token_uri": "https://evil.test"}))
        for name in HOOKS:
            made.write(f".githooks/{name}", script).chmod(0o755)
        made.write(".gitattributes", "* filter=trap diff=trap merge=trap\n")
        made.write(".gitconfig", f"[core]\n\tfsmonitor = {made.root}/git\n\thooksPath = .githooks\n")
        made.write("pip.conf", "[global]\nindex-url = https://evil.test/simple\n")

    def _set_git_traps(self) -> None:
        """Set the traps that a clone does not bring, but an unpacked archive of a checkout would."""
        script = self.repository.root / "git"
        for name in GIT_SETTINGS:
            self.repository.git("config", name, str(script))
        hooks = self.repository.root / ".git" / "hooks"
        hooks.mkdir(exist_ok=True)
        for name in HOOKS:
            shutil.copy(script, hooks / name)


def is_plumbing(words: list[str]) -> bool:
    """Return whether a command line is git, run so that it starts nothing of the repository's."""
    return words[0] == "git" and "core.fsmonitor=false" in words and f"core.hooksPath={os.devnull}" in words
