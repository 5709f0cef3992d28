"""A set-up written into a folder: all of it or nothing, and nothing over what is there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG
from tempfile import mkstemp

from reconciler import __version__
from reconciler.base.diagnostics import quote
from reconciler.base.errors import ReconcilerError, UsageError
from reconciler.manifests import schemas
from reconciler.manifests.schemas import ANY_KIND
from reconciler.manifests.settings import FILE_NAME

NO_SHA = "0" * 40
"""Stands in a file where the commit of the action has to be filled in."""

NO_REPOSITORY = "OWNER/NAME"
"""Stands in a command where the repository's name on GitHub isn't known."""

SUBMITTER = "reconciler-submitter"
TRAINER = "reconciler-trainer"
"""What the service accounts are called where nothing else is written."""

_ACTION = re.compile(r"([A-Za-z0-9][A-Za-z0-9-]*/(?!\.{1,2}@)[A-Za-z0-9._-]+)@([0-9a-f]{40})")
_GITHUB_URL = re.compile(
    r"(?:(?:https://|ssh://git@)github\.com/|git@github\.com:)"
    r"([A-Za-z0-9][A-Za-z0-9-]*/(?!\.{1,2}(?:\.git)?/?\Z)[A-Za-z0-9._-]+?)(?:\.git)?/?"
)
_BRANCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(?:[./][A-Za-z0-9_-]+)*")


@dataclass(frozen=True, slots=True)
class Action:
    """Where the workflows take the reconciler from.

    Attributes:
        repository: `owner/name` on GitHub.
        sha: The commit's full name; all zeros where somebody has to fill it in.
    """

    repository: str = "OWNER/REPO"
    sha: str = NO_SHA

    @property
    def is_known(self) -> bool:
        """Whether nothing has to be filled in."""
        return self.sha != NO_SHA


@dataclass(frozen=True, slots=True)
class Google:
    """An environment in Google Cloud.

    Attributes:
        name: What `--env` calls it.
        project: The project's id.
        location: The region.
        staging_bucket: Without `gs://`, as the claims bucket.
        claims_bucket: Where claims are kept.
        submitter: The service account that the workflow acts as, and whose tokens carry each create.
        trainer: The service account that jobs run as; "" where it is the project's default.
        instance: Keeps it apart from another environment with its project and location; "" for none.
    """

    name: str
    project: str
    location: str
    staging_bucket: str
    claims_bucket: str
    submitter: str
    trainer: str
    instance: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What `reconciler init` was asked for, and what it found.

    Attributes:
        source: The id that marks the repository's jobs.
        repository: `owner/name` on GitHub, or NO_REPOSITORY.
        branch: The branch whose jobs are applied.
        action: Where the workflows take the reconciler from.
        google: The environment in Google Cloud; None where the embedded service is all.
    """

    source: str
    repository: str = NO_REPOSITORY
    branch: str = "main"
    action: Action = Action()
    google: Google | None = None

    @property
    def is_on_github(self) -> bool:
        """Whether the repository's name there is known."""
        return self.repository != NO_REPOSITORY


def service_account(name: str, project: str) -> str:
    """The e-mail address of a project's service account; that of `example.com:p` is below `p.example.com`."""
    domain, _, own = project.rpartition(":")
    return f"{name}@{own}{'.' if domain else ''}{domain}.iam.gserviceaccount.com"


def action_of(text: str) -> Action:
    """`OWNER/REPO@SHA` as an action; raises UsageError for anything but a whole commit."""
    match = _ACTION.fullmatch(text)
    if match is None:
        raise UsageError(
            "--action is not of the form OWNER/REPO@SHA",
            hint="name a repository on GitHub, and all 40 digits of one of its commits: a tag can be moved",
        )
    return Action(match[1], match[2])


def github_repository(url: str) -> str | None:
    """The `owner/name` that a remote's URL means on github.com; None for any other URL."""
    match = _GITHUB_URL.fullmatch(url)
    return match[1] if match else None


def is_plain_branch(name: str) -> bool:
    """Whether a branch's name needs no quoting in YAML, in a shell and in an expression."""
    return _BRANCH.fullmatch(name) is not None


def source_id(name: str, random: str) -> str:
    """An id for the jobs of a repository: what its name gives, and `random`, which keeps it apart."""
    words = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")
    return f"{words if words[:1].isalpha() else 'jobs'}-{random}"


_FOLDER = Path(__file__).resolve().parent / "templates"

RENEWED = "Written, and after an upgrade renewed, by `reconciler init`"
"""Stands in a file that is not kept as it is."""


def template(name: str) -> str:
    """The file `name` of `templates/`, as it is."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def settings(wanted: Wanted) -> str:
    """`reconciler.yaml`."""
    text = template("reconciler.yaml").replace('"my-jobs"', json.dumps(wanted.source))
    if wanted.google is None:
        return text
    guidance, _, rest = text.partition("\nenvironments:\n")
    local, images, end = rest.partition("\n# What the local service")
    return f"{guidance}\nenvironments:\n{local}{environment(wanted.google)}{images}{end}"


def environment(google: Google) -> str:
    """An entry of `environments` in `reconciler.yaml`."""
    text = template("environment.yaml")
    if google.instance:
        location = '    location: "my-location"\n'
        text = text.replace(location, f"{location}    instance: {json.dumps(google.instance)}\n")
    return _with_names(text, google)


def plan_workflow(wanted: Wanted) -> str:
    """The workflow of pull requests."""
    # The plan fills what a manifest leaves out as this environment does; nothing of it is asked.
    of_google = f"        with:\n          environment: {wanted.google.name}\n" if wanted.google else ""
    return with_action(template("workflows/plan.yml") + of_google, wanted.action)


def apply_workflow(wanted: Wanted) -> str:
    """The workflow of the branch whose jobs are applied."""
    if wanted.google is None:
        text = template("workflows/apply-local.yml")
    else:
        text = _with_names(template("workflows/apply.yml"), wanted.google)
    return with_action(text.replace("[main]", f'["{wanted.branch}"]'), wanted.action)


def _with_names(text: str, google: Google) -> str:
    names = {
        "my-project": google.project,
        "my-location": google.location,
        "my-staging-bucket": google.staging_bucket,
        "my-claims-bucket": google.claims_bucket,
        "my-submitter": google.submitter,
        "my-trainer": google.trainer,
        "production": google.name,
    }
    return re.sub("|".join(names), lambda stand_in: json.dumps(names[stand_in[0]])[1:-1], text)


def with_action(text: str, action: Action) -> str:
    """A text in which the action is named, and nothing left to fill in where it is known."""
    if not action.is_known:
        return text
    kept = (line for line in text.splitlines(keepends=True) if "# FILL IN" not in line)
    return "".join(kept).replace(Action().repository, action.repository).replace(NO_SHA, action.sha)


def schema(name: str) -> str:
    """A schema for editors, marked as a copy."""
    marked = {"$comment": f"{RENEWED} {__version__}.", **schemas.document(name)}
    return json.dumps(marked, indent=1) + "\n"


APPLY_WORKFLOW = ".github/workflows/reconciler-apply.yml"
PLAN_WORKFLOW = ".github/workflows/reconciler-plan.yml"
README = "README.md"
EXAMPLE = ("jobs/iris.yaml", "jobs/trainers/iris/train.py")
CONFIG_SCHEMA = "config.schema.json"


class Existing(Enum):
    """What becomes of a file that is there."""

    KEPT = "kept"
    EXTENDED = "extended"
    RENEWED = "renewed"
    FILLED_IN = "filled in"


@dataclass(frozen=True, slots=True)
class File:
    """A file that the set-up has.

    Attributes:
        path: From the repository's root, with "/".
        text: What is in it; with `EXTENDED`, what is added at its end.
        existing: What becomes of one that is there. `RENEWED` is one with the mark of such a file only, and
            `FILLED_IN` one where the action is still to be named.
        holds: A pattern of one that is there and needs nothing from `text`; any does where it is "".
        missing: What one that is there may need; by default `text`.
    """

    path: str
    text: str
    existing: Existing = Existing.KEPT
    holds: str = ""
    missing: str = ""

    def is_held_by(self, text: str) -> bool:
        """Whether a file with this text needs nothing of this one's."""
        return re.search(self.holds, text, re.MULTILINE) is not None


def files_of(wanted: Wanted, example: Iterable[str] = ()) -> tuple[File, ...]:
    """All files of a set-up, sorted by path.

    Args:
        wanted: What the repository is to be set up as.
        example: Which of README and EXAMPLE there are to be.
    """
    found = [*_settings(wanted), *_of_git(), *_of_editors(), *_of_pre_commit(wanted), *_workflows(wanted)]
    found += map(_same, example)
    return tuple(sorted(found, key=lambda file: file.path))


def _same(path: str) -> File:
    return File(path, template(path))


def _settings(wanted: Wanted) -> Iterator[File]:
    text = settings(wanted)
    if wanted.google is None:
        yield File(FILE_NAME, text)
        return
    missing = f"source: {wanted.source}\nenvironments:\n{environment(wanted.google)}"
    yield File(FILE_NAME, text, holds=rf"^\s*{wanted.google.name}:", missing=missing)


def _of_git() -> Iterator[File]:
    ignored = r"^/?\.reconciler/?\s*$"
    yield File(".gitignore", template("gitignore"), Existing.EXTENDED, ignored)
    yield File(".gitattributes", template("gitattributes"), holds=r"^[^#\n].*\beol=lf\b")


def _of_editors() -> Iterator[File]:
    for name in (ANY_KIND, CONFIG_SCHEMA):
        yield File(f".vscode/{name}", schema(name), Existing.RENEWED)
    yield File(".vscode/settings.json", template("vscode/settings.json"), holds=re.escape(ANY_KIND))
    yield File(".vscode/extensions.json", template("vscode/extensions.json"))


def _of_pre_commit(wanted: Wanted) -> Iterator[File]:
    # Where the action isn't known, the hook is the command that is installed: it works at once.
    name = "pre-commit-config.yaml" if wanted.action.is_known else "pre-commit-local.yaml"
    text = with_action(template(name), wanted.action)
    yield File(".pre-commit-config.yaml", text, holds=r"\breconciler-validate\b")


def _workflows(wanted: Wanted) -> Iterator[File]:
    yield File(APPLY_WORKFLOW, apply_workflow(wanted), Existing.FILLED_IN)
    yield File(PLAN_WORKFLOW, plan_workflow(wanted), Existing.FILLED_IN)


_READ_BY_GIT = (".gitignore", ".gitattributes")


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one file.

    Attributes:
        path: From the repository's root, with "/".
        verb: `wrote`, `kept`, `extended`, `renewed` or `filled in`.
        data: What is written; None where it is kept.
        before: What was there; None where nothing was.
        missing: What a person may want to add to a file that is kept; "" for nothing.
    """

    path: str
    verb: str
    data: bytes | None
    before: bytes | None
    missing: str = ""

    @property
    def after(self) -> bytes:
        """What is there afterwards."""
        return self.before or b"" if self.data is None else self.data

    @property
    def names_no_action(self) -> bool:
        """Whether the file still has to be told where the workflows take the reconciler from."""
        return NO_SHA.encode() in self.after


def changes(root: Path, files: Iterable[File], action: Action) -> tuple[Change, ...]:
    """What becomes of each file below `root`, where `action` is named; nothing is written.

    Raises ReconcilerError with everything that is in the way.
    """
    found: list[Change] = []
    obstacles: list[str] = []
    for file in files:
        obstacle = _obstacle(root, file.path)
        if obstacle:
            obstacles.append(obstacle)
        else:
            found.append(_change(root, file, action))
    if obstacles:
        raise ReconcilerError(
            f"nothing was written: {'; '.join(dict.fromkeys(obstacles))}",
            hint="move it away, and run `reconciler init` again",
        )
    return tuple(found)


def write(root: Path, found: Sequence[Change]) -> None:
    """Make these changes below `root`; raises ReconcilerError where one fails, and then none was made."""
    folders: list[Path] = []
    done: list[Change] = []
    path = ""
    try:
        for change in found:
            path = change.path
            if change.data is not None:
                _make_folders(root, path, folders)
                _put(root / path, change.data, is_new=change.before is None)
                done.append(change)
    except BaseException as error:
        _take_back(root, done, folders)
        if not isinstance(error, OSError):
            raise
        raise ReconcilerError(
            f"{quote(path)} can't be written, and nothing was: {error.strerror}",
            hint="see to it, and run `reconciler init` again",
        ) from None


def _take_back(root: Path, done: Sequence[Change], folders: Sequence[Path]) -> None:
    for change in reversed(done):
        if change.before is None:
            (root / change.path).unlink()
        else:
            _put(root / change.path, change.before, is_new=False)
    for folder in reversed(folders):
        folder.rmdir()


def _obstacle(root: Path, path: str) -> str:
    """What keeps a file from being there, as a clause; "" for nothing."""
    parts = path.split("/")
    for count in range(1, len(parts)):
        folder = root.joinpath(*parts[:count])
        name = quote("/".join(parts[:count]))
        if not os.path.lexists(folder):
            return ""
        if not folder.resolve().is_relative_to(root.resolve()):
            return f"{name} is a link that leads out of the repository"
        if not folder.is_dir():
            return f"{name} is no folder"
    return _obstacle_at(root / path, path)


def _obstacle_at(file: Path, path: str) -> str:
    if not os.path.lexists(file):
        return ""
    mode = file.lstat().st_mode
    if S_ISDIR(mode):
        return f"{quote(path)} is a folder"
    if S_ISLNK(mode):
        if path in _READ_BY_GIT:
            return f"{quote(path)} is a link, which git doesn't follow"
        return "" if file.is_file() else f"{quote(path)} is a link that leads to no file"
    return "" if S_ISREG(mode) else f"{quote(path)} is no ordinary file"


def _change(root: Path, file: File, action: Action) -> Change:
    target = root / file.path
    if not target.exists():
        return Change(file.path, "wrote", file.text.encode(), None)
    before = _read(target, file.path)
    there = before.decode("utf-8", "surrogateescape")
    if file.existing is not Existing.KEPT and not target.is_symlink():
        after = _edited(file, there, action).encode("utf-8", "surrogateescape")
        if after != before:
            return Change(file.path, file.existing.value, after, before)
    missing = "" if file.is_held_by(there) else file.missing or file.text
    return Change(file.path, "kept", None, before, missing)


def _edited(file: File, there: str, action: Action) -> str:
    if file.existing is Existing.FILLED_IN:
        return with_action(there, action)
    if file.existing is Existing.RENEWED:
        return file.text if RENEWED in there else there
    if file.is_held_by(there):
        return there
    return f"{there}\n{file.text}" if there and not there.endswith("\n") else there + file.text


def _read(file: Path, path: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ReconcilerError(f"{quote(path)} can't be read: {error.strerror}") from None


def _make_folders(root: Path, path: str, made: list[Path]) -> None:
    for folder in reversed((root / path).parents):
        if folder.is_relative_to(root) and not folder.exists():
            folder.mkdir()
            made.append(folder)


def _put(file: Path, data: bytes, *, is_new: bool) -> None:
    """Write the whole file or nothing of it; a new one takes no other's place."""
    if is_new:
        with file.open("xb"):
            pass
    try:
        handle, beside = mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "wb") as opened:
                opened.write(data)
            Path(beside).chmod(file.stat().st_mode & 0o777)
            Path(beside).replace(file)
        except BaseException:
            Path(beside).unlink()
            raise
    except BaseException:
        if is_new:
            file.unlink()
        raise
