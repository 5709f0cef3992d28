"""Files of a set-up, written all or none; existing files are not overwritten."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from reconciler import __version__
from reconciler.base.diagnostics import quote
from reconciler.base.errors import ReconcilerError, UsageError
from reconciler.base.replaced_files import replace_files
from reconciler.manifests import schemas
from reconciler.manifests.schemas import ANY_KIND
from reconciler.manifests.settings import FILE_NAME, Environment

NO_SHA = "0" * 40
"""Placeholder for the commit of the action, in a file."""

NO_REPOSITORY = "OWNER/NAME"
"""Placeholder for an unknown GitHub repository, in a command."""

SUBMITTER = "reconciler-submitter"
TRAINER = "reconciler-trainer"
"""Default names of the service accounts."""

_ACTION = re.compile(r"([A-Za-z0-9][A-Za-z0-9-]*/(?!\.{1,2}@)[A-Za-z0-9._-]+)@([0-9a-f]{40})")
_GITHUB_URL = re.compile(
    r"(?:(?:https://|ssh://git@)github\.com/|git@github\.com:)"
    r"([A-Za-z0-9][A-Za-z0-9-]*/(?!\.{1,2}(?:\.git)?/?\Z)[A-Za-z0-9._-]+?)(?:\.git)?/?"
)
_BRANCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(?:[./][A-Za-z0-9_-]+)*")


@dataclass(frozen=True, slots=True)
class ReconcilerAction:
    """Repository (`owner/name` on GitHub) and full commit of the reconciler that the workflows use."""

    repository: str = "OWNER/REPO"
    sha: str = NO_SHA

    @property
    def is_known(self) -> bool:
        """Return True if the commit is not a placeholder."""
        return self.sha != NO_SHA


@dataclass(frozen=True, slots=True)
class Setup:
    """Parameters of a set-up.

    Attributes:
        source: The id that marks the repository's jobs.
        repository: `owner/name` on GitHub, or NO_REPOSITORY.
        branch: The branch whose jobs are applied.
        google: The environment in Google Cloud; None for the embedded service only.
    """

    source: str
    repository: str = NO_REPOSITORY
    branch: str = "main"
    action: ReconcilerAction = ReconcilerAction()
    google: Environment | None = None

    @property
    def is_on_github(self) -> bool:
        """Return True if the repository's name on GitHub is known."""
        return self.repository != NO_REPOSITORY


def service_account(name: str, project: str) -> str:
    """Return the e-mail address of a project's service account; `example.com:p` gives `p.example.com`."""
    domain, _, project_id = project.rpartition(":")
    return f"{name}@{project_id}{'.' if domain else ''}{domain}.iam.gserviceaccount.com"


def submitter_of(google: Environment) -> str:
    """Return the service account that the workflow acts as, and whose tokens carry each create."""
    return google.submitter or service_account(SUBMITTER, google.project)


def trainer_of(google: Environment) -> str:
    """Return the service account that jobs run as; "" for the project's default."""
    return str(google.defaults.get("serviceAccount") or "")


def action_of(text: str) -> ReconcilerAction:
    """Return the action for `OWNER/REPO@SHA`; raise UsageError unless it names a full commit."""
    match = _ACTION.fullmatch(text)
    if match is None:
        raise UsageError(
            "--action is not of the form OWNER/REPO@SHA",
            hint="name a repository on GitHub, and all 40 digits of one of its commits: a tag can be moved",
        )
    return ReconcilerAction(match[1], match[2])


def github_repository(url: str) -> str | None:
    """Return the `owner/name` of a remote's URL on github.com; None for any other URL."""
    match = _GITHUB_URL.fullmatch(url)
    return match[1] if match else None


def is_plain_branch(name: str) -> bool:
    """Return True if a branch name needs no quoting in YAML, a shell and an expression."""
    return _BRANCH.fullmatch(name) is not None


def source_id(name: str, random: str) -> str:
    """Return a unique id for a repository's jobs, made of its name and `random`."""
    words = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")
    return f"{words if words[:1].isalpha() else 'jobs'}-{random}"


RENEWED = "Written, and after an upgrade renewed, by `reconciler init`"
"""Mark of a file that later versions overwrite."""


def template(name: str) -> str:
    """Return the text of the file `name` of `templates/`."""
    return (Path(__file__).resolve().parent / "templates" / name).read_text(encoding="utf-8")


def settings(setup: Setup) -> str:
    """Return the text of `reconciler.yaml`."""
    text = template("reconciler.yaml").replace('"my-jobs"', json.dumps(setup.source))
    if setup.google is None:
        return text
    guidance, _, rest = text.partition("\nenvironments:\n")
    local, images, end = rest.partition("\n# What the local service")
    return f"{guidance}\nenvironments:\n{local}{environment(setup.google)}{images}{end}"


def environment(google: Environment) -> str:
    """Return an entry of `environments` in `reconciler.yaml`."""
    text = template("environment.yaml")
    if google.instance:
        location = '    location: "my-location"\n'
        text = text.replace(location, f"{location}    instance: {json.dumps(google.instance)}\n")
    return _with_names(text, google)


def plan_workflow(setup: Setup) -> str:
    """Return the workflow for pull requests."""
    # The plan is offline; the environment only supplies the defaults of its manifests.
    inputs = f"        with:\n          environment: {setup.google.name}\n" if setup.google else ""
    return with_action(template("workflows/plan.yml") + inputs, setup.action)


def apply_workflow(setup: Setup) -> str:
    """Return the workflow for the branch whose jobs are applied."""
    if setup.google is None:
        text = template("workflows/apply-local.yml")
    else:
        text = _with_names(template("workflows/apply.yml"), setup.google)
    return with_action(text.replace("[main]", f'["{setup.branch}"]'), setup.action)


def _with_names(text: str, google: Environment) -> str:
    names = {
        "my-project": google.project,
        "my-location": google.location,
        "my-staging-bucket": google.staging_bucket,
        "my-claims-bucket": google.claims_bucket,
        "my-submitter": submitter_of(google),
        "my-trainer": trainer_of(google),
        "production": google.name,
    }
    # One substitution for all names: a value that equals another placeholder is not replaced again.
    return re.sub("|".join(names), lambda match: json.dumps(names[match[0]])[1:-1], text)


def with_action(text: str, action: ReconcilerAction) -> str:
    """Return the text with the action named, and "FILL IN" comments removed, if the action is known."""
    if not action.is_known:
        return text
    kept = (line for line in text.splitlines(keepends=True) if "# FILL IN" not in line)
    return "".join(kept).replace(ReconcilerAction().repository, action.repository).replace(NO_SHA, action.sha)


def schema(name: str) -> str:
    """Return a schema for editors, marked as a copy."""
    marked = {"$comment": f"{RENEWED} {__version__}.", **schemas.document(name)}
    return json.dumps(marked, indent=1) + "\n"


APPLY_WORKFLOW = ".github/workflows/reconciler-apply.yml"
PLAN_WORKFLOW = ".github/workflows/reconciler-plan.yml"
README = "README.md"
EXAMPLE = (
    "jobs/iris.yaml",
    "jobs/trainers/iris/requirements.in",
    "jobs/trainers/iris/requirements.lock",
    "jobs/trainers/iris/train.py",
)
CONFIG_SCHEMA = "config.schema.json"


class Existing(Enum):
    """Treatment of a file that exists."""

    KEPT = "kept"
    RENEWED = "renewed"
    FILLED_IN = "filled in"


@dataclass(frozen=True, slots=True)
class File:
    """File of the set-up.

    Attributes:
        path: From the repository's root, with "/".
        text: The content.
        existing: The treatment of an existing file. `RENEWED` applies only to a file with the mark, and
            `FILLED_IN` only to a file whose action is a placeholder.
        holds: Pattern of an existing file that needs nothing from `text`; "" matches every file.
        missing: The text that an existing file may lack; by default `text`.
    """

    path: str
    text: str
    existing: Existing = Existing.KEPT
    holds: str = ""
    missing: str = ""

    def is_held_by(self, text: str) -> bool:
        """Return True if a file with this text needs nothing from this file."""
        return re.search(self.holds, text, re.MULTILINE) is not None


def files_of(setup: Setup, example: Iterable[str] = ()) -> tuple[File, ...]:
    """Return all files of a set-up, sorted by path; `example` names the files of README and EXAMPLE."""
    # Without a known action the hook runs the installed command, which needs nothing filled in.
    hook = "pre-commit-config.yaml" if setup.action.is_known else "pre-commit-local.yaml"
    hook_text = with_action(template(hook), setup.action)
    files = [
        _settings_file(setup),
        File(".gitattributes", template("gitattributes"), holds=r"^[^#\n].*\beol=lf\b"),
        *(File(f".vscode/{name}", schema(name), Existing.RENEWED) for name in (ANY_KIND, CONFIG_SCHEMA)),
        File(".vscode/settings.json", template("vscode/settings.json"), holds=re.escape(ANY_KIND)),
        File(".vscode/extensions.json", template("vscode/extensions.json")),
        File(".pre-commit-config.yaml", hook_text, holds=r"\breconciler-validate\b"),
        File(APPLY_WORKFLOW, apply_workflow(setup), Existing.FILLED_IN),
        File(PLAN_WORKFLOW, plan_workflow(setup), Existing.FILLED_IN),
        *(File(path, template(path)) for path in example),
    ]
    return tuple(sorted(files, key=lambda file: file.path))


def _settings_file(setup: Setup) -> File:
    if setup.google is None:
        return File(FILE_NAME, settings(setup))
    missing = f"source: {setup.source}\nenvironments:\n{environment(setup.google)}"
    return File(FILE_NAME, settings(setup), holds=rf"^\s*{setup.google.name}:", missing=missing)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """Change of one file.

    Attributes:
        path: From the repository's root, with "/".
        verb: `wrote`, `kept`, `renewed` or `filled in`.
        data: The new content; None if the file is kept.
        before: The old content; None if the file is missing.
        missing: The text that a person may want to add to a kept file; "" for none.
    """

    path: str
    verb: str
    data: bytes | None
    before: bytes | None
    missing: str = ""

    @property
    def after(self) -> bytes:
        """Return the content after the change."""
        return self.before or b"" if self.data is None else self.data


def changes(root: Path, files: Iterable[File], action: ReconcilerAction) -> tuple[WrittenFile, ...]:
    """Return the change of each file below `root`, without writing; fill `action` in.

    Raises ReconcilerError with every obstacle.
    """
    files = tuple(files)
    obstacles = filter(None, (_obstacle(root, file.path) for file in files))
    if listed := "; ".join(dict.fromkeys(obstacles)):
        raise ReconcilerError(
            f"nothing was written: {listed}", hint="move it away, and run `reconciler init` again"
        )
    return tuple(_change(root, file, action) for file in files)


def write(root: Path, written_files: Sequence[WrittenFile]) -> None:
    """Make these changes below `root`; undo all and raise ReconcilerError if one fails."""
    folders: list[Path] = []
    done: list[WrittenFile] = []
    path = ""
    try:
        for change in written_files:
            # Kept for the message: the error may name a temporary file.
            path = change.path
            if change.data is not None:
                _make_folders(root, path, folders)
                _put(root / path, change.data, is_new=change.before is None)
                done.append(change)
    except BaseException as error:
        # An interrupt by the user also undoes the changes.
        _undo(root, done, folders)
        if not isinstance(error, OSError):
            raise
        raise ReconcilerError(
            f"{quote(path)} can't be written, so nothing was: {error.strerror}",
            hint="correct this, and run `reconciler init` again",
        ) from None


def _undo(root: Path, done: Sequence[WrittenFile], folders: Sequence[Path]) -> None:
    for change in reversed(done):
        if change.before is None:
            (root / change.path).unlink()
        else:
            _put(root / change.path, change.before, is_new=False)
    for folder in reversed(folders):
        folder.rmdir()


def _obstacle(root: Path, path: str) -> str:
    """Return what prevents the file's creation, as a clause; "" for nothing."""
    parts = path.split("/")
    for count in range(1, len(parts)):
        folder = root.joinpath(*parts[:count])
        name = quote("/".join(parts[:count]))
        if not os.path.lexists(folder):
            return ""
        if not folder.resolve().is_relative_to(root.resolve()):
            return f"{name} is a link that leads out of the repository"
        if not folder.is_dir():
            return f"{name} is not a folder"
    return _obstacle_at(root / path, path)


def _obstacle_at(file: Path, path: str) -> str:
    if file.is_symlink():
        if path == ".gitattributes":
            return f"{quote(path)} is a link, which git doesn't follow"
        return "" if file.is_file() else f"{quote(path)} is a link that leads to no file"
    if file.is_dir():
        return f"{quote(path)} is a folder"
    return "" if file.is_file() or not file.exists() else f"{quote(path)} is not a regular file"


def _change(root: Path, file: File, action: ReconcilerAction) -> WrittenFile:
    target = root / file.path
    if not target.exists():
        return WrittenFile(file.path, "wrote", file.text.encode(), None)
    try:
        before = target.read_bytes()
    except OSError as error:
        raise ReconcilerError(f"{quote(file.path)} can't be read: {error.strerror}") from None
    # Bytes that aren't UTF-8 survive the round trip.
    text = before.decode("utf-8", "surrogateescape")
    # The rename would replace a link by a file.
    if file.existing is not Existing.KEPT and not target.is_symlink():
        after = _edited(file, text, action).encode("utf-8", "surrogateescape")
        if after != before:
            return WrittenFile(file.path, file.existing.value, after, before)
    missing = "" if file.is_held_by(text) else file.missing or file.text
    return WrittenFile(file.path, "kept", None, before, missing)


def _edited(file: File, text: str, action: ReconcilerAction) -> str:
    if file.existing is Existing.FILLED_IN:
        return with_action(text, action)
    return file.text if RENEWED in text else text


def _make_folders(root: Path, path: str, made: list[Path]) -> None:
    for folder in reversed((root / path).parents):
        if folder.is_relative_to(root) and not folder.exists():
            folder.mkdir()
            made.append(folder)


def _put(file: Path, data: bytes, *, is_new: bool) -> None:
    if is_new:
        # Exclusive creation: a file that appeared since the check is not overwritten.
        with file.open("xb"):
            pass
    try:
        # Written to a temporary file and renamed, so that no reader sees a part of it.
        replace_files({file.parent.resolve() / file.name: data})
    except BaseException:
        if is_new:
            file.unlink()
        raise
