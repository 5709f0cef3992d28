"""The commands of `gsutil` and `gcloud storage`, which published trainers call, on the job's own storage.

Imports only the standard library and this package: a trainer may start it often.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import md5
from pathlib import Path

from reconciler.training_service.storage.gsutil.client import (
    Place,
    Storage,
    StorageError,
    UsageError,
    matches,
    parse,
)

# Labels that `stat` prints, with the fields of an object's resource.
_STAT_FIELDS = {
    "Creation time": "timeCreated",
    "Update time": "updated",
    "Content-Length": "size",
    "Content-Type": "contentType",
    "Hash (crc32c)": "crc32c",
    "Hash (md5)": "md5Hash",
    "ETag": "etag",
    "Generation": "generation",
    "Metageneration": "metageneration",
}


@dataclass(frozen=True, slots=True)
class Flags:
    """Flags of a command."""

    recursive: bool = False
    no_clobber: bool = False
    delete: bool = False
    long: bool = False
    ignore_missing: bool = False
    from_stdin: bool = False
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """A file or object to copy; `path` is relative to the named container, "" if named itself."""

    place: Place
    path: str = ""


@dataclass
class Command:
    """One call of one of the tools; `failed` collects messages of failures that don't stop it."""

    storage: Storage
    flags: Flags
    say: Callable[[str], None]
    failed: list[str] = field(default_factory=list)

    def cp(self, words: Sequence[str], *, move: bool = False) -> None:
        """Copy or move files and objects."""
        if self.flags.from_stdin:
            words = [*sys.stdin.read().splitlines(), *words]
        if len(words) < 2:
            raise UsageError("The cp command needs a source and a destination.")
        *sources, last = words
        if last == "-":
            self.cat(sources)
            return
        target = parse(last)
        into = self._is_container(target)
        if sources == ["-"]:
            if into:
                raise UsageError("Destination object name needed when source is a stream")
            self._from_stdin(target)
            return
        found = [
            pair for word in sources for pair in self._sources(word, recursive=self.flags.recursive or move)
        ]
        several = len({top for _, top in found}) > 1
        # Several sources need a container; in a bucket, names below a new prefix make one.
        if several and not into and not target.bucket:
            text = f"{last} must name a directory, bucket, or bucket subdirectory for several sources."
            raise UsageError(f"Destination URL {text}")
        for source, top in found:
            below = into or several
            if source.place.bucket and source.place.name.endswith("/") and not source.path:
                self._copy(source.place, target.below(f"{source.place.base}/" if below else ""), move=move)
            elif not source.path:
                self._copy(source.place, target.below(source.place.base) if below else target, move=move)
            elif below and top not in (".", ".."):
                self._copy(source.place, target.below(f"{top}/{source.path}"), move=move)
            else:
                self._copy(source.place, target.below(source.path), move=move)

    def mv(self, words: Sequence[str]) -> None:
        """Move files and objects."""
        self.cp(words, move=True)

    def rm(self, words: Sequence[str]) -> None:
        """Delete objects."""
        if self.flags.from_stdin:
            words = [*words, *sys.stdin.read().splitlines()]
        for word in words:
            place = parse(word)
            if not place.bucket:
                raise UsageError(f'"rm" command does not support "file://" URLs: {word}')
            if not place.name and self.flags.recursive:
                raise UsageError("Buckets are not removed here: name what is in it, gs://BUCKET/**.")
            for source, _ in self._sources(
                word, recursive=self.flags.recursive, quiet=self.flags.ignore_missing
            ):
                self.say(f"Removing {source.place}...")
                self.storage.delete(source.place.bucket, source.place.name)

    def cat(self, words: Sequence[str]) -> None:
        """Write objects to standard output."""
        for word in words:
            for source, _ in self._sources(word, recursive=False):
                if source.place.bucket:
                    self.storage.read(source.place.bucket, source.place.name, sys.stdout.buffer)
                else:
                    with Path(source.place.name).open("rb") as file:
                        shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()

    def ls(self, words: Sequence[str]) -> None:
        """List buckets or their contents."""
        if not words:
            for name in self.storage.buckets():
                _print(f"gs://{name}/")
        for word in words:
            found = list(matches(self.storage, parse(word)))
            if not found:
                raise UsageError(f"One or more URLs matched no objects: {word}")
            for place, container in found:
                if not container:
                    self._print(self.storage.find(place.bucket, place.name) or {}, place)
                    continue
                if len(found) > 1:
                    _print(f"\n{place}/:")
                prefix = f"{place.name}/" if place.name else ""
                delimiter = "" if self.flags.recursive else "/"
                for entry in self.storage.names(place.bucket, prefix, delimiter):
                    self._print(entry, Place(entry.get("prefix") or entry["name"], place.bucket))

    def stat(self, words: Sequence[str]) -> None:
        """Print objects' metadata; a missing object fails the call, which scripts use as a test."""
        for word in words:
            found = [(place, self.storage.find(place.bucket, place.name)) for place in self._objects(word)]
            if not found:
                self.failed.append(f"No URLs matched: {word}")
            for place, entry in found if not self.flags.quiet else ():
                _print(f"{place}:")
                for label, name in _STAT_FIELDS.items():
                    _print(f"    {label + ':':24}{(entry or {}).get(name, '')}")

    def rsync(self, words: Sequence[str]) -> None:
        """Make a container's contents equal to another's."""
        if len(words) != 2:
            raise UsageError("The rsync command needs a source and a destination.")
        source, target = map(parse, words)
        if not source.bucket and not Path(source.name).is_dir():
            raise UsageError(f"arg ({words[0]}) does not name a directory, bucket, or bucket subdir.")
        here, there = self._held(source), self._held(target)
        for path, place in here.items():
            if path not in there or self._digest(place) != self._digest(there[path]):
                self._copy(place, target.below(path), move=False)
        for path in there.keys() - here.keys() if self.flags.delete else ():
            self.say(f"Removing {there[path]}")
            self._remove(there[path])

    def _objects(self, word: str) -> list[Place]:
        place = parse(word)
        if not place.bucket or not place.name:
            raise UsageError(f"The stat command only works with object URLs: {word}")
        return [found for found, container in matches(self.storage, place) if not container]

    def _held(self, container: Place) -> dict[str, Place]:
        found = {source.path: source.place for source in self._files(container)}
        return {path: place for path, place in found.items() if self.flags.recursive or "/" not in path}

    def _digest(self, place: Place) -> str:
        if place.bucket:
            return str((self.storage.find(place.bucket, place.name) or {}).get("md5Hash"))
        digest = md5(usedforsecurity=False)
        with Path(place.name).open("rb") as file:
            while data := file.read(1024 * 1024):
                digest.update(data)
        return b64encode(digest.digest()).decode()

    def _sources(self, word: str, *, recursive: bool, quiet: bool = False) -> list[tuple[Source, str]]:
        """Return the files and objects of a word, each with the name of the container that matched."""
        found: list[tuple[Source, str]] = []
        for place, container in matches(self.storage, parse(word)):
            top = place.base or place.bucket
            if not container:
                found.append((Source(place), str(place)))
            elif recursive:
                found += [(source, top) for source in self._files(place)]
            else:
                self.failed.append(f'Omitting directory "{place}". (Did you mean to do cp -r?)')
        if not found and not quiet:
            raise UsageError("\n".join([*self.failed, f"No URLs matched: {word}"]))
        return found

    def _files(self, container: Place) -> Iterator[Source]:
        """Yield all files or objects below a container."""
        if container.bucket:
            prefix = f"{container.name.rstrip('/')}/" if container.name else ""
            for found in self.storage.names(container.bucket, prefix):
                yield Source(Place(found["name"], container.bucket), found["name"][len(prefix) :])
            return
        for folder, folders, names in os.walk(container.name):
            folders.sort()
            for name in sorted(names):
                path = Path(folder) / name
                yield Source(Place(str(path)), str(path.relative_to(container.name)))

    def _is_container(self, place: Place) -> bool:
        """Return whether a copy to this place goes below it."""
        # As in gsutil: a bucket, a folder, a prefix of existing names, or any name with a final "/".
        if place.name.endswith("/") or (place.bucket and not place.name):
            return True
        if not place.bucket:
            return Path(place.name).is_dir()
        return any(True for _ in self.storage.names(place.bucket, f"{place.name}/", "/"))

    def _copy(self, source: Place, target: Place, *, move: bool) -> None:
        if self.flags.no_clobber and self._is_there(target):
            self.say(f"Skipping existing item: {target}")
            return
        self.say(f"Copying {source if source.bucket else f'file://{source}'}...")
        if source.bucket and target.bucket:
            self.storage.copy((source.bucket, source.name), (target.bucket, target.name))
        elif target.bucket:
            with Path(source.name).open("rb") as file:
                self.storage.write(target.bucket, target.name, file, _type_of(source.name))
        else:
            self._to_file(source, Path(target.name))
        if move and source != target:
            self._remove(source)

    def _to_file(self, source: Place, path: Path) -> None:
        if source.bucket and source.name.endswith("/"):  # a folder object
            path.mkdir(parents=True, exist_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if not source.bucket:
            shutil.copyfile(source.name, path)
            return
        # Written under another name first, so that the file only appears when complete.
        part = path.with_name(f"{path.name}_.gstmp")
        with part.open("wb") as file:
            self.storage.read(source.bucket, source.name, file)
        part.replace(path)

    def _from_stdin(self, target: Place) -> None:
        import tempfile  # here: few calls need it, and imports are most of a call's time

        with tempfile.TemporaryFile() as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
            file.flush()
            file.seek(0)
            self.storage.write(target.bucket, target.name, file, "application/octet-stream")

    def _is_there(self, place: Place) -> bool:
        if place.bucket:
            return self.storage.find(place.bucket, place.name) is not None
        return Path(place.name).exists()

    def _remove(self, place: Place) -> None:
        if place.bucket:
            self.storage.delete(place.bucket, place.name)
        else:
            Path(place.name).unlink()

    def _print(self, entry: dict[str, str], place: Place) -> None:
        about = (
            f"{entry['size']:>10}  {entry['updated'][:19]}Z  " if self.flags.long and "size" in entry else ""
        )
        _print(f"{about}{place}")


def _type_of(path: str) -> str:
    import mimetypes  # here: it reads the system's tables

    return mimetypes.guess_type(path)[0] or "application/octet-stream"


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


_SERVED = "cat, cp, ls, mv, rm, rsync, stat"
_ROOT = Path(__file__).resolve().parents[4]


def write_launchers(folder: Path) -> None:
    """Write the programs `gsutil` and `gcloud` into a folder; they run with this process's Python.

    They are isolated from the trainer's environment variables and packages.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The storage is on loopback: loading TLS would take a third of a call's time.
    code = "import sys; sys.modules['ssl'] = None; sys.path.append(sys.argv.pop(1)); "
    code += "from reconciler.training_service.storage.gsutil.main import main; sys.exit(main(sys.argv[1:]))"
    for tool in ("gsutil", "gcloud"):
        line = shlex.join([sys.executable, "-I", "-S", "-c", code, str(_ROOT), tool])
        (folder / tool).write_text(f'#!/bin/sh\nexec {line} "$@"\n', "utf-8")
        (folder / tool).chmod(0o755)


_LETTERS = {
    "r": "recursive",
    "R": "recursive",
    "n": "no_clobber",
    "d": "delete",
    "l": "long",
    "f": "ignore_missing",
    "I": "from_stdin",
}
# Accepted letters by command; those missing in _LETTERS have no effect here.
_ALLOWED = {
    "cp": "rRnIcePvU",
    "mv": "nIcePvU",
    "rm": "rRfI",
    "cat": "",
    "ls": "lrRbha",
    "rsync": "rRdcCeP",
    "stat": "",
}
_LONG = {
    "--recursive": "r",
    "--no-clobber": "n",
    "--delete-unmatched-destination-objects": "d",
    "--long": "l",
    "--read-paths-from-stdin": "I",
    "--continue-on-error": "c",
    "--preserve-posix": "P",
}
_BEFORE = {"-m", "-q", "--quiet", "--no-user-output-enabled"}
_BEFORE_WITH_VALUE = {"-o", "-h", "-u", "-i", "--project", "--verbosity", "--billing-project"}


def main(arguments: Sequence[str]) -> int:
    """Execute `gsutil …` or `gcloud …` and return the exit code."""
    tool, *words = arguments
    try:
        return _carry_out(tool, words)
    except UsageError as error:
        return _fail(tool, str(error), "CommandException")
    except StorageError as error:
        kind = {403: "AccessDeniedException", 404: "NotFoundException"}.get(
            error.status, "BadRequestException"
        )
        return _fail(tool, f"{error.status} {error}", kind)
    except BrokenPipeError:  # the reader of the output has gone, as in `gsutil cat … | head`
        return 1
    except OSError as error:
        return _fail(tool, str(error), "OSError")


def _carry_out(tool: str, words: list[str]) -> int:
    quiet, words = _without_global_flags(words)
    if tool == "gcloud":
        if words[:1] != ["storage"]:
            raise UsageError(
                f"of gcloud only `gcloud storage` is served here ({_SERVED}): {shlex.join(words)}"
            )
        more, words = _without_global_flags(words[1:])
        quiet = quiet or more
    if not words or words[0] not in _ALLOWED:
        raise UsageError(f"of {tool} these commands are served here: {_SERVED}; not {shlex.join(words[:1])}")
    url = os.environ.get("STORAGE_EMULATOR_HOST", "")
    if not url:
        raise UsageError("STORAGE_EMULATOR_HOST names no storage")
    flags, places = _flags(tool, words[0], words[1:])
    command = Command(Storage(url), replace(flags, quiet=quiet), (lambda _: None) if quiet else _say)
    getattr(command, words[0])(places)
    for text in command.failed if not (quiet and words[0] == "stat") else ():
        _fail(tool, text, "CommandException")
    return 1 if command.failed else 0


def _without_global_flags(words: list[str]) -> tuple[bool, list[str]]:
    quiet = False
    while words and words[0].startswith("-"):
        name, has_value, _ = words[0].partition("=")
        if name in _BEFORE:
            quiet = quiet or name != "-m"
        elif name in _BEFORE_WITH_VALUE:
            words = words if has_value else words[1:]
        else:
            raise UsageError(f"the flag {words[0]} isn't known here")
        words = words[1:]
    return quiet, words


def _flags(tool: str, command: str, words: Sequence[str]) -> tuple[Flags, list[str]]:
    letters, places = "", []
    for word in words:
        name = word.partition("=")[0]
        if word == "-" or not word.startswith("-"):
            places.append(word)
        elif word.startswith("--") and (name in _LONG or name in _BEFORE | _BEFORE_WITH_VALUE):
            letters += _LONG.get(name, "")
        elif word.startswith("--") or not set(word[1:]) <= set(_ALLOWED[command]):
            raise UsageError(f"{tool} {command} knows no {word} here, only -{' -'.join(_ALLOWED[command])}")
        else:
            letters += word[1:]
    return Flags(**{_LETTERS[letter]: True for letter in letters if letter in _LETTERS}), places


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _fail(tool: str, text: str, kind: str) -> int:
    prefix = f"ERROR: (gcloud.storage) {text}" if tool == "gcloud" else f"{kind}: {text}"
    sys.stderr.write(f"{prefix}\n")
    return 1
