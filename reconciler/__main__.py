"""`reconciler`, and `python -m reconciler`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line in `sys.argv`; its exit code."""
    from reconciler.cli import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
