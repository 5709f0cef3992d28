"""Machine types with their accelerators, regions and runtime versions of both services.

The tables are in `schemas/known_values.json`, with their sources. A well-formed value that they lack is only
doubtful, because new machine types and regions appear. AI Platform was switched off on 2025-01-31, so its
runtime versions are complete, and it never had the machines and regions that opened later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal

from msgspec import Struct, json

from reconciler.base.diagnostics import ERROR, WARNING, Level, quote
from reconciler.manifests.findings import same_word, similar_word
from reconciler.manifests.schemas import folder
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1

_CACHED = 1000  # results of each function: many manifests share their machines

_NAME = r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)+|standard"
_CPUS = r"n1-(?:custom-([0-9]+)-[0-9]+|[a-z]+-([0-9]+))"
_TPU_MACHINE = r"cloud[-_]tpu|ct[0-9]+[a-z]*-.*|tpu[0-9].*"


class _Regions(Struct, frozen=True):
    """Regions of one service; it has none of `refused`."""

    known: frozenset[str]
    refused: frozenset[str]


class _Tables(Struct, frozen=True, rename="camel"):
    """Tables in `schemas/known_values.json`.

    Attributes:
        bundled: Machine type -> the accelerator that comes with it, and the number.
        attachable: Accelerator -> number attached to an N1 machine -> the most CPUs that it may have.
        sizes: Family of machine types, such as `n1-standard` -> their numbers of CPUs.
        machines: Further machine types.
        tpus: Machine types of Vertex AI with TPUs.
        own_names: AI Platform's own names of machines -> the machine type, without its accelerators.
        newer_than_ml: Series of Compute Engine that AI Platform never had.
        regions: By apiVersion.
        runtimes: AI Platform's runtime versions -> their Pythons.
    """

    bundled: dict[str, tuple[str, int]]
    attachable: dict[str, dict[int, int]]
    sizes: dict[str, tuple[int, ...]]
    machines: tuple[str, ...]
    tpus: tuple[str, ...]
    own_names: dict[str, str]
    newer_than_ml: frozenset[str]
    regions: dict[str, _Regions]
    runtimes: dict[str, tuple[str, ...]]


_TABLES = json.decode((folder() / "known_values.json").read_bytes(), type=_Tables)
_BUNDLED, _ATTACHABLE = _TABLES.bundled, _TABLES.attachable

# Series of Compute Engine that accept no accelerator.
_NO_ACCELERATORS = r"(?:c2d?|c3d?|c4[ad]?|e2|h3|m[1-4]|n2d?|n4[ad]?|t2[ad]|x4|z3)-.+"
_COMPUTE_ENGINE = {
    *(f"{family}-{size}" for family, sizes in _TABLES.sizes.items() for size in sizes),
    *_TABLES.machines,
    *_BUNDLED,
}
_MACHINES: Mapping[str, frozenset[str]] = {
    AIPLATFORM_V1: frozenset([*_COMPUTE_ENGINE, *_TABLES.tpus]),
    ML_V1: frozenset(
        [
            *(name for name in _COMPUTE_ENGINE if name.partition("-")[0] not in _TABLES.newer_than_ml),
            *_TABLES.own_names,
        ]
    ),
}
_SERVICES = {AIPLATFORM_V1: "Vertex AI", ML_V1: "AI Platform"}
_ZONE = r".+[0-9]-[a-z]"
_LOCAL_SSD = "-lssd"  # ends the names of machines with disks of their own

Part = Literal["machine", "type", "count"]


class Doubt(Struct, frozen=True):
    """Mistake in a value, or for level WARNING its probable mistake."""

    message: str
    hint: str
    level: Level = ERROR


class Mismatch(Struct, frozen=True):
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


@lru_cache(_CACHED)
def name_mismatch(machine: str) -> Mismatch | None:
    """Return the mistake in a name that no machine type can have, or None."""
    if re.fullmatch(_NAME, machine):
        return None
    lower = machine.strip().lower().replace(" ", "-")
    hint = f"write {lower}" if re.fullmatch(_NAME, lower) else "write one such as n1-standard-4"
    return Mismatch("machine", f"{quote(machine)} can't be a machine type", hint)


def machine_doubt(api_version: str, machine: str) -> Doubt | None:
    """Return the doubt about a machine type: no machine of this service, or in no table; None if known."""
    known = _MACHINES[api_version]
    if machine in known or machine.removesuffix(_LOCAL_SSD) in known:
        return None
    other = AIPLATFORM_V1 if api_version == ML_V1 else ML_V1
    if machine in _MACHINES[other]:
        message = f"{_SERVICES[api_version]} has no machine type {machine}"
        own = _TABLES.own_names.get(machine)
        with_gpus = " with its accelerator" if re.search("_(gpu|[pv]100)$", machine) else ""
        hint = (
            f"write {own}{with_gpus}" if own else "use a machine of the N1 series, or Vertex AI's CustomJob"
        )
        return Doubt(message, hint)
    return _unknown(f"{machine} is not a known machine type", machine, known)


def region_doubt(api_version: str, region: str) -> Doubt | None:
    """Return the doubt about a region: none of this service, or in no table; None if known, or a zone."""
    regions = _TABLES.regions[api_version]
    if region in regions.known or re.fullmatch(_ZONE, region):  # the schema has a message for a zone
        return None
    if region in regions.refused:
        message = f"{_SERVICES[api_version]} runs no training jobs in {region}"
        return Doubt(message, "write a region such as us-central1")
    return _unknown(f"{region} is not a known region", region, regions.known)


def runtime_doubt(runtime: str) -> Doubt | None:
    """Return the mistake in a runtime version that AI Platform never had, or None."""
    if runtime in _TABLES.runtimes:
        return None
    last = {version.partition(".")[0]: version for version in _TABLES.runtimes}
    first = {version.partition(".")[0]: version for version in reversed(_TABLES.runtimes)}
    listed = " and ".join(f"{first[major]} to {last[major]}" for major in last)
    return Doubt(f"AI Platform never had the runtime version {runtime}", f"there are {listed}")


def python_doubt(runtime: str, python: str) -> Doubt | None:
    """Return the mistake in the Python of a runtime version, or None, also for an unknown runtime version."""
    pythons = _TABLES.runtimes.get(runtime, (python,))
    if python in pythons:
        return None
    listed = _join_or(quote(version) for version in pythons)
    return Doubt(f"the runtime version {runtime} has no Python {python}", f"write {listed}")


@lru_cache(_CACHED)
def _unknown(message: str, value: str, known: frozenset[str]) -> Doubt:
    names = sorted(known)
    nearest = same_word(value, names) or similar_word(value, names)
    return Doubt(message, f"did you mean {nearest}?" if nearest else "check its name", WARNING)


@lru_cache(_CACHED)
def mismatch(machine: str, accelerator: str, number: int) -> Mismatch | None:
    """Return the reason why a machine can't have `number` of an accelerator, or None.

    `accelerator` is the API's name of it, "" for none.
    """
    if machine in _BUNDLED:
        return _bundled_mismatch(machine, accelerator, number)
    if not accelerator:
        return None
    if accelerator.startswith("TPU_") or re.fullmatch(_TPU_MACHINE, machine):
        return _tpu_mismatch(machine, accelerator)
    if machine in _TABLES.own_names or re.fullmatch(_NO_ACCELERATORS, machine):
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
        return Mismatch(
            "machine", f"{machine} comes with {own_count} {own}, which must be stated", right=right
        )
    part: Part = "count" if accelerator == own else "type"
    return Mismatch(part, f"{machine} has {own_count} {own}, not {count} {accelerator}", right=right)


def _tpu_mismatch(machine: str, accelerator: str) -> Mismatch | None:
    is_tpu = accelerator.startswith("TPU_")
    is_tpu_machine = bool(re.fullmatch(_TPU_MACHINE, machine))
    if is_tpu_machine and not is_tpu:
        return Mismatch("type", f"{machine} has TPUs, not {accelerator}", "name the TPU, or another machine")
    if is_tpu and (re.fullmatch(_NO_ACCELERATORS, machine) or machine.startswith("n1-")):
        return Mismatch("machine", f"{accelerator} can't be attached to {machine}", "use a machine with TPUs")
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
    match = re.fullmatch(_CPUS, machine)
    # A new kind of name has no known number of CPUs: the service decides.
    cpus = int(match[1] or match[2]) if match else 0
    if cpus > most_cpus[count]:
        enough = [number for number, most in most_cpus.items() if most >= cpus]
        hint = f"write {_join_or(enough)}, or use a smaller machine" if enough else "use a smaller machine"
        return Mismatch("count", f"{machine} has {cpus} CPUs, too many for {count} {accelerator}", hint)
    return None


def _machines_for(accelerator: str, count: int) -> str:
    """Return a hint that names the machines with the accelerator; "" if the tables have none."""
    if accelerator in _ATTACHABLE:
        return f"{accelerator} needs a machine of the N1 series"
    having = {machine: number for machine, (own, number) in _BUNDLED.items() if own == accelerator}
    fitting = [machine for machine, number in having.items() if number == count] or list(having)
    return f"{accelerator} comes with {_join_or(fitting)}" if fitting else ""


def _join_or(values: Iterable[object]) -> str:
    *others, last = [str(value) for value in values]
    return f"{', '.join(others)} or {last}" if others else last


# Names of the series A and of TPUs end with the number of accelerators: a2-highgpu-8g, ct5lp-hightpu-4t.
_COUNTED = r"(?:a[0-9]|ct[0-9]|tpu)[a-z0-9]*-[a-z]+-([0-9]{1,3})[gt]"

# Machines with a fraction of a GPU, which counts as 1.
_FRACTIONS = ("g4-standard-6", "g4-standard-12", "g4-standard-24")


@lru_cache(_CACHED)
def accelerators_of(machine: str) -> int:
    """Return the number of accelerators of a machine type; 0 for none or for an unknown name."""
    counted = re.fullmatch(_COUNTED, machine)
    if counted:
        return int(counted[1])
    return 1 if machine in _FRACTIONS else _BUNDLED.get(machine, ("", 0))[1]
