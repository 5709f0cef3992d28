"""The plan carried out: the only caller of what changes a service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from reconciler.brakes import SUBMISSIONS
from reconciler.desired import Desired
from reconciler.engines.base import ApiError
from reconciler.errors import ReconcilerError
from reconciler.job import ActualJob
from reconciler.labels import ATTEMPT, CODE, COMMIT, KEY, SOURCE
from reconciler.naming import label_of
from reconciler.outcome import Outcome, Status
from reconciler.plan import Action, Change, DesiredJob, Plan
from reconciler.reconcile import request_body
from reconciler.session import Session
from reconciler.transport import NoAnswerError

_UNKNOWN = "whether the job was created is not known; the next plan looks for it before it submits"


@dataclass(frozen=True, slots=True)
class Applier:
    """Carries out the changes of one plan.

    Attributes:
        session: The environment to change.
        desired: The wanted jobs, with what they stage.
        commit: The commit that asks for them, "" where none is known.
    """

    session: Session
    desired: Desired
    commit: str

    def run(self, plan: Plan) -> Iterator[Outcome]:
        """The outcome of each change that isn't `none`, as it comes.

        Cancels come last: a live run goes on where what was to replace it wasn't submitted.
        """
        refused = set()
        for change in sorted(plan.changes, key=lambda change: change.action is Action.CANCEL):
            if change.action in SUBMISSIONS:
                outcome = self._outcome(change, self._submit)
                if outcome.status is Status.FAILED:
                    refused.add(change.base_name)
                yield outcome
            elif change.action is Action.BLOCKED:
                yield Outcome(change, Status.SKIPPED, error=change.reason)
            elif change.action is Action.CANCEL and change.base_name in refused:
                yield Outcome(change, Status.SKIPPED, error="what replaces it was not submitted")
            elif change.action is Action.CANCEL:
                yield self._outcome(change, self._cancel)

    def _outcome(self, change: Change, act: Callable[[Change], ActualJob]) -> Outcome:
        """One failed change stops no other: what is left undone is in the next plan."""
        try:
            job = act(change)
        except ReconcilerError as error:
            said = f"{error.message} ({error.hint})" if error.hint else error.message
            return Outcome(change, Status.FAILED, error=said)
        return Outcome(change, Status.APPLIED, state=job.state)

    def _submit(self, change: Change) -> ActualJob:
        job = change.desired
        assert job is not None, "a submission is always of a desired job"
        archive = self.desired.archives.get(job.job_name)
        if archive:
            self.session.staging.put(archive)
        bucket = self.session.environment.staging_bucket
        labels = labels_of(job, self.session.config.source, self.commit, attempt=change.attempt)
        body = request_body(job, self.desired, bucket, change.job_name, labels)
        engine = self.session.engine(job.manifest.api_version)
        try:
            return engine.create(job.manifest.kind, body)
        except NoAnswerError as error:
            # The job may exist: sending again could make a second one. The next plan finds it by its label.
            error.hint = _UNKNOWN
            raise
        except ApiError as error:
            if error.status >= 500:
                error.hint = _UNKNOWN  # a gateway speaks for a service that may have done its work
            if error.reason != "ALREADY_EXISTS":
                raise
            return self._own(change, job, error)

    def _own(self, change: Change, job: DesiredJob, refused: ApiError) -> ActualJob:
        """The job that has the name already, if another run of the reconciler made it; else the refusal."""
        for run in self.session.runs():
            if run.job_name == change.job_name and run.labels.get(KEY) == label_of(job.identity):
                return run
        refused.hint = "a job that is not this repository's has the name; change the manifest's name"
        raise refused

    def _cancel(self, change: Change) -> ActualJob:
        run = change.actual
        assert run is not None, "a cancel is always of an actual job"
        engine = self.session.engine(run.api_version)
        engine.cancel(run)
        return engine.read(run)


def labels_of(job: DesiredJob, source: str, commit: str, *, attempt: int) -> dict[str, str]:
    """The labels that mark a run as this repository's, and say what it was made of."""
    labels = {SOURCE: source, KEY: label_of(job.identity), ATTEMPT: str(attempt)}
    if job.code:
        labels[CODE] = label_of(job.code)
    if commit:
        labels[COMMIT] = commit
    return labels
