"""Explanations in explained.toml: the reason why an undetected mutant is harmless."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .mutants import Mutant

_FILE = Path(__file__).with_name("explained.toml")


class Explained:
    """Comparison of a module's survivors with their explanations.

    Attributes:
        without: The survivors without an explanation.
        unneeded: The explanations without a survivor.
    """

    def __init__(self, module: str, survivors: Sequence[Mutant]) -> None:
        entries = _read().get(module, [])
        said = {
            (entry["function"], change) for entry in entries for change in entry["changes"] if entry["reason"]
        }
        there = {(mutant.function, mutant.change): mutant for mutant in survivors}
        self.without = [mutant for key, mutant in there.items() if key not in said]
        self.unneeded = [": ".join(key) for key in sorted(said - there.keys())]


def modules() -> frozenset[str]:
    """Return the modules with explanations."""
    return frozenset(_read())


def _read() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text("utf-8"))
