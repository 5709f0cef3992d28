"""`reconciler serve`: the embedded training service in the foreground."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from reconciler.base.errors import ExitCode
from reconciler.base.state_dir import home_of, prepare_home
from reconciler.cli.flag_types import port
from reconciler.cli.open import serve_pages
from reconciler.manifests.settings import find_root
from reconciler.training_service.client import EmbeddedService, check_installed, service_command

EXAMPLES = "reconciler serve"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--stop", action="store_true", help="stop the running service")
    parser.add_argument("--port", type=port, metavar="N", help="port to listen on (default: any free port)")


def run(arguments: argparse.Namespace) -> ExitCode:
    """Run the embedded training service in this process, or stop the running service."""
    check_installed()
    home = home_of(find_root(Path.cwd()), os.environ)
    if not arguments.stop:
        prepare_home(home)
        serve_pages(arguments.env, arguments.log_format)
        command = service_command(home, stay=True, port=arguments.port)
        os.execv(command[0], command)  # noqa: S606 - our own interpreter and module, no shell
    with EmbeddedService(home, start=False) as service:
        ran = service.stop()
    print("the embedded service has stopped" if ran else "no embedded service is running here")
    return ExitCode.DONE
