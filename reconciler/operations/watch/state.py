"""Values of the watch loop: a checkout, the result of a pass, and the caches kept between passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from reconciler.base.errors import ReconcilerError
from reconciler.manifests.checked_files import CheckedFiles
from reconciler.manifests.settings import Config, Environment, load_config
from reconciler.manifests.warnings import NO_WARNINGS, Warnings
from reconciler.model.claim import ClaimState
from reconciler.model.plan import Action, DesiredJob, Plan
from reconciler.model.stand_ins import CodeUse
from reconciler.model.tracking import Index
from reconciler.operations.follow_up import FollowUp
from reconciler.operations.load_desired import Desired, load_desired
from reconciler.operations.origin import NO_ORIGIN, Origin
from reconciler.planning.outcome import Outcome
from reconciler.submission.observe import Observed


class Result(StrEnum):
    """End of a pass."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INVALID = "invalid"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Checkout:
    """Files that a pass applies.

    Attributes:
        root: The repository's root.
        commit: The commit that is checked out, even if files were edited since; "" for none.
        environ: The environment variables.
        environment: The environment's name; None for the implicit default environment.
        settings: Reads the settings at the root; raises InvalidError.
        is_exported: True if this process wrote the files from the commit to its own folder. They are not
            compared with the commit then.
        index: What git tracks, read once for all that a pass asks; None to ask git anew.
        held: Returns why nothing may be submitted or cancelled on Google Cloud for these jobs; "" for none.
    """

    root: Path
    commit: str
    environ: Mapping[str, str]
    environment: str | None
    settings: Callable[[Path], Config] = load_config
    is_exported: bool = False
    index: Index | None = None
    held: Callable[[Desired], str] = lambda desired: ""


@dataclass(frozen=True, slots=True)
class PassInputs:
    """All inputs of a pass's decisions except the time."""

    config: Config
    commit: str
    jobs: tuple[DesiredJob, ...]
    observed: Observed


@dataclass(frozen=True, slots=True)
class Pass:
    """Result of one pass.

    Attributes:
        result: How the pass ended.
        error: The error that stopped the pass; None if it completed.
        engine: The environment's engine.
        jobs: The desired jobs; None if they could not be loaded.
        plan: The plan; None if the pass stopped before planning.
        outcomes: The outcomes of the plan's changes.
        after: The state after the pass, and its reports; None for none.
        inputs: The inputs of the plan.
        origin: The commit of the jobs.
        steady: True if the previous pass had the same inputs.
        warnings: What is probably a mistake in the manifests and settings.
        held: The reason why submissions and cancels wait; "" for none.
    """

    result: Result
    error: ReconcilerError | None = None
    engine: str = "local"
    jobs: tuple[DesiredJob, ...] | None = None
    plan: Plan | None = None
    outcomes: Sequence[Outcome] = ()
    after: FollowUp | None = None
    inputs: PassInputs | None = None
    origin: Origin = NO_ORIGIN
    steady: bool = False
    warnings: Warnings = NO_WARNINGS
    held: str = ""

    @property
    def observed(self) -> Observed | None:
        """Return the claims and runs after the pass; None if they could not be read."""
        return self.after.observed if self.after else None

    @property
    def live(self) -> bool:
        """Return True if jobs, submissions or this pass's own changes may soon change the state."""
        if self.observed is None:
            return False
        return not self.steady or self._is_pending or any(not run.state.ended for run in self.observed.runs)

    @property
    def at_rest(self) -> bool:
        """Return True if the next pass has no work until an input changes."""
        return self._is_done and not self.live

    @property
    def rests_locally(self) -> bool:
        """Return True if the next pass can read the embedded service's state without starting it."""
        return self.at_rest and self.engine == "local"

    def holds_for(self, inputs: PassInputs) -> bool:
        """Return True if a pass with these inputs would make no change and report the same state."""
        unchanged = self.observed == inputs.observed
        # Time alone can settle a pending submission, and the reason for a missing commit may be temporary.
        is_known = not self._is_pending and not self.origin.reason
        return self._is_done and is_known and unchanged and self.inputs == inputs

    @property
    def _is_done(self) -> bool:
        in_sync = self.plan is not None and all(c.action is Action.NONE for c in self.plan.changes)
        reported = self.after is not None and not self.after.problems
        return self.result is Result.SUCCEEDED and in_sync and reported

    @property
    def _is_pending(self) -> bool:
        claims = self.observed.claims.values() if self.observed else ()
        return any(claim.state is ClaimState.PENDING for claim in claims)


class LoopCache:
    """Caches of one loop, for one root and one environment.

    Attributes:
        manifests: The checked manifests of the last pass.
    """

    def __init__(self) -> None:
        self.manifests = CheckedFiles()

    def load_desired(self, checkout: Checkout, config: Config, environment: Environment) -> Desired:
        """Return the jobs of the checkout's manifests; raise InvalidError with every problem."""
        index = checkout.index
        return load_desired(config, environment, [], self.manifests, index=index, use=CodeUse.STAGED)
