"""The files of a set-up, each with what becomes of one that is there already."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from reconciler.config import FILE_NAME
from reconciler.schemas import ANY_KIND
from reconciler.setup import texts
from reconciler.setup.texts import template, with_action
from reconciler.setup.wanted import Wanted

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
    text = texts.settings(wanted)
    if wanted.google is None:
        yield File(FILE_NAME, text)
        return
    missing = f"source: {wanted.source}\nenvironments:\n{texts.environment(wanted.google)}"
    yield File(FILE_NAME, text, holds=rf"^\s*{wanted.google.name}:", missing=missing)


def _of_git() -> Iterator[File]:
    ignored = r"^/?\.reconciler/?\s*$"
    yield File(".gitignore", template("gitignore"), Existing.EXTENDED, ignored)
    yield File(".gitattributes", template("gitattributes"), holds=r"^[^#\n].*\beol=lf\b")


def _of_editors() -> Iterator[File]:
    for name in (ANY_KIND, CONFIG_SCHEMA):
        yield File(f".vscode/{name}", texts.schema(name), Existing.RENEWED)
    yield File(".vscode/settings.json", template("vscode/settings.json"), holds=re.escape(ANY_KIND))
    yield File(".vscode/extensions.json", template("vscode/extensions.json"))


def _of_pre_commit(wanted: Wanted) -> Iterator[File]:
    # Where the action isn't known, the hook is the command that is installed: it works at once.
    name = "pre-commit-config.yaml" if wanted.action.is_known else "pre-commit-local.yaml"
    text = with_action(template(name), wanted.action)
    yield File(".pre-commit-config.yaml", text, holds=r"\breconciler-validate\b")


def _workflows(wanted: Wanted) -> Iterator[File]:
    yield File(APPLY_WORKFLOW, texts.apply_workflow(wanted), Existing.FILLED_IN)
    yield File(PLAN_WORKFLOW, texts.plan_workflow(wanted), Existing.FILLED_IN)
