"""A job's state as GitHub's commit status, and which of two statuses is to stand."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Literal

from reconciler.base.sanitize import MAX_DESCRIPTION, status_description
from reconciler.model.job import ActualJob, State

StatusState = Literal["pending", "success", "failure", "error"]

# Total, and by member: a state that is added later has no entry, rather than a green one.
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
    """What a status may be posted over."""

    ANYTHING = auto()
    NOTHING = auto()
    """Only where its context has none: whoever posted one knew more."""
    SOMETHING = auto()
    """Only where its context has one: no further one is wanted, and this one must not stay as it is."""
    NO_END = auto()
    """Not over an end: whoever posted it saw more of it."""


@dataclass(frozen=True, slots=True)
class CommitStatus:
    """One commit status.

    Attributes:
        state: As GitHub names it.
        context: GitHub ignores its case.
        description: One line, 1 to 140 characters; about a run, it ends with ` · run <hash>[_<attempt>]`, and
            about several jobs with ` · update <number>`: a number that never falls.
        target_url: An http or https address about the job; "" for none.
        over: When it is posted at all.
    """

    state: StatusState
    context: str
    description: str
    target_url: str = ""
    over: Over = Over.ANYTHING


def status_of(context: str, job: ActualJob | None, *, problem: str = "", aside: str = "") -> CommitStatus:
    """The status that says how a wanted job stands.

    Args:
        context: The job's.
        job: The newest run; None where nothing was submitted yet.
        problem: Why it goes no further, such as an unknown outcome or a blocked change; goes before the run.
        aside: A word or two to say beside how the run stands.
    """
    if problem:
        return plain_status("error", context, problem)
    if job is None:
        return CommitStatus("pending", context, "not submitted yet")
    said = f"{aside}, {_said(job)}" if aside else _said(job)
    status = run_status(STATES[job.state], context, said, job.job_name)
    return replace(status, target_url=_address(job.url))


def plain_status(state: StatusState, context: str, said: str) -> CommitStatus:
    """A status that is about no run."""
    return CommitStatus(state, context, status_description(said) or "no reason given")


def run_status(state: StatusState, context: str, said: str, job_name: str) -> CommitStatus:
    """A status that is about the run of this name, which need not be there."""
    return _marked(state, context, said, _mark(job_name))


def update_status(state: StatusState, context: str, said: str, number: int) -> CommitStatus:
    """A status about several jobs; `number` never falls, and is 0 as long as there is nothing to tell."""
    return _marked(state, context, said, f" · update {number}" if number else "")


def _marked(state: StatusState, context: str, said: str, mark: str) -> CommitStatus:
    return CommitStatus(state, context, status_description(said, MAX_DESCRIPTION - len(mark)) + mark)


def unknown_of(context: str, job_name: str) -> CommitStatus:
    """The status of a submission that may have become a job of this name, or may not."""
    return run_status("pending", context, "whether a job was created is not known yet", job_name)


class News(Enum):
    """What a status says beside the one that is there."""

    NEW = auto()
    KNOWN = auto()
    OLD = auto()
    """Another one knew more."""


def news(wanted: CommitStatus, there: CommitStatus | None) -> News:
    """Whether `wanted` is to be posted over `there`, the newest status of the same context.

    A run only goes forward: its end is never replaced by an earlier state of it, nor a later attempt by an
    earlier one, as could happen where two report at once and the slower one has the older news. The same
    holds for the updates of a status over several jobs.
    """
    if there is None:
        return News.KNOWN if wanted.over is Over.SOMETHING else News.NEW
    if (wanted.state, wanted.description, wanted.target_url) == (
        there.state,
        there.description,
        there.target_url,
    ):
        return News.KNOWN
    if wanted.over is Over.NOTHING or (wanted.over is Over.NO_END and there.state != "pending"):
        return News.KNOWN
    return News.NEW if _is_forward(wanted, there) else News.OLD


def _is_forward(wanted: CommitStatus, there: CommitStatus) -> bool:
    if (number := _update(there)) is not None:
        update = _update(wanted)
        return update is not None and update >= number
    new, old = _run(wanted), _run(there)
    if new is None or old is None or new[0] != old[0]:
        return True
    if new[1] != old[1]:
        return new[1] > old[1]
    return not (wanted.state == "pending" and there.state != "pending")


def _said(job: ActualJob) -> str:
    match job.state:
        case State.QUEUED:
            return f"waiting in the queue{_own_word(job)}"
        case State.PREPARING:
            return f"getting ready{_own_word(job)}"
        case State.RUNNING:
            return f"running{_since(job)}{_own_word(job)}"
        case State.CANCELLING:
            return f"being cancelled{_own_word(job)}"
        case State.SUCCEEDED:
            return f"succeeded{_duration(job)}{_own_word(job)}"
        case State.FAILED:
            return f"failed{_duration(job)}{_own_word(job)}{_reason(job)}"
        case State.CANCELLED:
            return f"cancelled{_own_word(job)}"


def _own_word(job: ActualJob) -> str:
    """The service's word for the state where it says more than ours."""
    word = job.service_state.removeprefix("JOB_STATE_")
    usual = {str(job.state), "PENDING"} if job.state is State.PREPARING else {str(job.state)}
    return f" ({word})" if word and word not in usual else ""


def _reason(job: ActualJob) -> str:
    """The error's first line: a traceback follows, which may quote what only the log's readers may see."""
    first = job.error.strip().split("\n")[0]
    return f": {first}" if first else ""


def _since(job: ActualJob) -> str:
    start = _time(job.start_time)
    return f" since {start:%Y-%m-%d %H:%M} UTC" if start else ""


def _duration(job: ActualJob) -> str:
    start, end = _time(job.start_time), _time(job.end_time)
    if start is None or end is None or end < start:
        return ""
    minutes, seconds = divmod(round((end - start).total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f" after {hours} h {minutes} min"
    return f" after {minutes} min {seconds} s" if minutes else f" after {seconds} s"


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
        return time.astimezone(UTC) if time.tzinfo else None
    except (ValueError, OverflowError):
        return None


def _mark(job_name: str) -> str:
    end = _JOB_NAME_END.search(job_name)
    return f" · run {end[1]}" if end else ""


def _run(status: CommitStatus) -> tuple[str, int] | None:
    """The hash and the attempt of the run that a status is about; None where it is about none."""
    mark = _RUN_MARK.search(status.description)
    return (mark[1], int(mark[2] or 1)) if mark else None


def _update(status: CommitStatus) -> int | None:
    """The number of a status over several jobs; None where it has none."""
    mark = _UPDATE_MARK.search(status.description)
    return int(mark[1]) if mark else None


def _address(url: str) -> str:
    # GitHub refuses the whole status for any other: "Target url must use http(s) scheme".
    return url if url.startswith(("https://", "http://")) else ""
