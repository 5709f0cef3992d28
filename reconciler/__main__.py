"""`reconciler`, and `python -m reconciler`."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import FrameType

_SHORT = frozenset({"plan", "render", "schema", "status", "validate"})
"""The commands that look, tell and end; the others may go on for hours."""


def main() -> int:
    """Run the command line in `sys.argv`; its exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    # What a short command makes lives to its end, so that looking for cycles in it, time and again while it
    # grows, is work for nothing.
    is_short = not _SHORT.isdisjoint(sys.argv[1:2])
    if is_short:
        gc.disable()
    from reconciler.cli import run

    code = run(sys.argv[1:], _leave) if is_short else run(sys.argv[1:])
    gc.freeze()  # else the interpreter looks for cycles once more when it ends
    return code


def _leave(code: int) -> NoReturn:
    """End the process at once; its output is complete.

    To take apart what a command made, object by object, takes a tenth of the time of a large plan; the system
    takes it back in one piece.
    """
    sys.stderr.flush()
    os._exit(code)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """End as at Ctrl-C, saying what goes on; a second signal ends at once."""
    signal.signal(number, signal.SIG_DFL)
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    sys.exit(main())
