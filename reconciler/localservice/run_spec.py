"""What a run is to do: written into its folder before it is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

GRACE = 10.0


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run of a job of one replica.

    Attributes:
        replica: As the cloud's errors call it: `workerpool0-0`, `master 0`.
        image: The executor image or the runtime.
        override: What `images` says of it, None where it says nothing.
        python: The Python that the job asks for itself, "" for the image's.
        packages: gs:// URIs, in order.
        module, args: `python -m module args…`.
        env: Variables, over those of every program on this machine.
        output_buckets: The buckets that the job's output goes to.
        time_limit: Seconds that it may be RUNNING; `time_limit_field` is where that is said.
        grace: Seconds between SIGTERM and SIGKILL.
        warnings: What differs from the cloud.
    """

    replica: str
    image: str
    override: dict[str, Any] | None
    python: str
    packages: tuple[str, ...]
    module: str
    args: tuple[str, ...]
    env: dict[str, str]
    output_buckets: tuple[str, ...]
    time_limit: float
    time_limit_field: str
    grace: float = GRACE
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The value as JSON has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunSpec:
        """The opposite of `to_json`."""
        lists = {name: tuple(value[name]) for name in ("packages", "args", "output_buckets", "warnings")}
        return cls(**{**value, **lists})
