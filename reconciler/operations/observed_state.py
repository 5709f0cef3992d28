"""State of a target from what a look observed, with what has to be read of single runs besides."""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.base.errors import NotFoundError
from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.model.manifest import JsonObject
from reconciler.model.plan import DesiredJob
from reconciler.model.ports import JobApi
from reconciler.operations.judgements import Asked, with_judgements
from reconciler.operations.load_desired import Desired
from reconciler.operations.publications import with_publications
from reconciler.operations.session import Session
from reconciler.planning.comparison import predecessors
from reconciler.planning.overwriting import undecided_runs, with_overwriting
from reconciler.planning.state import TargetState, target_state
from reconciler.submission.observe import Observed


def state_of(
    session: Session,
    desired: Desired,
    observed: Observed,
    *,
    asked: Asked | None = None,
    may_record: bool = False,
) -> TargetState:
    """Return what exists under each base name, with what decides about results; read what that takes.

    Args:
        asked: Metrics that commits expect, besides those that the manifests expect.
        may_record: True to record the metrics that are measured.
    """
    state = comparable_state(session.ports.jobs, desired.jobs, observed, session.config.source)
    state = with_judgements(
        session,
        state,
        observed.metrics,
        asked=asked,
        with_changes=observed.is_full,
        may_record=may_record,
    )
    return with_publications(session, desired, state, observed.in_place, is_full=observed.is_full)


def comparable_state(
    jobs: JobApi, desired: Sequence[DesiredJob], observed: Observed, source: str | None
) -> TargetState:
    """Return what exists under each base name, with the specs and the folders of the runs that matter.

    `source` is as in `target_state`.
    """
    # Listings lack specs. A run that was deleted since the listing changes the predecessors, and a folder
    # may make others matter: both are computed again until all of them have been read.
    specs: dict[str, JsonObject] = {}
    folders = dict(observed.folders)
    deleted: set[str] = set()
    while True:
        existing = [run for run in observed.runs if run.resource not in deleted]
        state = target_state(desired, existing, observed.claims, source=source, doubtful=observed.doubtful)
        needed = (*predecessors(state), *undecided_runs(state, folders))
        unread = {run.resource: run for run in needed if run.resource not in specs}
        if not unread:
            return with_overwriting(state.with_specs(specs), folders)
        for resource, run in unread.items():
            try:
                spec = jobs.read(run.api_version, run.kind, resource).spec
            except NotFoundError:
                deleted.add(resource)
                continue
            specs[resource] = spec
            folders[resource] = engine_spec(run.api_version).output_directory(run.kind, spec)
