"""Machine types and the accelerators that they can have: names that don't fit together."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from reconciler.base.diagnostics import quote
from reconciler.manifests.known_values import CACHED, TABLES, join_or
from reconciler.manifests.messages import tpu_machine

_MACHINE_NAME = r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)+|standard"
_CPUS = r"n1-(?:custom-([0-9]+)-[0-9]+|[a-z]+-([0-9]+))"
_TPU_MACHINE = r"cloud[-_]tpu|ct[0-9]+[a-z]*-.*|tpu[0-9].*"
# Series of Compute Engine that accept no accelerator.
_NO_ACCELERATORS = r"(?:c2d?|c3d?|c4[ad]?|e2|h3|m[1-4]|n2d?|n4[ad]?|t2[ad]|x4|z3)-.+"

Part = Literal["machine", "type", "count"]


class MachineMismatch(Struct, frozen=True):
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


@lru_cache(CACHED)
def machine_name_mismatch(machine: str) -> MachineMismatch | None:
    """Return the mistake in a name that no machine type can have, or None."""
    if re.fullmatch(_MACHINE_NAME, machine):
        return None
    lower = tpu_machine(machine) or machine.strip().lower().replace(" ", "-")
    hint = f"write {lower}" if re.fullmatch(_MACHINE_NAME, lower) else "write one such as n1-standard-4"
    return MachineMismatch("machine", f"{quote(machine)} can't be a machine type", hint)


@lru_cache(CACHED)
def accelerator_mismatch(machine: str, accelerator: str, number: int) -> MachineMismatch | None:
    """Return the reason why a machine can't have `number` of an accelerator, or None.

    `accelerator` is the API's name of it, "" for none.
    """
    if machine in TABLES.bundled:
        return _bundled_mismatch(machine, accelerator, number)
    if not accelerator:
        return None
    if accelerator.startswith("TPU_") or re.fullmatch(_TPU_MACHINE, machine):
        return _tpu_mismatch(machine, accelerator)
    if machine in TABLES.own_names or re.fullmatch(_NO_ACCELERATORS, machine):
        return MachineMismatch("type", f"{machine} takes no accelerators", _machines_for(accelerator, number))
    return _attached_mismatch(machine, accelerator, number) if machine.startswith("n1-") else None


def _bundled_mismatch(machine: str, accelerator: str, count: int) -> MachineMismatch | None:
    right = bundled, bundled_count = TABLES.bundled[machine]
    if (accelerator, count) == right:
        return None
    if not accelerator:
        return MachineMismatch(
            "machine", f"{machine} comes with {bundled_count} {bundled}, which must be stated", right=right
        )
    part: Part = "count" if accelerator == bundled else "type"
    return MachineMismatch(
        part, f"{machine} has {bundled_count} {bundled}, not {count} {accelerator}", right=right
    )


def _tpu_mismatch(machine: str, accelerator: str) -> MachineMismatch | None:
    is_tpu = accelerator.startswith("TPU_")
    is_tpu_machine = bool(re.fullmatch(_TPU_MACHINE, machine))
    if is_tpu_machine and not is_tpu:
        return MachineMismatch(
            "type", f"{machine} has TPUs, not {accelerator}", "name the TPU, or another machine"
        )
    if is_tpu and (re.fullmatch(_NO_ACCELERATORS, machine) or machine.startswith("n1-")):
        with_tpus = tpu_machine(accelerator)
        hint = f'write {with_tpus}\nand remove "acceleratorType" and "acceleratorCount"'
        return MachineMismatch(
            "machine",
            f"{accelerator} can't be attached to {machine}",
            hint if with_tpus else "use a machine with TPUs",
        )
    return None


def _attached_mismatch(machine: str, accelerator: str, count: int) -> MachineMismatch | None:
    most_cpus = TABLES.attachable.get(accelerator)
    if most_cpus is None:
        if not _machines_for(accelerator, count):
            return None  # an unknown accelerator may be new
        message = f"{accelerator} can't be attached to {machine}"
        return MachineMismatch("type", message, _machines_for(accelerator, count))
    if count not in most_cpus:
        message = f"a machine can have {join_or(most_cpus)} {accelerator}, not {count}"
        return MachineMismatch("count", message, f"write {join_or(most_cpus)}")
    match = re.fullmatch(_CPUS, machine)
    # A new kind of name has no known number of CPUs: the service decides.
    cpus = int(match[1] or match[2]) if match else 0
    if cpus > most_cpus[count]:
        enough = [number for number, most in most_cpus.items() if most >= cpus]
        hint = f"write {join_or(enough)}, or use a smaller machine" if enough else "use a smaller machine"
        return MachineMismatch(
            "count", f"{machine} has {cpus} CPUs, too many for {count} {accelerator}", hint
        )
    return None


def _machines_for(accelerator: str, count: int) -> str:
    """Return a hint that names the machines with the accelerator; "" if the tables have none."""
    if accelerator in TABLES.attachable:
        return f"{accelerator} needs a machine of the N1 series"
    having = {
        machine: number for machine, (bundled, number) in TABLES.bundled.items() if bundled == accelerator
    }
    fitting = [machine for machine, number in having.items() if number == count] or list(having)
    return f"{accelerator} comes with {join_or(fitting)}" if fitting else ""


def bundled_accelerator(machine: str) -> str:
    """Return the accelerator that is part of a machine type, or ""."""
    return TABLES.bundled.get(machine, ("", 0))[0]
