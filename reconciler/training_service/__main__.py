"""`python -m reconciler.training_service --home HOME [--stay] [--port N]`: serve a home."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from reconciler.training_service.process import serve


def main(arguments: list[str] | None = None) -> int:
    """Run the service to its end; return the exit code."""
    parser = argparse.ArgumentParser(prog="reconciler.training_service", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="the folder that holds the service's state")
    parser.add_argument("--stay", action="store_true", help="don't end when there is nothing to do")
    parser.add_argument("--port", type=int, default=0, help="the port to serve at; 0 for any free one")
    options = parser.parse_args(arguments)
    return serve(options.home, stay=options.stay, port=options.port)


if __name__ == "__main__":
    sys.exit(main())
