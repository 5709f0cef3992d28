from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import trainers

from reconciler.training_service.environments import venvs
from reconciler.training_service.environments.shared_caches import get_or_build
from reconciler.training_service.environments.venvs import (
    Base,
    InstallError,
    Layer,
    NoDistributionError,
    Outcome,
    Python,
    base_environment,
    candidates,
    install_package,
    job_environment,
    package_layer,
    probe,
    run_environment,
)
from reconciler.training_service.jobs import environment_variables


class Shell:
    """Runs installers as plain processes, and remembers what it ran.

    Attributes:
        empty: An environment with nothing but pip; where it is given, a new one is a copy of it. Making one
            by `venv` takes seconds.
    """

    def __init__(self, temp: Path, empty: Path | None = None) -> None:
        self.ran: list[list[str]] = []
        self.said: list[str] = []
        self.empty = empty
        self._temp = temp

    def run(self, argv: Sequence[str], *, keep: Sequence[int] = ()) -> Outcome:
        self.ran.append([*argv])
        if self.empty and "venv" in argv and "--without-pip" not in argv:
            shutil.copytree(self.empty, argv[-1], symlinks=True)
            return Outcome(0, "")
        done = subprocess.run(
            argv,
            env=environment_variables.for_installer(os.environ, self._temp),
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


@pytest.fixture(autouse=True)
def _compiling_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pip installs is compiled when it is imported: a third of the time that these tests take."""
    monkeypatch.setenv("PIP_COMPILE", "0")


@pytest.fixture
def shell(tmp_path: Path, wheelhouse: Path) -> Shell:
    (tmp_path / "temp").mkdir()
    return Shell(tmp_path / "temp")


@pytest.fixture(scope="session")
def python() -> Python:
    found = probe(candidates({"HOME": "/nowhere"})[0].path)
    assert found is not None
    return found


@pytest.fixture(scope="session")
def empty(python: Python, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing but pip."""
    path = tmp_path_factory.mktemp("empty") / "environment"
    subprocess.run([python.path, "-I", "-m", "venv", path], check=True)
    return path


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
        venvs._key(python, ["a"], []),
        venvs._key(python, ["b"], []),
        venvs._key(python, ["a"], ["c"]),
        venvs._key(Python(python.path, python.minor, "3.99.0"), ["a"], []),
        venvs._key(Python(tmp_path, python.minor, python.version), ["a"], []),
    }
    assert len(keys) == 5


def test_two_that_want_the_same_at_once_build_it_once(
    tmp_path: Path, python: Python, empty: Path, wheelhouse: Path
) -> None:
    shells = [Shell(tmp_path, empty), Shell(tmp_path, empty)]
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
    tmp_path: Path, python: Python, empty: Path, shell: Shell
) -> None:
    class Killed(BaseException):
        pass

    class KilledShell(Shell):
        def run(self, argv: Sequence[str], *, keep: Sequence[int] = ()) -> Outcome:
            if "install" in argv:
                raise Killed
            return super().run(argv, keep=keep)

    with pytest.raises(Killed):
        base_environment(tmp_path / "e", python, [], [], KilledShell(tmp_path, empty))
    (left,) = (path for path in (tmp_path / "e").iterdir() if path.is_dir())
    (left / "half-written").touch()
    shell.empty = empty
    made = base_environment(tmp_path / "e", python, [], [], shell)
    assert made.path == left
    assert not (left / "half-written").exists()
    assert says(made.path / "bin" / "python", "import wheel; print('there')") == "there"


def test_a_lock_outlives_the_builder_in_its_installer(tmp_path: Path) -> None:
    """A builder that is killed leaves an installer at work: nobody may build over it."""
    code = f"""
import subprocess, sys
from pathlib import Path
from reconciler.training_service.environments.shared_caches import get_or_build
def make(lock):
    installer = [sys.executable, "-c", "print('up', flush=True); input()"]
    subprocess.run(installer, stdin=0, stdout=1, pass_fds=(lock,))
get_or_build(Path({str(tmp_path / "x")!r}), make, lambda: None)
"""

    class StillAtWork(Exception):
        pass

    def give_up() -> None:
        raise StillAtWork

    def make(lock: int) -> None:
        (tmp_path / "x").mkdir()

    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as builder:
        assert builder.stdout is not None
        assert builder.stdout.readline() == "up\n"
        builder.send_signal(signal.SIGKILL)
        builder.wait(10)
        with pytest.raises(StillAtWork):
            get_or_build(tmp_path / "x", make, give_up)
        builder.communicate("\n")  # the installer ends
    os.close(get_or_build(tmp_path / "x", make, lambda: None).lock)
    assert (tmp_path / "x" / "complete").exists()


def test_what_has_no_wheel_for_this_python_is_told_from_other_failures(
    tmp_path: Path, python: Python, empty: Path, shell: Shell
) -> None:
    shell.empty = empty
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


def layer_of(tmp_path: Path, base: Base, shell: Shell, *packages: Path) -> Layer:
    return package_layer(tmp_path / "kept", base, packages, shell)


def test_the_same_packages_are_installed_once(tmp_path: Path, base: Base, shell: Shell) -> None:
    archive = package(tmp_path / "1")
    first = layer_of(tmp_path, base, shell, archive)
    assert shell.commands() == ["venv", "wheel", "install"]
    shell.ran.clear()
    (tmp_path / "2").mkdir()
    again = layer_of(tmp_path, base, shell, archive.rename(tmp_path / "2" / archive.name))
    own = run_environment(tmp_path / "run", again)
    assert again == first
    assert shell.ran == []
    assert says(own, "import trainer, wheel; print(trainer.VALUE)") == "7"


def test_other_packages_are_another_layer(tmp_path: Path, base: Base, shell: Shell) -> None:
    one = trainers.wheel(tmp_path / "1" / "trainer-0.1-py3-none-any.whl", "print(1)")
    two = trainers.wheel(tmp_path / "2" / "trainer-0.1-py3-none-any.whl", "print(2)")
    other = Base(base.path, base.python, "made anew")
    keys = {
        venvs._key_of_packages(base, [one]),
        venvs._key_of_packages(base, [two]),
        venvs._key_of_packages(base, [one, two]),
        venvs._key_of_packages(base, [two, one]),
        venvs._key_of_packages(base, []),
        venvs._key_of_packages(other, [one]),
        venvs._key_of_packages(base, [one.rename(one.with_name("x-0.1-py3-none-any.whl"))]),
    }
    assert len(keys) == 7


def test_a_run_changes_its_own_copy_only(tmp_path: Path, base: Base, shell: Shell) -> None:
    archive = trainers.wheel(tmp_path / "trainer-0.1-py3-none-any.whl", "VALUE = 1", ["idna>=3"])
    layer = layer_of(tmp_path, base, shell, archive)
    first, second = (run_environment(tmp_path / name, layer) for name in ("a", "b"))
    task = Path(says(first, "import trainer.task; print(trainer.task.__file__)"))
    task.write_text("VALUE = 22")
    value = "import trainer.task, idna; print(trainer.task.VALUE, idna.__file__)"
    assert says(first, value).startswith(f"22 {layer.path}")
    assert says(second, value).startswith(f"1 {layer.path}")
    assert says(layer.path / "bin" / "python", value).startswith("1 ")


def test_what_a_trainer_installs_while_it_runs_stays_in_its_run(
    tmp_path: Path, base: Base, shell: Shell
) -> None:
    """By its Python, and by the `pip` that is first in its PATH."""
    layer = layer_of(tmp_path, base, shell, package(tmp_path))
    own = run_environment(tmp_path / "run", layer)
    for command in ([own, "-m", "pip"], [own.parent / "pip"]):
        assert shell.run([*map(str, command), "install", "--quiet", "--upgrade", "idna"]).code == 0
        where = "import idna; print(idna.__file__)"
        assert says(own, where).startswith(str(tmp_path / "run"))
        assert shell.run([*map(str, command), "uninstall", "--quiet", "--yes", "idna"]).code == 0
        for below in (layer.path, base.path):
            with pytest.raises(subprocess.CalledProcessError):
                says(below / "bin" / "python", where)


@pytest.mark.parametrize("folder", ["run", "r" * 200])
def test_programs_of_packages_run_the_run_s_own_python(
    folder: str, tmp_path: Path, base: Base, shell: Shell
) -> None:
    setup = """
        from setuptools import setup
        setup(name="trainer", version="0.1", packages=["trainer"],
              entry_points={"console_scripts": ["train-it = trainer:main"]})
    """
    main = "import sys\ndef main():\n    print(sys.prefix)\n"
    archive = package(tmp_path, setup_py="", trainer_SLASH___init____py="")
    archive = trainers.source_distribution(archive, {"setup.py": setup, "trainer/__init__.py": main})
    own = run_environment(tmp_path / folder, layer_of(tmp_path, base, shell, archive))
    done = subprocess.run([own.parent / "train-it"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / folder)


def test_a_layer_that_couldn_t_be_made_is_gone(tmp_path: Path, base: Base, shell: Shell) -> None:
    archive = trainers.wheel(tmp_path / "trainer-0.1-py3-none-any.whl", "", ["no-such-thing"])
    with pytest.raises(InstallError, match="no-such-thing"):
        layer_of(tmp_path, base, shell, archive)
    assert [path for path in (tmp_path / "kept").iterdir() if path.is_dir()] == []


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
    trainer = environment_variables.for_trainer(
        given, (tmp_path / "bin",), tmp_path / "home", tmp_path / "temp"
    )
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
    installer = environment_variables.for_installer(given, tmp_path)
    assert installer["PIP_INDEX_URL"] == given["PIP_INDEX_URL"]
    assert installer["HOME"] == "/home/me"
    for passed_on in (installer, environment_variables.for_runner(given)):
        assert not {"GITHUB_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "AWS_SECRET_ACCESS_KEY"} & {*passed_on}
