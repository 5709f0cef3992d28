"""Import of sources: from their bytes to checked manifests, written all or not at all."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from reconciler.base.diagnostics import MAX_FILE_BYTES, Problem, quote
from reconciler.base.errors import InvalidError, ReconcilerError, RefusedError, check_machine
from reconciler.base.replaced_files import replace_files
from reconciler.base.safe_files import read_file
from reconciler.convert.importing.body import Code, ImportedRequest, request_of
from reconciler.convert.importing.command_line import find_command, parse
from reconciler.convert.importing.import_result import Found
from reconciler.convert.importing.live_job import (
    ImportedJobs,
    LiveJob,
    is_answer,
    is_pipeline_request,
    live_jobs,
    pipeline_request,
)
from reconciler.convert.importing.manifest import (
    Imported,
    base_name,
    fill_missing,
    full_name,
    hide_secrets,
    is_to_fill_in,
    problems_of,
    spec_of,
    text_of,
)
from reconciler.convert.importing.named_files import Files
from reconciler.convert.importing.placeholders import (
    SECRET,
    SourceError,
    filled,
    mark,
    names_in,
    shown,
    without_marks,
)
from reconciler.convert.importing.shell import ShellError
from reconciler.convert.importing.sources import MAX_SOURCE, read_source
from reconciler.convert.importing.tidy_spec import tidy
from reconciler.manifests.secrets import without_secrets
from reconciler.manifests.validate import validate
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1, TRAINING_PIPELINE
from reconciler.model.tracking import Index

_SUFFIXES = (".yaml", ".yml")
_PROPERTIES = ("core/project", "ai/region", "compute/region")
_KINDS = {"trainingInput": (ML_V1, "Job"), "studySpec": (AIPLATFORM_V1, "HyperparameterTuningJob")}
_COMMAND_LINE = "the command line"
_ADD_CONTAINER = "The service doesn't return the model's containerSpec: add it."
_KEEP_CONTAINER = (
    "The request of this pipeline may have had a containerSpec for its model, which the service doesn't "
    "return. Adding one here makes other content, which trains again: add it with the next change of the "
    "content."
)


class ImportSource(Struct):
    """One source: a file, standard input, a command line, or jobs of a service.

    Attributes:
        name: Its name in messages.
        folder: The folder that its relative paths count from.
        data: Its bytes; unused with `entries`.
        entries: What it contains, if that needs no reading.
        line: The only line to import from; 0 for all.
        live: The jobs of a service.
    """

    name: str
    folder: Path
    data: bytes = b""
    entries: list[Found] | None = None
    line: int = 0
    live: ImportedJobs = field(default_factory=lambda: ImportedJobs([]))


class ImportPlan(Struct):
    """Manifests to write.

    Attributes:
        texts: The content of each file, in order.
        jobs: The jobs with their files.
        unfilled: By a job's name, sentences about the values that a person has to give.
        unchanged: The files that have this content already.
        kept: The files with other manifests of live jobs that are to be adopted.
        adopted: The names of the jobs that have a claim.
        left_out: The pipelines that run no code of the user's, each as its name with its task.
    """

    texts: dict[Path, str]
    jobs: list[tuple[Imported, Path]]
    unfilled: dict[str, list[str]]
    unchanged: frozenset[Path] = frozenset()
    kept: frozenset[Path] = frozenset()
    adopted: frozenset[str] = frozenset()
    left_out: Sequence[str] = ()

    def submitted(self, root: Path, index: Index) -> list[str]:
        """Return the names, with their hashes, of the jobs that the next apply would submit."""
        return sorted(
            full_name(job, root, index)
            for job, path in self.jobs
            if not (job.suspended or self.unfilled.get(job.name) or path in self.kept)
            if job.name not in self.adopted
        )

    @property
    def live(self) -> dict[str, str]:
        """The resource names of the jobs that haven't ended, by the names of their manifests."""
        return {job.name: job.live for job, _ in self.jobs if job.live}

    def with_adopted(self, names: Collection[str]) -> ImportPlan:
        """Return the plan of the written manifests of adopted jobs, which need no `suspend` any more."""
        texts: dict[Path, str] = {}
        for job, path in self.jobs:
            if job.name in names and not self.unfilled[job.name]:
                job.suspended = ""
            if path in self.texts:
                text = text_of(job, path.parent)
                texts[path] = f"{texts[path]}---\n{text}" if path in texts else text
        unchanged = frozenset(path for path, text in texts.items() if text == self.texts[path])
        return ImportPlan(
            texts, self.jobs, self.unfilled, unchanged, self.kept, frozenset(names), self.left_out
        )


class Importer:
    """Import of several sources into one repository.

    Args:
        root: The repository's root, without links.
        working: The working directory.
        output: The folder of the manifests, or the file for all of them.
        values: The values of variables, placeholders and gcloud's properties, by name.
        run: True if jobs that have ended may run again.
        keep: True to keep other manifests of the same names: live jobs are adopted by them.
    """

    def __init__(
        self,
        root: Path,
        working: Path,
        output: Path,
        values: Mapping[str, str],
        *,
        run: bool = False,
        keep: bool = False,
    ) -> None:
        self._root = root
        self._working = working
        self._output = output
        self._values = values
        self._run = run
        self._keep = keep
        self._problems: list[Problem] = []
        self._jobs: list[Imported] = []
        self._left_out: list[str] = []

    @property
    def _folder(self) -> Path:
        return self._output.parent if self._output.suffix in _SUFFIXES else self._output

    def plan(self, sources: Sequence[ImportSource]) -> ImportPlan:
        """Return the manifests of all jobs; raise InvalidError with every mistake."""
        for source in sources:
            for line, read in self._readers(source):
                try:
                    self._jobs += read()
                except SourceError as error:
                    self._refuse(source.name, line, error)
        self._raise_problems()
        # A pipeline's manifest makes its backing job too.
        backing = {job.backing for job in self._jobs} - {""}
        self._jobs = [job for job in self._jobs if job.resource not in backing]
        jobs, manifest_paths = self._named(), self._known()
        kept = set()
        texts: dict[Path, str] = {}
        unfilled: dict[str, list[str]] = {}
        job_paths = []
        for job in jobs:
            path = self._output if self._output.suffix in _SUFFIXES else self._folder / f"{job.name}.yaml"
            text, unfilled[job.name] = self._checked(job, path)
            other = self._root / manifest_paths.get(_key(job.name), self._shown(path))
            if self._keep and job.live and os.path.lexists(other) and not _holds(other, text):
                kept.add(other)
                job_paths.append((job, other))
                continue
            texts[path] = f"{texts[path]}---\n{text}" if path in texts else text
            job_paths.append((job, path))
        self._raise_problems()
        unchanged = self._unchanged(
            [pair for pair in job_paths if pair[1] not in kept], texts, manifest_paths
        )
        return ImportPlan(texts, job_paths, unfilled, unchanged, frozenset(kept), left_out=self._left_out)

    def _raise_problems(self) -> None:
        if self._problems:
            raise InvalidError("nothing is imported", problems=self._problems)

    def _refuse(self, path: str, line: int, error: SourceError) -> None:
        error_line = error.line if isinstance(error, ShellError) else line
        # The message may quote an argument.
        message = str(without_secrets(str(shown(error.message))))
        self._problems.append(Problem(path, error_line, 1, "", message, error.hint))

    def _readers(self, source: ImportSource) -> Iterator[tuple[int, Any]]:
        """Yield the line of each job in a source, and the function that reads it."""
        try:
            entries = source.entries
            if entries is None and not source.live.jobs:
                entries = read_source(source.name, source.data, self._values)
                entries = [entry for entry in entries if source.line in (0, entry.line)]
                if not entries:
                    raise SourceError("no job begins on this line", hint="name the first line of a command")
        except SourceError as error:
            self._refuse(source.name, getattr(error, "line", source.line or 1), error)
            return
        for entry in entries or ():
            yield entry.line, lambda entry=entry: self._read(source, entry)
        if source.live.jobs:
            yield 1, lambda: self._of_service(source.live, source.name)

    def _read(self, source: ImportSource, entry: Found) -> list[Imported]:
        origin = source.name if source.name == _COMMAND_LINE else f"{source.name}:{entry.line}"
        if entry.words:
            return [self._of_command(source, entry, origin)]
        if is_answer(entry.value):
            return self._of_service(live_jobs(entry.value), origin)
        return [self._of_config(entry.value, source.name, origin)]

    # --- Jobs of each kind of source ---

    def _of_command(self, source: ImportSource, entry: Found, origin: str) -> Imported:
        words = [filled(word, self._values) for word in entry.words]
        files = Files(self._root, source.folder, self._working, entry)
        invocation = parse(words, files.flags)
        assert invocation is not None, "only commands that submit jobs are found"
        request = request_of(invocation, files.config, self._properties(entry.environ))
        command = invocation.command
        program = f"gcloud {' '.join(command.words)}"
        # The source's own line isn't quoted: it may contain secrets.
        notes = [*files.notes, *(f"{note}." for note in request.notes)]
        if entry.defaults:
            notes.append(f"Defaults are used for these variables: {', '.join(entry.defaults)}.")
        if invocation.unknown:
            notes.append(f"Flags may be missing: the command has {', '.join(invocation.unknown)}.")
        if request.location or request.project:
            parts = [("project", request.project), ("location", request.location)]
            named = ", ".join(f"{name} {text}" for name, text in parts if text)
            notes.append(f"The environment decides the project and the location; the command names {named}.")
        written = str(request.body.pop(command.name_field, ""))
        name = base_name(written, Path(source.name).stem if source.name != _COMMAND_LINE else command.kind)
        spec, labels = spec_of(command.kind, request.body)
        job = Imported(
            command.api_version, command.kind, name, labels, spec, f"{origin}, {program}", notes=notes
        )
        if request.code:
            self._add_code(job, request, request.code, files)
        for variable, line in entry.branched.items():
            if next(iter(names_in(mark(variable)))) in job.unknown:
                why = f"line {line} assigns it inside a condition or a loop"
                job.notes.append(f"{variable} is unknown: {why}.")
        if invocation.unknown:
            job.suspended = "flags may be missing"
        return job

    def _properties(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return gcloud's properties, as far as variables and `--set` give them."""
        properties = {}
        for name in _PROPERTIES:
            variable = f"CLOUDSDK_{name.replace('/', '_').upper()}"
            for values, key in ((environ, variable), (self._values, variable), (self._values, name)):
                if key in values:
                    properties[name] = values[key]
        return properties

    def _of_config(self, value: Any, name: str, origin: str) -> Imported:
        api_version, kind = next(
            (pair for key, pair in _KINDS.items() if key in value), (AIPLATFORM_V1, "CustomJob")
        )
        if "trialJobSpec" in value:
            api_version, kind = AIPLATFORM_V1, "HyperparameterTuningJob"
        if is_pipeline_request(value):
            api_version, kind, value = AIPLATFORM_V1, TRAINING_PIPELINE, pipeline_request(value)
        body = {"jobSpec": value} if kind == "CustomJob" else dict(value)
        written = str(value.get("displayName") or value.get("jobId") or "") if kind != "CustomJob" else ""
        spec, labels = spec_of(kind, body)
        return Imported(api_version, kind, base_name(written, Path(name).stem), labels, spec, origin)

    def _of_service(self, found: ImportedJobs, origin: str) -> list[Imported]:
        self._left_out += found.left_out
        return [self._of_live(job, origin) for job in found.jobs]

    def _of_live(self, live: LiveJob, origin: str) -> Imported:
        spec, labels = spec_of(live.kind, live.body)
        name = base_name(live.name, live.resource.rpartition("/")[2])
        notes = list(live.notes)
        if live.resource:
            notes.insert(0, f"Resource: {live.resource}.")
        if live.lacks_container:
            # The content of a live job that is adopted has a name already, which another spec would change.
            notes.append(_KEEP_CONTAINER if self._keep and not live.state else _ADD_CONTAINER)
        job = Imported(live.api_version, live.kind, name, labels, spec, origin, notes=notes)
        job.resource, job.backing = live.resource, live.backing
        if live.state and not self._run:
            job.suspended = f"the job has ended ({live.state}), and would run again; remove suspend to run it"
        elif not live.state:
            job.live = live.resource
            job.suspended = (
                "the job may still be running, and would run twice; remove suspend to run it again"
            )
        return job

    def _add_code(self, job: Imported, request: ImportedRequest, code: Code, files: Files) -> None:
        """Name the folder of a job's code, or leave a place for it."""
        if code.path:
            job.package = files.package(code, self._folder, job.notes)
        uris = []
        for archive in code.archives:
            files.check_archive(archive, [Path(other).name for other in code.archives])
            folder = files.folder_of_archive(archive, self._folder)
            if folder and not code.path and len(code.archives) == 1:
                job.package = folder
                job.notes.append(
                    f"{files.shown(folder)} is staged in place of {archive}, which is built from it."
                )
            else:
                uris.append(f"gs://{mark('BUCKET')}/{Path(archive).name}")
                job.notes.append(f"Upload {archive} to a bucket, and write its gs:// URI.")
        if uris:
            training_input = job.spec["trainingInput"]
            training_input["packageUris"] = [*training_input.get("packageUris", []), *uris]

    # --- Names, content, checks ---

    def _named(self) -> list[Imported]:
        """Return the jobs with a name each; the same job in several places counts once."""
        jobs: dict[str, Imported] = {}
        for job in self._jobs:
            job.spec = filled(job.spec, self._values)
            job.labels = filled(job.labels, self._values)
            hidden = hide_secrets(job)
            if hidden:
                job.notes.append(f"Secrets are left out: {', '.join(hidden)}.")
            if isinstance(job.spec, dict):
                job.spec = tidy(job.api_version, job.kind, job.spec)
            number, name = 1, job.name
            while (same := jobs.get(_key(name))) is not None and not _is_same(same, job):
                number += 1
                name = f"{job.name}-{number}"
            if same is None:
                job.name = name
                jobs[_key(name)] = job
            elif job.live:
                _merge_live(same, job)
        return [*jobs.values()]

    def _checked(self, job: Imported, file: Path) -> tuple[str, list[str]]:
        """Return the text of a job's manifest, and the values that a person has to give."""
        if job.unknown and not job.suspended:
            job.suspended = "values are unknown; fill them in, and remove suspend"
        path = self._shown(file)
        problems = problems_of(job, text_of(job, file.parent), path, file, self._root)
        set_fields = [fill_missing(job, problem, self._values) for problem in problems]
        if any(set_fields):
            job.spec = tidy(job.api_version, job.kind, job.spec)
            problems = problems_of(job, text_of(job, file.parent), path, file, self._root)
        sentences = [_to_fill_in(name) for name in job.unknown]
        name, _, line = job.source.partition(",")[0].rpartition(":")
        for problem in problems:
            if is_to_fill_in(job, problem):
                if problem.message.endswith(" is missing"):
                    sentences.append(_to_add(problem))
                continue
            at, number = (name, int(line)) if name and line.isdecimal() else (job.source.partition(",")[0], 1)
            where = f"{problem.pointer}: {problem.message}" if problem.pointer else problem.message
            self._problems.append(Problem(at, number, 1, "", where, problem.hint))
        return text_of(job, file.parent), sentences

    def _shown(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix() if path.is_relative_to(self._root) else str(path)

    def _known(self) -> dict[str, str]:
        """Return the files of the repository's valid manifests, by the manifests' names."""
        folder, manifest_paths = self._root / "jobs", {}
        if folder.is_dir():
            with suppress(ReconcilerError):
                for manifest in validate(self._root, [folder]).manifests:
                    manifest_paths[_key(manifest.name)] = manifest.path
        return manifest_paths

    def _unchanged(
        self,
        jobs: Sequence[tuple[Imported, Path]],
        texts: Mapping[Path, str],
        manifest_paths: Mapping[str, str],
    ) -> frozenset[Path]:
        """Return the files that exist with this content; raise RefusedError for a name that is taken."""
        for job, path in jobs:
            other = manifest_paths.get(_key(job.name))
            if other and other != self._shown(path):
                message = f"the name {quote(job.name)} is taken by {quote(other)}"
                raise RefusedError(message, hint="rename one of the two, or import with -o to that file")
        return frozenset(path for path, text in texts.items() if _holds(path, text))


def write(plan: ImportPlan, *, force: bool) -> None:
    """Write all manifests or none; raise RefusedError for a file that would be overwritten, and OSError."""
    todo = {path: text for path, text in plan.texts.items() if path not in plan.unchanged}
    for path in todo:
        if os.path.lexists(path) and not force:
            raise RefusedError(
                f"{path.name} exists already, with other content: {path}",
                hint="use --force to overwrite it",
            )
    replace_files({path: text.encode("utf-8", "backslashreplace") for path, text in todo.items()})


def source_of(path: str, working: Path) -> ImportSource:
    """Return the source of a named file, or of one line of it; raise InvalidError if it is unreadable."""
    name, _, number = path.rpartition(":")
    is_line = number.isdecimal() and len(number) < 9 and not os.path.lexists(working / path)
    path, line = (name, int(number)) if is_line else (path, 0)
    file = working / path
    try:
        data, _ = read_file(file, MAX_SOURCE + 1, follow=True)
    except OSError as error:
        check_machine(error, f"{path} can't be read")
        reason = "it is a folder: name its files" if file.is_dir() else (error.strerror or str(error))
        problem = Problem(path, 1, 1, "", f"can't be read: {reason}", "name a readable file")
        raise InvalidError("nothing is imported", problems=[problem]) from None
    return ImportSource(path, file.parent, data, line=line)


def source_of_words(words: Sequence[str], working: Path, stdin: str | None) -> ImportSource:
    """Return the source of a command line in words; raise InvalidError if it submits no training job."""
    plain = [without_marks(word) for word in words]
    if find_command(plain) is None:
        commands = "ai custom-jobs create, ai hp-tuning-jobs create, ai-platform jobs submit training"
        hint = f"import reads these commands: {commands}"
        problem = Problem(_COMMAND_LINE, 1, 1, "", "no command of gcloud that submits a training job", hint)
        raise InvalidError("nothing is imported", problems=[problem])
    entry = Found(1, plain, environ=os.environ, stdin=stdin)
    return ImportSource(_COMMAND_LINE, working, entries=[entry])


def _holds(path: Path, text: str) -> bool:
    """Return True if a file exists with this content."""
    try:
        return read_file(path, MAX_FILE_BYTES)[0] == text.encode("utf-8", "backslashreplace")
    except OSError as error:
        check_machine(error, f"{path} can't be read")
        return False


def _key(name: str) -> str:
    return name.replace("-", "_")


def _is_same(one: Imported, other: Imported) -> bool:
    names = (one.kind, one.spec, one.labels, one.package)
    return names == (other.kind, other.spec, other.labels, other.package)


def _merge_live(job: Imported, other: Imported) -> None:
    """Add a live job with equal content: the first that hasn't ended stays."""
    if job.live:
        job.notes.append(f"Another live job has the same content: {other.live}.")
    else:
        job.live, job.suspended, job.notes = other.live, other.suspended, other.notes


def _to_add(problem: Problem) -> str:
    name = problem.message.partition('"')[2].partition('"')[0]
    return f"{name} of {problem.pointer}, which is missing: --set {name}=VALUE; {problem.hint}"


def _to_fill_in(name: str) -> str:
    if name == SECRET:
        return "<SECRET>: read the secret in the trainer, from Secret Manager"
    return f"<{name}>: --set {name}=VALUE"
