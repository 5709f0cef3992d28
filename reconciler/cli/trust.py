"""The command `trust`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from reconciler.base.diagnostics import quote
from reconciler.base.errors import ExitCode, UsageError
from reconciler.base.sanitize import one_line
from reconciler.base.state_dir import is_empty, locate
from reconciler.base.state_dir_trust import accept, check, is_trusted, refuse_tracked
from reconciler.cli import agreed, has_person
from reconciler.google.embedded import contents_of
from reconciler.manifests.settings import find_root

if TYPE_CHECKING:
    from reconciler.google.embedded import Contents

_MOST_SHOWN = 20


def run(arguments: argparse.Namespace) -> ExitCode:
    """Show the home's content, ask, and mark the home as this user's; refuse a home that git tracks."""
    home = locate(find_root(Path.cwd()), os.environ)
    name = one_line(str(home.path))
    if home.checkout is None:
        check(home, os.environ)
        print(f"{name} lies outside the checkout: RECONCILER_HOME names it, and it needs no mark")
        return ExitCode.DONE
    refuse_tracked(home, os.environ)
    if is_empty(home):
        check(home, os.environ)
        print(f"{name} is empty or missing: nothing to accept")
        return ExitCode.DONE
    if is_trusted(home, os.environ):
        print(f"{name} is trusted already")
        return ExitCode.DONE
    print(f"{name} contains:")
    for line in _lines(contents_of(home.path)):
        print(f"  {one_line(line)}")
    sys.stdout.flush()
    if not arguments.yes and not _agreed(name):
        print(f"{name} was not accepted; nothing was changed")
        return ExitCode.FAILED
    accept(home, os.environ)
    print(f"{name} is trusted now")
    return ExitCode.DONE


def _agreed(name: str) -> bool:
    if not has_person():
        raise UsageError(
            "`reconciler trust` asks for confirmation and needs a terminal",
            hint="run `reconciler trust --yes` to accept the home",
        )
    print("Its jobs and its service act as yours. Accept it only if you made it.", file=sys.stderr)
    return agreed(f"Trust {name}?")


def _lines(contents: Contents) -> list[str]:
    lines = [f"jobs: {_jobs(contents)}"]
    for bucket in contents.buckets[:_MOST_SHOWN]:
        lines.append(f"gs://{bucket.name[:100]}: {_counted(bucket.files, 'file')}, {_size(bucket.size)}")
    if len(contents.buckets) > _MOST_SHOWN:
        lines.append(f"and {_counted(len(contents.buckets) - _MOST_SHOWN, 'more bucket')}")
    linked = {link.name for link in contents.links}
    if not contents.buckets:
        lines.append(f"buckets: {'unknown: gcs is a link' if 'gcs' in linked else 'none'}")
    kept = "unknown: a link" if "environments" in linked else contents.environments or "none"
    lines.append(f"environments: {kept}")
    lines.append(f"service.json: {'present' if contents.has_address else 'none'}")
    for link in contents.links:
        lines.append(f"symbolic link, not followed: {quote(link.name)} -> {quote(link.target)}")
    if contents.further_links:
        lines.append(f"and {_counted(contents.further_links, 'more symbolic link')}")
    if not contents.complete:
        lines.append("more files exist; counting stopped at the limit")
    return lines


def _jobs(contents: Contents) -> str:
    if contents.problem:
        return f"unknown: state.db exists, but {contents.problem[:200]}"
    counts = sorted(contents.jobs.items())
    return ", ".join(f"{count} {state[:40]}" for state, count in counts[:_MOST_SHOWN]) or "none"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _size(size: int) -> str:
    """Return a size in the largest unit that it fills."""
    for unit, bits in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >> bits:
            return f"{size / (1 << bits):.1f} {unit}"
    return f"{size} bytes"
