"""Both APIs' specifications of a search: read, and refused if they are wrong."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.training_service.apis.unsupported import unsupported
from reconciler.training_service.state.records import CUSTOM_JOBS, JobRecord
from reconciler.training_service.tuning import checks
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
    StudyError,
    as_argument,
    is_tuning,
    study_of,
)
from tests.support.training_service.studies import ml_job, vertex_job

METRICS = [{"metricId": "loss", "goal": "MINIMIZE"}, {"metricId": "auc", "goal": "MAXIMIZE"}]
PARAMETERS: list[dict[str, Any]] = [
    {
        "parameterId": "rate",
        "doubleValueSpec": {"minValue": 0.001, "maxValue": 1},
        "scaleType": "UNIT_LOG_SCALE",
    },
    {
        "parameterId": "momentum",
        "doubleValueSpec": {"minValue": 0.5, "maxValue": 0.99},
        "scaleType": "UNIT_REVERSE_LOG_SCALE",
    },
    {
        "parameterId": "layers",
        "integerValueSpec": {"minValue": "1", "maxValue": "9007199254740993"},
        "scaleType": "UNIT_LINEAR_SCALE",
        "conditionalParameterSpecs": [
            {
                "parentIntValues": {"values": ["2", "3"]},
                "parameterSpec": {
                    "parameterId": "batch",
                    "discreteValueSpec": {"values": [8, 16.0, 32.5]},
                    "conditionalParameterSpecs": [
                        {
                            "parentDiscreteValues": {"values": [32.50000000000001, 8]},
                            "parameterSpec": {
                                "parameterId": "activation",
                                "categoricalValueSpec": {"values": ["relu", "tanh"]},
                            },
                        }
                    ],
                },
            }
        ],
    },
]


def vertex(**more: Any) -> Study:
    study = study_of(vertex_job({"metrics": METRICS, "parameters": PARAMETERS, **more}))
    assert study
    return study


def test_a_study_of_vertex_ai_is_read() -> None:
    activation = Parameter("activation", Kind.CATEGORICAL, values=("relu", "tanh"))
    batch = Parameter("batch", Kind.DISCRETE, values=(8, 16, 32.5), children=((activation, (8, 32.5)),))
    study = vertex()
    assert study.parameters == (
        Parameter("rate", Kind.DOUBLE, 0.001, 1, scale=Scale.LOG),
        Parameter("momentum", Kind.DOUBLE, 0.5, 0.99, scale=Scale.REVERSE_LOG),
        Parameter("layers", Kind.INTEGER, 1, 9007199254740993, children=((batch, (2, 3)),)),
    )
    assert study.metrics == (Metric("loss", maximize=False), Metric("auc", maximize=True))
    assert (study.max_trials, study.max_failed) == (9, None)
    assert (study.algorithm, study.stopping, study.best_measurement) == (Algorithm.DEFAULT, None, False)
    assert (study.resumes, study.stopping_config, study.metric_needed) == ("", None, True)


@pytest.mark.parametrize(
    ("more", "name", "expected"),
    [
        ({"algorithm": "RANDOM_SEARCH"}, "algorithm", Algorithm.RANDOM),
        ({"algorithm": "ALGORITHM_UNSPECIFIED"}, "algorithm", Algorithm.DEFAULT),
        ({"medianAutomatedStoppingSpec": {}}, "stopping", Median()),
        ({"medianAutomatedStoppingSpec": {"useElapsedDuration": True}}, "stopping", Median(by_elapsed=True)),
        ({"decayCurveStoppingSpec": {"useElapsedDuration": True}}, "stopping", DecayCurve(by_elapsed=True)),
        ({"convexAutomatedStoppingSpec": {}}, "stopping", Convex()),
        (
            {
                "convexAutomatedStoppingSpec": {
                    "maxStepCount": "90",
                    "minStepCount": "0",
                    "minMeasurementCount": "3",
                }
            },
            "stopping",
            Convex(last=90.0, first=0.0, measurements=3),
        ),
        ({"measurementSelectionType": "BEST_MEASUREMENT"}, "best_measurement", True),
        ({"measurementSelectionType": "LAST_MEASUREMENT"}, "best_measurement", False),
        ({"observationNoise": "HIGH"}, "best_measurement", False),
        (
            {"studyStoppingConfig": {"maxNumTrials": 8, "minNumTrials": 3, "maxNumTrialsNoProgress": 4}},
            "stopping_config",
            StoppingConfig(min_trials=3, max_trials=8, without_progress=4),
        ),
    ],
)
def test_the_options_of_a_study_are_read(more: dict[str, Any], name: str, expected: object) -> None:
    assert getattr(vertex(**more), name) == expected


def test_a_grid_and_a_limit_of_failures_are_read() -> None:
    spec = {"metrics": METRICS, "parameters": PARAMETERS[2:], "algorithm": "GRID_SEARCH"}
    study = study_of(vertex_job(spec, maxFailedTrialCount=2))
    assert study
    assert (study.algorithm, study.max_failed) == (Algorithm.GRID, 2)


def test_a_study_of_ai_platform_is_read() -> None:
    params = [
        {
            "parameterName": "rate",
            "type": "DOUBLE",
            "minValue": 0.1,
            "maxValue": 1.0,
            "scaleType": "UNIT_LOG_SCALE",
        },
        {"parameterName": "layers", "type": "INTEGER", "minValue": 1.0, "maxValue": 3, "scaleType": "NONE"},
        {"parameterName": "kernel", "type": "CATEGORICAL", "categoricalValues": ["rbf", "poly"]},
        {"parameterName": "batch", "type": "DISCRETE", "discreteValues": [16.0, 32]},
    ]
    study = study_of(
        ml_job(
            {
                "params": params,
                "goal": "MINIMIZE",
                "maxTrials": 7,
                "maxParallelTrials": 2,
                "maxFailedTrials": 3,
                "hyperparameterMetricTag": "val loss",
                "algorithm": "RANDOM_SEARCH",
                "enableTrialEarlyStopping": True,
                "resumePreviousJobId": "tuned_0",
            }
        )
    )
    assert study
    assert study.parameters == (
        Parameter("rate", Kind.DOUBLE, 0.1, 1.0, scale=Scale.LOG),
        Parameter("layers", Kind.INTEGER, 1, 3),
        Parameter("kernel", Kind.CATEGORICAL, values=("rbf", "poly")),
        Parameter("batch", Kind.DISCRETE, values=(16, 32)),
    )
    assert study.metrics == (Metric("val loss", maximize=False),)
    assert (study.max_trials, study.max_failed) == (7, 3)
    assert (study.algorithm, study.stopping, study.resumes) == (Algorithm.RANDOM, Median(), "tuned_0")
    assert isinstance(study.parameters[1].low, int)


def test_ai_platforms_defaults() -> None:
    param = {"parameterName": "layers", "type": "INTEGER", "maxValue": 3}
    study = study_of(ml_job({"params": [param]}))
    assert study
    assert study.metrics == (Metric("training/hptuning/metric", maximize=True),)
    assert (study.max_trials, study.max_failed) == (1, None)
    assert (study.stopping, study.metric_needed, study.parameters[0].low) == (None, False, 0)


def test_the_seed_is_the_jobs_own_and_stays_the_same() -> None:
    spec = {"metrics": METRICS, "parameters": PARAMETERS}
    first, again = study_of(vertex_job(spec)), study_of(vertex_job(spec))
    param = {"parameterName": "layers", "type": "INTEGER", "maxValue": 3}
    other = study_of(ml_job({"params": [param]}))
    assert first
    assert again
    assert other
    assert first.seed == again.seed != other.seed


def test_only_jobs_of_trials_are_tuning_jobs() -> None:
    custom = JobRecord(CUSTOM_JOBS, "demo", "l", "1", {"jobSpec": {}}, "s", "", "")
    plain = JobRecord("jobs", "demo", "", "a", {"jobId": "a", "trainingInput": {}}, "s", "", "")
    assert [is_tuning(job) for job in (custom, plain, ml_job({}), vertex_job({}))] == [
        False,
        False,
        True,
        True,
    ]
    assert study_of(custom) is study_of(plain) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (0.001, "0.001"),
        (1.0, "1.0"),
        (1e-5, "1e-05"),
        (32, "32"),
        (2.5, "2.5"),
        ("relu", "relu"),
        (-1e-5, "-0.00001"),
    ],
)
def test_values_as_trainers_get_them(value: float | int | str, text: str) -> None:
    assert as_argument(value) == text


def test_what_cannot_be_carried_out_is_said() -> None:
    for more, told in (
        ({"metrics": [{"metricId": "m"}]}, r"goal: Required"),
        ({"parameters": []}, r"study_spec.parameters: Required"),
    ):
        with pytest.raises(StudyError, match=told):
            vertex(**more)
    with pytest.raises(StudyError, match=r"training_input\.hyperparameters\.params"):
        study_of(ml_job({}))


@pytest.mark.parametrize(
    ("more", "field", "remedy"),
    [
        (
            {"metrics": [{"metricId": "m", "goal": "MAXIMIZE", "safetyConfig": {}}]},
            "study_spec.metrics[0].safety_config",
            "Remove the field",
        ),
        *(
            (
                {"studyStoppingConfig": {name: value}},
                f"study_spec.study_stopping_config.{field}",
                "max_num_trials",
            )
            for name, field, value in (
                ("maxDurationNoProgress", "max_duration_no_progress", "3600s"),
                ("maximumRuntimeConstraint", "maximum_runtime_constraint", {"maxDuration": "3600s"}),
                ("minimumRuntimeConstraint", "minimum_runtime_constraint", {"maxDuration": "3600s"}),
            )
        ),
    ],
)
def test_safe_search_and_stopping_by_time_are_unsupported(
    more: dict[str, Any], field: str, remedy: str
) -> None:
    ((at, message),) = unsupported(vertex_job({"metrics": METRICS, "parameters": PARAMETERS, **more}))
    assert at == field
    assert remedy in message


def double(**more: Any) -> dict[str, Any]:
    spec = {"minValue": 0.1, "maxValue": 1, **more.pop("range", {})}
    return {"parameterId": "rate", "doubleValueSpec": spec, **more}


def discrete(*values: float, **more: Any) -> dict[str, Any]:
    return {"parameterId": "batch", "discreteValueSpec": {"values": list(values)}, **more}


def child(spec: dict[str, Any], **condition: Any) -> dict[str, Any]:
    return {"parameterSpec": spec, **condition}


WHEN_8 = {"parentDiscreteValues": {"values": [8]}}


@pytest.mark.parametrize(
    ("changes", "path", "told"),
    [
        ({"metrics": []}, "metrics", "Required"),
        ({"parameters": []}, "parameters", "Required"),
        ({"metrics": [{"metricId": "a b", "goal": "MAXIMIZE"}]}, "metrics[0].metric_id", "whitespaces"),
        ({"metrics": [{"goal": "MAXIMIZE"}]}, "metrics[0].metric_id", "Required"),
        ({"metrics": [{"metricId": "a"}]}, "metrics[0].goal", "Required"),
        ({"metrics": [METRICS[0], METRICS[0]]}, "metrics[1].metric_id", "used twice"),
        ({"parameters": [double(parameterId="a b")]}, "parameters[0].parameter_id", "whitespaces"),
        ({"parameters": [double(parameterId="a\0")]}, "parameters[0].parameter_id", "NUL"),
        (
            {"parameters": [{"parameterId": "k", "categoricalValueSpec": {"values": ["a", "b\0"]}}]},
            "parameters[0].categorical_value_spec.values",
            "NUL",
        ),
        ({"parameters": [double(), double()]}, "parameters", "rate is used twice"),
        (
            {"parameters": [{"parameterId": "a"}]},
            "parameters[0].parameter_value_spec",
            "Exactly one of double_value_spec",
        ),
        (
            {"parameters": [double(integerValueSpec={})]},
            "parameters[0].parameter_value_spec",
            "Exactly one",
        ),
        (
            {"parameters": [double(range={"maxValue": 0})]},
            "parameters[0].double_value_spec.max_value",
            "0.0 < 0.1",
        ),
        (
            {"parameters": [double(range={"maxValue": "Infinity"})]},
            "parameters[0].double_value_spec.max_value",
            "finite",
        ),
        (
            {"parameters": [double(range={"minValue": 0}, scaleType="UNIT_LOG_SCALE")]},
            "parameters[0].double_value_spec.min_value",
            "greater than zero",
        ),
        (
            {"parameters": [{"parameterId": "n", "integerValueSpec": {"minValue": "10", "maxValue": "9"}}]},
            "parameters[0].integer_value_spec.max_value",
            "9 < 10",
        ),
        ({"parameters": [discrete()]}, "parameters[0].discrete_value_spec.values", "Required"),
        ({"parameters": [discrete(2, 1)]}, "parameters[0].discrete_value_spec.values", "increasing"),
        ({"parameters": [discrete(1, 1)]}, "parameters[0].discrete_value_spec.values", "increasing"),
        ({"parameters": [discrete(*range(1001))]}, "parameters[0].discrete_value_spec.values", "1000"),
        (
            {"parameters": [discrete(0, 1, scaleType="UNIT_REVERSE_LOG_SCALE")]},
            "parameters[0].discrete_value_spec.values",
            "greater than zero",
        ),
        (
            {"parameters": [{"parameterId": "k", "categoricalValueSpec": {"values": ["a", "a"]}}]},
            "parameters[0].categorical_value_spec.values",
            "different",
        ),
        (
            {"parameters": [{"parameterId": "k", "categoricalValueSpec": {}}]},
            "parameters[0].categorical_value_spec.values",
            "Required",
        ),
        (
            {"algorithm": "GRID_SEARCH", "parameters": [double()]},
            "parameters[0].double_value_spec",
            "GRID_SEARCH",
        ),
        (
            {"parameters": [double(conditionalParameterSpecs=[child(discrete(1), **WHEN_8)])]},
            "parameters[0].conditional_parameter_specs[0].parent_value_condition",
            "can't be a condition",
        ),
        (
            {"parameters": [discrete(8, 9, conditionalParameterSpecs=[child(double())])]},
            "parameters[0].conditional_parameter_specs[0].parent_value_condition",
            "parent_discrete_values",
        ),
        (
            {"parameters": [discrete(7, 9, conditionalParameterSpecs=[child(double(), **WHEN_8)])]},
            "parameters[0].conditional_parameter_specs[0].parent_discrete_values.values",
            "doesn't have the value 8",
        ),
        (
            {
                "parameters": [
                    discrete(8, 9, conditionalParameterSpecs=[child(double(range={"maxValue": 0}), **WHEN_8)])
                ]
            },
            "parameters[0].conditional_parameter_specs[0].parameter_spec.double_value_spec.max_value",
            "0.0 < 0.1",
        ),
        (
            {"parameters": [discrete(8, 9, conditionalParameterSpecs=[child(double(), **WHEN_8)] * 2)]},
            "parameters",
            "rate is used twice",
        ),
        (
            {"parameters": [discrete(8, conditionalParameterSpecs=[child(discrete(1), **WHEN_8)])]},
            "parameters",
            "batch is used twice",
        ),
        (
            {"parameters": [discrete(8, conditionalParameterSpecs=[child(double(), **WHEN_8)]), double()]},
            "parameters",
            "rate is used twice",
        ),
        (
            {"medianAutomatedStoppingSpec": {}, "decayCurveStoppingSpec": {}},
            "automated_stopping_spec",
            "At most one",
        ),
    ],
)
def test_vertex_ai_refuses(changes: dict[str, Any], path: str, told: str) -> None:
    found = list(checks.study_spec({"metrics": METRICS, "parameters": PARAMETERS, **changes}, "study_spec"))
    assert [(p, told in text) for p, text in found] == [(f"study_spec.{path}", True)]


def test_conditional_parameters_of_one_name_may_be_there_for_different_values() -> None:
    nine = {"parentDiscreteValues": {"values": [9]}}
    both = [child(double(), **WHEN_8), child(double(range={"maxValue": 2}), **nine)]
    spec = {"metrics": METRICS, "parameters": [discrete(8, 9, conditionalParameterSpecs=both)]}
    assert list(checks.study_spec(spec, "study_spec")) == []


@pytest.mark.parametrize(
    ("spec", "path", "told"),
    [
        ({}, "params", "Required"),
        ({"maxTrials": -1}, "max_trials", "negative"),
        ({"params": [{"type": "INTEGER"}]}, "params[0].parameter_name", "Required"),
        ({"params": [{"parameterName": "a"}]}, "params[0].type", "Required"),
        ({"params": [{"type": "INTEGER", "maxValue": 1.5}]}, "params[0].max_value", "integers"),
        ({"params": [{"type": "DOUBLE", "minValue": 2, "maxValue": 1}]}, "params[0].max_value", "1.0 < 2.0"),
        (
            {"params": [{"type": "DOUBLE", "maxValue": 1, "scaleType": "UNIT_LOG_SCALE"}]},
            "params[0].min_value",
            "greater than zero",
        ),
        ({"params": [{"type": "CATEGORICAL"}]}, "params[0].categorical_values", "Required"),
        ({"params": [{"type": "DISCRETE", "discreteValues": [2, 1]}]}, "params[0].discrete_values", "incr"),
        (
            {"algorithm": "GRID_SEARCH", "params": [{"type": "DOUBLE", "maxValue": 1}]},
            "params[0].type",
            "GRID_SEARCH",
        ),
        (
            {"params": [{"type": "INTEGER"}, {"type": "INTEGER"}]},
            "params[1].parameter_name",
            "n is used twice",
        ),
    ],
)
def test_ai_platform_refuses(spec: dict[str, Any], path: str, told: str) -> None:
    # Add the missing names, unless a missing name is the tested mistake.
    filled = {
        **spec,
        "params": [
            each if "Required" in told and "name" in path else {"parameterName": "n", **each}
            for each in spec.get("params", [{"parameterName": "n", "type": "INTEGER"}] if spec else [])
        ],
    }
    found = list(checks.hyperparameters(filled, "hp"))
    assert (f"hp.{path}", True) in [(p, told in text) for p, text in found]
    assert len(found) == 1
