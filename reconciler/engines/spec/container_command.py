"""The command of a container that runs staged code."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

_PYTHON = "python3"
_STAGED_PROGRAM = "run_staged.py"
_COMMAND_WORDS = 7


def container_command(uri: str, sha256: str, module: str, requirements: str) -> list[str]:
    """Return the command that runs staged code in a container; its `args` follow it and reach the module.

    Args:
        uri: The archive's gs:// URI.
        sha256: The archive's digest in hex.
        module: The module to run.
        requirements: The path of a lock file in the archive; "" for none.
    """
    return [_PYTHON, "-c", _program(), uri, sha256, module, requirements]


def shown_command(module: str, requirements: str) -> list[str]:
    """Return that command as readers see it, without program and archive: the same for every version."""
    install = [_PYTHON, "-m", "pip", "install", "-r", requirements, "&&"] if requirements else []
    return [*install, _PYTHON, "-m", module]


def staged_module(command: Sequence[str]) -> tuple[str, str] | None:
    """Return module and requirements of a command that `container_command` made; None for other commands."""
    # The program of another version begins with the same line.
    first = _program().partition("\n")[0]
    if len(command) != _COMMAND_WORDS or list(command[:2]) != [_PYTHON, "-c"]:
        return None
    return (command[5], command[6]) if command[2].startswith(first) else None


@cache
def _program() -> str:
    return Path(__file__).with_name(_STAGED_PROGRAM).read_text("utf-8")
