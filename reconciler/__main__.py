"""`reconciler`, and `python -m reconciler`."""

from __future__ import annotations

import signal
import sys
import warnings
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import FrameType


def main() -> int:
    """Run the command line in `sys.argv`; its exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    if not sys.warnoptions:
        # A library's warning would break a log in JSON, and may quote untrusted text.
        warnings.simplefilter("ignore")
    from reconciler.cli import run

    return run(sys.argv[1:])


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """End as at Ctrl-C, saying what goes on; a second signal ends at once."""
    signal.signal(number, signal.SIG_DFL)
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    sys.exit(main())
