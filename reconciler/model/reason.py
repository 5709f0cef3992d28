"""Reasons as data: a code with values; `output/wording/` makes the sentences."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, assert_never

from msgspec import Struct

from reconciler.model.claim import Claim, ClaimState


class ReasonCode(StrEnum):
    """Codes of reasons, which scripts read as `reasonCode` in JSON: a code keeps its meaning for ever."""

    # Of a planned change, a change that wasn't carried out, or a missing run.
    NEW = "new"
    """The content was never submitted, and there is no earlier run of the job's base name."""
    CHANGED = "changed"
    """The content differs from that of the newest earlier run, or of the base commit."""
    SAME_CONTENT = "same-content"
    """The content is that of the base commit."""
    NO_LONGER_SUSPENDED = "no-longer-suspended"
    """The base commit suspended the job, and the manifest no longer does."""
    REMOVED = "removed"
    """The base commit had the manifest."""
    SUSPENDED = "suspended"
    """The manifest suspends the job."""
    QUEUED = "queued"
    """The run waits in the service's queue."""
    PREPARING = "preparing"
    """The service prepares the run."""
    RUNNING = "running"
    """The run goes on."""
    CANCELLING = "cancelling"
    """The service is cancelling the run."""
    SUCCEEDED = "succeeded"
    """The run succeeded."""
    FAILED = "failed"
    """The last attempt failed."""
    CANCELLED = "cancelled"
    """The run was cancelled."""
    ALREADY_RAN = "already-ran"
    """The content ran before, and other content has run since."""
    OVERWRITTEN = "overwritten"
    """The run succeeded, and a later run of other content wrote to the same folder."""
    EXPECTATION_MISSED = "expectation-missed"
    """The run succeeded, and a metric isn't as the manifest's `expect` asks for."""
    METRICS_UNREAD = "metrics-unread"
    """The run succeeded, and the metrics that `expect` names can't be read now."""
    NOT_PUBLISHED = "not-published"
    """The run succeeded, and its model isn't in the place that `publish` names."""
    PUBLISH = "publish"
    """The model is published, in the place of another one or of none."""
    PUBLISHED_BEFORE_OTHER = "published-before-other"
    """The model was published before other content was submitted: the newer commit is recorded with it."""
    PUBLICATION_INCOMPLETE = "publication-incomplete"
    """Files of the published model are missing."""
    PUBLICATION_CHANGED = "publication-changed"
    """The published model's folder has an object that isn't the run's."""
    PUBLICATION_UNREAD = "publication-unread"
    """What the address has can't be read."""
    PUBLISHED_BY_OTHER = "published-by-other"
    """Another environment or repository publishes at the address."""
    PUBLISHED_BY_OTHER_JOB = "published-by-other-job"
    """Another manifest publishes at the address."""
    PUBLISHED_BY_UNKNOWN_JOB = "published-by-unknown-job"
    """Another job published at the address, and only some manifests are looked at: it may have one."""
    PUBLISHED_BY_NEWER = "published-by-newer"
    """The checkout isn't known to be newer than the commit that published the model in place."""
    WORSE_THAN_PUBLISHED = "worse-than-published"
    """A metric is worse than that of the model in place by more than the manifest's `worse` permits."""
    NOT_COMMITTED = "not-committed"
    """The job's files aren't those of a commit, and only a commit's model is published in Google Cloud."""
    FOLDER_SHARED = "folder-shared"
    """The run wrote to a folder that other runs may write to."""
    FOLDER_UNKNOWN = "folder-unknown"
    """The service no longer has the run, so that its folder isn't known."""
    NO_BEST_TRIAL = "no-best-trial"
    """The study has no best trial, so that there is no model to publish."""
    TOO_MANY_PUBLICATIONS = "too-many-publications"
    """The plan has more publications than the limit permits: none is carried out."""
    DELETED_OUTSIDE = "deleted-outside"
    """The service no longer has the run, and its end is unknown."""
    RECORD_GONE = "record-gone"
    """The service no longer has the run; its end is recorded."""
    GIVEN_UP = "given-up"
    """A person gave the submission up by `reconciler resolve`."""
    ATTEMPT_FAILED = "attempt-failed"
    """An attempt failed, and the manifest permits another one."""
    ATTEMPTS_USED_UP = "attempts-used-up"
    """Apply cancelled the last attempt, and `attempts` permits no other one."""
    ATTEMPT_NOT_NEEDED = "attempt-not-needed"
    """`attempts` was lowered before the attempt was sent."""
    SET_UP_FAILED = "set-up-failed"
    """The set-up failed, which uses up no attempt: it is tried again."""
    SET_UP_TRIES_USED_UP = "set-up-tries-used-up"
    """The set-up failed too often to be tried again without a person."""
    WANTED_AGAIN = "wanted-again"
    """Apply cancelled the run while no manifest wanted it, and one wants it again."""
    RETURNS_LATER = "returns-later"
    """Apply is cancelling the run; its content is submitted again once it has ended."""
    RETURNED_TOO_OFTEN = "returned-too-often"
    """Apply cancelled the content three times: another apply wants other content."""
    FOUND_WITHOUT_CLAIM = "found-without-claim"
    """A run with the content's labels has no claim: it is adopted if it is the same job."""
    JOB_FOUND = "job-found"
    """The submission's job was found: the claim is bound to it."""
    OUTCOME_UNKNOWN = "outcome-unknown"
    """A request may have created a job: apply looks for it, and submits it again if there is none."""
    REFUSED = "refused"
    """The service refused the submission: it is submitted again."""
    HELD = "held"
    """A person has to settle the submission by `reconciler resolve`."""
    RUN_WITHOUT_REQUEST = "run-without-request"
    """A run has the job's labels, and no recorded request created it: a submission could pay twice."""
    STATE_UNREADABLE = "state-unreadable"
    """The embedded service can't read the run's state: it may be alive."""
    OTHER_INSTANCE = "other-instance"
    """A live run of the content has the label of another `instance`, and may be the environment's own."""
    NAME_OF_OTHER_RUN = "name-of-other-run"
    """A run of other content has the job's name, which has 16 digits of the content's hash."""
    NAME_OF_OTHER_CLAIM = "name-of-other-claim"
    """A claim of other content has the job's name, and the service no longer has the run."""
    PROJECT_SHARED = "project-shared"
    """Another environment uses the same project, whose AI Platform jobs can't be told apart."""
    DATASET_UNSUPPORTED = "dataset-unsupported"
    """The embedded service has no managed datasets for a pipeline to train on."""
    PARENT_MODEL_ELSEWHERE = "parent-model-elsewhere"
    """The pipeline's `parentModel` is not in the environment's project and location."""
    AI_PLATFORM_GONE = "ai-platform-gone"
    """Google shut AI Platform Training down: only the embedded service runs such jobs."""
    PARENT_MODEL_MISSING = "parent-model-missing"
    """The model that is to get another version doesn't exist."""
    RESUMED_JOB_MISSING = "resumed-job-missing"
    """There is no tuning job with the id in `resumePreviousJobId`."""
    JOB_DIR_BUCKET_MISSING = "job-dir-bucket-missing"
    """The bucket of the job's `jobDir` doesn't exist."""
    MODEL_ID_TAKEN = "model-id-taken"
    """The pipeline's `modelId` is that of a model that exists."""
    OTHER_LINE_ENDS = "other-line-ends"
    """The files differ from the commit's in line ends, which would make another job."""
    SUPERSEDED = "superseded"
    """The run is cancelled for other content, by `onChange: cancel`."""
    UNWANTED = "unwanted"
    """The run is cancelled because no manifest asks for it, by `onDelete: cancel`."""
    DUPLICATE = "duplicate"
    """The run is cancelled because an earlier one of the same attempt stays."""
    WITHHELD = "withheld"
    """The change is left out because the checkout may be older than what was applied."""
    REPLACEMENT_MISSING = "replacement-missing"
    """The cancel is left out because the run's replacement was not submitted."""
    RETURN_NOT_REVIEWED = "return-not-reviewed"
    """The plan that was reviewed doesn't submit the content again, as its run is still being cancelled."""
    STILL_CANCELLING = "still-cancelling"
    """The run was still being cancelled when the wait for its end was over."""
    STILL_UNKNOWN = "still-unknown"
    """Apply couldn't find out whether a job was created."""
    EARLIER_REQUEST = "earlier-request"
    """An earlier request may still create a job, so that none is sent yet."""
    NOT_ACCEPTED = "not-accepted"
    """The service refused the submission just now."""
    ERROR = "error"
    """The change failed or was left out, as the error's own text says."""

    # Of a job's end (docs/causes.md).
    NON_ZERO_EXIT = "non-zero-exit"
    """The code ended with an exit code other than 0."""
    ENDED_BY_SIGNAL = "ended-by-signal"
    """A signal ended the code."""
    MODULE_MISSING = "module-missing"
    """The code imports a module that isn't installed."""
    MODULE_OF_PACKAGE = "module-of-package"
    """The code imports a module of its own package by a name that the package doesn't give it."""
    MODULE_LEFT_OUT = "module-left-out"
    """A module of the package's folder isn't installed with the package."""
    ENTRY_MODULE_ALONE = "entry-module-alone"
    """The module is run without its package, which its relative import needs."""
    ENTRY_MODULE_MISSING = "entry-module-missing"
    """The package has no module of the name that the job runs."""
    OUTPUT_FOLDER_UNSET = "output-folder-unset"
    """The code reads a variable that only a job with an output folder has."""
    CLUSTER_UNSET = "cluster-unset"
    """The code reads a variable that only a job with several replicas has."""
    VARIABLE_UNSET = "variable-unset"
    """The code reads an environment variable that isn't set."""
    ARGUMENT_MISSING = "argument-missing"
    """The code needs an argument that the job doesn't pass."""
    ARGUMENT_UNKNOWN = "argument-unknown"
    """The job passes an argument that the code doesn't accept."""
    ARGUMENT_INVALID = "argument-invalid"
    """The job passes an argument with a value that the code doesn't accept."""
    ADDRESS_OPENED = "address-opened"
    """The code opens a gs:// address as if it were a file."""
    BUCKET_FILE_MISSING = "bucket-file-missing"
    """The code opens a file below /gcs that isn't there, or whose bucket isn't mounted."""
    BUCKET_MISSING = "bucket-missing"
    """The code uses a bucket that doesn't exist."""
    OBJECT_MISSING = "object-missing"
    """The code reads an object that doesn't exist."""
    BUCKET_DENIED = "bucket-denied"
    """The job may not use a bucket that its code uses."""
    ACCELERATOR_MISSING = "accelerator-missing"
    """The code needs an accelerator that the machine doesn't have."""
    ACCELERATOR_MEMORY = "accelerator-memory"
    """The code needed more memory than the accelerator has."""
    COMMAND_NOT_RUN = "command-not-run"
    """The container's command can't be run."""
    INVALID_JOB = "invalid-job"
    """The service can't run the job as it is written."""
    NO_METRIC = "no-metric"
    """No trial reported the metric."""
    INDEX_UNREACHABLE = "index-unreachable"
    """A package index can't be reached."""
    INSTALLER_SETTINGS = "installer-settings"
    """The settings of pip are wrong."""
    PACKAGES_NOT_RESOLVED = "packages-not-resolved"
    """No version of a package fits."""
    PACKAGES_NOT_INSTALLED = "packages-not-installed"
    """The packages can't be installed."""
    PACKAGES_FAILED = "packages-failed"
    """pip failed, as the service's message says."""
    CODE_NOT_STARTED = "code-not-started"
    """The code can't be started."""
    PACKAGE_MISSING = "package-missing"
    """The staged package isn't in its bucket."""
    PYTHON_MISSING = "python-missing"
    """No Python on this machine fits the image."""
    IMAGE_UNKNOWN = "image-unknown"
    """The embedded service doesn't know the image."""
    IMAGE_NOT_PULLED = "image-not-pulled"
    """The image can't be pulled."""
    IMAGE_FAILED = "image-failed"
    """The image can't be pulled or started."""
    ENGINE_MISSING = "engine-missing"
    """No container engine works on this machine."""
    ENGINE_FAILED = "engine-failed"
    """The container engine failed."""
    HOME_NOT_TRUSTED = "home-not-trusted"
    """The state directory isn't trusted; of earlier versions."""
    PERMISSION_MISSING = "permission-missing"
    """An account lacks a permission."""
    OUT_OF_MEMORY = "out-of-memory"
    """The code needed more memory than there is."""
    KILLED = "killed"
    """SIGKILL ended the code: for lack of memory, or by hand."""
    DISK_FULL = "disk-full"
    """The disk is full."""
    LOG_LIMIT = "log-limit"
    """The code printed too much."""
    PROCESS_LIMIT = "process-limit"
    """The code had too many processes."""
    TOO_MANY_REPLICAS = "too-many-replicas"
    """The machine is too small for the replicas."""
    NO_TPU = "no-tpu"
    """This machine has no TPU."""
    TRIAL_TIME_LIMIT = "trial-time-limit"
    """A trial reached its time limit."""
    TIME_LIMIT = "time-limit"
    """The job failed at its time limit."""
    NO_MACHINE_IN_TIME = "no-machine-in-time"
    """No machine became free within the waiting time."""
    QUOTA_EXHAUSTED = "quota-exhausted"
    """The quota is exhausted."""
    NO_MACHINE_FREE = "no-machine-free"
    """The region has no free machine of this type."""
    CANCELLED_ON_REQUEST = "cancelled-on-request"
    """A request cancelled the job; whose isn't known."""
    CANCELLED_OUTSIDE = "cancelled-outside"
    """A request that isn't the reconciler's cancelled the job."""
    CANCELLED_BY_APPLY = "cancelled-by-apply"
    """Apply cancelled the job by a manifest's policy: its content may come back."""
    CANCELLED_BY_RECONCILER = "cancelled-by-reconciler"
    """A person cancelled the job by `reconciler cancel`, or apply cancelled it as a duplicate."""
    CANCELLED_BY_TIME_LIMIT = "cancelled-by-time-limit"
    """The job was cancelled at its time limit."""
    CANCELLED_BY_WAIT_LIMIT = "cancelled-by-wait-limit"
    """The job was cancelled at its waiting limit."""
    RESULTS_MISSING = "results-missing"
    """The job succeeded in part."""
    MODEL_NOT_REGISTERED = "model-not-registered"
    """The pipeline's training succeeded, and its model couldn't be registered."""
    PIPELINE_FAILED = "pipeline-failed"
    """The pipeline failed: its training, or the registering of its model."""
    MACHINE_FAILED = "machine-failed"
    """The machine failed."""
    RUNNER_LOST = "runner-lost"
    """The process that ran the job was lost."""
    SERVICE_FAILED = "service-failed"
    """The service failed."""
    RECORD_UNREADABLE = "record-unreadable"
    """The embedded service can't read a part of the job's record."""
    OTHER = "other"
    """A cause that this version doesn't know; `class` says who can remedy it."""


class Reason(Struct, frozen=True):
    """Reason of a decision.

    Attributes:
        code: Its code.
        values: Counts, names, times and states that the sentence names, and the texts of others that it
            quotes, such as a service's error. A part may be a reason itself.
    """

    code: ReasonCode
    values: Mapping[str, Any] = {}


def because(code: ReasonCode, /, **values: Any) -> Reason:
    """Return the reason with these values."""
    return Reason(code, values)


class NoteCode(StrEnum):
    """Codes of what a plan shows beside a reason: differences from a base commit, and details of drift."""

    NOT_ASKED = "not-asked"
    """Of a submission in a comparison, which asks no service."""
    CANCELLED_IF_LIVE = "cancelled-if-live"
    CONTINUES_ORPHANED = "continues-orphaned"
    NOTHING_CANCELLED = "nothing-cancelled"
    """No manifest is left at all."""
    MAYBE_MOVED = "maybe-moved"
    EARLIER_RUN_CONTINUES = "earlier-run-continues"
    EARLIER_RUN_CANCELLED = "earlier-run-cancelled"
    EARLIER_RUN_ALONGSIDE = "earlier-run-alongside"
    KIND = "kind"
    SUSPENDED = "suspended"
    NO_LONGER_SUSPENDED = "no-longer-suspended"
    ATTEMPTS = "attempts"
    ON_CHANGE = "on-change"
    ON_DELETE = "on-delete"
    EXPECT = "expect"
    PUBLISH = "publish"
    LABELS = "labels"
    MOVED = "moved"
    RENAMED = "renamed"

    DELETED_OUTSIDE = "deleted-outside"
    CANCELLED_OUTSIDE = "cancelled-outside"
    LABELS_DIFFER = "labels-differ"
    OVERWRITTEN = "overwritten"
    FILE_CHANGED = "file-changed"
    NOT_AS_PUBLISHED = "not-as-published"
    OLD_CONTENT = "old-content"
    NO_MANIFEST = "no-manifest"
    SECOND_RUN = "second-run"
    RUN_WITHOUT_REQUEST = "run-without-request"
    RUN_OF_OTHERS = "run-of-others"


class NotCancelled(StrEnum):
    """Reasons why drift that a cancel would resolve isn't resolved."""

    NO_CLAIM = "no-claim"
    NO_REQUEST = "no-request"
    """No recorded request created the run."""
    NO_MANIFEST = "no-manifest"
    """Without any manifest, the manifests are more likely out of sight than deleted."""


class Note(Struct, frozen=True):
    """Difference or detail beside a reason; `values` are those that its sentence names, in this order."""

    code: NoteCode
    values: Mapping[str, Any] = {}


def held_reason(claim: Claim) -> Reason:
    """Return the reason of a HELD claim (docs/at-most-once.md): a person runs a command."""
    return because(ReasonCode.HELD, error=claim.error, job_name=claim.job_name)


def missing_reason(claim: Claim) -> Reason:
    """Return the reason for an attempt's missing run."""
    if claim.given_up:
        return because(ReasonCode.GIVEN_UP, base_name=claim.base_name)
    match claim.state:
        case ClaimState.HELD:
            return held_reason(claim)
        case ClaimState.PENDING:
            return because(ReasonCode.OUTCOME_UNKNOWN, until=None)
        case ClaimState.REJECTED:
            return because(ReasonCode.REFUSED, error=claim.error, not_before=claim.not_before)
        case ClaimState.BOUND if claim.ended is None:
            return because(ReasonCode.DELETED_OUTSIDE)
        case ClaimState.BOUND:
            return because(ReasonCode.RECORD_GONE, cancelled=claim.reason)
        case _:
            assert_never(claim.state)


def unsettled_reason(claim: Claim, until: datetime | None = None, cause: str = "") -> Reason:
    """Return the reason for a submission that was sent and has no run.

    Args:
        until: The latest time at which an unknown outcome can be settled; None if unknown.
        cause: The known cause of the unknown outcome.
    """
    if claim.state is ClaimState.PENDING:
        return because(ReasonCode.STILL_UNKNOWN, until=until, cause=cause)
    if claim.state is ClaimState.HELD and until:
        return because(ReasonCode.EARLIER_REQUEST, until=until)
    if claim.state is ClaimState.REJECTED:
        return because(ReasonCode.NOT_ACCEPTED, error=claim.error, not_before=claim.not_before)
    return held_reason(claim)
