"""Simulated repository: manifests that are added, changed, removed, and restored."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any
from zlib import crc32

from msgspec.structs import replace

from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.engines.spec.output_folder import with_own_folder
from reconciler.manifests import schemas
from reconciler.model.canonical import canonical_spec
from reconciler.model.commit_record import CommitRecord
from reconciler.model.manifest import (
    AIPLATFORM_V1,
    ML_V1,
    TRAINING_PIPELINE,
    JsonObject,
    Manifest,
    Publish,
    Reconcile,
)
from reconciler.model.naming import identity, job_name
from reconciler.model.plan import DesiredJob
from reconciler.planning.attempts import keys_of
from reconciler.planning.lineage import (
    CommitTree,
    Lineage,
    WantedContent,
    applied_before,
    known_lineage,
    lineage_of,
    with_verdicts,
)

NAMES = ("census", "churn-model", "iris", "fraud", "ranker", "sales", "tags", "topics", "vision", "wine")
_TUNED = ("iris", "vision", "tags")
_LEGACY = ("fraud", "wine")
_PIPELINES = ("ranker", "tags")
_TASKS = "gs://google-cloud-aiplatform/schema/trainingjob/definition"
_WITHOUT_FOLDER = ("sales", "topics")
PUBLISHED = "gs://risk-models/"
"""Beginning of the addresses."""
SOURCE = "model"
"""Folder of a run that is published."""
_PUBLISHED = 0.8
"""Fraction of the manifests with `publish`, in repositories that publish."""
_RENAMED = 0.8
"""Fraction of the renamed jobs whose manifest goes: the others' address is that of two."""
_REVERTED = 0.3
"""Fraction of the edits of a work tree that return to older content."""


class Outputs(StrEnum):
    """Where the results of a repository's jobs go.

    Attributes:
        NONE: Nowhere: no manifest names a folder.
        SHARED: All contents of a manifest write to the same folder.
        MOVED: A manifest's contents write to two folders.
        OWN: Each content writes to a folder of its own.
    """

    NONE = "none"
    SHARED = "shared"
    MOVED = "moved"
    OWN = "own"


def _tree(commit: Commit) -> CommitTree:
    contents = (
        WantedContent(job.manifest.name, keys_of(job), job.manifest.reconcile.attempts, publish=job.publish)
        for job in commit.jobs
        if not job.manifest.reconcile.suspend
    )
    return CommitTree(commit.sha, {"": tuple(contents)})


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit of the repository, as checked out by a pass.

    As a history, it contains this commit and its ancestors, as a clone without newer commits does.

    Attributes:
        sha: Its hash.
        jobs: Its manifests.
        before: Its ancestors, the newest first.
    """

    sha: str
    jobs: tuple[DesiredJob, ...]
    before: tuple[str, ...] = ()
    obstacle: str = ""
    remedy: str = ""
    is_shallow: bool = False
    is_published: bool = True
    is_branch_head: bool = True

    @property
    def head(self) -> str:
        """The commit's hash."""
        return self.sha

    def has(self, commit: str) -> bool:
        """Return True if the clone has a commit."""
        return commit in (self.sha, *self.before)

    def is_ancestor(self, commit: str, of: str) -> bool:
        """Return True if the clone has a commit that is an ancestor of another commit."""
        names = (self.sha, *self.before)
        return commit in names and of in names and names.index(commit) > names.index(of)

    def was_left(self, commit: str) -> bool:
        """Return True if a commit is no longer on a branch: never, as no history is rewritten."""
        return False

    def shares(self, commits: tuple[str, ...]) -> bool:
        """Return True if the clone has any of the commits."""
        return any(self.has(commit) for commit in commits)

    def ancestors(self, most: int) -> tuple[str, ...]:
        """The newest ancestors."""
        return self.before[:most]


class Repository:
    """The repository's branch.

    Args:
        manifests: The maximum number of manifests at the beginning.
        legacy: True if some manifests are for AI Platform, whose job names are unique in a project.
        outputs: Where the jobs' results go.
        publishers: The chance by which manifests publish; None if none does.
        renamers: The chance by which a job gets another name and keeps its address; None if none does.

    Attributes:
        head: Its newest commit.
        asked: The jobs that any commit or work tree ever asked for.
        outputs: Where the jobs' results go.
        history: All of its commits, the oldest first.
    """

    def __init__(
        self,
        rng: random.Random,
        manifests: int,
        *,
        legacy: bool,
        outputs: Outputs = Outputs.NONE,
        publishers: random.Random | None = None,
        renamers: random.Random | None = None,
    ) -> None:
        self._rng = rng
        self._publishers = publishers
        self._renamers = renamers
        self._addresses = {name: f"{PUBLISHED}{name}" for name in NAMES}
        self._unpublished: set[str] = set()
        for name in NAMES if publishers else ():
            self._publish(name)
        self.outputs = outputs
        self._names = [name for name in NAMES if legacy or name not in _LEGACY]
        self._number = 0
        self.history: list[Commit] = []
        self._trees: list[CommitTree] = []
        self._jobs: dict[str, DesiredJob] = {}
        self._older: dict[str, list[DesiredJob]] = {}
        self._drafts: list[DesiredJob] = []
        for name in rng.sample(self._names, min(manifests, len(self._names))):
            self._put(name, "0", self._reconcile())
        self.head = self._commit()

    def change(self) -> str:
        """Commit a change; return its description."""
        edits: tuple[Callable[[], str], ...] = (
            self._add,
            self._edit,
            self._edit,
            self._rerun,
            self._remove,
            self._suspend,
            self._more_attempts,
            self._revert,
        )
        if self._publishers:
            # What a slow apply of a commit between does shows only where contents come back.
            edits = (*[self._swap] * 20, self._edit, self._edit, self._toggle, *edits)
        if self._renamers:
            edits = (*[self._rename] * 30, *edits)
        said = self._rng.choice(edits)()
        self.head = self._commit()
        return said

    def desired(self, name: str, content: str, reconcile: Reconcile) -> DesiredJob:
        """Return a desired job with its output folder, as the product gives it one after its name."""
        job = desired(name, content, reconcile, folder_of_manifest(self.outputs, name, content))
        if self._publishers and name not in self._unpublished and name not in _WITHOUT_FOLDER:
            job = replace(job, publish=Publish(to=self._addresses[name], source=SOURCE))
        if self.outputs is not Outputs.OWN:
            return job
        manifest = job.manifest
        return replace(
            job, packed=with_own_folder(manifest.api_version, manifest.kind, job.packed, job.job_name)
        )

    def imported(self, rng: random.Random) -> DesiredJob:
        """Commit new content of a job, as for an existing job; usually the job is suspended first."""
        name = rng.choice(self._names)
        wishes = Reconcile(
            attempts=rng.choice((1, 2)),
            on_change=rng.choice(("keep", "cancel")),
            on_delete=rng.choice(("keep", "cancel")),
            suspend=rng.random() < 0.7,
        )
        self._put(name, f"by hand {self._number}", wishes)
        self.head = self._commit()
        return self._jobs[name]

    def lineage(self, head: Commit, records: Mapping[str, CommitRecord]) -> Lineage:
        """Return the origins of a commit's jobs, from the history of a clone that has the commit."""
        if found := known_lineage(records, head.sha, head.jobs):
            return found
        names = [commit.sha for commit in self.history]
        here = names.index(head.sha)
        before = [names.index(sha) for sha in applied_before(records, head.sha)]
        if not before:
            return Lineage()
        base = min(min(number, here) for number in before)
        if base == here:
            return Lineage()
        for commit in self.history[len(self._trees) :]:
            self._trees.append(_tree(commit))
        done = with_verdicts(records)
        trees = [replace(tree, has_verdict=tree.sha in done) for tree in self._trees[base:here]]
        if done.isdisjoint(applied_before(records, head.sha)):
            trees = [CommitTree("", {}), *trees]
        return lineage_of([*trees, self._trees[here]])

    def _commit(self) -> Commit:
        self._number += 1
        sha = hashlib.sha1(str(self._number).encode()).hexdigest()
        before = tuple(commit.sha for commit in reversed(self.history))
        commit = Commit(sha, tuple(self._jobs[name] for name in sorted(self._jobs)), before)
        self.history.append(commit)
        return commit

    def _put(self, name: str, content: str, reconcile: Reconcile) -> None:
        if name in self._jobs:
            self._older.setdefault(name, []).append(self._jobs[name])
        self._jobs[name] = self.desired(name, content, reconcile)

    def _reconcile(self) -> Reconcile:
        return Reconcile(
            attempts=self._rng.choice((1, 1, 2, 3)),
            on_change=self._rng.choice(("keep", "cancel", "cancel")),
            on_delete=self._rng.choice(("keep", "cancel")),
        )

    def _pick(self) -> str | None:
        return self._rng.choice(sorted(self._jobs)) if self._jobs else None

    def _add(self) -> str:
        absent = [name for name in self._names if name not in self._jobs]
        if not absent:
            return "nothing"
        name = self._rng.choice(absent)
        self._put(name, "0", self._reconcile())
        return f"{name} added"

    def _edit(self) -> str:
        name = self._pick()
        if name is None:
            return "nothing"
        self._put(name, str(self._number), self._jobs[name].manifest.reconcile)
        return f"{name} changed"

    def _rerun(self) -> str:
        return self._with(lambda r: replace(r, rerun=str(self._number)), "is to run again")

    def _suspend(self) -> str:
        return self._with(lambda r: replace(r, suspend=not r.suspend), "suspended or not")

    def _more_attempts(self) -> str:
        return self._with(lambda r: replace(r, attempts=min(4, r.attempts + 1)), "has more attempts")

    def edited(self, rng: random.Random) -> DesiredJob | None:
        """Return other content of a desired job, older or never committed; None without a job."""
        if not self._jobs:
            return None
        name = rng.choice(sorted(self._jobs))
        if (older := self._older.get(name)) and rng.random() < _REVERTED:
            return rng.choice(older)
        wishes = replace(self._jobs[name].manifest.reconcile, on_change="cancel")
        draft = self.desired(name, "a draft", wishes)
        if draft not in self._drafts:
            self._drafts.append(draft)
        return draft

    @property
    def asked(self) -> list[DesiredJob]:
        """All jobs that any commit or work tree ever asked for."""
        return [*(job for commit in self.history for job in commit.jobs), *self._drafts]

    def raise_attempts(self) -> None:
        """Commit another attempt for every job."""
        for name, job in sorted(self._jobs.items()):
            reconcile = job.manifest.reconcile
            self._put(name, content_of(job), replace(reconcile, attempts=reconcile.attempts + 1))
        self.head = self._commit()

    def rerun(self, name: str) -> None:
        """Commit a rerun of a job."""
        if name in self._jobs:
            job = self._jobs[name]
            again = replace(job.manifest.reconcile, rerun=str(self._number))
            self._put(name, content_of(job), again)
            self.head = self._commit()

    def rerun_of(self, job_name: str) -> None:
        """Commit a rerun of a run's job."""
        for name in [name for name in self._jobs if job_name.startswith(name.replace("-", "_"))]:
            self.rerun(name)

    def _with(self, change: Callable[[Reconcile], Reconcile], said: str) -> str:
        name = self._pick()
        if name is None:
            return "nothing"
        job = self._jobs[name]
        self._put(name, str(content_of(job)), change(job.manifest.reconcile))
        return f"{name} {said}"

    def _remove(self) -> str:
        name = self._pick()
        # Never the last manifest: an empty repository is treated as a mistake, and no job is cancelled.
        if name is None or len(self._jobs) == 1:
            return "nothing"
        self._older.setdefault(name, []).append(self._jobs.pop(name))
        return f"{name} removed"

    def _swap(self) -> str:
        """Revert a job to other content that it had, or change it."""
        name = self._pick()
        current = self._jobs[name].job_name if name else ""
        olds = [old for old in self._older.get(name or "", ()) if old.job_name != current]
        if name is None or not olds:
            return self._edit()
        old = self._rng.choice(olds[-2:])
        self._put(name, content_of(old), replace(old.manifest.reconcile, suspend=False))
        return f"{name} swapped"

    def bring_back(self, job_name: str) -> None:
        """Commit again the content of a run that a later commit replaced."""
        for name, olds in sorted(self._older.items()):
            old = next((old for old in olds if job_name.startswith(old.job_name)), None)
            if old and name in self._jobs:
                self._put(name, content_of(old), replace(old.manifest.reconcile, suspend=False))
                self.head = self._commit()
                return

    def _publish(self, name: str) -> None:
        """Decide whether a manifest publishes."""
        assert self._publishers is not None, "some repositories publish nothing"
        if self._publishers.random() < _PUBLISHED:
            self._unpublished.discard(name)
        else:
            self._unpublished.add(name)

    def _toggle(self) -> str:
        name = self._pick()
        if name is None:
            return "nothing"
        job = self._jobs[name]
        self._publish(name)
        self._put(name, content_of(job), job.manifest.reconcile)
        return f"{name} is published or not"

    def _rename(self) -> str:
        """Give a job another name, with its address; usually its manifest goes."""
        assert self._renamers is not None, "some repositories rename nothing"
        names = sorted(name for name, job in self._jobs.items() if job.publish)
        free = [name for name in self._names if name not in {*self._jobs, *_WITHOUT_FOLDER}]
        if not names or not free:
            return "nothing"
        old, new = self._renamers.choice(names), self._renamers.choice(free)
        job = self._jobs[old]
        self._addresses[new] = self._addresses[old]
        self._unpublished.discard(new)
        if self._renamers.random() < _RENAMED:
            self._older.setdefault(old, []).append(self._jobs.pop(old))
        self._put(new, content_of(job), job.manifest.reconcile)
        return f"{new} publishes where {old} did"

    def _revert(self) -> str:
        names = sorted(self._older)
        if not names:
            return "nothing"
        name = self._rng.choice(names)
        older = self._rng.choice(self._older[name])
        self._put(name, content_of(older), older.manifest.reconcile)
        return f"{name} reverted"


def folder_of_manifest(outputs: Outputs, name: str, content: str) -> str:
    """Return the output folder in the manifest of a content; "" for none."""
    if outputs is Outputs.NONE or name in _WITHOUT_FOLDER:
        return ""
    moved = outputs is Outputs.MOVED and crc32(content.encode()) % 2
    return f"gs://acme-models/{name}" + ("/moved" if moved else "")


@cache
def desired(name: str, content: str, reconcile: Reconcile, folder: str = "") -> DesiredJob:
    """Return a desired job, named as the product names it; `folder` is the one in its manifest."""
    api_version, kind, spec = _spec(name, content)
    if folder:
        spec = engine_spec(api_version).with_output_directory(kind, spec, folder)
    schema = schemas.manifest_schema(api_version, kind, spec=spec)
    assert schema is not None, "the kind has a schema"
    manifest = Manifest(api_version, kind, name, spec, reconcile=reconcile, path=f"jobs/{name}.yaml")
    canonical = canonical_spec(spec, schema)
    whole = identity(manifest, canonical, "")
    return DesiredJob(manifest, whole, job_name(manifest.base_name, whole), "", canonical)


def content_of(job: DesiredJob) -> str:
    """Return the content that was passed to `desired`."""
    spec: Any = job.manifest.spec
    if job.manifest.kind == "Job":
        return str(spec["trainingInput"]["args"][0])
    trained = spec.get("trainingTaskInputs", spec)
    custom = trained.get("trialJobSpec", trained)
    return str(custom["workerPoolSpecs"][0]["containerSpec"]["args"][0])


def _spec(name: str, content: str) -> tuple[str, str, JsonObject]:
    if name in _LEGACY:
        image = {"imageUri": "gcr.io/acme/train:1"}
        training = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4", "masterConfig": image}
        return ML_V1, "Job", {"trainingInput": {**training, "args": [content], "region": "us-central1"}}
    pool = {
        "machineSpec": {"machineType": "n1-standard-4"},
        "replicaCount": 1,
        "containerSpec": {"imageUri": "gcr.io/acme/train:1", "args": [content]},
    }
    kind, spec = _task_of(name, pool)
    if name not in _PIPELINES:
        return AIPLATFORM_V1, kind, spec
    task = f"{_TASKS}/{'hyperparameter_tuning' if name in _TUNED else 'custom'}_task_1.0.0.yaml"
    model = {"displayName": name, "containerSpec": {"imageUri": "gcr.io/acme/serve:1"}}
    pipeline = {"trainingTaskDefinition": task, "trainingTaskInputs": spec, "modelToUpload": model}
    return AIPLATFORM_V1, TRAINING_PIPELINE, pipeline


def _task_of(name: str, pool: JsonObject) -> tuple[str, JsonObject]:
    """Return kind and spec of the job that trains."""
    if name not in _TUNED:
        return "CustomJob", {"workerPoolSpecs": [pool]}
    parameter = {"parameterId": "rate", "doubleValueSpec": {"minValue": 0.1, "maxValue": 1.0}}
    study = {"metrics": [{"metricId": "accuracy", "goal": "MAXIMIZE"}], "parameters": [parameter]}
    tuning = {"studySpec": study, "maxTrialCount": 4, "parallelTrialCount": 2}
    return "HyperparameterTuningJob", {**tuning, "trialJobSpec": {"workerPoolSpecs": [pool]}}
