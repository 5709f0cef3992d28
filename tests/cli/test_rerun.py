"""`reconciler rerun`: the same content again, as a change that can be reviewed."""

from __future__ import annotations

import re

from tests.support.repository import Repository

WHEN = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def committed(repository: Repository) -> None:
    repository.git("init", "--quiet")
    repository.git("config", "user.name", "a")
    repository.git("config", "user.email", "a@example.test")
    repository.git("add", ".")
    repository.git("commit", "--quiet", "-m", "first")


def test_a_job_runs_again_after_its_manifest_was_edited(repository: Repository) -> None:
    path = repository.job("census")
    path.chmod(0o640)
    assert repository.run("apply", "--wait").code == 0
    before = path.read_text()
    done = repository.run("rerun", "census")
    said = re.fullmatch(rf'jobs/census\.yaml:10: rerun is "({WHEN})"; commit it, .*\n', done.out)
    assert said, done.out + done.err
    assert path.read_text() == before.replace("\nspec:", f'\nreconcile: {{rerun: "{said[1]}"}}\nspec:')
    assert path.stat().st_mode & 0o777 == 0o640
    assert repository.run("apply", "--wait").code == 0
    assert len(repository.starts.read_text().splitlines()) == 2


def test_commit_takes_the_manifest_alone(repository: Repository) -> None:
    repository.job("census", reconcile="{attempts: 2}")
    committed(repository)
    (repository.root / "trainer/task.py").write_text("changed = 1\n")
    repository.write("new.txt", "new")
    repository.git("add", "new.txt")
    repository.write(".git/hooks/pre-commit", "#!/bin/sh\ntouch ran\n").chmod(0o755)
    done = repository.run("rerun", "census", "--commit")
    assert done.code == 0, done.err
    assert f"committed as {repository.git('rev-parse', 'HEAD')[:12]}" in done.out
    assert repository.git("log", "-1", "--format=%s") == "Run census again"
    assert repository.git("show", "--format=", "--name-only", "HEAD") == "jobs/census.yaml"
    assert repository.git("status", "--porcelain") == "A  new.txt\n M trainer/task.py"
    assert not (repository.root / "ran").exists()


def test_a_manifest_with_other_changes_is_not_committed(repository: Repository) -> None:
    path = repository.job("census")
    committed(repository)
    path.write_text(path.read_text() + "# more\n")
    before = path.read_bytes()
    done = repository.run("rerun", "census", "--commit")
    assert done.code == 1
    assert "jobs/census.yaml has other uncommitted changes" in done.err
    assert path.read_bytes() == before


def test_without_a_repository_of_git_there_is_nothing_to_commit_to(repository: Repository) -> None:
    path = repository.job("census")
    before = path.read_bytes()
    done = repository.run("rerun", "census", "--commit")
    assert (done.code, path.read_bytes()) == (1, before)
    assert "is not in a git repository" in done.err


def test_what_cannot_be_edited_says_where_and_what_to_write(repository: Repository) -> None:
    path = repository.job("census", reconcile="&all {attempts: 2}")
    before = path.read_bytes()
    done = repository.run("rerun", "census")
    assert done.code == 1
    assert "can't edit jobs/census.yaml:9: it isn't written in a form that can be edited safely" in done.err
    assert re.search(rf'write it there yourself: reconcile: {{rerun: "{WHEN}"}}', done.err)
    assert path.read_bytes() == before


def test_a_name_that_no_manifest_has(repository: Repository) -> None:
    repository.job("census")
    done = repository.run("rerun", "other")
    assert done.code == 1
    assert 'no manifest is named "other"' in done.err
    assert repository.run("rerun", "census_0123456789abcdef_2").code == 0
