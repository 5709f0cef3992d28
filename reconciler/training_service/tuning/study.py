"""Search of a tuning job and its space, in one form for both APIs.

The fields follow the discovery documents: StudySpec of aiplatform v1, HyperparameterSpec of ml v1.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from random import Random

from reconciler.training_service.state.records import ML_JOBS, TUNING_JOBS, JobRecord, Json, number_of
from reconciler.training_service.tuning import checks

Value = float | int | str

Point = dict[str, Value]
"""The value of each active parameter by name, in the order of the specification."""

DEFAULT_TAG = "training/hptuning/metric"


class Kind(StrEnum):
    """Type of a parameter's values: AI Platform's names, and Vertex AI's fields as values."""

    DOUBLE = "doubleValueSpec"
    INTEGER = "integerValueSpec"
    CATEGORICAL = "categoricalValueSpec"
    DISCRETE = "discreteValueSpec"


class Scale(StrEnum):
    """Scale of a parameter's range; UNIT_…_SCALE of both APIs."""

    LINEAR = "linear"
    LOG = "log"
    REVERSE_LOG = "reverse-log"


@dataclass(frozen=True, slots=True)
class Parameter:
    """Hyper-parameter.

    Attributes:
        low, high: The bounds of a double or an integer, both included.
        values: The values of a categorical (strings) or discrete parameter (ascending numbers; whole ones are
            int).
        children: Conditional parameters, each with this parameter's values that activate it.
    """

    name: str
    kind: Kind
    low: float = 0.0
    high: float = 0.0
    values: tuple[Value, ...] = ()
    scale: Scale = Scale.LINEAR
    children: tuple[tuple[Parameter, tuple[Value, ...]], ...] = ()

    def active(self, value: Value) -> tuple[Parameter, ...]:
        """Return the child parameters that the value activates."""
        return tuple(child for child, values in self.children if value in values)


@dataclass(frozen=True, slots=True)
class Metric:
    """Metric to maximize or minimize."""

    name: str
    maximize: bool

    def merit(self, value: float) -> float:
        """Return the value with its sign changed if needed so that larger is better."""
        return value if self.maximize else -value


class Algorithm(StrEnum):
    """Search algorithm; the default is Bayesian."""

    DEFAULT = "default"
    GRID = "grid"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Median:
    """Rule that stops a trial whose best value is below the median of the others' means up to that step."""

    by_elapsed: bool = False


@dataclass(frozen=True, slots=True)
class DecayCurve:
    """Rule that stops a trial whose extrapolated curve is unlikely to reach the best value of the others."""

    by_elapsed: bool = False


@dataclass(frozen=True, slots=True)
class Convex:
    """Rule that stops a trial whose present slope doesn't suffice to reach the best value of the others.

    Attributes:
        last: The step or second at which trials end; 0 for the last of the ended trials.
        first: The step or second after which a trial may be stopped; None for a tenth of `last`.
        measurements: The minimum of measurements; more than as many trials must have ended.
    """

    by_elapsed: bool = False
    last: float = 0.0
    first: float | None = None
    measurements: int = 5


@dataclass(frozen=True, slots=True)
class StoppingConfig:
    """Conditions that end a study before its last trial; studyStoppingConfig.

    Attributes:
        min_trials: The study goes on with fewer succeeded trials.
        max_trials: The study ends with as many trials; 0 for no such condition.
        without_progress: The study ends after as many trials in a row without a better value; 0 for no such
            condition.
        at_once: True if the end of the study also stops running trials.
    """

    min_trials: int = 0
    max_trials: int = 0
    without_progress: int = 0
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Study:
    """Search of a tuning job.

    Attributes:
        max_failed: The number of failed trials that fails the job; None if the service decides.
        best_measurement: True if a trial's best measurement counts, rather than its last.
        seed: The random seed, constant for a job: a restart of the service doesn't change the search.
        resumes: The ml job whose trials come before; "" for none.
        metric_needed: True if a trial that ends well without a metric has failed. On Vertex AI it is
            INFEASIBLE, on AI Platform it succeeds.
    """

    parameters: tuple[Parameter, ...]
    metrics: tuple[Metric, ...]
    algorithm: Algorithm
    max_trials: int
    max_failed: int | None
    stopping: Median | DecayCurve | Convex | None
    best_measurement: bool
    seed: int
    resumes: str = ""
    stopping_config: StoppingConfig | None = None
    metric_needed: bool = False


class StudyError(Exception):
    """The search can't be carried out; `str()` is the reason."""


def study_of(job: JobRecord) -> Study | None:
    """Return the search of a tuning job; None for another job.

    Raises:
        StudyError: The search can't be carried out.
    """
    if not is_tuning(job):
        return None
    for path, text in _mistakes(job):
        raise StudyError(f"{path}: {text}")
    return _vertex(job) if job.collection == TUNING_JOBS else _ml(job)


def as_argument(value: Value) -> str:
    """Return a parameter's value as a command-line argument: "3", "0.001", "relu"."""
    if isinstance(value, str):
        return value
    # Whole discrete values are int: published trainers read batch sizes with type=int. Negative values have
    # no exponent: argparse before Python 3.14 takes `-1e-05` for an option.
    return format(Decimal(repr(value)), "f") if value < 0 else repr(value)


def is_tuning(job: JobRecord) -> bool:
    """Return True for a job of trials."""
    if job.collection == ML_JOBS:
        return "hyperparameters" in job.body.get("trainingInput", {})
    return job.collection == TUNING_JOBS


def all_points(parameters: Sequence[Parameter]) -> Iterator[Point]:
    """Yield each point once; the space must not have double parameters.

    A generator, because the points may be very many.
    """
    if not parameters:
        yield {}
        return
    first, *others = parameters
    is_integer = first.kind is Kind.INTEGER
    for value in range(int(first.low), int(first.high) + 1) if is_integer else first.values:
        for below in all_points(first.active(value)):
            for rest in all_points(others):
                yield {first.name: value, **below, **rest}


def random_point(parameters: Sequence[Parameter], random: Random) -> Point:
    """Return a random point, each parameter uniform on its scale."""
    point: Point = {}
    for parameter in parameters:
        value = _random_value(parameter, random)
        point |= {parameter.name: value, **random_point(parameter.active(value), random)}
    return point


def contains_point(parameters: Sequence[Parameter], point: Mapping[str, Value]) -> bool:
    """Return True if a point has exactly the parameters that its values make active, each allowed."""
    active = list(_active(parameters, point))
    return len(active) == len(point) and all(
        parameter.name in point and _allows(parameter, point[parameter.name]) for parameter in active
    )


def point_key(point: Mapping[str, Value]) -> frozenset[tuple[str, Value]]:
    """Return a key that is equal for equal points, whatever the order of their parameters."""
    return frozenset(point.items())


def mirrored(parameter: Parameter, value: float) -> float:
    """Return the value mirrored at the middle of the range, which reverses a log scale."""
    return min(max(parameter.low + parameter.high - value, parameter.low), parameter.high)


def _active(parameters: Sequence[Parameter], point: Mapping[str, Value]) -> Iterator[Parameter]:
    for parameter in parameters:
        yield parameter
        if parameter.name in point:
            yield from _active(parameter.active(point[parameter.name]), point)


def _allows(parameter: Parameter, value: Value) -> bool:
    if parameter.kind in (Kind.CATEGORICAL, Kind.DISCRETE):
        return value in parameter.values
    if isinstance(value, str) or (parameter.kind is Kind.INTEGER and not float(value).is_integer()):
        return False
    return parameter.low <= value <= parameter.high


def _random_value(parameter: Parameter, random: Random) -> Value:
    if parameter.values:
        return random.choice(parameter.values)
    if parameter.kind is Kind.INTEGER and parameter.scale is Scale.LINEAR:
        return random.randint(int(parameter.low), int(parameter.high))
    # Extend an integer's range by the values that round to its bounds: the bounds are then as likely as
    # their neighbours.
    edge = 0.5 if parameter.kind is Kind.INTEGER else 0.0
    low, high = parameter.low - edge, parameter.high + edge
    if parameter.scale is Scale.LINEAR:
        value = random.uniform(low, high)
    else:
        value = math.exp(random.uniform(math.log(low), math.log(high)))
    value = min(max(value, parameter.low), parameter.high)  # exp(log(x)) may leave the range by rounding
    if parameter.scale is Scale.REVERSE_LOG:
        value = mirrored(parameter, value)
    return round(value) if parameter.kind is Kind.INTEGER else float(value)


def _mistakes(job: JobRecord) -> Iterator[checks.Mistake]:
    if job.collection == ML_JOBS:
        yield from checks.hyperparameters(
            job.body["trainingInput"]["hyperparameters"], "training_input.hyperparameters"
        )
    else:
        yield from checks.study_spec(job.body.get("studySpec", {}), "study_spec")


def _vertex(job: JobRecord) -> Study:
    spec = job.body["studySpec"]
    return Study(
        parameters=tuple(_parameter(parameter) for parameter in spec["parameters"]),
        metrics=tuple(
            Metric(metric["metricId"], metric.get("goal") != "MINIMIZE") for metric in spec["metrics"]
        ),
        algorithm=_ALGORITHMS.get(spec.get("algorithm", ""), Algorithm.DEFAULT),
        max_trials=max(1, job.body.get("maxTrialCount", 1)),
        max_failed=job.body.get("maxFailedTrialCount") or None,
        stopping=_stopping(spec),
        best_measurement=spec.get("measurementSelectionType") == "BEST_MEASUREMENT",
        seed=_seed(job),
        stopping_config=_stopping_config(spec.get("studyStoppingConfig")),
        metric_needed=True,
    )


def _ml(job: JobRecord) -> Study:
    spec = job.body["trainingInput"]["hyperparameters"]
    tag = spec.get("hyperparameterMetricTag") or DEFAULT_TAG
    return Study(
        parameters=tuple(_ml_parameter(parameter) for parameter in spec["params"]),
        metrics=(Metric(tag, spec.get("goal") != "MINIMIZE"),),
        algorithm=_ALGORITHMS.get(spec.get("algorithm", ""), Algorithm.DEFAULT),
        max_trials=spec.get("maxTrials") or 1,
        max_failed=spec.get("maxFailedTrials") or None,
        stopping=Median() if spec.get("enableTrialEarlyStopping") else None,
        best_measurement=False,
        seed=_seed(job),
        resumes=spec.get("resumePreviousJobId", ""),
    )


def _parameter(spec: Mapping[str, Json]) -> Parameter:
    kind = next(kind for kind in Kind if kind in spec)
    value_spec = spec[kind]
    low, high = (checks.number(value_spec.get(name, 0)) for name in ("minValue", "maxValue"))
    values = _values(kind, value_spec.get("values", ()))
    return Parameter(
        name=spec["parameterId"],
        kind=kind,
        low=low,
        high=high,
        values=values,
        scale=_SCALES.get(spec.get("scaleType", ""), Scale.LINEAR),
        children=tuple(
            (_parameter(conditional["parameterSpec"]), _parent_values(values, conditional))
            for conditional in spec.get("conditionalParameterSpecs", ())
        ),
    )


def _parent_values(values: Sequence[Value], conditional: Mapping[str, Json]) -> tuple[Value, ...]:
    """Return the parent's values that activate a conditional parameter."""
    if "parentIntValues" in conditional:
        return tuple(int(value) for value in conditional["parentIntValues"]["values"])
    if "parentCategoricalValues" in conditional:
        return tuple(conditional["parentCategoricalValues"]["values"])
    # The API compares discrete values with a tolerance: return the parent's own numbers.
    listed = conditional["parentDiscreteValues"]["values"]
    return tuple(value for value in values if any(checks.same(value, other) for other in listed))


def _ml_parameter(spec: Mapping[str, Json]) -> Parameter:
    kind = Kind[spec["type"]]
    low, high = spec.get("minValue", 0), spec.get("maxValue", 0)
    if kind is Kind.INTEGER:
        low, high = int(low), int(high)
    field = "categoricalValues" if kind is Kind.CATEGORICAL else "discreteValues"
    return Parameter(
        name=spec["parameterName"],
        kind=kind,
        low=low,
        high=high,
        values=_values(kind, spec.get(field, ())),
        scale=_SCALES.get(spec.get("scaleType", ""), Scale.LINEAR),
    )


def _values(kind: Kind, listed: Sequence[Json]) -> tuple[Value, ...]:
    if kind is Kind.DISCRETE:
        return tuple(int(value) if float(value).is_integer() else float(value) for value in listed)
    return tuple(listed) if kind is Kind.CATEGORICAL else ()


def _stopping(spec: Mapping[str, Json]) -> Median | DecayCurve | Convex | None:
    if "medianAutomatedStoppingSpec" in spec:
        return Median(spec["medianAutomatedStoppingSpec"].get("useElapsedDuration", False))
    if "decayCurveStoppingSpec" in spec:
        return DecayCurve(spec["decayCurveStoppingSpec"].get("useElapsedDuration", False))
    if "convexAutomatedStoppingSpec" in spec:
        rule = spec["convexAutomatedStoppingSpec"]
        return Convex(
            by_elapsed=rule.get("useElapsedDuration", False),
            last=float(rule.get("maxStepCount", 0)),
            first=float(rule["minStepCount"]) if "minStepCount" in rule else None,
            measurements=int(rule.get("minMeasurementCount", 0)) or 5,
        )
    return None


def _stopping_config(config: Mapping[str, Json] | None) -> StoppingConfig | None:
    if config is None:
        return None
    return StoppingConfig(
        min_trials=config.get("minNumTrials", 0),
        max_trials=config.get("maxNumTrials", 0),
        without_progress=config.get("maxNumTrialsNoProgress", 0),
        at_once=config.get("shouldStopAsap", False),
    )


def _seed(job: JobRecord) -> int:
    name = f"{job.collection}/{number_of(job.project)}/{job.location}/{job.job_id}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


_SCALES = {"UNIT_LOG_SCALE": Scale.LOG, "UNIT_REVERSE_LOG_SCALE": Scale.REVERSE_LOG}
_ALGORITHMS = {"GRID_SEARCH": Algorithm.GRID, "RANDOM_SEARCH": Algorithm.RANDOM}
