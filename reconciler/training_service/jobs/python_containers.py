"""Containers whose command is Python, which can also run in an environment of this machine.

Code without an image is such a container: its command is a short program that reads the staged archive below
`/gcs`, compares its SHA-256, unpacks it and runs a module. Its words are `python3 -c PROGRAM gs://BUCKET/OBJECT
SHA256 MODULE REQUIREMENTS`, with "" for no requirements, and the module's arguments after them.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from reconciler.training_service.jobs.images import override_entry
from reconciler.training_service.state.run_spec import ContainerTask, PythonTask

_PYTHON_COMMANDS = ("python3", "python")
# google-cloud-aiplatform/google/cloud/aiplatform/jobs.py. Arguments with signs that a shell reads are left to
# a container's shell.
_LOCAL_SCRIPT = re.compile(
    r"(?:pip3? install --upgrade pip && )?pip3 install -q --user /gcs/(?P<package>[\w./:+=@%-]+)"
    r" && python3 -m (?P<module>[\w.]+)(?: (?P<args>[^$`;&|<>*?~#(){}\[\]!\\\n]*))?"
)
# Docker's official image. Its tags begin with the version, which "3" and "latest" leave open.
_PYTHON_IMAGE = re.compile(
    r"(?:(?:docker\.io/)?library/|docker\.io/)?python"
    r":(?P<python>3\.\d{1,2})(?:[.-][\w.-]*)?(?:@sha256:[0-9a-f]{64})?"
)
_SHA256 = re.compile(r"[0-9a-f]{64}")
# `engines/spec/run_staged.py` prints the first, and exits with the second.
_SAID = "reconciler: "
_EXIT_CODE = 1


def python_of_image(image: str) -> str:
    """Return the Python of an image `python:X.Y…` of Docker Hub, such as "3.11"; "" for all others."""
    match = _PYTHON_IMAGE.fullmatch(image)
    return match["python"] if match else ""


def in_environment(task: ContainerTask) -> PythonTask | None:
    """Return the task that runs a container's command in an environment; None if only a container will do.

    The environment has the Python and the requirements of the image's entry under `images`, else the Python
    of an image `python:X.Y…` alone.
    """
    python = "" if task.override else python_of_image(task.image)
    if not (task.override or python) or not task.command:
        return None
    if task.command[0] in _PYTHON_COMMANDS:
        words = (*task.command[1:], *task.args)
        return PythonTask(task.image, task.override, python, packages=(), module="", args=words)
    return _local_script(task, python)


def _local_script(task: ContainerTask, python: str) -> PythonTask | None:
    """Return the package and the module of a command that the SDK's CustomJob.from_local_script writes."""
    shell, line = task.command[:2], task.command[2:]
    match = _LOCAL_SCRIPT.fullmatch(line[0]) if shell == ("sh", "-c") and len(line) == 1 else None
    if match is None:
        return None
    try:
        words = tuple(shlex.split(match["args"] or ""))
    except ValueError:  # a quotation mark without its second one
        return None
    return PythonTask(
        task.image,
        task.override,
        python,
        (f"gs://{match['package']}",),
        match["module"],
        (*words, *task.args),
    )


@dataclass(frozen=True, slots=True)
class StagedCode:
    """Code without an image, as a command names it.

    Attributes:
        uri: The archive's gs:// URI.
        sha256: The archive's digest in hex.
        requirements: The path of a lock file in the archive; "" for none.
        without_requirements: Python's arguments that run it where the lock file is installed already.
    """

    uri: str
    sha256: str
    requirements: str
    without_requirements: tuple[str, ...]


def staged_code(task: ContainerTask | PythonTask) -> StagedCode | None:
    """Return the code without an image that a task runs, in a container or an environment; None for none."""
    if isinstance(task, ContainerTask):
        words = task.command[1:] if task.command and task.command[0] in _PYTHON_COMMANDS else ()
    else:
        words = () if task.module else task.args
    if len(words) < 6 or words[0] != "-c" or not words[2].startswith("gs://") or not _is_sha256(words[3]):
        return None
    return StagedCode(words[2], words[3], words[5], (*words[:5], "", *words[6:]))


def is_staged_code(task: ContainerTask | PythonTask) -> bool:
    """Return True for code without an image, in a container or in an environment."""
    return staged_code(task) is not None


def why_not_started(task: ContainerTask | PythonTask, code: int, errors: str) -> str:
    """Return the sentence with which a staged module's program gave up before the module; "" if it didn't.

    Args:
        code: The exit code.
        errors: The end of its standard error.
    """
    last = errors.strip().rpartition("\n")[2]
    if code == _EXIT_CODE and last.startswith(_SAID) and is_staged_code(task):
        return last.removeprefix(_SAID)
    return ""


def how_to_run_staged(image: str) -> str:
    """Return the way to give staged code an environment in place of the image, as the end of a sentence."""
    entry = override_entry(image, python_of_image(image) or "3.11", [])
    return f"say under images in reconciler.yaml what to run it as: {entry}"


def _is_sha256(text: str) -> bool:
    return _SHA256.fullmatch(text) is not None
