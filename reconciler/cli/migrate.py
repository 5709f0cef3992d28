"""`reconciler migrate`: manifests of AI Platform's jobs, or of ended images, as manifests for Vertex AI."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import date
from difflib import unified_diff
from typing import Any

from reconciler.base.diagnostics import counted
from reconciler.base.errors import ExitCode, InvalidError
from reconciler.base.replaced_files import replace_files
from reconciler.base.sanitize import one_line
from reconciler.cli import print_json, print_message, print_paged
from reconciler.cli.context import context_of
from reconciler.cli.flags import add_format, add_paths
from reconciler.cli.problems import print_problems
from reconciler.convert.migrating.jobs import MigratedJob, Migration, Options, migrate
from reconciler.convert.migrating.report import FieldRow
from reconciler.convert.migrating.rules import VERDICTS
from reconciler.model.plan import FORMAT_VERSION
from reconciler.output.document import code, fence, text
from reconciler.output.document import joined as blocks

EXAMPLES = """reconciler migrate jobs/census.yaml
  reconciler migrate --write --format markdown > migration.md"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add = parser.add_argument
    add_paths(parser)
    add_format(parser, "text", "markdown", "json")
    add("--write", action="store_true", help="replace the manifests: all of them or none")
    add("--run", action="store_true", help="don't suspend the migrated jobs: the next apply submits them")
    add("--image", help="run Python packages whose image is past its end in containers of this image")


_EXACT = VERDICTS[-1]


def run(arguments: argparse.Namespace) -> ExitCode:
    """Migrate manifests, or show what would change; report each field."""
    context = context_of(arguments)
    options = Options(run=arguments.run, image=arguments.image or "", today=date.today())
    migration = migrate(context.config, context.environment, arguments.paths, options)
    is_written = bool(arguments.write and migration.texts and not migration.problems)
    if is_written:
        left = replace_files(migration.contents) & {path.name for path in migration.contents}
        if left:
            message = f"an earlier migration was killed before it had replaced {counted(len(left), 'file')}"
            print_message(f"{message}; this one has completed it", arguments.log_format)
    if arguments.format == "json":
        print_json(_json(migration, is_written))
    elif arguments.format == "markdown":
        print(_markdown(migration, is_written))
    else:
        print_paged(_text(migration, is_written))
    print_problems(migration.warnings, arguments.log_format)
    if migration.problems:
        raise InvalidError("nothing is migrated", problems=migration.problems)
    return ExitCode.DONE


def _json(migration: Migration, is_written: bool) -> dict[str, Any]:
    return {
        "formatVersion": FORMAT_VERSION,
        "written": is_written,
        "jobs": [
            {
                "name": job.name,
                "jobName": job.job_name or None,
                "path": job.path,
                "line": job.line,
                "kind": job.kind,
                "suspended": job.suspended,
                "fields": [
                    {
                        "source": row.source,
                        "target": row.target or None,
                        "verdict": row.verdict,
                        "sentence": row.sentence,
                        "line": line,
                    }
                    for line, row in job.rows
                ],
                "code": [
                    {
                        "path": location.path or None,
                        "line": location.line or None,
                        "topic": location.topic,
                        "sentence": location.sentence,
                    }
                    for location in job.code
                ],
            }
            for job in migration.jobs
        ],
        "files": [{"path": path, "diff": "\n".join(_diff(migration, path))} for path in migration.texts],
        "submitted": migration.submitted,
    }


def _diff(migration: Migration, path: str) -> list[str]:
    before, after = (data.decode("utf-8", "replace").splitlines() for data in migration.texts[path])
    return [line.rstrip("\n") for line in unified_diff(before, after, f"a/{path}", f"b/{path}", lineterm="")]


def _end(migration: Migration, is_written: bool) -> list[str]:
    if not migration.jobs:
        files = counted(migration.files, "file")
        return [f"There is nothing to migrate in {files}."]
    jobs = counted(len(migration.jobs), "job")
    if migration.problems:
        return [f"Nothing is written: {counted(len(migration.problems), 'problem')} to solve first."]
    names = ", ".join(migration.submitted) or "none of these jobs: remove suspend from those that are to run"
    done = f"{jobs} migrated." if is_written else f"{jobs} to migrate; --write replaces the manifests."
    return [done, f"The next apply submits {names}."]


# --- Text -----------------------------------------------------------------------------------------------


def _text(migration: Migration, is_written: bool) -> str:
    lines = [line for job in migration.jobs for line in (*_job_text(job), "")]
    for path in () if is_written or migration.problems else migration.texts:
        lines += [*_diff(migration, path), ""]
    return "\n".join(one_line(line) for line in [*lines, *_end(migration, is_written)])


def _job_text(job: MigratedJob) -> Iterator[str]:
    yield f"{job.path}:{job.line}: {job.name} {_change(job)}"
    for verdict in VERDICTS[:-1]:
        rows = [pair for pair in job.rows if pair[1].verdict == verdict]
        if rows:
            yield f"  {verdict}"
        for line, row in rows:
            yield f"    {_place(job, line, row)}{row.source}{_arrow(row)}"
            yield f"        {row.sentence}"
    exact = [row.source for _, row in job.rows if row.verdict == _EXACT]
    if exact:
        yield f"  {_EXACT}"
        yield f"    {', '.join(dict.fromkeys(exact))}"
    if job.code:
        yield "  in the code"
    for location in job.code:
        where = f"{location.path}:{location.line}: " if location.path else ""
        yield f"    {where}{location.sentence}"


def _change(job: MigratedJob) -> str:
    return "gets containers for its Python package" if job.is_moved else f"becomes a {job.kind}"


def _place(job: MigratedJob, line: int, row: FieldRow) -> str:
    return f"{job.path}:{line}: " if row.keys else ""


def _arrow(row: FieldRow) -> str:
    return f" -> {row.target}" if row.target else ""


# --- Markdown -------------------------------------------------------------------------------------------


def _markdown(migration: Migration, is_written: bool) -> str:
    parts = ["## Migration to Vertex AI" if migration.jobs else ""]
    parts += [_job_markdown(job) for job in migration.jobs]
    for path in migration.texts:
        diff = fence(_diff(migration, path), "diff")
        parts.append(f"<details><summary>{code(path)}</summary>\n\n{diff}\n\n</details>")
    names = ", ".join(code(name) for name in migration.submitted)
    end = [text(line) for line in _end(migration, is_written)]
    if names and not migration.problems:
        end[-1] = f"The next apply submits {names}."
    return blocks(*parts, "\n".join(end))


def _job_markdown(job: MigratedJob) -> str:
    head = f"### {code(job.name)} {_change(job)}\n\n{code(f'{job.path}:{job.line}')}"
    rows = [
        f"| {code(row.source)} | {_optional(row.target)} | {row.verdict} | {text(row.sentence)} |"
        for verdict in VERDICTS[:-1]
        for _, row in job.rows
        if row.verdict == verdict
    ]
    table = "\n".join(["| field | becomes | verdict | next step |", "|---|---|---|---|", *rows])
    exact = dict.fromkeys(row.source for _, row in job.rows if row.verdict == _EXACT)
    copied = f"Exact: {', '.join(code(source) for source in exact)}." if exact else ""
    locations = "\n".join(
        f"- {code(f'{location.path}:{location.line}') + ': ' if location.path else ''}"
        f"{text(location.sentence)}"
        for location in job.code
    )
    return blocks(head, table, copied, f"In the code:\n\n{locations}" if locations else "")


def _optional(name: str) -> str:
    return code(name) if name else ""
