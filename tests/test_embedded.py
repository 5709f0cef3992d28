"""The embedded service found and looked at, whatever it is just doing."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.errors import ServiceError
from reconciler.localservice.address import lock_home
from reconciler.services.embedded import ROOT, EmbeddedService, prepare_home
from reconciler.transport import HttpRequest

LISTING = HttpRequest("GET", ROOT + "v1/projects/local/jobs")


def test_a_home_that_is_not_there_is_an_empty_service_and_stays_away(tmp_path: Path) -> None:
    with EmbeddedService(tmp_path / "home", start=False) as service:
        assert service.send(LISTING).status == 200
        assert not service.stop()
    assert list(tmp_path.iterdir()) == []


def test_a_service_that_is_just_starting_or_ending_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = lock_home(tmp_path)
    assert lock is not None
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            lock.release()

    monkeypatch.setattr("reconciler.services.embedded.time.sleep", sleep)
    with EmbeddedService(tmp_path, start=False) as service:
        assert service.send(LISTING).status == 200
    assert len(waited) == 3


def test_a_state_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"this is no database" * 100)
    with (
        EmbeddedService(tmp_path, start=False) as service,
        pytest.raises(ServiceError, match="can't be read"),
    ):
        service.send(LISTING)


def test_git_ignores_what_runs_leave_behind(tmp_path: Path) -> None:
    prepare_home(tmp_path / "home")
    assert (tmp_path / "home" / ".gitignore").read_text() == "*\n"
