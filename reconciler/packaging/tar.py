"""Reproducible `.tar.gz` archives: the bytes depend on the files alone.

This module writes both layers. Headers of `tarfile` have differed between Python releases (3.9 omitted the
device numbers of files). zlib's output depends on its version and build, so the content is stored
uncompressed (RFC 1951, section 3.2.4).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator

from reconciler.packaging.source_tree import SourceFile

MTIME = 946_684_800
"""The time of every file, 2000-01-01: zip files, into which tools may convert them, begin in 1980."""

_BLOCK = 512
_RECORD = 20 * _BLOCK
_STORED = 0xFFFF  # the largest stored block
# Magic, "deflate", no flags, no time, no hint on compression, unknown system (RFC 1952, section 2.3).
_GZIP_HEADER = b"\x1f\x8b\x08\x00" + bytes(4) + b"\x00\xff"


def tar_gz(files: Iterable[SourceFile]) -> bytes:
    """Return the archive of `files`, in the given order."""
    return _gzip(_tar(files))


def _tar(files: Iterable[SourceFile]) -> bytes:
    """Return a tar archive in the pax format (POSIX.1-2001)."""
    blocks = [block for file in files for block in _member(file)]
    size = sum(map(len, blocks))
    # Two empty blocks end an archive; like tar, pad it to a multiple of 20 blocks.
    return b"".join([*blocks, bytes(-(size + 2 * _BLOCK) % _RECORD + 2 * _BLOCK)])


def _member(file: SourceFile) -> Iterator[bytes]:
    name = file.path.encode("utf-8")
    if len(name) > 100 or not name.isascii():
        # A pax header takes any name; the ustar header contains a part of it.
        record = _pax_record(b"path", name)
        yield from (_header(b"pax_header", len(record), 0o644, b"x"), record, _padding(record))
        name = name.decode("ascii", "replace").encode("ascii", "replace")[:100]
    yield _header(name, len(file.content), 0o755 if file.executable else 0o644, b"0")
    yield from (file.content, _padding(file.content))


def _header(name: bytes, size: int, mode: int, kind: bytes) -> bytes:
    """Return a header block: owner 0, without a name."""
    fields = [b"%07o\0" % mode, b"%07o\0" % 0, b"%07o\0" % 0, b"%011o\0" % size, b"%011o\0" % MTIME]
    start = name.ljust(100, b"\0") + b"".join(fields)
    end = kind + bytes(100) + b"ustar\0" + b"00"
    # The checksum counts its own field as 8 blanks.
    checksum = sum(start + b" " * 8 + end)
    return (start + b"%06o\0 " % checksum + end).ljust(_BLOCK, b"\0")


def _pax_record(keyword: bytes, value: bytes) -> bytes:
    """Return `<length> <keyword>=<value>` and a line end; the length includes its own digits."""
    rest = b" %s=%s\n" % (keyword, value)
    length = len(rest)
    while length != len(rest) + len(str(length)):
        length = len(rest) + len(str(length))
    return b"%d%s" % (length, rest)


def _padding(content: bytes) -> bytes:
    return bytes(-len(content) % _BLOCK)


def _gzip(data: bytes) -> bytes:
    checks = struct.pack("<II", zlib.crc32(data), len(data))
    return b"".join([_GZIP_HEADER, *_stored_blocks(memoryview(data)), checks])


def _stored_blocks(data: memoryview) -> Iterator[bytes | memoryview]:
    """Yield blocks of at most 65,535 bytes after their length and its complement; the last block is empty."""
    for start in range(0, len(data), _STORED):
        block = data[start : start + _STORED]
        yield struct.pack("<BHH", 0, len(block), len(block) ^ 0xFFFF)
        yield block
    yield struct.pack("<BHH", 1, 0, 0xFFFF)
