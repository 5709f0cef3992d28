"""Request messages from JSON, according to proto3's JSON mapping.

A message has one form whatever the client sent: camelCase names, enum names, 64-bit integers as
strings, no nulls, no output-only fields. See https://protobuf.dev/programming-guides/json/.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache, lru_cache
from typing import NoReturn

from reconciler.training_service.http.discovery import Api, Method
from reconciler.training_service.http.message import invalid, violations
from reconciler.training_service.state.records import Json, JsonObject

_MAX_DEPTH = 100  # protocol buffers' default limit

_DURATION = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,9})?s")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_CAPITAL = re.compile(r"[A-Z]")

_RANGES = {
    "int32": (-(2**31), 2**31 - 1, "TYPE_INT32"),
    "uint32": (0, 2**32 - 1, "TYPE_UINT32"),
    "int64": (-(2**63), 2**63 - 1, "TYPE_INT64"),
    "uint64": (0, 2**64 - 1, "TYPE_UINT64"),
}


class _WrongValueError(Exception):
    """Refusal of a value that doesn't fit its field; the argument is the type's name in error messages."""


def read_json(text: bytes) -> JsonObject:
    """Return the JSON object in a request body; an empty body and null are an empty object.

    Raises:
        ApiError: INVALID_ARGUMENT: The body is not a JSON object.
    """
    if not text.strip():
        return {}
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise invalid(f"Invalid JSON payload received. {error}") from error
    if value is None:  # Google's Go clients send null for an empty message
        return {}
    if not isinstance(value, dict):
        raise invalid("Invalid JSON payload received. The root must be an object.")
    return value


def read_message(api: Api, schema: str, value: JsonObject, field: str, *, nulls: bool = False) -> JsonObject:
    """Return a message of the named schema.

    `field` begins the paths in errors ("custom_job"). A null is an unset field, but with `nulls` it stays:
    Cloud Storage's patches remove a field with it.

    Raises:
        ApiError: INVALID_ARGUMENT, with all mistakes.
    """
    reader = _Reader(api, nulls)
    message = reader.message(schema, api.schemas[schema], value, field, 0)
    if reader.mistakes:
        raise violations(reader.mistakes)
    return message


def read_parameters(method: Method, query: tuple[tuple[str, str], ...]) -> JsonObject:
    """Return the query parameters by name, with numbers and booleans converted.

    Raises:
        ApiError: INVALID_ARGUMENT: The method has no such parameter, or the value has another type.
    """
    definitions, by_name = _parameters_of(method)
    parameters: JsonObject = {}
    for given, text in query:
        name = by_name.get(given)
        if name is None:
            reason = f"Unknown name {json.dumps(given)}: Cannot bind query parameter."
            raise violations([(given, f"Invalid JSON payload received. {reason}")])
        parameters[name] = _parameter(snake(name), definitions[name], text)
    return parameters


@cache
def _parameters_of(method: Method) -> tuple[Mapping[str, JsonObject], Mapping[str, str]]:
    """Return a method's parameters by name, and their names by each accepted spelling."""
    shared = {name.removeprefix("$"): value for name, value in method.api.parameters.items()}
    parameters = {**shared, **method.parameters}
    return parameters, _names(parameters)


@lru_cache(maxsize=10_000)
def snake(name: str) -> str:
    """Return a field's name in snake_case, as protocol buffers write it: "jobSpec" is "job_spec"."""
    return _CAPITAL.sub(lambda letter: "_" + letter.group().lower(), name)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"Unexpected token: {name}")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"Number out of range: {digits}")
    return number


def _parameter(field: str, definition: Mapping[str, Json], text: str) -> Json:
    kind = definition.get("type")
    try:
        if kind == "boolean":
            # Google's client for Python sends "True".
            return {"true": True, "false": False, "": True}[text.lower()]
        if definition.get("format") in _RANGES:
            return _integer(str(definition["format"]), text)
    except (KeyError, _WrongValueError) as error:
        type_name = "TYPE_BOOL" if kind == "boolean" else _RANGES[definition["format"]][2]
        raise violations([(field, _wrong(field, type_name, text))]) from error
    return text


def _wrong(path: str, type_name: str, value: Json) -> str:
    return f"Invalid value at '{path}' ({type_name}), {json.dumps(value)[:200]}"


class _Reader:
    """Reader of one message; collects all mistakes as (path, description)."""

    def __init__(self, api: Api, nulls: bool) -> None:
        self.api = api
        self.nulls = nulls
        self.mistakes: list[tuple[str, str]] = []

    def message(self, name: str, schema: JsonObject, value: Json, path: str, depth: int) -> JsonObject:
        if not isinstance(value, dict):
            self._refuse(path, f"type.googleapis.com/{name or 'Struct'}", value)
            return {}
        if depth > _MAX_DEPTH:
            raise invalid("Invalid JSON payload received. Nested too deeply.")
        properties = schema.get("properties")
        if properties is None:
            return self._map(name, schema, value, path, depth)
        by_name = _names(properties)
        message: JsonObject = {}
        for key, given in value.items():
            field = by_name.get(key)
            below = f"{path}.{snake(field or key)}" if path else snake(field or key)
            if field is None:
                self._unknown(key, path)
            elif field in message:
                self.mistakes.append((below, f"Invalid JSON payload received. '{below}' is given twice."))
            elif (given is not None or self.nulls) and not properties[field].get("readOnly"):
                message[field] = self.value((name, field), properties[field], given, below, depth + 1)
        return message

    def value(self, owner: tuple[str, str], schema: JsonObject, given: Json, path: str, depth: int) -> Json:
        # `owner` is the schema and property under which `NUMBERS` lists the numbers of an enum.
        if given is None and self.nulls:
            return None
        if "$ref" in schema:
            return self.message(schema["$ref"], self.api.schemas[schema["$ref"]], given, path, depth)
        if schema.get("type") == "object":
            return self.message("", schema, given, path, depth)
        if schema.get("type") == "array":
            return self._list(owner, schema["items"], given, path, depth)
        try:
            if "enum" in schema:
                return _enum(owner, schema["enum"], given)
            scalar = _FORMATS.get(schema.get("format", "")) or _TYPES[schema["type"]]
            return scalar(given)
        except _WrongValueError as error:
            self._refuse(path, str(error), given)
            return None

    def _map(self, name: str, schema: JsonObject, value: JsonObject, path: str, depth: int) -> JsonObject:
        values = schema.get("additionalProperties", {"type": "any"})
        return {
            key: self.value((name, ""), values, given, f"{path}.{key}", depth + 1)
            for key, given in value.items()
        }

    def _list(
        self, owner: tuple[str, str], items: JsonObject, given: Json, path: str, depth: int
    ) -> list[Json]:
        if not isinstance(given, list):
            self.mistakes.append((path, f"Invalid JSON payload received. Expected an array at '{path}'."))
            return []
        return [
            self.value(owner, items, item, f"{path}[{index}]", depth + 1) for index, item in enumerate(given)
        ]

    def _unknown(self, key: str, path: str) -> None:
        location = f" at '{path}'" if path else ""
        text = f"Invalid JSON payload received. Unknown name {json.dumps(key)}{location}: Cannot find field."
        self.mistakes.append((path, text))

    def _refuse(self, path: str, type_name: str, value: Json) -> None:
        self.mistakes.append((path, _wrong(path, type_name, value)))


def _names(properties: Mapping[str, JsonObject]) -> dict[str, str]:
    return {**{snake(name): name for name in properties}, **{name: name for name in properties}}


_V1 = "GoogleCloudAiplatformV1"


def _numbered(names: str) -> dict[int, str]:
    return dict(enumerate(names.split()))


NUMBERS: Mapping[tuple[str, str], Mapping[int, str]] = {
    ("LogEntry", "severity"): {
        0: "DEFAULT",
        100: "DEBUG",
        200: "INFO",
        300: "NOTICE",
        400: "WARNING",
        500: "ERROR",
        600: "CRITICAL",
        700: "ALERT",
        800: "EMERGENCY",
    },
    (_V1 + "ExamplesExampleGcsSource", "dataFormat"): _numbered("DATA_FORMAT_UNSPECIFIED JSONL"),
    (_V1 + "ExplanationMetadataInputMetadata", "encoding"): _numbered(
        "ENCODING_UNSPECIFIED IDENTITY BAG_OF_FEATURES BAG_OF_FEATURES_SPARSE INDICATOR COMBINED_EMBEDDING"
        " CONCAT_EMBEDDING"
    ),
    (_V1 + "ExplanationMetadataInputMetadataVisualization", "colorMap"): _numbered(
        "COLOR_MAP_UNSPECIFIED PINK_GREEN VIRIDIS RED GREEN PINK_WHITE_GREEN RED_GREEN"
    ),
    (_V1 + "ExplanationMetadataInputMetadataVisualization", "overlayType"): _numbered(
        "OVERLAY_TYPE_UNSPECIFIED NONE ORIGINAL GRAYSCALE MASK_BLACK"
    ),
    (_V1 + "ExplanationMetadataInputMetadataVisualization", "polarity"): _numbered(
        "POLARITY_UNSPECIFIED POSITIVE NEGATIVE BOTH"
    ),
    (_V1 + "ExplanationMetadataInputMetadataVisualization", "type"): _numbered(
        "TYPE_UNSPECIFIED PIXELS OUTLINES"
    ),
    (_V1 + "MachineSpec", "acceleratorType"): _numbered(
        "ACCELERATOR_TYPE_UNSPECIFIED NVIDIA_TESLA_K80 NVIDIA_TESLA_P100 NVIDIA_TESLA_V100 NVIDIA_TESLA_P4"
        " NVIDIA_TESLA_T4 TPU_V2 TPU_V3 NVIDIA_TESLA_A100 NVIDIA_A100_80GB TPU_V4_POD NVIDIA_L4"
        " TPU_V5_LITEPOD NVIDIA_H100_80GB NVIDIA_H100_MEGA_80GB NVIDIA_H200_141GB NVIDIA_B200 NVIDIA_GB200"
        " NVIDIA_RTX_PRO_6000"
    ),
    (_V1 + "Presets", "modality"): _numbered("MODALITY_UNSPECIFIED IMAGE TEXT TABULAR"),
    (_V1 + "Presets", "query"): _numbered("PRECISE FAST"),
    (_V1 + "ReservationAffinity", "reservationAffinityType"): _numbered(
        "TYPE_UNSPECIFIED NO_RESERVATION ANY_RESERVATION SPECIFIC_RESERVATION"
    ),
    # Number 5 has no name.
    (_V1 + "Scheduling", "strategy"): _numbered("STRATEGY_UNSPECIFIED ON_DEMAND LOW_COST STANDARD SPOT")
    | {6: "FLEX_START"},
    (_V1 + "StudySpec", "algorithm"): {0: "ALGORITHM_UNSPECIFIED", 2: "GRID_SEARCH", 3: "RANDOM_SEARCH"},
    (_V1 + "StudySpec", "measurementSelectionType"): _numbered(
        "MEASUREMENT_SELECTION_TYPE_UNSPECIFIED LAST_MEASUREMENT BEST_MEASUREMENT"
    ),
    (_V1 + "StudySpec", "observationNoise"): _numbered("OBSERVATION_NOISE_UNSPECIFIED LOW HIGH"),
    (_V1 + "StudySpecMetricSpec", "goal"): _numbered("GOAL_TYPE_UNSPECIFIED MAXIMIZE MINIMIZE"),
    (_V1 + "StudySpecParameterSpec", "scaleType"): _numbered(
        "SCALE_TYPE_UNSPECIFIED UNIT_LINEAR_SCALE UNIT_LOG_SCALE UNIT_REVERSE_LOG_SCALE"
    ),
}
"""Enum names by number, by schema and property: clients may send enum values as numbers."""


def _enum(owner: tuple[str, str], names: list[str], given: Json) -> str:
    is_number = isinstance(given, int) and not isinstance(given, bool)
    name = NUMBERS.get(owner, {}).get(given) if is_number else given
    if name not in names:
        raise _WrongValueError(f"type.googleapis.com/{owner[0]}.{owner[1]}")
    return str(name)


def _integer(form: str, given: Json) -> int:
    low, high, type_name = _RANGES[form]
    if isinstance(given, float) and given.is_integer():
        given = int(given)
    if isinstance(given, str) and _INTEGER.fullmatch(given):
        given = int(given)
    if not isinstance(given, int) or isinstance(given, bool) or not low <= given <= high:
        raise _WrongValueError(type_name)
    return given


def _double(given: Json) -> Json:
    if isinstance(given, str):
        if given in ("NaN", "Infinity", "-Infinity"):
            return given
        try:
            given = float(given)
        except ValueError:
            raise _WrongValueError("TYPE_DOUBLE") from None
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise _WrongValueError("TYPE_DOUBLE")
    return given


def _checked(type_name: str, fits: Callable[[Json], bool]) -> Callable[[Json], Json]:
    """Return a reader that refuses values that don't fit, and leaves others as they are."""

    def read(given: Json) -> Json:
        if not fits(given):
            raise _WrongValueError(type_name)
        return given

    return read


def _is_string(given: Json) -> bool:
    # JSON's escapes can produce an unpaired surrogate, which UTF-8 can't encode.
    return isinstance(given, str) and (
        given.isascii() or not any("\ud800" <= char <= "\udfff" for char in given)
    )


def _is_time(given: Json) -> bool:
    if not isinstance(given, str) or not _TIME.fullmatch(given):
        return False
    with suppress(ValueError):  # the pattern allows a 30th of February
        return bool(datetime.fromisoformat(given))
    return False


def _is_base64(given: Json) -> bool:
    if not isinstance(given, str):
        return False
    padded = given + "=" * (-len(given) % 4)
    with suppress(ValueError):
        base64.b64decode(padded.replace("-", "+").replace("_", "/"), validate=True)
        return True
    return False


_read_time = _checked("type.googleapis.com/google.protobuf.Timestamp", _is_time)

_FORMATS: Mapping[str, Callable[[Json], Json]] = {
    "int32": lambda given: _integer("int32", given),
    "uint32": lambda given: _integer("uint32", given),
    "int64": lambda given: str(_integer("int64", given)),
    "uint64": lambda given: str(_integer("uint64", given)),
    "double": _double,
    "float": _double,
    "google-duration": _checked(
        "type.googleapis.com/google.protobuf.Duration",
        lambda given: isinstance(given, str) and _DURATION.fullmatch(given) is not None,
    ),
    "google-datetime": _read_time,
    "date-time": _read_time,
    "byte": _checked("TYPE_BYTES", _is_base64),
}
_TYPES: Mapping[str, Callable[[Json], Json]] = {
    "string": _checked("TYPE_STRING", _is_string),
    "boolean": _checked("TYPE_BOOL", lambda given: isinstance(given, bool)),
    "number": _double,
    "integer": lambda given: _integer("int32", given),
    "any": lambda given: given,
}
