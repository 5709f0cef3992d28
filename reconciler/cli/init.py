"""`reconciler init`."""

from __future__ import annotations

import argparse

from reconciler.claimsetup import Prepared, Step, prepare_claims
from reconciler.cli.context import context_of
from reconciler.errors import ExitCode


def run(arguments: argparse.Namespace) -> ExitCode:
    """Prepare an environment's claims bucket, and print what is left for a person to do."""
    context = context_of(arguments)
    with context.session(start=True) as session:
        prepared = prepare_claims(session)
    _print(prepared, context.config.source)
    return ExitCode.DONE


def _print(prepared: Prepared, source: str) -> None:
    made = "was made" if prepared.made else "was there already"
    where = f", in {prepared.location}" if prepared.location else ""
    print(f"The bucket {prepared.bucket} {made}{where}.")
    print(f"The claims of {source} are kept in gs://{prepared.bucket}/{prepared.folder}")
    if prepared.runs:
        print(
            f"The service has {prepared.runs} run{'' if prepared.runs == 1 else 's'} of {source} already: "
            "apply adopts those that have no claim, after comparing them."
        )
    for warning in prepared.warnings:
        _step(f"warning: {warning.why}", warning)
    if prepared.steps:
        print("\nPermissions; MEMBER is such as serviceAccount:E-MAIL, user:E-MAIL or principal://…")
    for step in prepared.steps:
        _step(step.why, step)


def _step(why: str, step: Step) -> None:
    print(f"\n{why}:\n    {step.command}")
