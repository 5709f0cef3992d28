"""Runs of other content that wrote to the folder of the desired content's run after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from reconciler.model.claimed_run import start_order, wrote_last
from reconciler.model.job import ActualJob, State
from reconciler.planning.attempts import base_of
from reconciler.planning.state import NameState, Overwriting, TargetState

_WITHOUT_RESULT = (State.FAILED, State.CANCELLED)


def with_overwriting(state: TargetState, folders: Mapping[str, str]) -> TargetState:
    """Return the state with the runs that overwrote others, by the folders that `undecided_runs` asks for."""
    names = dict(state.names)
    for base, name in state.names.items():
        if overwriting := overwriting_of(name, folders):
            names[base] = replace(name, overwriting=overwriting)
    return replace(state, names=names, folders=folders)


def overwriting_of(name: NameState, folders: Mapping[str, str]) -> Overwriting | None:
    """Return the last run of other content that wrote to the folder of the desired content's run after it.

    Args:
        name: What exists under a base name.
        folders: The folders of runs by resource name, as far as `undecided_runs` asks for them.
    """
    run = _desired_run(name)
    if not run or not (folder := folders.get(run.resource)):
        return None
    later = [other for other in _later_runs(name, run) if folders.get(other.resource) == folder]
    return Overwriting(max(later, key=start_order), folder) if later else None


def undecided_runs(state: TargetState, folders: Mapping[str, str]) -> list[ActualJob]:
    """Return the runs whose folders `overwriting_of` still needs; call it again once they are known."""
    return [run for _, name in state.of_desired for run in _undecided(name, folders)]


def _undecided(name: NameState, folders: Mapping[str, str]) -> Iterator[ActualJob]:
    run = _desired_run(name)
    if not run or not (later := _later_runs(name, run)):
        return
    folder = folders.get(run.resource)
    if folder is None:
        yield run
    elif folder and not is_own_folder(folder, run):
        yield from (other for other in later if other.resource not in folders)


def is_own_folder(folder: str, run: ActualJob) -> bool:
    """Return True if no run of other content can have the folder: its name has the content's hash."""
    last = folder.rpartition("/")[2]
    return base_of(last) != last and run.job_name.startswith(last)


def _desired_run(name: NameState) -> ActualJob | None:
    """Return the desired content's last run that has, or may get, a result."""
    last = name.last_wanted
    return last.run if last and last.run and last.run.state not in _WITHOUT_RESULT else None


def _later_runs(name: NameState, run: ActualJob) -> list[ActualJob]:
    """Return the runs of other content that may have written after `run`."""
    if not (run.start_time or run.state.ended):
        return []  # its trainer is yet to write
    runs = (other for attempt in name.others for other in (attempt.run, *attempt.others, *attempt.strangers))
    return [other for other in runs if other and wrote_last(other, run)]
