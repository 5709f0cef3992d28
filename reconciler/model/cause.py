"""Reasons why a job is blocked, was given up or didn't succeed, each with its remedy, for every output."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Any

from msgspec import Struct

from reconciler.base.sanitize import one_line
from reconciler.model.claim import Claim, ClaimState, is_by_apply
from reconciler.model.job import UNREADABLE, ActualJob, ErrorInfo, State

_BARE = "`reconciler rerun`"
RERUN = f"run it again with {_BARE}"
"""The way to run a content again: a changed `rerun` is other content, with claims and a name of its own."""
OTHER_NAME = f"get another name with {_BARE}"
MORE_ATTEMPTS = f'raise "attempts" or {RERUN}'
GIVEN_UP = f"given up; {RERUN}"


class Blocked(StrEnum):
    """Reasons why a job isn't submitted, with the places of their values; `held` returns one more.

    A blocked change sends no request and cancels nothing; apply reports it and ends with a failure. The next
    plan decides anew, so that a job goes on as soon as its reason is gone.
    """

    STRANGER = "{resource} has this job's labels, but no recorded request created it; {end} it, or " + RERUN
    """A run may do the same work, and no claim proves its origin: a submission beside it could pay twice."""

    UNREADABLE = (
        "the training service can't read the state of {resource}: `reconciler cancel {name}` stops it if it "
        "runs, and finds out how it ended"
    )
    """The job may be alive."""

    OTHER_INSTANCE = (
        "{resource} ({state}) has this content and was submitted under {instance}; it may be "
        "this environment's own, from before its instance changed: wait until it has ended, or cancel it, "
        "and apply again"
    )
    """A live run of this content has the label of another `instance` (`observe.Observed.doubtful`)."""

    NAME_OF_RUN = "{resource} has this name but different content; " + OTHER_NAME
    """A name has 16 digits of the content's hash: two contents may have the same."""

    NAME_OF_CLAIM = "a claim has the name {job_name} for different content; " + OTHER_NAME
    """As above, and the service no longer has the run."""

    ML_IS_SHARED = (
        "the environment {environment} also uses the project {project}, and AI Platform can't tell their "
        "jobs apart: give the newer environment a project of its own"
    )
    """AI Platform lists jobs by project, whatever their location: both environments would own each run."""

    ML_IS_GONE = (
        "Google shut down AI Platform Training on 2025-01-31; "
        "run `reconciler migrate`, which rewrites it for Vertex AI"
    )
    """Only the embedded service still runs jobs of ml.googleapis.com/v1."""


def with_name(reason: str, base_name: str) -> str:
    """Return a reason or a remedy with the job's name in its `reconciler rerun` command."""
    return reason.replace(_BARE, f"{_BARE[:-1]} {base_name}`") if base_name else reason


def held(claim: Claim) -> str:
    """Return the reason and the remedy for a HELD claim (docs/at-most-once.md): a person runs a command."""
    reason = claim.error or "held"
    return f"{reason}; run `reconciler resolve {claim.job_name} --resubmit` or `--give-up`"


def held_short(claim: Claim) -> str:
    """Return remedy and reason for a held submission; the remedy comes first, as the end may be cut off."""
    return f"held, see `reconciler resolve {claim.base_name}`: {claim.error or 'no reason given'}"


def unsettled_reason(claim: Claim, until: datetime | None = None, cause: str = "") -> str:
    """Return the reason for a submission without a run, with the next step.

    Args:
        until: The latest time at which an unknown outcome can be settled; None if unknown.
        cause: The known cause of the unknown outcome.
    """
    after = f" after {until:%H:%M:%S} UTC" if until else ""
    if claim.state is ClaimState.PENDING:
        why = f" ({cause})" if cause else ""
        return f"it is not known whether a job was created{why}: the next apply{after} finds out"
    if claim.state is ClaimState.HELD and until:
        return f"an earlier request may still create a job: it can be submitted again{after}"
    if claim.state is ClaimState.REJECTED:
        later = f"; not submitted again before {claim.not_before:%H:%M:%S} UTC" if claim.not_before else ""
        return f"{claim.error}{later}"
    return held(claim)


DOMAIN = "training-service.reconciler"
"""The domain of the embedded service's reasons, as in google.rpc.ErrorInfo."""


class CauseClass(StrEnum):
    """Class of a cause: who can remedy it."""

    USER_CODE = "user-code"
    SET_UP = "set-up"
    RESOURCES = "resources"
    CANCELLED = "cancelled"
    SERVICE = "service"


class Cause(Struct, frozen=True):
    """Cause of a job's end other than SUCCEEDED.

    Attributes:
        class_: Its class.
        brief: The cause in a few words, without anything that the trainer printed.
        message: The cause in one line; for user code with the last line of the traceback.
        remedy: The next step.
    """

    class_: CauseClass
    brief: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.about}{self.message.removesuffix('.')}; {self.remedy}"

    @property
    def short(self) -> str:
        """The cause and the next step, without anything that the trainer printed."""
        # Errors of a service say more than a few words; they are short enough for a commit status.
        is_short = self.class_ is not CauseClass.USER_CODE and len(self.message) <= _SHORT
        return f"{self.about}{self.message.removesuffix('.') if is_short else self.brief}; {self.remedy}"

    @property
    def about(self) -> str:
        """The class for readers, with a colon; "" if the message says it."""
        words = {CauseClass.USER_CODE: "user code: ", CauseClass.CANCELLED: ""}
        return words.get(self.class_, f"{self.class_}: ")


_SHORT = 60
_USER, _SET_UP, _RESOURCES = CauseClass.USER_CODE, CauseClass.SET_UP, CauseClass.RESOURCES
_CANCELLED, _SERVICE = CauseClass.CANCELLED, CauseClass.SERVICE
# Words of remedies: where a person has the machine, and on a runner of GitHub Actions, which keeps nothing.
_WORDS_HERE = {
    "log": "see `reconciler logs {name}`",
    "apply": "run `reconciler apply`",
    "again": "run it again with `reconciler rerun {name}`",
    "restart": " (`reconciler serve --stop` makes it read changed variables)",
    "python": "install one with `uv python install`",
}
_WORDS_ON_RUNNER = {
    "log": "see its log in the workflow's run",
    "apply": "run the workflow again",
    "again": "run the workflow again",
    "restart": "",
    "python": "install one in an earlier step, by actions/setup-python",
}
_APPLY = "then {apply}"
_CODE = "{log} and correct the code"
_MACHINE = "give it a larger machineType"
_WAYS_OUT = 'set "suspend: true" to leave it stopped, or {again}'
_RETURNS = "`reconciler apply` submits it again once a manifest wants it"
_AGAIN = "{again}"
_LIMIT = 'raise the limit under "scheduling"'
_STOP = "`reconciler cancel {name}` stops it if it runs, and finds out how it ended"
_ENTRY = 'correct its entry under "images" in reconciler.yaml'

# By reason: class, words and remedy. docs/causes.md says where the reasons come from.
_REASONS: Mapping[str, tuple[CauseClass, str, str]] = {
    "NON_ZERO_EXIT": (_USER, "exit code {exitCode}", _CODE),
    "ENDED_BY_SIGNAL": (_USER, "ended by a signal", _CODE),
    "MODULE_MISSING": (
        _USER,
        "a module is missing",
        "list its package in the code's requirements.txt or setup.py, or correct the import",
    ),
    "COMMAND_NOT_RUN": (_USER, "its command can't be run", "correct the image or its command"),
    "INVALID_JOB": (_USER, "the job can't be run as it is written", "correct the manifest"),
    "NO_METRIC": (_USER, "no trial reported the metric", _CODE),
    "INDEX_UNREACHABLE": (
        _SET_UP,
        "a package index can't be reached",
        f"make it reachable, or correct its address{{restart}}, {_APPLY}",
    ),
    "INSTALLER_SETTINGS": (_SET_UP, "pip's settings are wrong", f"correct them{{restart}}, {_APPLY}"),
    "PACKAGES_NOT_RESOLVED": (
        _SET_UP,
        "no version of a package fits",
        f"correct the package's requirements, or {_ENTRY}, {_APPLY}",
    ),
    "PACKAGES_NOT_INSTALLED": (
        _SET_UP,
        "its packages can't be installed",
        f"{{log}}, install what is missing, {_APPLY}",
    ),
    "CODE_NOT_STARTED": (_SET_UP, "its code can't be started", f"do what the message says, {_APPLY}"),
    "PACKAGE_MISSING": (_SET_UP, "its package is missing in the bucket", "{apply}"),
    "PYTHON_MISSING": (
        _SET_UP,
        "no Python on this machine fits its image",
        f"{{python}}, or {_ENTRY}, {_APPLY}",
    ),
    "IMAGE_UNKNOWN": (_SET_UP, "its image is unknown here", f"{_ENTRY}, {_APPLY}"),
    "IMAGE_NOT_PULLED": (
        _SET_UP,
        "its image can't be pulled",
        f"check its name and your login, or build it, {_APPLY}",
    ),
    "ENGINE_MISSING": (
        _SET_UP,
        "no container engine works on this machine",
        f"install or start Docker or Podman, {_APPLY}",
    ),
    "ENGINE_FAILED": (_SET_UP, "the container engine failed", f"correct what its message names, {_APPLY}"),
    "HOME_NOT_TRUSTED": (_SET_UP, "the state directory isn't trusted", "{apply}"),
    "PERMISSION": (_SET_UP, "a permission is missing", f"grant it, then {_AGAIN}"),
    "IMAGE": (_SET_UP, "its image can't be pulled or started", f"correct the image, then {_AGAIN}"),
    "PACKAGES": (_SET_UP, "its packages can't be installed", "correct the package's requirements"),
    "OUT_OF_MEMORY": (_RESOURCES, "out of memory", _MACHINE),
    "KILLED": (_RESOURCES, "killed: out of memory, or by hand", f"{_MACHINE}, or {_AGAIN}"),
    "DISK_FULL": (_RESOURCES, "the disk is full", f"free or add disk space, then {_AGAIN}"),
    "LOG_LIMIT": (_RESOURCES, "it printed too much", "let it print less"),
    "PROCESS_LIMIT": (_RESOURCES, "it had too many processes", "let it start fewer"),
    "TOO_MANY_REPLICAS": (_RESOURCES, "too many replicas for this machine", "use fewer replicas"),
    "NO_TPU": (_RESOURCES, "this machine has no TPU", "run it in Google Cloud, or without a TPU"),
    "TRIAL_TIME_LIMIT": (_RESOURCES, "a trial reached its time limit", 'raise its "timeout"'),
    "DEADLINE": (_RESOURCES, "it reached its time limit", 'raise its "timeout"'),
    "EXPIRED": (_RESOURCES, "no machine became free in time", 'raise "maxWaitDuration"'),
    "QUOTA": (_RESOURCES, "the quota is exhausted", f"request more quota, then {_AGAIN}"),
    "STOCK_OUT": (_RESOURCES, "no such machine is free", f"choose another machine or region, or {_AGAIN}"),
    "REQUESTED": (_CANCELLED, "cancelled on request", _WAYS_OUT),
    "TIME_LIMIT": (_CANCELLED, "cancelled by its time limit", f"{_LIMIT}, or correct the code if it hung"),
    "WAIT_LIMIT": (_CANCELLED, "cancelled by its waiting limit", _LIMIT),
    "PARTIAL": (_USER, "some of its results are missing", _CODE),
    "MACHINE_FAILED": (_SERVICE, "the machine failed", _AGAIN),
    "RUNNER_LOST": (_SERVICE, "the process that ran it was lost", _AGAIN),
    "INTERNAL": (_SERVICE, "the service failed", _AGAIN),
    UNREADABLE: (_SERVICE, "its record can't be read", _AGAIN),
}

_DEADLINE = r"timed out|time.?out|ran for longer than"
# Google's words, first match wins; docs/causes.md has the sources. Compiled when a job has failed: it takes
# a hundredth of a plan's start.
_WORDS = (
    (r"out.of.memory|low on memory|\bOOM\b", "OUT_OF_MEMORY"),
    (r"no space left|disk (is )?full", "DISK_FULL"),
    (r"\bquota", "QUOTA"),
    (r"resources are insufficient|enough resources|stock.?out|RESOURCE_POOL_EXHAUSTED", "STOCK_OUT"),
    (
        r"StartError|containerd task|ImagePull|pull(ing)? (the )?image|image .{0,300}(pull|not found)",
        "IMAGE",
    ),
    (r"\bpip\b|could not find a version|no matching distribution", "PACKAGES"),
    (r"status of (137|9\b)|SIGKILL", "KILLED"),
    (r"(non-zero status|exit code)", "NON_ZERO_EXIT"),
    (r"killed by signal", "ENDED_BY_SIGNAL"),
    (_DEADLINE, "DEADLINE"),
    (r"permission|access denied", "PERMISSION"),
    (r"internal error", "INTERNAL"),
)
# By google.rpc.Code, where no words match.
_CODES = {3: "NON_ZERO_EXIT", 4: "DEADLINE", 5: "IMAGE", 7: "PERMISSION", 8: "STOCK_OUT", 9: "INVALID_JOB"}
_EXIT_CODE = r"(?:status|exit code)(?: of)? (\d{1,3})\b"
# By the beginning of an exception's line.
_EXCEPTIONS = (
    (r"ModuleNotFoundError: ", "MODULE_MISSING"),
    (r"OSError: \[Errno 28\]", "DISK_FULL"),
    (r"[\w.]*MemoryError\b", "OUT_OF_MEMORY"),
)
_SYNTAX = r"(Syntax|Indentation|Tab)Error: "
_PLACE = r'  File "(?:[^"]*/)?([^"/]+)", line (\d+)'
_TRACEBACK = "Traceback (most recent call last):"
_MARKED = r"Set-up failed \((?P<reason>[A-Z_]+)(?:; image=(?P<image>[^;)]*))?(?:; entry=(?P<entry>\w*))?\): "
_UNREADABLE = r"Unreadable \((?P<columns>[a-z_ ]*)\): "
_MOST = 300


def is_set_up(job: ActualJob) -> bool:
    """Return True if the embedded service says that no trainer was started because the set-up failed."""
    return job.state is State.FAILED and job.info is not None and job.info.metadata.get("class") == _SET_UP


def entry_digest(images: Mapping[str, Any], image: str) -> str:
    """Return 16 hex digits of a hash of an image's entry under `images`; "" for none.

    As the embedded service computes it (`training_service.jobs.images.entry_digest`).
    """
    entry = images.get(image, images.get(re.sub(r"(?<=/)([^/:@]+)[:@][^/]*$", r"\1", image)))
    if entry is None:
        return ""
    content = [str(entry.get("python", "")), *(str(line) for line in entry.get("requirements", ()))]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def error_info(details: Any) -> ErrorInfo | None:
    """Return the embedded service's cause of `google.rpc.Status.details`; None without one."""
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and detail.get("domain") == DOMAIN:
            metadata, reason = detail.get("metadata"), detail.get("reason")
            if isinstance(reason, str) and isinstance(metadata, dict):
                texts = {k: v for k, v in metadata.items() if isinstance(k, str) and isinstance(v, str)}
                return ErrorInfo(reason, texts)
    return None


def marked_info(message: str) -> tuple[ErrorInfo | None, str]:
    """Split the message of an ml job into the cause that it begins with, None for none, and the rest.

    The resource of an ml job has no field for a cause, so the embedded service puts two before the message:
    a failed set-up, and a record that can't be read.
    """
    if found := re.match(_UNREADABLE, message):
        return ErrorInfo(UNREADABLE, {"class": str(_SERVICE), **found.groupdict()}), message[found.end() :]
    found = re.match(_MARKED, message)
    if found is None:
        return None, message
    metadata = {name: text for name in ("image", "entry") if (text := found[name])}
    return ErrorInfo(found["reason"], {"class": str(_SET_UP), **metadata}), message[found.end() :]


def cause_of(job: ActualJob, name: str = "") -> Cause | None:
    """Return the cause of a job's end; None if it succeeded or hasn't ended, and its record can be read.

    Args:
        name: Its base name, for the commands in the remedy; by default the job's name.
    """
    if job.state not in (State.FAILED, State.CANCELLED) and not job.is_unreadable:
        return None
    head = re.split(rf"\n|{re.escape(_TRACEBACK)}", job.error.strip(), maxsplit=1)[0]
    reason, metadata = _reason(job, head), dict(job.info.metadata) if job.info else {}
    known = _REASONS.get(reason)
    class_, brief, remedy = known or (_class_of(metadata), reason.lower().replace("_", " "), _AGAIN)
    if reason == "NON_ZERO_EXIT":
        code = metadata.get("exitCode") or next(iter(re.findall(_EXIT_CODE, head)), "")
        brief = f"exit code {code}" if code else "its code failed"
        last = _last_printed(job.error)
        message = ": ".join(filter(None, (brief, last)))
        known = _REASONS.get(next((name for words, name in _EXCEPTIONS if re.match(words, last)), ""))
        # A line that one of Google's jobs printed mustn't change the class, only the remedy (docs/causes.md).
        if known and (job.info or known[0] is _USER):
            class_, remedy = known[0], known[2]
    else:
        if job.is_unreadable and not job.state.ended:
            remedy = _STOP
        if reason == "REQUESTED" and job.cancelled is not None:
            brief = job.cancelled or "cancelled outside the reconciler"
            remedy = _RETURNS if is_by_apply(job.cancelled) else remedy
        message = brief if class_ is _CANCELLED else head or brief
        last = job.error.strip().rpartition("\n")[2].strip()
        # The installer names the package in its last line.
        if reason.startswith("PACKAGES") and job.info and last != head:
            message = f"{head} … {last}"
    name = name or job.job_name
    words = _WORDS_ON_RUNNER if job.on_runner else _WORDS_HERE
    remedy = remedy.format(name=name, **{key: text.format(name=name) for key, text in words.items()})
    return Cause(class_, brief, one_line(message)[:_MOST], remedy)


def is_cancelled_outside(job: ActualJob) -> bool:
    """Return True if a run was cancelled, and neither by this tool nor by a limit of its own."""
    return job.state is State.CANCELLED and not job.cancelled and _reason(job, job.error) == "REQUESTED"


def _class_of(metadata: Mapping[str, str]) -> CauseClass:
    # A newer service may have other reasons and classes.
    said = metadata.get("class", "")
    return CauseClass(said) if said in set(CauseClass) else _SERVICE


def _reason(job: ActualJob, head: str) -> str:
    if job.info:
        return job.info.reason
    if job.state is State.CANCELLED:
        return "TIME_LIMIT" if re.search(_DEADLINE, head, re.IGNORECASE) else "REQUESTED"
    by_state = {"JOB_STATE_EXPIRED": "EXPIRED", "JOB_STATE_PARTIALLY_SUCCEEDED": "PARTIAL"}
    if job.service_state in by_state:
        return by_state[job.service_state]
    found = next((reason for words, reason in _WORDS if re.search(words, head, re.IGNORECASE)), "")
    return found or _CODES.get(job.error_code, "INTERNAL")


def _last_printed(text: str) -> str:
    """Return the line of the exception that an error's output ends with, else its last line; "" for none."""
    _, mark, rest = text.rpartition(_TRACEBACK)
    lines = [line for line in rest.splitlines() if line.strip()]
    if not mark:
        lines = lines[1:]  # the first one is the service's
        # The beginning of a long traceback is cut off; an exception follows the indented lines of its place.
        raised = [line for place, line in pairwise(lines) if place[0].isspace() and not line[0].isspace()]
        return (raised or lines or [""])[-1].strip()
    last = next((line.strip() for line in lines if not line[0].isspace()), "")
    places = re.findall(_PLACE, rest.partition(f"\n{last}")[0])
    # Elsewhere the last place may be in a library, and helps nobody.
    return f"{last} ({places[-1][0]}, line {places[-1][1]})" if places and re.match(_SYNTAX, last) else last
