"""Each apiVersion has its engine; others are refused."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest

from reconciler.base.errors import ServiceError, UsageError
from reconciler.engines.api.engine_client import CLIENTS, engine_client
from reconciler.engines.spec.engine_spec import SPECS, engine_spec
from reconciler.google.client import Connection, Endpoint
from reconciler.manifests.schemas import KINDS
from reconciler.manifests.settings import load_config
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1
from reconciler.model.ports import EMBEDDED_BOUNDS
from reconciler.operations.session import Session
from tests.support.repository import Repository


def test_every_kind_has_an_engine() -> None:
    assert {api_version for api_version, _ in KINDS} == {*SPECS} == {*CLIENTS}


def test_engine_of_unknown_api_version_is_refused_with_those_that_exist() -> None:
    connection = Connection(Endpoint(cast("Any", None), dict, "p", "l", {}))
    for find in (engine_spec, partial(engine_client, connection=connection)):
        with pytest.raises(UsageError, match=r"no engine runs batch/v1") as caught:
            find("batch/v1")
        assert caught.value.hint == f"write apiVersion: {AIPLATFORM_V1} or {ML_V1}"


def test_job_of_claim_with_unknown_api_version_cannot_be_read(repository: Repository) -> None:
    """A newer version wrote the claim: the job may exist."""
    config = load_config(repository.root)
    session = Session(
        config, config.environment("local"), Connection(Endpoint(cast("Any", None), dict, "p", "l", {}))
    )
    with pytest.raises(ServiceError, match="no engine runs batch/v1"):
        session.jobs.read("batch/v1", "Batch", "jobs/1")
    assert session.bounds == EMBEDDED_BOUNDS
