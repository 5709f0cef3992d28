"""Comments on merged pull requests: how the jobs of the commit that they became have ended.

GitHub notifies the author and the participants of a new comment, and of no edit. So the comment is written
when the first job has failed or the last has ended. Later ends edit it, and a failure after that replaces it.
"""

from __future__ import annotations

from typing import NamedTuple

from reconciler.base.http import Transport
from reconciler.model.cause import cause_of
from reconciler.model.standing import Standing
from reconciler.output.commit_ends import CommitEnd, commit_ends_text, has_new_failure
from reconciler.output.wording.cause import cause_short
from reconciler.reporting.github.api import GitHubApi, GitHubRefusedError
from reconciler.reporting.github.comment import COMMENTS, ends_marker, keep_comment
from reconciler.reporting.github.merged import merged_pull_request
from reconciler.reporting.github.settings import GitHubSettings
from reconciler.reporting.status import text_of_run
from reconciler.reporting.status_rules import DueStatuses, View
from reconciler.reporting.verdict import Verdict


class Untold(NamedTuple):
    """Why a pull request could not be told: a sentence, and True if the workflow lacks the permission."""

    reason: str
    is_denied: bool


class MergeComments:
    """Teller of the pull requests of one repository."""

    def __init__(self, transport: Transport, settings: GitHubSettings, view: View) -> None:
        self._settings = settings
        self._api = GitHubApi(transport, settings, COMMENTS)
        self._view = view

    def tell(self, sha: str, due: DueStatuses) -> Untold | None:
        """Write the ends of a commit's jobs to the pull request that was merged as it, if there is one.

        Returns:
            Why that failed; None if it didn't.
        """
        if not self._settings.token:
            return Untold(self._settings.no_token, is_denied=False)
        ends = [self._end(verdict) for verdict in due.own]
        environment = self._view.contexts.environment
        marker, text = ends_marker(environment, sha), commit_ends_text(ends, sha, environment)
        try:
            number = merged_pull_request(self._api, self._settings.repository, sha)
            if number is not None:
                keep_comment(
                    self._api, number, marker, text, is_news=lambda before: has_new_failure(ends, before)
                )
        except GitHubRefusedError as refusal:
            reason = f"the pull request of {sha[:7]} wasn't told how its jobs ended: {refusal.message}"
            return Untold(reason, refusal.read_only)
        return None

    def _end(self, verdict: Verdict) -> CommitEnd:
        attempt, state = verdict.attempt, self._view.state
        run = attempt.run if attempt else None
        why = text_of_run(verdict.status)
        # A status has no room for a long remedy.
        if run and verdict.word == "failed" and (cause := cause_of(run, verdict.name)):
            why = cause_short(cause)
        return CommitEnd(
            name=attempt.name if attempt else verdict.name,
            word=verdict.word,
            why=why,
            failed=verdict.is_failed_end,
            open=not (verdict.has_ended or verdict.final),
            url=verdict.status.target_url,
            model=self._place_of(verdict),
            files=state.folders.get(attempt.resource, "") if attempt else "",
        )

    def _place_of(self, verdict: Verdict) -> str:
        """Return the address (gs://…) where the model of a job's run is in place; "" for none."""
        name = self._view.state.names.get(verdict.name.replace("-", "_"))
        if name is None or name.publication is None or name.publication.standing is not Standing.IN_PLACE:
            return ""
        last, attempt = name.last_wanted, verdict.attempt
        is_its_own = last is not None and attempt is not None and last.resource == attempt.resource
        return name.publication.publish.to if is_its_own else ""
