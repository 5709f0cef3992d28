"""Migration of a repository's manifests: from their files to new texts, written all or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from reconciler.base.diagnostics import Keys, Problem, pointer_of
from reconciler.base.errors import InvalidError, UsageError
from reconciler.convert.importing.tidy_spec import tidy
from reconciler.convert.migrating.code_search import CodePlace, Looked, search
from reconciler.convert.migrating.containers import (
    Containers,
    in_containers,
    moves_to_container,
    renamed_for_container,
    report_containers,
)
from reconciler.convert.migrating.report import FieldRow, Report
from reconciler.convert.migrating.rewrite import Converted, NewDocument, convert, rewritten
from reconciler.convert.migrating.rules import rules
from reconciler.git.index import GitIndex
from reconciler.manifests import schemas
from reconciler.manifests.diagnose import diagnose
from reconciler.manifests.files import ManifestFile, read_one, real_path
from reconciler.manifests.packages import package_folder
from reconciler.manifests.plain_form import plain_form
from reconciler.manifests.settings import Config, Environment, check_found
from reconciler.manifests.training_images import has_ended, images_in
from reconciler.manifests.validate import validate
from reconciler.manifests.yaml_document import Document
from reconciler.manifests.yaml_load import load_documents
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1, Manifest
from reconciler.model.tracking import Index
from reconciler.operations.jobs_folder import manifest_paths
from reconciler.operations.load_desired import stageable_jobs
from reconciler.packaging.source_tree import SourceTree, SourceTreeError, read_source_tree

Json = dict[str, Any]
_INPUT: Keys = ("spec", "trainingInput")
_REMARK = "Migrated from AI Platform. Remove this line to run the job on Vertex AI."
_CONTAINER_REMARK = "Moved to another image. Remove this line to run the job again."


class MigratedJob(Struct):
    """One migrated job.

    Attributes:
        path: Its manifest's file, relative to the repository's root.
        line: First line of the old document.
        kind: The new kind.
        is_moved: True for a job of Vertex AI that only gets containers in place of its Python package.
        rows: The report, with the line of each field in the old file.
        code: Places in the trainer's source.
        suspended: True if the next apply won't submit it.
        job_name: Its new name; "" while it can't be made.
    """

    name: str
    path: str
    line: int
    kind: str
    rows: list[tuple[int, FieldRow]]
    code: list[CodePlace]
    suspended: bool
    job_name: str = ""
    is_moved: bool = False


class Migration(Struct):
    """Result of a migration, before anything is written.

    Attributes:
        files: Number of files that were read.
        warnings: A folder of manifests that is missing.
        texts: Old and new content of each file that changes, by its path.
        real_paths: The real path of each of these files.
        problems: Reasons why nothing can be written.
    """

    files: int
    warnings: tuple[Problem, ...] = ()
    jobs: list[MigratedJob] = field(default_factory=list)
    texts: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    real_paths: dict[str, Path] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def submitted(self) -> list[str]:
        """The names of the jobs that the next apply would submit."""
        return sorted(job.job_name or job.name for job in self.jobs if not job.suspended)

    @property
    def contents(self) -> dict[Path, bytes]:
        """The content to write, by real path."""
        return {self.real_paths[path]: after for path, (_, after) in self.texts.items()}


class Options(Struct, frozen=True):
    """Choices of a migration.

    Attributes:
        run: True if the migrated jobs are not suspended.
        image: The image for Python packages whose own image is past its end; "" to change no image.
        today: The day that decides which images are past their end.
    """

    run: bool
    image: str
    today: date


def migrate(config: Config, environment: Environment, paths: Sequence[Path], options: Options) -> Migration:
    """Migrate the jobs of AI Platform, and with an image those whose own image is past its end.

    Args:
        config: The repository's settings.
        environment: The environment; its location counts for jobs without a region.
        paths: Files and folders, as `manifest_paths` takes them.
        options: The choices.

    Raises:
        InvalidError: Manifests aren't valid.
        UsageError: A path is missing, or the image is past its end.
    """
    if has_ended(options.image, options.today):
        hint = "name one that exists, such as python:3.11 or one of your own"
        raise UsageError(f"the image {options.image} is past its end itself", hint=hint)
    root = real_path(config.root)
    filled = environment.filled
    below, missing = manifest_paths(config.root, paths)
    index = GitIndex(root, os.environ)
    validation = validate(root, below, filled, index=index)
    check_found(validation, paths)
    if validation.problems:
        raise InvalidError("only valid manifests can be migrated", problems=validation.problems)
    migration = Migration(validation.files, missing)
    old = [
        manifest
        for manifest in validation.manifests
        if manifest.api_version == ML_V1 or _is_to_move(manifest, options)
    ]
    for path, manifests in groupby(old, key=lambda manifest: manifest.path):
        _FileMigration(config, environment, path, migration, options, index).run([*manifests])
    migration.problems.sort()
    return migration


def _is_to_move(manifest: Manifest, options: Options) -> bool:
    """Return True for a job of Vertex AI whose Python package runs in an image past its end."""
    if not options.image or manifest.api_version != AIPLATFORM_V1:
        return False
    images = images_in(manifest.spec)
    return any(keys[-1] == "executorImageUri" and has_ended(uri, options.today) for keys, uri in images)


class _FileMigration:
    """Migration of one file."""

    def __init__(
        self,
        config: Config,
        environment: Environment,
        path: str,
        migration: Migration,
        options: Options,
        index: Index,
    ) -> None:
        self._index = index
        self._root = real_path(config.root)
        self._images = frozenset(config.images)
        self._environment = environment
        self._path = path
        self._real = real_path(self._root / path)
        self._migration = migration
        self._options = options

    def run(self, manifests: Sequence[Manifest]) -> None:
        """Add the file's jobs, its new text and its problems to the migration."""
        data = read_one(self._real, self._path)
        if isinstance(data, Problem):
            self._migration.problems.append(data)
            return
        documents = {document.line: document for document in load_documents(data, self._path)[0]}
        new: list[NewDocument] = []
        jobs: list[MigratedJob] = []
        for manifest in manifests:
            document = documents.get(manifest.line)
            if document is None:
                message = "the file has changed while it was read"
                self._migration.problems.append(Problem(self._path, 1, 1, "", message, "migrate it again"))
                return
            job, made = self._job(manifest, document)
            jobs.append(job)
            new.append(made)
        self._migration.jobs += jobs
        try:
            after = rewritten(data, new)
        except ValueError as error:
            problem = Problem(self._path, manifests[0].line, 1, "", str(error), "write it without anchors")
            self._migration.problems.append(problem)
            return
        self._migration.texts[self._path] = (data, after)
        self._migration.real_paths[self._path] = self._real
        self._check(after, jobs, new, [documents[manifest.line] for manifest in manifests])

    def _job(self, manifest: Manifest, document: Document) -> tuple[MigratedJob, NewDocument]:
        """Return a job's report and its new document."""
        schema = schemas.manifest_schema(manifest.api_version, manifest.kind, spec=manifest.spec)
        assert schema is not None, "the services' jobs have a schema"
        value = plain_form(document.value, schema)
        is_moved = manifest.api_version != ML_V1
        top = ("spec",) if is_moved else _INPUT
        converted = self._converted(manifest, value)
        report = converted.report
        for obstacle in report.obstacles:
            self._add_problem(document, (*top, *obstacle.keys), obstacle.message, obstacle.hint)
        tree = self._tree(manifest)
        code = [] if is_moved else self._code(manifest, tree, converted, value["spec"]["trainingInput"])
        moves = {(*top, *source): ("spec", *target) for source, target in report.moves.items()}
        moves[top] = ("spec",)
        module = ""
        if made := self._containers(converted, document, moves):
            report_containers(made, tree.files if tree else (), self._folder(manifest), report)
            converted, module = replace(converted, spec=made.spec), made.module
            moves = {source: renamed_for_container(target) for source, target in moves.items()}
        is_new_suspend = not self._options.run and not manifest.reconcile.suspend
        new = self._new_value(value, converted, module, suspend=is_new_suspend)
        rows = [
            (document.position((*top, *row.keys)).line if row.keys else manifest.line, row)
            for row in report.rows
        ]
        job = MigratedJob(
            name=manifest.name,
            path=self._path,
            line=manifest.line,
            kind=converted.kind,
            rows=rows,
            code=code,
            suspended=manifest.reconcile.suspend or not self._options.run,
            is_moved=is_moved,
        )
        remark = _CONTAINER_REMARK if is_moved else _REMARK
        return job, NewDocument(manifest.line, new, moves, remark if is_new_suspend else "")

    def _converted(self, manifest: Manifest, value: Json) -> Converted:
        """Return a job as one of Vertex AI, with the executor images that follow from the old manifest."""
        if manifest.api_version != ML_V1:
            spec = value["spec"]
            return Converted(manifest.kind, spec, 0, Report(moves=moves_to_container(spec)))
        return convert(
            value["spec"]["trainingInput"],
            manifest.name,
            has_labels=bool(manifest.labels),
            location=str(self._environment.defaults.get("region", "")),
            overridden=self._images,
            image=self._options.image,
        )

    def _containers(
        self, converted: Converted, document: Document, moves: Mapping[Keys, Keys]
    ) -> Containers | None:
        """Return the job with containers; None if it keeps its images, or if obstacles became problems."""
        if not self._options.image:
            return None
        result = in_containers(converted.spec, self._options.image, self._options.today)
        if not isinstance(result, list):
            return result
        is_old = document.value["apiVersion"] == ML_V1
        # All pools of a migrated job have the same obstacle.
        for obstacle in result[:1] if is_old else result:
            keys = ("spec", *obstacle.keys)
            keys = _old_keys(pointer_of(keys), moves) if is_old else keys
            self._add_problem(document, keys, obstacle.message, obstacle.hint)
        return None

    def _new_value(self, value: Json, converted: Converted, module: str, *, suspend: bool) -> Json:
        spec = tidy(AIPLATFORM_V1, converted.kind, converted.spec)
        new: Json = {}
        for key, part in value.items():
            if key == "spec" and suspend and "reconcile" not in value:
                new["reconcile"] = {"suspend": True}
            new[key] = part
        new |= {"apiVersion": AIPLATFORM_V1, "kind": converted.kind, "spec": spec}
        if module:
            new["package"] = {**new["package"], "module": module}
        if "reconcile" in new:
            policy = dict(new["reconcile"] or {})
            if suspend:
                policy["suspend"] = True
            pointers = [*dict.fromkeys(_new_pointers(policy.pop("notSecret", ()), value, spec))]
            if pointers:
                policy["notSecret"] = pointers
            new["reconcile"] = policy or new["reconcile"]
        return new

    def _tree(self, manifest: Manifest) -> SourceTree | None:
        """Return the files of the job's package; its problems are those of `validate`."""
        if manifest.package is None:
            return None
        try:
            return read_source_tree(manifest.package, self._root, self._index)
        except SourceTreeError as error:
            for finding in error.findings:
                problem = Problem(
                    self._path, manifest.line, 1, "/package/path", finding.message, finding.hint
                )
                self._migration.problems.append(problem)
            return None

    def _folder(self, manifest: Manifest) -> str:
        """Return the package's folder, relative to the repository's root; "" without a package."""
        return manifest.package.relative_to(self._root).as_posix() if manifest.package else ""

    def _code(
        self, manifest: Manifest, tree: SourceTree | None, converted: Converted, given: Json
    ) -> list[CodePlace]:
        """Return the places in the job's package."""
        if manifest.package is None:
            return [CodePlace("", 0, "not searched", rules().code["elsewhere"])]
        if tree is None:
            return []
        study = converted.spec.get("studySpec")
        pools = converted.spec.get("trialJobSpec", converted.spec)["workerPoolSpecs"]
        machine = pools[0]["machineSpec"]
        looked = Looked(
            replicas=converted.replicas,
            job_dir=bool(given.get("jobDir")),
            metric=study["metrics"][0]["metricId"] if study else "",
            on_tpu=machine.get("acceleratorType", "").startswith("TPU"),
        )
        return search(tree.files, self._folder(manifest), looked)

    def _check(
        self, after: bytes, jobs: Sequence[MigratedJob], new: Sequence[NewDocument], old: Sequence[Document]
    ) -> None:
        """Validate the new text: add its problems at the old places, and the jobs' new names."""
        file = ManifestFile(self._path, str(self._real), len(after))
        filled = self._environment.filled
        diagnosed = diagnose(
            file, after, filled, lambda file, written: package_folder(Path(file.real), written)
        )
        diagnosed.check(self._root)
        by_name = dict(zip((job.name for job in jobs), zip(jobs, new, old, strict=True), strict=True))
        lines = {made.document.line: made.document.value["metadata"]["name"] for made in diagnosed.jobs}
        for problem in diagnosed.problems:
            name = lines[max((line for line in lines if line <= problem.line), default=min(lines))]
            if name in by_name:
                _, document, before = by_name[name]
                keys = _old_keys(problem.pointer, document.moves)
                self._add_problem(before, keys, f"{problem.pointer}: {problem.message}", problem.hint)
        for made in diagnosed.jobs:
            name = lines[made.document.line]
            if not made.is_valid or name not in by_name:
                continue
            package = made.package.real if made.package else None
            manifest = replace(made.manifest, path=self._path, package=package)
            desired, problems = stageable_jobs(self._root, [manifest], self._environment, index=self._index)
            for problem in problems:
                keys = ("package", "path")
                self._add_problem(by_name[name][2], keys, problem.message, problem.hint)
            if desired.jobs:
                by_name[name][0].job_name = desired.jobs[0].job_name

    def _add_problem(self, document: Document, keys: Keys, message: str, hint: str) -> None:
        position = document.position(keys)
        problem = Problem(self._path, position.line, position.column, pointer_of(keys), message, hint)
        # What a person has to decide anyway needs no second problem from the schema.
        if not any(
            other.line == problem.line and other.path == self._path for other in self._migration.problems
        ):
            self._migration.problems.append(problem)


def _old_keys(pointer: str, moves: Mapping[Keys, Keys]) -> Keys:
    """Return the old path of the value at a pointer into the new document, or of its nearest parent."""
    names = tuple(int(name) if name.isdecimal() else name for name in pointer.split("/")[1:])
    for length in range(len(names), 0, -1):
        for old, new in moves.items():
            if new == names[:length] and len(new) > 1:
                return old
    return _INPUT


def _new_pointers(pointers: Sequence[str], old: Json, spec: Json) -> Iterator[str]:
    """Yield the pointers to the values in the new `spec` that old pointers lead to."""
    for pointer in pointers:
        if not pointer.startswith("/spec/"):
            yield pointer
            continue
        value: Any = old
        for name in pointer.split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            value = value[int(name)] if isinstance(value, list) else value[name]
        yield from (pointer_of(keys) for keys, text in _texts(spec, ("spec",)) if text == value)


def _texts(value: Any, keys: Keys) -> Iterator[tuple[Keys, Any]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _texts(part, (*keys, key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _texts(part, (*keys, index))
    else:
        yield keys, value
