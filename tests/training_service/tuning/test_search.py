"""The search: the next point, the same point after a restart, and trials that end early."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.training_service.state.trial_records import Measurement, TrialRecord, TrialState
from reconciler.training_service.tuning.search import suggest, to_stop
from reconciler.training_service.tuning.study import (
    Algorithm,
    Convex,
    DecayCurve,
    Kind,
    Median,
    Metric,
    Parameter,
    Scale,
    StoppingConfig,
    Study,
    Value,
    all_points,
    contains_point,
    point_key,
)
from tests.support.training_service.studies import BATCH, OPTIMIZER, RATE, UNITS, study, trial

ALGORITHMS = pytest.mark.parametrize("algorithm", list(Algorithm))
GRID = (UNITS, BATCH, replace(OPTIMIZER, children=OPTIMIZER.children[1:]))


@st.composite
def parameters(draw: st.DrawFn, names: tuple[str, ...], doubles: bool = True, depth: int = 2) -> Parameter:
    """Draw any parameters, with conditional parameters below; each of `names` is used on a single level."""
    name, *below = names
    kinds = [kind for kind in Kind if doubles or kind is not Kind.DOUBLE]
    kind = draw(st.sampled_from(kinds))
    scale = draw(st.sampled_from(Scale))
    low = draw(st.integers(1, 50))
    values: tuple[Value, ...] = ()
    if kind is Kind.CATEGORICAL:
        values = tuple(draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True)))
    elif kind is Kind.DISCRETE:
        numbers = st.lists(st.sampled_from([1, 2, 2.5, 8, 16.25]), min_size=1, max_size=4, unique=True)
        values = tuple(sorted(draw(numbers)))
    high = low + draw(st.integers(0, 4))
    if kind is Kind.DOUBLE:
        return Parameter(name, kind, low / 10, high / 3 + low, scale=scale)
    made = Parameter(name, kind, 0 if values else low, 0 if values else high, values, scale)
    own: tuple[Value, ...] = values or tuple(range(low, high + 1))
    children = []
    left = list(own)
    while depth and left and draw(st.booleans()):
        when = tuple(draw(st.lists(st.sampled_from(left), min_size=1, unique=True)))
        left = [value for value in left if value not in when]
        # The same names again: two parameters with the same name may exist for different values.
        children.append((draw(parameters(tuple(below), doubles, depth - 1)), when))
    return replace(made, children=tuple(children))


SPACES = st.tuples(parameters(("a", "b", "c")), parameters(("d", "e", "f")))
GRIDS = st.tuples(parameters(("a", "b", "c"), doubles=False), parameters(("d", "e", "f"), doubles=False))


def check(parameters: tuple[Parameter, ...], point: dict[str, Value], seen: set[str]) -> None:
    """Check that each active parameter has a value of its own; add the names to `seen`."""
    for each in parameters:
        value = point[each.name]
        seen.add(each.name)
        if each.kind in (Kind.CATEGORICAL, Kind.DISCRETE):
            assert value in each.values
            assert type(value) in {type(own) for own in each.values}
        else:
            assert not isinstance(value, str)
            assert each.low <= value <= each.high
            assert isinstance(value, int if each.kind is Kind.INTEGER else float)
        check(tuple(child for child, wanted in each.children if value in wanted), point, seen)


def outcome(number: int, point: dict[str, Value], *metrics: Metric) -> TrialRecord:
    """Return an ended or running trial at this point; its number decides on the outcome."""
    ended = trial(number, [], TrialState.SUCCEEDED, point)
    if number % 5 == 3:
        return replace(ended, state=TrialState.FAILED)
    if number % 5 == 4:
        return replace(ended, state=TrialState.RUNNING)
    values = {metric.name: float(number * (7 + n) % 5) for n, metric in enumerate(metrics)}
    return replace(ended, final=Measurement(1, 1.0, values))


def searched(found: Study, count: int) -> list[TrialRecord]:
    trials: list[TrialRecord] = []
    for number in range(1, count + 1):
        point = suggest(found, trials)
        if point is None:
            break
        trials.append(outcome(number, point, *found.metrics))
    return trials


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [Algorithm.DEFAULT, Algorithm.RANDOM])
@settings(max_examples=25)
@given(parameters=SPACES, seed=st.integers(0, 2**64 - 1))
def test_every_suggestion_is_of_the_space(
    algorithm: Algorithm, parameters: tuple[Parameter, ...], seed: int
) -> None:
    trials = searched(study(*parameters, algorithm=algorithm, seed=seed), 13)
    assert len(trials) == 13
    for each in trials:
        point, seen = dict(each.parameters), set[str]()
        check(parameters, point, seen)
        assert seen == point.keys()
        assert contains_point(parameters, point)
        assert json.loads(json.dumps(point)) == point


@pytest.mark.slow
@settings(max_examples=50)
@given(parameters=GRIDS)
def test_a_grid_has_each_of_its_points_once(parameters: tuple[Parameter, ...]) -> None:
    points = list(all_points(parameters))
    assert len({point_key(point) for point in points}) == len(points) == size(parameters)
    for point in points:
        seen = set[str]()
        check(parameters, point, seen)
        assert seen == point.keys()


def size(parameters: tuple[Parameter, ...]) -> int:
    """Return the number of points, computed by multiplying."""
    total = 1
    for each in parameters:
        own = each.values or tuple(range(int(each.low), int(each.high) + 1))
        total *= sum(size(each.active(value)) for value in own)
    return total


def test_a_grid_search_tries_all_and_then_has_nothing_left() -> None:
    found = study(*GRID, algorithm=Algorithm.GRID)
    trials = searched(found, 100)
    assert len(trials) == 4 * 3 * (1 + 2 * 2)
    assert len({point_key(each.parameters) for each in trials}) == len(trials)
    assert suggest(found, trials) is None
    # Trials of a resumed job count as well, in any order.
    assert suggest(found, trials[::-1]) is None
    assert suggest(found, trials[1:]) == trials[0].parameters


def test_a_very_large_grid_costs_no_more_than_its_trials() -> None:
    wide = [Parameter(name, Kind.INTEGER, 0, 10**12) for name in "abc"]
    trials = searched(study(*wide, algorithm=Algorithm.GRID), 30)
    assert len({point_key(each.parameters) for each in trials}) == 30


@ALGORITHMS
def test_the_same_trials_give_the_same_suggestion(algorithm: Algorithm) -> None:
    found = study(*GRID, algorithm=algorithm)
    trials = searched(found, 15)
    for count in (0, 7, 15):
        assert suggest(found, trials[:count]) == suggest(replace(found), list(trials[:count]))
    other = searched(replace(found, seed=8), 15)
    same = [one.parameters == two.parameters for one, two in zip(trials, other, strict=True)]
    assert all(same) == (algorithm is Algorithm.GRID)


@pytest.mark.slow
def test_the_default_search_takes_a_moment_with_fifty_trials() -> None:
    found = study(RATE, *GRID)
    trials = searched(found, 50)
    began = time.process_time()
    for _ in range(5):
        suggest(found, trials)
    assert (time.process_time() - began) / 5 < 0.25  # some 30 ms on an idle machine


def test_the_default_search_avoids_what_it_has_tried_while_there_is_else() -> None:
    found = study(Parameter("units", Kind.INTEGER, 1, 6))
    trials = searched(found, 6)
    assert {each.parameters["units"] for each in trials} == {1, 2, 3, 4, 5, 6}
    assert suggest(found, trials) is not None  # only a grid ends before its trials are used up


@pytest.mark.slow
def test_the_default_search_goes_where_the_metric_is_good() -> None:
    found = study(Parameter("x", Kind.DOUBLE, 0.0, 1.0), metrics=(Metric("loss", maximize=False),))
    trials: list[TrialRecord] = []
    for number in range(1, 31):
        point = suggest(found, trials)
        assert point
        loss = (float(point["x"]) - 0.7) ** 2
        final = Measurement(1, 1.0, {"loss": loss})
        trials.append(trial(number, [], TrialState.SUCCEEDED, point, final=final))
    late = [abs(float(each.parameters["x"]) - 0.7) for each in trials[20:]]
    assert sorted(late)[len(late) // 2] < 0.15


@pytest.mark.slow
def test_the_default_search_keeps_away_from_what_fails() -> None:
    early = late = 0
    for seed in range(6):
        found = study(Parameter("x", Kind.DOUBLE, 0.0, 1.0), seed=seed)
        trials: list[TrialRecord] = []
        for number in range(1, 41):
            point = suggest(found, trials)
            assert point
            x = float(point["x"])
            if x < 0.6:
                trials.append(trial(number, [], TrialState.FAILED, point))
            else:
                trials.append(trial(number, [-abs(x - 0.8)], parameters=point))
        failures = [each.state is TrialState.FAILED for each in trials]
        early, late = early + sum(failures[:20]), late + sum(failures[20:])
    assert late < 0.8 * early


def test_several_metrics_are_searched_for_together() -> None:
    metrics = (Metric("size", maximize=False), Metric("accuracy", maximize=True))
    trials = searched(study(*GRID, metrics=metrics), 16)
    assert len(trials) == 16


def test_trials_of_a_resumed_job_with_another_space_are_left_out() -> None:
    foreign = [trial(number, [1.0], parameters={"rate": 5.0, "x": 1}) for number in range(1, 15)]
    for algorithm in (Algorithm.DEFAULT, Algorithm.RANDOM):
        point = suggest(study(RATE, algorithm=algorithm), foreign)
        assert point
        assert contains_point((RATE,), point)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "low", "high"), [(Scale.LINEAR, 0.35, 0.65), (Scale.LOG, 0.0, 0.1), (Scale.REVERSE_LOG, 0.9, 1)]
)
@pytest.mark.parametrize("algorithm", [Algorithm.DEFAULT, Algorithm.RANDOM])
def test_scales_say_where_most_values_are(
    algorithm: Algorithm, scale: Scale, low: float, high: float
) -> None:
    drawn = Parameter("x", Kind.DOUBLE, 1e-4, 1.0, scale=scale)
    found = [suggest(study(drawn, algorithm=algorithm, seed=seed), []) for seed in range(201)]
    middle = sorted(float(each["x"]) for each in found if each)[100]
    assert low < middle < high


def test_a_study_ends_by_its_own_conditions() -> None:
    values = [0.1, 0.5, 0.4, 0.5, 0.3]
    trials = [trial(number, [value]) for number, value in enumerate(values, 1)]
    expected = {
        StoppingConfig(max_trials=5): True,
        StoppingConfig(max_trials=6): False,
        StoppingConfig(max_trials=5, min_trials=6): False,
        StoppingConfig(without_progress=3): True,
        StoppingConfig(without_progress=4): False,
        StoppingConfig(): False,
    }
    for config, is_over in expected.items():
        assert (suggest(study(stopping_config=config), trials) is None) == is_over


@pytest.mark.slow
def test_only_the_default_search_loads_its_library() -> None:
    program = """
import sys
from reconciler.training_service.tuning import measurements
from reconciler.training_service.tuning import resources
from reconciler.training_service.tuning import search
from reconciler.training_service.tuning import study
found = study.Study((study.Parameter("n", study.Kind.INTEGER, 1, 3),), (study.Metric("m", True),),
    study.Algorithm.GRID, 3, None, None, False, 1)
assert search.suggest(found, []) == {"n": 1}
import reconciler.cli, reconciler.training_service.application
sys.exit(bool({"optuna", "numpy"} & sys.modules.keys()))
"""
    subprocess.run([sys.executable, "-c", program], check=True)


# --- trials that are ended early --------------------------------------------------------------------------

RUNNING = TrialState.RUNNING
MEDIAN = study(stopping=Median())

# Running means at step 2: 0.25, 0.45, 0.65: the median is 0.45.
ENDED = [trial(1, [0.2, 0.3, 0.9]), trial(2, [0.4, 0.5, 0.9]), trial(3, [0.6, 0.7, 0.9])]


@pytest.mark.parametrize(
    ("values", "is_stopped"),
    [
        ([0.1, 0.44], True),
        ([0.44, 0.1], True),
        ([0.1, 0.45], False),  # it has to be strictly worse
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
    assert to_stop(MEDIAN, [*ENDED, running]) == set()  # it has no steps


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
    """Return a learning curve that approaches `top`."""
    return [top - fall / step for step in range(1, steps + 1)]


DECAY = study(stopping=DecayCurve())
GOOD = [trial(number, curve(top, 20)) for number, top in enumerate((0.9, 0.92, 0.94), 1)]


@pytest.mark.parametrize(
    ("values", "is_stopped"),
    [
        (curve(0.6, 8), True),
        (curve(0.95, 8), False),
        (curve(0.99, 8), False),
        (curve(0.6, 3), False),  # too few points for a curve
        ([0.1, 0.1, 0.1, 0.1, 0.1], True),
        ([0.1, 0.6, 0.2, 0.7, 0.3], False),  # too uneven for a forecast
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
        (Convex(), [0.1] * 10, False),  # as documented: a flat curve allows no forecast
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
