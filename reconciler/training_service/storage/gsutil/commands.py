"""The commands of `gsutil` and `gcloud storage`, on the job's own storage.

Imports only the standard library and this package: a trainer may start them often.
"""

from __future__ import annotations

import os
import shutil
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from pathlib import Path

from reconciler.training_service.storage.gsutil.client import (
    Storage,
    StorageUrl,
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
    summary: bool = False
    human: bool = False
    total: bool = False
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """A file or object to copy; `path` is relative to the named container, "" if named itself."""

    url: StorageUrl
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
        copies = [
            pair for word in sources for pair in self._sources(word, recursive=self.flags.recursive or move)
        ]
        several = len({top for _, top in copies}) > 1
        # Several sources need a container; in a bucket, names below a new prefix make one.
        if several and not into and not target.bucket:
            text = f"{last} must name a directory, bucket, or bucket subdirectory for several sources."
            raise UsageError(f"Destination URL {text}")
        for source, top in copies:
            below = into or several
            if source.url.bucket and source.url.name.endswith("/") and not source.path:
                self._copy(source.url, target.below(f"{source.url.base}/" if below else ""), move=move)
            elif not source.path:
                self._copy(source.url, target.below(source.url.base) if below else target, move=move)
            elif below and top not in (".", ".."):
                self._copy(source.url, target.below(f"{top}/{source.path}"), move=move)
            else:
                self._copy(source.url, target.below(source.path), move=move)

    def mv(self, words: Sequence[str]) -> None:
        """Move files and objects."""
        self.cp(words, move=True)

    def rm(self, words: Sequence[str]) -> None:
        """Delete objects."""
        if self.flags.from_stdin:
            words = [*words, *sys.stdin.read().splitlines()]
        for word in words:
            url = parse(word)
            if not url.bucket:
                raise UsageError(f'"rm" command does not support "file://" URLs: {word}')
            if not url.name and self.flags.recursive:
                raise UsageError("Buckets are not removed here: name what is in it, gs://BUCKET/**.")
            for source, _ in self._sources(
                word, recursive=self.flags.recursive, quiet=self.flags.ignore_missing
            ):
                self.say(f"Removing {source.url}...")
                self.storage.delete(source.url.bucket, source.url.name)

    def cat(self, words: Sequence[str]) -> None:
        """Write objects to standard output."""
        for word in words:
            for source, _ in self._sources(word, recursive=False):
                if source.url.bucket:
                    self.storage.read(source.url.bucket, source.url.name, sys.stdout.buffer)
                else:
                    with Path(source.url.name).open("rb") as file:
                        shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()

    def ls(self, words: Sequence[str]) -> None:
        """List buckets or their contents."""
        if not words:
            for name in self.storage.buckets():
                _print(f"gs://{name}/")
        for word in words:
            matched = list(matches(self.storage, parse(word)))
            if not matched:
                raise UsageError(f"One or more URLs matched no objects: {word}")
            for url, container in matched:
                if not container:
                    self._print(self.storage.find(url.bucket, url.name) or {}, url)
                    continue
                if len(matched) > 1:
                    _print(f"\n{url}/:")
                prefix = f"{url.name}/" if url.name else ""
                delimiter = "" if self.flags.recursive else "/"
                for entry in self.storage.names(url.bucket, prefix, delimiter):
                    self._print(entry, StorageUrl(entry.get("prefix") or entry["name"], url.bucket))

    def stat(self, words: Sequence[str]) -> None:
        """Print objects' metadata; a missing object fails the call, which scripts use as a test."""
        for word in words:
            entries = [(url, self.storage.find(url.bucket, url.name)) for url in self._objects(word)]
            if not entries:
                self.failed.append(f"No URLs matched: {word}")
            for url, entry in entries if not self.flags.quiet else ():
                _print(f"{url}:")
                for label, name in _STAT_FIELDS.items():
                    _print(f"    {label + ':':24}{(entry or {}).get(name, '')}")

    def du(self, words: Sequence[str]) -> None:
        """Print the size of objects, and of all objects below each prefix."""
        total = 0
        for word in words or [f"gs://{name}" for name in self.storage.buckets()]:
            matched = list(matches(self.storage, parse(word)))
            if not matched:
                raise UsageError(f"One or more URLs matched no objects: {word}")
            total += sum(self._du(url, container) for url, container in matched)
        if self.flags.total:
            self._print_size(total, "total")

    def _du(self, url: StorageUrl, container: bool) -> int:
        """Print a URL's sizes, those of what is in a container first; return the URL's own."""
        if not container:
            size = int((self.storage.find(url.bucket, url.name) or {}).get("size", 0))
            self._print_size(size, str(url))
            return size
        prefix, sums = f"{url.name}/" if url.name else "", {"": 0}
        for entry in self.storage.names(url.bucket, prefix):
            size, path = int(entry["size"]), entry["name"][len(prefix) :]
            if not self.flags.summary:
                self._print_size(size, str(StorageUrl(entry["name"], url.bucket)))
            for end in (0, *(at + 1 for at, sign in enumerate(path) if sign == "/")):
                sums[path[:end]] = sums.get(path[:end], 0) + size
        for below in sorted(sums, reverse=True):
            if not below or not self.flags.summary:
                whole = f"{prefix}{below}"
                self._print_size(sums[below], f"gs://{url.bucket}/{whole}" if whole else f"gs://{url.bucket}")
        return sums[""]

    def _print_size(self, size: int, name: str) -> None:
        _print(f"{_human(size) if self.flags.human else size:<11}  {name}")

    def rsync(self, words: Sequence[str]) -> None:
        """Make a container's contents equal to another's."""
        if len(words) != 2:
            raise UsageError("The rsync command needs a source and a destination.")
        source, target = map(parse, words)
        if not source.bucket and not Path(source.name).is_dir():
            raise UsageError(f"arg ({words[0]}) does not name a directory, bucket, or bucket subdir.")
        here, there = self._held(source), self._held(target)
        for path, url in here.items():
            if path not in there or self._digest(url) != self._digest(there[path]):
                self._copy(url, target.below(path), move=False)
        for path in there.keys() - here.keys() if self.flags.delete else ():
            self.say(f"Removing {there[path]}")
            self._remove(there[path])

    def _objects(self, word: str) -> list[StorageUrl]:
        url = parse(word)
        if not url.bucket or not url.name:
            raise UsageError(f"The stat command only works with object URLs: {word}")
        return [object_url for object_url, container in matches(self.storage, url) if not container]

    def _held(self, container: StorageUrl) -> dict[str, StorageUrl]:
        urls = {source.path: source.url for source in self._files(container)}
        return {path: url for path, url in urls.items() if self.flags.recursive or "/" not in path}

    def _digest(self, url: StorageUrl) -> str:
        if url.bucket:
            return str((self.storage.find(url.bucket, url.name) or {}).get("md5Hash"))
        digest = md5(usedforsecurity=False)
        with Path(url.name).open("rb") as file:
            while data := file.read(1024 * 1024):
                digest.update(data)
        return b64encode(digest.digest()).decode()

    def _sources(self, word: str, *, recursive: bool, quiet: bool = False) -> list[tuple[Source, str]]:
        """Return the files and objects of a word, each with the name of the container that matched."""
        sources: list[tuple[Source, str]] = []
        for url, container in matches(self.storage, parse(word)):
            top = url.base or url.bucket
            if not container:
                sources.append((Source(url), str(url)))
            elif recursive:
                sources += [(source, top) for source in self._files(url)]
            else:
                self.failed.append(f'Omitting directory "{url}". (Did you mean to do cp -r?)')
        if not sources and not quiet:
            raise UsageError("\n".join([*self.failed, f"No URLs matched: {word}"]))
        return sources

    def _files(self, container: StorageUrl) -> Iterator[Source]:
        """Yield all files or objects below a container."""
        if container.bucket:
            prefix = f"{container.name.rstrip('/')}/" if container.name else ""
            for entry in self.storage.names(container.bucket, prefix):
                yield Source(StorageUrl(entry["name"], container.bucket), entry["name"][len(prefix) :])
            return
        for folder, folders, names in os.walk(container.name):
            folders.sort()
            for name in sorted(names):
                path = Path(folder) / name
                yield Source(StorageUrl(str(path)), str(path.relative_to(container.name)))

    def _is_container(self, url: StorageUrl) -> bool:
        """Return whether a copy to this URL goes below it."""
        # As in gsutil: a bucket, a folder, a prefix of existing names, or any name with a final "/".
        if url.name.endswith("/") or (url.bucket and not url.name):
            return True
        if not url.bucket:
            return Path(url.name).is_dir()
        return any(True for _ in self.storage.names(url.bucket, f"{url.name}/", "/"))

    def _copy(self, source: StorageUrl, target: StorageUrl, *, move: bool) -> None:
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

    def _to_file(self, source: StorageUrl, path: Path) -> None:
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

    def _from_stdin(self, target: StorageUrl) -> None:
        import tempfile  # here: few calls need it, and imports are most of a call's time

        with tempfile.TemporaryFile() as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
            file.flush()
            file.seek(0)
            self.storage.write(target.bucket, target.name, file, "application/octet-stream")

    def _is_there(self, url: StorageUrl) -> bool:
        if url.bucket:
            return self.storage.find(url.bucket, url.name) is not None
        return Path(url.name).exists()

    def _remove(self, url: StorageUrl) -> None:
        if url.bucket:
            self.storage.delete(url.bucket, url.name)
        else:
            Path(url.name).unlink()

    def _print(self, entry: dict[str, str], url: StorageUrl) -> None:
        about = (
            f"{entry['size']:>10}  {entry['updated'][:19]}Z  " if self.flags.long and "size" in entry else ""
        )
        _print(f"{about}{url}")


def _human(size: int) -> str:
    power = max(0, min((size.bit_length() - 1) // 10, 5))
    return f"{round(size / 1024**power, 2):g} {('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')[power]}"


def _type_of(path: str) -> str:
    import mimetypes  # here: it reads the system's tables

    return mimetypes.guess_type(path)[0] or "application/octet-stream"


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
