"""Commands with closed standard streams, a full disk, or no reader; with a real shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from reconciler.base.state_dir import home_of
from tests.support.waiting import PATIENCE, until

COMMAND = f"{sys.executable} -m reconciler"
MANIFEST = """\
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {name: census}
spec:
  workerPoolSpecs:
    - machineSpec: {machineType: n1-standard-4}
      replicaCount: 1
      containerSpec: {imageUri: example.com/trainer@sha256:%s}
"""
GCLOUD = (
    "gcloud ai custom-jobs create --region=us-central1 --display-name=x"
    " --worker-pool-spec=machine-type=n1-standard-4,replica-count=1,container-image-uri=gcr.io/a/b:1"
)
# All commands that print without the training service, and need no person.
PRINTING = [
    "--help",
    "completion bash",
    "import --dry-run -- " + GCLOUD,
    "init --steps github",
    "migrate",
    "plan",
    "plan --base HEAD",
    "plan --format json",
    "render census",
    "report --html site",
    "schema",
    "serve --stop",
    "status",
    "status --format json",
    "validate",
    "validate --format json",
]
# Exit codes of commands that print no text on stdout.
REFUSED = {"frobnicate": 64, "logs census": 1, "open extra": 64, "render nope": 1, "status --env nope": 64}

pytestmark = pytest.mark.slow


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a repository with a commit of a single manifest."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "census.yaml").write_text(MANIFEST % ("0" * 64))
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.test")
    for words in (("init", "-q"), ("add", "jobs"), (*identity, "commit", "-q", "-m", "a job")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def shell(root: Path, line: str, unbuffered: str = "") -> tuple[int, str, str]:
    """Return the exit code of a line's first command, its stdout and its stderr."""
    done = subprocess.run(
        ["bash", "-c", f'{line}; exit "${{PIPESTATUS[0]}}"'],
        cwd=root,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert not re.search("Traceback|Exception ignored|NoneType", done.stdout + done.stderr), done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", PRINTING)
def test_output_that_can_not_be_written_fails_the_command(root: Path, command: str) -> None:
    assert_output_is_missed(root, command)


@pytest.mark.parametrize("command", ["plan --help", "--version", "schema", "status"])
def test_output_that_can_not_be_written_fails_the_command_without_buffer(root: Path, command: str) -> None:
    assert_output_is_missed(root, command, "1")


def assert_output_is_missed(root: Path, command: str, unbuffered: str = "") -> None:
    for stream, reason in {"&-": "it is closed", "/dev/full": "No space left on device"}.items():
        code, _, err = shell(root, f"{COMMAND} {command} >{stream}", unbuffered)
        last = f"reconciler: standard output can't be written: {reason}"
        assert (code, err.splitlines()[-1:]) == (1, [last])
    # Like other commands, it is silent when its reader has closed the pipe.
    code, _, err = shell(root, f"{COMMAND} {command} | head -c 0", unbuffered)
    assert (code, "can't be written" in err) == (1, False)
    assert shell(root, f"{COMMAND} {command} <&- >&- 2>&-", unbuffered)[0] == 1


@pytest.mark.parametrize("command", ["--help", "plan --format json", "migrate", "validate"])
@pytest.mark.parametrize("streams", ["<&- 2>&-", "2>/dev/full"])
def test_messages_that_can_not_be_written_change_neither_output_nor_exit_code(
    root: Path, command: str, streams: str
) -> None:
    code, expected, _ = shell(root, f"{COMMAND} {command}")
    assert code == 0
    assert shell(root, f"{COMMAND} {command} {streams}")[:2] == (code, expected)


@pytest.mark.parametrize("command", REFUSED)
def test_a_refusal_has_its_exit_code_on_any_streams(root: Path, command: str) -> None:
    for streams in ("2>&-", ">&- 2>/dev/full", ">/dev/full 2>&1", "2>&1 | head -c 0"):
        assert shell(root, f"{COMMAND} {command} {streams}")[0] == REFUSED[command], streams


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_message_is_dropped_where_a_terminal_takes_nothing_at_the_moment(
    root: Path, unbuffered: str
) -> None:
    """A terminal can be non-blocking: another program that shares it may have set it so."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write, bytes(4096))
    refused = subprocess.run(
        [*COMMAND.split(), "frobnicate"],
        cwd=root,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdin=subprocess.DEVNULL,
        stderr=write,
    )
    os.close(write)
    os.close(read)
    assert refused.returncode == REFUSED["frobnicate"]


def test_message_in_json_names_the_stream(root: Path) -> None:
    code, _, err = shell(root, f"{COMMAND} validate --log-format json >/dev/full")
    assert code == 1
    assert '"message": "standard output can\'t be written: No space left on device"' in err


def test_closed_standard_input_is_named(root: Path) -> None:
    code, _, err = shell(root, f"{COMMAND} import - <&-")
    assert (code, err) == (
        1,
        "reconciler: standard input can't be read: it is closed\n"
        "    pipe a source into the command, or name files\n",
    )


def test_no_file_takes_the_number_of_a_closed_stream(root: Path) -> None:
    """A program would print into such a file: here git to its stderr, and a database."""
    git = root / "bin" / "git"
    git.parent.mkdir()
    git.write_text(f'#!/bin/sh\nls -l /proc/$PPID/fd >>{root}/numbers\nexec /usr/bin/git "$@"\n')
    git.chmod(0o755)
    line = f"PATH={git.parent}:$PATH {COMMAND} plan --base HEAD <&- >&- 2>&-"
    assert shell(root, line)[0] == 1
    numbers = dict(re.findall(r" ([012]) -> (\S+)", (root / "numbers").read_text()))
    assert numbers == dict.fromkeys("012", "/dev/null")


@pytest.mark.parametrize("streams", [">&- 2>&-", ">/dev/full 2>/dev/full"])
def test_service_serves_without_streams(root: Path, streams: str) -> None:
    with subprocess.Popen(["bash", "-c", f"exec {COMMAND} serve {streams}"], cwd=root) as process:
        try:
            until((home_of(root, os.environ) / "service.json").exists)
            assert shell(root, f"{COMMAND} status")[0] == 0
            assert shell(root, f"{COMMAND} serve --stop")[1] == "the embedded service has stopped\n"
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
