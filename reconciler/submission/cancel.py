"""Cancel requests, and the wait for the state in which the job really ends."""

from __future__ import annotations

from reconciler.base.errors import ReconcilerError
from reconciler.model.job import ActualJob, State
from reconciler.model.ports import Ports

_ASKED = 3


def ask(ports: Ports, run: ActualJob) -> None:
    """Request the cancel of a run, up to 3 times; raise the last ReconcilerError if all requests fail."""
    for asked in range(1, _ASKED + 1):
        try:
            ports.jobs.cancel(run)
            return
        except ReconcilerError:
            # The service refuses the cancel of a run that has just ended, and its answer may get lost: the
            # run's own state decides. A repeated cancel has no further effect.
            if _is_ending(ports, run):
                return
            if asked == _ASKED:
                raise


def _is_ending(ports: Ports, run: ActualJob) -> bool:
    try:
        state = _state(ports, run)
    except ReconcilerError:
        return False
    return state.ended or state is State.CANCELLING


def end_of(ports: Ports, run: ActualJob, until: float, pause: float) -> State:
    """Return the state in which a run ended: a cancel may come too late.

    Args:
        ports: The target.
        run: The run.
        until: Deadline by `ports.clock`; after it, return the run's current state.
        pause: Seconds between two reads.

    Raises:
        ReconcilerError: The run can't be read.
    """
    while True:
        state = _state(ports, run)
        if state.ended or ports.clock.monotonic() + pause > until:
            return state
        ports.clock.sleep(pause)


def _state(ports: Ports, run: ActualJob) -> State:
    return ports.jobs.read(run.api_version, run.kind, run.resource).state
