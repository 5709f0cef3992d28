"""Hosts that the user allowed to receive tokens, in addition to Google's and GitHub's own.

A repository's settings may name any host, and a branch may bring any settings. So only the environment and a
file in the user's configuration folder count, and the file only if a checkout can't have brought it.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from reconciler.base.checkout import checkout_of
from reconciler.base.diagnostics import Problem, pointer_of, quote
from reconciler.base.errors import InvalidError, check_machine
from reconciler.base.http.destination import (
    GITHUB,
    GOOGLE,
    HTTPS_PORT,
    OwnerHosts,
    Place,
    destination_of,
    place_of,
)
from reconciler.base.safe_files import read_file
from reconciler.manifests.settings import FILE_NAME
from reconciler.manifests.yaml_load import position_in

VARIABLE = "RECONCILER_TOKEN_HOSTS"
"""Names `HOST` or `HOST:PORT`, separated by commas; after `google:` or `github:` for that token alone."""
_OWNERS = {rule.owner.lower() for rule in (GOOGLE, GITHUB)}
_FOLDER = "reconciler"
_FILE = "token-hosts"
_MAX_BYTES = 64 * 1024
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class TokenHosts(Struct, frozen=True):
    """The hosts that the user allowed.

    Attributes:
        google, github: The rules of the two owners' tokens.
        file: The user's file of further hosts, which need not exist.
        unused: The reason for ignoring the file, as a sentence; "" if it is used or missing.
    """

    google: OwnerHosts
    github: OwnerHosts
    file: Path
    unused: str = ""

    def check(self, rule: OwnerHosts, root: Path, url: str, keys: tuple[str, ...]) -> None:
        """Raise InvalidError if the rule doesn't permit the URL that the setting at `keys` leads to.

        The rule is that of the token that requests to the URL carry.
        """
        refused = self.refusal(rule, url)
        if refused is None:
            return
        position = position_in(root / FILE_NAME, keys)
        problem = Problem(FILE_NAME, *position, pointer_of(keys), *refused)
        raise InvalidError(
            f"{FILE_NAME} would send the {rule.owner} token to a host that may not get it; nothing was sent",
            problems=[problem],
        )

    def refusal(self, rule: OwnerHosts, url: str) -> tuple[str, str] | None:
        """Return the reason why the rule doesn't permit this URL and a hint; None if it does."""
        try:
            to = destination_of(url)
        except ValueError as error:
            return f"{quote(url)} {error}: no token can be sent there", 'write "https://HOST"'
        if rule.permits(to):
            return None
        if to.scheme != "https":
            return (
                f"{quote(url)} is plain http: the {rule.owner} token is sent by https only",
                'write "https://…"',
            )
        if to.host.endswith("."):
            return f"{quote(to.netloc)} ends with a dot", "remove the dot at the host's end"
        host = to.netloc.lower().removesuffix(f":{HTTPS_PORT}")
        message = (
            f"the host {quote(host)} may not get the {rule.owner} token: only {rule.described} may, and the "
            "hosts that you allowed"
        )
        entry = f"{rule.owner.lower()}:{host}"
        hint = f"remove the setting; or, if you trust the host with your token, set {VARIABLE}={entry}"
        by_file = f"; {self.unused}" if self.unused else f" or write {entry} on a line of {self.file}"
        return message, f"{hint}{by_file}"


def token_hosts(root: Path, environ: Mapping[str, str]) -> TokenHosts:
    """Return the hosts that the user allowed.

    Args:
        root: The repository's root; the user's file is ignored if it lies in the same checkout.
        environ: RECONCILER_TOKEN_HOSTS, XDG_CONFIG_HOME and HOME count.

    Raises:
        InvalidError: The variable or the file contains an invalid host.
    """
    named = environ.get(VARIABLE, "").split(",")
    entries = [_entry(text.strip(), VARIABLE) for text in named if text.strip()]
    file = _file(environ)
    text, unused = _read(file, root)
    entries += _entries(text, file)
    google, github = (
        rule.also(host_port for owner, host_port in entries if owner in ("", rule.owner.lower()))
        for rule in (GOOGLE, GITHUB)
    )
    return TokenHosts(google, github, file, unused)


def _entries(text: str, file: Path) -> Iterator[tuple[str, Place]]:
    # Not splitlines: it also ends a line, and with it a comment, at form feeds and Unicode separators.
    for number, line in enumerate(text.split("\n"), 1):
        if name := line.partition("#")[0].strip():
            yield _entry(name, f"{file}, line {number}")


def _entry(text: str, where: str) -> tuple[str, Place]:
    """Return the owner whose token may go to a place, and the place; the owner is "" for both owners."""
    owner, colon, rest = text.partition(":")
    try:
        if not colon or owner.lower() not in _OWNERS:
            return "", place_of(text)
        # It could also mean a host called "google": no entry may allow more than its author meant.
        if rest.isdecimal():
            raise ValueError("names an owner and a port, but no host")
        return owner.lower(), place_of(rest)
    except ValueError:
        raise InvalidError(
            f"{where}: {quote(text)} is not a host that a token may be sent to",
            hint="write HOST or HOST:PORT, such as proxy.example.com:8443; "
            "for one of the two tokens alone, google:HOST or github:HOST",
        ) from None


def _file(environ: Mapping[str, str]) -> Path:
    # The XDG specification requires that relative paths be ignored.
    named = environ.get("XDG_CONFIG_HOME", "")
    home = environ.get("HOME", "")
    # Never relative to the working directory, which may be a checkout.
    base = (
        Path(named) if named.startswith("/") else Path("/", home if home.startswith("/") else "~", ".config")
    )
    return base.absolute() / _FOLDER / _FILE


def _read(file: Path, root: Path) -> tuple[str, str]:
    """Return the file's text and the reason for ignoring it; both "" if the file is missing."""
    try:
        # Follow links: users keep dotfiles elsewhere. `_distrust` checks each folder on the way.
        content, status = read_file(file, _MAX_BYTES, follow=True)
    except (FileNotFoundError, NotADirectoryError):
        return "", ""
    except OSError as error:
        check_machine(error, f"{file} can't be read")
        return "", f"{file} isn't used: {error.strerror}"
    if why := _distrust(file, status, root):
        return "", f"{file} isn't used: {why}"
    try:
        return content.decode(), ""
    except UnicodeDecodeError:
        return "", f"{file} isn't used: it isn't UTF-8 text"


def _distrust(file: Path, status: os.stat_result, root: Path) -> str:
    """Return the reason for distrusting the file; "" if only the user can have written it."""
    if status.st_size > _MAX_BYTES:
        return f"it is larger than {_MAX_BYTES // 1024} KiB"
    checkout = checkout_of(root)
    # Each folder on the way counts: a link in the checkout may lead out of it.
    paths = [Path(os.path.realpath(path)) for path in (file, *file.parents)]
    if checkout is not None and any(path.is_relative_to(checkout) for path in paths):
        return f"it lies in the checkout {checkout}, where a branch may have brought it"
    for state, name in ((status, "it"), (file.parent.stat(), "its folder")):
        if state.st_uid != os.geteuid():
            return f"{name} belongs to another user"
        if state.st_mode & _OTHERS_WRITE:
            target = shlex.quote(str(file if name == "it" else file.parent))
            return f"other users can write to {name}; run: chmod go-w {target}"
    return ""
