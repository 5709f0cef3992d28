"""`reconciler serve`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from reconciler.config import find_root
from reconciler.errors import ExitCode
from reconciler.home import prepare_home
from reconciler.services.embedded import EmbeddedService, service_command
from reconciler.trustedhome import home_of


def run(arguments: argparse.Namespace) -> ExitCode:
    """Become the embedded training service, or end the one that runs."""
    home = home_of(find_root(Path.cwd()), os.environ)
    if not arguments.stop:
        prepare_home(home, os.environ)
        command = service_command(home, stay=True)
        os.execv(command[0], command)  # noqa: S606 - our own interpreter and module, no shell
    with EmbeddedService(home.path, start=False, checkout=home.checkout) as service:
        ran = service.stop()
    print("the embedded service has ended" if ran else "no embedded service runs here")
    return ExitCode.DONE
