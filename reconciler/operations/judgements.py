"""Judgements of runs that succeeded: their metrics are read once, recorded, and judged."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from reconciler.base.errors import NotFoundError, ServiceError
from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.model.expectation import Expectation, Measured, Missing, RunMetrics
from reconciler.model.job import ActualJob, State
from reconciler.operations.measure import changed_files, measure
from reconciler.operations.session import Session
from reconciler.planning.attempts import Attempt
from reconciler.planning.state import NameState, TargetState

_TRIES = 3
_OVERWRITTEN = "another run wrote to its folder"

Asked = Mapping[str, Collection[str]]
"""Names of metrics by the key of a content."""


class _Found(Struct, frozen=True):
    """Metrics of one run.

    Attributes:
        resource: The run.
        metrics: What is measured; None for nothing.
        unread: Why the rest can't be read now; "" if there is none.
        changed: Judged files that were changed or removed since.
    """

    resource: str
    metrics: RunMetrics | None
    unread: str = ""
    changed: tuple[str, ...] = ()


def with_judgements(
    session: Session,
    state: TargetState,
    recorded: Mapping[str, RunMetrics],
    *,
    asked: Asked | None = None,
    with_desired: bool = True,
    with_changes: bool = False,
    may_record: bool = False,
) -> TargetState:
    """Return the state with the metrics of the runs that succeeded, and the judgements on the desired ones.

    Args:
        session: The environment.
        state: Its state.
        recorded: Recorded metrics by the resource names of their runs, as far as they are known.
        asked: Further metrics to measure, which commits expect.
        with_desired: True to measure what the desired jobs' manifests expect.
        with_changes: True to compare the judged files with the present ones.
        may_record: True to record what is measured.
    """
    needed = _needed(state, asked or {}, with_desired=with_desired)
    if not needed:
        return state
    # The files in an overwritten folder are another run's.
    foreign = {n.last_wanted.resource for n in state.names.values() if n.overwriting and n.last_wanted}
    reader = _Reader(session, recorded, foreign, with_changes=with_changes, may_record=may_record)
    found = session.ports.together([partial(reader.read, *need) for need in needed])
    by_resource = {one.resource: one for one in found}
    state = replace(
        state,
        metrics={name: one.metrics for name, one in by_resource.items() if one.metrics},
        unread={name: one.unread for name, one in by_resource.items() if one.unread},
        changed_files={name: one.changed for name, one in by_resource.items() if one.changed},
    )
    return replace(state, names={base: _judged(state, name) for base, name in state.names.items()})


def _judged(state: TargetState, name: NameState) -> NameState:
    last = name.last_wanted
    expect = _expected(name)
    if not expect or last is None or last.state is not State.SUCCEEDED:
        return name
    return replace(name, judgement=state.judgement(last.resource, expect))


def _expected(name: NameState) -> tuple[Expectation, ...]:
    """Return what the manifest of a base name expects; a suspended manifest expects nothing."""
    manifest = name.desired.manifest if name.desired else None
    return manifest.expect if manifest and not manifest.reconcile.suspend else ()


def _needed(state: TargetState, asked: Asked, *, with_desired: bool) -> list[tuple[Attempt, frozenset[str]]]:
    """Return the attempts that succeeded, each with the metrics to measure."""
    needed: dict[str, tuple[Attempt, frozenset[str]]] = {}

    def need(attempt: Attempt, names: Collection[str]) -> None:
        if names and attempt.state is State.SUCCEEDED and attempt.resource:
            earlier = needed.get(attempt.resource, (attempt, frozenset()))[1]
            needed[attempt.resource] = attempt, earlier | frozenset(names)

    for _, name in state.of_desired if with_desired else ():
        if (expect := _expected(name)) and name.last_wanted:
            need(name.last_wanted, [expectation.metric for expectation in expect])
    for key, names in asked.items():
        for attempt in state.by_key.get(key, ()):
            need(attempt, names)
    return [*needed.values()]


class _Reader:
    """Reader of metrics.

    Args:
        foreign: Runs whose folders other runs wrote to; the other arguments are those of `with_judgements`.
    """

    def __init__(
        self,
        session: Session,
        recorded: Mapping[str, RunMetrics],
        foreign: Collection[str],
        *,
        with_changes: bool,
        may_record: bool,
    ) -> None:
        self._session = session
        self._recorded = recorded
        self._foreign = foreign
        self._with_changes = with_changes
        self._may_record = may_record

    def read(self, attempt: Attempt, names: frozenset[str]) -> _Found:
        """Return the metrics of an attempt; a failure to read them is no failure of the whole look."""
        resource, run = attempt.resource, self._recorded.get(attempt.resource)
        try:
            unread = ""
            if run is None or not names <= run.metrics.keys():
                run, unread = self._measured(attempt, names)
        except ServiceError as error:
            return _Found(resource, run, error.message)
        return _Found(resource, run, unread, self._changed(run) if self._with_changes else ())

    def _changed(self, run: RunMetrics) -> tuple[str, ...]:
        """Return the judged files that changed since; () if they can't be listed: the judgement stands."""
        try:
            return tuple(changed_files(self._session, run.folder, run.metrics))
        except ServiceError:
            return ()

    def _measured(self, attempt: Attempt, names: frozenset[str]) -> tuple[RunMetrics, str]:
        """Return the metrics, the recorded ones first; and why some can't be read."""
        versioned = self._session.metrics.read(attempt.id.key)
        known = self._of_run(versioned.run, attempt)
        missing = names - known.metrics.keys()
        if not missing:
            return known, ""
        if attempt.resource in self._foreign:
            return known, _OVERWRITTEN
        body = self._body(attempt)
        if body is None:
            gone = dict.fromkeys(missing, Measured(missing=Missing.RECORD_GONE))
            return replace(known, metrics={**gone, **known.metrics}), ""
        measurement = measure(self._session, body, missing)
        folder = engine_spec(body.api_version).output_directory(body.kind, body.spec)
        run = replace(known, folder=folder, metrics={**measurement.metrics, **known.metrics})
        if self._may_record and measurement.metrics:
            run = self._record(attempt, run, versioned.generation)
        return run, measurement.unread

    def _record(self, attempt: Attempt, run: RunMetrics, generation: int) -> RunMetrics:
        """Record metrics; return those that are recorded then: the first writer of a metric decides."""
        for _ in range(_TRIES):
            if self._session.metrics.write(attempt.id.key, run, generation):
                return run
            versioned = self._session.metrics.read(attempt.id.key)
            known, generation = self._of_run(versioned.run, attempt), versioned.generation
            run = replace(run, metrics={**run.metrics, **known.metrics})
            if known.metrics.keys() >= run.metrics.keys():
                return run
        raise ServiceError("other processes keep recording the run's metrics", hint="apply again")

    def _of_run(self, run: RunMetrics | None, attempt: Attempt) -> RunMetrics:
        """Return recorded metrics if they are this run's: a content may have run again."""
        is_own = run is not None and run.resource == attempt.resource
        return run if run and is_own else RunMetrics(attempt.name, attempt.resource)

    def _body(self, attempt: Attempt) -> ActualJob | None:
        try:
            return self._session.read(attempt.run) if attempt.run else None
        except NotFoundError:
            return None
