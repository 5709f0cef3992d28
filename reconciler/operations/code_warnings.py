"""Warnings about needs of a job's code that its manifest doesn't meet, before it runs.

`packaging/trainer_code.py` reads the code; none of it runs. A warning names the place in the code, and stands
at the field of the manifest that leads there. Unreadable code is a warning too.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from reconciler.base.diagnostics import Finding, Keys, Problem, UnplacedWarning, similar_word
from reconciler.base.warning_kinds import WarningKind
from reconciler.engines.spec.programs import JOB_DIR, Program, programs
from reconciler.manifests.files import real_path
from reconciler.manifests.settings import Config, Environment
from reconciler.manifests.warnings import with_more
from reconciler.model.fields import part_of, text_of
from reconciler.model.manifest import Manifest
from reconciler.model.tracking import Index
from reconciler.operations.staged_code import readable_code
from reconciler.packaging.code_facts import FOLDERS, URI, CodeFacts, Option, UseKind
from reconciler.packaging.imported_modules import imported_files
from reconciler.packaging.python_syntax import MAX_BYTES, MAX_FILES
from reconciler.packaging.sdist import idle_requirements
from reconciler.packaging.source_tree import SourceFile, SourceTree
from reconciler.packaging.trainer_code import TrainerReader

if TYPE_CHECKING:
    from reconciler.operations.load_desired import Desired

_MAX_TOTAL = 4_000_000  # bytes of one program's files
_PACKAGE: Keys = ("package", "path")
_OPTIONS = re.compile(rb"add_argument|DEFINE_|option\(")
_OPENERS = re.compile(
    rb"\b(?P<name>open|makedirs|mkdir|listdir|dump|load|save|copy|copyfile|copytree)\("
    rb"|\bPath\("
)
_DECLARED = re.compile(rb"(?:[\"']--|DEFINE_\w{1,20}\(\s{0,40}[\"'])(?P<name>[\w-]{1,100})[\"']")
_ASSIGNED = re.compile(rb"\b(?P<name>\w{1,100})[ \t]{0,20}(?::[^=\n]{0,100})?=(?!=)")
_WINDOW = 150  # bytes behind the beginning of a call or an assignment, which a path is looked for in
_MOST_NAMES = 5  # from one to the next
# What reads arguments, or belongs to a library that may.
_TAKES_ARGUMENTS = re.compile(
    rb"argv|argparse|ArgumentParser|Arguments|getopt|optparse|docopt|click|absl|flags|FLAGS|\bfire\b|typer|hydra"
    rb"|CLI\b|[Cc]onfig|tyro|draccus|simple_parsing|plac\b|\bapp\b"
)
_NESTED = re.compile(rb"[(\[{]{60}")  # by no person's hand
_CODING = re.compile(rb"^[^\n]*\n?[^\n]*coding[:=]")


def code_problems(
    root: Path, manifests: Sequence[Manifest], environment: Environment, index: Index
) -> tuple[list[Problem], list[UnplacedWarning]]:
    """Return why code of valid manifests can't be staged, and the warnings about other code."""
    code, problems = readable_code(root, manifests, index)
    return problems, code_warnings(root, code, environment)


def code_warnings(
    root: Path, jobs: Iterable[tuple[Manifest, SourceTree]], environment: Environment
) -> list[UnplacedWarning]:
    """Return the warnings about the code of valid manifests, given with the files of their packages."""
    checker = _Checker(root, environment)
    # Syntax trees have no cycles, and so many nodes that the collector would walk over all manifests for
    # each.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return [warning for manifest, tree in jobs for warning in checker.warnings(manifest, tree)]
    finally:
        if was_enabled:
            gc.enable()


def with_code_warnings(desired: Desired, config: Config, environment: Environment) -> Desired:
    """Return the desired jobs with the warnings about their code."""
    of_code = warnings_of_code(desired, config.root, environment)
    return replace(desired, warnings=with_more(desired.warnings, config, of_code))


def warnings_of_code(desired: Desired, root: Path, environment: Environment) -> list[UnplacedWarning]:
    """Return the warnings about the code of desired jobs."""
    jobs = [(job.manifest, desired.code[job.job_name]) for job in desired.jobs if job.manifest.package]
    return code_warnings(root, jobs, environment)


class _Checker:
    """Check of the code of many jobs: each package is searched once, each content of a file parsed once.

    Args:
        root: The repository's root.
        environment: The environment of the jobs; its defaults count as given.
    """

    def __init__(self, root: Path, environment: Environment) -> None:
        self._root = real_path(root)
        self._filled = environment.filled
        self._reader = TrainerReader()
        self._files: dict[tuple[str, str], tuple[list[SourceFile], bool]] = {}

    def warnings(self, manifest: Manifest, tree: SourceTree) -> list[UnplacedWarning]:
        """Return the warnings of a valid manifest with the package `tree`."""
        training_input = part_of(manifest.spec, "trainingInput")
        if text_of(training_input, "pythonVersion").startswith("2"):
            return []
        findings: dict[tuple[Keys, str], Finding] = {}
        for program in programs(manifest, self._filled):
            for finding in self._findings(manifest, tree, program):
                findings.setdefault((finding.keys, finding.message), finding)
        return [UnplacedWarning.of(manifest.path, manifest.line, finding) for finding in findings.values()]

    def _findings(self, manifest: Manifest, tree: SourceTree, program: Program) -> Iterator[Finding]:
        assert manifest.package is not None, "the code is that of a package"
        folder = manifest.package.relative_to(self._root).as_posix()
        above = "" if folder == "." else f"{folder}/"
        yield from _requirements(manifest, tree, program, above)
        key = (tree.digest, program.module)
        if key not in self._files:
            self._files[key] = _limited(imported_files(tree.files, program.module))
        files, is_cut = self._files[key]
        if is_cut:
            message = f"only the first {len(files)} files that {program.module} imports are checked"
            message = f"{message}: more than {MAX_FILES}, or {_MAX_TOTAL // 1_000_000} MB, are not read"
            yield _finding(WarningKind.CODE_UNREAD, message)
        search = _Search(program)
        interesting = [file for file in files if search.is_of_interest(file)]
        if not interesting:
            if program.passed and files and not is_cut and not any(map(_takes_arguments, files)):
                yield from _no_arguments(program, above + files[0].path)
            return
        facts = self._reader.code_facts(interesting)
        if facts.has_unused:
            # Another file may call the function.
            facts = self._reader.code_facts(files)
        for unread in facts.unread:
            place = f"{above}{unread.path}:{unread.line}"
            message = f"{place} can't be checked: {unread.reason}"
            yield _finding(WarningKind.CODE_UNREAD, message, "correct it, or take it out of the package")
        yield from _of_uses(facts, program, above)
        yield from _of_options(facts, program, above)


class _Search:
    """Quick search for files worth parsing for a program: most aren't."""

    def __init__(self, program: Program) -> None:
        absent = sorted(program.absent)
        self._absent = re.compile("|".join(absent).encode() if absent else rb"(?!)")
        self._passes_more = bool(program.passed)
        # The names of arguments that are gs:// paths.
        names = {name for name, value in _arguments(program) if value.startswith(URI)}
        names |= {JOB_DIR} & program.passed.keys()
        self._paths = {_same(name).encode() for name in names}

    def is_of_interest(self, file: SourceFile) -> bool:
        """Return True if parsing the file may bring a warning."""
        content = file.content
        if len(content) > MAX_BYTES or _NESTED.search(content) or not _is_text(content):
            return True
        if self._absent.search(content):
            return True
        if (self._passes_more or b"required" in content) and _OPTIONS.search(content):
            return True
        return self._may_open_uri(content)

    def _may_open_uri(self, content: bytes) -> bool:
        """Return True if a call that takes paths of files stands near a possible gs:// path."""
        if not (self._paths or b"gs://" in content or b"AIP_" in content):
            return False
        windows = [*_windows(_OPENERS, content)]
        if not windows:
            return False
        # Names with such a path as value, directly or by another name; and arguments with one as default.
        paths = {b"gs://", b"AIP_", *self._paths}
        for name, text in _windows(_DECLARED, content):
            if b"AIP_" in text or b"gs://" in text:
                paths.add(_same(name.decode()).encode())
        assigned = [*_windows(_ASSIGNED, content)]
        for _ in range(_MOST_NAMES):
            names = {name for name, text in assigned if any(path in text for path in paths)}
            if names <= paths:
                break
            paths |= names
        search = re.compile(rb"\b(?:%s)" % b"|".join(map(re.escape, paths)))
        return any(search.search(text) for _, text in windows)


def _windows(pattern: re.Pattern[bytes], content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the group "name" of each match, and the text behind it."""
    for match in pattern.finditer(content):
        yield match["name"], content[match.end() : match.end() + _WINDOW]


def _is_text(content: bytes) -> bool:
    if content.isascii() or _CODING.match(content):
        return True
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _takes_arguments(file: SourceFile) -> bool:
    return _TAKES_ARGUMENTS.search(file.content) is not None


def _limited(files: Iterable[SourceFile]) -> tuple[list[SourceFile], bool]:
    """Return the first files of a program, and True if there are more than are read."""
    first: list[SourceFile] = []
    size = 0
    for file in files:
        # A file that is too large isn't read either.
        size += len(file.content) if len(file.content) <= MAX_BYTES else 0
        if len(first) == MAX_FILES or size > _MAX_TOTAL:
            return first, True
        first.append(file)
    return first, False


# --- What the code uses ---------------------------------------------------------------------------------


def _of_uses(facts: CodeFacts, program: Program, above: str) -> Iterator[Finding]:
    named: set[str] = set()
    for use in sorted(facts.uses, key=lambda use: (use.path, use.line)):
        place = f"{above}{use.path}:{use.line}"
        if use.kind is UseKind.NEEDS and use.name in program.absent and use.name not in named:
            named.add(use.name)
            absence = program.absent[use.name]
            message = f"{place} reads {use.name}, {absence.why}"
            yield _finding(WarningKind.CODE_VARIABLE, message, absence.remedy)
        elif use.kind is UseKind.OPENS and (uri := _uri_of(use.name, facts.options, program)):
            bucket = uri.removeprefix(URI).partition("/")[0] or "BUCKET"
            what = "a gs:// path" if use.name == URI else f"{use.name}, a gs:// path,"
            message = f"{place} passes {what} to {use.call}(), which takes paths of files only"
            there = f'replace "gs://" by "/gcs/" there, so that it is /gcs/{bucket}/…'
            hint = f"{there}, or use a client of Cloud Storage"
            yield _finding(WarningKind.CODE_PATH, message, hint)


def _uri_of(name: str, options: Sequence[Option], program: Program) -> str:
    """Return the gs:// path behind the name of an opened path; "" for another or an unknown path."""
    if name == URI:
        return name
    if name in FOLDERS:
        value = program.env.get(name, "" if name in program.absent else program.folder or URI)
        return value if value.startswith(URI) else ""
    option = next((option for option in options if _has_name(option, name.lstrip("-"))), None)
    if option is None:
        return ""
    if JOB_DIR in program.passed and _has_name(option, JOB_DIR):
        return program.folder or URI
    given = [value for word, value in _arguments(program) if _is_for(option, word)]
    if given:
        return given[-1] if given[-1].startswith(URI) else ""
    return _uri_of(option.default, (), program) if option.default else ""


# --- The options that the code declares -----------------------------------------------------------------


def _of_options(facts: CodeFacts, program: Program, above: str) -> Iterator[Finding]:
    given = [*program.passed, *(word for word, _ in _arguments(program))]
    for option in facts.options:
        if not option.is_required or any(word[:1] == "@" or _is_for(option, word) for word in given):
            continue
        name = max(option.names, key=len)
        place = f"{above}{option.path}:{option.line}"
        message = f"{place} needs the argument --{name}, which the job doesn't give"
        if program.is_ml and _has_name(option, JOB_DIR):
            hint = 'add to "trainingInput":\njobDir: gs://BUCKET/FOLDER'
        else:
            hint = f'add "--{name}=…" to "args" of "{program.args_of}"'
        yield _finding(WarningKind.CODE_ARGUMENT, message, hint)
    if facts.has_more_options or not facts.options:
        return
    first = min(facts.options, key=lambda option: (option.path, option.line))
    for name, keys in program.passed.items():
        if any(_is_for(option, name) for option in facts.options):
            continue
        names = [other for option in facts.options for other in option.names]
        similar = next((other for other in names if _same(other) == _same(name)), similar_word(name, names))
        message = (
            f"the trainer gets this as --{name}, which isn't among the arguments that the code takes "
            f"({above}{first.path}:{first.line})"
        )
        if name == JOB_DIR:
            hint = "declare --job-dir there, or remove the field"
        else:
            guess = f"write {keys[-1]}: {similar}, or " if similar else ""
            hint = f"{guess}declare --{name} there"
        yield _finding(WarningKind.CODE_ARGUMENT, message, hint, keys)


def _no_arguments(program: Program, place: str) -> Iterator[Finding]:
    for name, keys in program.passed.items():
        message = f"the trainer gets this as --{name}, and {place} reads no arguments"
        hint = "read it there, for example by argparse"
        yield _finding(WarningKind.CODE_ARGUMENT, message, hint, keys)


def _arguments(program: Program) -> Iterator[tuple[str, str]]:
    """Yield name, without dashes, and value of each of a program's arguments."""
    for number, word in enumerate(program.args):
        if word[:1] in ("-", "@"):
            name, equals, value = word.lstrip("-").partition("=")
            following = program.args[number + 1] if number + 1 < len(program.args) else ""
            yield name, value if equals else following


def _is_for(option: Option, word: str) -> bool:
    """Return True if an argument with this name, without dashes, is for the option."""
    # argparse takes the beginning of a name for it; `-n3` has its value behind the letter.
    return any(
        name == word
        or (bool(word) and name.startswith(word))
        or (len(name) == 1 and word.startswith(name))
        or (not option.is_strict and _same(name) == _same(word))
        for name in option.names
    )


def _has_name(option: Option, name: str) -> bool:
    return any(_same(other) == _same(name) for other in option.names)


def _same(name: str) -> str:
    return name.replace("-", "_")


# --- Requirements ---------------------------------------------------------------------------------------


def _requirements(manifest: Manifest, tree: SourceTree, program: Program, above: str) -> Iterator[Finding]:
    """Yield a warning of a requirements.txt that isn't installed."""
    if manifest.requirements:
        return
    path, has_build = idle_requirements(tree, program.module, in_container=bool(manifest.module))
    if not path:
        return
    message = f"nothing installs what {above}{path} lists"
    if manifest.module:
        lock = path.replace("requirements.txt", "requirements.lock")
        hint = (
            f"lock it: uv pip compile --generate-hashes {above}{path} -o {above}{lock}\n"
            f'and write "requirements: {lock}" in "package"; or remove it, if the image has these packages'
        )
    elif has_build:
        hint = "list them in the package's own build, for example under install_requires in its setup.py"
    else:
        hint = f"move it to {above}requirements.txt, at the top of the package"
    yield _finding(WarningKind.IDLE_REQUIREMENTS, message, hint)


def _finding(kind: WarningKind, message: str, hint: str = "", keys: Keys = _PACKAGE) -> Finding:
    return Finding(keys, message, hint, kind=kind)
