"""What needs no decision: jobs that are as wanted, which are nearly all of them in nearly every plan.

For these the table in `decision` and the search for drift come to one short answer, which is found here in a
tenth of the time. Whatever is odd is left to them; for what is set aside, their answer is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

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


class _Known:
    """Claims and runs by the base name that `attempts_by_base` would give them, '-' as '_'.

    Attributes:
        _odd: The base names about which something is unusual.
    """

    def __init__(self, sides: Sides, bases: Sequence[str]) -> None:
        self._claims = sides.claims
        wanted = zip(sides.desired, bases, strict=True)
        self._base_of_key = {key: base for job, base in wanted for key in keys_of(job)}
        self._groups: dict[str, list[tuple[ClaimId, Claim]]] = {}
        self._holders: dict[str, str] = {}
        self._runs: dict[str, ActualJob] = {}
        self._loose: list[ActualJob] = []
        self._odd: set[str] = set()
        self._note_claims()
        self._note_runs(sides.own)
        for run in sides.foreign:
            self._odd.add(self._base_of_key.get(run.labels.get(KEY, ""), ""))

    def settled(self, job: DesiredJob, base: str) -> Change | None:
        """The change of a job that is as wanted, of this base name; None for every other one."""
        manifest = job.manifest
        group = self._groups.get(base)
        if group is None or base in self._odd or manifest.reconcile.suspend:
            return None
        id, claim = group[0] if len(group) == 1 else self._of_content(job, group)
        run = self._runs.get(claim.resource)
        if run is None or claim.state is not _BOUND or id.attempt != 1:
            return None
        state = run.state
        if (
            (state is not _SUCCEEDED and state not in _AS_WANTED)
            or id.key != (job.keys or keys_of(job))[0]
            or not manifest.kind == claim.kind == run.kind
            or not manifest.api_version == claim.api_version == run.api_version
            or (claim.labels and labels_digest(run.labels) != claim.labels)
            or (len(group) > 1 and not self._is_last(id, run, group))
        ):
            return None
        # By position, which is made in half the time.
        name, kind, path, line = manifest.name, manifest.kind, manifest.path, manifest.line
        return Change(_NONE, state.lower(), name, job.job_name, kind, path, line, 1, (), job, run, id.key)

    def runs_but(self, done: set[str]) -> list[ActualJob]:
        """The runs but those that claims of these base names name."""
        named = (run for resource, run in self._runs.items() if self._holders[resource] not in done)
        return [*named, *self._loose]

    def claims_but(self, done: set[str]) -> dict[ClaimId, Claim]:
        """The claims but those of these base names, in their order."""
        bases = self._base_of_key
        return {id: claim for id, claim in self._claims.items() if bases[id.key] not in done}

    def _note_claims(self) -> None:
        bases: dict[str, str] = {}
        for id, claim in self._claims.items():
            base = self._base_of_key.get(id.key) or claim.base_name.replace("-", "_")
            if bases.setdefault(id.key, base) != base:
                self._odd |= {base, bases[id.key]}
            if base in self._groups:
                self._groups[base].append((id, claim))
            else:
                self._groups[base] = [(id, claim)]
            if claim.resource:
                if claim.resource in self._holders:
                    self._odd |= {base, self._holders[claim.resource]}
                self._holders[claim.resource] = base
        self._base_of_key = {**bases, **self._base_of_key}

    def _note_runs(self, runs: Iterable[ActualJob]) -> None:
        for run in runs:
            base = self._holders.get(run.resource)
            if base is not None and run.resource not in self._runs:
                self._runs[run.resource] = run
                continue
            # No claim names it, or it was listed twice.
            self._loose.append(run)
            self._odd.add(base or self._base_of_key.get(run.labels.get(KEY, "")) or base_of(run.job_name))

    def _of_content(self, job: DesiredJob, group: list[tuple[ClaimId, Claim]]) -> tuple[ClaimId, Claim]:
        """The claim of the wanted content; one of another content where there are several, or none."""
        keys = keys_of(job)
        mine = [pair for pair in group if pair[0].key in keys]
        others = (pair for pair in group if pair[0].key not in keys)
        return mine[0] if len(mine) == 1 else next(others, (_NO_ID, group[0][1]))

    def _is_last(self, id: ClaimId, run: ActualJob, group: list[tuple[ClaimId, Claim]]) -> bool:
        """Whether all other runs of the base name are over, and older."""
        newest = age(run)
        for other_id, claim in group:
            other = self._runs.get(claim.resource) if other_id != id else None
            if other and not (
                other.state.ended
                and (other.api_version, other.kind) == (claim.api_version, claim.kind)
                and age(other) < newest
            ):
                return False
        return True


_NO_ID = ClaimId("", 0)
