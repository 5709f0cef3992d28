"""`reconciler import`: manifests for jobs that people already have."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reconciler.base.errors import ExitCode, NotFoundError, ReconcilerError, UsageError
from reconciler.base.sanitize import one_line
from reconciler.convert.importing.jobs import (
    Importer,
    ImportPlan,
    ImportSource,
    source_of,
    source_of_words,
    write,
)
from reconciler.convert.importing.placeholders import shown
from reconciler.convert.importing.sources import MAX_SOURCE
from reconciler.git.index import GitIndex
from reconciler.manifests.files import real_path
from reconciler.manifests.settings import find_root
from reconciler.model.selection import Selection

if TYPE_CHECKING:
    from reconciler.operations.session import Session
    from reconciler.submission.adoption import Adopted
from reconciler.cli.context import context_of
from reconciler.cli.flag_types import path
from reconciler.cli.flags import add_labels
from reconciler.convert.adopt import adopt_jobs, find_live_jobs
from reconciler.output.text import field_line

EXAMPLES = """reconciler import train.sh Makefile config.yaml
  reconciler import --dry-run -- gcloud ai custom-jobs create --config job.yaml …"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add = parser.add_argument
    add("sources", nargs="*", metavar="SOURCE", help="files; - for standard input; or -- and a command line")
    add("-o", "--output", type=path, metavar="PATH", help="a folder, or one .yaml file (default: jobs)")
    add("--live", action="store_true", help="import the environment's own jobs; SOURCE is then a job name")
    add_labels(parser)
    add("--filter", metavar="EXPR", help="with --live, only jobs that the service's list filter selects")
    add(
        "--adopt",
        action="store_true",
        help="with --live, bind live jobs to their manifests: apply submits none of them",
    )
    add("--dry-run", action="store_true", help="print the manifests and write nothing")
    add("--force", action="store_true", help="overwrite files with other content")
    add(
        "--run",
        action="store_true",
        help="don't suspend jobs that have ended: the next apply runs them again",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="give a variable or a placeholder <NAME> its value",
    )
    add(
        "--set-file",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="like --set, with the value from a file",
    )


_MOST_VALUE = 64 * 1024


def run(arguments: argparse.Namespace) -> ExitCode:
    """Write manifests of the jobs in the sources, or print them, and report what is left to do."""
    if arguments.live:
        return _import_live(arguments)
    for flag, given in (
        ("-l", arguments.terms),
        ("--filter", arguments.filter),
        ("--adopt", arguments.adopt),
    ):
        if given:
            raise UsageError(f"{flag} needs --live", hint="see `reconciler import --help`")
    importer = _importer(arguments)
    plan = importer.plan(_sources(arguments, real_path(Path.cwd())))
    _write(plan, arguments)
    _print_report(_report(plan, arguments, {}), arguments)
    return ExitCode.DONE


def _importer(arguments: argparse.Namespace) -> Importer:
    working = real_path(Path.cwd())
    root = _root()
    output = working / arguments.output if arguments.output else root / "jobs"
    values = _values(arguments.set, arguments.set_file, working)
    return Importer(root, working, output, values, run=arguments.run, keep=arguments.adopt)


def _root() -> Path:
    return real_path(find_root(Path.cwd()))


def _write(plan: ImportPlan, arguments: argparse.Namespace) -> None:
    if not arguments.dry_run:
        write(plan, force=arguments.force)
        return
    for text in plan.texts.values():
        print(text, end="" if text is [*plan.texts.values()][-1] else "---\n")


def _import_live(arguments: argparse.Namespace) -> ExitCode:
    """Import jobs of the environment; with --adopt, bind those that haven't ended."""
    if arguments.adopt and arguments.dry_run:
        raise UsageError("--adopt can't be combined with --dry-run", hint="remove one of the two")
    context = context_of(arguments)
    with context.session(start=arguments.adopt) as session:
        plan = _importer(arguments).plan([_live(arguments, session)])
        # The manifests are suspended until their jobs are bound, so that no apply submits them meanwhile.
        _write(plan, arguments)
        try:
            adopted = _adopt(plan, session) if arguments.adopt else {}
        except ReconcilerError:
            # The manifests are written all the same.
            _print_report(_report(plan, arguments, {}), arguments)
            raise
    bound = {name for name, result in adopted.items() if result.claim}
    if bound:
        plan = plan.with_adopted(bound)
        write(plan, force=True)
    _print_report(_report(plan, arguments, adopted), arguments)
    return ExitCode.DONE if len(bound) == len(adopted) else ExitCode.FAILED


def _adopt(plan: ImportPlan, session: Session) -> Mapping[str, Adopted]:
    return adopt_jobs(session, plan.live)


def _sources(arguments: argparse.Namespace, working: Path) -> list[ImportSource]:
    words: Sequence[str] = arguments.sources
    start = words.index("--") if "--" in words else len(words)
    needs_stdin = "-" in words or any(word == "--config=-" for word in words)
    stdin = _standard_input() if needs_stdin else None
    sources = [
        ImportSource("-", working, stdin or b"") if name == "-" else source_of(name, working)
        for name in words[:start]
    ]
    if words[start:]:
        text = None if stdin is None else stdin.decode("utf-8-sig", "replace")
        sources.append(source_of_words(words[start + 1 :], working, text))
    if not sources:
        hint = "name files, or write `reconciler import -- gcloud ai custom-jobs create …`"
        raise UsageError("import needs a source", hint=hint)
    return sources


def _standard_input() -> bytes:
    try:
        return sys.stdin.buffer.read(MAX_SOURCE + 1)
    except OSError as error:
        reason = "it is closed" if error.errno == errno.EBADF else error.strerror
        hint = "pipe a source into the command, or name files"
        raise ReconcilerError(f"standard input can't be read: {reason}", hint=hint) from None


def _live(arguments: argparse.Namespace, session: Session) -> ImportSource:
    """Return the environment's jobs that this tool hasn't submitted; raise NotFoundError without any."""
    jobs = find_live_jobs(
        session,
        arguments.sources,
        Selection((), tuple(arguments.terms)),
        arguments.filter or "",
        with_adopted=arguments.adopt,
    )
    if not jobs.jobs:
        hint = "jobs that this tool has submitted have manifests already; see `reconciler status`"
        left_out = f"; {_left_out(jobs.left_out)}" if jobs.left_out else ""
        raise NotFoundError(f"there is no such job to import{left_out}", hint=hint)
    return ImportSource(f"environment {session.environment.name}", Path.cwd(), live=jobs)


def _values(pairs: Sequence[str], files: Sequence[str], working: Path) -> Mapping[str, str]:
    """Return the values that the flags --set and --set-file give."""
    values = {}
    for flag, given in (("--set", pairs), ("--set-file", files)):
        for pair in given:
            name, equals, text = pair.partition("=")
            if not equals or not name:
                raise UsageError(f"{flag} takes NAME=VALUE, not {pair!r}", hint=f"write {flag} BUCKET=…")
            if flag == "--set-file":
                data = source_of(text, working).data
                if len(data) > _MOST_VALUE:
                    raise UsageError(f"the file of {name} is too large", hint="at most 64 KB are read")
                text = data.decode("utf-8", "replace").rstrip("\r\n")
            values[name] = text
    return values


def _print_report(lines: Sequence[str], arguments: argparse.Namespace) -> None:
    said = "\n".join(one_line(str(shown(line))) for line in lines)
    print(said, file=sys.stderr if arguments.dry_run else sys.stdout)


def _report(plan: ImportPlan, arguments: argparse.Namespace, adopted: Mapping[str, Adopted]) -> list[str]:
    root, lines = _root(), []
    for job, file in plan.jobs:
        path = file.relative_to(root).as_posix() if file.is_relative_to(root) else str(file)
        is_same = file in plan.unchanged or file in plan.kept
        done = "unchanged" if is_same else "would be written" if arguments.dry_run else "written"
        lines.append(f"{path}: {done}, {job.kind} {job.name}, from {job.source}")
        if file not in plan.kept:
            lines += [f"    fill in {sentence}" for sentence in plan.unfilled[job.name]]
            lines += [f"    note: {note}" for note in job.notes]
        result = adopted.get(job.name)
        lines += _adoption(job.live, result) if result else []
        if file in plan.kept and not (result and result.claim):
            lines.append("    note: the manifest stays as it was; see `reconciler plan`")
        if job.suspended and file not in plan.kept:
            lines.append(f"    suspended: {job.suspended}")
    if plan.left_out:
        lines.append(f"{_left_out(plan.left_out)}.")
    submitted = plan.submitted(root, GitIndex(root, os.environ))
    what = ", ".join(submitted) if submitted else "none of these jobs"
    return [*lines, f"The next apply submits {what}."]


def _left_out(pipelines: Sequence[str]) -> str:
    """Return a sentence about the pipelines that run no code of the user's, without its full stop."""
    count = len(pipelines)
    what = "1 training pipeline that runs" if count == 1 else f"{count} training pipelines that run"
    return f"left out {what} no code of yours: {', '.join(pipelines)}"


def _adoption(resource: str, result: Adopted) -> Iterator[str]:
    """Yield lines about the adoption of a job, with the differences that prevent it."""
    if result.claim:
        yield f"    adopted: its job is {resource}"
        if result.uncompared:
            names = ", ".join(result.uncompared)
            yield f"    note: the service's answer lacks {names}, so the adoption didn't compare it"
        return
    yield f"    not adopted: {resource} {result.why}"
    if result.fields:
        yield from (f"        {field_line(field)}" for field in result.fields)
