"""Python environments in three layers: base, packages, and run.

The base environment holds the framework; that of staged code also its lock file's packages, above it. The
package layer holds a job's packages, and the requirements that the base lacks or has in an unsuitable
version, cached by content: jobs, trials and retries with the same packages install nothing. Both are shared
and never change. A run's own environment is a copy of the layer with the base below it: a trainer may write
next to its modules and install packages while it runs. How the layers are made and lie upon each other is
one idea.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from uv import find_uv_bin

from reconciler.training_service.environments import shared_caches
from reconciler.training_service.environments.pip_settings import UvSettings
from reconciler.training_service.environments.shared_caches import CachedFolder
from reconciler.training_service.environments.uv_output import is_unresolved, reason_of
from reconciler.training_service.jobs import archives
from reconciler.training_service.jobs.archives import normalised
from reconciler.training_service.jobs.images import Minor
from reconciler.training_service.processes.programs import Programs
from reconciler.training_service.state.run_folder import remove
from reconciler.training_service.state.run_log import INFO

_REPORT_EVERY = 15.0
_BUILD_TOOLS = ("setuptools", "wheel")
# Building these needs compilers and many minutes: a version without a wheel counts as unavailable.
_NEVER_BUILT = (
    *("cryptography", "grpcio", "h5py", "lightgbm", "matplotlib", "numpy", "pandas", "pillow", "pyarrow"),
    *("scikit-learn", "scipy", "tables", "tensorflow", "torch", "torchaudio", "torchvision", "xgboost"),
)
_BINARY = tuple(f"--only-binary={name}" for name in _NEVER_BUILT)
# Only the answers of an index are short: a download may stand still for longer.
_PATIENT = {"UV_HTTP_CONNECT_TIMEOUT": "5", "UV_HTTP_TIMEOUT": "60"}
_IMPATIENT = {"UV_HTTP_CONNECT_TIMEOUT": "5", "UV_HTTP_TIMEOUT": "5", "UV_HTTP_RETRIES": "1"}
_UNREACHABLE = re.compile(r"Failed to fetch: `?(\S+?)`?\n.*error sending request", re.DOTALL)
_DEBIAN_BUNDLE = Path("/usr/share/python-wheels")
_MOST_BASES = 10
_MOST_LAYERS = 50
_PINS = "pins.txt"
_LIMITS = "constraints.txt"
_CHANGES = "changes.json"
_BUILT = "built"
_LAYER = "-"  # separates the base's key from the layer's own in a layer's name
_ABOVE = "+"  # the same for a lock file's packages above a base
_LOCK = "lock.txt"
_MAKER = "uv"  # part of each key: environments that an earlier version made with pip aren't relocatable


class CommandError(Exception):
    """A command of uv failed; the message is its output."""


class InstallError(Exception):
    """An installation failed; the message names the package and the cause, in one line."""


class NoDistributionError(InstallError):
    """No distribution of a requirement suits this Python and the other requirements."""


class UnreachableIndexError(InstallError):
    """A package index doesn't answer; `index` is its address without credentials."""

    def __init__(self, message: str, index: str) -> None:
        super().__init__(message)
        self.index = index


@dataclass(frozen=True, slots=True)
class Python:
    """A Python of this machine."""

    path: Path
    minor: Minor
    version: str


@dataclass(eq=False, slots=True)
class Uv:
    """Runner of uv as a program of a run.

    Attributes:
        settings: The user's settings for uv.
        env: The environment variables, those settings included.
        temp: The working folder.
        say: Writes a text to the run's log, with a severity.
    """

    settings: UvSettings
    env: Mapping[str, str]
    temp: Path
    programs: Programs
    say: Callable[[str, str], None]

    def run(self, task: str, arguments: Sequence[str], lock: int | None, variables: Mapping[str, str]) -> str:
        """Run a command of uv to its end; return its output.

        Args:
            task: Describes the command in reports of its progress, as "building trainer.tar.gz".
            lock: A descriptor that every started process inherits; None for none.
            variables: Further environment variables.

        Raises:
            CommandError: The command failed.
            Interrupted: The run is to end.
        """
        self.programs.pause(0)
        printed: list[str] = []
        program = self.programs.start(
            [find_uv_bin(), *arguments],
            env={**self.env, **variables},
            cwd=self.temp,
            out=printed.extend,
            err=printed.extend,
            keep=() if lock is None else (lock,),
        )
        reported = start = time.monotonic()
        while not self.programs.turn():
            self.programs.end_if_interrupted()
            if time.monotonic() > reported + _REPORT_EVERY:
                reported = time.monotonic()
                last = f": {printed[-1].strip()}" if printed else ""
                self.say(INFO, f"Still {task} after {reported - start:.0f} s{last}")
        self.programs.finish(program)
        if program.code:
            killed = [f"The installer was killed by signal {-program.code}."] if program.code < 0 else []
            raise CommandError("\n".join([*printed, *killed]))
        return "\n".join(printed)


@dataclass(frozen=True, slots=True)
class Base:
    """A base environment.

    Attributes:
        python: The Python that it was made with.
        made: A unique id that differs from that of a later environment of the same name.
        lock: A descriptor; the environment isn't removed while it is open.
    """

    path: Path
    python: Python
    made: str = ""
    lock: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class Replacement:
    """A package of the base environment that a layer has in another version.

    Attributes:
        old, new: The two versions.
        broken: Packages of the base whose requirement the new version violates, with that requirement.
    """

    name: str
    old: str
    new: str
    broken: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Layer:
    """A job's packages and their requirements on a base environment; `lock` as in `Base`."""

    path: Path
    base: Base
    replaced: tuple[Replacement, ...] = ()
    lock: int = field(default=-1, compare=False)


def base_environment(
    folder: Path,
    python: Python,
    requirements: Sequence[str],
    constraints: Sequence[str],
    uv: Uv,
    bare: bool = False,
) -> Base:
    """Return the base environment with these requirements, and build it if it is missing.

    Args:
        folder: The folder of all shared environments.
        constraints: Versions of the packages that the requirements depend on.
        bare: True for an environment without the tools that build packages.

    Raises:
        NoDistributionError: No distribution of a requirement suits this Python and the other requirements.
        InstallError: uv failed for another reason.
    """
    required, limits = sorted({*requirements, *(() if bare else _BUILD_TOOLS)}), sorted(constraints)
    path = folder / _key(_MAKER, str(python.path.resolve()), python.version, required, limits)

    def build(lock: int) -> None:
        names = ", ".join(required) or "no packages"
        uv.say(INFO, f"Installing {names} for Python {python.version}")
        wanted = ", ".join(sorted(requirements)) or names
        made = _Environment(path, uv, lock, f"{wanted} could not be installed", python)
        made.make(python)
        (path / _LIMITS).write_text("".join(f"{line}\n" for line in limits), "utf-8")
        added, _ = made.resolve(required, path, *_BINARY, f"--constraint={path / _LIMITS}")
        (path / _PINS).write_text("".join(f"{line}\n" for line in added), "utf-8")
        if added:
            uv.say(INFO, f"Installing {', '.join(added)}")
        made.install(added, "hardlink", *_BINARY)
        made.install_pip(python)

    cached = _get_or_build(path, build, uv, _MOST_BASES, lambda name: not {_LAYER, _ABOVE} & {*name})
    return Base(path, python, cached.made, cached.lock)


def locked_environment(folder: Path, base: Base, lock: bytes, name: str, uv: Uv) -> Base:
    """Return a base environment with a lock file's packages above another, and build it if it is missing.

    Args:
        folder: The folder of all shared environments.
        lock: The content of a file of requirements, each with a version and hashes.
        name: The file's path, for messages.

    Raises:
        NoDistributionError: No distribution of a requirement suits this Python.
        InstallError: uv failed for another reason.
    """
    key = _key(_MAKER, base.made, str(base.path), hashlib.sha256(lock).hexdigest())
    path = folder / f"{base.path.name}{_ABOVE}{key}"

    def build(descriptor: int) -> None:
        uv.say(INFO, f"Installing {name} for Python {base.python.version}")
        failure = f"The requirements in {name} could not be installed"
        made = _Environment(path, uv, descriptor, failure, base.python)
        made.make(base.python)
        (path / _LOCK).write_bytes(lock)
        made.install_locked(path / _LOCK)
        _put_above(base, path)

    cached = _get_or_build(path, build, uv, _MOST_BASES, lambda name: _ABOVE in name and _LAYER not in name)
    return Base(path, base.python, cached.made, cached.lock)


def package_layer(folder: Path, base: Base, packages: Sequence[Path], uv: Uv) -> Layer:
    """Return the layer of these packages on a base environment, and build it if it is missing.

    Args:
        folder: The folder of all shared environments.
        packages: The archives, each in a folder of its own; of two of one distribution, the last counts.

    Raises:
        InstallError: A package can't be installed.
    """
    path = folder / f"{base.path.name}{_LAYER}{_key_of_packages(base, packages)}"

    def build(lock: int) -> None:
        _build_layer(path, base, packages, uv, lock)

    cached = _get_or_build(path, build, uv, _MOST_LAYERS, lambda name: _LAYER in name)
    replaced = msgspec.json.decode((path / _CHANGES).read_bytes(), type=tuple[Replacement, ...])
    return Layer(path, base, replaced, cached.lock)


def run_environment(path: Path, layer: Layer) -> Path:
    """Make a run's own environment, for the trainer to change freely; return its Python."""
    shutil.copytree(layer.path, path, symlinks=True)
    return path / "bin" / "python"


def _build_layer(path: Path, base: Base, packages: Sequence[Path], uv: Uv, lock: int) -> None:
    names = ", ".join(archive.name for archive in packages)
    plural = "s" if len(packages) > 1 else ""
    failure = f"The package{plural} {names} could not be installed"
    made = _Environment(path, uv, lock, failure, base.python)
    built = [made.wheel(archive, base) for archive in packages]
    wheels = {archives.distribution_of(wheel): wheel for wheel in built}
    added, replaced = made.resolve_on(base, wheels)
    if added:
        uv.say(INFO, f"Installing {', '.join(added)}")
    made.make(base.python)
    # Many modules are compiled once here, not in each run; few aren't worth it, and uv can't with Python 3.6.
    compiling = ["--compile-bytecode"] if added and base.python.minor > (3, 6) else []
    # Copies, not links: a trainer that changes a file must not change the cache or another job.
    made.install([*map(str, wheels.values()), *added], "copy", *compiling)
    _put_above(base, path)
    (path / _CHANGES).write_bytes(msgspec.json.encode(replaced))


def _put_above(base: Base, path: Path) -> None:
    """Let the environment at a path also have the modules and programs of a base."""
    site, below = (_site_packages(environment, base.python) for environment in (path, base.path))
    # A plain path would be enough for its modules, but Python would ignore its own .pth files.
    (site / "reconciler-base.pth").write_text(f"import site; site.addsitedir({str(below)!r})\n", "utf-8")
    _copy_programs(base.path / "bin", path / "bin")


def _copy_programs(source: Path, target: Path) -> None:
    """Copy the scripts that the target lacks: they run the Python of their folder."""
    for program in source.iterdir():
        if not program.is_symlink() and not (target / program.name).exists():
            with program.open("rb") as file:
                is_script = file.read(2) == b"#!"
            if is_script:
                shutil.copy2(program, target / program.name)


@dataclass(frozen=True, slots=True)
class _Environment:
    """An environment being made for a Python; `failure` begins the message if a command fails."""

    path: Path
    uv: Uv
    lock: int
    failure: str
    python: Python

    def make(self, python: Python) -> None:
        """Make the environment, with no packages; its scripts run in a copy of it, too."""
        where = ["--relocatable", "--python", str(python.path), str(self.path)]
        self._run("making an environment", ["venv", "--quiet", *where])

    def wheel(self, archive: Path, base: Base) -> Path:
        """Return the archive's wheel, built with the base environment's Python if it is a source archive."""
        if archive.suffix == ".whl":
            return archive
        builds = archive.parent / _BUILT
        remove(builds)
        isolation = ["--no-build-isolation"] if archives.builds_with_setuptools(archive) else []
        python = str(base.path / "bin" / "python")
        options = ["--python", python, *self.uv.settings.options, *isolation, "--out-dir", str(builds)]
        self._run(f"building {archive.name}", ["build", "--wheel", *options, "--", str(archive)])
        return next(builds.glob("*.whl"))

    def resolve(
        self, requirements: Sequence[str], environment: Path, *options: str
    ) -> tuple[list[str], list[str]]:
        """Return the pinned packages that uv would add to an environment, and those it would remove."""
        if not requirements:
            return [], []  # without an index
        task = "resolving requirements"
        lines = self._pip(task, environment, ["--dry-run", *options], requirements, _IMPATIENT).splitlines()
        added = [line[3:] for line in lines if line.startswith((" + ", " ~ "))]
        return added, [line[3:] for line in lines if line.startswith(" - ")]

    def resolve_on(self, base: Base, wheels: Mapping[str, Path]) -> tuple[list[str], list[Replacement]]:
        """Return the pinned requirements of wheels to add to a base environment, and what they replace."""
        wanted = _wanted(wheels)
        kept = [f"--constraint={base.path / name}" for name in (_PINS, _LIMITS)]
        try:
            added, removed = self.resolve(wanted, base.path, *_BINARY, *kept)
        except NoDistributionError:
            added, removed = self.resolve(wanted, base.path, *_BINARY)
        added = [line for line in added if _name_of(line) not in wheels]
        return added, _replacements(base, added, removed)

    def install(self, pins: Sequence[str], link_mode: str, *options: str) -> None:
        """Install pinned packages and wheels."""
        if pins:
            options = ("--no-deps", "--link-mode", link_mode, *options)
            self._pip("downloading and installing", self.path, options, pins)

    def install_locked(self, lock: Path) -> None:
        """Install a lock file's packages, those alone, each with one of its hashes."""
        settings = self.uv.settings
        python = ["--python", str(self.path / "bin" / "python")]
        # The lock file has exact versions, and uv takes no constraint without a hash beside hashes.
        options = [option for option in settings.install_options if not option.startswith("--constraint=")]
        own = ["--no-deps", "--require-hashes", "--link-mode", "hardlink", "--requirement", str(lock)]
        self._run(
            "downloading and installing", ["pip", "install", *python, *settings.options, *options, *own]
        )

    def install_pip(self, python: Python) -> None:
        """Install pip, for trainers: from the Python itself if it has one, as indexes needn't have it."""
        library = python.path.resolve().parents[1] / "lib" / f"python3.{python.minor[1]}"
        for bundle in (library / "ensurepip" / "_bundled", _DEBIAN_BUNDLE):
            if any(bundle.glob("pip-*.whl")):
                into = str(self.path / "bin" / "python")
                options = ["--python", into, "--no-index", "--find-links", str(bundle)]
                self._run("installing pip", ["pip", "install", *options, "pip"])
                return
        self.install(["pip"], "hardlink")

    def _pip(
        self,
        task: str,
        environment: Path,
        options: Sequence[str],
        requirements: Sequence[str],
        variables: Mapping[str, str] = _PATIENT,
    ) -> str:
        settings = self.uv.settings
        python = ["--python", str(environment / "bin" / "python")]
        always = [*python, *settings.options, *settings.install_options]
        return self._run(task, ["pip", "install", *always, *options, "--", *requirements], variables)

    def _run(self, task: str, arguments: Sequence[str], variables: Mapping[str, str] = _PATIENT) -> str:
        try:
            return self.uv.run(task, arguments, self.lock, variables)
        except CommandError as error:
            output = str(error)
        unreachable = _UNREACHABLE.search(output)
        if unreachable:
            index, cause = (
                unreachable[1].rstrip("/").rpartition("/")[0],
                output.strip().rpartition("cause: ")[2],
            )
            message = f"{self.failure}: cannot reach the package index at {index}: {cause}"
            raise UnreachableIndexError(message, index)
        message = f"{self.failure}: {reason_of(output, '.'.join(map(str, self.python.minor)))}"
        if is_unresolved(output):
            raise NoDistributionError(message)
        self.uv.say(INFO, output)  # the error has its cause alone
        raise InstallError(message)


def _wanted(wheels: Mapping[str, Path]) -> list[str]:
    """Return the requirements to resolve for these wheels, by distribution.

    Lines of one wheel's metadata are better than the wheel: uv asks no index if all are satisfied. Wheels
    that may require each other have to be given themselves, or an index would be asked for them.
    """
    lines = [line for wheel in wheels.values() for line in archives.requirements_of(wheel)]
    if len(wheels) > 1 or any(_name_of(line) in wheels for line in lines):
        return [str(wheel) for wheel in wheels.values()] if lines else []
    return lines


def _replacements(base: Base, added: Sequence[str], removed: Sequence[str]) -> list[Replacement]:
    news = {_name_of(line): _version_of(line) for line in added}
    olds = {_name_of(line): _version_of(line) for line in removed}
    return [
        Replacement(name, old, news[name], tuple(_broken_by(base, name, news)))
        for name, old in olds.items()
        if name in news
    ]


def _broken_by(base: Base, name: str, news: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the packages of a base environment whose requirement of `name` the new version violates."""
    from importlib import metadata  # these are here, because importing them takes long

    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import InvalidVersion

    here = {"python_version": f"3.{base.python.minor[1]}", "python_full_version": base.python.version}
    for distribution in metadata.distributions(path=[str(_site_packages(base.path, base.python))]):
        dependent = normalised(distribution.metadata["Name"] or "")
        for line in (distribution.requires or ()) if dependent not in news else ():
            with suppress(InvalidRequirement, InvalidVersion):
                required = Requirement(line)
                applies = required.marker is None or required.marker.evaluate({**here, "extra": ""})
                suits = required.specifier.contains(news[name], prereleases=True)
                if normalised(required.name) == name and applies and not suits:
                    yield dependent, f"{name}{required.specifier}"


def _get_or_build(
    path: Path, build: Callable[[int], None], uv: Uv, most: int, belongs: Callable[[str], bool]
) -> CachedFolder:
    built = False

    def build_twice(lock: int) -> None:
        nonlocal built
        start = time.monotonic()
        try:
            build(lock)
        except (NoDistributionError, UnreachableIndexError):
            raise
        except InstallError:
            # As in the cloud; the installer may also have been killed, for lack of memory or by a person.
            remove(path)
            build(lock)
        uv.say(INFO, f"Installed in {time.monotonic() - start:.1f} s")
        built = True

    cached = shared_caches.get_or_build(path, build_twice, _Patience(uv).pause)
    # Only a new environment can exceed the limit.
    if built:
        shared_caches.remove_unused(path.parent, most, belongs)
    return cached


class _Patience:
    """Wait for another run that installs the same; reports that it goes on."""

    def __init__(self, uv: Uv) -> None:
        self._uv = uv
        self._start = self._reported = time.monotonic()

    def pause(self) -> None:
        """Wait a moment, and report every 15 seconds; raise Interrupted if the run is to end."""
        self._uv.programs.pause()
        if time.monotonic() > self._reported + _REPORT_EVERY:
            self._reported = time.monotonic()
            waited = f"{self._reported - self._start:.0f} s"
            self._uv.say(INFO, f"Still waiting after {waited}: another run installs the same packages")


def _key_of_packages(base: Base, packages: Sequence[Path]) -> str:
    # A layer contains the path of its base: in a home that was moved, it is built anew.
    content = [base.made, str(base.path)]
    for archive in packages:
        with archive.open("rb") as file:
            # A wheel's name is part of its meaning; a source archive may have any name.
            name = archive.name if archive.suffix == ".whl" else ""
            content += [name, hashlib.file_digest(file, "sha256").hexdigest()]
    return _key(_MAKER, *content)


def _key(*content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def _name_of(requirement: str) -> str:
    match = re.match(r"\s*([A-Za-z0-9._-]+)", requirement)
    return normalised(match[1]) if match else ""


def _version_of(pin: str) -> str:
    return pin.partition("==")[2]


def _site_packages(environment: Path, python: Python) -> Path:
    return environment / "lib" / f"python3.{python.minor[1]}" / "site-packages"
