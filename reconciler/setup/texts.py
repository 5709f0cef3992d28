"""The texts of the files, which are kept as files under `templates/` and are valid as they stand there."""

from __future__ import annotations

import json
import re
from pathlib import Path

from reconciler import __version__, schemas
from reconciler.setup.wanted import NO_SHA, Action, Google, Wanted

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
