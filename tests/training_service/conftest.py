"""Fixtures with a served home."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.training_service.runner.containers import ContainerEngine, find_engine
from reconciler.training_service.state.run_folder import RunError
from tests.support import container_image
from tests.support.training_service import runs, trainers
from tests.support.training_service.served import Service, serving


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Yield a service for a home, without a supervisor; check all its answers at the test's end."""
    with serving(tmp_path / "home") as running:
        yield running


@pytest.fixture
def installed(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path
) -> Iterator[runs.Starter]:
    """Yield a function that makes the run of a trainer with the given source."""
    with runs.starter(tmp_path, trainers.shared_environments(tmp_path_factory)) as make:
        yield make


@pytest.fixture
def trainer(installed: runs.Starter) -> runs.Starter:
    """Yield the same function; a test module may override this fixture."""
    return installed


@pytest.fixture(scope="session")
def engine() -> ContainerEngine:
    """Return the container engine of this machine."""
    try:
        return find_engine(os.environ)
    except RunError as error:
        pytest.skip(error.message)


@pytest.fixture(scope="session")
def image(engine: ContainerEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the name of an image with a shell and its tools."""
    try:
        container_image.build(engine, tmp_path_factory.mktemp("image"))
    except FileNotFoundError as error:
        pytest.skip(str(error))
    yield container_image.IMAGE
    container_image.remove(engine, container_image.IMAGE)


@pytest.fixture(scope="session")
def python_image(engine: ContainerEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the name of an image with Python and pip; `container_image.WITHOUT_PIP` exists too."""
    container_image.build_python(engine, tmp_path_factory.mktemp("python-image"))
    yield container_image.PYTHON_IMAGE
    container_image.remove(engine, container_image.PYTHON_IMAGE, container_image.WITHOUT_PIP)
