"""`python -m tests.browser.pictures FOLDER`: screenshots of the overview and a tuning job for the README."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from playwright.sync_api import sync_playwright

from reconciler.model.cause import Cause, CauseClass
from reconciler.model.job import State
from reconciler.pages.folder import write_site
from reconciler.pages.rendering import Pages
from reconciler.pages.site import CommitInfo, Site, row_key
from tests.support.sites import NOW, TARGET, at, details_of, name_of, row_of, sha_of, study_of

SIZE = {"width": 1200, "height": 1200}
NAMES = ("fraud-gbm", "churn", "forecast", "ranking", "census-income", "vision-resnet", "speech", "graph")
MEMORY = Cause(
    CauseClass.USER_CODE,
    "the trainer was killed",
    "the trainer was killed: out of memory (exit code 137)",
    "choose a machine with more memory",
)
COMMITS = (
    ("Ada", "Search the learning rate of churn again"),
    ("Grace", "Give fraud-gbm more trees"),
    ("Ada", "Train the forecast on a year more"),
)
STATES = {0: State.RUNNING, 1: State.SUCCEEDED, 2: State.FAILED, 3: State.QUEUED}
TUNED = 1


def site() -> Site:
    """Write a site with a team's jobs on a morning."""
    rows, details = [], {}
    for number, name in enumerate(NAMES):
        state = STATES.get(number, State.SUCCEEDED)
        begun, age = state is not State.QUEUED, 30.0 * number + 12
        fields: dict[str, Any] = {
            "base_name": name,
            "job_name": name.replace("-", "_") + name_of(number)[-17:],
            "commit": sha_of(number // 3),
            "create_time": at(age + 55),
            "start_time": at(age + 50) if begun else "",
            "end_time": at(age) if state.ended else "",
            "cause": MEMORY if state is State.FAILED else None,
            "result": "accuracy 0.9312" if state is State.SUCCEEDED else "",
        }
        row = row_of(number, state, **fields)
        more: dict[str, Any] = {}
        if number == TUNED:
            more = {"study": (study := study_of(60, seed=76, points=12))}
            assert study.best
            found = study.best.metrics["accuracy"]
            row = replace(row, result=f"accuracy {found:.5g} in trial {study.best.id}")
        rows.append(row)
        details[row_key(row)] = details_of(row, prepare_time=at(age + 53), **more)
    commits = {
        sha_of(n): CommitInfo(sha_of(n), author, at(100 * n + 70), text)
        for n, (author, text) in enumerate(COMMITS)
    }
    return Site("models", TARGET, NOW, rows, whole=False, details=details, commits=commits)


def main(folder: Path) -> None:
    """Write the screenshots."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    pages = Pages(site())
    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        write_site(Path(made), ((path, pages.page(path) or "") for path in pages.paths()), force=False)
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
        page.goto((Path(made) / "index.html").as_uri())
        page.screenshot(path=folder / "overview.png")
        page.get_by_role("link", name=NAMES[TUNED]).first.click()
        page.locator("#trials").evaluate("element => element.scrollIntoView()")
        page.screenshot(path=folder / "tuning.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
