"""The process's standard streams, which may be closed, on a full disk, or without a reader."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Buffer


def open_streams() -> None:
    """Give the process streams that fail alike, whatever they are connected to.

    A write to stdout raises OSError with a message for users, also if the stream is closed. A message that
    can't be written to stderr is lost: it must end no command half-way, nor change its exit code.
    """
    # In this order, each gets its own number, the lowest that is free. No file that a command opens may get
    # it: a program that the command starts would write its messages into that file.
    sys.stdin = sys.stdin or os.fdopen(_closed(os.O_WRONLY), closefd=False)
    sys.stdout = _over(_Output, sys.stdout, os.O_RDONLY)
    sys.stderr = _over(_Messages, sys.stderr, os.O_WRONLY)


class _Output(io.FileIO):
    """File of the data that a command prints."""

    def write(self, data: Buffer, /) -> int:
        """Write data; raise OSError that names the stream."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            reason = "it is closed" if error.errno == errno.EBADF else error.strerror
            raise OSError(error.errno, f"standard output can't be written: {reason}") from None


class _Messages(io.FileIO):
    """File of messages, which drops those that can't be written."""

    def write(self, data: Buffer, /) -> int:
        """Write data; return its length also if nobody can read it."""
        try:
            written: int | None = super().write(data)
        except OSError:
            written = None
        # None also from a terminal that takes nothing at the moment, if another program has set it so.
        return memoryview(data).nbytes if written is None else written


def _closed(flags: int) -> int:
    """Return the number of a null device that is inherited; opened for the wrong direction, it fails."""
    descriptor = os.open(os.devnull, flags)
    os.set_inheritable(descriptor, True)
    return descriptor


def _over(kind: type[io.FileIO], stream: TextIO | None, flags: int) -> TextIO:
    """Return a stream over the descriptor of `stream`; over the null device if that is closed."""
    if stream is None:
        file = io.BufferedWriter(kind(_closed(flags), "w", closefd=False))
        return io.TextIOWrapper(file, "utf-8", "backslashreplace", line_buffering=flags == os.O_WRONLY)
    assert isinstance(stream, io.TextIOWrapper)
    raw = kind(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        raw if stream.write_through else io.BufferedWriter(raw),  # unbuffered with `python -u`
        stream.encoding,
        "backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
