"""Causes of jobs' ends other than SUCCEEDED: the diagnosis; `output/wording/cause.py` has the words."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from reconciler.model.claim import is_by_apply
from reconciler.model.job import UNREADABLE, ActualJob, ErrorInfo, State
from reconciler.model.manifest import TRAINING_PIPELINE, Manifest
from reconciler.model.reason import ReasonCode
from reconciler.model.trainer_error import TRACEBACK, PrintedError, diagnose, printed_error

DOMAIN = "training-service.reconciler"
"""The domain of the embedded service's reasons, as in google.rpc.ErrorInfo."""


class CauseClass(StrEnum):
    """Class of a cause: who can remedy it."""

    USER_CODE = "user-code"
    SET_UP = "set-up"
    RESOURCES = "resources"
    CANCELLED = "cancelled"
    MODEL = "model"
    SERVICE = "service"


class Cause(Struct, frozen=True):
    """Cause of a job's end other than SUCCEEDED.

    Attributes:
        class_: Its class.
        code: Its code.
        values: `head`, the first line of the service's message, and where they apply: `exit_code` of code
            that failed ("" if unknown), `last`, the line that explains it, `stored`, the recorded reason of a
            cancel, `word`, the service's own reason if this version has no code for it, and `is_live` if the
            job hasn't ended. Codes of the manifest and the environment have those that their remedies quote.
        name: The job's name for the commands of the remedy.
        on_runner: True if a runner of GitHub Actions ran it, which keeps nothing.
        kind: The manifest's kind, by which the remedy names fields.
        buckets: The folder of the embedded service's buckets; "" at Google.
    """

    class_: CauseClass
    code: ReasonCode
    values: Mapping[str, Any]
    name: str
    on_runner: bool = False
    kind: str = ""
    buckets: str = ""


_USER, _SET_UP, _RESOURCES = CauseClass.USER_CODE, CauseClass.SET_UP, CauseClass.RESOURCES
_CANCELLED, _MODEL, _SERVICE = CauseClass.CANCELLED, CauseClass.MODEL, CauseClass.SERVICE

# By the reasons of the embedded service, and those that Google's words have here. docs/causes.md says where
# they come from.
_CAUSES: Mapping[str, tuple[CauseClass, ReasonCode]] = {
    "NON_ZERO_EXIT": (_USER, ReasonCode.NON_ZERO_EXIT),
    "ENDED_BY_SIGNAL": (_USER, ReasonCode.ENDED_BY_SIGNAL),
    "MODULE_MISSING": (_USER, ReasonCode.MODULE_MISSING),
    "COMMAND_NOT_RUN": (_USER, ReasonCode.COMMAND_NOT_RUN),
    "INVALID_JOB": (_USER, ReasonCode.INVALID_JOB),
    "NO_METRIC": (_USER, ReasonCode.NO_METRIC),
    "INDEX_UNREACHABLE": (_SET_UP, ReasonCode.INDEX_UNREACHABLE),
    "INSTALLER_SETTINGS": (_SET_UP, ReasonCode.INSTALLER_SETTINGS),
    "PACKAGES_NOT_RESOLVED": (_SET_UP, ReasonCode.PACKAGES_NOT_RESOLVED),
    "PACKAGES_NOT_INSTALLED": (_SET_UP, ReasonCode.PACKAGES_NOT_INSTALLED),
    "CODE_NOT_STARTED": (_SET_UP, ReasonCode.CODE_NOT_STARTED),
    "PACKAGE_MISSING": (_SET_UP, ReasonCode.PACKAGE_MISSING),
    "PYTHON_MISSING": (_SET_UP, ReasonCode.PYTHON_MISSING),
    "IMAGE_UNKNOWN": (_SET_UP, ReasonCode.IMAGE_UNKNOWN),
    "IMAGE_NOT_PULLED": (_SET_UP, ReasonCode.IMAGE_NOT_PULLED),
    "ENGINE_MISSING": (_SET_UP, ReasonCode.ENGINE_MISSING),
    "ENGINE_FAILED": (_SET_UP, ReasonCode.ENGINE_FAILED),
    "HOME_NOT_TRUSTED": (_SET_UP, ReasonCode.HOME_NOT_TRUSTED),
    "PERMISSION": (_SET_UP, ReasonCode.PERMISSION_MISSING),
    "IMAGE": (_SET_UP, ReasonCode.IMAGE_FAILED),
    "PACKAGES": (_SET_UP, ReasonCode.PACKAGES_FAILED),
    "OUT_OF_MEMORY": (_RESOURCES, ReasonCode.OUT_OF_MEMORY),
    "KILLED": (_RESOURCES, ReasonCode.KILLED),
    "DISK_FULL": (_RESOURCES, ReasonCode.DISK_FULL),
    "LOG_LIMIT": (_RESOURCES, ReasonCode.LOG_LIMIT),
    "PROCESS_LIMIT": (_RESOURCES, ReasonCode.PROCESS_LIMIT),
    "TOO_MANY_REPLICAS": (_RESOURCES, ReasonCode.TOO_MANY_REPLICAS),
    "NO_TPU": (_RESOURCES, ReasonCode.NO_TPU),
    "TRIAL_TIME_LIMIT": (_RESOURCES, ReasonCode.TRIAL_TIME_LIMIT),
    "DEADLINE": (_RESOURCES, ReasonCode.TIME_LIMIT),
    "EXPIRED": (_RESOURCES, ReasonCode.NO_MACHINE_IN_TIME),
    "QUOTA": (_RESOURCES, ReasonCode.QUOTA_EXHAUSTED),
    "STOCK_OUT": (_RESOURCES, ReasonCode.NO_MACHINE_FREE),
    "REQUESTED": (_CANCELLED, ReasonCode.CANCELLED_ON_REQUEST),
    "TIME_LIMIT": (_CANCELLED, ReasonCode.CANCELLED_BY_TIME_LIMIT),
    "WAIT_LIMIT": (_CANCELLED, ReasonCode.CANCELLED_BY_WAIT_LIMIT),
    "PARTIAL": (_USER, ReasonCode.RESULTS_MISSING),
    "MODEL_NOT_REGISTERED": (_MODEL, ReasonCode.MODEL_NOT_REGISTERED),
    "PIPELINE": (_MODEL, ReasonCode.PIPELINE_FAILED),
    "MACHINE_FAILED": (_SERVICE, ReasonCode.MACHINE_FAILED),
    "RUNNER_LOST": (_SERVICE, ReasonCode.RUNNER_LOST),
    "INTERNAL": (_SERVICE, ReasonCode.SERVICE_FAILED),
    UNREADABLE: (_SERVICE, ReasonCode.RECORD_UNREADABLE),
}

_DEADLINE = r"timed out|time.?out|ran for longer than"
# Google's words, first match wins; docs/causes.md has the sources. Compiled when a job has failed: it takes
# a hundredth of a plan's start.
_GOOGLES_WORDS = (
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
    (r"OSError: \[Errno 28\]", "DISK_FULL"),
    (r"(?!.*CUDA)[\w.]*MemoryError\b", "OUT_OF_MEMORY"),
)
_MARKED = r"Set-up failed \((?P<reason>[A-Z_]+)(?:; image=(?P<image>[^;)]*))?(?:; entry=(?P<entry>\w*))?\): "
_UNREADABLE = r"Unreadable \((?P<columns>[a-z_ ]*)\): "


def is_failed_set_up(job: ActualJob) -> bool:
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
    if match := re.match(_UNREADABLE, message):
        return ErrorInfo(UNREADABLE, {"class": str(_SERVICE), **match.groupdict()}), message[match.end() :]
    match = re.match(_MARKED, message)
    if match is None:
        return None, message
    metadata = {name: text for name in ("image", "entry") if (text := match[name])}
    return ErrorInfo(match["reason"], {"class": str(_SET_UP), **metadata}), message[match.end() :]


def cause_of(job: ActualJob, name: str = "", manifest: Manifest | None = None) -> Cause | None:
    """Return the cause of a job's end, or of a record that can't be read; None for other jobs.

    Args:
        name: Its base name, for the commands in the remedy; by default the job's name.
        manifest: Its manifest as it is now, by which a remedy names files; None if unknown.
    """
    if job.state not in (State.FAILED, State.CANCELLED) and not job.is_unreadable:
        return None
    head = _head(job)
    reason, metadata = _service_reason(job), dict(job.info.metadata) if job.info else {}
    class_, code = _CAUSES.get(reason) or (_class_of(metadata), ReasonCode.OTHER)
    values: dict[str, Any] = {"head": head}
    last = job.error.strip().rpartition("\n")[2].strip()
    if reason == "NON_ZERO_EXIT":
        error = printed_error(job.error.strip())
        exit_code = metadata.get("exitCode") or next(iter(re.findall(_EXIT_CODE, head)), "")
        values |= {"exit_code": exit_code, "last": error.line}
        exception = (name for words, name in _EXCEPTIONS if re.match(words, error.line))
        # A line that one of Google's jobs printed mustn't change the class, only the remedy (docs/causes.md).
        if (known := _CAUSES.get(next(exception, ""))) and job.info:
            class_, code = known
        elif found := diagnose(error, job.api_version, manifest):
            code = found[0]
            values |= found[1]
    elif reason == "PERMISSION":
        if (found := diagnose(PrintedError(head), job.api_version, manifest)) and "role" in found[1]:
            code = found[0]
            values |= found[1]
    elif reason == "NO_METRIC":
        values |= {key: text for key in ("metric", "reported", "notFinite") if (text := metadata.get(key))}
    elif reason == "REQUESTED" and job.cancelled is not None:
        code, values["stored"] = _code_of_cancel(job.cancelled), job.cancelled
    elif reason.startswith("PACKAGES") and job.info and last != head:
        values["last"] = last  # the installer names the package in its last line
    if code is ReasonCode.OTHER:
        values["word"] = reason
    if job.is_unreadable and not job.state.ended:
        values["is_live"] = True
    return Cause(class_, code, values, name or job.job_name, job.on_runner, job.kind, job.buckets)


def _code_of_cancel(stored: str) -> ReasonCode:
    """Return the code of a cancel by the reason that the claim records; "" for none."""
    if is_by_apply(stored):
        return ReasonCode.CANCELLED_BY_APPLY
    return ReasonCode.CANCELLED_BY_RECONCILER if stored else ReasonCode.CANCELLED_OUTSIDE


def is_cancelled_outside(job: ActualJob) -> bool:
    """Return True if a run was cancelled, and neither by this tool nor by a limit of its own."""
    return job.state is State.CANCELLED and not job.cancelled and _service_reason(job) == "REQUESTED"


def _class_of(metadata: Mapping[str, str]) -> CauseClass:
    # A newer service may have other reasons and classes.
    said = metadata.get("class", "")
    return CauseClass(said) if said in set(CauseClass) else _SERVICE


def _head(job: ActualJob) -> str:
    """Return the first line of a job's error, which is the service's."""
    return re.split(rf"\n|{re.escape(TRACEBACK)}", job.error.strip(), maxsplit=1)[0]


def _service_reason(job: ActualJob) -> str:
    head = _head(job)
    if job.info:
        return job.info.reason
    if job.state is State.CANCELLED:
        return "TIME_LIMIT" if re.search(_DEADLINE, head, re.IGNORECASE) else "REQUESTED"
    by_state = {"JOB_STATE_EXPIRED": "EXPIRED", "JOB_STATE_PARTIALLY_SUCCEEDED": "PARTIAL"}
    if job.service_state in by_state:
        return by_state[job.service_state]
    if job.backing_body.get("state") == "JOB_STATE_SUCCEEDED":
        return "MODEL_NOT_REGISTERED"
    reason = next((reason for words, reason in _GOOGLES_WORDS if re.search(words, head, re.IGNORECASE)), "")
    # A pipeline's code may be that of either step.
    is_unclear = job.kind == TRAINING_PIPELINE and not job.backing_body
    return reason or ("PIPELINE" if is_unclear else _CODES.get(job.error_code, "INTERNAL"))
