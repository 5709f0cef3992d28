"""Sentences of the reasons of planned changes, outcomes and missing runs, and of the progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from reconciler.base.diagnostics import quote
from reconciler.model.applied_tree import Relation
from reconciler.model.job import State
from reconciler.model.plan import Action, Change, Edit
from reconciler.model.publication import model_folder
from reconciler.model.reason import Reason, ReasonCode
from reconciler.output.wording.cause import brief_cause
from reconciler.output.wording.judgement import judgement_text, misses_text

if TYPE_CHECKING:
    from reconciler.model.claim import Claim
    from reconciler.planning.outcome import JobStatus, Outcome, SubmitProgress

_Values = Mapping[str, Any]

_SHOWN_OF_SHA = 7
_NAMED_FILES = 3
_AGAIN = "run it again with "
_UNKNOWN = "the outcome of its submission is unknown"

_SENTENCES: Mapping[ReasonCode, str] = {
    ReasonCode.NEW: "new",
    ReasonCode.SAME_CONTENT: "the same content",
    ReasonCode.NO_LONGER_SUSPENDED: "no longer suspended",
    ReasonCode.QUEUED: "queued",
    ReasonCode.PREPARING: "preparing",
    ReasonCode.RUNNING: "running",
    ReasonCode.CANCELLING: "cancelling",
    ReasonCode.ALREADY_RAN: "already ran as {job_name} ({state}); {again}",
    ReasonCode.DELETED_OUTSIDE: "deleted outside; {again}",
    ReasonCode.GIVEN_UP: "given up; {again}",
    ReasonCode.ATTEMPT_FAILED: "attempt {attempt} failed, {left} left",
    ReasonCode.ATTEMPT_NOT_NEEDED: 'attempt {attempt} is no longer needed: "attempts" is {attempts}',
    ReasonCode.WANTED_AGAIN: "apply cancelled it while it was unwanted, and it is wanted again",
    ReasonCode.RETURNS_LATER: "cancelling; submitted again once it has ended",
    ReasonCode.FOUND_WITHOUT_CLAIM: "found without a claim: adopted if it is the same job",
    ReasonCode.JOB_FOUND: "its job was found: the claim is bound to it",
    ReasonCode.STATE_UNREADABLE: (
        "the training service can't read the state of {resource}: `reconciler cancel {name}` stops it if it "
        "runs, and finds out how it ended"
    ),
    ReasonCode.NAME_OF_OTHER_RUN: (
        "{resource} has this name but different content; get another name with {rerun}"
    ),
    ReasonCode.NAME_OF_OTHER_CLAIM: (
        "a claim has the name {job_name} for different content; get another name with {rerun}"
    ),
    ReasonCode.DATASET_UNSUPPORTED: (
        'the embedded service has no managed datasets: remove "inputDataConfig", and have the trainer read '
        "its data from Cloud Storage, at an address in its args"
    ),
    ReasonCode.PARENT_MODEL_ELSEWHERE: (
        '"parentModel" is in {there}, and a pipeline registers its model in its own project and location: '
        "name a model in {here}"
    ),
    ReasonCode.AI_PLATFORM_GONE: (
        "Google shut down AI Platform Training on 2025-01-31; "
        "run `reconciler migrate`, which rewrites it for Vertex AI"
    ),
    ReasonCode.MODEL_ID_TAKEN: (
        "there is a model {model} already: write parentModel: {model} in place of modelId, and the run's "
        "model becomes a version of it"
    ),
    ReasonCode.PARENT_MODEL_MISSING: (
        "there is no model {model}: correct parentModel, or leave it out: the first run then registers a "
        "model that later ones can name"
    ),
    ReasonCode.RESUMED_JOB_MISSING: (
        "there is no tuning job {job}: write the whole name of its run in resumePreviousJobId, as "
        "`reconciler show NAME` prints it, or leave it out"
    ),
    ReasonCode.JOB_DIR_BUCKET_MISSING: (
        'there is no bucket {bucket}: correct it in jobDir, or name it under "buckets" in reconciler.yaml'
    ),
    ReasonCode.OTHER_LINE_ENDS: (
        "{difference}, so that the job isn't the commit's: commit these line ends, or restore the commit's "
        "with `printf '\\n* -text\\n' >> \"$(git rev-parse --git-path info/attributes)\" && "
        "rm -- {paths} && git restore -- {paths}`"
    ),
    ReasonCode.RECORD_GONE: "the service no longer has its record",
    ReasonCode.SUPERSEDED: "superseded by {by} (onChange: cancel)",
    ReasonCode.UNWANTED: "no manifest asks for it (onDelete: cancel)",
    ReasonCode.DUPLICATE: "a second run of the same attempt; {stays} stays",
    ReasonCode.REPLACEMENT_MISSING: "its replacement was not submitted",
    ReasonCode.RETURN_NOT_REVIEWED: (
        "it isn't submitted by the reviewed plan: apply again once its job has ended"
    ),
    ReasonCode.PUBLISHED_BEFORE_OTHER: "in its place since before other content ran: this commit is recorded",
    ReasonCode.PUBLICATION_UNREAD: "{why}",
    ReasonCode.PUBLISHED_BY_OTHER_JOB: "the job {other} publishes to {to}: give each job its own address",
    ReasonCode.PUBLISHED_BY_UNKNOWN_JOB: (
        "the job {other} published to {to}, and may still have a manifest: apply all jobs at once"
    ),
    ReasonCode.NOT_COMMITTED: "{difference}: commit it, and apply again",
    ReasonCode.FOLDER_SHARED: (
        "the run wrote to the shared folder {folder}, as it began before `outputs: own`; {again}"
    ),
    ReasonCode.FOLDER_UNKNOWN: "the service no longer has the run's record, which names its folder; {again}",
    ReasonCode.NO_BEST_TRIAL: "the study has no best trial; {again}",
    ReasonCode.TOO_MANY_PUBLICATIONS: (
        "the plan has {planned} publications, but one apply may do at most {most}: raise "
        '"limits: {{publications: {planned}}}" in reconciler.yaml if you want that'
    ),
    ReasonCode.STILL_CANCELLING: "its job is still cancelling: apply again once it has ended",
    ReasonCode.EARLIER_REQUEST: (
        "an earlier request may still create a job: it can be submitted again after {until}"
    ),
}
"""Templates by code: `{rerun}` is the command that runs a job again, `{again}` the advice to run it."""


def reason_text(reason: Reason, name: str = "") -> str:
    """Return the sentence of a reason, without its period.

    Args:
        name: The job's base name, for the command that runs it again; by default the command has no name.
    """
    rerun = f"`reconciler rerun {name}`" if name else "`reconciler rerun`"
    return _text_of(reason, rerun)


def _text_of(reason: Reason, rerun: str) -> str:
    """Return the sentence of a reason; `rerun` is the command that runs the job again, in backticks."""
    again = f"{_AGAIN}{rerun}"
    if template := _SENTENCES.get(reason.code):
        values = {key: _shown(value) for key, value in reason.values.items()}
        return template.format(**values, rerun=rerun, again=again)
    return _MADE[reason.code](reason.values, again)


def change_text(change: Change) -> str:
    """Return the sentence of a change's reason; of a blocked publication, it says what it is about."""
    said = reason_text(change.reason, change.base_name)
    is_refused = change.publication is not None and change.action is Action.BLOCKED
    return f"not published: {said}" if is_refused else said


def reason_beside(change: Change) -> str:
    """Return the sentence of a change for a place beside its edit's word; "" if that word says it all."""
    reason, edit = change.reason, change.edit
    if reason.code is ReasonCode.REMOVED and edit is Edit.REMOVED:
        return "onDelete: cancel" if reason.values["is_cancelled"] else ""
    is_edit = (reason.code, edit) in ((ReasonCode.NEW, Edit.NEW), (ReasonCode.CHANGED, Edit.CHANGED))
    return "" if is_edit and not reason.values else change_text(change)


def names_edit(reason: Reason, edit: Edit) -> bool:
    """Return True if the sentence of a reason says the edit, whose word then needn't stand before it."""
    match edit:
        case Edit.NEW:
            return reason.code is ReasonCode.NEW
        case Edit.CHANGED:
            return reason.code is ReasonCode.CHANGED and (not reason.values or any(reason.values.values()))
        case Edit.REMOVED:
            return reason.code is ReasonCode.REMOVED
        case Edit.UNCHANGED:
            return False


def missing_text(reason: Reason) -> str:
    """Return the reason for an attempt's missing run, and the remedy; "" if the job's state says it all."""
    match reason.code:
        case ReasonCode.OUTCOME_UNKNOWN:
            again = "submits it again once no earlier request can create one"
            return f"the next apply looks for its job, and {again}"
        case ReasonCode.REFUSED:
            return str(reason.values["error"])
        case ReasonCode.RECORD_GONE:
            return str(reason.values["cancelled"])
        case ReasonCode.DELETED_OUTSIDE:
            return ""
        case _:
            return reason_text(reason, reason.values.get("base_name", ""))


def held_short(claim: Claim) -> str:
    """Return remedy and reason for a held submission; the remedy comes first, as the end may be cut off."""
    return f"held, see `reconciler resolve {claim.base_name}`: {claim.error or 'no reason given'}"


def row_error(row: JobStatus) -> str:
    """Return the error of a row's run, or why it has none; "" for neither."""
    return row.error or (missing_text(row.reason) if row.reason else "")


def outcome_error(outcome: Outcome, name: str = "") -> str:
    """Return why a change wasn't carried out, or its job's error; "" for neither.

    `name` is as in `reason_text`.
    """
    return reason_text(outcome.reason, name) if outcome.reason else ""


def progress_text(progress: SubmitProgress) -> str:
    """Return the failures, the unknown outcomes and the waits of submissions, in one line; "" for none."""
    parts = [f"{progress.failed} failed"] if progress.failed else []
    if progress.open:
        parts.append(f"{progress.open} unknown so far")
    if progress.held:
        parts.append(f"quota used up, continuing in {progress.held:.0f} s")
    if progress.left:
        parts.append(f"at least {timedelta(seconds=round(progress.left))} left")
    return ", ".join(parts)


def _changed(values: _Values, again: str) -> str:
    if not values:
        return "changed"
    count = values["fields"]
    said = [f"{count} field{'s' if count > 1 else ''} changed"] if count else []
    said += ["the code changed"] if values["code"] else []
    said += ["rerun changed"] if values["rerun"] else []
    *first, last = said or ["only a default was added or removed"]
    return " and ".join([", ".join(first), last] if first else [last])


def _removed(values: _Values, again: str) -> str:
    return "removed (onDelete: cancel)" if values["is_cancelled"] else "removed"


def _suspended(values: _Values, again: str) -> str:
    if "state" in values:
        return f"suspended; its run continues: {_shown(values['state'])}"
    if "error" in values:
        return f"suspended; {values['error']}"
    return f"suspended; {_UNKNOWN}" if values else "suspended"


def _succeeded(values: _Values, again: str) -> str:
    gone = ["the service no longer has its record"] * values["is_gone"]
    return "; ".join([values["cancelled"] or _shown(values["state"]), *gone])


def _failed(values: _Values, again: str) -> str:
    return f'{_succeeded(values, again)}; raise "attempts" or {again}'


def _cancelled(values: _Values, again: str) -> str:
    return f"{_succeeded(values, again)}; {again}"


def _unreadable(values: _Values, again: str) -> str:
    return f"{_succeeded(values, again)}; its record can't be read; {again}"


def _attempts_used_up(values: _Values, again: str) -> str:
    return f'{values.get("cancelled", "cancelling")}; raise "attempts" or {again}'


def _set_up_failed(values: _Values, again: str) -> str:
    said = f"{_failed_set_up(values)}; this doesn't count as an attempt"
    if "try" in values:
        said += f", try {values['try']} of {values['tries']}"
        said += f", not before {_shown(values['not_before'])}" if values["not_before"] else ""
    return said


def _set_up_tries(values: _Values, again: str) -> str:
    return f"{_failed_set_up(values)}; tried {values['tries']} times"


def _failed_set_up(values: _Values) -> str:
    return f"set-up failed: {brief_cause(values['cause'])}"


def _returned_too_often(values: _Values, again: str) -> str:
    cancelling = "cancelling; " if values.get("is_cancelling") else ""
    why = "stopped and wanted again three times: another apply wants other content"
    return f"{cancelling}{why}; {again}"


def _outcome_unknown(values: _Values, again: str) -> str:
    after = f" after {_shown(values['until'])}" if values["until"] else ""
    return f"{_UNKNOWN}: apply looks for its job, and submits it again{after} if none appears"


def _overwritten(values: _Values, again: str) -> str:
    state, job_name, folder = values["state"], values["job_name"], values["folder"]
    if not state.ended:
        stop = f"stop it with `reconciler cancel {job_name}`"
        return f"being overwritten: {job_name} may write to its folder {folder}; {stop}, then {again}"
    done = "wrote" if state is State.SUCCEEDED else "may have written"
    return f"overwritten: {job_name} {done} to its folder {folder}; {again}"


def _expectation_missed(values: _Values, again: str) -> str:
    return f"succeeded; {misses_text(values['judgement'].misses)}"


def _metrics_unread(values: _Values, again: str) -> str:
    return f"succeeded; its metrics can't be read: {values['why']}"


def _not_published(values: _Values, again: str) -> str:
    why = values["why"]
    if why is None:
        return "succeeded; not yet published"
    return f"succeeded; not published: {_text_of(why, again.removeprefix(_AGAIN))}"


def _publish(values: _Values, again: str) -> str:
    ended, judgement = values["ended"], values["judgement"]
    said = [f"of {ended.astimezone(UTC):%-d %b %Y}"] if ended else []
    said += [judgement_text(judgement)] if judgement else []
    about = f"to {values['to']}"
    about += f": {', '.join(said)}" if said else ""
    taken = f"takes over from {values['taken_from']}, " if values["taken_from"] else ""
    return f"{about}; {taken}replaces {values['replaces']}" if values["replaces"] else about


def _publication_incomplete(values: _Values, again: str) -> str:
    return f"{_files(values['files'])} missing at its address"


def _publication_changed(values: _Values, again: str) -> str:
    folder = model_folder(values["to"], values["job_name"])
    return (
        f"somebody wrote to the run's folder or to {folder}, where {_files(values['files'])} not as "
        "published: find out who, delete that folder, and apply again"
    )


def _files(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_FILES
    shown = ", ".join(names[:_NAMED_FILES]) + (f" and {more} more" if more > 0 else "")
    return f"{shown} {'is' if len(names) == 1 else 'are'}"


def _published_by_other(values: _Values, again: str) -> str:
    if values["same_source"]:
        other = f"the environment {quote(values['other'])} publishes"
        return f"{other} to {values['to']}: give each environment its own `defaults: {{publish: gs://…}}`"
    other = f"the repository with `source: {values['other']}` publishes"
    return f"{other} to {values['to']}: write another `to`, or delete its current.json if that is over"


def _published_by_newer(values: _Values, again: str) -> str:
    commit, remedy = values["commit"][:_SHOWN_OF_SHA], values["remedy"]
    match values["relation"]:
        case Relation.OLDER:
            return f"the newer commit {commit} published the model in place: pull"
        case Relation.DIVERGED:
            return f"this checkout has diverged from {commit}, which published the model in place: merge"
        case _:
            gone = "if that commit is gone for good, delete current.json"
            return f"this checkout's history doesn't have {commit}, which published last: {remedy}; {gone}"


def _worse_than_published(values: _Values, again: str) -> str:
    return misses_text(values["judgement"].misses)


def _refused(values: _Values, again: str) -> str:
    later = f"; not before {_shown(values['not_before'])}" if values["not_before"] else ""
    return f"refused: {values['error'] or 'no reason given'}{later}"


def _held(values: _Values, again: str) -> str:
    name = values["job_name"]
    return f"{values['error'] or 'held'}; run `reconciler resolve {name} --resubmit` or `--give-up`"


def _run_without_request(values: _Values, again: str) -> str:
    end = "delete" if values["state"].ended else "cancel"
    what = f"{values['resource']} has this job's labels, but no recorded request created it"
    return f"{what}; {end} it, or {again}"


def _other_instance(values: _Values, again: str) -> str:
    under = "no instance" if values["instance"] is None else f'the instance "{values["instance"]}"'
    return (
        f"{values['resource']} ({_shown(values['state'])}) has this content and was submitted under {under}; "
        "it may be this environment's own, from before its instance changed: wait until it has ended, or "
        "cancel it, and apply again"
    )


def _project_shared(values: _Values, again: str) -> str:
    return (
        f"the environment {quote(values['environment'])} also uses the project {quote(values['project'])}, "
        "and AI Platform can't tell their jobs apart: give the newer environment a project of its own"
    )


def _withheld(values: _Values, again: str) -> str:
    relation = {"older": "is older than", "diverged": "has diverged from", "unknown": "may be older than"}
    commit = values["commit"][:_SHOWN_OF_SHA]
    return f"withheld: this checkout {relation[values['relation']]} {commit}, which was applied"


def _still_unknown(values: _Values, again: str) -> str:
    why = f" ({values['cause']})" if values["cause"] else ""
    after = f" after {_shown(values['until'])}" if values["until"] else ""
    return f"it is not known whether a job was created{why}: the next apply{after} finds out"


def _not_accepted(values: _Values, again: str) -> str:
    when = values["not_before"]
    return f"{values['error']}{f'; not submitted again before {_shown(when)}' if when else ''}"


def _error(values: _Values, again: str) -> str:
    message, hint = values["message"], values.get("hint")
    return f"{message.removesuffix('.')} ({hint})" if hint else str(message)


_MADE: Mapping[ReasonCode, Callable[[_Values, str], str]] = {
    ReasonCode.CHANGED: _changed,
    ReasonCode.REMOVED: _removed,
    ReasonCode.SUSPENDED: _suspended,
    ReasonCode.SUCCEEDED: _succeeded,
    ReasonCode.FAILED: _failed,
    ReasonCode.CANCELLED: _cancelled,
    ReasonCode.RECORD_UNREADABLE: _unreadable,
    ReasonCode.ATTEMPTS_USED_UP: _attempts_used_up,
    ReasonCode.SET_UP_FAILED: _set_up_failed,
    ReasonCode.SET_UP_TRIES_USED_UP: _set_up_tries,
    ReasonCode.RETURNED_TOO_OFTEN: _returned_too_often,
    ReasonCode.OUTCOME_UNKNOWN: _outcome_unknown,
    ReasonCode.REFUSED: _refused,
    ReasonCode.OVERWRITTEN: _overwritten,
    ReasonCode.EXPECTATION_MISSED: _expectation_missed,
    ReasonCode.METRICS_UNREAD: _metrics_unread,
    ReasonCode.NOT_PUBLISHED: _not_published,
    ReasonCode.PUBLISH: _publish,
    ReasonCode.PUBLICATION_INCOMPLETE: _publication_incomplete,
    ReasonCode.PUBLICATION_CHANGED: _publication_changed,
    ReasonCode.PUBLISHED_BY_OTHER: _published_by_other,
    ReasonCode.PUBLISHED_BY_NEWER: _published_by_newer,
    ReasonCode.WORSE_THAN_PUBLISHED: _worse_than_published,
    ReasonCode.HELD: _held,
    ReasonCode.RUN_WITHOUT_REQUEST: _run_without_request,
    ReasonCode.OTHER_INSTANCE: _other_instance,
    ReasonCode.PROJECT_SHARED: _project_shared,
    ReasonCode.WITHHELD: _withheld,
    ReasonCode.STILL_UNKNOWN: _still_unknown,
    ReasonCode.NOT_ACCEPTED: _not_accepted,
    ReasonCode.ERROR: _error,
}
"""Functions by code, for sentences whose parts depend on the values."""


def _shown(value: Any) -> Any:
    """Return a time of the day for a time, and a state in lower case; other values as they are."""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%H:%M:%S} UTC"
    return value.lower() if isinstance(value, State) else value
