"""An image that is built from one static program, without any registry."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from waiting import PATIENCE

from reconciler.training_service.runner.containers import Engine

IMAGE = f"localhost/reconciler-test-{os.getpid()}:1"

_CONTAINERFILE = """\
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
ENV PATH=/bin OF_THE_IMAGE=yes
ENTRYPOINT ["/bin/echo", "entry"]
CMD ["of the image"]
"""


def build(engine: Engine, context: Path) -> None:
    """Build the image; it has a shell and its tools.

    Raises:
        FileNotFoundError: The program isn't here.
    """
    busybox = shutil.which("busybox")
    if busybox is None:
        raise FileNotFoundError("busybox isn't here: on Debian and Ubuntu, apt-get install busybox-static")
    shutil.copy(busybox, context / "busybox")
    (context / "Containerfile").write_text(_CONTAINERFILE)
    file = ("--file", str(context / "Containerfile"))
    options = ("--network", "host", "--tag", IMAGE, *file)
    built = engine.client.ask("build", *options, str(context), within=PATIENCE)
    assert built[0] == 0, built


def remove(engine: Engine) -> None:
    """Remove the image."""
    engine.client.ask("image", "rm", "--force", IMAGE, within=PATIENCE)


def containers_of(engine: Engine, run_id: str) -> list[str]:
    """The ids of the containers of a run that there are, living or not."""
    return engine.client.ask("ps", "-aq", "--filter", f"label=reconciler.run={run_id}")[1].split()
