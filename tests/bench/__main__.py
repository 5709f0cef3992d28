"""`python -m tests.bench`: costs at 100, 1,000 and 10,000 manifests, beside limits and other tools.

It prints the tables, and writes them with all raw figures and a chart. It judges no figure: absolute times
hold only for the machine that measured them, and the exit code doesn't depend on them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from . import keep, others, overhead, plot, programs, tables
from .place import TESTS, Cost, Place

_SIZES = (100, 1000, 10_000)
_STARTS = 15
_PASSES = 100
_JOBS = 50
_TRIALS = 20
_LARGEST_TERRAFORM = 1000


def main() -> None:
    """Measure, print the tables, and write the results."""
    arguments = _arguments()
    output: Path = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        figures = _measured(Path(folder), arguments)
    (output / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
    text = tables.text_of(figures)
    (output / "table.md").write_text(text + "\n")
    print(text)
    drawn = plot.draw(figures, output / "plot.svg")
    _say(f"the tables and all figures are in {output}" + ("" if drawn else "; no picture without matplotlib"))
    if arguments.keep:
        keep.into_docs("performance.md", text)
        if drawn:
            shutil.copyfile(output / "plot.svg", keep.DOCS / "performance.svg")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("--sizes", type=int, nargs="+", default=_SIZES, help="numbers of manifests")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions of what takes longer")
    parser.add_argument("--starts", type=int, default=_STARTS, help="repetitions of the start")
    parser.add_argument("--passes", type=int, default=_PASSES, help="passes of `watch`; 0 for none")
    parser.add_argument("--jobs", type=int, default=_JOBS, help="jobs one after the other; 0 for none")
    parser.add_argument("--trials", type=int, default=_TRIALS, help="trials of a job, if there are jobs")
    parser.add_argument("--without", nargs="*", default=(), choices=_OTHERS, help="what isn't run")
    parser.add_argument(
        "--terraform-up-to", type=int, default=_LARGEST_TERRAFORM, metavar="N", help="its apply takes minutes"
    )
    parser.add_argument("--output", type=Path, default=TESTS.parent / "build" / "bench")
    parser.add_argument("--keep", action="store_true", help="renew docs/performance.md and its picture")
    return parser.parse_args()


def _measured(folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    figures: dict[str, Any] = {
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "repeats": arguments.repeats,
        "starts": arguments.starts,
        "sizes": {},
        "watch": None,
        "overhead": None,
    }
    _start(_filled(folder / "one", 1), figures, arguments.starts)
    smaller: Place | None = None
    for number in sorted(set(arguments.sizes)):
        place = _filled(folder / str(number), number)
        figures["sizes"][str(number)] = _size(place, number, arguments, smaller)
        smaller = place
    if arguments.passes:
        figures["watch"] = _watch(place, number, arguments)
    if arguments.jobs:
        _say(f"{arguments.jobs} jobs and {arguments.trials} trials, one after the other")
        place = Place(folder / "overhead", 0)
        figures["overhead"] = overhead.measured(place, arguments.jobs, arguments.trials, arguments.repeats)
    return figures


def _filled(folder: Path, number: int) -> Place:
    """Yield a place whose service has a job for each manifest, so that a plan has no changes."""
    _say(f"writing {number} manifests, and as many jobs that have run")
    place = Place(folder, number)
    place.module("actual", str(place.root), str(place.home))
    return place


def _start(place: Place, figures: dict[str, Any], repeats: int) -> None:
    _say("starting the program")
    with place.served():
        figures["start"] = programs.start(place, repeats)
        figures["imports"] = {
            programs.HELP: programs.imported(place, ["--help"]),
            programs.VALIDATE_ONE: programs.imported(place, ["validate"]),
            programs.PLAN_ONE: programs.imported(place, ["plan"]),
        }


def _size(
    place: Place, number: int, arguments: argparse.Namespace, smaller: Place | None
) -> Mapping[str, Any]:
    with place.served():
        _say(f"stages of {number}")
        with smaller.served() if smaller else nullcontext():
            places = [str(path) for each in (place, smaller) if each for path in (each.root, each.home)]
            stages = place.module("stages", str(arguments.repeats), *places)
        _say(f"programs over {number}")
        costs, within = programs.repeated(place, arguments.repeats)
        peaks = programs.peaks(place)
    checked: Sequence[Cost] = []
    planned: Sequence[Cost] = []
    if others.CHECK_JSONSCHEMA not in arguments.without:
        _say(f"{others.CHECK_JSONSCHEMA} on {number}")
        checked = others.check_jsonschema(place)
    if "terraform" not in arguments.without and number <= arguments.terraform_up_to:
        _say(f"Terraform with {number}")
        planned = others.terraform_plans(place, arguments.repeats)
    return {
        "bytes": sum(file.stat().st_size for file in place.files),
        "limits": within,
        "within": stages["limits"],
        "stages": stages["stages"],
        "listing": stages["listing"],
        "programs": costs,
        "peaks": peaks,
        others.CHECK_JSONSCHEMA: checked,
        others.TERRAFORM: planned,
    }


def _watch(place: Place, number: int, arguments: argparse.Namespace) -> Mapping[str, Any]:
    _say(f"watch over {number}: edits, and {arguments.passes} passes")
    told = place.module("changes", str(place.root), str(arguments.repeats))
    with place.served():
        passes = place.module("watching", str(place.root), str(arguments.passes))
    return {"manifests": number, "told": told, **passes}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


_OTHERS = (others.CHECK_JSONSCHEMA, "terraform")

if __name__ == "__main__":
    main()
