"""Engines are found by the apiVersion of the manifests they run, also in other packages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import pytest
from repository import Repository

from reconciler.base.errors import UsageError
from reconciler.google.client import Connection, Endpoint
from reconciler.google.engines import Engine, api_versions, engine_class
from reconciler.google.session import Session
from reconciler.manifests.settings import load_config
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1
from reconciler.model.ports import EMBEDDED_BOUNDS, GOOGLE_BOUNDS

ENGINE = """
from reconciler.google.vertex_ai import VertexAi


class SlurmEngine(VertexAi):
    @staticmethod
    def manifest_schema(kind):
        spec = {"type": "object", "properties": {"script": {"type": "string"}}}
        known = {name: {} for name in ("apiVersion", "kind", "metadata")}
        schema = {"required": ["spec"], "properties": {**known, "spec": spec}, "additionalProperties": False}
        return schema if kind == "Batch" else None

    @staticmethod
    def body(kind, spec, job_name, labels):
        return {"kind": kind, "script": spec["script"], "name": job_name}

    def jobs(self, labels):
        return ()
"""
MANIFEST = """
apiVersion: slurm.example.test/v1
kind: Batch
metadata: {name: night}
spec: {script: "echo hello"}
"""


@pytest.fixture
def other_package(tmp_path: Path) -> str:
    """A folder that holds an installed distribution with an engine, as pip leaves it."""
    installed = tmp_path / "installed"
    told = installed / "slurm_engine-1.0.dist-info"
    told.mkdir(parents=True)
    (installed / "slurm_engine.py").write_text(ENGINE)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: slurm-engine\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text(
        "[reconciler.engines]\nslurm.example.test/v1 = slurm_engine:SlurmEngine\n"
    )
    return str(installed)


def test_our_own_engines_are_registered_like_any_other() -> None:
    assert api_versions() == [AIPLATFORM_V1, ML_V1]
    for api_version in api_versions():
        engine: type[Engine] = engine_class(api_version)
        assert engine.__module__.startswith("reconciler.google.")


def test_an_unknown_api_version_says_how_to_add_an_engine() -> None:
    with pytest.raises(UsageError, match=r"no engine runs batch/v1") as caught:
        engine_class("batch/v1")
    assert "reconciler.engines" in caught.value.hint


def test_another_packages_engine_runs_its_manifests(repository: Repository, other_package: str) -> None:
    repository.write("jobs/night.yaml", MANIFEST)
    assert repository.run("validate").code == 3
    environ = {"PYTHONPATH": other_package}
    assert repository.run("validate", **environ).out == "1 file valid.\n"
    plan = repository.run("plan", "--format", "json", **environ)
    assert [change["action"] for change in plan.json["changes"]] == ["submit"], plan.err
    assert repository.run("render", "night", **environ).json["script"] == "echo hello"
    repository.write("jobs/night.yaml", MANIFEST.replace("spec:", "spek:"))
    assert "spec" in repository.run("validate", **environ).out


NEEDED = "module accelerator_hours with_defaults with_package body jobs with_key read named create cancel"
OLDER = """
class SlurmEngine:
    def __init__(self, connection): ...
    @staticmethod
    def manifest_schema(kind):
        return None


for name in %r.split():
    setattr(SlurmEngine, name, lambda *args: None)
"""


def test_an_engine_without_the_later_methods_shows_less(
    other_package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (Path(other_package) / "slurm_engine.py").write_text(OLDER % NEEDED)
    monkeypatch.syspath_prepend(other_package)
    monkeypatch.delitem(sys.modules, "slurm_engine", raising=False)
    engine: Any = engine_class("slurm.example.test/v1")
    assert (engine.workers("Batch", {}), engine.limits("Batch", {}), engine.study(None)) == ((), {}, None)
    assert (engine.output_directory("Batch", {}), engine.log_directory("Batch", {})) == ("", "")
    made = engine(Connection(Endpoint(cast("Any", None), dict, "p", "l", {})))
    assert (made.workers("Batch", {}), made.replicas("Batch", {}), made.trials(None)) == ((), {}, None)


def test_an_engine_that_lacks_a_needed_method_is_named_with_it(
    repository: Repository, other_package: str
) -> None:
    (Path(other_package) / "slurm_engine.py").write_text(OLDER % "module")
    repository.job()
    done = repository.run("status", PYTHONPATH=other_package)
    assert done.code == 64, done.err
    assert "the engine of slurm.example.test/v1 lacks accelerator_hours, " in done.err
    assert "Traceback" not in done.err


def test_another_packages_engine_gets_google_s_long_delays_in_a_local_environment(
    repository: Repository, other_package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may submit to a service that shows a job much later than the embedded one."""
    config = load_config(repository.root)
    connection = Connection(Endpoint(cast("Any", None), dict, "p", "l", {}))
    assert Session(config, config.environment("local"), connection).bounds == EMBEDDED_BOUNDS
    monkeypatch.syspath_prepend(other_package)
    assert Session(config, config.environment("local"), connection).bounds == GOOGLE_BOUNDS
