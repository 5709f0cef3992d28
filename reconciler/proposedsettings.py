"""What the settings of the work tree change over those of a commit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reconciler.config import FILE_NAME, LOCAL, Config, Environment, from_document, read_document
from reconciler.diagnostics import Problem, quote
from reconciler.plan import FieldChange, Target
from reconciler.planning.settings import changed_settings
from reconciler.reconcile import target_of
from reconciler.revision import Revision

_NOT_COMPARED = f"The jobs aren't compared until {FILE_NAME} is mended."
_BASE_INVALID = f"The base's {FILE_NAME} isn't valid: each setting counts as new, for its jobs too."
_ELSEWHERE = (
    "Where jobs run, or where it is recorded what ran, is another place: what ran before isn't known there, "
    "so jobs that don't differ may be submitted again."
)


@dataclass(frozen=True, slots=True)
class ProposedSettings:
    """One environment by the settings of both sides.

    Attributes:
        target: Where its jobs are for, as far as that is known.
        sides: The environment of the base's jobs and of the work tree's; None where there are problems.
        changes: The fields that differ.
        notes: What that means, each a sentence.
        problems: Why the work tree's settings can't be used.
    """

    target: Target
    sides: tuple[Environment, Environment] | None
    changes: tuple[FieldChange, ...]
    notes: tuple[str, ...]
    problems: tuple[Problem, ...]


def proposed_settings(root: Path, commit: Revision, name: str) -> ProposedSettings:
    """The settings of the work tree at `root` against those of the commit.

    Args:
        root: The work tree's.
        commit: The base.
        name: The environment's.

    Raises:
        UsageError: Neither side has such an environment.
        ReconcilerError: The commit can't be read.
    """
    commit.lay_out((FILE_NAME,), _is_settings)
    old, wrong = read_document(commit.root)
    new, problems = read_document(root)
    before, after = from_document(commit.root, old), from_document(root, new)
    was = None if wrong else before.environments.get(name)
    changes = () if problems else changed_settings(old, new, name)
    if not problems:
        problems = [*_gone(root, commit.root, after, name if was else LOCAL)]
    if problems:
        target = target_of(before, was) if was else Target(name, "", "", "")
        return ProposedSettings(target, None, changes, (_NOT_COMPARED,), tuple(problems))
    now = after.environment(name)
    if wrong:
        notes = [_BASE_INVALID]
    elif was is None:
        notes = [f"The base has no environment {quote(name)}: its jobs are taken with this one's settings."]
    else:
        notes = [_ELSEWHERE] * (_place(before, was) != _place(after, now))
    return ProposedSettings(target_of(after, now), (was or now, now), changes, tuple(notes), ())


def _gone(root: Path, base: Path, after: Config, name: str) -> Iterator[Problem]:
    """What the base has and the work tree needs; `name` is of an environment that the base has."""
    if (base / FILE_NAME).exists() and not (root / FILE_NAME).exists():
        hint = "put it back; one that sets nothing any more may be empty"
        yield Problem(FILE_NAME, 1, 1, "", "the file is gone, and all settings with it", hint)
    elif name not in after.environments:
        known = ", ".join(sorted(after.environments))
        message = f"there is no environment {quote(name)} any more, which the plan is for"
        yield Problem(FILE_NAME, 1, 1, "/environments", message, f"the file has: {known}")


def _place(config: Config, environment: Environment) -> tuple[object, ...]:
    """By what runs and the records of them are found."""
    records = environment.claims_bucket, environment.instance, dict(environment.endpoints)
    return (config.source, environment.engine, environment.project, environment.location, *records)


def _is_settings(name: str) -> bool:
    return name == FILE_NAME
