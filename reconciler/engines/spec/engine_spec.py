"""The protocol `EngineSpec`, and the specs by apiVersion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from reconciler.base.errors import UsageError
from reconciler.engines.spec import ai_platform, vertex_ai
from reconciler.model.details import Study, Workers
from reconciler.model.job import ActualJob, Trials
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1, JsonObject


class EngineSpec(Protocol):
    """Functions that read and change the specs of one apiVersion: what a module of this package has.

    `kind` is a manifest's kind, and `spec` a valid manifest's `spec`, or that part of a job's resource.
    """

    def module(self, kind: str, spec: JsonObject) -> str:
        """Return the Python module that the first replica runs; "" for none."""

    def accelerator_hours(self, kind: str, spec: JsonObject) -> float:
        """Return the most that a run can use: accelerators of all replicas, times timeout, times trials."""

    def with_defaults(self, kind: str, spec: JsonObject, defaults: JsonObject, job_name: str) -> JsonObject:
        """Return `spec` with missing fields filled from the environment's defaults."""

    def with_package(self, kind: str, spec: JsonObject, uri: str) -> JsonObject:
        """Return `spec` with the staged package added to its package URIs."""

    def body(self, kind: str, spec: JsonObject, job_name: str, labels: Mapping[str, str]) -> JsonObject:
        """Return the request body of a create."""

    def spec_of(self, kind: str, resource: JsonObject) -> JsonObject:
        """Return the fields of a job's resource that a manifest's `spec` has, without staged code."""

    def replicas(self, kind: str, spec: JsonObject) -> Mapping[str, int]:
        """Return the numbers of a run's replicas, by the beginning of their names: {"workerpool0-": 1}."""

    def trials(self, job: ActualJob) -> Trials | None:
        """Return the trials in a job's resource; None for a job without trials."""

    def log_directory(self, kind: str, spec: JsonObject) -> str:
        """Return the folder (gs://…) from which TensorBoard shows all runs of the job; "" for none."""

    def workers(self, kind: str, spec: JsonObject) -> Sequence[Workers]:
        """Return what the replicas run and on which machines, by worker pool or role."""

    def limits(self, kind: str, spec: JsonObject) -> Mapping[str, str]:
        """Return `serviceAccount`, `network` and `timeout` of a spec, as far as it has them."""

    def output_directory(self, kind: str, spec: JsonObject) -> str:
        """Return the folder (gs://…) that a run writes its results to; "" for none."""

    def output_directory_field(self, kind: str, spec: JsonObject) -> Sequence[str]:
        """Return the keys that lead to that folder in a manifest."""

    def with_output_directory(self, kind: str, spec: JsonObject, uri: str) -> JsonObject:
        """Return `spec` with another folder (gs://…) for the results."""

    def registered_model(self, job: ActualJob) -> str:
        """Return the name of the model version that a job's resource says it registered; "" for none."""

    def has_trials(self, kind: str, spec: JsonObject) -> bool:
        """Return True if a run has trials, which each attempt numbers from 1."""

    def study(self, job: ActualJob) -> Study | None:
        """Return the trials in a job's resource with their measurements; None for a job without trials."""


SPECS: Mapping[str, EngineSpec] = {AIPLATFORM_V1: vertex_ai, ML_V1: ai_platform}
"""The specs of each apiVersion."""


def engine_spec(api_version: str) -> EngineSpec:
    """Return the functions for the specs of `api_version`; raise UsageError for an unknown one."""
    if api_version not in SPECS:
        raise UsageError(f"no engine runs {api_version}", hint=f"write apiVersion: {' or '.join(SPECS)}")
    return SPECS[api_version]
