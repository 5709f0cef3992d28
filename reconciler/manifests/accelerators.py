"""Accelerators that each machine type has or accepts.

Machine types missing from the tables are accepted as they are, because new ones appear. Sources, as of 2026:
https://cloud.google.com/compute/docs/gpus (accelerators of accelerator-optimized machines, accelerators for
N1 machines and the most CPUs with each number of them),
https://cloud.google.com/vertex-ai/docs/training/configure-compute and
https://cloud.google.com/ai-platform/training/docs/machine-types (AI Platform's own names).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct, json

from reconciler.base.diagnostics import quote
from reconciler.manifests.schemas import folder

_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)+|standard")
_CPUS = re.compile(r"n1-(?:custom-([0-9]+)-[0-9]+|[a-z]+-([0-9]+))")
_TPU_MACHINE = re.compile(r"cloud[-_]tpu|ct[0-9]+[a-z]*-.*|tpu[0-9].*")


class _Tables(Struct, frozen=True):
    """Tables in `schemas/accelerators.json`.

    Attributes:
        bundled: Machine type -> the accelerator that comes with it, and the number.
        attachable: Accelerator -> number attached to an N1 machine -> the most CPUs that it may have.
    """

    bundled: dict[str, tuple[str, int]]
    attachable: dict[str, dict[int, int]]


_TABLES = json.decode((folder() / "accelerators.json").read_bytes(), type=_Tables)
_BUNDLED, _ATTACHABLE = _TABLES.bundled, _TABLES.attachable

# Series of Compute Engine that accept no accelerator.
_NO_ACCELERATORS = re.compile(r"(?:c2d?|c3d?|c4[ad]?|e2|h3|m[1-4]|n2d?|n4[ad]?|t2[ad]|x4|z3)-.+")

# AI Platform's own names of machines; accelerators, if any, are part of such a machine.
_OWN_NAMES = re.compile(
    "standard(?:_gpu|_p100|_v100)?|large_model(?:_v100)?"
    "|complex_model_(?:s|m|l|m_gpu|l_gpu|m_p100|m_v100|l_v100)"
)

Part = Literal["machine", "type", "count"]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Fields that don't fit together.

    Attributes:
        part: The field to change.
        message: The mistake.
        hint: Advice; "" if `right` gives it or if it is unknown.
        right: The accelerator and count that the machine requires.
    """

    part: Part
    message: str
    hint: str = ""
    right: tuple[str, int] | None = None


def name_mismatch(machine: str) -> Mismatch | None:
    """Return the mistake in a name that no machine type can have, or None."""
    if _NAME.fullmatch(machine):
        return None
    lower = machine.strip().lower().replace(" ", "-")
    hint = f"write {lower}" if _NAME.fullmatch(lower) else "write one such as n1-standard-4"
    return Mismatch("machine", f"{quote(machine)} can't be a machine type", hint)


def mismatch(machine: str, accelerator: str, number: int) -> Mismatch | None:
    """Return the reason why a machine can't have `number` of an accelerator, or None.

    `accelerator` is the API's name of it, "" for none.
    """
    if machine in _BUNDLED:
        return _bundled_mismatch(machine, accelerator, number)
    if not accelerator:
        return None
    if accelerator.startswith("TPU_") or _TPU_MACHINE.fullmatch(machine):
        return _tpu_mismatch(machine, accelerator)
    if _OWN_NAMES.fullmatch(machine) or _NO_ACCELERATORS.fullmatch(machine):
        return Mismatch("type", f"{machine} takes no accelerators", _machines_for(accelerator, number))
    return _attached_mismatch(machine, accelerator, number) if machine.startswith("n1-") else None


def bundled_accelerator(machine: str) -> str:
    """Return the accelerator that is part of a machine type, or ""."""
    return _BUNDLED.get(machine, ("", 0))[0]


def _bundled_mismatch(machine: str, accelerator: str, count: int) -> Mismatch | None:
    right = own, own_count = _BUNDLED[machine]
    if (accelerator, count) == right:
        return None
    if not accelerator:
        return Mismatch("machine", f"{machine} comes with {own_count} {own}, which must be said", right=right)
    part: Part = "count" if accelerator == own else "type"
    return Mismatch(part, f"{machine} has {own_count} {own}, not {count} {accelerator}", right=right)


def _tpu_mismatch(machine: str, accelerator: str) -> Mismatch | None:
    is_tpu = accelerator.startswith("TPU_")
    is_tpu_machine = bool(_TPU_MACHINE.fullmatch(machine))
    if is_tpu_machine and not is_tpu:
        return Mismatch("type", f"{machine} has TPUs, not {accelerator}", "name the TPU, or another machine")
    if is_tpu and (_NO_ACCELERATORS.fullmatch(machine) or machine.startswith("n1-")):
        return Mismatch(
            "machine", f"{accelerator} can't be attached to {machine}", "take a machine with TPUs"
        )
    return None


def _attached_mismatch(machine: str, accelerator: str, count: int) -> Mismatch | None:
    most_cpus = _ATTACHABLE.get(accelerator)
    if most_cpus is None:
        if not _machines_for(accelerator, count):
            return None  # an unknown accelerator may be new
        message = f"{accelerator} can't be attached to {machine}"
        return Mismatch("type", message, _machines_for(accelerator, count))
    if count not in most_cpus:
        message = f"a machine can have {_join_or(most_cpus)} {accelerator}, not {count}"
        return Mismatch("count", message, f"write {_join_or(most_cpus)}")
    match = _CPUS.fullmatch(machine)
    # A new kind of name has no known number of CPUs: the service decides.
    cpus = int(match[1] or match[2]) if match else 0
    if cpus > most_cpus[count]:
        enough = [number for number, most in most_cpus.items() if most >= cpus]
        hint = f"write {_join_or(enough)}, or take a smaller machine" if enough else "take a smaller machine"
        return Mismatch("count", f"{machine} has {cpus} CPUs, too many for {count} {accelerator}", hint)
    return None


def _machines_for(accelerator: str, count: int) -> str:
    """Return a hint that names the machines with the accelerator; "" if the tables have none."""
    if accelerator in _ATTACHABLE:
        return f"{accelerator} goes with machines of the series n1"
    having = {machine: number for machine, (own, number) in _BUNDLED.items() if own == accelerator}
    fitting = [machine for machine, number in having.items() if number == count] or list(having)
    return f"{accelerator} comes with {_join_or(fitting)}" if fitting else ""


def _join_or(values: Iterable[object]) -> str:
    *others, last = [str(value) for value in values]
    return f"{', '.join(others)} or {last}" if others else last


# Names of the series A and of TPUs end with the number of accelerators: a2-highgpu-8g, ct5lp-hightpu-4t.
_COUNTED = re.compile(r"(?:a[0-9]|ct[0-9]|tpu)[a-z0-9]*-[a-z]+-([0-9]{1,3})[gt]")

# Machines with a fraction of a GPU, which counts as 1.
_FRACTIONS = ("g4-standard-6", "g4-standard-12", "g4-standard-24")


def accelerators_of(machine: str) -> int:
    """Return the number of accelerators of a machine type; 0 for none or for an unknown name."""
    counted = _COUNTED.fullmatch(machine)
    if counted:
        return int(counted[1])
    return 1 if machine in _FRACTIONS else _BUNDLED.get(machine, ("", 0))[1]
