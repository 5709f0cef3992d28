"""`reconciler completion`: words that the shell offers at a press of Tab, by argcomplete."""

from __future__ import annotations

import argparse
from pathlib import Path

import argcomplete
from argcomplete.shell_integration import shellcode

from reconciler.base.errors import ExitCode
from reconciler.manifests.settings import find_root, load_config
from reconciler.operations import jobs_folder

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
    """Return the names of the jobs; no service is asked."""
    return jobs_folder.job_names(find_root(Path.cwd()))


def environments() -> list[str]:
    """Return the names of the environments."""
    return list(load_config(find_root(Path.cwd())).environments)
