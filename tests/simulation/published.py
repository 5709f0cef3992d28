"""Checker of publications: it reads the objects themselves, and ignores what reconcilers report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reconciler.model.job import State
from reconciler.model.naming import label_of
from reconciler.model.plan import Action, Change, DesiredJob, Plan
from reconciler.model.publication import CURRENT, MANIFEST, CurrentModel, current_of, model_folder
from reconciler.model.reason import ReasonCode
from reconciler.planning.state import TargetState

from .model import Job, Place
from .models import Models, Object, Write, folders_of_models
from .scenario import PUBLISHED, Commit, Repository
from .world import World

DAMAGED = (ReasonCode.PUBLICATION_INCOMPLETE, ReasonCode.PUBLICATION_CHANGED)
"""Reasons that only a full look finds."""
_ALWAYS_GIVEN = {
    ReasonCode.FOLDER_UNKNOWN: "the run's record is gone",
    ReasonCode.FOLDER_SHARED: "the run was made by hand",
    ReasonCode.PUBLICATION_CHANGED: "another run wrote to the folder",
    ReasonCode.NOT_COMMITTED: "the work tree is edited",
}


@dataclass(slots=True)
class _Pass:
    """Pass of a reconciler: what it has checked out, where whose model belongs by that, and when it began."""

    commit: Commit
    began: float
    is_edited: bool
    addresses: dict[str, str]


class Published:
    """Collector of violations about the publications of an environment.

    The invariants, at every moment:

    - P1: `current.json` names a folder below its address whose record and all files are there, and no other
      object; each file is what the run's folder had at the recorded generation, of a tuning job that of its
      best trial. A file that a person deleted is an exception until it is copied again.
    - P3: No apply of an older commit moves a model back. Permitted over the model of a commit is the model of
      the same commit and of its descendants, by whichever apply; and any model over one, and of one, whose
      publisher's files weren't those of a commit (which only the embedded service permits). Nor does the
      commit in `current.json` go back while the model stays. Once an apply of a commit has ended and found
      its own model in place, no apply of its ancestors puts another model there, whatever `current.json`
      says of the commit.
    - P4: An object in a model's folder never changes.
    - P6: A model of another environment, or of another manifest that the publisher's commit has too, is never
      replaced.
    - P5: A green status that an apply of the newest commit posts at it is of a model that was in its place
      at some moment since that apply began.

    And at the end, without faults:

    - P2: The model of the newest commit is in its place, or the plan shows a reason, which has a cause.
      Without the model in place, the commit's status isn't green.
    """

    def __init__(
        self,
        world: World,
        models: Models,
        repository: Repository,
        place: Place,
        seen: Counter[str],
        wrong: Callable[[str, str], None],
    ) -> None:
        self._world = world
        self._models = models
        self._repository = repository
        self._place = place
        self._seen = seen
        self._wrong = wrong
        self._passes: dict[str, _Pass] = {}
        self._settled: dict[str, str] = {}
        self._last: dict[str, tuple[str, float]] = {}
        self._until: dict[tuple[str, str], float] = defaultdict(lambda: -1.0)
        models.watch = self._written

    def began(self, commit: Commit, who: str) -> None:
        """Note that a pass begins."""
        head = next(one for one in self._repository.history if one.sha == commit.sha)
        is_edited = not {job.job_name for job in commit.jobs} <= {job.job_name for job in head.jobs}
        # A pass over a part has the other manifests too: it only doesn't look at them.
        jobs = {job.manifest.name: job for job in (*head.jobs, *commit.jobs)}
        addresses = {name: job.publish.to for name, job in jobs.items() if job.publish}
        self._passes[who] = _Pass(commit, self._world.now, is_edited, addresses)

    def _written(self, write: Write) -> None:
        """Check a write of a reconciler as it has its effect, and everything that it may have broken."""
        to, _, name = write.uri.removeprefix(PUBLISHED).partition("/")
        to = PUBLISHED + to
        if name == CURRENT:
            self._moved(to, write)
        elif write.before is not None:
            self._wrong("P4", f"{write.who} wrote over {write.uri}")
        self.look(to)

    def _moved(self, to: str, write: Write) -> None:
        before = current_of(write.before.content, to) if write.before else None
        after = current_of(write.after.content, to)
        self._seen["models published"] += 1
        self._seen["models replaced"] += before is not None and before.job_name != after.job_name
        self._seen["models recorded again"] += before is not None and before.job_name == after.job_name
        if before is not None and before.environment == self._place.environment:
            self._until[to, before.hash] = self._world.now
        said = f"{write.who} put {after.job_name} of {after.commit[:7] or 'no commit'} in place"
        if before and self._is_before(after.commit, before.commit):
            self._wrong("P3", f"{said} over {before.job_name} of the newer {before.commit[:7]}")
        if before and before.environment != after.environment:
            self._wrong("P6", f"{said} over {before.job_name}, of the environment {before.environment}")
        one_pass = self._passes.get(write.who)
        is_of_another = before is not None and before.base_name != after.base_name
        if before and is_of_another:
            self._seen["models taken over"] += 1
            if one_pass and one_pass.addresses.get(before.base_name) == to:
                self._wrong("P6", f"{said} over {before.job_name}, whose manifest publishes there too")
        if not after.commit:
            self._settled.pop(to, None)
        settled = self._settled.get(to, "")
        if before and before.job_name != after.job_name and self._is_before(after.commit, settled):
            self._wrong("P3", f"{said} over {before.job_name}, which the newer {settled[:7]} had found there")

    def _is_before(self, commit: str, other: str) -> bool:
        return any(one.sha == other and commit in one.before for one in self._repository.history)

    def ended(self, state: TargetState, who: str) -> None:
        """Note that an apply of a commit, or of a part of its jobs, ends with this state."""
        one_pass = self._passes[who]
        if one_pass.is_edited:
            return
        for name in state.names.values():
            job = name.desired
            if job is None or job.publish is None or not name.publication or not name.publication.mark:
                continue
            to, sha = job.publish.to, one_pass.commit.sha
            current = self._models.current(to)
            is_newest = not self._is_before(sha, self._settled.get(to, ""))
            if self._is_of(current, job.identity) and is_newest:
                self._settled[to] = sha

    def look(self, to: str) -> None:
        """Check that the model in place at an address is whole."""
        current = self._models.current(to)
        if current is None or current.environment != self._place.environment:
            return  # another environment's are checked by its own collector
        if current.folder != model_folder(to, current.job_name):
            self._wrong("P1", f"{to} names {current.folder}")
        record = self._models.record(to, current.job_name)
        objects = self._models.below(current.folder)
        there = {name: found for name, found in objects.items() if name != MANIFEST}
        lost = {uri.removeprefix(f"{current.folder}/") for uri in self._models.damaged}
        if record is None:
            if MANIFEST not in lost:
                self._wrong("P1", f"{current.folder} has no record")
            return
        runs = [job for job in self._world.jobs if job.name == record.resource]
        if record.origin not in [folders_of_models(run)[0] for run in runs]:
            self._wrong("P1", f"{current.folder} was copied from {record.origin}, and not from its model")
        names = {file.name for file in record.files}
        if names - there.keys() - lost or there.keys() - names or not names:
            self._wrong("P1", f"{current.folder} has {sorted(there)}, and its record names {sorted(names)}")
        for file in record.files:
            found = there.get(file.name)
            if found is None:
                continue
            whole = self._models.written.get((f"{record.origin}/{file.name}", int(file.generation)))
            if found.content != whole and not self._is_alike(found, f"{record.origin}/{file.name}"):
                self._wrong("P1", f"{current.folder}/{file.name} isn't what the run wrote")
            if found.facts != (file.size, file.crc32c):
                self._wrong("P1", f"{current.folder}/{file.name} isn't what the record says")

    def _is_alike(self, found: Object, uri: str) -> bool:
        """Return True if a run's file ever had a content: a copy of it may come from another generation."""
        return found.content in [content for (one, _), content in self._models.written.items() if one == uri]

    def posted(self, sha: str, status: dict[str, Any], who: str) -> None:
        """Check a green status of a job at the newest commit, by an apply of that commit."""
        one_pass = self._passes.get(who)
        context = self._place.contexts
        if status["state"] != "success" or one_pass is None or one_pass.is_edited:
            return
        if sha not in (one_pass.commit.sha,) or sha != self._repository.head.sha:
            return
        name = status["context"]
        for job in one_pass.commit.jobs:
            digits = job.job_name.rpartition("_")[2]
            is_its = name == context.of_job(job.manifest.name) and f" · run {digits}" in status["description"]
            if is_its and job.publish and not job.manifest.reconcile.suspend:
                self._seen["green statuses of models"] += 1
                if not self._was_in_place(job.publish.to, job.identity, one_pass.began):
                    self._wrong("P5", f"{who} posted {status['description']!r}, and its model isn't in place")

    def _was_in_place(self, to: str, identity: str, since: float) -> bool:
        return self._is_of(self._models.current(to), identity) or self._until[to, identity] >= since

    def _is_of(self, current: CurrentModel | None, identity: str) -> bool:
        """Return True if a model in place is this environment's, of a content."""
        own = self._place.environment
        return current is not None and (current.hash, current.environment) == (identity, own)

    def at_the_end(self, plan: Plan, shown: Callable[[str, str], dict[str, Any] | None]) -> None:
        """Check the final state; `shown` returns the status of a commit and context."""
        for to in sorted({uri.rpartition("/")[0] for uri in self._models.objects if uri.endswith(CURRENT)}):
            self.look(to)
        head = self._repository.head
        for job in head.jobs:
            if job.publish is None or job.manifest.reconcile.suspend:
                continue
            change = next((c for c in plan.changes if c.desired is job), None)
            run = change.actual if change else None
            is_done = run is not None and run.state is State.SUCCEEDED
            if change is None or not is_done or change.action is Action.BLOCKED:
                continue  # of a blocked job, the run is a stranger's
            current = self._models.current(job.publish.to)
            if current and self._is_of(current, job.identity):
                self._seen["models in place at the end"] += 1
                if any(uri.startswith(current.folder) for uri in self._models.damaged):
                    self._is_explained(job, plan, current)
                continue
            self._is_explained(job, plan, current)
            status = shown(head.sha, self._place.contexts.of_job(job.manifest.name))
            if status is not None and status["state"] == "success":
                self._wrong("P2", f"{job.job_name} isn't in place, and {head.sha[:7]} shows {status}")

    def _is_explained(self, job: DesiredJob, plan: Plan, current: CurrentModel | None) -> None:
        """Check that a model that isn't in place, or not whole, has a reason with a cause."""
        shown = [c for c in plan.changes if c.publication and c.base_name == job.manifest.name]
        there = f"{current.job_name} of {current.commit[:7]}" if current else "nothing"
        if not shown:
            self._wrong("P2", f"{job.job_name} isn't in place, but {there}, and the plan doesn't say why")
        for change in shown:
            self._seen["models not published"] += 1
            if not self._has_cause(change, current):
                said = f"{change.action} {change.reason.code}"
                self._wrong("P2", f"{job.job_name} isn't in place, but {there}, for no cause: {said}")

    def _has_cause(self, change: Change, current: CurrentModel | None) -> bool:
        counts, code = self._world.faults.counts, change.reason.code
        if code is ReasonCode.PUBLISHED_BY_OTHER:
            self._seen["models of another environment"] += 1
            return current is not None and current.environment != self._place.environment
        if code is ReasonCode.PUBLISHED_BY_OTHER_JOB:
            self._seen["models of another manifest"] += 1
            publish = change.publication.publish if change.publication else None
            others = {job.manifest.name for job in self._repository.head.jobs if job.publish == publish}
            return current is not None and current.base_name in others - {change.base_name}
        if change.action is Action.PUBLISH:
            # Only the executor finds that files of the run are gone, or aren't those that were copied.
            return bool(counts["run's folder emptied"] + counts["late writer"] + self._other_writers(change))
        if code is ReasonCode.FOLDER_UNKNOWN:
            return any(job.gone for job in self._runs(change))
        return code in _ALWAYS_GIVEN

    def _other_writers(self, change: Change) -> int:
        """Return the number of runs that write to a run's folder beside it, such as copies of its request."""
        folders = {folder for job in self._runs(change) for folder in folders_of_models(job)}
        writers = [job for job in self._world.jobs if not folders.isdisjoint(folders_of_models(job))]
        return len(writers) - 1

    def _runs(self, change: Change) -> list[Job]:
        return [job for job in self._world.jobs if job.job_name == change.job_name]

    def is_unpublished(self, job: DesiredJob, plan: Plan) -> bool:
        """Return True if the plan has the publication of a desired job, due or not."""
        return any(c.publication and c.base_name == job.manifest.name for c in plan.changes)

    def keys_of_unpublished(self, plan: Plan) -> set[str]:
        """Return the keys of desired contents whose publication a plan has."""
        head = self._repository.head
        return {label_of(job.identity) for job in head.jobs if self.is_unpublished(job, plan)}
