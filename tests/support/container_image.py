"""Images built without a registry: of a single static program, and of this machine's own Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pip

from reconciler.training_service.runner.containers import ContainerEngine
from tests.support.waiting import PATIENCE

IMAGE = f"localhost/reconciler-test-{os.getpid()}:1"

_CONTAINERFILE = """\
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
ENV PATH=/bin OF_THE_IMAGE=yes
ENTRYPOINT ["/bin/echo", "entry"]
CMD ["of the image"]
"""

PYTHON_IMAGE = f"localhost/reconciler-test-python-{os.getpid()}:1"
WITHOUT_PIP = f"localhost/reconciler-test-python-without-pip-{os.getpid()}:1"
USER = 4321

# The image has no shell and no home.
_OF_PYTHON = """\
FROM scratch
COPY root /
ENV PATH={bin}
RUN ["python3", "-c", "import os; os.mkdir('/tmp'); os.chmod('/tmp', 0o1777)"]
"""
_UNUSED = shutil.ignore_patterns(
    *("__pycache__", "*.a", "config-*", "dist-packages", "ensurepip", "idlelib", "lib2to3", "site-packages"),
    *("test", "tests", "tkinter", "turtledemo"),
)


def build(engine: ContainerEngine, context: Path) -> None:
    """Build the image; it has a shell and its tools.

    Raises:
        FileNotFoundError: The program is missing.
    """
    busybox = shutil.which("busybox")
    if busybox is None:
        raise FileNotFoundError("busybox isn't here: on Debian and Ubuntu, apt-get install busybox-static")
    shutil.copy(busybox, context / "busybox")
    _build(engine, context, IMAGE, _CONTAINERFILE)


def build_python(engine: ContainerEngine, context: Path) -> None:
    """Build images of this Python: one with pip, and one without pip that runs as an unprivileged user."""
    program = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    library, root = Path(sysconfig.get_path("stdlib")), context / "root"
    copy = root / library.relative_to("/")
    shutil.copytree(library, copy, ignore=_UNUSED)
    for path in (program, *_libraries_of(program, *library.glob("lib-dynload/*.so"))):
        (root / path.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path.relative_to("/"))
    python = root / program.with_name("python3").relative_to("/")
    if not python.exists():
        python.symlink_to(program.name)
    file = _OF_PYTHON.format(bin=program.parent)
    _build(engine, context, WITHOUT_PIP, f"{file}USER {USER}\n")
    shutil.copytree(Path(pip.__file__).parent, copy / "pip")
    _build(engine, context, PYTHON_IMAGE, file)


def _libraries_of(*programs: Path) -> set[Path]:
    listed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    return {Path(path) for path in re.findall(r"^\s+(?:\S+ => )?(/\S+) \(", listed, re.MULTILINE)}


def _build(engine: ContainerEngine, context: Path, tag: str, file: str) -> None:
    (context / "Containerfile").write_text(file)
    options = ("--network", "host", "--tag", tag, "--file", str(context / "Containerfile"))
    built = engine.client.ask("build", *options, str(context), within=PATIENCE)
    assert built[0] == 0, built


def remove(engine: ContainerEngine, *images: str) -> None:
    engine.client.ask("image", "rm", "--force", *images, within=PATIENCE)


def containers_of(engine: ContainerEngine, run_id: str) -> list[str]:
    """Return the ids of a run's containers, running or not."""
    return engine.client.ask("ps", "-aq", "--filter", f"label=reconciler.run={run_id}")[1].split()
