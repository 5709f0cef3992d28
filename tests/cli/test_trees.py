"""The applied tree: clones that are behind, diverged or shallow, by the command and with real git."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.team import RECONCILE, Clone, Team
from tests.support.watching import watching


@pytest.mark.fault(56)
def test_a_clone_that_is_behind_and_never_fetched_cancels_nothing(team: Team) -> None:
    first = team.push(args=["1"])
    laptop = team.clone("laptop")
    assert team.run(team.author, "apply").code == 0
    second = team.push_and_apply(args=["2"])
    assert team.states() == {"1": "CANCELLED", "2": "QUEUED"}
    assert team.recorded() == second
    before, posted = {sha: team.said(sha) for sha in (first, second)}, len(team.github.posted())

    planned = team.run(laptop, "plan", "--format", "json").json["appliedTree"]
    effect = "refuse" if team.is_cloud else "withhold"
    assert (planned["commit"], planned["relation"], planned["effect"]) == (second, "older", effect)
    assert f"older than {second[:7]}, applied " in team.run(laptop, "plan").out
    assert "his checkout is older than " in team.run(laptop, "plan", "--format", "markdown").out

    result = team.run(laptop, "apply")
    assert f"this checkout is older than {second[:7]}, applied less than a minute ago" in result.err
    assert "pull, or use `reconciler apply --allow-older`" in result.err
    assert team.states() == {"1": "CANCELLED", "2": "QUEUED"}, "nothing is cancelled"
    assert team.recorded() == second
    if team.is_cloud:
        assert result.code == 4
        assert len(team.github.posted()) == posted
        assert {sha: team.said(sha) for sha in (first, second)} == before
    else:
        assert result.code == 1, "a cancel was skipped"
        assert team.said(second)[0] == "pending", "its job goes on"

    # After a pull, the laptop's clone is accepted like any other.
    laptop.git("pull", "-q")
    assert team.run(laptop, "apply").code == 0


@pytest.mark.fault(56)
def test_a_watch_of_an_older_checkout_is_refused_once(cloud: Team) -> None:
    cloud.push(args=["1"])
    laptop = cloud.clone("laptop")
    second = cloud.push_and_apply(args=["2"])
    with watching(laptop, "--resync", "1", **cloud.environ) as watch:
        refused = watch.awaits("refused")
        assert f"older than {second[:7]}" in refused["message"]
        laptop.git("pull", "-q")
        watch.awaits("goes-on")
        assert len(watch.told("refused")) == 1
        assert watch.end() == 0
    assert cloud.states() == {"2": "QUEUED"}


@pytest.mark.fault(56)
def test_a_commit_between_submits_nothing(cloud: Team) -> None:
    """A job was added and removed before any apply: an older checkout still has it."""
    cloud.push(args=["1"])
    cloud.push(name="extra", args=["extra"])
    between = cloud.clone("between")
    (cloud.author.root / "jobs" / "extra.yaml").unlink()
    third = cloud.commit()
    cloud.send()
    assert cloud.run(cloud.author, "apply").code == 0
    refused = cloud.run(between, "apply")
    assert (refused.code, cloud.states()) == (4, {"1": "QUEUED"})
    assert cloud.recorded() == third


def test_a_commit_without_changes_is_recorded_too(cloud: Team) -> None:
    cloud.push_and_apply(args=["1"])
    cloud.push(name="extra", args=["extra"])
    between = cloud.clone("between")
    (cloud.author.root / "jobs" / "extra.yaml").unlink()
    third = cloud.commit()
    cloud.send()
    assert cloud.run(cloud.author, "apply").code == 0
    assert cloud.recorded() == third, "it submits and cancels nothing"
    assert cloud.run(between, "apply").code == 4
    assert cloud.states() == {"1": "QUEUED"}


@pytest.mark.fault(56)
def test_a_laptops_unpushed_commit_never_holds_up_the_team(cloud: Team) -> None:
    first = cloud.push(args=["1"])
    assert cloud.ci(cloud.clone("ci-1"), "apply").code == 0
    laptop = cloud.clone("laptop")
    laptop.job(args=["mine"], reconcile=RECONCILE)
    private = cloud.commit(clone=laptop)
    assert cloud.run(laptop, "apply").code == 0
    assert cloud.states() == {"1": "CANCELLED", "mine": "QUEUED"}
    assert cloud.recorded() == first, "no remote has the laptop's commit"

    second = cloud.push(args=["2"])
    assert cloud.ci(cloud.clone("ci-2"), "apply").code == 0
    assert cloud.states() == {"1": "CANCELLED", "mine": "CANCELLED", "2": "QUEUED"}
    assert cloud.recorded() == second
    assert cloud.said(private, "reconciler/prod/census")[1].startswith("superseded, cancelled")

    # The laptop has diverged, and is refused until it merges; its commit keeps its verdict.
    verdict = cloud.said(private)
    refused = cloud.run(laptop, "apply")
    assert (refused.code, cloud.said(private)) == (4, verdict)
    assert f"has diverged from {second[:7]}" in refused.err
    laptop.git("fetch", "-q")
    assert cloud.run(laptop, "apply").code == 4, "also once it has the commit"
    assert cloud.states()["2"] == "QUEUED"


@pytest.mark.fault(56)
def test_a_force_push_goes_on_in_a_watch_of_the_remote(cloud: Team, tmp_path: Path) -> None:
    cloud.push(args=["1"])
    old = cloud.push_and_apply(args=["2"])
    new = cloud.push("--amend", args=["3"])
    watcher = Clone(tmp_path)
    remote = ("--remote", f"file://{cloud.origin}", "--interval", "1", "--resync", "2")
    with watching(watcher, *remote, **cloud.environ) as watch:
        watch.awaits("cancelled")
        assert f"has diverged from {old[:7]}" in watch.awaits("warning")["message"]
        assert cloud.recorded() == new
        assert not watch.told("refused")
        # The watch still has the replaced commit when the next amended commit is pushed.
        newer = cloud.push("--amend", args=["4"])
        watch.awaits("submitted", commit=newer)
        watch.awaits("cancelled", 2)
        assert cloud.recorded() == newer
        assert watch.end() == 0
    assert cloud.states() == {"2": "CANCELLED", "3": "CANCELLED", "4": "QUEUED"}


@pytest.mark.fault(56)
def test_two_release_branches_go_on_in_actions(cloud: Team) -> None:
    cloud.push(args=["1"])
    cloud.author.git("switch", "-q", "-c", "release")
    cloud.author.job(args=["release"], reconcile=RECONCILE)
    release = cloud.commit()
    cloud.send("release")
    cloud.author.git("switch", "-q", "main")
    main = cloud.push(args=["2"])
    assert cloud.ci(cloud.clone("ci-main"), "apply").code == 0
    on_release = cloud.clone("ci-release", "--branch", "release")
    result = cloud.ci(on_release, "apply", branch="release")
    assert (result.code, cloud.recorded()) == (0, release)
    assert f"has diverged from {main[:7]}" in result.err
    assert cloud.states() == {"2": "CANCELLED", "release": "QUEUED"}
    assert cloud.said(main, "reconciler/prod/census")[1].startswith("superseded, cancelled")
    assert cloud.said(release)[0] == "pending"
    # The same state on a person's machine is a checkout that wasn't pulled.
    assert cloud.run(cloud.clone("person"), "apply").code == 4


@pytest.mark.fault(56)
@pytest.mark.parametrize("how", ["borrowed", "fetched", "in another worktree"])
def test_a_newer_commit_that_is_here_on_no_branch_is_no_commit_that_was_left(cloud: Team, how: str) -> None:
    cloud.push(args=["1"])
    laptop = cloud.clone("laptop", *(["--reference", str(cloud.origin)] if how == "borrowed" else []))
    assert cloud.run(cloud.author, "apply").code == 0
    second = cloud.push_and_apply(args=["2"])
    if how != "borrowed":
        laptop.git("fetch", "-q", f"file://{cloud.origin}", "main")
    if how == "in another worktree":
        laptop.git("worktree", "add", "-q", "--detach", str(cloud.folder / "worktree"), "FETCH_HEAD")
    assert laptop.git("cat-file", "-t", second) == "commit"
    result = cloud.run(laptop, "apply")
    assert result.code == 4, result.err
    assert f"this checkout is older than {second[:7]}" in result.err
    assert cloud.states() == {"1": "CANCELLED", "2": "QUEUED"}
    assert cloud.recorded() == second


@pytest.mark.parametrize("rewrites", ["amend", "squash", "reset"])
def test_a_commit_that_no_branch_has_any_more_counts_as_none(team: Team, rewrites: str) -> None:
    base = team.push(args=["1"])
    old = team.push_and_apply(args=["2"])
    if rewrites == "amend":
        new, args = team.push("--amend", args=["3"]), "3"
    elif rewrites == "squash":
        team.author.git("reset", "-q", "--soft", f"{base}")
        new, args = team.push(args=["3"]), "3"
    else:
        team.author.git("reset", "-q", "--hard", base)
        team.send()
        new, args = base, "1"
    result = team.run(team.author, "apply")
    assert result.code == 0, result.err
    assert f"no branch has {old[:7]}, applied less than a minute ago, any more" in result.err
    assert team.states() == {"2": "CANCELLED", args: "QUEUED"}
    assert team.recorded() == new
    assert team.said(new)[0] == "pending"


@pytest.mark.fault(56, 58)
def test_a_shallow_clone_before_the_applied_commit_knows_that_it_is_older(cloud: Team) -> None:
    first = cloud.push(args=["1"])
    shallow = cloud.clone("shallow", "--depth=1")
    second = cloud.push(args=["2"])
    assert cloud.ci(cloud.clone("ci"), "apply").code == 0
    result = cloud.ci(shallow, "apply")
    assert (result.code, cloud.states()) == (4, {"2": "QUEUED"})
    assert (cloud.said(first), cloud.said(second)[0]) == (("", ""), "pending")


@pytest.mark.fault(58)
def test_a_shallow_clone_that_can_t_tell_submits_and_cancels_nothing(cloud: Team) -> None:
    first = cloud.push(args=["1"])
    assert cloud.ci(cloud.clone("ci"), "apply").code == 0
    cloud.push(args=["2"])
    third = cloud.push(args=["3"])
    result = cloud.ci(cloud.clone("shallow", "--depth=1"), "apply")
    assert f"::warning::this checkout's history doesn't show if it is newer than {first[:7]}" in result.err
    assert "give actions/checkout a `fetch-depth` of 0" in result.err
    assert result.code == 1, "a cancel was skipped"
    assert cloud.states() == {"1": "QUEUED", "3": "QUEUED"}
    assert cloud.recorded() == first
    by_hand = cloud.run(cloud.clone("by-hand", "--depth=1"), "apply")
    assert "fetch the history: `git fetch --unshallow`" in by_hand.err
    assert "::warning" not in by_hand.err

    # A clone with the whole history can compare the commits.
    assert cloud.ci(cloud.clone("whole"), "apply").code == 0
    assert cloud.states() == {"1": "CANCELLED", "3": "QUEUED"}
    assert cloud.recorded() == third


@pytest.mark.fault(56)
@pytest.mark.parametrize("selected", [("jobs/census.yaml",), ("--job", "census")])
def test_a_part_of_an_older_tree_submits_what_is_named_and_cancels_nothing(
    team: Team, selected: tuple[str, ...]
) -> None:
    team.push(args=["1"])
    laptop = team.clone("laptop")
    second = team.push_and_apply(args=["2"])
    result = team.run(laptop, "apply", *selected)
    assert team.states() == {"1": "QUEUED", "2": "QUEUED"}
    assert (result.code, team.recorded()) == (1, second)
    assert f"older than {second[:7]}, applied less than a minute ago, so it cancels nothing" in result.err


def test_allow_older_is_asked_for_once_and_the_newer_commit_names_the_older(cloud: Team) -> None:
    first = cloud.push(args=["1"])
    laptop = cloud.clone("laptop")
    second = cloud.push_and_apply(args=["2"])
    result = cloud.run(laptop, "apply", "--allow-older")
    assert (result.code, cloud.recorded()) == (0, first)
    assert cloud.states() == {"1": "QUEUED", "2": "CANCELLED"}
    assert cloud.run(laptop, "apply").code == 0, "it is asked for once"
    state, text = cloud.said(second)
    assert (state, text.partition(":")[0]) == ("error", f"superseded by {first[:7]}")
    assert cloud.said(second, "reconciler/prod/census")[1].startswith(f"superseded by {first[:7]}, cancelled")
    assert cloud.said(first)[0] == "pending"
    # A newer commit is applied again, and gets its own verdict.
    assert cloud.run(cloud.author, "apply").code in (0, 1)
    assert cloud.recorded() == second


def test_watch_has_no_way_to_allow_an_older_tree(cloud: Team) -> None:
    assert cloud.run(cloud.author, "watch", "--allow-older").code == 64


@pytest.mark.fault(58)
def test_a_record_that_can_t_be_read_is_named_and_may_be_deleted(team: Team) -> None:
    team.push_and_apply(args=["1"])
    (file,) = team.service.home.glob("gcs/*/reconciler/claims/*/_applied/*/*")
    bucket, _, name = file.relative_to(team.service.home / "gcs").as_posix().partition("/")
    team.push(args=["2"])
    for content in ("{}", "[" * 100_000, json.dumps({"formatVersion": 2}), "x" * 200_000):
        file.write_text(content)
        for command in ("apply", "plan"):
            result = team.run(team.author, command)
            assert result.code == 1
            assert f"gs://{bucket}/{name}, the record of what was applied last, can't be read" in result.err
            assert "else delete it" in result.err
    assert team.states() == {"1": "QUEUED"}
    file.unlink()
    assert team.run(team.author, "apply").code == 0
    assert team.states() == {"1": "CANCELLED", "2": "QUEUED"}


def test_what_isn_t_a_whole_apply_records_nothing(cloud: Team) -> None:
    first = cloud.push(args=["1"])
    author = cloud.author
    assert cloud.run(author, "plan").code == 0
    assert cloud.run(author, "apply", "jobs/census.yaml").code == 0
    assert cloud.run(author, "apply", "--job", "census").code == 0
    assert cloud.run(author, "apply", "--plan-digest", "sha256:" + "0" * 64).code == 4
    assert cloud.record() is None
    event = {"GITHUB_EVENT_NAME": "pull_request", "GITHUB_SHA": first, "GITHUB_ACTIONS": "true"}
    file = cloud.folder / "event.json"
    author.git("commit", "-q", "--allow-empty", "-m", "merge")
    merged = author.git("rev-parse", "HEAD")
    file.write_text(json.dumps({"pull_request": {"number": 7, "head": {"sha": first}}}))
    event |= {"GITHUB_SHA": merged, "GITHUB_EVENT_PATH": str(file)}
    assert cloud.run(author, "apply", **event).code == 0
    assert cloud.record() is None, "it is a pull request's merge commit"
    author.git("reset", "-q", "--hard", first)
    assert cloud.run(author, "apply").code == 0
    record = cloud.record()
    assert record is not None
    assert (record["commit"], record["ancestors"]) == (first, [])


@pytest.mark.slow
def test_the_record_names_the_newest_ancestors(local: Team) -> None:
    shas = [local.push(args=[str(number)]) for number in range(3)]
    assert local.run(local.author, "apply").code == 0
    record = local.record()
    assert record is not None
    assert record["ancestors"] == [shas[1], shas[0]]
    assert record["who"].startswith("process ")


@pytest.mark.fault(58)
def test_without_git_all_is_as_before_but_in_actions_nothing_is_cancelled(team: Team, tmp_path: Path) -> None:
    first = team.push_and_apply(args=["1"])
    subprocess.run(["cp", "-r", team.author.root, tmp_path / "copied"], check=True)
    copied = Clone(tmp_path / "copied")
    subprocess.run(["rm", "-rf", copied.root / ".git", copied.home], check=True)
    copied.job(args=["2"], reconcile=RECONCILE)
    in_actions = team.run(copied, "apply", GITHUB_SHA=first)
    assert in_actions.code == 1
    assert "git must read the checkout" in in_actions.err
    assert team.states() == {"1": "QUEUED", "2": "QUEUED"}
    assert team.run(copied, "apply").code == 0
    assert team.states() == {"1": "CANCELLED", "2": "QUEUED"}
    assert team.recorded() == first


@pytest.mark.slow
@pytest.mark.fault(56)
def test_a_diverged_tree_of_the_embedded_service_only_submits(local: Team) -> None:
    local.push(args=["1"])
    laptop = local.clone("laptop")
    second = local.push_and_apply(args=["2"])
    laptop.job(args=["mine"], reconcile=RECONCILE)
    local.commit(clone=laptop)
    result = local.run(laptop, "apply")
    assert result.code == 1
    assert (
        f"has diverged from {second[:7]}, applied less than a minute ago, so it cancels nothing" in result.err
    )
    assert local.states() == {"2": "QUEUED", "mine": "QUEUED"}
    assert local.run(laptop, "apply", "--allow-older").code == 0
    assert local.states() == {"2": "CANCELLED", "mine": "QUEUED"}
    assert local.recorded() == laptop.git("rev-parse", "HEAD")


def test_before_the_first_apply_a_plan_starts_no_git(local: Team, tmp_path: Path) -> None:
    """A broken `git` is never called if no trees are compared."""
    local.author.job(args=["1"])
    marker = tmp_path / "asked"
    git = tmp_path / "bin" / "git"
    git.parent.mkdir()
    git.write_text(f"#!/bin/sh\necho $* >> {marker}\nexit 1\n")
    git.chmod(0o755)
    path = f"{git.parent}{os.pathsep}{os.environ['PATH']}"
    assert local.run(local.author, "plan", PATH=path).code == 0
    assert not marker.exists(), marker.read_text()
