"""Publications of models whose metrics are compared with those of the model in place."""

from __future__ import annotations

import pytest

from reconciler.model.plan import Action
from reconciler.model.publication import current_json, published_json
from reconciler.model.reason import ReasonCode
from reconciler.planning.outcome import Status
from tests.support.publishing import TO, current_model, path_of, published_model, put
from tests.support.publishing_place import CURRENT, Done, Place, publishing_place

__all__ = ["publishing_place"]


def assert_worse(done: Done, published: str, job_name: str, accuracy: str) -> None:
    """Assert that a model wasn't published because the model in place is better."""
    assert done.reason is not None
    assert done.reason.code is ReasonCode.WORSE_THAN_PUBLISHED
    expected = f"expected at most 0.01 below the published {published} ({job_name})"
    assert done.said == f"accuracy {accuracy}, {expected}"


def test_worse_model_is_not_published_and_the_model_in_place_stays(place: Place) -> None:
    good = place.want(0.95)
    first = place.publish()
    assert first.reason is None
    assert "accuracy 0.95 (at least 0.5; nothing published to compare with)" in first.text
    assert place.metrics(good) == {"accuracy": 0.95}
    before = place.current
    worse = place.want(0.93)
    for _ in range(2):
        done = place.publish()
        assert_worse(done, "0.95", good.job_name, "0.93")
        assert done.change is not None
        assert (done.change.action, done.outcome) == (Action.BLOCKED, None)
        assert done.said in " ".join(done.text.split())
        assert (place.current, place.metrics(worse)) == (before, None)
    near = place.want(0.94)
    published = place.publish()
    assert published.reason is None
    assert "accuracy 0.94 (at least 0.5 and at most 0.01 below the published 0.95)" in published.text
    assert place.current.job_name == near.job_name


def test_revert_to_published_content_is_never_compared(place: Place) -> None:
    older = place.want(0.9)
    place.publish()
    place.want(0.99)
    place.publish()
    place.want(0.9, "{accuracy: {min: 0.5, worse: 0}}")
    done = place.publish()
    assert done.reason is None
    assert "accuracy 0.9 (at least 0.5; not compared: published here before)" in done.text
    assert place.current.job_name == older.job_name


def test_published_model_that_misses_a_tightened_expectation_stays(place: Place) -> None:
    run = place.want(0.9)
    place.publish()
    before = place.current
    place.want(0.9, "{accuracy: {min: 0.95, worse: 0}}")
    done = place.publish()
    assert (done.change, done.outcome) == (None, None)
    assert "accuracy 0.9, expected at least 0.95" in done.text
    assert place.current == before
    place.want(0.9, "{accuracy: {min: 0.9, worse: 0}}")
    assert place.publish().change is None
    assert place.current.job_name == run.job_name


@pytest.mark.parametrize("case", ["metric", "record", "model"])
def test_model_in_place_without_the_metric_is_not_compared(place: Place, case: str) -> None:
    name = place.put_other(0.99)
    record = path_of(place.service.home, f"{TO}/{name}/manifest.json")
    if case == "metric":
        model = published_model(job_name=name, base_name="old", metrics={"loss": 0.1})
        record.write_bytes(published_json(model))
    elif case == "record":
        record.unlink()
    else:
        path_of(place.service.home, CURRENT).unlink()
    run = place.want(0.9)
    done = place.publish()
    assert done.reason is None
    why = (
        "nothing published to compare with"
        if case == "model"
        else f"not compared: the record of {name} lacks it"
    )
    assert why in " ".join(done.text.split())
    assert place.current.job_name == run.job_name


@pytest.mark.parametrize("content", [b"{}", b"x" * 100, b'{"formatVersion": 1, "files":' + b"[" * 60_000])
def test_unusable_record_of_the_model_in_place_publishes_nothing(place: Place, content: bytes) -> None:
    name = place.put_other(0.99)
    put(place.service.home, f"{TO}/{name}/manifest.json", content)
    before = place.current
    run = place.want(0.9)
    done = place.publish()
    assert done.reason is not None
    assert done.reason.code is ReasonCode.PUBLICATION_UNREAD
    assert f"{TO}/{name}/manifest.json can't be used" in done.said
    assert (place.current, place.metrics(run)) == (before, None)


@pytest.mark.parametrize("at", ["copy", "record", "current"])
def test_model_that_takes_the_place_meanwhile_is_compared_with(place: Place, at: str) -> None:
    place.put_other(0.9)
    before = place.want(0.95)
    better: list[str] = []
    done = place.publish(**{at: lambda: better.append(place.put_other(0.99, 2))})
    assert_worse(done, "0.99", better[0], "0.95")
    assert done.outcome is not None
    assert done.outcome.status is Status.SKIPPED
    assert place.current.job_name == better[0]
    if at == "copy":
        assert place.metrics(before) is None, "its record would make it a model that was published before"
        assert_worse(place.publish(), "0.99", better[0], "0.95")


def test_model_that_takes_the_place_meanwhile_and_is_no_better_is_replaced(place: Place) -> None:
    place.put_other(0.9)
    run = place.want(0.95)
    assert place.publish(current=lambda: place.put_other(0.96, 2)).reason is None
    assert place.current.job_name == run.job_name


def test_record_of_the_model_in_place_is_read_only_to_compare(place: Place) -> None:
    name = place.put_other(0.99)
    place.want(0.9, "{accuracy: {min: 0.5}}")
    place.publish()
    assert not [url for url in place.wire.read if name in url and "manifest.json" in url]
    other = current_model(published_model(job_name=name, environment="production", base_name="old"))
    put(place.service.home, CURRENT, current_json(other))
    place.want(0.98)
    done = place.publish()
    assert done.reason is not None
    assert done.reason.code is ReasonCode.PUBLISHED_BY_OTHER
    assert not [url for url in place.wire.read if name in url and "manifest.json" in url]
