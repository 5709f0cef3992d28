"""The programs `gsutil` and `gcloud`, which published trainers call: their launchers and command lines.

Imports only the standard library and this package: a trainer may start them often.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from reconciler.training_service.storage.gsutil.client import Storage, StorageError, UsageError
from reconciler.training_service.storage.gsutil.commands import Command, Flags

_SERVED = "cat, cp, du, ls, mv, rm, rsync, stat"
# The properties of `gcloud config get-value` by their paths on the metadata server.
_PROPERTIES = {
    "project": "project/project-id",
    "core/project": "project/project-id",
    "account": "instance/service-accounts/default/email",
    "core/account": "instance/service-accounts/default/email",
    "compute/region": "instance/region",
    "compute/zone": "instance/zone",
    "ai/region": "instance/region",
}
_ROOT = Path(__file__).resolve().parents[4]


def write_launchers(folder: Path) -> None:
    """Write the programs `gsutil` and `gcloud` into a folder; they run with this process's Python.

    They are isolated from the trainer's environment variables and packages.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The storage is on loopback: loading TLS would take a third of a call's time.
    code = "import sys; sys.modules['ssl'] = None; sys.path.append(sys.argv.pop(1)); "
    code += "from reconciler.training_service.storage.gsutil.main import main; sys.exit(main(sys.argv[1:]))"
    for tool in ("gsutil", "gcloud"):
        line = shlex.join([sys.executable, "-I", "-S", "-c", code, str(_ROOT), tool])
        (folder / tool).write_text(f'#!/bin/sh\nexec {line} "$@"\n', "utf-8")
        (folder / tool).chmod(0o755)


_LETTERS = {
    "r": "recursive",
    "R": "recursive",
    "n": "no_clobber",
    "d": "delete",
    "l": "long",
    "f": "ignore_missing",
    "I": "from_stdin",
    "s": "summary",
    "h": "human",
    "c": "total",
}
# Accepted letters by command; those missing in _LETTERS have no effect here, nor those of other commands.
_ALLOWED = {
    "cp": "rRnIcePvU",
    "mv": "nIcePvU",
    "rm": "rRfI",
    "cat": "",
    "du": "shca",
    "ls": "lrRbha",
    "rsync": "rRdcCeP",
    "stat": "",
}
_LONG = {
    "--recursive": "r",
    "--no-clobber": "n",
    "--delete-unmatched-destination-objects": "d",
    "--long": "l",
    "--read-paths-from-stdin": "I",
    "--continue-on-error": "c",
    "--summarize": "s",
    "--readable-sizes": "h",
    "--total": "c",
    "--preserve-posix": "P",
}
_BEFORE = {"-m", "-q", "--quiet", "--no-user-output-enabled"}
_BEFORE_WITH_VALUE = {"-o", "-h", "-u", "-i", "--project", "--verbosity", "--billing-project"}


def main(arguments: Sequence[str]) -> int:
    """Execute `gsutil …` or `gcloud …` and return the exit code."""
    tool, *words = arguments
    try:
        return _carry_out(tool, words)
    except UsageError as error:
        return _fail(tool, str(error), "CommandException")
    except StorageError as error:
        kind = {403: "AccessDeniedException", 404: "NotFoundException"}.get(
            error.status, "BadRequestException"
        )
        return _fail(tool, f"{error.status} {error}", kind)
    except BrokenPipeError:  # the reader of the output has gone, as in `gsutil cat … | head`
        return 1
    except OSError as error:
        return _fail(tool, str(error), "OSError")


def _carry_out(tool: str, words: list[str]) -> int:
    quiet, words = _without_global_flags(words)
    if tool == "gcloud":
        if words[:2] == ["config", "get-value"] and words[2:3] and words[2] in _PROPERTIES:
            sys.stdout.write(_storage().metadata(_PROPERTIES[words[2]]).rpartition("/")[2] + "\n")
            return 0
        if words[:1] != ["storage"]:
            raise UsageError(
                f"of gcloud only `gcloud storage` is served here ({_SERVED}), and `gcloud config get-value`"
                f" of {', '.join(_PROPERTIES)}: {shlex.join(words)}"
            )
        more, words = _without_global_flags(words[1:])
        quiet = quiet or more
    if not words or words[0] not in _ALLOWED:
        raise UsageError(f"of {tool} these commands are served here: {_SERVED}; not {shlex.join(words[:1])}")
    flags, operands = _flags(tool, words[0], words[1:])
    command = Command(_storage(), replace(flags, quiet=quiet), (lambda _: None) if quiet else _say)
    getattr(command, words[0])(operands)
    for text in command.failed if not (quiet and words[0] == "stat") else ():
        _fail(tool, text, "CommandException")
    return 1 if command.failed else 0


def _storage() -> Storage:
    url = os.environ.get("STORAGE_EMULATOR_HOST", "")
    if not url:
        raise UsageError("STORAGE_EMULATOR_HOST names no storage")
    return Storage(url)


def _without_global_flags(words: list[str]) -> tuple[bool, list[str]]:
    quiet = False
    while words and words[0].startswith("-"):
        name, has_value, _ = words[0].partition("=")
        if name in _BEFORE:
            quiet = quiet or name != "-m"
        elif name in _BEFORE_WITH_VALUE:
            words = words if has_value else words[1:]
        else:
            raise UsageError(f"the flag {words[0]} isn't known here")
        words = words[1:]
    return quiet, words


def _flags(tool: str, command: str, words: Sequence[str]) -> tuple[Flags, list[str]]:
    letters, operands = "", []
    for word in words:
        name = word.partition("=")[0]
        if word == "-" or not word.startswith("-"):
            operands.append(word)
        elif word.startswith("--") and (name in _LONG or name in _BEFORE | _BEFORE_WITH_VALUE):
            letters += _LONG.get(name, "")
        elif word.startswith("--") or not set(word[1:]) <= set(_ALLOWED[command]):
            raise UsageError(f"{tool} {command} knows no {word} here, only -{' -'.join(_ALLOWED[command])}")
        else:
            letters += word[1:]
    return Flags(**{_LETTERS[letter]: True for letter in letters if letter in _LETTERS}), operands


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _fail(tool: str, text: str, kind: str) -> int:
    prefix = f"ERROR: (gcloud.storage) {text}" if tool == "gcloud" else f"{kind}: {text}"
    sys.stderr.write(f"{prefix}\n")
    return 1
