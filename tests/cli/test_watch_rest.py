"""`reconciler watch` applies only an unchanging tree: beside an editor, a notebook, and git at work."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reconciler.operations.watch.rest import git_at_work
from reconciler.training_service.state.records import JobState
from tests.support.team import Team
from tests.support.waiting import until
from tests.support.watching import Watch, watching

LONG = ("--resync", "1", "--settle", "120")
SHORT = ("--resync", "1", "--settle", "1")


@pytest.fixture
def team(cloud: Team) -> Team:
    """Return a repository with three commits of a job that replaces its run, the last run live at Google."""
    for args in ("1", "2", "3"):
        cloud.push(args=[args])
    return cloud


@contextmanager
def watched(team: Team, *options: str) -> Iterator[Watch]:
    """Yield a watch of the author's files that has submitted their jobs."""
    with watching(team.author, *options, **team.environ) as watch:
        until(lambda: team.runs() == [("3", "QUEUED")])
        watch.awaits_rest()
        yield watch


def waits(watch: Watch, why: str) -> None:
    """Wait until the watch has reported that it waits for this reason."""
    until(lambda: any(why in event["message"] for event in watch.told("waiting")))


def succeed(team: Team) -> None:
    """Let the only job that hasn't ended succeed."""
    store = team.service.store
    (job,) = store.unfinished()
    for state, before in ((JobState.RUNNING, JobState.QUEUED), (JobState.SUCCEEDED, JobState.RUNNING)):
        store.move(job.id, state, only_from={before}, at=store.now())


def test_a_trainer_that_is_opened_in_vim_and_closed_trains_once(team: Team) -> None:
    vim = shutil.which("vim.tiny") or shutil.which("vim")
    assert vim, "`.ci/run` installs it"
    trainer = team.author.root / "trainer"
    with watched(team, *SHORT) as watch:
        editor = subprocess.Popen(
            [vim, "-u", "NONE", "-T", "dumb", "--not-a-term", "--cmd", "set directory=.", "task.py"],
            cwd=trainer,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until((trainer / ".task.py.swp").exists)
            for _ in range(2):
                watch.awaits_rest()
            assert team.runs() == [("3", "QUEUED")]
            editor.communicate(b":q\n")
        finally:
            editor.kill()
            editor.wait()
        assert not (trainer / ".task.py.swp").exists()
        (trainer / ".ipynb_checkpoints").mkdir()
        (trainer / ".ipynb_checkpoints" / "task-checkpoint.py").write_text("")
        (team.author.root / "jobs" / ".#census.yaml").symlink_to("a@example.test.4711:1")
        (trainer / ".#task.py").symlink_to("a@example.test.4711:1")
        for _ in range(2):
            watch.awaits_rest()
        assert team.runs() == [("3", "QUEUED")]
        assert watch.told("invalid") == []


def test_a_commit_that_git_passes_through_cancels_nothing(team: Team) -> None:
    head = team.author.git("rev-parse", "HEAD")
    assert team.run(team.author, "apply").code == 0
    with watched(team, *LONG) as watch:
        team.author.git("checkout", "-q", "HEAD~1")
        waits(watch, "files are changing: nothing is submitted or cancelled until none has changed for 120 s")
        watch.awaits_rest()
        assert team.runs() == [("3", "QUEUED")]
        # The watch reports the ends of jobs all the same.
        succeed(team)
        watch.awaits("ended", state="SUCCEEDED")
        team.author.git("checkout", "-q", "main")
        watch.awaits_rest()
        assert team.runs() == [("3", "SUCCEEDED")]
        assert watch.told("submitted") == []
    assert team.recorded() == head


def test_statuses_are_posted_while_git_is_at_work(team: Team) -> None:
    head = team.author.git("rev-parse", "HEAD")
    token = {"GITHUB_TOKEN": "ghs_a-token-of-the-team", "GITHUB_API_URL": team.github.url}
    team.environ |= token
    with watched(team, *SHORT) as watch:
        team.author.git("bisect", "start", "HEAD", "HEAD~2")
        waits(watch, "git is in the middle of a bisect (")
        for _ in range(2):
            watch.awaits_rest()
        assert team.runs() == [("3", "QUEUED")]
        succeed(team)
        context = "reconciler/prod/census"
        until(lambda: team.said(head, context)[0] == "success")
        assert team.said(head)[0] == "success"
        team.author.git("bisect", "reset")
        for _ in range(2):
            watch.awaits_rest()
    assert team.runs() == [("3", "SUCCEEDED")]


@pytest.mark.parametrize("excluded", [False, True])
def test_code_that_git_does_not_track_waits_until_it_is_added(team: Team, excluded: bool) -> None:
    if excluded:
        (team.author.root / ".git" / "info" / "exclude").write_text("new.py\n")
    with watched(team, *SHORT) as watch:
        (team.author.root / "trainer" / "new.py").touch()
        waits(watch, "git doesn't track trainer/new.py, which is part of a job's code")
        watch.awaits_rest()
        assert team.runs() == [("3", "QUEUED")]
        team.author.git("add", "--force", "trainer/new.py")
        until(lambda: team.runs() == [("3", "CANCELLED"), ("3", "QUEUED")])


def test_a_conflict_waits_until_it_is_resolved(team: Team) -> None:
    """Some conflicts, such as after `git stash pop`, leave no state file in git's folder."""
    trainer = team.author.root / "trainer" / "task.py"
    with watched(team, *SHORT) as watch:
        text = trainer.read_text()
        trainer.write_text(f"# mine\n{text}")
        team.author.git("stash", "-q")
        trainer.write_text(f"# theirs\n{text}")
        team.author.git("commit", "-qam", "theirs")
        with pytest.raises(subprocess.CalledProcessError):
            team.author.git("stash", "pop", "-q")
        waits(watch, "trainer/task.py has a conflict")
        before = team.runs()
        watch.awaits_rest()
        assert team.runs() == before
        assert len(before) <= 2, "the commit's may have trained before the conflict"


def test_what_is_half_edited_at_the_start_waits_too(team: Team) -> None:
    team.author.job("census", args=["half"], reconcile="{onChange: cancel}")
    with watching(team.author, *LONG, **team.environ) as watch:
        waits(watch, "files are changing")
        watch.awaits_rest()
        assert team.runs() == []


def test_an_edit_is_applied_once_the_files_are_quiet(team: Team) -> None:
    with watched(team, *SHORT) as watch:
        team.author.job("census", args=["4"], reconcile="{onChange: cancel}")
        waits(watch, "files are changing")
        until(lambda: team.runs() == [("3", "CANCELLED"), ("4", "QUEUED")])


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("index.lock", "changing the index"),
        ("rebase-merge", "a rebase"),
        ("rebase-apply", "a rebase"),
        ("MERGE_HEAD", "a merge"),
        ("CHERRY_PICK_HEAD", "a cherry-pick"),
        ("REVERT_HEAD", "a revert"),
        ("BISECT_LOG", "a bisect"),
        ("sequencer", "a series of commits"),
    ],
)
def test_git_at_work_is_seen_by_what_it_leaves_meanwhile(tmp_path: Path, name: str, what: str) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert git_at_work(tmp_path) == ""
    (tmp_path / ".git" / name).touch()
    found = git_at_work(tmp_path)
    assert found.startswith(f"git is in the middle of {what} ({tmp_path / '.git' / name}): ")


def test_a_folder_without_git_is_never_at_work(tmp_path: Path) -> None:
    assert git_at_work(tmp_path) == ""


@pytest.mark.parametrize("value", ["0", "121", "x"])
def test_a_time_to_settle_that_is_too_long_or_none_is_refused(team: Team, value: str) -> None:
    assert team.run(team.author, "watch", "--settle", value).code == 64
    remote = ("--remote", f"file://{team.origin}")
    assert (
        "--settle can't be combined with --remote"
        in team.run(team.author, "watch", "--settle", "5", *remote).err
    )
