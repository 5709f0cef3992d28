"""Values of an environment's pages, read without a change to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from reconciler.base.concurrency import run_concurrently, run_in_order
from reconciler.base.errors import (
    NotFoundError,
    ReconcilerError,
    ServiceError,
)
from reconciler.base.git_command import SHA, Git, GitError
from reconciler.google.job_log import hiding
from reconciler.manifests.secrets import without_secrets
from reconciler.manifests.settings import Config
from reconciler.model.cause import Cause
from reconciler.model.claim import ClaimState
from reconciler.model.details import JobDetails
from reconciler.model.job import ActualJob, State
from reconciler.model.ports import Ports
from reconciler.operations.load_desired import Desired
from reconciler.operations.named_job import NamedJob, read_run
from reconciler.operations.observed_state import state_of
from reconciler.operations.plan import plan_of, target_of
from reconciler.operations.results import Results, result_text
from reconciler.operations.session import Session
from reconciler.operations.show import run_details
from reconciler.output.wording.published_place import with_place
from reconciler.pages.site import CommitInfo, Site, row_key
from reconciler.pages.template import PageContent
from reconciler.planning.outcome import JobStatus
from reconciler.planning.state import NameState, TargetState, target_state
from reconciler.planning.status_rows import by_attention, is_shown, job_statuses, newest_first
from reconciler.reporting.github.settings import REPOSITORY, repository_url, run_url
from reconciler.submission.observe import Observed, doubtful_runs, observe, split_by_instance, with_reasons

LIMIT = 1000
"""Runs with a page of their own, the newest."""
LOG_ENTRIES = 500
_MOST_READS = 100
"""Runs that are read one by one before everything is listed instead: as many as a page of a listing has."""

Key = tuple[str, str]


class Snapshot(Struct, frozen=True):
    """Site without the details of its jobs.

    Attributes:
        jobs: The jobs of its rows, by `row_key`.
        observed: All claims and runs; None if they can't be read.
    """

    site: Site
    jobs: Mapping[Key, NamedJob]
    observed: Observed | None


def snapshot(
    session: Session,
    desired: Desired | None,
    content: PageContent,
    environ: Mapping[str, str],
    before: Observed | None = None,
) -> Snapshot:
    """Return an environment's state; parts that can't be read are named in its notes.

    Args:
        desired: All jobs of the repository; None if manifests are invalid.
        before: An earlier observation, to read only what changed since; None to read everything.
    """
    jobs = desired.jobs if desired else ()
    notes = [] if desired else ["Manifests are invalid (see `reconciler validate`): only runs are known."]
    state: TargetState | None = None
    plan = observed = None
    try:
        observed = observe(session.ports) if before is None else observe_again(session.ports, before)
        state = target_state(jobs, observed.runs, observed.claims)
        if desired:
            state = state_of(session, desired, observed)
            # A later page needn't read again what doesn't change.
            in_place = state.in_place
            observed = replace(observed, folders=state.folders, metrics=state.metrics, in_place=in_place)
            plan = plan_of(session, desired, state)
    except ServiceError as error:
        # Unusable claims must not hide the states of the runs.
        notes.append(f"There is no plan: {error.message}")
        state = state or target_state(jobs, session.runs(), {})
    rows = job_statuses(state)
    repository = _repository(session.config, environ)
    site = Site(
        # The folder of a checkout in Actions has a name that says nothing.
        title="/".join(repository.split("/")[-2:]) or session.config.root.name,
        target=target_of(session.config, session.environment),
        made=datetime.now(UTC),
        rows=[replace(row, error=without_secrets(row.error)) for row in rows],
        whole=bool(jobs),
        plan=plan,
        repository=repository,
        run=run_url(environ),
        notes=notes,
        commits=_commits(session.config.root, environ, {row.commit for row in rows}),
        content=content,
    )
    return Snapshot(site, _jobs(state), observed)


def observe_again(ports: Ports, before: Observed) -> Observed:
    """Return all claims and runs, of which those that had ended before aren't listed again.

    For pages alone, as nothing may be decided by it: it misses that an ended run was deleted or relabelled,
    that its metrics changed, and a run that began and ended since, while no claim names it.
    """
    claims = ports.claims.listed()
    live = ports.jobs.live()
    runs = {run.resource: run for run in before.runs if run.state.ended} | {run.resource: run for run in live}
    # No listing of live runs shows one that ended since, nor an adopted one.
    named = {run.resource: (run.api_version, run.kind) for run in before.runs}
    changed = (versioned.claim for id, versioned in claims.items() if versioned != before.versions.get(id))
    named |= {
        claim.resource: (claim.api_version, claim.kind)
        for claim in changed
        if claim.state is ClaimState.BOUND and not claim.gone
    }
    reads = [partial(_run, ports, *where, name) for name, where in named.items() if name not in runs]
    # Claims are kept for ever: where one is missing, the bucket was emptied or replaced.
    if len(reads) > _MOST_READS or not before.versions.keys() <= claims.keys():
        return observe(ports)
    runs |= {run.resource: run for run in ports.together(reads) if run is not None}
    own_runs, others = split_by_instance(ports, claims, tuple(runs.values()))
    ports.claims.check(len(own_runs))
    own_runs = with_reasons(claims, own_runs)
    doubtful = doubtful_runs(ports, claims, own_runs, others)
    kept = before.folders, before.metrics, before.in_place
    return Observed(claims, own_runs, doubtful, *kept, is_full=False)


def _run(ports: Ports, api_version: str, kind: str, resource: str) -> ActualJob | None:
    try:
        return ports.jobs.read(api_version, kind, resource)
    except NotFoundError:
        return None


def _repository(config: Config, environ: Mapping[str, str]) -> str:
    """Return the repository's page on GitHub; "" if it isn't known."""
    written = config.github or {}
    name = str(written.get("repository", ""))
    is_public = "apiUrl" not in written and REPOSITORY.fullmatch(name)
    return repository_url(environ) or (f"https://github.com/{name}" if is_public else "")


def with_details(session: Session, taken: Snapshot, environ: Mapping[str, str], limit: int) -> Site:
    """Return the site with the details of its newest runs, and of the jobs without a run."""
    site = taken.site
    ordered = newest_first(site.rows)
    chosen = [row for row in ordered if row.state is not None][:limit]
    waiting = (row for row in ordered if row.state is None and is_shown(row, whole=site.whole))
    chosen += by_attention(waiting)[:limit]
    read = [partial(_details, session, taken, row_key(row), environ) for row in chosen]
    run_all = run_concurrently if session.connection.endpoint.distant else run_in_order
    details: dict[Key, JobDetails] = {}
    failures: list[str] = []
    for key, one in run_all(read):
        if isinstance(one, JobDetails):
            details[key] = one
        elif one:
            failures.append(one)
    notes = [f"{len(failures)} jobs could not be read, the first because: {failures[0]}"] if failures else []
    rows = [completed(row, details.get(row_key(row))) for row in site.rows]
    return replace(site, rows=rows, details=details, notes=[*site.notes, *notes])


def completed(row: JobStatus, details: JobDetails | None) -> JobStatus:
    """Return the row of a run with the cause, the error and the result that its details have, if any."""
    if details is None or row.state is None:
        return row
    results = Results(details.output, details.metrics)
    has_result = row.state is State.SUCCEEDED and not details.is_gone
    result = with_place(result_text(details.study, results), details.place) if has_result else ""
    return replace(row, cause=details.cause, error=details.error, reason=None, result=result)


def _details(
    session: Session, taken: Snapshot, key: Key, environ: Mapping[str, str]
) -> tuple[Key, JobDetails | str]:
    """Return the details of a job, or the reason why they can't be read; "" for a deleted run."""
    try:
        return key, details_of(session, taken, key, environ, entries=_entries(taken)) or ""
    except ReconcilerError as error:
        return key, error.message


def _entries(taken: Snapshot) -> int:
    return LOG_ENTRIES if taken.site.content.logs else 0


def details_of(
    session: Session, taken: Snapshot, key: Key, environ: Mapping[str, str], *, entries: int = LOG_ENTRIES
) -> JobDetails | None:
    """Return the details of a job with at most `entries` of its log; None if it was deleted since.

    Raises:
        ServiceError: The job can't be read.
    """
    job = taken.jobs.get(key)
    if job is None:
        return None
    if job.run is not None and job.attempt is not None:
        job = replace(job, run=read_run(session, job.attempt, job.run))
        if job.run is None:
            return None
    details = run_details(session, job, environ, entries=entries)
    safe = hiding(job.run.spec if job.run else job.desired.spec if job.desired else {})
    cause = details.cause
    return replace(
        details,
        error=safe(details.error),
        cause=_safe_cause(cause, safe) if cause else None,
        log=tuple(replace(entry, text=safe(entry.text)) for entry in details.log),
        unread={part: safe(reason) for part, reason in details.unread.items()},
    )


def _safe_cause(cause: Cause, safe: Callable[[str], str]) -> Cause:
    texts = {name: safe(value) for name, value in cause.values.items() if isinstance(value, str)}
    return replace(cause, values={**cause.values, **texts})


def _jobs(state: TargetState) -> dict[Key, NamedJob]:
    """Return all jobs by the keys of their rows."""
    return {key: job for name in state.names.values() for key, job in _of_name(name)}


def _of_name(name: NameState) -> Iterator[tuple[Key, NamedJob]]:
    if name.desired:
        yield (name.desired.job_name, ""), NamedJob(name)
    for attempt in name.attempts:
        path = attempt.claim.path if attempt.claim else ""
        for run in filter(None, (attempt.run, *attempt.others, *attempt.strangers)):
            yield (run.job_name, run.resource), NamedJob(name, attempt, run, path=path)
        if attempt.run is None and attempt.claim:
            key = attempt.claim.job_name, attempt.claim.resource
            yield key, NamedJob(name, attempt, path=path)


def _commits(root: Path, environ: Mapping[str, str], shas: Iterable[str]) -> dict[str, CommitInfo]:
    """Return the commits of some hashes, with those parts that git has; read by one process."""
    wanted = sorted(sha for sha in shas if SHA.fullmatch(sha))
    commits = {sha: CommitInfo(sha) for sha in wanted}
    listed = b""
    with suppress(GitError):
        listed = Git(root, environ).run("cat-file", "--batch", stdin="\n".join([*wanted, ""]).encode())
    while listed:
        head, _, rest = listed.partition(b"\n")
        sha, _, kind_size = head.decode("ascii", "replace").partition(" ")
        kind, _, size = kind_size.partition(" ")
        if not size.isdecimal():
            # "<sha> missing": a shallow clone, or a commit of another repository.
            listed = rest
            continue
        body, listed = rest[: int(size)], rest[int(size) + 1 :]
        if kind == "commit":
            commits[sha] = _commit(sha, body.decode("utf-8", "replace"))
    return commits


def _commit(sha: str, text: str) -> CommitInfo:
    """Return the commit in git's own format."""
    head, _, message = text.partition("\n\n")
    fields = dict(line.partition(" ")[::2] for line in reversed(head.split("\n")))
    author, _, _ = fields.get("author", "").partition(" <")
    seconds = fields.get("committer", "").rpartition("> ")[2].partition(" ")[0]
    time = ""
    with suppress(ValueError, OverflowError, OSError):
        time = datetime.fromtimestamp(int(seconds), UTC).isoformat()
    return CommitInfo(sha, author, time, message.strip().partition("\n")[0])
