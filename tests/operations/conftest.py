"""Teams whose jobs run at Google's place, on the embedded service, or on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from team import Team, team_of


@pytest.fixture(params=["google", "local"])
def team(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Team]:
    with team_of(tmp_path, request.param) as made:
        yield made


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Team]:
    with team_of(tmp_path, "google") as made:
        yield made


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Team]:
    with team_of(tmp_path, "local") as made:
        yield made
