"""Models that apply published: fetched whole, and verified by the repository, on both engines' code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.publishing import put
from tests.support.publishing_team import FILE, LOG, PublishingTeam, publishing_team
from tests.support.team import Team

__all__ = ["publishing_team"]

pytestmark = pytest.mark.slow


def fetched(team: Team, folder: Path, *arguments: str) -> dict[str, bytes]:
    """Fetch into a folder; return its files by their names."""
    done = team.run(team.author, "fetch", "census", str(folder), *arguments)
    assert done.code == 0, done.err
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_published_model_is_fetched_and_verified_after_a_revert_too(
    publishing: PublishingTeam, tmp_path: Path
) -> None:
    team = publishing.team
    first = publishing.trained("good")
    name = team.run(team.author, "show", "census", "--format", "json").json["jobName"]
    assert fetched(team, tmp_path / "first") == {FILE: b"good"}
    publishing.trained("bad")
    assert fetched(team, tmp_path / "second") == {FILE: b"bad"}
    whole = {f"model/{FILE}": b"good", LOG: b"not published"}
    assert fetched(team, tmp_path / "run", "--run", name) == whole

    reverting = publishing.push("good")
    publishing.apply()
    assert fetched(team, tmp_path / "third") == {FILE: b"good"}
    done = team.run(team.author, "verify", "census")
    assert done.code == 0, done.out + done.err
    assert f"✓ its name is that of census at commit {reverting[:12]}" in done.out
    assert first != reverting
    put(team.service.home, f"gs://risk-models/census/{name}/{FILE}", b"evil")
    changed = team.run(team.author, "verify", "gs://risk-models/census/current.json")
    assert changed.code == 1
    assert f"✗ {FILE} has another size or checksum than manifest.json says" in changed.out
    refused = team.run(team.author, "fetch", "census", str(tmp_path / "fourth"))
    assert refused.code == 1
    assert f"{FILE} isn't what its size and checksum say" in refused.err
    assert not (tmp_path / "fourth").exists()
