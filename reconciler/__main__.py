"""`reconciler`, and `python -m reconciler`."""

from __future__ import annotations

import atexit
import gc
import signal
import sys
import warnings
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import FrameType


def main() -> int:
    """Run the command line in `sys.argv`; its exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    # What a command loads lives to its end: at 10,000 jobs, collections after every 700 objects take 0.1 s,
    # and after every 100,000 still a tenth of a validation.
    gc.set_threshold(1_000_000)
    # Python's own collections at exit would visit all of it once more: 0.03 s even for one job.
    atexit.register(gc.freeze)
    if not sys.warnoptions:
        # A library's warning would break a log in JSON, and may quote untrusted text.
        warnings.simplefilter("ignore")
    # Imported late, because the lines above also hold for what the imports do.
    from reconciler.cli import run, streams

    streams.open_streams()
    return run(sys.argv[1:])


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """End as at Ctrl-C, saying what goes on; a second signal ends at once."""
    signal.signal(number, signal.SIG_DFL)
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    sys.exit(main())
