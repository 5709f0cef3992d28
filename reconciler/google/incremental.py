"""What a process that goes on for long remembers of a target from one look to the next: in memory alone.

Claims are listed each time, as each may change at any moment; only what is the same to the letter isn't read
again.

Of runs, only those are listed again that may have changed, or be new: all that were created since a moment
before which every run that was seen had ended. What an ended run can still do is to be deleted, or, on AI
Platform, to be given other labels. Such a change is seen an hour later at most. It makes no job where none
would be made:

- How an attempt ended counts, and not whether its run is still there: of a run that was deleted, its end was
  seen all the same, as its claim says too.
- Labels say whose a run is, and a submission looks for the runs of its key and attempt itself, in a listing
  of its own, before it sends anything.
- What is cancelled is live, and every live run is listed each time.

No run stays out of sight: one that a listing may still have lacked was created less than `executes + visible`
before it, and the next one begins earlier than that. Times are the service's own.

Whenever something doesn't fit, everything is listed again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from datetime import datetime, timedelta

from msgspec import Struct

from reconciler.google.client import ApiError
from reconciler.model.claim import ClaimState, checked
from reconciler.model.job import ActualJob
from reconciler.model.ports import Versioned

LASTS = 3600.0
"""Seconds for which runs that have ended are taken to be what they were."""
LEAST_MARGIN = timedelta(minutes=10)
"""How far before the newest run a listing begins at the latest."""

_REFUSED = 400  # of a filter

Lister = Callable[[str, str], Iterable[ActualJob]]
"""Lists the runs of an apiVersion: all, or those created at a time (RFC 3339) or later."""


class KnownClaim(Struct, frozen=True, gc=False):
    """A claim's object: what was read of it, which is its generation and text, and what that says."""

    told: tuple[str, str]
    versioned: Versioned


class KnownClaims(Struct):
    """The claims of the last look.

    Attributes:
        found: Each by its object's name.
        named: apiVersion and resource of the jobs that bound claims name, where neither their end nor that
            they are gone is recorded.
        vanished: Whether one is there no more, as none may: they are kept for ever.
    """

    found: Mapping[str, KnownClaim] = {}
    named: frozenset[tuple[str, str]] = frozenset()
    vanished: bool = False

    def replace(self, found: Mapping[str, KnownClaim]) -> None:
        """Remember what a look saw."""
        self.vanished = not self.found.keys() <= found.keys()
        self.found = found
        claims = (known.versioned.claim for known in found.values())
        self.named = frozenset(
            (claim.api_version, claim.resource)
            for claim in claims
            if claim.ended is None and claim.state is ClaimState.BOUND and not claim.gone
        )


class _Past(Struct):
    """The runs of one apiVersion that aren't listed again.

    Attributes:
        ended: Those created before `until`, by resource, oldest first; all have ended.
        until: Where the next listing begins.
        newest: When the newest run was created that was ever seen.
    """

    ended: dict[str, ActualJob]
    until: datetime
    newest: datetime


class _OddError(Exception):
    """What is listed doesn't fit to what is known."""


class KnownRuns:
    """The runs of the last look, as far as they needn't be listed in the next."""

    def __init__(self) -> None:
        self._past: dict[str, _Past] = {}
        self._whole: float | None = None

    def forget(self) -> None:
        """List everything in the next look."""
        self._past = {}
        self._whole = None

    def look(
        self,
        versions: Sequence[str],
        lister: Lister,
        *,
        now: float,
        margin: timedelta,
        named: Collection[tuple[str, str]] = (),
    ) -> tuple[ActualJob, ...]:
        """All runs of these apiVersions, each by their age.

        Args:
            versions: The apiVersions.
            lister: Lists the runs of one.
            now: Seconds since some moment, by the process's own clock.
            margin: How long after a run's creation a listing may still lack it, at most.
            named: apiVersion and resource of runs that must be there: where one isn't, all are listed.

        Raises:
            ServiceError: A listing isn't to be had; the next one is whole.
        """
        past, whole = self._past, self._whole
        self.forget()
        margin = max(margin, LEAST_MARGIN)
        if whole is not None and now - whole < LASTS:
            try:
                runs = self._runs(versions, lister, past, margin)
                _check_named(runs, {job for job in named if job[0] in versions})
            except _OddError:
                self.forget()
            else:
                self._whole = whole
                return runs
        runs = self._runs(versions, lister, {}, margin)
        self._whole = now
        return runs

    def _runs(
        self, versions: Sequence[str], lister: Lister, past: Mapping[str, _Past], margin: timedelta
    ) -> tuple[ActualJob, ...]:
        found: list[ActualJob] = []
        for version in versions:
            found += self._of(version, lister, past.get(version), margin)
        return tuple(found)

    def _of(self, version: str, lister: Lister, past: _Past | None, margin: timedelta) -> list[ActualJob]:
        """The runs of one apiVersion; what needn't be listed again of them is remembered."""
        listed = _listed(version, lister, past)
        dated = [(moment, run) for run in listed if (moment := _created(run))]
        dated.sort(key=lambda made: (made[0], made[1].resource))
        strange = len(dated) < len(listed) or bool(past and dated and dated[0][0] < past.until)
        if past and strange:
            raise _OddError
        if strange or not (past or dated):
            return listed
        moments = [moment for moment, _ in dated[-1:]]
        newest = max([*moments, past.newest] if past else moments)
        live = (moment for moment, run in dated if not run.state.ended)
        until = min(newest - margin, next(live, newest))
        before = past.ended if past else {}
        runs = [*before.values(), *(run for _, run in dated)]
        before.update((run.resource, run) for moment, run in dated if moment < until)
        self._past[version] = _Past(before, until, newest)
        return runs


class Memory:
    """What is remembered of one target; for one look at a time.

    Attributes:
        claims, runs: Of the last look.
    """

    def __init__(self) -> None:
        self.claims = KnownClaims()
        self.runs = KnownRuns()
        self._target: object = None

    def of(self, target: object) -> Memory:
        """What is remembered, if it is of this target: else nothing is."""
        if self._target != target:
            self.claims, self.runs, self._target = KnownClaims(), KnownRuns(), target
        return self


def _listed(version: str, lister: Lister, past: _Past | None) -> list[ActualJob]:
    if past is None:
        return list(lister(version, ""))
    try:
        return list(lister(version, past.until.isoformat().replace("+00:00", "Z")))
    except ApiError as error:
        if error.status == _REFUSED:
            raise _OddError from None
        raise


def _created(run: ActualJob) -> datetime | None:
    """When a run was created, in UTC; None where it doesn't say."""
    try:
        return checked(datetime.fromisoformat(run.create_time))
    except (ValueError, OverflowError):
        return None


def _check_named(runs: Sequence[ActualJob], named: Set[tuple[str, str]]) -> None:
    if named and not named <= {(run.api_version, run.resource) for run in runs}:
        raise _OddError
