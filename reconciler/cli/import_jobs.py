"""The command `import`: manifests for jobs that people already have."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from reconciler.base.errors import ExitCode, NotFoundError, UsageError
from reconciler.base.sanitize import one_line
from reconciler.manifests.files import real_path
from reconciler.manifests.settings import find_root
from reconciler.model.job import PREFIX
from reconciler.model.manifest import ML_V1, Selection
from reconciler.operations.importing.jobs import Importer, Plan, Source, source_of, source_of_words, write
from reconciler.operations.importing.marks import shown
from reconciler.operations.importing.sources import MAX_SOURCE

_MOST_VALUE = 64 * 1024


def run(arguments: argparse.Namespace) -> ExitCode:
    """Write manifests of the jobs in the sources, or print them, and report what is left to do."""
    working = real_path(Path.cwd())
    root = real_path(find_root(Path.cwd()))
    values = _values(arguments.set, arguments.set_file, working)
    output = working / arguments.output if arguments.output else root / "jobs"
    importer = Importer(root, working, output, values, run=arguments.run)
    plan = importer.plan([_live(arguments)] if arguments.live else _sources(arguments, working))
    if arguments.dry_run:
        for text in plan.texts.values():
            print(text, end="" if text is [*plan.texts.values()][-1] else "---\n")
    else:
        write(plan, force=arguments.force)
    report = _report(plan, root, is_dry=arguments.dry_run)
    print(
        "\n".join(one_line(str(shown(line))) for line in report),
        file=sys.stderr if arguments.dry_run else sys.stdout,
    )
    return ExitCode.DONE


def _sources(arguments: argparse.Namespace, working: Path) -> list[Source]:
    words: Sequence[str] = arguments.sources
    start = words.index("--") if "--" in words else len(words)
    needs_stdin = "-" in words or any(word == "--config=-" for word in words)
    stdin = sys.stdin.buffer.read(MAX_SOURCE + 1) if needs_stdin else None
    sources = [
        Source("-", working, stdin or b"") if name == "-" else source_of(name, working)
        for name in words[:start]
    ]
    if words[start:]:
        text = None if stdin is None else stdin.decode("utf-8-sig", "replace")
        sources.append(source_of_words(words[start + 1 :], working, text))
    if not sources:
        hint = "name files, or write `reconciler import -- gcloud ai custom-jobs create …`"
        raise UsageError("import needs a source", hint=hint)
    return sources


def _live(arguments: argparse.Namespace) -> Source:
    """Return the environment's jobs that this tool hasn't submitted; raise NotFoundError without any."""
    # Slow to import, and needed by no other source.
    from reconciler.cli.context import context_of
    from reconciler.google.engines import api_versions
    from reconciler.operations.importing.live import live_job

    context = context_of(arguments)
    selection = Selection((), tuple(arguments.terms))
    found = []
    with context.session(start=False) as session:
        for version in api_versions():
            if version == ML_V1 and context.environment.engine != "local":
                continue  # the service was switched off
            engine = session.engine(version)
            for job in engine.jobs({}):
                names = {job.job_name, job.resource, job.resource.rpartition("/")[2]}
                is_named = not arguments.sources or names & {*arguments.sources}
                is_own = any(key.startswith(PREFIX) for key in job.labels)
                if is_named and not is_own and selection.has_labels(job.labels):
                    found.append(live_job(engine.read(job.kind, job.resource).body))
    if not found:
        hint = "jobs that this tool has submitted have manifests already; see `reconciler status`"
        raise NotFoundError("there is no such job to import", hint=hint)
    return Source(f"environment {context.environment.name}", Path.cwd(), live=found)


def _values(pairs: Sequence[str], files: Sequence[str], working: Path) -> Mapping[str, str]:
    """Return the values that the flags --set and --set-file give."""
    values = {}
    for flag, given in (("--set", pairs), ("--set-file", files)):
        for pair in given:
            name, equals, text = pair.partition("=")
            if not equals or not name:
                raise UsageError(f"{flag} takes NAME=VALUE, not {pair!r}", hint=f"write {flag} BUCKET=…")
            if flag == "--set-file":
                found = source_of(text, working).data
                if len(found) > _MOST_VALUE:
                    raise UsageError(f"the file of {name} is too large", hint="at most 64 KB are read")
                text = found.decode("utf-8", "replace").rstrip("\r\n")
            values[name] = text
    return values


def _report(plan: Plan, root: Path, *, is_dry: bool) -> list[str]:
    lines = []
    for job, place in plan.jobs:
        path = place.relative_to(root).as_posix() if place.is_relative_to(root) else str(place)
        done = "unchanged" if place in plan.unchanged else "would be written" if is_dry else "written"
        lines.append(f"{path}: {done}, {job.kind} {job.name}, from {job.source}")
        lines += [f"    fill in {sentence}" for sentence in plan.unfilled[job.name]]
        lines += [f"    note: {note}" for note in job.notes]
        if job.suspended:
            lines.append(f"    suspended: {job.suspended}")
    submitted = plan.submitted
    what = ", ".join(submitted) if submitted else "none of these jobs"
    return [*lines, f"The next apply submits {what}."]
