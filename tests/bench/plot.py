"""Chart of the figures: time and memory over the number of manifests."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from . import limits, others, programs
from .ratios import Figures, median

_LINES = (programs.VALIDATE, programs.PLAN)


def draw(figures: Figures, file: Path) -> bool:
    """Write the chart, in the format of the file's suffix; return False without the plotting library."""
    if find_spec("matplotlib") is None:
        return False
    import matplotlib

    matplotlib.use("agg")
    # The same figures give the same bytes.
    matplotlib.rcParams.update({"svg.hashsalt": "benchmark", "svg.fonttype": "none"})
    from matplotlib import pyplot

    sizes = {int(number): size for number, size in figures["sizes"].items()}
    picture, (time, memory) = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    numbers = sorted(sizes)
    for name in _LINES:
        seconds = [median(sizes[n]["programs"][name]) for n in numbers]
        time.plot(numbers, seconds, marker="o", label=name)
        memory.plot(numbers, [sizes[n]["peaks"][name] / 1e6 for n in numbers], marker="o", label=name)
    loading = [median(sizes[n]["limits"][limits.LOADING]) for n in numbers]
    time.plot(numbers, loading, color="black", linestyle="--", label=f"{limits.LOADING} alone")
    for name in (others.CHECK_JSONSCHEMA, others.TERRAFORM):
        found = {n: sizes[n][name] for n in numbers if sizes[n][name]}
        if found:
            seconds = [median(costs) for costs in found.values()]
            time.plot(list(found), seconds, marker=".", linestyle=":", label=name)
            peaks = [max(cost["peak"] for cost in costs) / 1e6 for costs in found.values()]
            memory.plot(list(found), peaks, marker=".", linestyle=":", label=name)
    for axes, unit in ((time, "seconds"), (memory, "peak of memory, MB")):
        axes.set(xscale="log", yscale="log", xlabel="manifests", ylabel=unit)
        axes.set_xticks(numbers, [f"{number:,}" for number in numbers])
        axes.minorticks_off()
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize="small")
    picture.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    return True
