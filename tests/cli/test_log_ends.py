"""`apply --logs`: the end of each failed job's log in a workflow's log, inert for hostile text too."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.repository import Repository, Result

ON_RUNNER = {"GITHUB_RUN_ID": "42"}
TRAINER = """
import os

print("first of all", flush=True)
for number in range({lines}):
    print(f"line {{number}}", flush=True)
{more}
raise SystemExit(3)
"""
HOSTILE = r"""
for line in (
    "::error::an error of nobody's",
    "  ::add-mask::a",
    "##[group]another group",
    "x\r::set-output name=a::b",
    "\x1b[31mred\x1b[0m and \x07 bell",
    "\u200b::stop-commands::mine",
    "::endgroup::",
):
    print(line, flush=True)
"""
GROUP = re.compile(
    r"^::group::(?P<title>[^\n]*)\n::stop-commands::(?P<word>[0-9a-f]{32})\n"
    r"(?P<log>.*?)\n::(?P=word)::\n::endgroup::$",
    re.MULTILINE | re.DOTALL,
)


def failing(repository: Repository, *, lines: int = 3, more: str = "") -> None:
    repository.write("trainer/task.py", TRAINER.format(lines=lines, more=more))
    repository.job("census")


def applied(repository: Repository, *flags: str, **environ: str) -> Result:
    done = repository.run("apply", "--wait", *flags, **environ)
    assert done.code == 1, done
    return done


def test_log_of_a_failed_job_stands_in_a_group_without_commands(repository: Repository) -> None:
    failing(repository, more=HOSTILE)
    done = applied(repository, "--logs", **ON_RUNNER)
    (group,) = GROUP.finditer(done.err)
    assert "census" in group["title"]
    shown = group["log"].splitlines()
    assert any(line.endswith("line 2") for line in shown)
    assert any(r"\x23\x23[group]another group" in line for line in shown)
    assert any(r"red and \x07 bell" in line for line in shown)
    # With its prefix, no line begins a command; a carriage return begins a line, too.
    assert not [line for line in shown if line.lstrip().startswith("::") or "##[" in line]
    assert not set("\x1b\r\x07\u200b") & set(group["log"])
    assert "::group::" not in done.out
    # The cause follows the group.
    assert done.err.index("user code: exit code 3") > group.end()


def test_each_group_has_a_word_of_its_own(repository: Repository) -> None:
    failing(repository)
    repository.job("rainfall")
    groups = [*GROUP.finditer(applied(repository, "--logs", **ON_RUNNER).err)]
    assert len(groups) == 2
    assert len({group["word"] for group in groups}) == 2


@pytest.mark.parametrize(
    ("lines", "more"),
    [
        (80, ""),
        (3, r"print('\r'.join(f'step {n}' for n in range(80)), flush=True)"),
        (3, "for n in range(30): print(f'{n:02}' * 2000, flush=True)"),
    ],
    ids=["many lines", "one line that is written over", "long lines"],
)
def test_log_is_cut_to_its_end(repository: Repository, lines: int, more: str) -> None:
    failing(repository, lines=lines, more=f"{more}\nprint('last of all', flush=True)")
    (group,) = GROUP.finditer(applied(repository, "--logs", **ON_RUNNER).err)
    shown = group["log"].splitlines()
    assert len(shown) <= 50
    assert len(group["log"].encode()) <= 64 * 1024
    assert any(line.endswith("last of all") for line in shown)
    assert not any(line.endswith("first of all") for line in shown)
    assert len(shown) == 50 or shown[0].startswith("…")


def test_values_of_variables_and_secrets_are_hidden_in_the_log(repository: Repository) -> None:
    token = f"ghp_{'a1B2' * 9}"
    failing(repository, more=f"print(os.environ['STARTS'], flush=True)\nprint({token!r}, flush=True)")
    done = applied(repository, "--logs", **ON_RUNNER)
    (group,) = GROUP.finditer(done.err)
    assert str(repository.starts) not in done.err
    assert token not in done.err
    assert group["log"].count("***") >= 2


def test_log_stands_without_commands_where_a_person_reads_it(repository: Repository) -> None:
    failing(repository)
    done = applied(repository, "--logs")
    assert "::" not in done.err
    assert re.search(r"^The last lines of the log of census_\w+:\n(    .*\n)*    .* line 2$", done.err, re.M)
    assert "see `reconciler logs census`" in done.err


def test_log_leaves_standard_output_to_json(repository: Repository) -> None:
    failing(repository)
    done = applied(repository, "--logs", "--format", "json", "--log-format", "json")
    assert done.json["outcomes"][0]["state"] == "FAILED"
    events = [json.loads(line) for line in done.err.splitlines()]
    (log,) = [event for event in events if event["event"] == "log"]
    assert any(line.endswith("line 2") for line in log["lines"])


def test_log_of_a_job_that_had_failed_before_is_printed_again(repository: Repository) -> None:
    failing(repository)
    for _ in range(2):
        assert len([*GROUP.finditer(applied(repository, "--logs", **ON_RUNNER).err)]) == 1


def test_remedy_names_no_machine_that_is_gone(repository: Repository) -> None:
    failing(repository)
    done = applied(repository, **ON_RUNNER)
    assert "; see its log in the workflow's run and correct the code" in done.err
    assert "reconciler logs" not in done.out + done.err
    assert "`logs: true`" in done.err
    shown = repository.run("report", "--html", "pages", **ON_RUNNER)
    assert shown.code == 0, shown
    pages = [page.read_text() for page in (repository.root / "pages").rglob("*.html")]
    assert any("correct the code" in page for page in pages)
    assert not any("reconciler logs" in page or str(repository.home) in page for page in pages)


def test_logs_of_jobs_that_may_not_have_ended_are_refused(repository: Repository) -> None:
    repository.job("census")
    done = repository.run("apply", "--logs")
    assert done.code == 64
    assert "add --wait" in done.err
