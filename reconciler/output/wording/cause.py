"""Words of the causes of jobs' ends, each with its remedy."""

from __future__ import annotations

from collections.abc import Mapping

from reconciler.base.sanitize import one_line, shortened
from reconciler.model.cause import Cause, CauseClass
from reconciler.model.reason import Reason, ReasonCode
from reconciler.output.wording.remedy import IN_MANIFEST, field_words

_SHORT = 60  # characters of a message in a commit status
_MOST = 300  # characters of any message

# Words of remedies: where a person has the machine, and on a runner of GitHub Actions, which keeps nothing.
_WORDS_HERE = {
    "log": "see `reconciler logs {name}`",
    "apply": "run `reconciler apply`",
    "again": "run it again with `reconciler rerun {name}`",
    "restart": " (after changing an environment variable, run `reconciler serve --stop`)",
    "python": "install one with `uv python install`",
}
_WORDS_ON_RUNNER = {
    "log": "see its log in the workflow's run",
    "apply": "run the workflow again",
    "again": "run the workflow again",
    "restart": "",
    "python": "install one in an earlier step, by actions/setup-python",
}
_THEN_APPLY = "then {apply}"
_CODE = "{log} and correct the code"
_LOG = "{log}"
_MACHINE = "give it a larger {machine}"
_WAYS_OUT = 'set "suspend: true" to leave it stopped, or {again}'
_AGAIN = "{again}"
_STOP = "`reconciler cancel {name}` stops it if it runs, and finds out how it ended"
_ENTRY = 'set the image\'s entry under "images" in reconciler.yaml'
_REQUIREMENTS = (
    f'correct the package\'s requirements (another version), or {_ENTRY} (another "python"), {_THEN_APPLY}'
)

_CAUSE_TEXTS: Mapping[ReasonCode, tuple[str, str]] = {
    ReasonCode.NON_ZERO_EXIT: ("its code failed", _CODE),
    ReasonCode.ENDED_BY_SIGNAL: ("ended by a signal", _CODE),
    ReasonCode.MODULE_MISSING: ("a module is missing", _LOG),
    ReasonCode.MODULE_OF_PACKAGE: ("a module of the package is imported by another name", _LOG),
    ReasonCode.MODULE_LEFT_OUT: ("a module of the package isn't installed", _LOG),
    ReasonCode.ENTRY_MODULE_ALONE: ("its module is run without its package", _LOG),
    ReasonCode.ENTRY_MODULE_MISSING: ("the package lacks the module to run", _LOG),
    ReasonCode.OUTPUT_FOLDER_UNSET: ("the job has no output folder", _LOG),
    ReasonCode.CLUSTER_UNSET: ("the job has no several replicas", _LOG),
    ReasonCode.VARIABLE_UNSET: ("an environment variable is missing", _LOG),
    ReasonCode.ARGUMENT_MISSING: ("an argument is missing", _LOG),
    ReasonCode.ARGUMENT_UNKNOWN: ("an argument is unknown", _LOG),
    ReasonCode.ARGUMENT_INVALID: ("an argument is invalid", _LOG),
    ReasonCode.ADDRESS_OPENED: ("a gs:// address was opened as a file", _LOG),
    ReasonCode.BUCKET_FILE_MISSING: ("a file of a bucket is missing", _LOG),
    ReasonCode.BUCKET_MISSING: ("a bucket is missing", _LOG),
    ReasonCode.OBJECT_MISSING: ("an object of a bucket is missing", _LOG),
    ReasonCode.BUCKET_DENIED: ("the access to a bucket is missing", _LOG),
    ReasonCode.ACCELERATOR_MISSING: ("an accelerator is missing", _LOG),
    ReasonCode.ACCELERATOR_MEMORY: ("the accelerator's memory is full", _LOG),
    ReasonCode.COMMAND_NOT_RUN: ("its command can't be run", "correct {image}"),
    ReasonCode.INVALID_JOB: ("the job can't be run as it is written", "correct the manifest"),
    ReasonCode.NO_METRIC: ("no trial reported the metric", _LOG),
    ReasonCode.INDEX_UNREACHABLE: (
        "a package index can't be reached",
        f"make it reachable, or correct its address{{restart}}, {_THEN_APPLY}",
    ),
    ReasonCode.INSTALLER_SETTINGS: ("pip's settings are wrong", f"correct them{{restart}}, {_THEN_APPLY}"),
    ReasonCode.PACKAGES_NOT_RESOLVED: ("no version of a package fits", _REQUIREMENTS),
    ReasonCode.PACKAGES_NOT_INSTALLED: ("its packages can't be installed", _REQUIREMENTS),
    ReasonCode.PACKAGES_FAILED: (
        "its packages can't be installed",
        "correct the package's requirements (another version), or choose an image with another Python",
    ),
    ReasonCode.CODE_NOT_STARTED: ("its code can't be started", f"do what the message says, {_THEN_APPLY}"),
    ReasonCode.PACKAGE_MISSING: (
        "its package is missing in the bucket",
        "{apply}, which uploads a folder's code again; upload any other package, or correct packageUris",
    ),
    ReasonCode.PYTHON_MISSING: (
        "no Python on this machine fits its image",
        f"{{python}}, or {_ENTRY}, {_THEN_APPLY}",
    ),
    ReasonCode.IMAGE_UNKNOWN: ("its image is unknown here", f"{_ENTRY}, {_THEN_APPLY}"),
    ReasonCode.IMAGE_NOT_PULLED: (
        "its image can't be pulled",
        f"check its name and your login, or build it, {_THEN_APPLY}",
    ),
    ReasonCode.IMAGE_FAILED: ("its image can't be pulled or started", f"correct the image, then {_AGAIN}"),
    ReasonCode.ENGINE_MISSING: (
        "no container engine works on this machine",
        f"install or start Docker or Podman, {_THEN_APPLY}",
    ),
    ReasonCode.ENGINE_FAILED: (
        "the container engine failed",
        f"correct what its message names, {_THEN_APPLY}",
    ),
    ReasonCode.HOME_NOT_TRUSTED: ("the state directory isn't trusted", "{apply}"),
    ReasonCode.PERMISSION_MISSING: ("a permission is missing", f"grant it, then {_AGAIN}"),
    ReasonCode.OUT_OF_MEMORY: ("out of memory", _MACHINE),
    ReasonCode.KILLED: ("killed: out of memory, or by hand", f"{_MACHINE}, or {_AGAIN}"),
    ReasonCode.DISK_FULL: ("the disk is full", f"free or add disk space, then {_AGAIN}"),
    ReasonCode.LOG_LIMIT: ("it printed too much", "let it print less"),
    ReasonCode.PROCESS_LIMIT: ("it had too many processes", "let it start fewer"),
    ReasonCode.TOO_MANY_REPLICAS: ("too many replicas for this machine", "lower {replicas}"),
    ReasonCode.NO_TPU: (
        "this machine has no TPU",
        "run it in Google Cloud, or choose a {machine} without a TPU",
    ),
    ReasonCode.TRIAL_TIME_LIMIT: ("a trial reached its time limit", "raise {timeout}"),
    ReasonCode.TIME_LIMIT: ("it reached its time limit", "raise {timeout}"),
    ReasonCode.NO_MACHINE_IN_TIME: ("no machine became free in time", "raise {wait}"),
    ReasonCode.QUOTA_EXHAUSTED: ("the quota is exhausted", f"request more quota, then {_AGAIN}"),
    ReasonCode.NO_MACHINE_FREE: (
        "no such machine is free",
        f"choose another machine or {{region}}, or {_AGAIN}",
    ),
    ReasonCode.CANCELLED_ON_REQUEST: ("cancelled on request", _WAYS_OUT),
    ReasonCode.CANCELLED_OUTSIDE: ("cancelled outside the reconciler", _WAYS_OUT),
    ReasonCode.CANCELLED_BY_APPLY: (
        "{stored}",
        "`reconciler apply` submits it again once a manifest wants it",
    ),
    ReasonCode.CANCELLED_BY_RECONCILER: ("{stored}", _WAYS_OUT),
    ReasonCode.CANCELLED_BY_TIME_LIMIT: (
        "cancelled by its time limit",
        "raise {timeout}, or correct the code if it hung",
    ),
    ReasonCode.CANCELLED_BY_WAIT_LIMIT: ("cancelled by its waiting limit", "raise {wait}"),
    ReasonCode.RESULTS_MISSING: ("some of its results are missing", _CODE),
    ReasonCode.MODEL_NOT_REGISTERED: (
        "the model could not be registered",
        "correct modelToUpload, modelId or parentModel, or have the trainer write its model to"
        f" AIP_MODEL_DIR; {_AGAIN}",
    ),
    ReasonCode.PIPELINE_FAILED: (
        "its training failed, or its model could not be registered",
        "`reconciler show {name}` says which",
    ),
    ReasonCode.MACHINE_FAILED: ("the machine failed", _AGAIN),
    ReasonCode.RUNNER_LOST: ("the process that ran it was lost", _AGAIN),
    ReasonCode.SERVICE_FAILED: ("the service failed", _AGAIN),
    ReasonCode.RECORD_UNREADABLE: ("its record can't be read", _AGAIN),
    ReasonCode.OTHER: ("{word}", _AGAIN),
}
"""The brief cause and the remedy of each code."""


def cause_text(cause: Cause, *, below_log: bool = False) -> str:
    """Return the cause and the next step, as a sentence without its period.

    `below_log`: as in `cause_remedy`.
    """
    return f"{cause_headline(cause).removesuffix('.')}; {cause_remedy(cause, below_log=below_log)}"


def cause_short(cause: Cause) -> str:
    """Return the cause and the next step, without anything that the trainer printed."""
    # Errors of a service say more than a few words; they are short enough for a commit status.
    message = cause_message(cause)
    is_short = cause.class_ is not CauseClass.USER_CODE and len(message) <= _SHORT
    said = message.removesuffix(".") if is_short else brief_cause(cause)
    return f"{_about(cause)}{said}; {_remedy(cause, _CAUSE_TEXTS[cause.code][1])}"


def cause_headline(cause: Cause) -> str:
    """Return the class for readers, unless the message says it, and the cause in one line."""
    return f"{_about(cause)}{cause_message(cause)}"


def cause_label(cause: Cause) -> str:
    """Return the class for readers and the cause in a few words, as `brief_cause` does."""
    return f"{_about(cause)}{brief_cause(cause)}"


def cause_message(cause: Cause) -> str:
    """Return the cause in one line; for user code with the last line of the traceback."""
    values, brief = cause.values, brief_cause(cause)
    if "exit_code" in values:
        said = ": ".join(filter(None, (brief, values["last"])))
    elif cause.class_ is CauseClass.CANCELLED:
        said = brief
    elif cause.class_ is CauseClass.MODEL:
        # The embedded service's message says it.
        said = values["head"] if brief in values["head"] else ": ".join(filter(None, (brief, values["head"])))
    elif "last" in values:
        said = f"{values['head']} … {values['last']}"
    else:
        said = values["head"] or brief
    return shortened(one_line(said), _MOST)


def cause_remedy(cause: Cause, *, below_log: bool = False) -> str:
    """Return the next step; `below_log` if it stands below the job's log, which it then needn't name."""
    if cause.values.get("is_live"):
        return _remedy(cause, _STOP)
    if in_manifest := IN_MANIFEST.get(cause.code):
        return one_line(in_manifest(cause, _remedy(cause, _AGAIN)))
    remedy = _CAUSE_TEXTS[cause.code][1]
    if below_log and not cause.on_runner:
        remedy = remedy.removeprefix("{log}").removeprefix(" and ").removeprefix(", ")
    return _remedy(cause, remedy)


def _remedy(cause: Cause, template: str) -> str:
    words = _WORDS_ON_RUNNER if cause.on_runner else _WORDS_HERE
    commands = {key: text.format(name=cause.name) for key, text in words.items()}
    return template.format(name=cause.name, **commands, **field_words(cause.kind))


def brief_cause(cause: Cause | Reason) -> str:
    """Return the cause in a few words, without anything that the trainer printed."""
    values = cause.values
    if exit_code := values.get("exit_code"):
        return f"exit code {exit_code}"
    code = ReasonCode.NON_ZERO_EXIT if exit_code == "" else cause.code
    word = values.get("word", "").lower().replace("_", " ")
    return _CAUSE_TEXTS[code][0].format(stored=values.get("stored"), word=word)


def _about(cause: Cause) -> str:
    """Return the class for readers, with a colon; "" if the message says it."""
    words = {CauseClass.USER_CODE: "user code: ", CauseClass.CANCELLED: "", CauseClass.MODEL: ""}
    return words.get(cause.class_, f"{cause.class_}: ")
