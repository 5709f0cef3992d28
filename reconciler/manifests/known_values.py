"""Machine types with their accelerators, regions and runtime versions of both services.

The tables are in `schemas/known_values.json`, with their sources. A well-formed value that they lack is only
doubtful, because new machine types and regions appear. AI Platform was switched off on 2025-01-31, so its
runtime versions are complete, and it never had the machines and regions that opened later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from msgspec import Struct, json

from reconciler.base.diagnostics import Kind, quote, same_word, similar_word
from reconciler.base.warning_kinds import WarningKind
from reconciler.manifests.messages import tpu_machine
from reconciler.manifests.schemas import folder
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1

CACHED = 1000
"""Results that each function remembers: many manifests share their machines."""


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
        training_families: Families of Compute Engine that Vertex AI's page on training lists.
        tpus: Machine types of Vertex AI with TPUs.
        own_names: AI Platform's own names of machines -> the machine type, without its accelerators.
        retired: Accelerator that Google has no more -> the one to take.
        newer_than_ml: Series of Compute Engine that AI Platform never had.
        regions: By apiVersion.
        runtimes: AI Platform's runtime versions -> their Pythons.
    """

    bundled: dict[str, tuple[str, int]]
    attachable: dict[str, dict[int, int]]
    sizes: dict[str, tuple[int, ...]]
    machines: tuple[str, ...]
    training_families: frozenset[str]
    tpus: tuple[str, ...]
    own_names: dict[str, str]
    retired: dict[str, str]
    newer_than_ml: frozenset[str]
    regions: dict[str, _Regions]
    runtimes: dict[str, tuple[str, ...]]


TABLES = json.decode((folder() / "known_values.json").read_bytes(), type=_Tables)
_COMPUTE_ENGINE = {
    *(f"{family}-{size}" for family, sizes in TABLES.sizes.items() for size in sizes),
    *TABLES.machines,
    *TABLES.bundled,
}
_MACHINES: Mapping[str, frozenset[str]] = {
    AIPLATFORM_V1: frozenset([*_COMPUTE_ENGINE, *TABLES.tpus]),
    ML_V1: frozenset(
        [
            *(name for name in _COMPUTE_ENGINE if name.partition("-")[0] not in TABLES.newer_than_ml),
            *TABLES.own_names,
        ]
    ),
}
_SERVICES = {AIPLATFORM_V1: "Vertex AI", ML_V1: "AI Platform"}
_SIZED = re.compile(r"(.+-)([0-9]{1,4})([gt]?)")  # family, size, and the unit of accelerators
_ZONE = r".+[0-9]-[a-z]"
_LOCAL_SSD = "-lssd"  # ends the names of machines with disks of their own


class Doubt(Struct, frozen=True):
    """Mistake in a value, or its probable mistake, which has the kind of its warning."""

    message: str
    hint: str
    kind: Kind = ""


def machine_doubt(api_version: str, machine: str) -> Doubt | None:
    """Return the doubt about a machine type: no machine of this service, or in no table; None if known."""
    machines = _MACHINES[api_version]
    if machine in machines or machine.removesuffix(_LOCAL_SSD) in machines:
        return None
    other = AIPLATFORM_V1 if api_version == ML_V1 else ML_V1
    if machine in _MACHINES[other]:
        message = f"{_SERVICES[api_version]} has no machine type {machine}"
        equivalent = TABLES.own_names.get(machine)
        with_gpus = " with its accelerator" if re.search("_(gpu|[pv]100)$", machine) else ""
        hint = (
            f"write {equivalent}{with_gpus}"
            if equivalent
            else "use a machine of the N1 series, or Vertex AI's CustomJob"
        )
        return Doubt(message, hint)
    message = f"{machine} is not a known machine type"
    if nearest := (api_version == AIPLATFORM_V1 and tpu_machine(machine)) or _of_family(machine, machines):
        return Doubt(message, f"did you mean {nearest}?", WarningKind.MACHINE_TYPE)
    return _unknown(WarningKind.MACHINE_TYPE, message, machine, machines)


@lru_cache(CACHED)
def undocumented_machine(machine: str) -> Doubt | None:
    """Return the doubt about a machine that Vertex AI documents for no training; None for all others."""
    name = machine.removesuffix(_LOCAL_SSD)
    if name not in _COMPUTE_ENGINE or name.rpartition("-")[0] in TABLES.training_families:
        return None
    series, _, size = name.partition("-")
    documented = "m1" if series in ("m2", "m3") else "n2"
    similar = _of_family(f"{documented}-{size}", _MACHINES[AIPLATFORM_V1]) or "e2-standard-2"
    message = f"Vertex AI documents no training on {machine}"
    return Doubt(message, f"write a machine type that it lists, such as {similar}", WarningKind.MACHINE_TYPE)


@lru_cache(CACHED)
def _of_family(machine: str, machines: frozenset[str]) -> str:
    """Return the machine type of the same family with the nearest size, or ""."""
    written = _SIZED.fullmatch(machine)
    if not written:
        return ""
    family = [match for name in machines if (match := _SIZED.fullmatch(name)) and match[1] == written[1]]
    by_size = {int(match[2]): match[0] for match in family if match[3] == written[3]}
    size = int(written[2])
    return by_size[min(by_size, key=lambda other: (abs(other - size), -other))] if by_size else ""


def region_doubt(api_version: str, region: str) -> Doubt | None:
    """Return the doubt about a region: none of this service, or in no table; None if known, or a zone."""
    regions = TABLES.regions[api_version]
    if region in regions.known or re.fullmatch(_ZONE, region):  # the schema has a message for a zone
        return None
    if region in regions.refused:
        message = f"{_SERVICES[api_version]} runs no training jobs in {region}"
        return Doubt(message, "write a region such as us-central1")
    message = f"{region} is not a known region"
    return _unknown(WarningKind.REGION, message, region, regions.known)


def runtime_doubt(runtime: str) -> Doubt | None:
    """Return the mistake in a runtime version that AI Platform never had, or None."""
    if runtime in TABLES.runtimes:
        return None
    last = {version.partition(".")[0]: version for version in TABLES.runtimes}
    first = {version.partition(".")[0]: version for version in reversed(TABLES.runtimes)}
    listed = " and ".join(f"{first[major]} to {last[major]}" for major in last)
    return Doubt(f"AI Platform never had the runtime version {runtime}", f"there are {listed}")


def python_doubt(runtime: str, python: str) -> Doubt | None:
    """Return the mistake in the Python of a runtime version, or None, also for an unknown runtime version."""
    pythons = TABLES.runtimes.get(runtime, (python,))
    if python in pythons:
        return None
    listed = join_or(quote(version) for version in pythons)
    return Doubt(f"the runtime version {runtime} has no Python {python}", f"write {listed}")


@lru_cache(CACHED)
def _unknown(kind: WarningKind, message: str, value: str, known_values: frozenset[str]) -> Doubt:
    names = sorted(known_values)
    nearest = same_word(value, names) or similar_word(value, names)
    return Doubt(message, f"did you mean {nearest}?" if nearest else "check its name", kind)


def join_or(values: Iterable[object]) -> str:
    """Return values as a phrase, such as "1, 2 or 4"."""
    *others, last = [str(value) for value in values]
    return f"{', '.join(others)} or {last}" if others else last


# Names of the series A and of TPUs end with the number of accelerators: a2-highgpu-8g, ct5lp-hightpu-4t.
_COUNTED = r"(?:a[0-9]|ct[0-9]|tpu)[a-z0-9]*-[a-z]+-([0-9]{1,3})[gt]"

# Machines with a fraction of a GPU, which counts as 1.
_FRACTIONS = ("g4-standard-6", "g4-standard-12", "g4-standard-24")


@lru_cache(CACHED)
def accelerators_of(machine: str) -> int:
    """Return the number of accelerators of a machine type; 0 for none or for an unknown name."""
    counted = re.fullmatch(_COUNTED, machine)
    if counted:
        return int(counted[1])
    return 1 if machine in _FRACTIONS else TABLES.bundled.get(machine, ("", 0))[1]


def accelerator_type_of(machine: str) -> str:
    """Return the type of a machine's own accelerators, the machine's name if unknown, or "" for none."""
    if machine in TABLES.bundled:
        return TABLES.bundled[machine][0]
    # AI Platform's names end with the accelerator: `standard_v100`, `BASIC_TPU`.
    has_own = accelerators_of(machine) or re.search("_(gpu|tpu|[pv]100)$", machine, re.IGNORECASE)
    return machine if has_own else ""
