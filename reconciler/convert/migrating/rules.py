"""Rules of the migration: what becomes of each field, pool, tier, machine and runtime.

The rules and their sentences are in `schemas/migration.json`.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from msgspec import Struct, json

from reconciler.manifests.schemas import folder

Verdict = Literal["exact", "translated", "changes behaviour", "lost"]
VERDICTS: tuple[Verdict, ...] = ("lost", "changes behaviour", "translated", "exact")
"""The verdicts, those that need attention first."""


class FieldRule(Struct, frozen=True):
    """Rule for one field of AI Platform; `sentence` has names in braces, to fill in."""

    source: str
    target: str
    verdict: Verdict
    sentence: str


class PoolRule(Struct, frozen=True, rename="camel"):
    """Machines of one pool of a scale tier."""

    machine_type: str
    replica_count: int
    accelerator_type: str = ""
    accelerator_count: int = 0


class TierRule(Struct, frozen=True):
    """Rule for a scale tier; CUSTOM has no pools of its own."""

    verdict: Verdict
    pools: tuple[PoolRule, ...]
    sentence: str = ""


class MachineRule(Struct, frozen=True, rename="camel"):
    """Rule for one of AI Platform's own names of machines."""

    machine_type: str
    verdict: Verdict
    accelerator_type: str = ""
    accelerator_count: int = 0
    sentence: str = ""


class RuntimeRule(Struct, frozen=True):
    """Rule for a runtime version; `image` ends the names of its images."""

    image: str
    verdict: Verdict


class Rules(Struct, frozen=True, rename="camel"):
    """Content of `schemas/migration.json`.

    Attributes:
        libraries: Other libraries of a runtime version.
        fields: By a short name.
        code: Sentences about places in a trainer's code.
        way_out: The advice for an image past its end.
    """

    tiers: dict[str, TierRule]
    machines: dict[str, MachineRule]
    runtimes: dict[str, RuntimeRule]
    libraries: dict[str, str]
    fields: dict[str, FieldRule]
    code: dict[str, str]
    way_out: str


@cache
def rules() -> Rules:
    """Return the rules of migration."""
    return json.decode((folder() / "migration.json").read_bytes(), type=Rules)
