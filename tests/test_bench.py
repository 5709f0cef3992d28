"""Complete run of the benchmark with its output files; no test depends on any duration."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.bench import limits, manifests, overhead, programs, ratios, stages

ROOT = Path(__file__).resolve().parent.parent
SMALLEST = (
    *("--sizes", "10", "--repeats", "1", "--starts", "1", "--passes", "2"),
    *("--jobs", "2", "--trials", "2"),
)
ALONE = ("--without", "check-jsonschema", "terraform")


def test_the_smallest_benchmark_writes_its_tables_and_all_figures(tmp_path: Path, wheelhouse: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", *SMALLEST, *ALONE, "--output", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    size = figures["sizes"]["10"]
    assert size["programs"].keys() == size["peaks"].keys() == programs.PROGRAMS.keys()
    assert size["stages"].keys() == stages.STAGES.keys()
    assert figures["watch"]["at_rest"]
    assert all(cost["wall"] > 0 < cost["cpu"] for costs in figures["overhead"].values() for cost in costs)
    table = (tmp_path / "table.md").read_text()
    assert table == done.stdout
    for row in (
        *programs.PROGRAMS,
        *stages.STAGES,
        *overhead.WISHED,
        "plan, 10 : CSafeLoader alone",
        "plan, all published, 10 : plan",
        programs.PLAN_ONE,
    ):
        assert f"\n| {row} | " in table


def test_the_same_manifests_each_time_and_what_is_edited_comes_back(tmp_path: Path) -> None:
    files = manifests.write(tmp_path / "a", 12)
    again = manifests.write(tmp_path / "b", 20)
    texts = {file.name: file.read_text() for file in files}
    assert texts.items() <= {file.name: file.read_text() for file in again}.items()
    for edit in (manifests.touched, manifests.broken, manifests.publishing):
        with manifests.edited(files, edit, every=5):
            changed = [index for index, file in enumerate(files) if file.read_text() != texts[file.name]]
            assert changed == [0, 5, 10]
        assert {file.name: file.read_text() for file in files} == texts


def test_ratios_are_taken_within_a_repetition() -> None:
    # The machine was four times slower in the second repetition: its ratio is unaffected, unlike medians.
    assert ratios.of([2.0, 8.0, 3.0], [1.0, 4.0, 3.0]) == 2.0


def test_growth_is_from_the_size_before_the_largest_if_that_is_a_tenth() -> None:
    # The machine was four times slower for the largest size: this isn't growth of the tool.
    sizes = {"10": size(0.1), "100": size(1.0), "1000": size(10.0, slow=4.0)}
    found = {growth.what: growth for growth in ratios.growths({"sizes": sizes})}
    for what in ("stage: walk", programs.PLAN):
        assert found[what] == ratios.Growth(what, wall=10.0, cpu=100.0, memory=10.0)
    assert ratios.growths({"sizes": {"10": size(1.0), "1000": size(1.0)}}) == []


def size(cost: float, slow: float = 1.0) -> dict[str, Any]:
    """Return figures with equal costs everywhere, CPU as their square; the loader takes as long."""
    loading = {limits.LOADING: [{"wall": slow * cost, "cpu": slow * cost}]}
    costs = [{"wall": slow * cost, "cpu": slow * cost**2}]
    smaller = [{"wall": slow * cost / 10, "cpu": slow * cost**2 / 100}]
    return {
        "limits": loading,
        "within": loading,
        "stages": {name: {"costs": costs, "smaller": smaller, "peak": cost} for name in stages.STAGES},
        "programs": dict.fromkeys(programs.PROGRAMS, costs),
        "peaks": dict.fromkeys(programs.PROGRAMS, cost),
    }
