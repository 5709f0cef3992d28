"""Preparation of a trainer's run: fetch its packages, choose its Python, make its environment."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from reconciler.training_service.environments import venvs
from reconciler.training_service.environments.venvs import Base, Candidate, NoDistributionError, Outcome
from reconciler.training_service.http.message import ApiError
from reconciler.training_service.jobs import archives, environment_variables, images
from reconciler.training_service.jobs.archives import Needs
from reconciler.training_service.jobs.images import NEWEST, OLDEST, Image, Minor, Override
from reconciler.training_service.jobs.launch import bucket_of
from reconciler.training_service.processes.programs import Programs
from reconciler.training_service.state.records import Code
from reconciler.training_service.state.run_folder import PythonTask, RunError, RunFolder
from reconciler.training_service.state.run_log import INFO, WARNING
from reconciler.training_service.storage import files
from reconciler.training_service.storage.gsutil import main

_PYTHONS_TRIED = 3

Say = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A trainer's environment, ready to run in.

    Attributes:
        python: Its Python.
        programs: Folders to put at the front of its PATH.
        locks: Descriptors; the shared environments aren't removed while they are open.
    """

    python: Path
    programs: tuple[Path, ...]
    locks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The Pythons and packages chosen for a trainer.

    Attributes:
        wanted: The Python that it would have in the cloud.
        fitting: The Pythons of this machine that may be used, nearest first.
        requirements: The packages to install; `constraints` are versions of their dependencies.
    """

    wanted: Minor
    fitting: tuple[Candidate, ...]
    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()


def prepare(
    folder: RunFolder, task: PythonTask, programs: Programs, say: Say, check_home: Callable[[], None]
) -> Prepared:
    """Fetch the trainer's packages and make its environment.

    Args:
        say: Writes a text to the run's log, with a severity.
        check_home: Raises HomeError if another person may own the service's home.

    Raises:
        HomeError: `check_home` rejected the home.
        RunError: A package is missing, or this machine has no suitable Python.
        InstallError: pip failed.
        Interrupted: The run was to end.
    """
    shell = _Shell(folder, programs, say, check_home)
    # Resolved, because environments contain their own path: several homes may share a folder by links to it.
    shared = (folder.service_home / "environments").resolve()
    name = hashlib.sha256(repr(task).encode()).hexdigest()[:8]  # a run may have several tasks
    packages = fetch(task.packages, folder.service_home / "gcs", folder.packages / name)
    check_home()  # the packages may have been replaced just before they were copied
    choice = choose(task, needs_of(packages), venvs.candidates(os.environ))
    base = _base(choice, task, shared, shell)
    for archive in packages:
        say(INFO, f"Installing {archive.name}")
    layer = venvs.package_layer(shared, base, packages, shell)
    python = venvs.run_environment(folder.environment / name, layer)
    main.write_launchers(folder.environment / "gs")
    folders = (folder.environment / "gs", python.parent, base.path / "bin")
    return Prepared(python, folders, (base.lock, layer.lock))


def fetch(uris: Sequence[str], buckets: Path, folder: Path) -> list[Path]:
    """Copy package objects out of their buckets, each into its own folder because file names may repeat.

    Raises:
        RunError: An object is missing.
    """
    return [_fetch(uri, buckets, folder / str(number)) for number, uri in enumerate(uris)]


def needs_of(packages: Sequence[Path]) -> Needs:
    """Return the modules, names and distributions that any of the packages mentions."""
    found = Needs()
    for archive in packages:
        found |= archives.needs(archive)
    return found


def choose(task: PythonTask, needs: Needs, held: Sequence[Candidate]) -> Choice:
    """Choose among the Pythons of this machine for a trainer with these needs.

    Raises:
        RunError: No Python is suitable; the message names the required and the available versions.
    """
    image = images.find_image(task.image)
    if task.override is not None:
        override = Override(task.override["python"], tuple(task.override["requirements"]))
        return _by_override(task.image, override, image, held)
    if image is None:
        raise RunError(Code.FAILED_PRECONDITION, f"The image {task.image} isn't known here.")
    return _by_image(image, _minor_of(task.python) or image.python, needs, held)


def _fetch(uri: str, buckets: Path, folder: Path) -> Path:
    with _open_object(uri, buckets) as source:
        if source is None:
            raise RunError(Code.NOT_FOUND, f"The package {uri} isn't there.")
        folder.mkdir(parents=True)
        archive = folder / PurePosixPath(uri).name
        with archive.open("wb") as copy:
            shutil.copyfileobj(source, copy)
    return archive


def hint_of_missing_module(task: PythonTask, errors: str) -> str:
    """Return advice if a trainer failed for a module that its image has in the cloud, else ""."""
    missing = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", errors)
    image = images.find_image(task.image) if task.override is None else None
    package = image.package_with(missing[1]) if image and missing else None
    if package is None:
        return ""
    return (
        f"The image has {package.requirement}, but no import statement in the trainer's packages names it, so"
        " it wasn't installed here: import it plainly, or say under images: in reconciler.yaml what it needs."
    )


@contextmanager
def _open_object(uri: str, buckets: Path) -> Iterator[BinaryIO | None]:
    bucket = bucket_of(uri)
    descriptor = None
    if files.is_bucket_name(bucket):
        with suppress(OSError, ApiError), files.opened(buckets / bucket) as folder:
            parts = files.parts_of(uri.removeprefix(f"gs://{bucket}/"))
            descriptor = files.open_file(folder, parts)
    if descriptor is None:
        yield None
    else:
        with os.fdopen(descriptor, "rb") as file:
            yield file


def _by_override(name: str, override: Override, image: Image | None, held: Sequence[Candidate]) -> Choice:
    matching = _specifier(override.python)
    fitting = [candidate for candidate in held if matching.contains(_text(candidate.minor))]
    nearest = venvs.by_distance(fitting, image.python if image else held[0].minor, OLDEST, NEWEST)
    if not nearest:
        raise _no_python(f"{name} is to run on Python {override.python}", held)
    # The user chose a Python that differs from the cloud's, so this causes no warning.
    return Choice(nearest[0].minor, nearest, override.requirements)


def _by_image(image: Image, wanted: Minor, needs: Needs, held: Sequence[Candidate]) -> Choice:
    packages = image.needed(needs)
    oldest, newest = images.pythons_with_wheels(packages)
    nearest = venvs.by_distance(held, wanted, oldest, newest)
    if not nearest:
        limited = ", ".join(package.requirement for package in packages if package.newest < NEWEST)
        raise _no_python(
            f"{image.name} has Python {_text(wanted)}, and there are wheels of {limited}"
            f" for Python {_text(oldest)} to {_text(newest)}",
            held,
            remedy=" Say under images in reconciler.yaml which Python and requirements to run it with.",
        )
    return Choice(wanted, nearest, tuple(package.requirement for package in packages), image.constraints())


def _specifier(python: str) -> SpecifierSet:
    """Return the specifier for a version "3.11" or a range ">=3.11,<3.13"; "" matches every Python."""
    is_version = bool(python) and python.replace(".", "").isdigit()
    try:
        return SpecifierSet(f"=={'.'.join(python.split('.')[:2])}.*" if is_version else python)
    except InvalidSpecifier as error:
        message = f"The images setting names Python {python!r}, which is no version and no range of versions."
        raise RunError(Code.FAILED_PRECONDITION, message) from error


def _minor_of(version: str) -> Minor | None:
    parts = version.split(".")
    is_minor = len(parts) == 2 and all(part.isdigit() for part in parts)
    return (int(parts[0]), int(parts[1])) if is_minor else None


def _no_python(wanted: str, held: Sequence[Candidate], remedy: str = "") -> RunError:
    here = ", ".join(_text(minor) for minor in sorted({candidate.minor for candidate in held}))
    return RunError(Code.FAILED_PRECONDITION, f"{wanted}; this machine has Python {here}.{remedy}")


def _base(choice: Choice, task: PythonTask, folder: Path, shell: _Shell) -> Base:
    """Return the base environment on the nearest Python with distributions of all requirements."""
    problem = ""
    # Each attempt may cost minutes of pip, so only the nearest Pythons are tried.
    for python in islice(venvs.working_pythons(choice.fitting), _PYTHONS_TRIED):
        try:
            base = venvs.base_environment(folder, python, choice.requirements, choice.constraints, shell)
        except NoDistributionError as error:
            problem = problem or str(error)
            continue
        if python.minor != choice.wanted:
            wanted = f"{task.image} has Python {_text(choice.wanted)}"
            shell.say(WARNING, f"{wanted}: the job runs on Python {python.version}, the nearest here.")
        return base
    tried = ", ".join(dict.fromkeys(_text(candidate.minor) for candidate in choice.fitting))
    raise RunError(
        Code.FAILED_PRECONDITION,
        problem or f"{task.image} could run on Python {tried}, but none of these here makes environments.",
    )


def _text(minor: Minor) -> str:
    return f"{minor[0]}.{minor[1]}"


class _Shell:
    """Runner of installers as programs of the run; logs the output of those that fail."""

    def __init__(
        self, folder: RunFolder, programs: Programs, say: Say, check_home: Callable[[], None]
    ) -> None:
        self._check_home = check_home
        self._programs = programs
        self._folder = folder
        self._temp = folder.temp()
        self.say = say

    def run(self, argv: Sequence[str], *, keep: Sequence[int] = ()) -> Outcome:
        done = self._run_once(argv, keep)
        # A signal comes from the kernel, for lack of memory, or from a person; the packages aren't at fault.
        return self._run_once(argv, keep) if done.code < 0 else done

    def _run_once(self, argv: Sequence[str], keep: Sequence[int]) -> Outcome:
        # Python would run a .pth file that a checkout has put into the environment since the last check.
        self._check_home()
        printed: list[str] = []
        env = environment_variables.for_installer(os.environ, self._temp)
        code = self._programs.run(
            argv, env=env, cwd=self._temp, out=printed.extend, err=printed.extend, keep=keep
        )
        if code < 0:
            printed.append(f"The installer was killed by signal {-code}.")
        output = "\n".join(printed)
        if code != 0:
            self.say(INFO, output)
        return Outcome(code, output)

    def pause(self) -> None:
        self._programs.pause()
