"""The program that runs staged code in a container: an ordinary process, with the command as sent."""

from __future__ import annotations

import ast
import io
import resource
import signal
import subprocess
import sys
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

from reconciler.engines.spec.container_command import container_command, shown_command, staged_module
from reconciler.packaging.sdist import build_code, place_in_code
from reconciler.packaging.source_tree import SourceFile, SourceTree

pytestmark = pytest.mark.slow

TASK = """\
import os, sys
import trainer.helper
print(sys.argv[1:], trainer.helper.__file__.startswith(os.path.dirname(os.path.dirname(__file__))))
"""
HELPER = "NAME = 'helper'\n"


def tree(**files: str) -> SourceTree:
    """Return modules at the top of a folder."""
    return SourceTree(
        tuple(SourceFile(f"{name}.py", name == "task", text.encode()) for name, text in files.items())
    )


def below(folder: str, code: SourceTree) -> SourceTree:
    return SourceTree(
        tuple(SourceFile(f"{folder}/{file.path}", file.executable, file.content) for file in code.files)
    )


class Container:
    """A folder with the mounted bucket, a folder for temporary files, and no home."""

    def __init__(self, root: Path) -> None:
        self.mount, self.temporary = root / "gcs", root / "tmp"
        self.temporary.mkdir()
        self.object = self.mount / "staging" / "reconciler" / "code.tar.gz"
        self.object.parent.mkdir(parents=True)
        self.limit: int | None = None
        self.environ = {"RECONCILER_GCS_DIR": str(self.mount), "TMPDIR": str(self.temporary), "PATH": ""}

    def stage(self, data: bytes) -> str:
        self.object.write_bytes(data)
        return sha256(data).hexdigest()

    def start(
        self, module: str, *args: str, digest: str = "", requirements: str = ""
    ) -> subprocess.Popen[str]:
        uri = "gs://staging/reconciler/code.tar.gz"
        digest = digest or sha256(self.object.read_bytes()).hexdigest()
        command = container_command(uri, digest, module, requirements)
        return subprocess.Popen(
            [sys.executable, *command[1:], *args],
            env=self.environ,
            cwd=self.temporary.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=self._set_limit,
        )

    def _set_limit(self) -> None:
        if self.limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit, self.limit))

    def run(self, module: str, *args: str, digest: str = "", requirements: str = "") -> tuple[int, str, str]:
        process = self.start(module, *args, digest=digest, requirements=requirements)
        out, err = process.communicate()
        return process.returncode, out, err

    def refusal(self, module: str = "trainer.task", digest: str = "", requirements: str = "") -> str:
        """Return the only sentence of a program that can't start its module; check that no file is left."""
        code, out, err = self.run(module, digest=digest, requirements=requirements)
        assert code == 1
        # pip may have said why before.
        assert "Traceback" not in f"{out}{err}"
        assert not list(self.temporary.iterdir())
        last = err.splitlines()[-1]
        assert last.startswith("reconciler: ")
        return last.removeprefix("reconciler: ")


@pytest.fixture
def container(tmp_path: Path) -> Container:
    made = Container(tmp_path)
    code = below("trainer", tree(task=TASK, helper=HELPER))
    made.stage(build_code(code, "trainer.task").data)
    return made


def test_program_is_python_of_the_oldest_supported_version() -> None:
    command = container_command("gs://b/o", "0" * 64, "trainer.task", "")
    ast.parse(command[2], feature_version=(3, 7))
    assert "$(" not in command[2], "services expand variables in commands"


def test_module_runs_with_its_arguments_and_leaves_nothing(container: Container) -> None:
    code, out, err = container.run("trainer.task", "--lr=0.1", "--lr", "0.2", "")
    assert (code, out, err) == (0, "['--lr=0.1', '--lr', '0.2', ''] True\n", "")
    assert not list(container.temporary.iterdir())


def test_folder_that_is_the_package_itself_is_imported_as_one(container: Container) -> None:
    code = tree(task=TASK, helper=HELPER)
    container.stage(build_code(code, "trainer.task").data)
    assert container.run("trainer.task")[:2] == (0, "[] True\n")
    assert place_in_code(code, "trainer.task", "a.lock") == "trainer/a.lock"


def test_own_failure_of_the_module_is_its_own(container: Container) -> None:
    container.stage(build_code(tree(task="import sys\nsys.exit(7)\n"), "task").data)
    assert container.run("task") == (7, "", "")
    container.stage(build_code(tree(task="raise ValueError('no data')\n"), "task").data)
    code, _, err = container.run("task")
    assert (code, err.splitlines()[-1]) == (1, "ValueError: no data")
    assert "    raise ValueError('no data')\n" in err, "the traceback quotes the code"
    assert not list(container.temporary.iterdir())


def test_signal_reaches_the_module(container: Container) -> None:
    task = """\
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
print("up", flush=True)
signal.pause()
"""
    container.stage(build_code(tree(task=task), "task").data)
    process = container.start("task")
    assert process.stdout
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 9
    assert not list(container.temporary.iterdir())


def test_spawned_processes_and_programs_find_the_code(container: Container) -> None:
    task = """\
import multiprocessing, subprocess, sys
import helper
def work(number):
    return helper.NAME * number
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [2]), flush=True)
    subprocess.run([sys.executable, "-c", "import helper; print(helper.NAME)"], check=True)
"""
    container.stage(build_code(tree(task=task, helper=HELPER), "task").data)
    assert container.run("task") == (0, "['helperhelper']\nhelper\n", "")


def test_forked_child_leaves_the_code_to_its_parent(container: Container) -> None:
    task = """\
import os, sys
if os.fork() == 0:
    sys.exit(0)
os.wait()
print(os.path.exists(__file__))
"""
    container.stage(build_code(tree(task=task), "task").data)
    assert container.run("task")[:2] == (0, "True\n")


def test_missing_mount_is_one_sentence(container: Container) -> None:
    container.environ["RECONCILER_GCS_DIR"] = "/nowhere"
    assert container.refusal(digest="0" * 64) == (
        "/nowhere/staging isn't mounted, so the code can't be read; use another machine type"
    )


def test_missing_archive_is_one_sentence(container: Container) -> None:
    container.object.unlink()
    assert "No such file or directory; submit the job again" in container.refusal(digest="0" * 64)


def test_archive_with_another_digest_is_not_unpacked(container: Container) -> None:
    digest = sha256(container.object.read_bytes()).hexdigest()
    container.object.write_bytes(container.object.read_bytes() + b"\0")
    assert "has changed since the job was submitted" in container.refusal(digest=digest)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside", "a//b"])
def test_archive_with_a_path_outside_is_refused(container: Container, name: str) -> None:
    container.stage(_archive(tarfile.TarInfo(name)))
    assert f"contains {name!r}" in container.refusal()
    assert not (container.temporary.parent / "outside").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_archive_with_anything_but_files_is_refused(container: Container, kind: bytes) -> None:
    member = tarfile.TarInfo("link")
    member.type, member.linkname = kind, "/etc/passwd"
    container.stage(_archive(member))
    assert "contains 'link'" in container.refusal()


def _archive(member: tarfile.TarInfo) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        archive.addfile(member, io.BytesIO())
    return data.getvalue()


def test_executable_files_stay_executable(container: Container) -> None:
    task = "import os\nprint(oct(os.stat(__file__).st_mode & 0o777))\n"
    container.stage(build_code(tree(task=task), "task").data)
    assert container.run("task")[1] == "0o755\n"


def test_full_disk_is_one_sentence_and_leaves_nothing(container: Container) -> None:
    container.limit = 1
    assert container.refusal().startswith("can't unpack the code: [Errno 27] File too large")


def with_lock(text: str) -> bytes:
    code = tree(task="import tiny\nprint(tiny.__name__)\n")
    lock = SourceFile("a.lock", False, text.encode())
    return build_code(SourceTree((*code.files, lock)), "task").data


def wheel(folder: Path) -> Path:
    """Write a wheel of a module `tiny` by hand."""
    import zipfile

    file = folder / "tiny-1.0-py3-none-any.whl"
    metadata = {"METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n", "RECORD": ""}
    metadata["WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(file, "w") as opened:
        opened.writestr("tiny.py", "")
        for name, text in metadata.items():
            opened.writestr(f"tiny-1.0.dist-info/{name}", text)
    return file


@pytest.mark.slow
def test_locked_packages_are_installed_before_the_module_runs(container: Container, tmp_path: Path) -> None:
    container.environ |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    digest = sha256(wheel(tmp_path).read_bytes()).hexdigest()
    container.stage(with_lock(f"tiny==1.0 \\\n    --hash=sha256:{digest}\n"))
    code, out, err = container.run("task", requirements="a.lock")
    assert (code, out.splitlines()[-1]) == (0, "tiny"), err
    assert not list(container.temporary.iterdir())
    container.stage(with_lock(f"tiny==1.0 --hash=sha256:{'0' * 64}\n"))
    assert container.refusal("task", requirements="a.lock") == (
        "a package doesn't have its hash in a.lock; lock the requirements again"
    )


@pytest.mark.slow
def test_unknown_package_is_one_sentence(container: Container) -> None:
    container.environ |= {"PIP_NO_INDEX": "1"}
    container.stage(with_lock(f"tiny==1.0 --hash=sha256:{'0' * 64}\n"))
    found = container.refusal("task", requirements="a.lock")
    assert found == "pip can't install a.lock, for the reason above; correct it"


@pytest.mark.slow
def test_unreachable_index_is_one_sentence(container: Container) -> None:
    container.environ |= {"PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    container.stage(with_lock(f"tiny==1.0 --hash=sha256:{'0' * 64}\n"))
    assert "pip can't reach the package index" in container.refusal("task", requirements="a.lock")


def test_image_without_pip_is_one_sentence(container: Container, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "pip.py").write_text("raise ImportError\n")
    container.environ |= {"PYTHONPATH": str(broken)}
    container.stage(with_lock(f"tiny==1.0 --hash=sha256:{'0' * 64}\n"))
    assert container.refusal("task", requirements="a.lock").startswith(
        "the image has no pip to install a.lock"
    )


def test_command_is_recognized_whatever_the_program_of_its_version() -> None:
    command = container_command("gs://b/o", "0" * 64, "trainer.task", "a.lock")
    assert staged_module(command) == ("trainer.task", "a.lock")
    other = command[2].replace("Return", "Give")
    assert staged_module([*command[:2], other, *command[3:]]) == ("trainer.task", "a.lock")
    assert staged_module([*command, "x"]) is None
    assert staged_module(["python3", "-c", "print()", *command[3:]]) is None
    assert staged_module(["python", *command[1:]]) is None
    assert staged_module([]) is None


def test_command_is_shown_without_the_program() -> None:
    assert shown_command("trainer.task", "") == ["python3", "-m", "trainer.task"]
    assert " ".join(shown_command("a", "a.lock")) == "python3 -m pip install -r a.lock && python3 -m a"
