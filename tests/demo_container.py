"""Demo of `make demo-container`: build the image of jobs/iris-container.yaml, run that suspended job.

It exits with 1 and a line with the reason if no container engine works, the image can't be built, or the job
does not succeed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from reconciler.base.errors import ReconcilerError
from reconciler.base.state_dir import home_of
from reconciler.training_service.runner.containers import ContainerEngine, find_engine
from reconciler.training_service.state.run_folder import RunError

ROOT = Path(__file__).resolve().parent.parent
MANIFEST = ROOT / "jobs" / "iris-container.yaml"
CONTEXT = ROOT / "jobs" / "images" / "iris"
# Below the repository, as manifests must be, in a folder that git and the next `apply` ignore.
COPY = ROOT / "build" / "demo-container" / MANIFEST.name
BASE = "localhost/reconciler-busybox:1"
OF_BASE = 'FROM scratch\nCOPY busybox /bin/busybox\nRUN ["/bin/busybox", "--install", "-s", "/bin"]\n'


class DemoError(Exception):
    """The demo can't continue; the text is the reason."""


def build(engine: ContainerEngine, tag: str, context: Path, *options: str) -> None:
    """Build an image."""
    file = ("--file", str(context / "Containerfile"))
    command = [
        str(engine.client.program),
        "build",
        "--network",
        "host",
        "--tag",
        tag,
        *file,
        *options,
        str(context),
    ]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode != 0:
        raise DemoError(f"{engine.name} can't build {tag}:\n{built.stdout}{built.stderr}".rstrip())


def base_of_this_machine(engine: ContainerEngine) -> str | None:
    """Build an image of this machine's own busybox; return None without a statically linked busybox."""
    program = shutil.which("busybox")
    if program is None:
        return None
    with TemporaryDirectory() as context:
        shutil.copy(program, Path(context) / "busybox")
        (Path(context) / "Containerfile").write_text(OF_BASE)
        try:
            build(engine, BASE, Path(context))
        except DemoError:
            return None
    return BASE


def reconciler(*arguments: str) -> int:
    """Run the tool; return its exit code."""
    return subprocess.run([sys.executable, "-m", "reconciler", *arguments], cwd=ROOT).returncode


def demo() -> int:
    """Build the image, run the job, show its result."""
    engine = find_engine(os.environ)
    text = MANIFEST.read_text("utf-8")
    manifest = yaml.safe_load(text)
    image = manifest["spec"]["workerPoolSpecs"][0]["containerSpec"]["imageUri"]
    base = os.environ.get("BASE") or base_of_this_machine(engine)
    print(f"Building {image} by {engine.name}" + (f" on {base}" if base else ""), flush=True)
    build(engine, image, CONTEXT, *(("--build-arg", f"BASE={base}") if base else ()))
    COPY.parent.mkdir(parents=True, exist_ok=True)
    COPY.write_text(text.replace("suspend: true", "suspend: false"), "utf-8")
    code = reconciler("apply", "--wait", str(COPY.relative_to(ROOT)))
    reconciler("logs", manifest["metadata"]["name"])
    bucket = manifest["spec"]["baseOutputDirectory"]["outputUriPrefix"].removeprefix("gs://")
    model = home_of(ROOT, os.environ) / "gcs" / bucket / "model" / "model.json"
    if code == 0 and model.exists():
        print(f"\n{model}\n  {model.read_text().strip()}")
    return code


def main() -> int:
    """Run the demo; return its exit code."""
    try:
        return demo()
    except (DemoError, ReconcilerError, RunError) as error:
        print(f"make demo-container: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
