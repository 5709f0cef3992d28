"""`reconciler report --html`: pages of real jobs, self-contained in their folder; no service is started."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from reconciler.pages.folder import write_site
from reconciler.training_service.client import locate
from tests.support.repository import Repository


def text_of(folder: Path) -> str:
    return "".join(file.read_text() for file in sorted(folder.rglob("*.html")))


def test_a_report_shows_jobs_commits_and_failures(repository: Repository) -> None:
    repository.git("init", "-q")
    repository.job("census", args=["--epochs", "3"])
    repository.job("broken", args=["--fail"])
    repository.git("add", ".")
    repository.git("commit", "-qm", "Train <b>two</b> jobs")
    assert repository.run("apply", "--wait").code == 1
    repository.stop()
    folder = repository.root.parent / "site"
    done = repository.run("report", "--html", str(folder))
    assert done.code == 0, done.err
    assert done.out.endswith(f"open {folder / 'index.html'}\n")
    overview = (folder / "index.html").read_text()
    assert "Train &lt;b&gt;two&lt;/b&gt; jobs" in overview
    assert "the loss is NaN" in overview
    assert "census" in overview
    sha = repository.git("rev-parse", "HEAD").strip()
    commit = (folder / "commits" / f"{sha}.html").read_text()
    assert commit.count('role="rowheader"') == 2
    shown = text_of(folder)
    # The pages contain neither a log nor the value of a variable.
    assert "training with" not in shown
    assert str(repository.starts) not in shown
    assert "STARTS" in shown
    # No service was started.
    assert locate(repository.home) is None
    told = repository.run("report", "--html", str(folder), "--logs", "--env-values")
    assert told.code == 0, told.err
    shown = text_of(folder)
    assert "training with --epochs 3" in shown
    assert f"STARTS={repository.starts}" in shown


def test_a_report_needs_no_jobs_and_no_valid_manifest(repository: Repository) -> None:
    empty = repository.run("report", "--html", "site")
    assert empty.code == 0, empty.err
    repository.write("jobs/bad.yaml", "kind: Nothing\n")
    done = repository.run("report", "--html", "site")
    assert done.code == 0, done.err
    assert "Manifests are invalid" in (repository.root / "site" / "index.html").read_text()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--logs"], "--logs is for pages"),
        (["--limit", "5"], "--limit is for pages"),
        (["--html", "site", "--timezone", "Mars/Base"], 'no time zone "Mars/Base"'),
        (["--html", "site", "--timezone", "../../etc/passwd"], "no time zone"),
        (["--html", "site", "--comment", "x"], "not allowed with"),
    ],
)
def test_wrong_flags_are_refused(repository: Repository, flags: list[str], words: str) -> None:
    done = repository.run("report", *flags)
    assert done.code == 64
    assert words in done.err


def test_the_limit_is_the_number_of_runs_with_a_page(repository: Repository) -> None:
    for name in ("a", "b", "c"):
        repository.job(name)
    repository.hold.touch()
    assert repository.run("apply").code == 0
    repository.hold.unlink()
    assert repository.run("report", "--html", "site", "--limit", "2", "--timezone", "Asia/Tokyo").code == 0
    assert len([*(repository.root / "site" / "jobs").iterdir()]) == 2
    assert ">Asia/Tokyo<" in (repository.root / "site" / "index.html").read_text()


PAGES = [("index.html", "one"), ("jobs/a.html", "two")]


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path, repository: Repository) -> None:
    theirs = repository.write("site/index.html", "mine")
    refused = repository.run("report", "--html", "site")
    assert refused.code == 4
    assert "nothing was written" in refused.err
    assert theirs.read_text() == "mine"
    assert [*theirs.parent.iterdir()] == [theirs]
    other = repository.write("site/notes.txt", "mine")
    assert repository.run("report", "--html", "site", "--force").code == 0
    assert "<html" in theirs.read_text()
    assert other.read_text() == "mine"


def test_an_earlier_report_is_replaced_whole(tmp_path: Path) -> None:
    write_site(tmp_path / "site", [*PAGES, ("jobs/old.html", "gone")], force=False)
    assert write_site(tmp_path / "site", PAGES, force=False) == (2, 6)
    files = sorted(str(file.relative_to(tmp_path / "site")) for file in (tmp_path / "site").rglob("*.html"))
    assert files == ["index.html", "jobs/a.html"]


def test_no_link_below_the_folder_is_followed(tmp_path: Path, repository: Repository) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.html").write_text("mine")
    site = repository.root / "site"
    write_site(site, PAGES, force=False)
    (site / "index.html").unlink()
    (site / "index.html").symlink_to(outside / "a.html")
    write_site(site, PAGES, force=False)
    assert not (site / "index.html").is_symlink()
    for file in (site / "jobs").iterdir():
        file.unlink()
    (site / "jobs").rmdir()
    (site / "jobs").symlink_to(outside)
    done = repository.run("report", "--html", "site")
    assert done.code == 64
    assert "can't write the report" in done.err
    assert [(file.name, file.read_text()) for file in outside.iterdir()] == [("a.html", "mine")]


def test_pages_are_readable_as_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_site(tmp_path / "site", PAGES, force=False)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "site" / "index.html").stat().st_mode) == 0o644
