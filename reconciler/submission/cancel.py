"""Cancels that are checked: asked for, waited for, and told as the job really ended."""

from __future__ import annotations

from reconciler.base.errors import ReconcilerError
from reconciler.model.job import ActualJob, State
from reconciler.model.ports import Ports

_ASKED = 3


def ask(ports: Ports, run: ActualJob) -> None:
    """Ask for a run's end.

    A service refuses that for a run that has just ended, and an answer may get lost: then the run's own state
    counts, and where it says neither that it ended nor that it ends, it is asked again, as asking twice does
    no more than asking once. Raises ReconcilerError where that is in vain too.
    """
    for asked in range(1, _ASKED + 1):
        try:
            ports.jobs.cancel(run)
            return
        except ReconcilerError:
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
    """The state in which a run ended: a cancel may come too late.

    Args:
        ports: The target.
        run: The run.
        until: When patience is over, by `ports.clock`; then it is the state in which the run is.
        pause: Seconds between two looks.

    Raises:
        ReconcilerError: The run can't be asked.
    """
    while True:
        state = _state(ports, run)
        if state.ended or ports.clock.monotonic() + pause > until:
            return state
        ports.clock.sleep(pause)


def _state(ports: Ports, run: ActualJob) -> State:
    return ports.jobs.read(run.api_version, run.kind, run.resource).state
