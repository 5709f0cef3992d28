"""A repository whose `source` was copied from another one: what its workflows may do to the other's jobs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reconciler.base.errors import ServiceError
from reconciler.manifests.settings import load_config
from reconciler.operations.session import open_session
from tests.support.repository import Repository, Result
from tests.support.team import Team

SERVER = "https://github.com"
ORIGINAL, COPY = "1296269", "41881900"
WRITING = (
    ("apply",),
    ("report",),
    ("cancel", "census"),
    ("resolve", "census", "--give-up"),
    ("import", "--live", "--adopt"),
    ("init", "--claims"),
)


def run_in_actions(team: Team, clone: Repository, number: str, *arguments: str) -> Result:
    """Run a command in GitHub Actions of the repository with this number."""
    team.environ |= {"GITHUB_REPOSITORY_ID": number, "GITHUB_SERVER_URL": SERVER}
    return team.ci(clone, *arguments)


def genesis(team: Team) -> dict[str, Any]:
    (path,) = team.service.home.glob("gcs/acme-claims/reconciler/claims/*/genesis")
    return dict(json.loads(path.read_text()))


def apply_original(team: Team) -> None:
    """Have the original repository's workflow submit a job, which stays queued."""
    team.push(args=["one"])
    done = run_in_actions(team, team.author, ORIGINAL, "apply")
    assert done.code == 0, done.err


def test_apply_in_actions_records_the_repository_once(cloud: Team) -> None:
    assert "repository" not in genesis(cloud)
    apply_original(cloud)
    recorded = genesis(cloud)
    assert recorded["repository"] == {
        "server": SERVER,
        "number": ORIGINAL,
        "name": cloud.github.repository,
    }
    # Earlier versions read these two, and no others.
    assert (recorded["formatVersion"], recorded["source"]) == (1, "acme-jobs")
    assert run_in_actions(cloud, cloud.author, ORIGINAL, "apply").code == 0
    assert genesis(cloud) == recorded


@pytest.mark.parametrize("arguments", WRITING, ids=lambda arguments: arguments[0])
def test_writing_command_of_a_templates_copy_is_refused(cloud: Team, arguments: tuple[str, ...]) -> None:
    apply_original(cloud)
    copy = cloud.clone("copy")
    # The owners of a copy begin with jobs of their own, and the first one's would be cancelled.
    (copy.root / "jobs" / "census.yaml").unlink()
    copy.job("own")
    cloud.commit(clone=copy)
    claims = cloud.claims()
    refused = run_in_actions(cloud, copy, COPY, *arguments)
    assert refused.code == 1
    assert f"belong to {cloud.github.repository} (number {ORIGINAL} on {SERVER})" in refused.err
    assert "`source` was copied from there" in refused.err
    assert "all jobs are new to it, and are trained again" in refused.err
    assert "`reconciler init --claims --env prod --this-repository`" in refused.err
    assert cloud.states() == {"one": "QUEUED"}
    assert cloud.claims() == claims


def test_reading_command_of_a_copy_reports_the_jobs(cloud: Team) -> None:
    apply_original(cloud)
    status = run_in_actions(cloud, cloud.clone("copy"), COPY, "status")
    assert (status.code, "census" in status.out) == (0, True)


def test_repository_keeps_its_claims_when_it_is_transferred(cloud: Team) -> None:
    apply_original(cloud)
    cloud.github.repository = "other-owner/new-name"
    settings = cloud.author.root / "reconciler.yaml"
    settings.write_text(settings.read_text().replace("acme/models", "other-owner/new-name"))
    cloud.commit()
    done = run_in_actions(cloud, cloud.author, ORIGINAL, "apply")
    assert done.code == 0, done.err
    assert cloud.states() == {"one": "QUEUED"}


def test_imported_repository_takes_the_claims_over_on_a_persons_word(cloud: Team) -> None:
    apply_original(cloud)
    imported = cloud.clone("imported")
    assert run_in_actions(cloud, imported, COPY, "apply").code == 1
    by_hand = cloud.run(imported, "init", "--claims", "--this-repository")
    assert by_hand.code == 0, by_hand.err
    assert "the repository whose workflow on GitHub writes next" in by_hand.out
    assert "repository" not in genesis(cloud)
    assert run_in_actions(cloud, imported, COPY, "apply").code == 0
    assert genesis(cloud)["repository"]["number"] == COPY
    assert cloud.states() == {"one": "QUEUED"}
    assert run_in_actions(cloud, cloud.author, ORIGINAL, "apply").code == 1


def test_workflow_that_is_told_so_takes_the_claims_over_at_once(cloud: Team) -> None:
    apply_original(cloud)
    done = run_in_actions(cloud, cloud.author, COPY, "init", "--claims", "--this-repository")
    assert done.code == 0, done.err
    assert f"belong to {cloud.github.repository} on {SERVER} now" in done.out
    assert genesis(cloud)["repository"]["number"] == COPY


def test_this_repository_without_claims_is_wrong_usage(cloud: Team) -> None:
    refused = cloud.run(cloud.author, "init", "--this-repository")
    assert refused.code == 64
    assert "`reconciler init --claims --this-repository`" in refused.err


def test_command_outside_of_actions_is_not_asked_for_its_repository(cloud: Team) -> None:
    apply_original(cloud)
    assert cloud.run(cloud.clone("laptop"), "apply").code == 0


def test_session_that_only_reads_sends_nothing_before_its_first_use(
    cloud: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_original(cloud)
    config = load_config(cloud.author.root)
    in_actions = {
        **cloud.environ,
        "GITHUB_ACTIONS": "true",
        "GITHUB_REPOSITORY_ID": COPY,
        "GITHUB_SERVER_URL": SERVER,
    }
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", in_actions["GOOGLE_APPLICATION_CREDENTIALS"])
    with open_session(config, config.environment("prod"), in_actions, start=False) as session:
        assert session.repository is None
    with (
        pytest.raises(ServiceError, match="was copied"),
        open_session(config, config.environment("prod"), in_actions, start=True),
    ):
        pass
