"""What needs no decision: jobs that are as wanted, which are nearly all of them in nearly every plan.

For these the table in `decision` and the search for drift come to one short answer, which is found here in a
tenth of the time. Whatever is odd is left to them; for what is set aside, their answer is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from reconciler.claim import Claim, ClaimId, ClaimState
from reconciler.job import ActualJob, State
from reconciler.labels import KEY, labels_digest
from reconciler.plan import Action, Change, DesiredJob
from reconciler.planning.attempts import base_of, keys_of
from reconciler.repair import age

# In names of their own: to look a member up in its enumeration takes as long as the rest of a comparison.
_BOUND, _SUCCEEDED, _NONE = ClaimState.BOUND, State.SUCCEEDED, Action.NONE
_AS_WANTED = frozenset(State) - {State.FAILED, State.CANCELLED}


class Sides(NamedTuple):
    """What is wanted and what there is.

    Attributes:
        desired: The wanted jobs, with unique base names.
        own: The runs of this repository.
        foreign: Runs that were listed, and belong to another one.
        claims: Every claim of this repository.
    """

    desired: Sequence[DesiredJob]
    own: Sequence[ActualJob]
    foreign: Sequence[ActualJob]
    claims: Mapping[ClaimId, Claim]


class Split(NamedTuple):
    """The jobs that are as wanted, each with its change, which is `none`; and all that is to be decided."""

    settled: list[Change]
    open: Sides


def split(sides: Sides) -> Split:
    """Set aside the jobs that are as wanted, with their claims and runs.

    A job is, where its content has one claim, which is bound to a run that goes on or succeeded, with the
    labels that it was given; and where nothing else of its base name, of whatever content, runs or ran later.
    """
    bases = [job.manifest.base_name for job in sides.desired]
    known = _Known(sides, bases)
    settled: list[Change] = []
    unsettled: list[DesiredJob] = []
    done: set[str] = set()
    for job, base in zip(sides.desired, bases, strict=True):
        change = known.settled(job, base)
        if change is None:
            unsettled.append(job)
        else:
            settled.append(change)
            done.add(base)
    if not settled:
        return Split([], sides)
    return Split(settled, Sides(unsettled, known.runs_but(done), sides.foreign, known.claims_but(done)))


class _Held(Struct, gc=False):
    """A claim.

    Attributes:
        base: The base name that `attempts_by_base` gives it.
        run: The run that it names, if listed.
        more: The further claims of the base name, at the first one.
    """

    id: ClaimId
    claim: Claim
    base: str
    run: ActualJob | None = None
    more: list[_Held] | None = None

    def all(self) -> list[_Held]:
        """All claims of the base name, of which this is the first."""
        return [self, *(self.more or ())]


class _Known:
    """Claims and runs by base name, '-' as '_'.

    Attributes:
        _odd: The base names about which something is unusual.
    """

    def __init__(self, sides: Sides, bases: Sequence[str]) -> None:
        wanted = zip(sides.desired, bases, strict=True)
        self._base_of_key = {key: base for job, base in wanted for key in keys_of(job)}
        self._held: list[_Held] = []
        self._first: dict[str, _Held] = {}
        self._holders: dict[str, _Held] = {}
        self._loose: list[ActualJob] = []
        self._odd: set[str] = set()
        self._note_claims(sides.claims)
        self._note_runs(sides.own)
        for run in sides.foreign:
            self._odd.add(self._base_of_key.get(run.labels.get(KEY, ""), ""))

    def settled(self, job: DesiredJob, base: str) -> Change | None:
        """The change of a job that is as wanted, of this base name; None for every other one."""
        manifest = job.manifest
        first = self._first.get(base)
        if first is None or base in self._odd or manifest.reconcile.suspend:
            return None
        held = _of_content(job, first) if first.more else first
        if held is None or held.run is None:
            return None
        id, claim, run = held.id, held.claim, held.run
        state = run.state
        if (
            claim.state is not _BOUND
            or id.attempt != 1
            or (state is not _SUCCEEDED and state not in _AS_WANTED)
            or id.key != (job.keys or keys_of(job))[0]
            or not manifest.kind == claim.kind == run.kind
            or not manifest.api_version == claim.api_version == run.api_version
            or (first.more and not _is_last(held, run, first))
        ):
            return None
        # By position, which is made in half the time.
        name, kind, path, line = manifest.name, manifest.kind, manifest.path, manifest.line
        return Change(_NONE, state.lower(), name, job.job_name, kind, path, line, 1, (), job, run, id.key)

    def runs_but(self, done: set[str]) -> list[ActualJob]:
        """The runs but those that claims of these base names name."""
        named = (held.run for held in self._held if held.run is not None and held.base not in done)
        return [*named, *self._loose]

    def claims_but(self, done: set[str]) -> dict[ClaimId, Claim]:
        """The claims but those of these base names, in their order."""
        return {held.id: held.claim for held in self._held if held.base not in done}

    def _note_claims(self, claims: Mapping[ClaimId, Claim]) -> None:
        unwanted: dict[str, str] = {}
        wanted, firsts, holders = self._base_of_key, self._first, self._holders
        for id, claim in claims.items():
            base = wanted.get(id.key)
            if base is None:
                base = claim.base_name.replace("-", "_")
                if (other := unwanted.setdefault(id.key, base)) != base:
                    self._odd |= {base, other}
            held = _Held(id, claim, base)
            self._held.append(held)
            if (first := firsts.setdefault(base, held)) is not held:
                first.more = first.more or []
                first.more.append(held)
            if claim.resource and (holder := holders.setdefault(claim.resource, held)) is not held:
                self._odd |= {base, holder.base}
        wanted |= unwanted

    def _note_runs(self, runs: Iterable[ActualJob]) -> None:
        for run in runs:
            held = self._holders.get(run.resource)
            if held is not None and held.run is None:
                held.run = run
                # Here, as what was listed last is still close at hand.
                given = held.claim.labels
                if given and labels_digest(run.labels) != given:
                    self._odd.add(held.base)
                continue
            # No claim names it, or it was listed twice.
            self._loose.append(run)
            base = held.base if held is not None else ""
            self._odd.add(base or self._base_of_key.get(run.labels.get(KEY, "")) or base_of(run.job_name))


def _of_content(job: DesiredJob, first: _Held) -> _Held | None:
    """The claim of the wanted content, of all that there are of its base name; None for several, or none."""
    keys = keys_of(job)
    mine = [held for held in first.all() if held.id.key in keys]
    return mine[0] if len(mine) == 1 else None


def _is_last(held: _Held, run: ActualJob, first: _Held) -> bool:
    """Whether all other runs of the base name are over, and older."""
    newest = age(run)
    for other in first.all():
        if other is held or other.run is None:
            continue
        if not (
            other.run.state.ended
            and (other.run.api_version, other.run.kind) == (other.claim.api_version, other.claim.kind)
            and age(other.run) < newest
        ):
            return False
    return True
