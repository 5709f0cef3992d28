"""What commit statuses are called."""

from __future__ import annotations

from dataclasses import dataclass

from reconciler.config import LOCAL, Config

ROLL_UP = "reconciler"


@dataclass(frozen=True, slots=True)
class Contexts:
    """The contexts of one environment.

    Attributes:
        environment: Its name.
        roll_up: The verdict over all of a commit's jobs.
    """

    environment: str
    roll_up: str = ROLL_UP

    def of_job(self, base_name: str) -> str:
        """The status of one job."""
        return f"{ROLL_UP}/{self.environment}/{base_name}"

    @property
    def drift(self) -> str:
        """What there is and isn't wanted; no job's context has a blank."""
        return f"{self.roll_up} drift"


def contexts_of(config: Config, environment: str) -> Contexts:
    """The roll-up is `reconciler`, and `reconciler/<environment>` where there are several environments."""
    others = set(config.environments) - {environment, LOCAL}
    return Contexts(environment, f"{ROLL_UP}/{environment}" if others else ROLL_UP)
