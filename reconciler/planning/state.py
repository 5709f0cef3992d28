"""State of a target: claims and runs grouped by base name, in one place for everything that reads them.

The planner decides by it, and `status`, `show`, the pages and the commit statuses show it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from reconciler.model.claim import Claim, ClaimId
from reconciler.model.claimed_run import age, kept, made
from reconciler.model.expectation import Expectation, Judgement, RunMetrics, judge
from reconciler.model.job import KEY, SOURCE, ActualJob, State, attempt_of
from reconciler.model.manifest import JsonObject
from reconciler.model.plan import DesiredJob
from reconciler.model.publication import InPlace
from reconciler.model.standing import Publication
from reconciler.planning.attempts import Attempt, base_of, credible, keys_of

_PROGRESS = {state: rank for rank, state in enumerate(sorted(State, key=lambda state: state.ended))}
"""Ranks by which the later of two listed states of a job counts: it ends once, cancelled or not."""


class Overwriting(Struct, frozen=True):
    """A run of other content, and the folder (gs://…) of the desired content's run that it wrote to later."""

    run: ActualJob
    folder: str


class NameState(Struct, frozen=True, dict=True):
    """What exists under one base name.

    Attributes:
        base_name: The base name, with '-' as '_'.
        desired: The job of its manifest; None without one.
        attempts: The attempts at all contents, sorted by id.
        overwriting: What wrote to the folder of the desired content's run after it; None for nothing.
        judgement: That on the desired content's run, if it succeeded and its manifest expects anything.
        publication: That of its model, if it is good and its manifest asks for one.
    """

    base_name: str
    desired: DesiredJob | None = None
    attempts: tuple[Attempt, ...] = ()
    overwriting: Overwriting | None = None
    judgement: Judgement | None = None
    publication: Publication | None = None

    @cached_property
    def wanted(self) -> Sequence[Attempt]:
        """The attempts at the desired content; of equal attempts, the newest version of the hash is last."""
        keys = keys_of(self.desired) if self.desired else ()
        mine = [attempt for attempt in self.attempts if attempt.id.key in keys]
        return sorted(mine, key=lambda attempt: -keys.index(attempt.id.key)) if len(keys) > 1 else mine

    @cached_property
    def last_wanted(self) -> Attempt | None:
        """The last attempt at the desired content; None before the first."""
        wanted = credible(self.wanted)
        return max(reversed(wanted), key=lambda attempt: attempt.id.attempt, default=None)

    @property
    def others(self) -> list[Attempt]:
        """The attempts at other contents."""
        keys = keys_of(self.desired) if self.desired else ()
        return [attempt for attempt in self.attempts if attempt.id.key not in keys]

    @property
    def name(self) -> str:
        """The base name as written in the manifest, or in a claim without one."""
        if self.desired:
            return self.desired.manifest.name
        return next((one.claim.base_name for one in self.attempts if one.claim), self.base_name)

    @property
    def predecessor(self) -> Attempt | None:
        """The attempt at other content with the newest run; None if the service has no such run."""
        ran = [(age(attempt.run), attempt) for attempt in self.others if attempt.run]
        return max(ran, key=lambda pair: pair[0])[1] if ran else None


class TargetState(Struct, frozen=True, dict=True):
    """Claims and runs of a target, beside its desired jobs.

    Attributes:
        names: By base name: every desired job, claim and run of the repository.
        source: The repository's id; None if all runs are its own.
        foreign: The runs that other repositories submitted.
        doubtful: Live runs that may be the environment's own, from `Observed.doubtful`.
        folders: The output folders of runs by resource name, "" for none; only of those whose folder matters.
        metrics: The measured metrics of runs that somebody expects metrics of, by resource name.
        unread: Why metrics of such a run can't be read now.
        changed_files: The files that such a run was judged on and that have changed since, if it was looked
            for; relative to its folder.
    """

    names: Mapping[str, NameState]
    source: str | None
    foreign: tuple[ActualJob, ...] = ()
    doubtful: tuple[ActualJob, ...] = ()
    folders: Mapping[str, str] = {}
    metrics: Mapping[str, RunMetrics] = {}
    unread: Mapping[str, str] = {}
    changed_files: Mapping[str, tuple[str, ...]] = {}

    @cached_property
    def by_key(self) -> Mapping[str, Sequence[Attempt]]:
        """The attempts of each content, by its key."""
        attempts = defaultdict(list)
        for name in self.names.values():
            for attempt in name.attempts:
                attempts[attempt.id.key].append(attempt)
        return attempts

    @property
    def of_desired(self) -> Iterator[tuple[DesiredJob, NameState]]:
        """The desired jobs with what exists under their base names."""
        return ((name.desired, name) for name in self.names.values() if name.desired)

    def owns(self, run: ActualJob) -> bool:
        """Return True unless the run has another repository's label.

        An adopted run has none; a claim may name a run whose label was changed since.
        """
        return self.source in (None, run.labels.get(SOURCE, self.source))

    @property
    def unread_names(self) -> Mapping[str, str]:
        """Why metrics of runs can't be read now, by the names of the runs."""
        attempts = (attempt for name in self.names.values() for attempt in name.attempts)
        return {a.name: self.unread[a.resource] for a in attempts if a.resource in self.unread}

    @property
    def in_place(self) -> Mapping[str, InPlace]:
        """The models that are in their places, by the resource names of their runs."""
        return {
            name.last_wanted.resource: name.publication.mark
            for name in self.names.values()
            if name.publication and name.publication.mark and name.last_wanted
        }

    def judgement(self, resource: str, expectations: Sequence[Expectation]) -> Judgement:
        """Return the judgement of a run that succeeded, by its metrics as far as they are measured."""
        run = self.metrics.get(resource)
        return judge(expectations, run.metrics if run else {}, self.unread.get(resource, ""))

    def with_specs(self, specs: Mapping[str, JsonObject]) -> TargetState:
        """Return the state with the specs of some runs, by their resource names."""
        if not specs:
            return self
        return replace(self, names={base: _with_specs(name, specs) for base, name in self.names.items()})


def target_state(
    desired: Iterable[DesiredJob],
    runs: Iterable[ActualJob],
    claims: Mapping[ClaimId, Claim],
    *,
    source: str | None = None,
    doubtful: Sequence[ActualJob] = (),
) -> TargetState:
    """Return what exists under each base name.

    Leave out runs of another kind than their content's: a tuning job's trials are custom jobs, and may have
    its labels.

    Args:
        desired: The desired jobs, with unique base names.
        runs: The runs that were listed as this repository's, in any order.
        claims: Every claim of this repository in the target.
        source: The repository's id; None if all runs are its own.
        doubtful: Live runs that may be the environment's own, from `Observed.doubtful`.
    """
    own_runs, foreign_runs = _by_owner(runs, claims, source)
    kinds = {id.key: (claim.api_version, claim.kind) for id, claim in claims.items()}
    bases = {id.key: claim.base_name.replace("-", "_") for id, claim in claims.items()}
    jobs = {job.manifest.base_name: job for job in desired}
    for base, job in jobs.items():
        for key in keys_of(job):
            kinds[key] = job.manifest.api_version, job.manifest.kind
            bases[key] = base
    by_base: dict[str, list[Attempt]] = {base: [] for base in jobs}
    for attempt in _attempts(own_runs, claims, kinds):
        by_base.setdefault(bases.get(attempt.id.key) or base_of(attempt.name), []).append(attempt)
    names = {base: NameState(base, jobs.get(base), tuple(attempts)) for base, attempts in by_base.items()}
    return TargetState(names, source, tuple(foreign_runs), tuple(doubtful))


def _with_specs(name: NameState, specs: Mapping[str, JsonObject]) -> NameState:
    attempts = (
        replace(attempt, run=replace(attempt.run, spec=specs[attempt.run.resource]))
        if attempt.run and attempt.run.resource in specs
        else attempt
        for attempt in name.attempts
    )
    return replace(name, attempts=tuple(attempts))


def _by_owner(
    runs: Iterable[ActualJob], claims: Mapping[ClaimId, Claim], source: str | None
) -> tuple[list[ActualJob], list[ActualJob]]:
    """Split runs into the repository's own and those of others."""
    bound = {claim.resource for claim in claims.values()}
    own_runs: list[ActualJob] = []
    foreign_runs: list[ActualJob] = []
    for run in runs:
        # A claim's job stays the repository's own without its label: labels can be edited outside.
        is_own = source is None or run.labels.get(SOURCE) == source or run.resource in bound
        (own_runs if is_own else foreign_runs).append(run)
    return own_runs, foreign_runs


def _attempts(
    actual: Iterable[ActualJob], claims: Mapping[ClaimId, Claim], kinds: Mapping[str, tuple[str, str]]
) -> list[Attempt]:
    bound = {claim.resource: id for id, claim in claims.items()}
    runs = defaultdict(list)
    for run in _once(actual):
        # The claim's name for a run counts more than labels, which can be edited outside.
        id = bound.get(run.resource) or _id_of(run)
        if kinds.get(id.key) in (None, (run.api_version, run.kind)):
            runs[id].append(run)
    return [_attempt(id, claims.get(id), runs[id]) for id in sorted({*runs, *claims})]


def _once(runs: Iterable[ActualJob]) -> Iterable[ActualJob]:
    # Overlapping pages may list a job twice: the later state counts.
    once: dict[str, ActualJob] = {}
    for run in runs:
        other = once.setdefault(run.resource, run)
        if _PROGRESS[run.state] >= _PROGRESS[other.state]:
            once[run.resource] = run
    return once.values()


def _id_of(run: ActualJob) -> ClaimId:
    # A run without the label of a content is a content of its own.
    return ClaimId(run.labels.get(KEY) or run.resource, attempt_of(run))


def _attempt(id: ClaimId, claim: Claim | None, runs: Sequence[ActualJob]) -> Attempt:
    runs = sorted(runs, key=age) if len(runs) > 1 else runs
    run = kept(claim, runs)
    # Without a claim, no request is recorded that could tell a stranger from an own run.
    rest = [other for other in runs if other is not run]
    strangers = tuple(other for other in rest if claim and not made(claim, other))
    others = tuple(other for other in rest if other not in strangers)
    return Attempt(id, claim, run, others, strangers)
