"""Recorders of passes' reports, and commands over the ports in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.in_memory import Commands, commands_in
from tests.support.watching import Told


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    return commands_in(tmp_path, monkeypatch, capsys.readouterr)
