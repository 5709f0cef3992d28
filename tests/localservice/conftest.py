"""A served home for each test that wants one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Service, serving


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A home served without anybody to run its jobs; all that it answers is checked at the test's end."""
    with serving(tmp_path / "home") as running:
        yield running
