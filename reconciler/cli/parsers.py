"""Parser of command lines and formatter of help texts, where argparse's own do the wrong thing."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NoReturn

from reconciler.base.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


class Parser(argparse.ArgumentParser):
    """Parser that raises UsageError; argparse itself exits with 2, which means pending changes here."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(message, hint=f"see `{self.prog} --help`")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        # argparse's own ignores errors: a help text that is lost would pass for printed.
        (file or sys.stderr).write(message)


class HelpFormatter(argparse.HelpFormatter):
    """Formatter that puts each command and its help on one line."""

    def add_argument(self, action: argparse.Action) -> None:
        """Add an argument."""
        super().add_argument(action)
        # argparse forgets that commands are indented under their title, so the longest names don't fit.
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += self._indent_increment
