from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import trainers

from reconciler.localservice import environments, surroundings
from reconciler.localservice.environments import (
    Base,
    InstallError,
    NoDistributionError,
    Outcome,
    base_environment,
    install_package,
    job_environment,
)
from reconciler.localservice.pythons import Python, candidates, probe


class Shell:
    """Runs installers as plain processes, and remembers what it ran."""

    def __init__(self, temp: Path) -> None:
        self.ran: list[list[str]] = []
        self.said: list[str] = []
        self._temp = temp

    def run(self, argv: Sequence[str], *, keep: Sequence[int] = ()) -> Outcome:
        self.ran.append([*argv])
        done = subprocess.run(
            argv,
            env=surroundings.for_installer(os.environ, self._temp),
            cwd=self._temp,
            pass_fds=tuple(keep),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return Outcome(done.returncode, done.stdout)

    def pause(self) -> None:
        threading.Event().wait(0.01)

    def say(self, severity: str, text: str) -> None:
        self.said.append(text)

    def commands(self) -> list[str]:
        """What was run: `venv`, or pip's command."""
        return [
            next((word for word in argv if word in ("venv", "install", "wheel")), "") for argv in self.ran
        ]


@pytest.fixture
def shell(tmp_path: Path, wheelhouse: Path) -> Shell:
    (tmp_path / "temp").mkdir()
    return Shell(tmp_path / "temp")


@pytest.fixture
def python() -> Python:
    found = probe(candidates({"HOME": "/nowhere"})[0].path)
    assert found is not None
    return found


@pytest.fixture
def base(tmp_path_factory: pytest.TempPathFactory, python: Python, shell: Shell) -> Base:
    made = base_environment(trainers.shared_environments(tmp_path_factory), python, [], [], shell)
    shell.ran.clear()
    return made


def says(python: Path, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def package(folder: Path, **files: str) -> Path:
    """A source distribution of `trainer` with these files besides, or instead."""
    named = {name.replace("__", ".").replace("_SLASH_", "/"): content for name, content in files.items()}
    return trainers.source_distribution(
        folder / "packages" / "trainer-0.1.tar.gz",
        {"setup.py": trainers.SETUP, "trainer/__init__.py": "VALUE = 7\n", **named},
    )


def test_a_base_environment_holds_what_is_required_within_the_constraints(
    tmp_path: Path, python: Python, shell: Shell
) -> None:
    made = base_environment(tmp_path / "e", python, ["urllib3"], ["urllib3<99", "numpy<99"], shell)
    found = says(made.path / "bin" / "python", "import urllib3, setuptools, wheel; print(urllib3.__file__)")
    assert found.startswith(str(made.path))
    assert "--constraint" in shell.ran[1]
    assert shell.said == [f"Installing setuptools, urllib3, wheel for Python {python.version}"]
    assert (made.path / "constraints.txt").read_text() == "numpy<99\nurllib3<99\n"


def test_the_same_content_is_installed_once(base: Base, shell: Shell, python: Python) -> None:
    again = base_environment(base.path.parent, python, [], [], shell)
    assert again == base
    assert shell.ran == []


def test_other_content_is_another_environment(tmp_path: Path, python: Python) -> None:
    keys = {
        environments._key(python, ["a"], []),
        environments._key(python, ["b"], []),
        environments._key(python, ["a"], ["c"]),
        environments._key(Python(python.path, python.minor, "3.99.0"), ["a"], []),
        environments._key(Python(tmp_path, python.minor, python.version), ["a"], []),
    }
    assert len(keys) == 5


def test_two_that_want_the_same_at_once_build_it_once(
    tmp_path: Path, python: Python, wheelhouse: Path
) -> None:
    shells = [Shell(tmp_path), Shell(tmp_path)]
    made: list[Base] = []

    def make(shell: Shell) -> None:
        made.append(base_environment(tmp_path / "e", python, [], [], shell))

    threads = [threading.Thread(target=make, args=(shell,)) for shell in shells]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(made) == 2
    assert made[0] == made[1]
    assert sorted(shell.commands() for shell in shells) == [[], ["venv", "install"]]


def test_what_an_installer_left_that_was_killed_is_not_trusted(
    tmp_path: Path, python: Python, shell: Shell
) -> None:
    class Killed(BaseException):
        pass

    class KilledShell(Shell):
        def run(self, argv: Sequence[str], *, keep: Sequence[int] = ()) -> Outcome:
            if "install" in argv:
                raise Killed
            return super().run(argv, keep=keep)

    with pytest.raises(Killed):
        base_environment(tmp_path / "e", python, [], [], KilledShell(tmp_path))
    (left,) = (path for path in (tmp_path / "e").iterdir() if path.is_dir())
    (left / "half-written").touch()
    made = base_environment(tmp_path / "e", python, [], [], shell)
    assert made.path == left
    assert not (left / "half-written").exists()
    assert says(made.path / "bin" / "python", "import wheel; print('there')") == "there"


def test_a_lock_outlives_the_builder_in_its_installer(tmp_path: Path) -> None:
    """A builder that is killed leaves an installer at work: nobody may build over it."""
    code = f"""
import subprocess, sys
from pathlib import Path
from reconciler.localservice.run_folder import locked
with locked(Path({str(tmp_path / "x.lock")!r})) as lock:
    child = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"],
                             stdin=0, stdout=1, pass_fds=(lock,))
    child.wait()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as builder:
        assert builder.stdout is not None
        assert builder.stdout.readline() == "up\n"
        builder.send_signal(signal.SIGKILL)
        builder.wait(10)
        with pytest.raises(BlockingIOError), environments.locked(tmp_path / "x.lock"):
            pass
        builder.communicate("\n")  # the installer ends
    with environments.locked(tmp_path / "x.lock"):
        pass


def test_what_has_no_wheel_for_this_python_is_told_from_other_failures(
    tmp_path: Path, python: Python, shell: Shell
) -> None:
    with pytest.raises(NoDistributionError, match=r"scikit-learn==0\.1\.\*") as failure:
        base_environment(tmp_path / "e", python, ["scikit-learn==0.1.*"], [], shell)
    assert "No matching distribution found" in str(failure.value)
    with pytest.raises(InstallError) as other:
        base_environment(tmp_path / "e", python, ["not a requirement"], [], shell)
    assert not isinstance(other.value, NoDistributionError)


def test_a_job_s_environment_sees_the_base_one_after_its_own(
    tmp_path: Path, base: Base, shell: Shell
) -> None:
    own = job_environment(tmp_path / "environment", base, shell)
    install_package(own, package(tmp_path), tmp_path / "built", shell)
    assert says(own, "import trainer, wheel; print(trainer.VALUE)") == "7"
    paths = says(own, "import sys; print('\\n'.join(sys.path))").splitlines()
    sites = [path for path in paths if "site-packages" in path]
    assert [str(tmp_path) in path for path in sites] == [True, False]
    with pytest.raises(subprocess.CalledProcessError):
        says(base.path / "bin" / "python", "import trainer")


def test_a_source_distribution_is_built_once(tmp_path: Path, base: Base, shell: Shell) -> None:
    own = job_environment(tmp_path / "environment", base, shell)
    install_package(own, package(tmp_path), tmp_path / "built", shell)
    assert shell.commands() == ["venv", "wheel", "install"]
    assert "--no-build-isolation" in shell.ran[1]
    assert {"--force-reinstall", "--no-deps"} <= {*shell.ran[2]}


def test_what_a_package_requires_is_installed_after_it(tmp_path: Path, base: Base, shell: Shell) -> None:
    own = job_environment(tmp_path / "environment", base, shell)
    archive = trainers.wheel(tmp_path / "trainer-0.1-py3-none-any.whl", "", ["idna>=3"])
    install_package(own, archive, tmp_path / "built", shell)
    assert shell.commands() == ["venv", "install", "install"]
    assert says(own, "import idna, trainer; print(idna.__file__)").startswith(str(tmp_path))


def test_a_package_replaces_the_same_version_that_is_there(tmp_path: Path, base: Base, shell: Shell) -> None:
    own = job_environment(tmp_path / "environment", base, shell)
    install_package(own, package(tmp_path / "1"), tmp_path / "built", shell)
    newer = package(tmp_path / "2", trainer_SLASH___init____py="")
    newer = trainers.source_distribution(
        newer, {"setup.py": trainers.SETUP, "trainer/__init__.py": "VALUE = 8"}
    )
    install_package(own, newer, tmp_path / "built", shell)
    assert says(own, "import trainer; print(trainer.VALUE)") == "8"


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"setup.py": "raise SystemExit('the setup is broken')"}, "the setup is broken"),
        ({"readme.txt": "no project"}, "does not appear to be a Python project"),
    ],
)
def test_a_package_that_can_t_be_built_is_named_after_two_tries(
    files: dict[str, str], told: str, tmp_path: Path, base: Base, shell: Shell
) -> None:
    own = job_environment(tmp_path / "environment", base, shell)
    archive = trainers.source_distribution(tmp_path / "broken-1.0.tar.gz", files)
    with pytest.raises(
        InstallError, match=r"The package broken-1\.0\.tar\.gz could not be installed"
    ) as failure:
        install_package(own, archive, tmp_path / "built", shell)
    assert told in str(failure.value)
    assert shell.commands() == ["venv", "wheel", "wheel"]


def test_a_requirement_that_isn_t_there_fails_the_package(tmp_path: Path, base: Base, shell: Shell) -> None:
    own = job_environment(tmp_path / "environment", base, shell)
    archive = trainers.wheel(tmp_path / "trainer-0.1-py3-none-any.whl", "", ["no-such-thing"])
    with pytest.raises(InstallError, match="no-such-thing"):
        install_package(own, archive, tmp_path / "built", shell)
    assert shell.commands() == ["venv", "install", "install", "install"]


def test_a_second_try_may_succeed(tmp_path: Path, base: Base, shell: Shell) -> None:
    own = job_environment(tmp_path / "environment", base, shell)
    once = f"""
        from pathlib import Path
        from setuptools import setup
        flag = Path({str(tmp_path / "tried")!r})
        if not flag.exists():
            flag.touch()
            raise SystemExit(1)
        setup(name="trainer", version="0.1", packages=["trainer"])
    """
    archive = trainers.source_distribution(
        tmp_path / "trainer-0.1.tar.gz", {"setup.py": once, "trainer/__init__.py": "VALUE = 9"}
    )
    install_package(own, archive, tmp_path / "built", shell)
    assert says(own, "import trainer; print(trainer.VALUE)") == "9"


def test_no_secret_of_the_service_reaches_a_trainer(tmp_path: Path) -> None:
    given = {
        "PATH": "/bin",
        "GITHUB_TOKEN": "x",
        "GOOGLE_APPLICATION_CREDENTIALS": "x",
        "GOOGLE_CLOUD_PROJECT": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "PIP_INDEX_URL": "https://user:secret@index.example/simple",
        "HOME": "/home/me",
        "LC_ALL": "C.UTF-8",
        "https_proxy": "http://proxy.example",
        "no_proxy": "example.com",
    }
    trainer = surroundings.for_trainer(given, (tmp_path / "bin",), tmp_path / "home", tmp_path / "temp")
    assert trainer == {
        "PATH": f"{tmp_path / 'bin'}:/bin",
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path / "temp"),
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "CLOUD_ML_HP_METRIC_FILE": str(tmp_path / "temp" / "hypertune" / "output.metrics"),
        "https_proxy": "http://proxy.example",
        "no_proxy": "example.com,localhost,127.0.0.1",
        "NO_PROXY": "localhost,127.0.0.1",
    }
    installer = surroundings.for_installer(given, tmp_path)
    assert installer["PIP_INDEX_URL"] == given["PIP_INDEX_URL"]
    assert installer["HOME"] == "/home/me"
    for passed_on in (installer, surroundings.for_runner(given)):
        assert not {"GITHUB_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "AWS_SECRET_ACCESS_KEY"} & {*passed_on}
