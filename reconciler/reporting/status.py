"""Conversion of a job's state to GitHub's commit status, and the comparison of two statuses."""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum, auto
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from reconciler.base.diagnostics import Problem
from reconciler.base.sanitize import MAX_DESCRIPTION, status_description
from reconciler.model.cause import cause_of
from reconciler.model.claim import time_of
from reconciler.model.job import ActualJob, State, service_word
from reconciler.output.wording.cause import cause_short
from reconciler.planning.attempts import base_of

StatusState = Literal["pending", "success", "failure", "error"]

# An entry for every state and no default: a state that is added later fails a test instead of showing green.
STATES: dict[State, StatusState] = {
    State.QUEUED: "pending",
    State.PREPARING: "pending",
    State.RUNNING: "pending",
    State.CANCELLING: "pending",
    State.SUCCEEDED: "success",
    State.FAILED: "failure",
    State.CANCELLED: "error",
}
_JOB_NAME_END = re.compile(r"_([0-9a-f]{16}(?:_[0-9]+)?)\Z")
_UPDATE_MARK = re.compile(r" · update ([0-9]{1,9})\Z")
_RUN_MARK = re.compile(r" · run ([0-9a-f]{16})(?:_([0-9]{1,9}))?\Z")


class Over(Enum):
    """The existing statuses that a new status may replace."""

    ANYTHING = auto()
    NOTHING = auto()
    """Post only if the context has no status: an existing status comes from a better informed process."""
    SOMETHING = auto()
    """Post only if the context has a status, which is out of date: not the end of the same run."""
    NO_END = auto()
    """Don't replace the status of the same run's end, which has more detail."""


class CommitStatus(Struct, frozen=True):
    """Commit status.

    Attributes:
        state: The state in GitHub's terms.
        context: The context; GitHub ignores its case.
        description: A line of 1 to 140 characters. The status of a run ends with ` · run <hash>[_<attempt>]`,
            the status of several jobs with ` · update <number>`: a number that never falls.
        target_url: An http or https address about the job; "" for none. The reporter then links its run.
        over: The existing statuses that it may replace.
    """

    state: StatusState
    context: str
    description: str
    target_url: str = ""
    over: Over = Over.ANYTHING


def status_of(context: str, job: ActualJob, *, name: str = "", aside: str = "") -> CommitStatus:
    """Return the status of a run; `name` is the manifest's, `aside` a word or two before the state."""
    text = _state_text(job, name or base_of(job.job_name))
    if aside:
        # Nobody needs the next step of a run that other content has replaced.
        text = f"{aside}, {text.partition('; ')[0]}"
    status = run_status(STATES[job.state], context, text, job.job_name)
    return replace(status, target_url=_address(job.url))


def plain_status(state: StatusState, context: str, text: str) -> CommitStatus:
    """Return a status without a mark of a run."""
    return CommitStatus(state, context, status_description(text) or "no reason given")


def invalid_text(message: str, problems: Collection[Problem]) -> str:
    """Return why a commit isn't applied, with the number of its problems."""
    files = len({problem.path for problem in problems})
    count = f"{len(problems)} in {files} files" if files > 1 else f"{len(problems)}"
    return f"{message}: {count}, see `reconciler validate`" if files else message


def run_status(state: StatusState, context: str, text: str, job_name: str) -> CommitStatus:
    """Return the status of the run of this name, which may be missing."""
    end = _JOB_NAME_END.search(job_name)
    return _marked(state, context, text, f" · run {end[1]}" if end else "")


def update_status(state: StatusState, context: str, text: str, number: int) -> CommitStatus:
    """Return a status of several jobs; `number` never falls, and is 0 before the first submission."""
    return _marked(state, context, text, f" · update {number}" if number else "")


def _marked(state: StatusState, context: str, text: str, mark: str) -> CommitStatus:
    # The mark is never cut off: without it, a later report couldn't tell the older of two statuses.
    return CommitStatus(state, context, status_description(text, MAX_DESCRIPTION - len(mark)) + mark)


class Freshness(Enum):
    """Result of the comparison of a new status with the existing status."""

    NEW = auto()
    KNOWN = auto()
    OLD = auto()
    """The existing status is ahead."""


def freshness(status: CommitStatus, existing: CommitStatus | None) -> Freshness:
    """Compare a status with `existing`, the newest status of the same context; NEW is to be posted.

    A run only goes forward: an earlier state never replaces its end, and an earlier attempt never replaces a
    later one. Two reporters at once could cause this if the slower one has the older state. The same holds
    for the numbers of a status over several jobs.
    """
    if existing is None:
        return Freshness.KNOWN if status.over is Over.SOMETHING else Freshness.NEW
    # Contexts are equal but for their case, and `over` isn't a part of the posted status. Each scheduled run
    # has a page of its own: only a job's page is news.
    url = status.target_url or existing.target_url
    if replace(status, context=existing.context, over=existing.over, target_url=url) == existing:
        return Freshness.KNOWN
    # An error without the run's mark, such as a refusal, is no end of the run.
    is_end = existing.state != "pending" and run_of(existing) == run_of(status)
    match status.over:
        case Over.NOTHING:
            return Freshness.KNOWN
        case Over.NO_END if is_end:
            return Freshness.KNOWN
        case Over.SOMETHING if is_end and run_of(status):
            return Freshness.KNOWN
    return Freshness.NEW if _is_forward(status, existing) else Freshness.OLD


def _is_forward(status: CommitStatus, existing: CommitStatus) -> bool:
    if (number := _update_number(existing)) is not None:
        update = _update_number(status)
        return update is not None and update >= number
    new, old = run_of(status), run_of(existing)
    if new is None or old is None or new[0] != old[0]:
        return True
    if new[1] != old[1]:
        return new[1] > old[1]
    return not (status.state == "pending" and existing.state != "pending")


def _state_text(job: ActualJob, name: str) -> str:
    match job.state:
        case State.QUEUED:
            return f"waiting in the queue{_service_word(job)}"
        case State.PREPARING:
            return f"getting ready{_service_word(job)}"
        case State.RUNNING:
            return f"running{_since(job)}{_service_word(job)}"
        case State.CANCELLING:
            return f"being cancelled{_service_word(job)}"
        case State.SUCCEEDED:
            return f"succeeded{_duration(job)}{_service_word(job)}"
        case State.FAILED:
            return f"failed{_duration(job)}{_service_word(job)}, {_cause(job, name)}"
        case State.CANCELLED:
            return f"{_cause(job, name)}{_service_word(job)}"


def _service_word(job: ActualJob) -> str:
    word = service_word(job.state, job.service_state)
    return f" ({word})" if word else ""


def _cause(job: ActualJob, name: str) -> str:
    # In a few words: a traceback may quote values that only readers of the log may see.
    cause = cause_of(job, name)
    return cause_short(cause) if cause else ""


def _since(job: ActualJob) -> str:
    start = time_of(job.start_time)
    return f" since {start:%Y-%m-%d %H:%M} UTC" if start else ""


def _duration(job: ActualJob) -> str:
    start, end = time_of(job.start_time), time_of(job.end_time)
    if start is None or end is None or end < start:
        return ""
    minutes, seconds = divmod(round((end - start).total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f" after {hours} h {minutes} min"
    return f" after {minutes} min {seconds} s" if minutes else f" after {seconds} s"


def run_of(status: CommitStatus) -> tuple[str, int] | None:
    """Return the hash and the attempt of a status of a run; None for any other status."""
    mark = _RUN_MARK.search(status.description)
    return (mark[1], int(mark[2] or 1)) if mark else None


def text_of_run(status: CommitStatus) -> str:
    """Return a status's description without the mark of its run."""
    return _RUN_MARK.sub("", status.description)


def _update_number(status: CommitStatus) -> int | None:
    """Return the number of a status of several jobs; None if it has none."""
    mark = _UPDATE_MARK.search(status.description)
    return int(mark[1]) if mark else None


def _address(url: str) -> str:
    # GitHub refuses the whole status for any other address: "Target url must use http(s) scheme".
    return url if url.startswith(("https://", "http://")) else ""
