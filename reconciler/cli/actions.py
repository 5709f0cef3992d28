"""What a command shows in GitHub Actions beside its output: annotations, links, and the job's summary."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from reconciler.base.git_command import Git
from reconciler.cli import print_lines, print_message, print_note
from reconciler.git.commit import head_of
from reconciler.manifests.settings import find_root
from reconciler.output.annotations import Annotation, annotation_lines
from reconciler.output.document import text
from reconciler.output.markdown import NO_LINKS, Links
from reconciler.reporting.github.settings import repository_url, run_url


def annotate(lines: Iterable[str], log_format: str) -> None:
    """Print workflow commands in GitHub Actions.

    They go to stderr, which the runner reads too: stdout may be for JSON. With JSON on stderr there are none.
    """
    if log_format != "json" and os.environ.get("GITHUB_ACTIONS") == "true":
        for line in lines:
            print(line, file=sys.stderr, flush=True)


def has_summary() -> bool:
    """Return True if the job has a summary, which GitHub Actions names in GITHUB_STEP_SUMMARY."""
    return bool(os.environ.get("GITHUB_STEP_SUMMARY"))


def add_to_summary(text: str, log_format: str) -> None:
    """Append Markdown to the job's summary; print a line if that is impossible, which is no failure."""
    path = os.environ.get("GITHUB_STEP_SUMMARY", "")
    try:
        # A text that the step wrote before may lack the end of its last line.
        with Path(path).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"\n{text}\n")
    except OSError as error:
        print_message(f"the workflow run's summary {path} can't be written: {error.strerror}", log_format)


def print_unposted(problems: Iterable[str], denied: Collection[str], log_format: str) -> None:
    """Print what could not be posted; in GitHub Actions, a missing permission becomes a warning.

    The warning is an annotation, and a line of the job's summary: who set the workflow up has to see it.
    """
    for line in problems:
        print_note(line, log_format, is_warning=line in denied)
    if denied and has_summary():
        add_to_summary("\n\n".join(f":warning: {text(line)}" for line in denied), log_format)


def has_new_failures(names: Iterable[str], arguments: argparse.Namespace) -> bool:
    """Return True if the command fails for failed runs that no earlier run of the workflow has reported.

    It prints these runs, and annotates each as an error.
    """
    if not arguments.fail_on_new_failure:
        return False
    lines = [f"{name} has failed: no run has reported it before" for name in names]
    print_lines(lines, arguments.log_format)
    found = [Annotation(line, "Failed") for line in lines]
    annotate(annotation_lines(found, "job", "`reconciler status` lists them"), arguments.log_format)
    return bool(lines)


def links() -> Links:
    """Return the addresses on GitHub of the work tree's files and of this run; none outside of Actions."""
    address = repository_url(os.environ)
    if not address:
        return NO_LINKS
    root = find_root(Path.cwd())
    head = head_of(root, os.environ)
    folder = (Git(root, os.environ).ask("rev-parse", "--show-prefix") or "").strip("\n")
    return Links(f"{address}/blob", head.carried if head else "", folder, run_url(os.environ))
