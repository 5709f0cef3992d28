"""What commands print beside their own results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reconciler.errors import ReconcilerError
from reconciler.inert import one_line

if TYPE_CHECKING:
    from reconciler.reporters.github import Failed


def print_json(value: Any) -> None:
    """One JSON document on stdout, the same bytes for the same value."""
    import json

    # ASCII, so that neither an encoding can break the JSON nor a manifest's text act on a terminal.
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def tell_error(error: ReconcilerError) -> None:
    """One error on stderr, and what to do about it."""
    print(f"reconciler: {one_line(error.message)}", file=sys.stderr)
    if error.hint:
        print(f"    {one_line(error.hint)}", file=sys.stderr)


def tell_failed(failed: Sequence[Failed]) -> None:
    """Say on stderr which commit statuses couldn't be posted; those of one reason in one line."""
    for message in sorted({one.message for one in failed}):
        contexts = [one.status.context for one in failed if one.message == message]
        more = f" and {len(contexts) - 1} more" if len(contexts) > 1 else ""
        print(f"reconciler: {contexts[0]}{more} not posted: {one_line(message)}", file=sys.stderr)
