"""Contexts: the names of commit statuses."""

from __future__ import annotations

from dataclasses import dataclass

from reconciler.manifests.settings import LOCAL, Config

OVERALL = "reconciler"


@dataclass(frozen=True, slots=True)
class Contexts:
    """Contexts of an environment's commit statuses.

    `overall` is the context of the status over all jobs.
    """

    environment: str
    overall: str = OVERALL

    def of_job(self, base_name: str) -> str:
        """Return the context of a job's status."""
        return f"{OVERALL}/{self.environment}/{base_name}"

    @property
    def drift(self) -> str:
        """The context of the drift status."""
        # No job's context contains a blank, so that this is never the context of a job.
        return f"{self.overall} drift"


def contexts_of(config: Config, environment: str) -> Contexts:
    """Return the contexts; with several environments, the overall status's context names the environment."""
    others = set(config.environments) - {environment, LOCAL}
    return Contexts(environment, f"{OVERALL}/{environment}" if others else OVERALL)
