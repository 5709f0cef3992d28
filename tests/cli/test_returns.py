"""Jobs that apply cancelled run again once their content is desired again, with real git and statuses."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from reconciler.training_service.state.records import JobState
from tests.support.team import RECONCILE, Clone, Team
from tests.support.waiting import PATIENCE, until
from tests.support.watching import watching

WRAPPER = """
import os, signal, sys
from reconciler.base.errors import ServiceError
from reconciler.__main__ import main
from reconciler.operations import execute

def kill(ports, run):
    os.kill(os.getpid(), signal.SIGKILL)

def refuse(ports, run):
    raise ServiceError("the service refuses the cancel")

def refuse_record(ports, run, reason):
    raise ServiceError("the store refuses")

cancel = execute.cancel

def cancel_and_kill(ports, run):
    cancel(ports, run)
    kill(ports, run)

{patch}
sys.exit(main())
"""
BAD = "bad"
GOOD = "good"


def wrapped(folder: Path, patch: str) -> str:
    """Write a replacement for the command with a single patched function; return its path."""
    file = folder / "wrapper.py"
    file.write_text(WRAPPER.format(patch=patch))
    return str(file)


def apply_by(team: Team, program: str) -> int:
    """Return the exit code of an apply by this program."""
    process = team.author.start("apply", program=program, **team.environ)
    process.communicate(timeout=PATIENCE)
    return process.returncode


def revert(team: Team) -> str:
    """Revert the last commit, and push."""
    team.author.git("revert", "--no-edit", "HEAD")
    sha = team.author.git("rev-parse", "HEAD")
    team.github.commits.add(sha)
    team.send()
    return sha


def move(team: Team, state: JobState, only_from: JobState) -> None:
    """Move each job in the state `only_from` to `state`."""
    store = team.service.store
    for job in store.unfinished():
        store.move(job.id, state, only_from={only_from}, at=store.now())


def planned(team: Team) -> tuple[str, str]:
    """Return action and reason of the plan's only change of a desired job."""
    changes = team.run(team.author, "plan", "--format", "json").json["changes"]
    (change,) = [change for change in changes if change["action"] != "cancel"]
    return change["action"], change["reason"]


def kill_apply_once_it_cancels(team: Team) -> str:
    """Kill an apply of bad content at its cancel of the good run; return the good commit."""
    good = team.push_and_apply(args=[GOOD])
    move(team, JobState.RUNNING, JobState.QUEUED)
    team.push(args=[BAD])
    with team.author.start("apply", **team.environ) as stopped:
        until(lambda: team.runs()[0] == (GOOD, "CANCELLING"))
        stopped.kill()
    return good


@pytest.mark.fault(22, 59)
def test_a_revert_trains_the_reverted_content_again(team: Team) -> None:
    good = team.push_and_apply(args=[GOOD])
    bad = team.push_and_apply(args=[BAD])
    assert team.runs() == [(GOOD, "CANCELLED"), (BAD, "QUEUED")]
    context = f"reconciler/{'prod' if team.is_cloud else 'local'}/census"
    superseded = team.said(good, context)
    assert superseded[1].startswith("superseded, cancelled by apply: superseded by census_")

    back = revert(team)
    proposed = team.run(team.author, "plan", "--base", "HEAD~1").out
    assert "submitted unless this content already ran" in proposed
    assert planned(team) == ("retry", "apply cancelled it while it was unwanted, and it is wanted again")
    result = team.run(team.author, "apply")
    assert result.code == 0, result.err
    assert team.runs() == [(GOOD, "CANCELLED"), (BAD, "CANCELLED"), (GOOD, "QUEUED")]
    assert team.said(back)[0] == team.said(back, context)[0] == "pending"

    move(team, JobState.RUNNING, JobState.QUEUED)
    move(team, JobState.SUCCEEDED, JobState.RUNNING)
    assert team.run(team.author, "report").code == 0
    assert team.said(back)[0] == team.said(back, context)[0] == "success"
    assert team.said(good, context) == superseded, "the first commit keeps its verdict"
    assert team.said(good)[0] == team.said(bad)[0] == "error"
    assert planned(team)[0] == "none"
    assert len(team.runs()) == 3


@pytest.mark.slow
@pytest.mark.fault(59)
def test_a_job_whose_manifest_was_removed_comes_back_with_it(local: Team) -> None:
    local.push(args=[GOOD])
    local.push_and_apply(name="other", args=["other"])
    (local.author.root / "jobs" / "census.yaml").unlink()
    local.commit()
    local.send()
    assert local.run(local.author, "apply").code == 0
    revert(local)
    assert local.run(local.author, "apply").code == 0
    assert local.runs() == [(GOOD, "CANCELLED"), ("other", "QUEUED"), (GOOD, "QUEUED")]


@pytest.mark.slow
@pytest.mark.fault(59)
def test_returns_count_against_the_limit_of_submissions(local: Team) -> None:
    local.push_and_apply(args=[GOOD])
    local.push_and_apply(args=[BAD])
    revert(local)
    settings = local.author.root / "reconciler.yaml"
    settings.write_text(f"{settings.read_text()}environments: {{local: {{limits: {{submissions: 0}}}}}}\n")
    result = local.run(local.author, "apply")
    assert (result.code, len(local.runs())) == (4, 2)
    assert "the plan has 1 submissions" in result.err


@pytest.mark.slow
@pytest.mark.fault(59)
def test_a_cancel_by_a_person_is_final(local: Team) -> None:
    local.push_and_apply(args=[GOOD])
    assert local.run(local.author, "cancel", "census", "--yes").code == 0
    local.push_and_apply(args=[BAD])
    revert(local)
    local.run(local.author, "apply")
    assert local.runs() == [(GOOD, "CANCELLED"), (BAD, "CANCELLED")]
    action, reason = planned(local)
    assert (action, "already ran as census_" in reason) == ("none", True)


@pytest.mark.slow
@pytest.mark.fault(61)
def test_a_cancel_in_the_console_after_one_that_failed_is_final(local: Team, tmp_path: Path) -> None:
    local.push_and_apply(args=[GOOD])
    local.push(args=[BAD])
    assert apply_by(local, wrapped(tmp_path, "execute.cancel = refuse")) == 1
    assert local.runs() == [(GOOD, "QUEUED"), (BAD, "QUEUED")]
    revert(local)
    # The good run is alive and desired: the reason of the failed cancel doesn't count any more.
    assert local.run(local.author, "apply").code == 0
    assert local.runs() == [(GOOD, "QUEUED"), (BAD, "CANCELLED")]
    move(local, JobState.CANCELLED, JobState.QUEUED)
    local.run(local.author, "apply")
    assert local.runs() == [(GOOD, "CANCELLED"), (BAD, "CANCELLED")]
    assert planned(local)[0] == "none"


@pytest.mark.fault(6, 61)
@pytest.mark.parametrize(
    ("killed", "goods"), [("kill", ["QUEUED"]), ("cancel_and_kill", ["CANCELLED", "QUEUED"])]
)
def test_a_kill_beside_the_cancel_leaves_one_live_run_to_the_revert(
    team: Team, tmp_path: Path, killed: str, goods: list[str]
) -> None:
    """An apply killed between the record and the cancel leaves the run alone, and it trains on."""
    team.push_and_apply(args=[GOOD])
    team.push(args=[BAD])
    assert apply_by(team, wrapped(tmp_path, f"execute.cancel = {killed}")) == -9
    revert(team)
    assert team.run(team.author, "apply").code == 0
    assert [state for args, state in team.runs() if args == GOOD] == goods
    assert [state for args, state in team.runs() if args == BAD] == ["CANCELLED"]


@pytest.mark.slow
@pytest.mark.fault(59)
def test_what_an_earlier_version_cancelled_stays_cancelled(local: Team, tmp_path: Path) -> None:
    """Otherwise the upgrade would train every content of an earlier revert."""
    local.push_and_apply(args=[GOOD])
    local.push(args=[BAD])
    earlier = 'execute.by_apply = lambda reason: f"cancelled: {reason}"'
    assert apply_by(local, wrapped(tmp_path, earlier)) == 0
    revert(local)
    assert planned(local)[0] == "none"
    local.run(local.author, "apply")
    assert local.runs() == [(GOOD, "CANCELLED"), (BAD, "CANCELLED")]


@pytest.mark.slow
@pytest.mark.fault(17, 59)
def test_a_revert_waits_for_the_run_that_is_being_cancelled(local: Team) -> None:
    kill_apply_once_it_cancels(local)
    revert(local)
    assert planned(local) == ("none", "cancelling; submitted again once it has ended")
    digest = local.run(local.author, "plan", "--format", "json").json["digest"]
    reviewed = local.run(local.author, "apply", "--plan-digest", digest)
    assert (reviewed.code, "it isn't submitted by the reviewed plan" in reviewed.out) == (1, True)
    with local.author.start("apply", **local.environ) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "is being cancelled" in line)
        assert line.endswith(": it is being cancelled; waiting for its end to submit it again\n")
        assert local.runs() == [(GOOD, "CANCELLING"), (BAD, "QUEUED")], (
            "the bad one runs until the good one does"
        )
        move(local, JobState.CANCELLED, JobState.CANCELLING)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert local.runs() == [(GOOD, "CANCELLED"), (BAD, "CANCELLED"), (GOOD, "QUEUED")]
    assert "retry" in out


@pytest.mark.slow
@pytest.mark.fault(59)
def test_a_commit_that_waits_shows_the_job_that_another_commit_brings_back(local: Team) -> None:
    good = kill_apply_once_it_cancels(local)
    waits = revert(local)
    digest = local.run(local.author, "plan", "--format", "json").json["digest"]
    assert local.run(local.author, "apply", "--plan-digest", digest).code == 1
    assert local.said(waits)[0] == "pending"
    move(local, JobState.CANCELLED, JobState.CANCELLING)
    assert local.run(local.author, "report").code == 0
    census = "reconciler/local/census"
    assert local.said(waits, census)[0] == "pending"

    unrelated = local.push_and_apply(args=["other"], name="other")
    assert local.runs()[-2:] == [(GOOD, "QUEUED"), ("other", "QUEUED")]
    assert local.said(waits)[0] == local.said(waits, census)[0] == "pending"
    move(local, JobState.RUNNING, JobState.QUEUED)
    move(local, JobState.SUCCEEDED, JobState.RUNNING)
    assert local.run(local.author, "report").code == 0
    for sha in (waits, unrelated):
        assert local.said(sha)[0] == local.said(sha, census)[0] == "success"
    assert local.said(good)[0] == local.said(good, census)[0] == "error"


@pytest.mark.slow
@pytest.mark.fault(59)
def test_a_person_s_cancel_of_a_run_that_apply_is_cancelling_is_final(local: Team) -> None:
    kill_apply_once_it_cancels(local)
    name = local.service.jobs(*local.place)[-1]["displayName"]
    with local.author.start("cancel", name, "--yes", **local.environ) as process:
        until(lambda: "cancelled by `reconciler cancel`" in {claim.get("error") for claim in local.claims()})
        move(local, JobState.CANCELLED, JobState.CANCELLING)
        process.communicate(timeout=PATIENCE)
    revert(local)
    assert planned(local)[0] == "none"


@pytest.mark.slow
@pytest.mark.fault(10, 59)
def test_a_person_s_cancel_that_can_t_be_recorded_is_no_success(local: Team, tmp_path: Path) -> None:
    kill_apply_once_it_cancels(local)
    name = local.service.jobs(*local.place)[-1]["displayName"]
    program = wrapped(tmp_path, "from reconciler.cli import cancel\ncancel.record_cancel = refuse_record")
    process = local.author.start("cancel", name, "--yes", program=program, **local.environ)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "the cancellation isn't recorded: the store refuses" in err
    assert "apply may have cancelled it, and submits it again if it is wanted" in err


@pytest.mark.slow
@pytest.mark.fault(60)
def test_two_watchers_of_different_trees_end_at_the_bound(local: Team) -> None:
    local.push(args=["0"])
    other = local.clone("other")
    trees = [(local.author, GOOD), (other, BAD)]
    for clone, args in trees:
        clone.job(args=[args], reconcile=RECONCILE)
    with (
        watching(local.author, "--resync", "1", **local.environ) as one,
        watching(other, "--resync", "1", **local.environ) as another,
    ):
        until(lambda: (4, "CANCELLED") in standing(local).values())
        for watch in (one, another):
            watch.awaits_rest()
        ended = standing(local)
        for watch in (one, another):
            watch.awaits_rest()
        assert standing(local) == ended, "nothing is submitted any more"
    # The other content may have a single run, if its apply was always first, or may be stuck too.
    assert max(count for count, _ in ended.values()) == 4
    (stuck, *_) = [clone for clone, args in trees if ended[args] == (4, "CANCELLED")]
    said = local.run(stuck, "plan").out
    assert "stopped and wanted again three times: another apply wants other content" in said
    assert "`reconciler rerun census`" in said
    # A person decides.
    assert local.run(stuck, "rerun", "census").code == 0
    assert local.run(stuck, "apply").code == 0


def standing(team: Team) -> dict[str, tuple[int, str]]:
    """Return, by argument, the number of runs and the newest run's state."""
    runs = team.runs()
    counts = Counter(args for args, _ in runs)
    return {args: (counts[args], state) for args, state in runs if args in (GOOD, BAD)}


@pytest.mark.slow
@pytest.mark.fault(56, 59)
def test_an_older_tree_of_the_embedded_service_brings_nothing_back(local: Team) -> None:
    local.push(args=[GOOD])
    laptop = local.clone("laptop")
    assert local.run(local.author, "apply").code == 0
    local.push_and_apply(args=[BAD])
    for command in (("apply",), ("apply", "jobs/census.yaml"), ("apply", "--job", "census")):
        result = local.run(laptop, *command)
        assert (result.code, "so it cancels nothing" in result.err) == (1, True)
        assert result.out.count("withheld: this checkout is older than ") == 1
        assert local.runs() == [(GOOD, "CANCELLED"), (BAD, "QUEUED")]
    assert local.run(laptop, "apply", "--allow-older").code == 0
    assert local.runs() == [(GOOD, "CANCELLED"), (BAD, "CANCELLED"), (GOOD, "QUEUED")]


@pytest.mark.slow
def test_a_revert_without_git_comes_back_too(local: Team, tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", local.author.root, tmp_path / "plain"], check=True)
    plain = Clone(tmp_path / "plain")
    subprocess.run(["rm", "-rf", plain.root / ".git", plain.home], check=True)
    for args in (GOOD, BAD, GOOD):
        plain.job(args=[args], reconcile=RECONCILE)
        assert local.run(plain, "apply").code == 0
    assert local.runs() == [(GOOD, "CANCELLED"), (BAD, "CANCELLED"), (GOOD, "QUEUED")]
