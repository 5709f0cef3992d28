"""Publications of a team's commits: the model of the newest commit is in its place, on both engines' code."""

from __future__ import annotations

import pytest

from tests.support.publishing_team import PublishingTeam, publishing_team

__all__ = ["publishing_team"]

pytestmark = pytest.mark.slow


def test_revert_puts_earlier_model_in_its_place_and_starts_no_run(publishing: PublishingTeam) -> None:
    team = publishing.team
    first = publishing.push("good")
    publishing.apply()
    assert team.said(first, publishing.context)[0] == "pending"
    publishing.train()
    assert team.run(team.author, "report").code == 0
    assert team.said(first, publishing.context)[1].startswith("succeeded, not yet published")
    assert publishing.current == {}, "a report publishes nothing"
    publishing.apply()
    assert (publishing.model, publishing.current["commit"]) == ("good", first)
    assert [team.said(first, name)[0] for name in ("reconciler", publishing.context)] == [
        "success",
        "success",
    ]
    second = publishing.trained("bad")
    assert publishing.current["commit"] == second
    runs = len(team.runs())

    third = publishing.push("good")
    planned = team.run(team.author, "plan", "--detailed-exitcode")
    assert (planned.code, "^ publish census_" in planned.out) == (2, True), planned.out
    publishing.apply()
    assert (publishing.model, publishing.current["commit"]) == ("good", third)
    assert len(team.runs()) == runs
    assert team.said(third)[0] == "success"
    assert "Nothing to do: 1 job is up to date." in team.run(team.author, "plan").out


@pytest.mark.fault(71)
def test_older_checkout_moves_no_model_back(publishing: PublishingTeam) -> None:
    team = publishing.team
    publishing.trained("good")
    laptop = team.clone("laptop")
    second = publishing.trained("bad")
    blocked = team.run(laptop, "plan").out
    assert f"the newer commit {second[:7]} published the model in place: pull" in blocked
    for options in ([], ["--allow-older"]):
        assert team.run(laptop, "apply", *options).code in (1, 4)
        assert (publishing.model, publishing.current["commit"]) == ("bad", second)
    laptop.git("pull", "-q")
    assert team.run(laptop, "apply").code == 0
    assert publishing.model == "bad"


@pytest.mark.fault(71)
def test_model_that_is_brought_back_before_its_successor_is_published_is_recorded_with_newest_commit(
    publishing: PublishingTeam,
) -> None:
    team = publishing.team
    publishing.trained("good")
    publishing.push("bad")
    publishing.apply()
    between = team.clone("between")
    third = publishing.push("good")
    publishing.apply()
    assert (publishing.model, publishing.current["commit"]) == ("good", third)
    # The apply of the commit between waits for its run, and comes too late.
    publishing.train()
    late = team.run(between, "apply")
    assert late.code in (1, 4), late.out + late.err
    assert (publishing.model, publishing.current["commit"]) == ("good", third)


def test_run_that_succeeds_while_apply_waits_is_published(publishing: PublishingTeam) -> None:
    publishing.push("good")
    publishing.apply()
    publishing.train()
    out = publishing.apply(None, 0, "--wait")
    assert "applied  publish census_" in out
    assert publishing.model == "good"


def test_files_with_changes_are_published_on_one_machine_alone(
    publishing: PublishingTeam,
) -> None:
    team = publishing.team
    publishing.trained("good")
    publishing.write("tried")
    publishing.apply()
    publishing.train()
    done = team.run(team.author, "apply")
    if team.is_cloud:
        assert done.code == 1
        assert "jobs/census.yaml differs from commit" in done.out
        assert publishing.model == "good"
    else:
        assert done.code == 0
        assert (publishing.model, publishing.current["commit"]) == ("tried", "")
