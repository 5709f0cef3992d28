"""`reconciler completion`: words that the shell offers at a press of Tab, by argcomplete."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import argcomplete
from argcomplete.shell_integration import shellcode

from reconciler.base.errors import ExitCode
from reconciler.base.state_dir_trust import home_of
from reconciler.git.index import GitIndex
from reconciler.manifests.cache import cached_manifests
from reconciler.manifests.settings import find_root, load_config
from reconciler.manifests.validate import validate
from reconciler.operations.jobs_folder import manifest_paths

EXAMPLES = """source <(reconciler completion bash)
  reconciler completion zsh > "${fpath[1]}/_reconciler"
  reconciler completion fish > ~/.config/fish/completions/reconciler.fish"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that reads the script")


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print the script that a shell loads."""
    print(shellcode(["reconciler"], shell=arguments.shell))
    return ExitCode.DONE


def complete(parser: argparse.ArgumentParser) -> None:
    """Print the candidates for the word at the cursor, and exit: the shell starts this at each Tab."""
    argcomplete.autocomplete(parser, always_complete_options=False)


def job_names() -> list[str]:
    """Return the names of the valid manifests; no service is asked."""
    root = find_root(Path.cwd())
    home_of(root, os.environ)  # raises an error if another person may have made the home
    config = load_config(root)
    filled = frozenset(config.environment(os.environ.get("RECONCILER_ENV") or None).defaults)
    index = GitIndex(root, os.environ)
    with cached_manifests(root, filled, os.environ) as known:
        found = validate(root, manifest_paths(root, [])[0], filled, known=known, whole=True, index=index)
    return [manifest.name for manifest in found.manifests]


def environments() -> list[str]:
    """Return the names of the environments."""
    return list(load_config(find_root(Path.cwd())).environments)
