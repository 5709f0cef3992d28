"""Commands on a real terminal."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios
from contextlib import suppress

from tests.support import preloaded
from tests.support.repository import Repository


def on_terminal(
    repository: Repository,
    *arguments: str,
    rows: int = 24,
    columns: int = 80,
    answer: str = "",
    **environ: str,
) -> str:
    """Return the output of the command on a terminal of this size, where a person types the answer."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = preloaded.start(
        *arguments,
        cwd=repository.root,
        env={**variables, "TERM": "xterm", **environ},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    os.write(master, answer.encode())
    found = bytearray()
    # Linux reports the end of a terminal as an error.
    with suppress(OSError):
        while data := os.read(master, 65536):
            found += data
    os.close(master)
    process.wait()
    return found.decode()


class Terminal(io.StringIO):
    """A stream that reports itself as a terminal."""

    def isatty(self) -> bool:
        return True
