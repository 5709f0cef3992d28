"""Measurements of a run's metrics: from real objects, or from the measurements of a study."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from reconciler.base.errors import ServiceError
from reconciler.model.expectation import Measured, Missing
from reconciler.operations.measure import Measurements, changed_files, measure
from reconciler.operations.results import LARGEST_METRICS
from reconciler.operations.session import Session
from tests.support.held_service import HeldService
from tests.support.metrics_files import FOLDER, custom_run, put_file, study_run
from tests.support.noted_requests import noting_session


def measured(session: Session, name: str = "accuracy") -> Measured:
    """Return the metric of a custom job with files in `FOLDER`."""
    found = measure(session, custom_run(), [name])
    assert found.unread == ""
    assert found.metrics.keys() == {name}
    return found.metrics[name]


def without_value(found: Measured) -> tuple[Missing | None, tuple[str, ...]]:
    """Return why a metric has no value, and the files that are to blame."""
    assert found.value is None
    assert len(found.generations) == len(found.files)
    return found.missing, found.files


@pytest.fixture(autouse=True)
def bucket(service: HeldService) -> Path:
    """Make the bucket of the models, and return its folder."""
    folder = service.home / "gcs/models"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("written", "value"), [("0.95", 0.95), ("1", 1.0), ("-2e3", -2000.0), ("0", 0.0), ("1e-320", 1e-320)]
)
def test_metric_has_value_and_file_with_generation_when_one_file_has_it(
    service: HeldService, session: Session, written: str, value: float
) -> None:
    put_file(service, "model/metrics.json", f'{{"accuracy": {written}}}')
    put_file(service, "model/other.json", '{"accuracy": 0.1}')
    put_file(service, "model/below/metrics.json", '{"accuracy": 0.2}')
    found = measured(session)
    assert (found.value, found.missing, found.files) == (value, None, ("model/metrics.json",))
    assert isinstance(found.value, float)
    (generation,) = found.generations
    assert generation.isdecimal()
    assert int(generation) > 0


def test_metric_has_value_of_first_file_when_two_files_have_equal_values(
    service: HeldService, session: Session
) -> None:
    put_file(service, "model/metrics.json", '{"accuracy": 1}')
    put_file(service, "eval.json", '{"accuracy": 1.0}')
    found = measured(session)
    assert (found.value, found.files, len(found.generations)) == (1.0, ("eval.json",), 1)


def test_metric_has_no_value_when_two_files_differ(service: HeldService, session: Session) -> None:
    put_file(service, "eval.json", '{"accuracy": 0.9}')
    put_file(service, "model/eval.json", '{"accuracy": 0.9}')
    put_file(service, "model/metrics.json", '{"accuracy": 0.91}')
    assert without_value(measured(session)) == (Missing.TWO_VALUES, ("eval.json", "model/metrics.json"))


@pytest.mark.parametrize(
    "written", ["NaN", "Infinity", "-Infinity", '"0.99"', "true", "null", "[0.99]", "1" + "0" * 400, "1e400"]
)
def test_metric_has_no_value_when_its_file_has_no_finite_number(
    service: HeldService, session: Session, written: str
) -> None:
    put_file(service, "metrics.json", f'{{"accuracy": {written}, "loss": 0.5}}')
    assert without_value(measured(session)) == (Missing.NO_NUMBER, ("metrics.json",))
    assert measured(session, "loss").value == 0.5


def test_metric_has_no_value_when_two_files_have_nan(service: HeldService, session: Session) -> None:
    for name in ("eval.json", "metrics.json"):
        put_file(service, name, '{"accuracy": NaN}')
    assert without_value(measured(session)) == (Missing.TWO_VALUES, ("eval.json", "metrics.json"))


@pytest.mark.parametrize(
    "content",
    [
        b"accuracy: 1",
        b"",
        b"[0.99]",
        b"\xff\xfe",
        b'{"a":' * (LARGEST_METRICS // 5),
        b'{"accuracy": 0.99',
        b'{"accuracy": 1' + b"0" * 5000 + b"}",
    ],
    ids=["text", "empty", "list", "no UTF-8", "deeply nested", "cut off", "endless number"],
)
def test_metric_has_no_value_when_only_file_is_no_json_object(
    service: HeldService, session: Session, content: bytes
) -> None:
    put_file(service, "metrics.json", content)
    assert without_value(measured(session)) == (Missing.NOT_JSON, ("metrics.json",))


def test_metric_has_value_when_another_file_is_unusable(service: HeldService, session: Session) -> None:
    put_file(service, "eval.json", "no JSON")
    put_file(service, "results.json", size=LARGEST_METRICS + 1)
    put_file(service, "metrics.json", '{"accuracy": 0.5}')
    assert measured(session).value == 0.5
    assert without_value(measured(session, "loss")) == (Missing.TOO_LARGE, ("results.json",))


def test_large_file_is_never_requested(service: HeldService, session: Session) -> None:
    put_file(service, "metrics.json", '{"accuracy": 0.99}', size=100 * 1024 * 1024)
    noting, noted = noting_session(session)
    assert without_value(measured(noting)) == (Missing.TOO_LARGE, ("metrics.json",))
    assert noted.of("census/")
    assert noted.of("alt=media") == []


def test_file_of_largest_size_is_read(service: HeldService, session: Session) -> None:
    content = '{"accuracy": 0.5}'
    put_file(service, "metrics.json", content.ljust(LARGEST_METRICS))
    assert measured(session).value == 0.5
    put_file(service, "metrics.json", content.ljust(LARGEST_METRICS + 1))
    assert measured(session).missing is Missing.TOO_LARGE


def test_file_older_than_run_is_left_out(service: HeldService, session: Session) -> None:
    put_file(service, "metrics.json", '{"accuracy": 0.99}')
    for minutes, expected in ((10, Measured(missing=Missing.NO_FILE)), (-10, measured(session))):
        created = (service.now() + timedelta(minutes=minutes)).isoformat()
        found = measure(session, custom_run(create_time=created), ["accuracy"])
        assert found == Measurements({"accuracy": expected})


def test_metric_is_found_when_its_file_has_many_others(service: HeldService, session: Session) -> None:
    metrics = {f"loss_{number}": number for number in range(59)} | {"accuracy": 0.75}
    put_file(service, "metrics.json", json.dumps(metrics))
    assert measured(session).value == 0.75


def test_metric_is_found_behind_a_thousand_checkpoints(service: HeldService, session: Session) -> None:
    for number in range(1001):
        put_file(service, f"a/{number}", b"")
    put_file(service, "model/metrics.json", '{"accuracy": 0.75}')
    assert measured(session).value == 0.75


def test_metric_is_not_named_when_files_lack_it(service: HeldService, session: Session) -> None:
    put_file(service, "eval.json", "{}")
    put_file(service, "logs/metrics.json", '{"Accuracy": 1}')
    assert without_value(measured(session)) == (Missing.NOT_NAMED, ("eval.json", "logs/metrics.json"))


def test_only_first_files_are_named_when_many_lack_metric(service: HeldService, session: Session) -> None:
    for number in range(60):
        put_file(service, f"metrics_{number:02}.json", '{"loss": 1}' if number == 49 else "{}")
    names = tuple(f"metrics_{number:02}.json" for number in range(3))
    assert without_value(measured(session)) == (Missing.NOT_NAMED, names)
    assert measured(session, "loss").files == ("metrics_49.json",)
    put_file(service, "metrics_49.json", "{}")
    put_file(service, "metrics_50.json", '{"loss": 1}')
    assert measured(session, "loss").missing is Missing.NOT_NAMED, "only 50 are read"


def test_metric_of_study_is_measurement_of_its_best_trial(service: HeldService, session: Session) -> None:
    put_file(service, "2/model/metrics.json", '{"accuracy": 0.1, "loss": 3}')
    put_file(service, "1/metrics.json", '{"loss": 1}')
    put_file(service, "metrics.json", '{"loss": 0}')
    found = measure(session, study_run(0.5, 0.9, None, 0.7), ["accuracy", "loss"])
    assert found.metrics["accuracy"] == Measured(0.9)
    loss = found.metrics["loss"]
    assert (loss.value, loss.files) == (3.0, ("2/model/metrics.json",))
    assert found.unread == ""


def test_metric_of_study_is_measured_without_folder_or_request(session: Session) -> None:
    noting, noted = noting_session(session)
    found = measure(noting, study_run(0.5, folder=""), ["accuracy", "loss"])
    assert found == Measurements({"accuracy": Measured(0.5), "loss": Measured(missing=Missing.NO_FOLDER)})
    assert noted.sent == []


def test_metrics_are_missing_when_study_has_no_best_trial(service: HeldService, session: Session) -> None:
    put_file(service, "1/metrics.json", '{"loss": 1}')
    for run in (study_run(), study_run(None), study_run(float("nan"))):
        found = measure(session, run, ["accuracy", "loss"])
        assert found == Measurements(dict.fromkeys(("accuracy", "loss"), Measured(missing=Missing.NO_TRIAL)))


def test_metric_is_missing_without_request_when_run_has_no_folder(session: Session) -> None:
    noting, noted = noting_session(session)
    found = measure(noting, custom_run(""), ["accuracy"])
    assert found == Measurements({"accuracy": Measured(missing=Missing.NO_FOLDER)})
    assert noted.sent == []


@pytest.mark.parametrize("status", [403, 503])
@pytest.mark.parametrize("part", ["delimiter", "alt=media"], ids=["listing", "content"])
def test_metric_is_unread_when_request_is_refused(
    service: HeldService, session: Session, status: int, part: str
) -> None:
    put_file(service, "1/metrics.json", '{"loss": 0.99}')
    noting, noted = noting_session(session)
    noted.refused = {part: status}
    found = measure(noting, study_run(0.5), ["accuracy", "loss"])
    need = "; whoever applies needs roles/storage.objectViewer for gs://models" * (status == 403)
    why = f"gs://models/census/1: refused with {status}{need}"
    assert found == Measurements({"accuracy": Measured(0.5)}, why)
    noted.refused.clear()
    assert measure(noting, study_run(0.5), ["loss"]).metrics["loss"].value == 0.99


def test_metric_is_unread_when_bucket_is_missing(session: Session) -> None:
    found = measure(session, custom_run("gs://elsewhere/census"), ["accuracy"])
    assert found.metrics == {}
    assert found.unread


def test_file_that_nobody_listed_before_an_hour_after_the_end_is_the_run_s_own(
    service: HeldService, session: Session
) -> None:
    put_file(service, "metrics.json", '{"accuracy": 0.95}')
    run = custom_run(end_time=service.now().isoformat())
    service.ahead = timedelta(hours=1)
    assert measure(session, run, ["accuracy"]).metrics["accuracy"].value == 0.95


def test_judged_file_is_changed_when_it_was_rewritten_or_removed(
    service: HeldService, session: Session
) -> None:
    files = [put_file(service, f"{name}/metrics.json", f'{{"{name}": 1}}') for name in ("logs", "model")]
    metrics = measure(session, custom_run(), ["logs", "model", "neither"]).metrics
    assert [*changed_files(session, FOLDER, metrics)] == []
    files[1].write_text('{"model": 2}')
    assert [*changed_files(session, FOLDER, metrics)] == ["model/metrics.json"]
    files[0].unlink()
    assert [*changed_files(session, FOLDER, metrics)] == ["logs/metrics.json", "model/metrics.json"]


def test_changed_files_raise_when_listing_is_refused(service: HeldService, session: Session) -> None:
    put_file(service, "metrics.json", '{"accuracy": 1}')
    metrics = measure(session, custom_run(), ["accuracy"]).metrics
    noting, noted = noting_session(session)
    noted.refused = {"models/o": 403}
    with pytest.raises(ServiceError, match="refused with 403"):
        list(changed_files(noting, FOLDER, metrics))
