"""What comes before a trainer runs: its packages fetched, its Python chosen, its environment made."""

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
from reconciler.training_service.state.run_folder import PythonTask, RunFolder
from reconciler.training_service.state.run_log import INFO, WARNING
from reconciler.training_service.storage import files
from reconciler.training_service.storage.gsutil import main

_PYTHONS_TRIED = 3

Say = Callable[[str, str], None]


class PreparationError(Exception):
    """The trainer can't be run here; `code` is the google.rpc.Code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a trainer runs on.

    Attributes:
        python: Its Python.
        programs: The folders of the programs that it finds.
        locks: Descriptors; as long as they are open, what it runs on stays.
    """

    python: Path
    programs: tuple[Path, ...]
    locks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """What a trainer is to run on.

    Attributes:
        wanted: The Python that it would have in the cloud.
        fitting: The Pythons here that may do, nearest first.
        requirements: What is installed; `constraints` are the versions of what comes with it.
    """

    wanted: Minor
    fitting: tuple[Candidate, ...]
    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()


def prepare(
    folder: RunFolder, task: PythonTask, programs: Programs, say: Say, check_home: Callable[[], None]
) -> Prepared:
    """Make everything ready for the trainer.

    Args:
        say: Writes a text to the run's log, with a severity.
        check_home: Raises HomeError where the service's home may be another person's.

    Raises:
        HomeError: The home isn't used.
        PreparationError: A package is missing, or no Python here will do.
        InstallError: pip failed.
        Interrupted: The run was to end.
    """
    shell = _Shell(folder, programs, say)
    # Resolved, because environments know where they lie: several homes may share a folder by links to it.
    kept = (folder.service_home / "environments").resolve()
    name = hashlib.sha256(repr(task).encode()).hexdigest()[:8]  # a run may have several tasks
    packages = fetch(task.packages, folder.service_home / "gcs", folder.packages / name)
    check_home()  # the packages may have been replaced just before they were copied
    choice = choose(task, needs_of(packages), venvs.candidates(os.environ))
    base = _base(choice, task, kept, shell)
    for archive in packages:
        say(INFO, f"Installing {archive.name}")
    layer = venvs.package_layer(kept, base, packages, shell)
    python = venvs.run_environment(folder.environment / name, layer)
    main.write_launchers(folder.environment / "gs")
    programs_found = (folder.environment / "gs", python.parent, base.path / "bin")
    return Prepared(python, programs_found, (base.lock, layer.lock))


def fetch(uris: Sequence[str], buckets: Path, folder: Path) -> list[Path]:
    """Copy package objects out of their buckets, each into a folder of its own: file names may repeat.

    Raises:
        PreparationError: One isn't there.
    """
    return [_fetched(uri, buckets, folder / str(number)) for number, uri in enumerate(uris)]


def needs_of(packages: Sequence[Path]) -> Needs:
    """What the packages mention together."""
    found = Needs()
    for archive in packages:
        found |= archives.needs(archive)
    return found


def choose(task: PythonTask, needs: Needs, held: Sequence[Candidate]) -> Choice:
    """What a trainer with these needs runs on, of the Pythons that this machine holds.

    Raises:
        PreparationError: None of them will do; the message names what is wanted and what is here.
    """
    image = images.find_image(task.image)
    if task.override is not None:
        return _by_override(
            task.image, Override(task.override["python"], tuple(task.override["requirements"])), image, held
        )
    if image is None:
        raise PreparationError(Code.FAILED_PRECONDITION, f"The image {task.image} isn't known here.")
    return _by_image(image, _asked_for(task.python) or image.python, needs, held)


def _fetched(uri: str, buckets: Path, folder: Path) -> Path:
    with _opened(uri, buckets) as source:
        if source is None:
            raise PreparationError(Code.NOT_FOUND, f"The package {uri} isn't there.")
        folder.mkdir(parents=True)
        archive = folder / PurePosixPath(uri).name
        with archive.open("wb") as copy:
            shutil.copyfileobj(source, copy)
    return archive


def hint_of_missing_module(task: PythonTask, errors: str) -> str:
    """What to do where a trainer has failed for a module that its image has; "" where that isn't so."""
    missing = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", errors)
    image = images.find_image(task.image) if task.override is None else None
    package = image.holding(missing[1]) if image and missing else None
    if package is None:
        return ""
    return (
        f"The image has {package.requirement}, but no import statement in the trainer's packages names it, so"
        " it wasn't installed here: import it plainly, or say under images: in reconciler.yaml what it needs."
    )


@contextmanager
def _opened(uri: str, buckets: Path) -> Iterator[BinaryIO | None]:
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
    matching = _matching(override.python)
    fitting = [candidate for candidate in held if matching.contains(_text(candidate.minor))]
    nearest = venvs.by_distance(fitting, image.python if image else held[0].minor, OLDEST, NEWEST)
    if not nearest:
        raise _no_python(f"{name} is to run on Python {override.python}", held)
    # It differs from the cloud's because the user wants so: nothing to warn of.
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


def _matching(python: str) -> SpecifierSet:
    """What a Python has to be: "3.11" or ">=3.11,<3.13"; "" is matched by each."""
    is_version = bool(python) and python.replace(".", "").isdigit()
    try:
        return SpecifierSet(f"=={'.'.join(python.split('.')[:2])}.*" if is_version else python)
    except InvalidSpecifier as error:
        message = f"The images setting names Python {python!r}, which is no version and no range of versions."
        raise PreparationError(Code.FAILED_PRECONDITION, message) from error


def _asked_for(version: str) -> Minor | None:
    parts = version.split(".")
    return (
        (int(parts[0]), int(parts[1])) if len(parts) == 2 and all(part.isdigit() for part in parts) else None
    )


def _no_python(wanted: str, held: Sequence[Candidate], remedy: str = "") -> PreparationError:
    here = ", ".join(_text(minor) for minor in sorted({candidate.minor for candidate in held}))
    return PreparationError(Code.FAILED_PRECONDITION, f"{wanted}; this machine has Python {here}.{remedy}")


def _base(choice: Choice, task: PythonTask, folder: Path, shell: _Shell) -> Base:
    """The base environment on the nearest Python that everything can be installed for."""
    problem = ""
    for python in islice(venvs.running(choice.fitting), _PYTHONS_TRIED):
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
    raise PreparationError(
        Code.FAILED_PRECONDITION,
        problem or f"{task.image} could run on Python {tried}, but none of these here makes environments.",
    )


def _text(minor: Minor) -> str:
    return f"{minor[0]}.{minor[1]}"


class _Shell:
    """Runs installers as programs of the run; what they print goes to its log where they fail."""

    def __init__(self, folder: RunFolder, programs: Programs, say: Say) -> None:
        self._programs = programs
        self._folder = folder
        self._temp = folder.temp()
        self.say = say

    def run(self, argv: Sequence[str], *, keep: Sequence[int] = ()) -> Outcome:
        done = self._tried(argv, keep)
        # Killed by the kernel for memory, or by hand: nothing that the packages have done.
        return self._tried(argv, keep) if done.code < 0 else done

    def _tried(self, argv: Sequence[str], keep: Sequence[int]) -> Outcome:
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
