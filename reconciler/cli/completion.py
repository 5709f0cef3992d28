"""The command `completion`: words that the shell offers at a press of Tab, by argcomplete."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import argcomplete
from argcomplete.shell_integration import shellcode

from reconciler.base.errors import ExitCode
from reconciler.git.index import GitIndex
from reconciler.manifests.cache import cached_manifests
from reconciler.manifests.schemas import KINDS
from reconciler.manifests.settings import find_root, load_config
from reconciler.manifests.validate import validate
from reconciler.operations.jobs_folder import manifest_paths
from reconciler.planning.outcome import Condition


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print the script that a shell loads."""
    print(shellcode(["reconciler"], shell=arguments.shell))
    return ExitCode.DONE


def complete(parser: argparse.ArgumentParser) -> None:
    """Print the candidates for the word at the cursor, and exit: the shell starts this at each Tab."""
    for command in _commands(parser):
        for action in command._actions:
            if action.dest in _CANDIDATES and not action.choices:
                # This is how argcomplete's documentation sets a completer.
                action.completer = _CANDIDATES[action.dest]  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options=False)


def _commands(parser: argparse.ArgumentParser) -> Sequence[argparse.ArgumentParser]:
    (commands,) = (action for action in parser._actions if isinstance(action.choices, dict))
    assert isinstance(commands.choices, dict)
    return tuple(commands.choices.values())


def _job_names(**_: object) -> list[str]:
    """Return the names of the valid manifests; no service is asked."""
    root = find_root(Path.cwd())
    config = load_config(root)
    filled = frozenset(config.environment(os.environ.get("RECONCILER_ENV") or None).defaults)
    index = GitIndex(root, os.environ)
    with cached_manifests(root, filled, os.environ) as known:
        found = validate(root, manifest_paths(root, [])[0], filled, known=known, whole=True, index=index)
    return [manifest.name for manifest in found.manifests]


def _environments(**_: object) -> list[str]:
    """Return the names of the environments."""
    return list(load_config(find_root(Path.cwd())).environments)


# argcomplete offers nothing where a function raises an error.
_CANDIDATES: dict[str, Callable[..., Iterable[str]]] = {
    "name": _job_names,
    "names": _job_names,
    "env": _environments,
    "state": lambda **_: [condition.replace(" ", "-") for condition in Condition],
    "kind": lambda **_: [kind for _, kind in KINDS],
}
