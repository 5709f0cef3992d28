"""Commits that an apply passes over: each status shows the jobs that the commit brought."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.support.commit_story import Story
from tests.support.repository import Repository

ALL = "reconciler"
FAILING, GOOD = ["--fail"], ["--good"]


def state(story: Story, sha: str, context: str = ALL) -> tuple[str, str]:
    """Return the state and the text of a commit's newest status, or ("", "") without a status."""
    shown = story.shown(sha)
    return (
        (shown[context], story.said(sha, context).partition(" · update")[0]) if context in shown else ("", "")
    )


def apply(story: Story) -> None:
    """Apply the checked-out commit until its jobs have ended, as two runs of the workflow do."""
    story.run("apply", "--wait")


@pytest.fixture
def applied(story: Story) -> str:
    """Return an applied commit with a job that succeeded."""
    sha = story.push_job("a job", "census", args=GOOD)
    apply(story)
    assert state(story, sha) == ("success", "1 of 1 succeeded")
    return sha


@pytest.mark.fault(29)
def test_failed_job_turns_the_commit_red_that_brought_it_and_not_the_one_that_was_applied(
    story: Story, applied: str
) -> None:
    first = story.push_job("one author", "fraud", args=FAILING)
    second = story.push_job("another author", "iris", args=GOOD)
    apply(story)
    assert state(story, first)[0] == "failure"
    assert state(story, first)[1] == "failed: fraud · 0 of 1 succeeded"
    assert state(story, first, "reconciler/local/fraud")[0] == "failure"
    assert state(story, first, "reconciler/local/iris") == ("", "")
    assert state(story, second) == ("success", "1 of 1 succeeded · earlier: 1 failed")
    assert state(story, second, "reconciler/local/iris")[0] == "success"
    assert state(story, second, "reconciler/local/fraud") == ("", "")
    assert state(story, applied) == ("success", "1 of 1 succeeded")
    jobs = story.run("status", "--format", "json").json["jobs"]
    commits = {job["baseName"]: job["commit"] for job in jobs}
    assert commits == {"census": applied, "fraud": first, "iris": second}


@pytest.mark.fault(29)
def test_commit_without_a_job_of_its_own_is_green(story: Story, applied: str) -> None:
    first = story.push_job("a job", "fraud", args=FAILING)
    second = story.push_words("words")
    apply(story)
    assert state(story, first)[0] == "failure"
    assert state(story, second) == ("success", "no job of its own · earlier: 1 failed")
    third = story.push_words("more words")
    fourth = story.push_job("another job", "iris", args=GOOD)
    fifth = story.push_words("no more words")
    apply(story)
    assert state(story, third) == ("success", "no job of its own · earlier: 1 failed")
    assert state(story, fourth) == ("success", "1 of 1 succeeded · earlier: 1 failed")
    assert state(story, fifth) == ("success", "no job of its own · earlier: 1 failed")


@pytest.mark.fault(29)
def test_failed_job_of_a_passed_over_commit_stands_behind_a_later_passed_over_one(
    story: Story, applied: str
) -> None:
    first = story.push_job("a job", "fraud", args=FAILING)
    second = story.push_job("another job", "iris", args=GOOD)
    third = story.push_words("words")
    story.push_words("more words")
    apply(story)
    assert state(story, first) == ("failure", "failed: fraud · 0 of 1 succeeded")
    assert state(story, second) == ("success", "1 of 1 succeeded · earlier: 1 failed")
    assert state(story, third) == ("success", "no job of its own · earlier: 1 failed")
    assert state(story, applied) == ("success", "1 of 1 succeeded")


@pytest.mark.fault(22, 29)
def test_revert_shows_the_run_of_the_content_and_the_reverted_commit_was_replaced_before_it_ran(
    story: Story, applied: str
) -> None:
    bad = story.push_job("a mistake", "census", args=FAILING)
    revert = story.push_job("its revert", "census", args=GOOD)
    last = story.push_job("one more", "iris", args=GOOD)
    apply(story)
    text = f"replaced by {revert[:7]} before it ran"
    assert state(story, bad) == state(story, bad, "reconciler/local/census") == ("success", text)
    assert state(story, revert) == ("success", "1 of 1 succeeded")
    assert state(story, revert, "reconciler/local/census")[0] == "success"
    assert state(story, last) == ("success", "1 of 1 succeeded")
    assert story.repository.starts.read_text().count("--fail") == 0


@pytest.mark.fault(29)
def test_commit_between_a_content_and_its_replacement_brings_no_job(story: Story, applied: str) -> None:
    first = story.push_job("a mistake", "fraud", args=FAILING)
    words = story.push_words("words")
    last = story.push_job("its correction", "fraud", args=GOOD)
    apply(story)
    assert state(story, first) == ("success", f"replaced by {last[:7]} before it ran")
    assert state(story, words) == ("success", "no job of its own")
    assert state(story, words, "reconciler/local/fraud") == ("", "")
    assert state(story, last) == ("success", "1 of 1 succeeded")


@pytest.mark.fault(29)
def test_end_of_suspension_and_more_attempts_count_for_the_commit_that_made_them(
    story: Story, applied: str
) -> None:
    story.repository.job("iris", args=GOOD, reconcile="{suspend: true}")
    first = story.push_job("one that sleeps, and one that fails", "fraud", args=FAILING)
    apply(story)
    assert state(story, first) == ("failure", "failed: fraud · 0 of 1 succeeded")
    second = story.push_job("wake up", "iris", args=GOOD)
    third = story.push_job("try again", "fraud", args=FAILING, reconcile="{attempts: 2}")
    story.push_words("words")
    apply(story)
    assert state(story, second) == ("success", "1 of 1 succeeded · earlier: 1 failed")
    assert state(story, third) == ("failure", "failed: fraud · 0 of 1 succeeded")


@pytest.mark.fault(29)
def test_passed_over_commit_with_invalid_manifests_keeps_its_own_error(story: Story, applied: str) -> None:
    story.repository.job("iris", args=GOOD)
    broken = story.repository.write("jobs/fraud.yaml", "kind: CustomJob\n")
    invalid = story.push("half a job")
    broken.unlink()
    mended = story.push("the other half")
    apply(story)
    assert state(story, invalid)[0] == "error"
    assert state(story, invalid)[1].startswith("some manifests are not valid: ")
    assert state(story, invalid, "reconciler/local/iris")[0] == "success"
    assert state(story, mended) == ("success", "no job of its own")


@pytest.mark.fault(29)
def test_job_stays_with_its_commit_where_only_another_file_of_the_package_or_a_link_changes(
    story: Story, applied: str
) -> None:
    link = story.repository.root / "trainer/link.py"
    story.repository.write("shared.py", "A = 1\n")
    link.symlink_to("../shared.py")
    first = story.push("a link")
    story.repository.write("shared.py", "A = 2\n")
    second = story.push("its target")
    third = story.push_words("words")
    apply(story)
    text = f"replaced by {second[:7]} before it ran"
    assert state(story, first) == ("success", text)
    assert state(story, second) == ("success", "1 of 1 succeeded")
    assert state(story, third) == ("success", "no job of its own")


@pytest.mark.fault(29)
def test_first_apply_brings_all_jobs_and_no_other_commit_gets_a_status(story: Story) -> None:
    before = story.push_job("a job", "census", args=GOOD)
    head = story.push_job("another job", "iris", args=GOOD)
    apply(story)
    assert story.shown(before) == {}
    assert state(story, head) == ("success", "2 of 2 succeeded")


@pytest.mark.fault(29)
def test_jobs_of_a_shallow_checkout_are_told_apart_by_the_record_of_the_commit_before(
    story: Story, applied: str
) -> None:
    head = story.push_job("another job", "iris", args=GOOD)
    (story.repository.root / ".git/shallow").write_text(f"{head}\n")
    apply(story)
    assert state(story, head) == ("success", "1 of 1 succeeded")
    assert state(story, head, "reconciler/local/census") == ("", "")


@pytest.mark.fault(29)
def test_many_passed_over_commits_are_told_as_part_and_the_oldest_get_no_status(
    story: Story, applied: str
) -> None:
    story.repository.job("iris", args=GOOD)
    pushed = [story.push("a job")]
    pushed += [story.push(f"number {number}") for number in range(101)]
    apply(story)
    assert story.shown(pushed[0]) == {}
    part = f"applied as part of {pushed[-1][:7]}"
    assert {state(story, sha) for sha in pushed[1:51]} == {("success", part)}
    # The oldest commit with its own statuses stands for all earlier commits.
    assert state(story, pushed[51]) == ("success", "1 of 1 succeeded")
    assert {state(story, sha) for sha in pushed[52:]} == {("success", "no job of its own")}


@pytest.mark.fault(29)
def test_diverged_head_brings_what_differs_from_the_common_ancestor(story: Story, applied: str) -> None:
    left = story.push_job("a branch that is given up", "iris", args=GOOD)
    apply(story)
    story.repository.git("reset", "-q", "--hard", applied)
    passed = story.push_job("another branch", "fraud", args=FAILING)
    head = story.push_words("words")
    story.run("apply", "--wait", "--allow-older")
    assert state(story, left)[0] == "success"
    assert state(story, passed) == ("failure", "failed: fraud · 0 of 1 succeeded")
    assert state(story, head) == ("success", "no job of its own · earlier: 1 failed")


@pytest.mark.fault(29)
def test_withheld_apply_of_an_older_checkout_posts_nothing(story: Story, applied: str) -> None:
    newer = story.push_job("another job", "iris", args=GOOD)
    apply(story)
    before = {sha: [*statuses] for sha, statuses in story.github.statuses.items()}
    story.repository.git("switch", "-q", "--detach", applied)
    story.run("apply")
    assert story.github.statuses == before
    story.repository.git("switch", "-q", "main")
    assert story.run("apply").code == 0
    assert state(story, newer) == ("success", "1 of 1 succeeded")


@pytest.mark.fault(29)
def test_content_that_comes_back_after_a_cancel_belongs_to_the_commit_that_brings_it_back(
    story: Story,
) -> None:
    repository, policy = story.repository, "{onChange: cancel}"
    repository.hold.touch()
    repository.job("census", args=["--one"], reconcile=policy)
    first = story.push("one")
    assert story.run("apply").code == 0
    repository.job("census", args=["--two"], reconcile=policy)
    story.push("two")
    assert story.run("apply").code == 0
    shown = state(story, first)
    assert shown[0] == "error"
    repository.job("census", args=["--one"], reconcile=policy)
    back = story.push("one again")
    repository.write("README.md", "words")
    head = story.push("words")
    repository.hold.unlink()
    apply(story)
    assert state(story, first) == shown
    assert state(story, first, "reconciler/local/census")[1].startswith("superseded, cancelled")
    assert state(story, back) == ("success", "1 of 1 succeeded")
    assert state(story, head) == ("success", "no job of its own")


@pytest.mark.fault(29)
def test_file_in_git_lfs_counts_by_its_pointer_in_passed_over_commits(story: Story, applied: str) -> None:
    weights = b"weights\0"
    digest = hashlib.sha256(weights).hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(weights)}\n"
    file = story.repository.write("trainer/model.bin", pointer)
    first = story.push("a file in Git LFS")
    second = story.push_words("words")
    # Replace the pointer by the file, as the filter of Git LFS does at a checkout.
    file.write_bytes(weights)
    apply(story)
    assert state(story, first) == ("success", "1 of 1 succeeded")
    assert state(story, second) == ("success", "no job of its own")


@pytest.mark.fault(29)
@pytest.mark.parametrize("how", ["a part of the jobs", "without statuses"])
def test_commit_that_was_applied_without_a_verdict_gets_the_one_of_its_jobs(story: Story, how: str) -> None:
    story.repository.job("fraud", args=FAILING)
    first = story.push_job("two jobs", "iris", args=GOOD)
    if how == "a part of the jobs":
        story.run("apply", "--wait", "jobs/fraud.yaml")
    else:
        story.repository.run("apply", "--wait")
    head = story.push_words("words")
    apply(story)
    assert state(story, first) == ("failure", "failed: fraud · 1 of 2 succeeded")
    assert state(story, first, "reconciler/local/fraud")[0] == "failure"
    assert state(story, head)[0] == "success"


@pytest.mark.fault(29)
def test_merge_of_the_applied_branch_into_ones_own_brings_nothing_that_was_applied(
    story: Story, applied: str
) -> None:
    git = story.repository.git
    theirs = story.push_job("another author's job", "fraud", args=FAILING)
    apply(story)
    git("switch", "-q", "-c", "mine", applied)
    mine = story.push_job("my job", "iris", args=GOOD)
    git("merge", "-q", "--no-ff", "-m", "pull", "main")
    merge = story.push("more words")
    apply(story)
    assert state(story, theirs) == ("failure", "failed: fraud · 0 of 1 succeeded")
    assert state(story, mine) == ("success", "1 of 1 succeeded")
    assert state(story, merge) == ("success", "no job of its own · earlier: 1 failed")


@pytest.mark.fault(29)
def test_comment_in_the_manifest_of_a_job_with_a_submodule_brings_no_job(
    story: Story, tmp_path: Path
) -> None:
    library = Repository(tmp_path / "library")
    library.write("lib.py", "A = 1\n")
    library.git("init", "-q", "-b", "main")
    library.git("add", "-A")
    library.git("commit", "-q", "-m", "a library")
    git = story.repository.git
    allowed = ("-c", "protocol.file.allow=always")
    git(*allowed, "submodule", "--quiet", "add", str(library.root), "trainer/lib")
    manifest = story.repository.job("fraud", args=FAILING)
    first = story.push("a job with a submodule")
    apply(story)
    manifest.write_text(f"{manifest.read_text()}# a comment\n")
    passed = story.push("a comment")
    head = story.push_words("words")
    apply(story)
    assert state(story, first)[0] == "failure"
    assert state(story, passed) == ("success", "no job of its own · earlier: 1 failed")
    assert state(story, head)[0] == "success"
    manifest.write_text(f"{manifest.read_text()}# another comment\n")
    last = story.push("another comment")
    apply(story)
    assert state(story, last)[0] == "success"


@pytest.mark.fault(29)
@pytest.mark.parametrize("how", ["a name of two jobs", "a manifest that moves and breaks"])
def test_invalid_commit_takes_no_job_from_the_commit_that_brought_it(
    story: Story, applied: str, how: str
) -> None:
    manifest = story.repository.job("fraud", args=FAILING)
    bringer = story.push("a job")
    text = manifest.read_text()
    other = manifest.with_name("zcopy.yaml")
    if how == "a name of two jobs":
        other.write_text(text.replace("--fail", "--other"))
    else:
        manifest.unlink()
        other.write_text(text.replace("kind:", "kinds:"))
    invalid = story.push("a mistake")
    other.unlink()
    manifest.write_text(text)
    mended = story.push("mended")
    apply(story)
    assert state(story, bringer) == ("failure", "failed: fraud · 0 of 1 succeeded")
    assert state(story, invalid)[0] == "error"
    assert state(story, mended)[0] == "success"
