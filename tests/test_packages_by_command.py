"""Page of packages by command, compared with the imports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from keyword import iskeyword
from pathlib import Path

import grimp

from reconciler.cli.arguments import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/packages-by-command.md"
# Modules shared by all commands don't characterize any of them.
OF_ALL = {"arguments", "flag_types", "flags", "parsers", "streams"}


def rows() -> Iterator[str]:
    """Yield the table's rows: the commands in the order of `--help`, then their shared files."""
    graph = grimp.build_graph("reconciler", cache_dir=None)
    layers = re.findall(
        r"\w+", (ROOT / ".importlinter").read_text("utf-8").split("layers =")[1].split("[")[0]
    )
    modules = {f"reconciler.cli.{name}{'_' * iskeyword(name)}": f"`{name}`" for name in COMMANDS}
    shared = graph.find_children("reconciler.cli") - modules.keys()
    modules |= {
        module: f"`cli/{name}.py`"
        for module in sorted(shared)
        if (name := module.rpartition(".")[2]) not in OF_ALL
    }
    for module, title in modules.items():
        parts = [name.split(".") for name in graph.find_modules_directly_imported_by(module)]
        packages = {part[1] for part in parts} - {"base", "cli"}
        files = {f"`{part[2]}.py`" for part in parts if part[1] == "cli" and part[2:]}
        files -= {f"`{name}.py`" for name in OF_ALL}
        listed = sorted(packages, key=layers.index)
        if packages:
            yield f"| {title} | {', '.join(listed)} | {', '.join(sorted(files))} |"


def test_page_has_the_packages_that_each_command_imports() -> None:
    table = PAGE.read_text("utf-8").split("| --- | --- | --- |\n")[1].split("\n\n")[0].splitlines()
    found = [*rows()]
    assert table == found, "\n".join(["replace the table's rows in docs/packages-by-command.md by:", *found])
