"""Translation of pip's settings for uv, which reads neither pip's files nor its variables.

Run as a program, it prints the translation for a shell. It imports the standard library alone, because the
Makefile runs it before anything is installed.
"""

from __future__ import annotations

import configparser
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# Settings that change the choice of packages or their place, and that uv doesn't have.
_UNTRANSLATABLE = {
    *("abi", "editable", "force-reinstall", "group", "ignore-installed", "ignore-requires-python"),
    *("implementation", "no-deps", "no-dependencies", "platform", "prefer-binary", "prefix"),
    *("python-version", "require-hashes", "requirement", "root", "target", "upgrade", "use-deprecated"),
}
_MACHINE_FILE = Path("/etc/pip.conf")
_OFF = {"n", "no", "f", "false", "off", "0"}


class SettingError(Exception):
    """A setting of pip that uv can't follow, or a file of settings that can't be read."""


@dataclass(frozen=True, slots=True)
class UvSettings:
    """Settings for uv.

    Attributes:
        variables: Environment variables for every command; None unsets a variable. Only they contain URLs,
            because other users of the machine can read a command's arguments, passwords in URLs included.
        options: Options of every command that may ask an index.
        install_options: Further options of `uv pip install`.
    """

    variables: Mapping[str, str | None]
    options: tuple[str, ...]
    install_options: tuple[str, ...]

    def applied_to(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return environment variables with those of the settings."""
        return {name: value for name, value in {**environ, **self.variables}.items() if value is not None}


def uv_settings(environ: Mapping[str, str]) -> UvSettings:
    """Translate pip's settings.

    Raises:
        SettingError: uv can't follow a setting, or a file of settings can't be read.
    """
    settings = _settings(environ)
    for name in sorted(_UNTRANSLATABLE & {*settings}):
        if _is_on(settings, name):
            raise SettingError(
                f"pip's setting {name} changes which packages are installed, and uv, the installer here, has"
                " no such setting: remove it from pip's configuration (`pip config list` shows it)"
            )
    return UvSettings(
        variables={**dict(_sources(settings)), **dict(_connection(settings, environ))},
        options=("--no-index",) if _is_on(settings, "no-index") else (),
        install_options=tuple(_install_options(settings)),
    )


def _settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return pip's settings for `pip install`, by their long names."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for path in _files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path)
        except (configparser.Error, UnicodeDecodeError, OSError) as error:
            raise SettingError(f"pip's settings in {path} can't be read: {error}") from error
        for section in sections.keys() & {*parser.sections()}:
            sections[section].update((_long_name(name), value) for name, value in parser.items(section))
    variables = {_long_name(name[4:]): value for name, value in environ.items() if name.startswith("PIP_")}
    # As in pip, an empty value sets nothing.
    return {
        name: value
        for settings in (*sections.values(), variables)
        for name, value in settings.items()
        if value
    }


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the paths of pip's files, later ones overriding earlier ones."""
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return
    home = Path(environ.get("HOME") or Path.home())
    is_mac = sys.platform == "darwin"
    shared = "/Library/Application Support" if is_mac else environ.get("XDG_CONFIG_DIRS", "/etc/xdg")
    yield from (Path(folder, "pip", "pip.conf") for folder in shared.split(":"))
    yield _MACHINE_FILE
    if named is None or not Path(named).exists():
        library = home / "Library" / "Application Support" / "pip"
        config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip"
        yield home / ".pip" / "pip.conf"
        yield (library if is_mac and library.is_dir() else config) / "pip.conf"
    yield Path(sys.prefix, "pip.conf")
    if named is not None:
        yield Path(named)


def _long_name(name: str) -> str:
    plain = name.lower().replace("_", "-").removeprefix("--")
    return "index-url" if plain == "pypi-url" else plain


def _is_on(settings: Mapping[str, str], name: str) -> bool:
    return name in settings and settings[name].lower() not in _OFF


def _sources(settings: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    yield "UV_NO_CONFIG", "1"  # pip doesn't know uv's files: they must not add an index
    yield "UV_NO_SOURCES", "1"  # neither does it know where a package's tool.uv wants its requirements from
    # pip takes the best version of all indexes, uv by default the best of the first that has any.
    yield "UV_INDEX_STRATEGY", "unsafe-best-match"
    indexes = (("index-url", "UV_DEFAULT_INDEX"), ("extra-index-url", "UV_INDEX"))
    for name, variable in (
        *(() if _is_on(settings, "no-index") else indexes),
        ("trusted-host", "UV_INSECURE_HOST"),
        ("build-constraint", "UV_BUILD_CONSTRAINT"),
        ("uploaded-prior-to", "UV_EXCLUDE_NEWER"),
    ):
        if name in settings:
            yield variable, " ".join(settings[name].split())
    if "find-links" in settings:
        yield "UV_FIND_LINKS", ",".join(map(_expanded, settings["find-links"].split()))
    if _is_on(settings, "pre"):
        yield "UV_PRERELEASE", "allow"
    if settings.get("keyring-provider") == "subprocess":
        yield "UV_KEYRING_PROVIDER", "subprocess"
    # As pip has it: a false value of "no-build-isolation" turns the isolation off.
    if settings.get("no-build-isolation", "on").lower() in _OFF:
        yield "UV_NO_BUILD_ISOLATION", "1"


def _install_options(settings: Mapping[str, str]) -> Iterator[str]:
    yield from (f"--constraint={path}" for path in settings.get("constraint", "").split())
    for name in ("no-binary", "only-binary"):
        distributions = settings.get(name, "").replace(",", " ").split()
        yield from (f"--{name}={distribution}" for distribution in distributions)


def _connection(settings: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    bundle = settings.get("cert") or environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE")
    if bundle:
        path = _expanded(bundle)
        is_folder = Path(path).is_dir()
        yield "SSL_CERT_FILE", None if is_folder else path
        yield "SSL_CERT_DIR", path if is_folder else None
    else:
        yield "UV_SYSTEM_CERTS", "1"
    if "client-cert" in settings:
        yield "SSL_CLIENT_CERT", _expanded(settings["client-cert"])
    if "proxy" in settings:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
            # As in pip, its proxy is for every host.
            value = None if name == "NO_PROXY" else settings["proxy"]
            yield from ((name, value), (name.lower(), value))


def _expanded(path: str) -> str:
    return str(Path(path).expanduser()) if path.startswith("~") else path


def main() -> None:
    """Print pip's settings as lines for a shell, which sets UV_OPTIONS for `uv pip install` besides."""
    try:
        settings = uv_settings(os.environ)
    except SettingError as error:
        sys.exit(str(error))
    for name, value in settings.variables.items():
        sys.stdout.write(f"unset {name};\n" if value is None else f"export {name}={shlex.quote(value)};\n")
    options = shlex.join((*settings.options, *settings.install_options))
    sys.stdout.write(f"UV_OPTIONS={shlex.quote(options)};\n")


if __name__ == "__main__":
    main()
