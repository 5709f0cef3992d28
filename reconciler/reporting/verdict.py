"""Verdict of one job of a commit: its status, and how it counts for the commit."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from reconciler.model.expectation import Judgement
from reconciler.output.wording.judgement import judgement_text, misses_text
from reconciler.planning.attempts import Attempt
from reconciler.reporting.status import CommitStatus, StatusState, plain_status, run_status
from reconciler.reporting.turns import Claimed

MISSED = "below expectations"
UNPUBLISHED = "not published"


class Verdict(Struct, frozen=True):
    """State of one job of a commit.

    Attributes:
        name: The job's base name.
        word: The state in a word or two, for the overall status.
        state: The state in GitHub's terms.
        final: True if the state stays unless a person intervenes.
        sha: The commit that shows it: that of the first submission, or the record's own before one; "" for
            none.
        status: The status for that commit. It also replaces an older status on another commit with the job.
        guess: True if an earlier apply may have posted a better reason why the job wasn't submitted.
        step: The job's progress, a number that never falls.
        attempt: The attempt that it is about; None for none.
    """

    name: str
    word: str
    state: StatusState
    final: bool
    sha: str
    status: CommitStatus
    guess: bool = False
    step: int = 0
    attempt: Attempt | None = None

    @property
    def has_ended(self) -> bool:
        """True if a run has ended, isn't retried, and only a person changes what became of its result."""
        is_kept_back = self.word == UNPUBLISHED and self.state == "error"
        return self.attempt is not None and (self.final or self.is_failed_end or is_kept_back)

    @property
    def is_failed_end(self) -> bool:
        """True if the run failed and isn't retried, or its result is below the expectations."""
        return self.state == "failure" and (self.final or self.word == MISSED)


def problem_verdict(name: str, sha: str, context: str, word: str, text: str) -> Verdict:
    """Return the verdict of a job with a problem that may still be solved."""
    return Verdict(name, word, "error", final=False, sha=sha, status=plain_status("error", context, text))


def end_verdict(name: str, sha: str, context: str, word: str, text: str, claimed: Claimed) -> Verdict:
    """Return the final verdict of a job without the end of a run."""
    job_name = claimed[-1][0].job_name if claimed else ""
    return Verdict(name, word, "error", True, sha, run_status("error", context, text, job_name))


def unpublished_verdict(verdict: Verdict, job_name: str, why: str) -> Verdict:
    """Return the verdict of a run that succeeded and whose model isn't in its place.

    `why` is what keeps it from there; "" if the next apply publishes it.
    """
    state: StatusState = "error" if why else "pending"
    text = f"succeeded, not published: {why}" if why else "succeeded, not yet published"
    status = run_status(state, verdict.status.context, text, job_name)
    shown = replace(status, target_url=verdict.status.target_url, over=verdict.status.over)
    return replace(verdict, word=UNPUBLISHED, state=state, final=False, status=shown)


def worse_verdict(verdict: Verdict, job_name: str, why: str) -> Verdict:
    """Return the verdict of a run whose model is too much worse than the published one; `why` is how much.

    It isn't final: another model in place may be a worse one.
    """
    status = run_status("failure", verdict.status.context, f"succeeded, {why}", job_name)
    shown = replace(status, target_url=verdict.status.target_url, over=verdict.status.over)
    return replace(verdict, word=MISSED, state="failure", final=False, status=shown)


def judged_verdict(
    verdict: Verdict, job_name: str, judgement: Judgement, expected: int, aside: str
) -> Verdict:
    """Return the verdict of a run that succeeded, by the judgement of `expected` metrics.

    `aside` stands before the state.
    """
    status = verdict.status

    def shown(state: StatusState, text: str) -> CommitStatus:
        judged = run_status(state, status.context, text, job_name)
        return replace(judged, target_url=status.target_url, over=status.over)

    if judgement.misses:
        text = f"{aside}succeeded, {misses_text(judgement.misses)}"
        return replace(verdict, word=MISSED, state="failure", status=shown("failure", text))
    if len(judgement.judged) < expected:
        why = f": its metrics can't be read: {judgement.unread}" if judgement.unread else ""
        text = f"{aside}succeeded, not judged yet{why}"
        status = shown("pending", text)
        return replace(verdict, word="not judged yet", state="pending", final=False, status=status)
    text = f"{status.description.partition(' · run ')[0]}, {judgement_text(judgement)}"
    return replace(verdict, status=shown("success", text))
