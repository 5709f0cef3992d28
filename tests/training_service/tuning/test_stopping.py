"""Which running trials are ended early."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.training_service.state.trial_records import Measurement, TrialState
from reconciler.training_service.tuning.search import to_stop
from reconciler.training_service.tuning.study import Convex, DecayCurve, Median, Metric, StoppingConfig
from tests.support.training_service.studies import study, trial

RUNNING = TrialState.RUNNING
MEDIAN = study(stopping=Median())

# Running means at step 2: 0.25, 0.45, 0.65: the median is 0.45.
ENDED = [trial(1, [0.2, 0.3, 0.9]), trial(2, [0.4, 0.5, 0.9]), trial(3, [0.6, 0.7, 0.9])]


@pytest.mark.parametrize(
    ("values", "is_stopped"),
    [
        ([0.1, 0.44], True),
        ([0.44, 0.1], True),
        ([0.1, 0.45], False),  # strictly worse, it has to be
        ([0.46, 0.1], False),  # its best counts
        ([], False),
    ],
)
def test_the_median_rule(values: list[float], is_stopped: bool) -> None:
    assert to_stop(MEDIAN, [*ENDED, trial(4, values, RUNNING)]) == ({4} if is_stopped else set())


def test_the_median_rule_looks_no_further_than_the_trial_is() -> None:
    late = [trial(number, [0.1, 0.9]) for number in (1, 2, 3)]
    assert to_stop(MEDIAN, [*late, trial(4, [0.15], RUNNING)]) == set()
    assert to_stop(MEDIAN, [*late, trial(4, [0.15, 0.2], RUNNING)]) == {4}


def test_the_median_rule_minimizes() -> None:
    less = replace(MEDIAN, metrics=(Metric("accuracy", maximize=False),))
    assert to_stop(less, [*ENDED, trial(4, [0.5, 0.46], RUNNING)]) == {4}
    assert to_stop(less, [*ENDED, trial(4, [0.5, 0.44], RUNNING)]) == set()


def test_the_median_rule_by_the_time_that_has_passed() -> None:
    by_time = replace(MEDIAN, stopping=Median(by_elapsed=True))
    slow = Measurement(0, 3.9, {"accuracy": 0.3})  # the others' second steps were at 4 seconds
    running = replace(trial(4, [], RUNNING), measurements=(slow,))
    assert to_stop(by_time, [*ENDED, running]) == {4}  # 0.2, 0.4, 0.6 so far
    assert to_stop(by_time, [*ENDED, replace(running, measurements=(replace(slow, elapsed=1.0),))]) == set()
    assert to_stop(MEDIAN, [*ENDED, running]) == set()  # it tells no steps


@pytest.mark.parametrize("state", [state for state in TrialState if state is not RUNNING])
def test_only_running_trials_are_stopped(state: TrialState) -> None:
    assert to_stop(MEDIAN, [*ENDED, trial(4, [0.0, 0.0], state)]) == set()


def test_nothing_is_stopped_before_enough_have_succeeded() -> None:
    bad = trial(4, [0.0, 0.0], RUNNING)
    assert to_stop(MEDIAN, [*ENDED[:2], bad]) == set()
    failed = trial(3, [0.6, 0.7], TrialState.FAILED)
    assert to_stop(MEDIAN, [*ENDED[:2], failed, bad]) == set()
    assert to_stop(study(), [*ENDED, bad]) == set()


def test_with_several_metrics_a_trial_must_be_bad_by_each() -> None:
    both = replace(MEDIAN, metrics=(Metric("accuracy", maximize=True), Metric("size", maximize=False)))

    def sized(number: int, accuracy: float, size: float, state: TrialState) -> object:
        found = Measurement(1, 1.0, {"accuracy": accuracy, "size": size})
        final = found if state is TrialState.SUCCEEDED else None
        return replace(trial(number, [], state), measurements=(found,), final=final)

    ended = [sized(number, 0.5, 10.0, TrialState.SUCCEEDED) for number in (1, 2, 3)]
    trials = [*ended, sized(4, 0.4, 9.0, RUNNING), sized(5, 0.6, 11.0, RUNNING), sized(6, 0.4, 11.0, RUNNING)]
    assert to_stop(both, trials) == {6}  # type: ignore[arg-type]


def curve(top: float, steps: int, fall: float = 0.8) -> list[float]:
    """A learning curve that approaches `top`."""
    return [top - fall / step for step in range(1, steps + 1)]


DECAY = study(stopping=DecayCurve())
GOOD = [trial(number, curve(top, 20)) for number, top in enumerate((0.9, 0.92, 0.94), 1)]


@pytest.mark.parametrize(
    ("values", "is_stopped"),
    [
        (curve(0.6, 8), True),
        (curve(0.95, 8), False),
        (curve(0.99, 8), False),
        (curve(0.6, 3), False),  # too few to draw a curve
        ([0.1, 0.1, 0.1, 0.1, 0.1], True),
        ([0.1, 0.6, 0.2, 0.7, 0.3], False),  # so uneven that nobody knows
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], False),  # still rising straight
    ],
)
def test_the_decay_curve_rule(values: list[float], is_stopped: bool) -> None:
    assert to_stop(DECAY, [*GOOD, trial(4, values, RUNNING)]) == ({4} if is_stopped else set())


def test_the_decay_curve_rule_leaves_a_trial_that_is_as_far_as_the_others() -> None:
    assert to_stop(DECAY, [*GOOD, trial(4, curve(0.6, 20), RUNNING)]) == set()


def test_the_decay_curve_rule_by_the_time_that_has_passed() -> None:
    by_time = replace(DECAY, stopping=DecayCurve(by_elapsed=True))
    unnumbered = trial(4, curve(0.6, 8), RUNNING)
    unnumbered = replace(
        unnumbered, measurements=tuple(replace(each, step=0) for each in unnumbered.measurements)
    )
    assert to_stop(by_time, [*GOOD, unnumbered]) == {4}
    assert to_stop(DECAY, [*GOOD, unnumbered]) == set()


SIX = [trial(number, curve(0.9, 20)) for number in range(1, 7)]


@pytest.mark.parametrize(
    ("rule", "values", "is_stopped"),
    [
        (Convex(), curve(0.5, 10), True),
        (Convex(), curve(0.89, 10), False),
        (Convex(last=1000.0), curve(0.5, 10), False),  # there is time
        (Convex(first=10.0), curve(0.5, 10), False),
        (Convex(measurements=6), curve(0.5, 10), False),  # too few have ended
        (Convex(), curve(0.5, 4), False),
        (Convex(), [0.1] * 10, False),  # as documented: nothing can be said of a flat one
    ],
)
def test_the_convex_rule(rule: Convex, values: list[float], is_stopped: bool) -> None:
    found = to_stop(study(stopping=rule), [*SIX, trial(7, values, RUNNING)])
    assert found == ({7} if is_stopped else set())


def test_all_are_stopped_when_the_study_says_that_it_is_stopping_config() -> None:
    trials = [*ENDED, trial(4, [0.9], RUNNING), trial(5, [], RUNNING), trial(6, [], TrialState.QUEUED)]
    assert to_stop(study(stopping_config=StoppingConfig(max_trials=6, at_once=True)), trials) == {4, 5}
    assert to_stop(study(stopping_config=StoppingConfig(max_trials=6)), trials) == set()
    assert to_stop(study(stopping_config=StoppingConfig(max_trials=7, at_once=True)), trials) == set()
