"""`reconciler`, and `python -m reconciler`."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn


def main() -> int:
    """Run the command line in `sys.argv`; its exit code."""
    from reconciler.cli import run

    signal.signal(signal.SIGTERM, _interrupt)
    return run(sys.argv[1:])


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """End as at Ctrl-C, saying what goes on; a second signal ends at once."""
    signal.signal(number, signal.SIG_DFL)
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    sys.exit(main())
