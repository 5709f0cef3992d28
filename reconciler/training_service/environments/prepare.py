"""Preparation of a trainer's run: fetch its packages, choose its Python, make its environment."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from uv import find_uv_bin

from reconciler.training_service.environments import venvs
from reconciler.training_service.environments.pip_settings import SettingError, uv_settings
from reconciler.training_service.environments.venvs import (
    Base,
    InstallError,
    Layer,
    NoDistributionError,
    Python,
    UnreachableIndexError,
    Uv,
)
from reconciler.training_service.jobs import archives, environment_variables, images
from reconciler.training_service.jobs.archives import Needs
from reconciler.training_service.jobs.images import NEWEST, OLDEST, Image, Minor, Override
from reconciler.training_service.jobs.python_containers import StagedCode, python_of_image, staged_code
from reconciler.training_service.processes.programs import Programs
from reconciler.training_service.state.records import MOST_OF_VALUE, Code
from reconciler.training_service.state.run_folder import MissingPackageError, RunError, RunFolder
from reconciler.training_service.state.run_log import INFO, WARNING
from reconciler.training_service.state.run_spec import PythonTask
from reconciler.training_service.storage import files
from reconciler.training_service.storage.gsutil import main

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

_PYTHONS_TRIED = 3
_LISTING_LIMIT = 30.0
_MAY_INSTALL = "RECONCILER_INSTALL_PYTHON"
_INSTALLING = (
    "To add one, run `uv python install VERSION` (3.8 or newer), or set"
    f" {_MAY_INSTALL}=1 before the service starts, which then does so itself."
)
_MISSING = re.compile(
    r"ModuleNotFoundError: No module named '(?P<module>[\w.]+)'"
    r"|ImportError: cannot import name '(?P<part>\w+)' from 'google.cloud'"
)
_AT_IMPORT = re.compile(
    r"^(?: {4}(?:import|from) |(?:\w+\.)*(?:ImportError|ModuleNotFoundError): )", re.MULTILINE
)

_GCS = re.compile(r"(?<!\S)/gcs/")

Say = Callable[[str, str], None]


class NoPythonError(RunError):
    """No Python of this machine is suitable; `request` is the version or range that uv may install."""

    def __init__(self, message: str, request: str) -> None:
        super().__init__(Code.FAILED_PRECONDITION, message, "PYTHON_MISSING")
        self.request = request


@dataclass(frozen=True, slots=True)
class Prepared:
    """A trainer's environment, ready to run in.

    Attributes:
        python: Its Python.
        args: The task's arguments, without what this environment has done of them.
        programs: Folders to put at the front of its PATH.
        locks: Descriptors; the shared environments aren't removed while they are open.
        conflicts: The packages of the image that the trainer's packages replaced, and the remedy; "" if none.
    """

    python: Path
    args: tuple[str, ...]
    programs: tuple[Path, ...]
    locks: tuple[int, ...]
    conflicts: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """The Pythons and packages chosen for a trainer.

    Attributes:
        wanted: The Python that it would have in the cloud.
        fitting: The Pythons of this machine that may be used, nearest first.
        requirements: The packages to install; `constraints` are versions of their dependencies.
    """

    wanted: Minor
    fitting: tuple[Python, ...]
    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()


def prepare(
    folder: RunFolder, task: PythonTask, env: Mapping[str, str], programs: Programs, say: Say
) -> Prepared:
    """Fetch the trainer's packages and make its environment.

    Args:
        env: The job's variables: pip's among them count for the lock file of staged code, as in a container.
        say: Writes a text to the run's log, with a severity.

    Raises:
        RunError: A package is missing or can't be installed, or this machine has no suitable Python.
        Interrupted: The run was to end.
    """
    try:
        return _prepare(folder, task, env, programs, say)
    except UnreachableIndexError as error:
        failure = RunError(Code.UNAVAILABLE, str(error), "INDEX_UNREACHABLE", index=error.index)
    except NoDistributionError as error:
        failure = RunError(Code.INVALID_ARGUMENT, str(error), "PACKAGES_NOT_RESOLVED")
    except InstallError as error:
        full = any(words in str(error) for words in ("No space left on device", "File too large"))
        reason = "DISK_FULL" if full else "PACKAGES_NOT_INSTALLED"
        failure = RunError(Code.INVALID_ARGUMENT, str(error), reason)
    except RunError as error:
        failure = error
    # Tells a client if the image's entry under `images` has changed since.
    if len(task.image) <= MOST_OF_VALUE:
        failure.details["image"] = task.image
        if task.override is not None:
            failure.details["entry"] = images.entry_digest(task.override)
    raise failure


def _prepare(
    folder: RunFolder, task: PythonTask, env: Mapping[str, str], programs: Programs, say: Say
) -> Prepared:
    uv = _uv(folder, {}, programs, say)
    buckets = folder.service_home / "gcs"
    # Resolved, because environments contain their own path: several homes may share a folder by links to it.
    shared = (folder.service_home / "environments").resolve()
    name = hashlib.sha256(repr(task).encode()).hexdigest()[:8]  # a run may have several tasks
    packages = fetch(task.packages, buckets, folder.packages / name)
    choice = choose_or_install(task, needs_of(packages), uv)
    base = _base(choice, task, shared, uv)
    locks: tuple[int, ...] = (base.lock,)
    args = task.args
    code = staged_code(task)
    if code and (lock := _lock_file(code, buckets)):
        # A bucket's path here is another one than in the trainer's view.
        pip = {n: _GCS.sub(f"{buckets}/", value) for n, value in env.items() if n.startswith("PIP_")}
        of_job = _uv(folder, pip, programs, say)
        base = venvs.locked_environment(shared, base, lock, code.requirements, of_job)
        locks, args = (*locks, base.lock), code.without_requirements
    for archive in packages:
        say(INFO, f"Installing {archive.name}")
    layer = venvs.package_layer(shared, base, packages, uv)
    python = venvs.run_environment(folder.environment / name, layer)
    os.close(layer.lock)  # the run has a copy of it
    main.write_launchers(folder.environment / "gs")
    folders = (folder.environment / "gs", python.parent, base.path / "bin")
    return Prepared(python, args, folders, locks, _conflicts(task, choice, layer, say))


def _uv(folder: RunFolder, pip: Mapping[str, str], programs: Programs, say: Say) -> Uv:
    """Return uv with the user's settings of pip, and with those variables of pip's before them."""
    try:
        settings = uv_settings({**os.environ, **pip})
    except SettingError as error:
        raise RunError(Code.FAILED_PRECONDITION, str(error), "INSTALLER_SETTINGS") from error
    env = settings.applied_to(environment_variables.for_installer(os.environ, folder.temp()))
    return Uv(settings, env, folder.temp(), programs, say)


def _lock_file(code: StagedCode, buckets: Path) -> bytes:
    """Return the lock file in staged code; b"" without one.

    Code that isn't the submitted one has none: its program ends the run with the reason.
    """
    if not code.requirements:
        return b""
    with files.opened_object(buckets, code.uri) as archive:
        if archive is None or hashlib.file_digest(archive, "sha256").hexdigest() != code.sha256:
            return b""
        return archives.lock_file_of(archive, code.requirements)


def fetch(uris: Sequence[str], buckets: Path, folder: Path) -> list[Path]:
    """Copy package objects out of their buckets, each into its own folder because file names may repeat.

    Raises:
        RunError: An object is missing.
    """
    return [_fetch(uri, buckets, folder / str(number)) for number, uri in enumerate(uris)]


def needs_of(packages: Sequence[Path]) -> Needs:
    """Return the modules, names and distributions that any of the packages mentions."""
    needs = Needs()
    for archive in packages:
        needs |= archives.needs(archive)
    return needs


def pythons(environ: Mapping[str, str]) -> tuple[Python, ...]:
    """List the Pythons of this machine, one of each minor version, the service's own first.

    They are its own, uv's, pyenv's, and those on PATH.

    Raises:
        OSError: uv can't list them.
    """
    # The base interpreter: the service's virtual environment may be deleted before environments made from it.
    interpreter = Path(getattr(sys, "_base_executable", None) or sys.executable)
    search = os.pathsep.join([str(interpreter.parent), *_folders_of_pythons(environ)])
    command = [find_uv_bin(), "python", "list", "--only-installed", "--output-format", "json"]
    env = {**environ, "UV_PYTHON_SEARCH_PATH": search}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=True,
            timeout=_LISTING_LIMIT,
            stdin=subprocess.DEVNULL,
            env=env,
            cwd="/",
        )
    except subprocess.SubprocessError as error:
        raise OSError(f"uv can't list the Pythons of this machine: {error}") from error
    by_minor: dict[Minor, Python] = {}
    for entry in json.loads(done.stdout):
        version, path = entry["version_parts"], Path(entry["path"])
        minor = (int(version["major"]), int(version["minor"]))
        usable = (entry["implementation"], entry["variant"]) == ("cpython", "default")
        if usable and (minor not in by_minor or path.resolve() == interpreter.resolve()):
            by_minor[minor] = Python(path, minor, entry["version"])
    return tuple(sorted(by_minor.values(), key=lambda python: python.path.resolve() != interpreter.resolve()))


def by_distance(held: Iterable[Python], wanted: Minor, oldest: Minor, newest: Minor) -> tuple[Python, ...]:
    """Return the Pythons from `oldest` to `newest`, the nearest to `wanted` first; on a tie, the newer."""
    fitting = (python for python in held if oldest <= python.minor <= newest)
    return tuple(sorted(fitting, key=lambda python: (abs(python.minor[1] - wanted[1]), -python.minor[1])))


def _folders_of_pythons(environ: Mapping[str, str]) -> list[str]:
    home = Path(environ.get("HOME") or Path.home())
    pyenv = Path(environ.get("PYENV_ROOT") or home / ".pyenv")
    # Most of pyenv's shims run no Python, and uv would try each of them, in each run.
    listed = environ.get("PATH", "").split(os.pathsep)
    versions = sorted(pyenv.glob("versions/*/bin"), reverse=True)
    return [*map(str, versions), *(folder for folder in listed if folder != str(pyenv / "shims"))]


def choose_or_install(task: PythonTask, needs: Needs, uv: Uv) -> Choice:
    """Choose a Python for a trainer; if none is suitable, and the user allows it, install one.

    Raises:
        RunError: No Python is suitable, or it can't be installed.
        OSError: uv can't list them.
        Interrupted: The run was to end.
    """
    environ = {**os.environ, **uv.env}
    try:
        return choose(task, needs, pythons(environ))
    except NoPythonError as error:
        if os.environ.get(_MAY_INSTALL) != "1":
            uv.say(INFO, _INSTALLING)
            raise
        failure, request = error.message.splitlines()[0], error.request
    installing = f"installing Python {request}"
    uv.say(INFO, f"No Python here is suitable: {installing}")
    allowed = {name: value for name, value in os.environ.items() if name.startswith("UV_PYTHON_")}
    try:
        uv.run(
            installing,
            ["python", "install", "--no-bin", request],
            None,
            {**allowed, "UV_PYTHON_DOWNLOADS": "manual"},
        )
    except venvs.CommandError as error:
        reason = f"{failure} uv could not install it: {str(error).strip()}"
        raise RunError(Code.FAILED_PRECONDITION, reason, "PYTHON_MISSING") from error
    return choose(task, needs, pythons(environ))


def choose(task: PythonTask, needs: Needs, held: Sequence[Python]) -> Choice:
    """Choose among the Pythons of this machine for a trainer with these needs.

    Raises:
        NoPythonError: No Python is suitable; the message names the required and the available versions.
        RunError: The image isn't known.
    """
    image = images.find_image(task.image)
    if task.override is not None:
        override = Override(task.override["python"], tuple(task.override["requirements"]))
        return _by_override(task.image, override, image, held)
    if python := python_of_image(task.image):
        return _by_override(task.image, Override(python, ()), None, held)
    if image is None:  # an earlier version took the job: now its create is refused
        message = f"The image {task.image} isn't known here."
        raise RunError(Code.FAILED_PRECONDITION, message, "IMAGE_UNKNOWN")
    return _by_image(image, _minor_of(task.python) or image.python, needs, held)


def _fetch(uri: str, buckets: Path, folder: Path) -> Path:
    with files.opened_object(buckets, uri) as source:
        if source is None:
            raise MissingPackageError(uri)
        folder.mkdir(parents=True)
        archive = folder / PurePosixPath(uri).name
        with archive.open("wb") as copy:
            shutil.copyfileobj(source, copy)
    return archive


def hint_of(task: PythonTask, prepared: Prepared, errors: str) -> str:
    """Return advice if a missing or replaced package may explain a trainer's failed import; else ""."""
    return _hint_of_missing_module(task, errors) or (prepared.conflicts if _AT_IMPORT.search(errors) else "")


def _conflicts(task: PythonTask, choice: Choice, layer: Layer, say: Say) -> str:
    """Log the packages of the image that the trainer's packages replaced; return them with the remedy."""
    lines = [
        f"The image has {replacement.name} {replacement.old}, and the trainer's packages require another:"
        f" they got {replacement.new}."
        + "".join(f" {name} of the image requires {required}." for name, required in replacement.broken)
        for replacement in layer.replaced
    ]
    for line, replacement in zip(lines, layer.replaced, strict=True):
        say(WARNING if replacement.broken else INFO, line)
    if not lines:
        return ""
    news = {replacement.name: f"{replacement.name}=={replacement.new}" for replacement in layer.replaced}
    free = {name for replacement in layer.replaced for name, _ in replacement.broken}
    kept = [
        line if name not in free else name
        for line in choice.requirements
        if (name := _name(line)) not in news
    ]
    entry = images.override_entry(task.image, _text(layer.base.python.minor), [*kept, *news.values()])
    remedy = "To install the image's packages for those versions, say under images in reconciler.yaml"
    return "\n".join([*lines, f"{remedy}: {entry}"])


def _hint_of_missing_module(task: PythonTask, errors: str) -> str:
    missing = _MISSING.search(errors)
    image = images.find_image(task.image)
    module = (missing["module"] or f"google.cloud.{missing['part']}") if missing else ""
    package = image.package_with(module) if image and missing else None
    if package is None:
        return ""
    if task.override is not None:
        return (
            f"The image has {package.requirement}, and the entry for it under images in reconciler.yaml"
            " installs other packages in place of the image's: add this one to its requirements, or remove"
            " the entry."
        )
    return (
        f"The image has {package.requirement}, but no import statement in the trainer's packages names it, so"
        " it wasn't installed here: import it plainly, or say under images: in reconciler.yaml what it needs."
    )


def _by_override(name: str, override: Override, image: Image | None, held: Sequence[Python]) -> Choice:
    matching = _specifier(override.python)
    fitting = [candidate for candidate in held if matching.contains(_text(candidate.minor))]
    nearest = by_distance(fitting, image.python if image else held[0].minor, OLDEST, NEWEST)
    if not nearest:
        raise _no_python(f"{name} is to run on Python {override.python}", held, str(matching))
    # The user chose a Python that differs from the cloud's, so this causes no warning.
    return Choice(nearest[0].minor, nearest, override.requirements)


def _by_image(image: Image, wanted: Minor, needs: Needs, held: Sequence[Python]) -> Choice:
    packages = image.needed(needs)
    oldest, newest = images.pythons_with_wheels(packages)
    nearest = by_distance(held, wanted, oldest, newest)
    if not nearest:
        limited = ", ".join(package.requirement for package in packages if package.newest < NEWEST)
        raise _no_python(
            f"{image.name} has Python {_text(wanted)}, and there are wheels of {limited}"
            f" for Python {_text(oldest)} to {_text(newest)}",
            held,
            _text(min(max(wanted, oldest), newest)),
            remedy=" Say under images in reconciler.yaml which Python and requirements to run it with.",
        )
    return Choice(wanted, nearest, tuple(package.requirement for package in packages), image.constraints())


def _specifier(python: str) -> SpecifierSet:
    """Return the specifier for a version "3.11" or a range ">=3.11,<3.13"; "" matches every Python."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # here: importing it takes long

    is_version = bool(python) and python.replace(".", "").isdigit()
    try:
        return SpecifierSet(f"=={'.'.join(python.split('.')[:2])}.*" if is_version else python)
    except InvalidSpecifier as error:
        message = f"The images setting names Python {python!r}, which is no version and no range of versions."
        raise RunError(Code.FAILED_PRECONDITION, message, "PYTHON_MISSING") from error


def _minor_of(version: str) -> Minor | None:
    parts = version.split(".")
    is_minor = len(parts) == 2 and all(part.isdigit() for part in parts)
    return (int(parts[0]), int(parts[1])) if is_minor else None


def _no_python(wanted: str, held: Sequence[Python], request: str, remedy: str = "") -> NoPythonError:
    here = ", ".join(_text(minor) for minor in sorted({candidate.minor for candidate in held}))
    return NoPythonError(f"{wanted}; this machine has Python {here}.{remedy}\n{_INSTALLING}", request)


def _base(choice: Choice, task: PythonTask, folder: Path, uv: Uv) -> Base:
    """Return the base environment on the nearest Python with distributions of all requirements."""
    problem = ""
    # As in the image: nothing is built for a command, and Python alone needs no index.
    bare = not task.module and not choice.requirements
    # Each attempt may take minutes, so only the nearest Pythons are tried.
    for python in choice.fitting[:_PYTHONS_TRIED]:
        try:
            base = venvs.base_environment(
                folder, python, choice.requirements, choice.constraints, uv, bare=bare
            )
        except NoDistributionError as error:
            problem = problem or str(error)
            continue
        if python.minor != choice.wanted:
            wanted = f"{task.image} has Python {_text(choice.wanted)}"
            uv.say(WARNING, f"{wanted}: the job runs on Python {python.version}, the nearest here.")
        return base
    raise RunError(Code.FAILED_PRECONDITION, problem, "PACKAGES_NOT_RESOLVED")


def _name(requirement: str) -> str:
    return images.Package(requirement).distribution


def _text(minor: Minor) -> str:
    return f"{minor[0]}.{minor[1]}"
