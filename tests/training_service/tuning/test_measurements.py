"""Trainers' measurements, read from the file of the published reporter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.training_service.state.trial_records import Measurement, UnusableReports
from reconciler.training_service.tuning.measurements import ReportedMetrics, final_of, why_without_metric
from reconciler.training_service.tuning.study import Metric
from tests.support.training_service.studies import study

BEGAN = 1_700_000_000.0


def line(value: object, step: object = "1", after: float = 1.0, tag: str = "accuracy", **more: Any) -> str:
    report = {"timestamp": BEGAN + after, "trial": "1", tag: value, "global_step": step}
    return json.dumps(report | {"checkpoint_path": "", **more}) + "\n"


@pytest.fixture
def metrics(tmp_path: Path) -> ReportedMetrics:
    return ReportedMetrics(tmp_path / "output.metrics", ["accuracy", "loss"], BEGAN)


def write(metrics: ReportedMetrics, text: str, at: int) -> None:
    """Write the file with a past modification time, because a recently changed file is read twice."""
    metrics.path.write_text(text)
    os.utime(metrics.path, (at, at))


def test_nothing_is_there_before_the_first_report(metrics: ReportedMetrics) -> None:
    assert metrics.poll() is None
    write(metrics, "", 1)
    assert metrics.poll() is None
    metrics.path.unlink()
    metrics.path.mkdir()
    assert metrics.poll() is None


def test_reports_become_measurements(metrics: ReportedMetrics) -> None:
    write(metrics, line("0.5") + line(0.75, "2", 2.5), 1)
    first, second = Measurement(1, 1.0, {"accuracy": 0.5}), Measurement(2, 2.5, {"accuracy": 0.75})
    assert metrics.poll() == (first, second)
    assert metrics.poll() is None
    write(metrics, line("0.5") + line(0.75, "2", 2.5) + line("0.75", "3", 4.0), 2)
    assert metrics.poll() == (first, second, Measurement(3, 4.0, {"accuracy": 0.75}))


def test_an_unchanged_file_is_not_even_opened(
    metrics: ReportedMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(metrics, line("0.5"), 1)
    assert metrics.poll()
    monkeypatch.delattr(Path, "open")
    assert metrics.poll() is None


def test_a_change_within_the_clocks_tick_is_seen(metrics: ReportedMetrics) -> None:
    metrics.path.write_text(line("0.5"))
    status = metrics.path.stat()
    assert metrics.poll()
    metrics.path.write_text(line("0.6"))
    os.utime(metrics.path, ns=(status.st_mtime_ns, status.st_mtime_ns))
    found = metrics.poll()
    assert found
    assert [each.metrics["accuracy"] for each in found] == [0.5, 0.6]


def test_what_the_reporter_has_dropped_stays(metrics: ReportedMetrics) -> None:
    """The reporter keeps a hundred, and a new reporter begins with an empty file."""
    for start in (1, 61, 121):
        write(metrics, "".join(line(step / 1000, step, step) for step in range(start, start + 100)), start)
        metrics.poll()
    write(metrics, line("0.9", "221", 221), 500)
    found = metrics.poll()
    assert found
    assert [each.step for each in found] == list(range(1, 222))


def test_metrics_of_one_step_are_one_measurement(metrics: ReportedMetrics) -> None:
    told = [("accuracy", 0.5, 1), ("loss", 3, 1), ("accuracy", 0.6, 2), ("loss", 2, 2), ("loss", 1, 2)]
    write(metrics, "".join(line(value, step, tag=tag) for tag, value, step in told), 1)
    found = metrics.poll()
    assert found
    assert [(each.step, each.metrics) for each in found] == [
        (1, {"accuracy": 0.5, "loss": 3.0}),
        (2, {"accuracy": 0.6, "loss": 2.0}),
        (2, {"loss": 1.0}),
    ]


@pytest.mark.parametrize(
    "text",
    [
        '{"accuracy": "0.5", "global_step": "1"',
        "no json\n",
        "[]\n",
        '"accuracy"\n',
        line("nan"),
        line("-inf"),
        line("much"),
        line(None),
        line([1]),
        line(True),
        line("0.5", tag="other"),
        "\x00\x00\x00",
        "[" * 5000,
    ],
)
def test_what_is_no_report_is_left_out(metrics: ReportedMetrics, text: str) -> None:
    write(metrics, text, 1)
    assert metrics.poll() is None
    write(metrics, line("0.5") + text, 2)
    assert metrics.poll() == (Measurement(1, 1.0, {"accuracy": 0.5}),)


@pytest.mark.parametrize(
    ("step", "expected"), [(None, 0), ("x", 0), ("-3", 0), ("7.0", 7), (1e300, 2**63 - 1), ("inf", 0)]
)
def test_strange_steps(metrics: ReportedMetrics, step: object, expected: int) -> None:
    write(metrics, line("0.5", step), 1)
    assert metrics.poll() == (Measurement(expected, 1.0, {"accuracy": 0.5}),)


def test_a_report_before_the_beginning_took_no_time(metrics: ReportedMetrics) -> None:
    write(metrics, line("0.5", after=-5) + line("0.6", 2, timestamp="x"), 1)
    found = metrics.poll()
    assert found
    assert [each.elapsed for each in found] == [0.0, 0.0]


def test_only_so_many_are_kept(metrics: ReportedMetrics) -> None:
    write(metrics, "".join(line(0.5, step) for step in range(1, 1501)), 1)
    found = metrics.poll()
    assert found
    assert [found[0].step, found[-1].step] == [501, 1500]


@given(st.integers(0, 200), st.data())
def test_a_file_read_at_any_moment_of_its_writing(cut: int, data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        metrics = ReportedMetrics(Path(folder, "m"), ["accuracy"], BEGAN)
        text = line("0.5") + line("0.25", 2)
        write(metrics, text[: min(cut, len(text))], 1)
        early = metrics.poll() or ()
        write(metrics, text, 2)
        late = metrics.poll() or early
        whole = (Measurement(1, 1.0, {"accuracy": 0.5}), Measurement(2, 1.0, {"accuracy": 0.25}))
        assert late == whole
        assert early == whole[: len(early)]


BOTH = (Metric("accuracy", maximize=True), Metric("loss", maximize=False))


def measured(*values: dict[str, float]) -> list[Measurement]:
    return [Measurement(step, float(step), metrics) for step, metrics in enumerate(values, 1)]


@pytest.mark.parametrize(
    ("found", "best", "expected"),
    [
        (measured({"accuracy": 0.9, "loss": 1}, {"accuracy": 0.7, "loss": 2}), False, (2, 0.7, 2)),
        (measured({"accuracy": 0.9, "loss": 1}, {"accuracy": 0.7, "loss": 2}), True, (1, 0.9, 1)),
        (measured({"accuracy": 0.9, "loss": 1}, {"accuracy": 0.7}), False, (1, 0.9, 1)),
        (measured({"accuracy": 0.9}, {"accuracy": 0.8}, {"loss": 2}), False, (3, 0.8, 2)),
        (measured({"accuracy": 0.9}), False, None),
        ([], True, None),
    ],
)
def test_the_measurement_that_counts(
    found: list[Measurement], best: bool, expected: tuple[int, float, float] | None
) -> None:
    final = final_of(study(metrics=BOTH, best_measurement=best), found)
    told = (final.step, final.metrics["accuracy"], final.metrics["loss"]) if final else None
    assert told == expected


def test_the_best_measurement_may_be_the_least() -> None:
    least = study(metrics=BOTH[1:], best_measurement=True)
    final = final_of(least, measured({"loss": 3}, {"loss": 1}, {"loss": 2}))
    assert final
    assert final.metrics == {"loss": 1}


@pytest.fixture(scope="module")
def reporter(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, str], None]:
    """Return a function that runs a program with the published package."""
    folder = tmp_path_factory.mktemp("package")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), "--no-deps"]
    wheels = Path(__file__).parents[3] / ".venv" / "wheelhouse"
    offline = ["--no-index", "--find-links", str(wheels), "--disable-pip-version-check"]
    subprocess.run([*pip, *offline, "cloudml-hypertune"], check=True)

    def report(file: Path, program: str) -> None:
        own = {"PYTHONPATH": str(folder), "CLOUD_ML_HP_METRIC_FILE": str(file), "CLOUD_ML_TRIAL_ID": "7"}
        subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, **own})

    return report


@pytest.mark.slow
def test_the_published_reporter_is_understood(
    metrics: ReportedMetrics, reporter: Callable[[Path, str], None]
) -> None:
    metrics.path = metrics.path.parent / "made by it" / "output.metrics"
    reporter(
        metrics.path,
        """
import hypertune, numpy
tune = hypertune.HyperTune()
for step in range(1, 121):
    tune.report_hyperparameter_tuning_metric("accuracy", step / 200, step)
    tune.report_hyperparameter_tuning_metric("loss", numpy.float32(2.0), global_step=step)
""",
    )
    found = metrics.poll()
    assert found
    assert [each.step for each in found] == list(range(71, 121))  # a hundred reports, two for each step
    assert all(each.metrics == {"accuracy": each.step / 200, "loss": 2.0} for each in found)
    assert all(each.elapsed > 0 for each in found)

    reporter(metrics.path, "import hypertune; hypertune.HyperTune()")  # has no reports yet
    assert metrics.poll() is None
    program = "import hypertune; hypertune.HyperTune().report_hyperparameter_tuning_metric('accuracy', 1)"
    reporter(metrics.path, program)
    again = metrics.poll()
    assert again
    assert again[:-1] == found
    assert replace(again[-1], elapsed=0) == Measurement(0, 0, {"accuracy": 1.0})


@pytest.mark.slow
def test_the_reporters_default_tag_is_ai_platforms(
    tmp_path: Path, reporter: Callable[[Path, str], None]
) -> None:
    metrics = ReportedMetrics(tmp_path / "m", ["training/hptuning/metric"], BEGAN)
    reporter(
        metrics.path,
        "import hypertune; hypertune.HyperTune().report_hyperparameter_tuning_metric('', '0.5', 3)",
    )
    found = metrics.poll()
    assert found
    assert found[0].metrics == {"training/hptuning/metric": 0.5}


def test_report_without_a_measurement_is_kept_with_its_tag(metrics: ReportedMetrics) -> None:
    lines = [{"val_accuracy": "0.5"}, {"accuracy": "nan"}, {"accuracy": "inf"}, {"x" * 101: "1"}]
    reports = (json.dumps({**line, "global_step": "1", "timestamp": BEGAN, "trial": "7"}) for line in lines)
    metrics.path.write_text("".join(f"{report}\n" for report in reports))
    assert metrics.poll() is None
    assert metrics.unusable == UnusableReports(("val_accuracy",), ("accuracy",))
    assert not metrics.has("accuracy")


@pytest.mark.parametrize(
    ("unusable", "sentence", "about"),
    [
        (UnusableReports(), "", {}),
        (
            UnusableReports(("epoch", "val_accuracy")),
            ": it reported epoch, val_accuracy",
            {"reported": "val_accuracy"},
        ),
        (UnusableReports(("score",)), ": it reported score", {"reported": "score"}),
        (
            UnusableReports(("score",), ("accuracy",)),
            ": its value is no finite number",
            {"notFinite": "true"},
        ),
    ],
)
def test_missing_metric_has_its_reason(
    unusable: UnusableReports, sentence: str, about: dict[str, str]
) -> None:
    said, details = why_without_metric(["loss", "accuracy"], measured({"loss": 1}), unusable)
    assert said == f"The trial has ended without reporting accuracy{sentence}."
    assert details == {"reason": "NO_METRIC", "class": "user-code", "metric": "accuracy", **about}
