from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from reconciler.training_service.environments import venvs
from reconciler.training_service.environments.prepare import pythons
from reconciler.training_service.environments.shared_caches import get_or_build
from reconciler.training_service.environments.venvs import (
    Base,
    InstallError,
    Layer,
    NoDistributionError,
    Python,
    Replacement,
    UnreachableIndexError,
    base_environment,
    package_layer,
    run_environment,
)
from reconciler.training_service.jobs import environment_variables
from tests.support.training_service import trainers
from tests.support.training_service.shell import Shell


@pytest.fixture
def shell(tmp_path: Path, wheelhouse: Path) -> Shell:
    (tmp_path / "temp").mkdir()
    return Shell(tmp_path / "temp")


@pytest.fixture(scope="session")
def python() -> Python:
    return next(found for found in pythons({"HOME": "/nowhere"}) if found.minor == sys.version_info[:2])


@pytest.fixture
def base(tmp_path_factory: pytest.TempPathFactory, python: Python, shell: Shell) -> Base:
    made = base_environment(trainers.shared_environments(tmp_path_factory), python, [], [], shell)
    shell.ran.clear()
    shell.said.clear()
    return made


def says(python: Path, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def package(folder: Path, **files: str) -> Path:
    """Write a source distribution of `trainer` with these additional or replaced files."""
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
    assert says(made.path / "bin" / "python", "import pip; print(pip.__file__)").startswith(str(made.path))
    first, second, last = shell.said
    assert first == f"Installing setuptools, urllib3, wheel for Python {python.version}"
    assert re.fullmatch(r"Installing packaging==\S+, setuptools==\S+, urllib3==\S+, wheel==\S+", second)
    assert re.fullmatch(r"Installed in \d+\.\d s", last)
    assert (made.path / "constraints.txt").read_text() == "numpy<99\nurllib3<99\n"


def test_the_same_content_is_installed_once(base: Base, shell: Shell, python: Python) -> None:
    again = base_environment(base.path.parent, python, [], [], shell)
    assert again == base
    assert shell.ran == []


def test_other_content_is_another_environment(tmp_path: Path, python: Python, wheelhouse: Path) -> None:
    class Stop(Exception):
        pass

    class Stopped(Shell):
        def note(self, _severity: str, text: str) -> None:
            raise Stop

    def name(python: Python, requirements: list[str], constraints: list[str]) -> str:
        folder = tmp_path / str(len([*tmp_path.iterdir()]))
        with pytest.raises(Stop):
            base_environment(folder, python, requirements, constraints, Stopped(tmp_path))
        (lock,) = folder.iterdir()
        return lock.name

    names = {
        name(python, ["a"], []),
        name(python, ["b"], []),
        name(python, ["a"], ["c"]),
        name(Python(python.path, python.minor, "3.99.0"), ["a"], []),
        name(Python(tmp_path, python.minor, python.version), ["a"], []),
    }
    assert len(names) == 5
    assert name(python, ["a"], []) in names


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
    assert sorted(shell.commands() for shell in shells) == [[], ["venv", "resolve", "install", "install"]]


def test_what_an_installer_left_that_was_killed_is_not_trusted(
    tmp_path: Path, python: Python, shell: Shell
) -> None:
    class Killed(BaseException):
        pass

    class KilledShell(Shell):
        def run(
            self, task: str, arguments: Sequence[str], lock: int | None, variables: Mapping[str, str]
        ) -> str:
            if "install" in arguments:
                raise Killed
            return super().run(task, arguments, lock, variables)

    with pytest.raises(Killed):
        base_environment(tmp_path / "e", python, [], [], KilledShell(tmp_path))
    (left,) = (path for path in (tmp_path / "e").iterdir() if path.is_dir())
    (left / "half-written").touch()
    made = base_environment(tmp_path / "e", python, [], [], shell)
    assert made.path == left
    assert not (left / "half-written").exists()
    assert says(made.path / "bin" / "python", "import wheel; print('there')") == "there"


def test_a_lock_outlives_the_builder_in_its_installer(tmp_path: Path) -> None:
    """A killed builder leaves a running installer: no other builder may use its folder."""
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
    tmp_path: Path, python: Python, shell: Shell
) -> None:
    with pytest.raises(NoDistributionError, match=r"scikit-learn==0\.1\.\*") as failure:
        base_environment(tmp_path / "e", python, ["scikit-learn==0.1.*"], [], shell)
    assert "only scikit-learn==1." in str(failure.value)
    with pytest.raises(InstallError) as other:
        base_environment(tmp_path / "e", python, ["not a requirement"], [], shell)
    assert not isinstance(other.value, NoDistributionError)


def layer_of(tmp_path: Path, base: Base, shell: Shell, *packages: Path) -> Layer:
    return package_layer(tmp_path / "kept", base, packages, shell)


def test_layer_sees_base_after_its_own_packages(tmp_path: Path, base: Base, shell: Shell) -> None:
    own = layer_of(tmp_path, base, shell, package(tmp_path)).path / "bin" / "python"
    assert says(own, "import trainer, wheel; print(trainer.VALUE)") == "7"
    paths = says(own, "import sys; print('\\n'.join(sys.path))").splitlines()
    sites = [path for path in paths if "site-packages" in path]
    assert [str(tmp_path) in path for path in sites] == [True, False]
    with pytest.raises(subprocess.CalledProcessError):
        says(base.path / "bin" / "python", "import trainer")


def test_package_without_requirements_asks_no_index(tmp_path: Path, base: Base, shell: Shell) -> None:
    layer_of(tmp_path, base, shell, package(tmp_path))
    assert shell.commands() == ["build", "venv", "install"]
    assert {"--no-build-isolation", "--no-index"} <= {*shell.ran[0]}


def test_requirements_that_the_base_lacks_are_installed(tmp_path: Path, base: Base, shell: Shell) -> None:
    archive = trainers.wheel(tmp_path / "trainer-0.1-py3-none-any.whl", "", ["idna>=3", "wheel"])
    layer = layer_of(tmp_path, base, shell, archive)
    assert shell.commands() == ["resolve", "venv", "install"]
    where = says(
        layer.path / "bin" / "python", "import idna, trainer, wheel; print(idna.__file__, wheel.__file__)"
    )
    assert [path.startswith(str(layer.path)) for path in where.split()] == [True, False]
    assert layer.replaced == ()


def test_of_two_archives_of_one_distribution_the_last_counts(
    tmp_path: Path, base: Base, shell: Shell
) -> None:
    older = trainers.wheel(tmp_path / "1" / "trainer-0.1-py3-none-any.whl", "VALUE = 1")
    newer = trainers.wheel(tmp_path / "2" / "trainer-0.1-py3-none-any.whl", "VALUE = 2")
    layer = layer_of(tmp_path, base, shell, older, newer)
    assert says(layer.path / "bin" / "python", "import trainer.task; print(trainer.task.VALUE)") == "2"


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
    archive = trainers.source_distribution(tmp_path / "broken-1.0.tar.gz", files)
    with pytest.raises(
        InstallError, match=r"The package broken-1\.0\.tar\.gz could not be installed"
    ) as failure:
        layer_of(tmp_path, base, shell, archive)
    assert told in str(failure.value)
    assert shell.commands() == ["build", "build"]


def test_a_second_try_may_succeed(tmp_path: Path, base: Base, shell: Shell) -> None:
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
    layer = layer_of(tmp_path, base, shell, archive)
    assert says(layer.path / "bin" / "python", "import trainer; print(trainer.VALUE)") == "9"


def test_the_same_packages_are_installed_once(tmp_path: Path, base: Base, shell: Shell) -> None:
    archive = package(tmp_path / "1")
    first = layer_of(tmp_path, base, shell, archive)
    assert shell.commands() == ["build", "venv", "install"]
    shell.ran.clear()
    (tmp_path / "2").mkdir()
    again = layer_of(tmp_path, base, shell, archive.rename(tmp_path / "2" / "other-0.3.tar.gz"))
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


@pytest.fixture
def framework(tmp_path: Path, python: Python, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Base:
    """Return a base environment with a framework that works only with an old version of another package."""
    links = tmp_path / "links"
    trainers.library(links, "framework", "1.0", ["dep<2"])
    for version in ("1.0", "2.0"):
        trainers.library(links, "dep", version)
    trainers.library(links, "other", "1.0", ["dep"])
    trainers.library(links, "other", "2.0", ["dep>=2"])
    monkeypatch.setenv("PIP_FIND_LINKS", f"{os.environ['PIP_FIND_LINKS']} {links}")
    shell.read_settings()
    made = base_environment(tmp_path / "kept", python, ["framework"], ["dep<3"], shell)
    shell.ran.clear()
    return made


DEP = "import dep; print(dep.VERSION)"


def test_package_of_image_stays_where_it_satisfies_the_requirements(
    tmp_path: Path, framework: Base, shell: Shell
) -> None:
    archive = trainers.wheel(tmp_path / "trainer-0.1-py3-none-any.whl", "", ["other"])
    layer = layer_of(tmp_path, framework, shell, archive)
    python = layer.path / "bin" / "python"
    assert layer.replaced == ()
    assert says(python, "import other; print(other.VERSION)") == "1.0"
    assert says(python, "import dep; print(dep.__file__)").startswith(str(framework.path))


def test_package_that_the_trainer_demands_otherwise_is_put_over_the_image_s(
    tmp_path: Path, framework: Base, shell: Shell
) -> None:
    archive = trainers.wheel(tmp_path / "trainer-0.1-py3-none-any.whl", "", ["dep>=2"])
    layer = layer_of(tmp_path, framework, shell, archive)
    assert layer.replaced == (Replacement("dep", "1.0", "2.0", (("framework", "dep<2"),)),)
    assert layer_of(tmp_path, framework, shell, archive) == layer
    assert says(run_environment(tmp_path / "run", layer), DEP) == "2.0"
    assert says(framework.path / "bin" / "python", DEP) == "1.0"


def test_satisfied_requirements_ask_no_index(
    tmp_path: Path, framework: Base, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    shell.read_settings()
    archive = trainers.wheel(
        tmp_path / "trainer-0.1-py3-none-any.whl", "", ["framework", "dep>=1", "x; extra=='y'"]
    )
    assert layer_of(tmp_path, framework, shell, archive).replaced == ()


def test_archive_that_another_requires_is_looked_for_in_no_index(
    tmp_path: Path, base: Base, shell: Shell
) -> None:
    private = trainers.library(tmp_path / "1", "private", "1.0")
    archive = trainers.wheel(tmp_path / "2" / "trainer-0.1-py3-none-any.whl", "", ["private"])
    layer = layer_of(tmp_path, base, shell, archive, private)
    assert says(layer.path / "bin" / "python", "import private; print(private.VERSION)") == "1.0"


def test_archive_that_a_requirement_requires_is_looked_for_in_no_index(
    tmp_path: Path, base: Base, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainers.library(tmp_path / "links", "public", "1.0", ["private"])
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    shell.read_settings()
    private = trainers.library(tmp_path / "1", "private", "1.0")
    archive = trainers.wheel(tmp_path / "2" / "trainer-0.1-py3-none-any.whl", "", ["public"])
    layer = layer_of(tmp_path, base, shell, archive, private)
    assert says(layer.path / "bin" / "python", "import private, public; print(private.VERSION)") == "1.0"


@pytest.mark.parametrize("answer", ["refuses", "is silent"])
def test_unreachable_index_is_named_after_one_try(
    answer: str, tmp_path: Path, base: Base, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setitem(venvs._IMPATIENT, "UV_HTTP_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if answer == "refuses":
            server.close()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://user:secret@127.0.0.1:{port}/simple")
        shell.read_settings()
        archive = trainers.wheel(tmp_path / "trainer-0.1-py3-none-any.whl", "", ["nothing-like-it"])
        with pytest.raises(UnreachableIndexError) as failure:
            layer_of(tmp_path, base, shell, archive)
    assert f"cannot reach the package index at http://127.0.0.1:{port}/simple: " in str(failure.value)
    assert "secret" not in "".join([str(failure.value), *shell.said])
    assert shell.commands() == ["resolve"]


def test_unreachable_index_is_given_up_within_15_seconds() -> None:
    limits = {name: float(value) for name, value in venvs._IMPATIENT.items()}
    tries = 1 + limits["UV_HTTP_RETRIES"]
    assert tries * max(limits["UV_HTTP_TIMEOUT"], limits["UV_HTTP_CONNECT_TIMEOUT"]) <= 10


def test_a_run_changes_its_own_copy_only(tmp_path: Path, base: Base, shell: Shell) -> None:
    archive = trainers.wheel(tmp_path / "trainer-0.1-py3-none-any.whl", "VALUE = 1", ["idna>=3"])
    layer = layer_of(tmp_path, base, shell, archive)
    first, second = (run_environment(tmp_path / name, layer) for name in ("a", "b"))
    task = Path(says(first, "import trainer.task; print(trainer.task.__file__)"))
    task.write_text("VALUE = 22")
    Path(says(first, "import idna; print(idna.__file__)")).write_text("__version__ = 'broken'")
    value = "import trainer.task, idna; print(trainer.task.VALUE, idna.__version__)"
    assert says(first, value) == "22 broken"
    later = run_environment(tmp_path / "c", layer_of(tmp_path, base, shell, archive))
    for unchanged in (second, later, layer.path / "bin" / "python"):
        assert says(unchanged, value).startswith("1 3.")


def test_requirement_changed_by_run_is_whole_in_layer_of_other_packages(
    tmp_path: Path, base: Base, shell: Shell
) -> None:
    """Files installed for a trainer's package are not shared with uv's cache."""
    one, two = (
        layer_of(
            tmp_path,
            base,
            shell,
            trainers.wheel(tmp_path / name / "trainer-0.1-py3-none-any.whl", name, ["idna"]),
        )
        for name in ("1", "2")
    )
    where, what = "import idna; print(idna.__file__)", "import idna; print(idna.__version__)"
    file = Path(says(one.path / "bin" / "python", where))
    assert file.stat().st_nlink == 1
    file.write_text("__version__ = 'broken'")
    assert says(one.path / "bin" / "python", what) == "broken"
    assert says(two.path / "bin" / "python", what).startswith("3.")


def test_what_a_trainer_installs_while_it_runs_stays_in_its_run(
    tmp_path: Path, base: Base, shell: Shell
) -> None:
    """By its Python, and by the first `pip` in its PATH."""
    layer = layer_of(tmp_path, base, shell, package(tmp_path))
    own = run_environment(tmp_path / "run", layer)
    for command in ([own, "-m", "pip"], [own.parent / "pip"]):
        subprocess.run([*command, "install", "--quiet", "--upgrade", "idna"], check=True)
        where = "import idna; print(idna.__file__)"
        assert says(own, where).startswith(str(tmp_path / "run"))
        subprocess.run([*command, "uninstall", "--quiet", "--yes", "idna"], check=True)
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
        "RECONCILER_PULL_IMAGES": "0",
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
    assert environment_variables.for_runner(given)["RECONCILER_PULL_IMAGES"] == "0"
    for passed_on in (installer, environment_variables.for_runner(given)):
        assert not {"GITHUB_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "AWS_SECRET_ACCESS_KEY"} & {*passed_on}
