"""`reconciler tensorboard`: TensorBoard over the logs of jobs."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from reconciler.base.errors import ExitCode, NotFoundError
from reconciler.cli.context import context_of, run_of
from reconciler.cli.flag_types import port
from reconciler.cli.flags import add_name
from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.model.job import ActualJob
from reconciler.operations.session import Session

EXAMPLES = "reconciler tensorboard census-income --port 6006"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_name(parser)
    parser.add_argument(
        "--port", type=port, metavar="N", help="local port (default: 6006, or the next free one)"
    )


_ENDS_WITHIN = 10.0


def run(arguments: argparse.Namespace) -> ExitCode:
    """Run TensorBoard in the foreground, reachable only from this machine, until it is interrupted."""
    context = context_of(arguments)
    with context.session(start=False) as session:
        _, job = run_of(session, arguments.name)
        folder = _folder(session, job)
    program = _program()
    port = [] if arguments.port is None else ["--port", str(arguments.port)]
    return _foreground([*program, "--logdir", folder, "--host", "127.0.0.1", *port])


def _folder(session: Session, job: ActualJob) -> str:
    """Return the job's log directory, a local folder or gs://…; raise NotFoundError."""
    engine = engine_spec(job.api_version)
    uri = engine.log_directory(job.kind, job.spec)
    field = ".".join(engine.output_directory_field(job.kind, job.spec))
    if not uri:
        hint = f"set {field}, or baseOutputDirectory in the defaults of an environment"
        raise NotFoundError(f"{job.job_name} has no folder for its logs", hint=hint)
    if not session.is_local:
        if not uri.startswith("gs://"):
            raise NotFoundError(f"{job.job_name} logs to {uri}, which is not in Cloud Storage")
        return uri
    folder = session.folder_of(uri, os.environ)
    if folder is None:
        raise NotFoundError(
            f"{job.job_name} logs to {uri}, which can't be a folder here", hint=f"see {field}"
        )
    return str(folder)


def _program() -> list[str]:
    """Return the command that starts TensorBoard; raise NotFoundError."""
    # A checkout may contain any code, so neither a relative entry of PATH nor a module in the working
    # directory may be run.
    absolute = filter(os.path.isabs, os.environ.get("PATH", "").split(os.pathsep))
    program = shutil.which("tensorboard", path=os.pathsep.join(absolute))
    if program:
        return [program]
    here = Path.cwd()
    folders = [folder for folder in sys.path if folder and Path(folder).absolute() != here]
    module = PathFinder.find_spec("tensorboard", folders)
    if module is None or module.origin is None:
        hint = "install it with `pip install tensorboard`; any tensorboard on PATH works"
        raise NotFoundError("TensorBoard isn't installed", hint=hint)
    return [sys.executable, "-P", "-m", "tensorboard.main"]


def _foreground(command: list[str]) -> ExitCode:
    """Run a command to its end, and terminate it on an interrupt."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            # The normal way to end TensorBoard; at a terminal it got the signal too.
            process.terminate()
            try:
                process.wait(_ENDS_WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()
            return ExitCode.DONE
    return ExitCode.DONE if code == 0 else ExitCode.FAILED
