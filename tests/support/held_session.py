"""Fixtures: the training service in Google's place, and a session with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.operations.session import Session
from tests.support.held_service import HeldService
from tests.support.opened import opened


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HeldService]:
    with HeldService(tmp_path / "home").running() as running:
        yield running


@pytest.fixture
def session(service: HeldService) -> Iterator[Session]:
    with opened(service) as made:
        yield made
