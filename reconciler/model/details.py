"""Details of one job as values: its run, replicas, results and record, for every output that shows a job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct

from reconciler.model.cause import Cause
from reconciler.model.claim import Claim
from reconciler.model.job import ActualJob, LogEntry, State
from reconciler.model.manifest import ManifestPlace
from reconciler.model.reason import Reason

Value = float | str
"""A hyper-parameter's value."""


class Workers(Struct, frozen=True):
    """Replicas of a job that run the same: a worker pool or a role by name, and their number.

    Attributes:
        machine: The machine type, or the scale tier that decides it.
        accelerator, accelerator_count: Those of each replica; "" and 0 for none.
        image: The image, or the runtime version.
        module: The Python module; "" for a container.
        command: The container's command; empty for the image's own.
        env: Name and value of each variable.
    """

    name: str
    count: int
    machine: str = ""
    accelerator: str = ""
    accelerator_count: int = 0
    image: str = ""
    module: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


class Goal(Struct, frozen=True):
    """Metric of a study, and its direction."""

    metric: str
    is_maximum: bool


class Measurement(Struct, frozen=True):
    """Values that a trial reported by metric, and the training step; without steps, its number from 1."""

    step: int
    metrics: Mapping[str, float]


class Trial(Struct, frozen=True):
    """One trial of a tuning job, with the service's word for its state and its final measurement.

    Attributes:
        start_time, end_time: RFC 3339 in UTC, "" until known.
        reason: Why it has no measurement; "" if it has one.
        measurements: All reports, in the order of their steps; empty if the service keeps none.
    """

    id: str
    state: str
    parameters: Mapping[str, Value] = {}
    metrics: Mapping[str, float] = {}
    start_time: str = ""
    end_time: str = ""
    reason: str = ""
    measurements: tuple[Measurement, ...] = ()


class Study(Struct, frozen=True):
    """Trials of a tuning job by number, the goals that rank them, and the largest number of trials.

    The parameters in `logarithmic` are searched on a logarithmic scale.
    """

    goals: tuple[Goal, ...]
    trials: tuple[Trial, ...]
    planned: int = 0
    logarithmic: frozenset[str] = frozenset()

    @property
    def best(self) -> Trial | None:
        """The trial with the best measurement, of equal ones the first; None for none or several goals."""
        if len(self.goals) != 1:
            return None
        (goal,) = self.goals
        sign = 1 if goal.is_maximum else -1
        ended = [trial for trial in self.trials if trial.state == "SUCCEEDED"]
        measured = [trial for trial in ended if math.isfinite(trial.metrics.get(goal.metric, math.nan))]
        return max(measured, key=lambda trial: sign * trial.metrics[goal.metric], default=None)


class OutputFile(Struct, frozen=True):
    """Object below the output directory: its name relative to it, and its size in bytes.

    Attributes:
        updated: RFC 3339 in UTC, "" if unknown.
        is_older: True if it was written before the job was created, such as by an earlier run.
    """

    name: str
    size: int
    updated: str = ""
    is_older: bool = False


class Output(Struct, frozen=True):
    """Output directory of a job, gs://….

    Attributes:
        folder: The same on this machine, as an absolute path; "" in the cloud.
        files: The first objects below it, by name.
        is_complete: False if there are more.
    """

    uri: str
    folder: str = ""
    files: tuple[OutputFile, ...] = ()
    is_complete: bool = True


class MetricsFile(Struct, frozen=True):
    """Numbers of a file in the output directory; its name is relative to that directory."""

    name: str
    values: Mapping[str, float]


class PublishedPlace(Struct, frozen=True):
    """Address at which a manifest's `publish` puts models, and whose model is in place there.

    Attributes:
        to: The address, gs://….
        job_name: The run of the model in place; "" for none.
        since: When it was published; None for none.
        is_own: True if it is the model of the job that is shown.
        reason: Why that one isn't in place; None if it is, or if that is unknown.
    """

    to: str
    job_name: str = ""
    since: datetime | None = None
    is_own: bool = False
    reason: Reason | None = None


class JobLinks(Struct, frozen=True):
    """Pages and commands about a job; "" for none.

    Attributes:
        console: The service's page.
        workflow_run: The run of GitHub Actions that this process is part of.
        tensorboard: The folder from which TensorBoard shows it.
    """

    console: str = ""
    workflow_run: str = ""
    tensorboard: str = ""


class JobDetails(Struct, frozen=True):
    """All that is known of one job.

    Attributes:
        job_name: The run's name; of a job that was never submitted, the name that it would get.
        state: None for a job without a run, and for a deleted one with an unknown end.
        is_gone: True if the service no longer has the run.
        on_runner: True if a runner of GitHub Actions ran it, which answers no command later.
        cause: That of an end other than SUCCEEDED.
        create_time, prepare_time, start_time, end_time: RFC 3339 in UTC, "" until known.
        commit, author, subject: The commit that asked for the job; "" if unknown.
        claim, unsettled: Its record if it has one, and those of other attempts at the job without a run.
        other_run: The newest run of other content, if a person asked for the base name; None for none.
        spec: The effective spec without secrets; empty if unknown.
        labels: The labels on the run, else those of the manifest.
        place: Where the model of a desired run that succeeded is published; None for nowhere.
        model: The model version that the pipeline registered; "" for none.
        backing: The resource name of the pipeline's backing job; "" for none.
        log: The last entries, oldest first.
        unread: Reason by the part that could not be read: claim, manifest, output, publication, metrics, log.
    """

    job_name: str
    base_name: str
    api_version: str
    kind: str
    environment: str
    state: State | None = None
    service_state: str = ""
    is_gone: bool = False
    on_runner: bool = False
    is_suspended: bool = False
    cause: Cause | None = None
    error: str = ""
    resource: str = ""
    attempt: int = 1
    create_time: str = ""
    prepare_time: str = ""
    start_time: str = ""
    end_time: str = ""
    commit: str = ""
    author: str = ""
    subject: str = ""
    manifest: ManifestPlace = ManifestPlace()
    claim: Claim | None = None
    unsettled: tuple[Claim, ...] = ()
    other_run: ActualJob | None = None
    spec: Mapping[str, object] = {}
    workers: tuple[Workers, ...] = ()
    service_account: str = ""
    network: str = ""
    timeout: str = ""
    labels: Mapping[str, str] = {}
    output: Output | None = None
    place: PublishedPlace | None = None
    model: str = ""
    backing: str = ""
    metrics: tuple[MetricsFile, ...] = ()
    study: Study | None = None
    links: JobLinks = JobLinks()
    log: tuple[LogEntry, ...] = ()
    unread: Mapping[str, str] = {}
