"""Small studies and trials for the tests of tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reconciler.training_service.state.records import ML_JOBS, TUNING_JOBS, JobRecord
from reconciler.training_service.state.trial_records import Measurement, TrialRecord, TrialState
from reconciler.training_service.tuning.study import Algorithm, Kind, Metric, Parameter, Scale, Study, Value

RATE = Parameter("rate", Kind.DOUBLE, 1e-4, 1.0, scale=Scale.LOG)
UNITS = Parameter("units", Kind.INTEGER, 2, 5)
BATCH = Parameter("batch", Kind.DISCRETE, values=(8, 16, 32.5))
MOMENTUM = Parameter("momentum", Kind.DOUBLE, 0.5, 0.99, scale=Scale.REVERSE_LOG)
DECAY = Parameter("decay", Kind.DISCRETE, values=(0.1, 0.2))
OPTIMIZER = Parameter(
    "optimizer",
    Kind.CATEGORICAL,
    values=("sgd", "adam", "lamb"),
    children=((MOMENTUM, ("sgd",)), (DECAY, ("adam", "lamb"))),
)


def study(*parameters: Parameter, **more: Any) -> Study:
    values: dict[str, Any] = {
        "metrics": (Metric("accuracy", maximize=True),),
        "algorithm": Algorithm.DEFAULT,
        "max_trials": 10,
        "max_failed": None,
        "stopping": None,
        "best_measurement": False,
        "seed": 7,
    }
    return Study(parameters=parameters or (RATE,), **{**values, **more})


def trial(
    number: int,
    values: Sequence[float | None] = (),
    state: TrialState = TrialState.SUCCEEDED,
    parameters: Mapping[str, Value] | None = None,
    *,
    steps: Sequence[int] = (),
    **more: Any,
) -> TrialRecord:
    """Return a trial that has reported these values of `accuracy`, at the steps 1, 2, … or the given ones."""
    measurements = tuple(
        Measurement(step, 2.0 * step, {"accuracy": value})
        for step, value in zip(steps or range(1, len(values) + 1), values, strict=True)
        if value is not None
    )
    final = measurements[-1] if measurements and state is TrialState.SUCCEEDED else None
    return TrialRecord(
        job=1,
        number=number,
        parameters=parameters or {},
        create_time="2026-01-02T03:04:05.000000Z",
        state=state,
        measurements=measurements,
        **({"final": final} | more),
    )


def vertex_job(spec: Mapping[str, Any], **more: Any) -> JobRecord:
    body = {"displayName": "j", "studySpec": spec, "maxTrialCount": 9, "parallelTrialCount": 3, **more}
    return JobRecord(TUNING_JOBS, "demo", "us-central1", "123", body, "s", "", "", id=4)


def ml_job(spec: Mapping[str, Any]) -> JobRecord:
    return JobRecord(
        ML_JOBS,
        "demo",
        "",
        "tuned_1",
        {"jobId": "tuned_1", "trainingInput": {"hyperparameters": spec}},
        "s",
        "",
        "",
        id=5,
    )
