"""The page for a pull request: the most important first, within GitHub's limits, and inert."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec import structs

from reconciler.base.diagnostics import Problem
from reconciler.base.sanitize import one_line
from reconciler.base.warning_kinds import WarningKind
from reconciler.model.diff import Comparison, FieldChange, FileChange, diff
from reconciler.model.expectation import Expectation, Judged, Judgement, Measured, Missing
from reconciler.model.job import State
from reconciler.model.plan import Action, Change, Cost, Drift, DriftKind, Edit, NotDone, Plan, Target
from reconciler.model.reason import Note, NoteCode, ReasonCode, because
from reconciler.output.document import COMMENT_LIMIT, SUMMARY_LIMIT, code, cut, fence, text
from reconciler.output.ends import End, ends_markdown
from reconciler.output.markdown import Links, Merge, changes_nothing, plan_markdown
from reconciler.output.text import plan_text
from reconciler.output.wording.plan import reason_text
from tests.support.hostile_plans import published_plan
from tests.support.planning import GOOGLE, noting, saying, wanted

BASE = "0123456789abcdef0123456789abcdef01234567"
BEFORE = {"replicaCount": "1"}
AFTER = {"replicaCount": "2", "machine": "n1"}


def specs(before: dict[str, Any] = BEFORE, after: dict[str, Any] = AFTER) -> dict[str, Any]:
    """Return the parts of a change between two specs."""
    return {"fields": diff(before, after), "desired": structs.replace(wanted(), packed=after)}


WHY = {
    Edit.NEW: because(ReasonCode.NEW),
    Edit.CHANGED: because(ReasonCode.CHANGED),
    Edit.REMOVED: because(ReasonCode.REMOVED, is_cancelled=False),
    Edit.UNCHANGED: because(ReasonCode.SAME_CONTENT),
}
CANCELLED = because(ReasonCode.REMOVED, is_cancelled=True)


def changed(name: str = "census", edit: Edit = Edit.CHANGED, **more: Any) -> Change:
    action = more.pop("action", Action.NONE if edit is Edit.UNCHANGED else Action.SUBMIT)
    hours = more.pop("hours_before", 0.0), more.pop("hours_after", 0.0)
    given = {"path": f"jobs/{name}.yaml", "line": 3, "reason": WHY[edit], **more}
    job_name = f"{name}_{BASE[:16]}"
    return Change(
        action, base_name=name, job_name=job_name, kind="CustomJob", edit=edit, hours=hours, **given
    )


def proposal(*changes: Change, **differences: Any) -> Plan:
    return Plan(GOOGLE, changes, (), None, comparison=Comparison(BASE, **differences))


def differing(plan: Plan, **differences: Any) -> Plan:
    assert plan.comparison
    return structs.replace(plan, comparison=structs.replace(plan.comparison, **differences))


def in_full(plan: Plan, limit: int | None = None) -> str:
    return plan_markdown(plan, limit)


@cache
def renderer() -> MarkdownIt:
    made = MarkdownIt("commonmark", {"html": True, "linkify": True})
    made.enable(["table", "linkify", "strikethrough"])
    assert made.linkify
    # GitHub makes no link of a mere name.
    made.linkify.set({"fuzzy_link": False})
    return made


@dataclass
class Page(HTMLParser):
    """A page as a browser reads it: its tags, and its text with the elements around it."""

    tags: list[str] = field(default_factory=list)
    texts: list[tuple[str, str]] = field(default_factory=list)

    def __init__(self, markdown: str) -> None:
        super().__init__()
        self.tags, self.texts, self.around = [], [], []  # type: ignore[var-annotated]
        self.feed(renderer().render(markdown))
        self.close()
        assert self.around == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = " ".join(f"{name}={value}" for name, value in attrs)
        self.tags.append(f"{tag} {told}".strip())
        if tag == "br":
            self.handle_data("\n")
        else:
            self.around.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.around.pop() == tag

    def handle_data(self, data: str) -> None:
        last = self.texts[-1] if self.texts else ("", "")
        if last[0] == (place := " ".join(self.around)):
            self.texts[-1] = (place, last[1] + data)
        else:
            self.texts.append((place, data))

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    handle_decl = handle_pi = unknown_decl = handle_comment

    @property
    def elements(self) -> list[str]:
        """Return the tags except `code`, as that element holds addresses in Cloud Storage."""
        return [tag for tag in self.tags if tag != "code"]

    @property
    def shown(self) -> str:
        return "".join(data for _, data in self.texts)


# References that GitHub recognises in the text of a page, outside of code
REFERENCES = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?<![\w`])@[a-z0-9]",
        r"#\d",
        r"\bgh-\d",
        r":[a-z0-9_+-]+:",
        r"(?<![0-9a-z])[0-9a-f]{7,40}(?![0-9a-z])",
    )
]
# Addresses that its Markdown turns into links, also within an element that the text itself opens
ADDRESSES = [
    re.compile(pattern, re.IGNORECASE)
    # GitHub doesn't know the scheme `gs`.
    for pattern in (
        r"(?!gs:)\b[a-z]+://\S",
        r"(?<!gs://)www\.\w",
        r"[\w.+-]+@[\w-]+",
        r"(^|[\s(])\$\S.*?\$([\s.,;:?!)]|$)",
    )
]


def assert_inert(page: Page) -> None:
    for place, shown in page.texts:
        if "pre" in place.split():
            continue
        looked_for = ADDRESSES if "code" in place.split() else ADDRESSES + REFERENCES
        assert not [found[0] for one in looked_for if (found := one.search(shown))], shown


def assert_inert_in_a_log(shown: str) -> None:
    """Check the text for a log: a workflow's runner and a terminal read it too."""
    assert [line for line in shown.split("\n") if one_line(line) != line] == []


ATTACKS = r"""@octocat|@acme/team|#1|acme/models#1|GH-1|https://evil.example/x|www.evil.example|a@b.example
</details>|</code>|</summary>|<img src=x onerror=y>|<script>|<!--|-->|<?php|<![CDATA[|<https://x.example>|&lt;b&gt;
&#64;octocat|&commat;octocat|:octocat:|$x$|$|**b**|_e_|*|~~s~~|\|!|=|+|a_b_c|mailto:a@b.example|xmpp:a@b.example
ftp://x.example|[x](http://y.example)|![x](http://y.example)|[x]: http://y.example|[^1]|- [ ] x|1. x|> q|# h
---|===|```|````|~~~|`|gs://|gs://b/x_0123456|xgs://b
gs://www.b.example|::error::x|##[group]|    x|0123456|x|@|é|🎉|"""
SPECIAL = [
    "|",
    "| |",
    "\n",
    "\n\n",
    "\r",
    "\n```\n</details>\n",
    "\x00",
    "\x1b[31m",
    "\u202e",
    "\u200b",
    "\u0661. x",
    BASE,
]
untrusted = st.one_of(
    st.lists(st.sampled_from([*re.split(r"\||\n", ATTACKS), *SPECIAL]), max_size=6).map("".join),
    st.text(max_size=20),
)


@st.composite
def proposals(draw: st.DrawFn) -> Callable[[Callable[[str], str]], Plan]:
    """Return a proposal with all its texts passed through a function."""
    texts = draw(st.lists(st.lists(untrusted, min_size=9, max_size=9), min_size=1, max_size=2))
    edits = draw(
        st.lists(st.sampled_from([e for e in Edit if e is not Edit.UNCHANGED]), min_size=2, max_size=2)
    )
    actions = draw(st.lists(st.sampled_from(Action), min_size=2, max_size=2))
    environment = draw(untrusted).replace("\n", "")[:30]

    def made(of: Callable[[str], str]) -> Plan:
        changes, problems, notes = [], [], []
        fields_of_settings: list[FieldChange] = []
        for edit, action, (a, b, c, d, e, f, g, h, i) in zip(edits, actions, texts, strict=False):
            old, new = {f"a{of(a)}": f"1{of(b)}", "c": of(c)}, {f"a{of(a)}": f"2{of(b)}", "d": [of(d)]}
            change = Change(
                action, saying(of(a)), of(b), of(c), of(d), of(e), 1, **specs(old, new), edit=edit
            )
            files = (FileChange(of(h), 1, 2), FileChange(of(i), None, None))
            number = len(changes)
            more = {
                "notes": (noting(f"{number}{of(f)}"), noting(f"{number}{of(g)}")),
                "code_changed": True,
                "hours": (0, 1.5),
                "files": files,
            }
            changes.append(structs.replace(change, **more))
            problems.append(Problem(of(a), 1, 1, f"/{of(b)}", of(h), of(i)))
            fields_of_settings += (
                FieldChange(f"/defaults/{of(a)}", of(b), None),
                FieldChange(of(c), None, [of(d)]),
            )
            notes.append(of(e))
        target = Target(of(environment), "google", of(environment), of(environment))
        comparison = Comparison(
            BASE,
            tuple(problems),
            1,
            settings=tuple(fields_of_settings),
            notes=tuple(notes),
            # Equal ones would be one entry.
            warnings=tuple(
                structs.replace(problem, kind=WarningKind.IMAGE_TAG, message=f"{n}{problem.message}")
                for n, problem in enumerate(problems)
            ),
        )
        return Plan(target, tuple(changes), (), None, comparison=comparison)

    return made


def plain(untrusted: str) -> str:
    return "x" if one_line(untrusted).strip() else ""


def test_warnings_are_listed_with_their_number_and_place() -> None:
    kind = WarningKind.MACHINE_TYPE
    warning = Problem("jobs/a.yaml", 3, 5, "/spec", "n1-x is not known", "did you mean n1-y?", kind)
    shown = in_full(proposal(warnings=(warning,)))
    assert "**1 warning in 1 file.**" in shown
    line = "jobs/a.yaml:3:5 warning: n1-x is not known (/spec) machineType\ndid you mean n1-y?"
    assert line in Page(shown).shown


def test_equal_warnings_are_one_line_with_their_number_and_first_places() -> None:
    kind = WarningKind.MACHINE_TYPE
    warnings = tuple(Problem(f"jobs/{n}.yaml", 3, 5, "", "n1-x is not known", "", kind) for n in range(9))
    shown = Page(in_full(proposal(warnings=warnings))).shown
    assert "9 warnings in 9 files." in shown
    assert shown.count("n1-x is not known") == 1
    assert "9 of these in 9 files, also at jobs/1.yaml:3:5, jobs/2.yaml:3:5, …" in shown


@pytest.mark.slow
@pytest.mark.fault(45)
@given(proposals())
def test_nothing_that_others_wrote_is_live(made: Callable[[Callable[[str], str]], Plan]) -> None:
    """The page has the same elements as for harmless text, and its text has no reference for GitHub."""
    shown = in_full(made(str))
    page = Page(shown)
    assert page.elements == Page(in_full(made(plain))).elements
    assert page.shown.rstrip().endswith("shows the actual plan.")
    assert_inert(page)
    assert_inert_in_a_log(shown)


@pytest.mark.fault(45)
@given(untrusted, untrusted, untrusted, untrusted)
def test_nothing_in_the_plan_that_asked_the_service_is_live(a: str, b: str, c: str, d: str) -> None:
    def made(of: Callable[[str], str]) -> str:
        change = Change(Action.SUBMIT, saying(of(a)), "census", of(b), "CustomJob", of(c), 1)
        change = structs.replace(change, **specs({"a": f"1{of(a)}"}, {"a": f"2{of(b)}", "d": of(d)}))
        drift = Drift(DriftKind.ORPHANED, of(c), "census", noting(of(d)))
        return plan_markdown(Plan(Target("prod", "google", of(a), of(b)), (change,), (drift,), None))

    page = Page(made(str))
    assert page.elements == Page(made(plain)).elements
    assert_inert(page)
    assert_inert_in_a_log(made(str))


@pytest.mark.fault(45)
@given(untrusted, untrusted)
@example("`rm -r`", "a" * 1000)
@example("@octocat", "x\n```\n::error::owned")
def test_nothing_in_metrics_and_their_files_is_live(metric: str, file: str) -> None:
    def made(of: Callable[[str], str]) -> str:
        missing = Measured(None, Missing.TWO_VALUES, (of(file), f"2{of(file)}"))
        judged = Judgement((Judged(Expectation(f"a{of(metric)}", max=1.0), missing),))
        missed = because(ReasonCode.EXPECTATION_MISSED, judgement=judged)
        unread = because(ReasonCode.METRICS_UNREAD, why=of(file))
        changes = [
            Change(Action.NONE, reason, "census", "census_0", "CustomJob", "a.yaml", 1, stuck=stuck)
            for reason, stuck in ((missed, NotDone.MISSED), (unread, NotDone.UNJUDGED))
        ]
        drift = Drift(DriftKind.MODIFIED, "c", "census", Note(NoteCode.FILE_CHANGED, {"files": of(file)}))
        ends = [End(change, None, State.SUCCEEDED, reason_text(change.reason), "") for change in changes]
        plan = Plan(GOOGLE, tuple(changes), (drift,), None)
        return f"{plan_markdown(plan)}\n\n{ends_markdown(ends, 'x', None)}"

    page = Page(made(str))
    assert page.elements == Page(made(plain)).elements
    assert_inert(page)
    assert_inert_in_a_log(made(str))


@pytest.mark.fault(45)
@given(untrusted)
@example("`rm -r`")
@example("x\n```\n::error::owned")
def test_nothing_in_publications_is_live(said: str) -> None:
    page, made = Page(plan_markdown(published_plan(said))), plan_markdown(published_plan(plain(said)))
    assert page.elements == Page(made).elements
    assert_inert(page)
    assert_inert_in_a_log(plan_markdown(published_plan(said)))


def test_publications_are_rows_with_job_and_reason() -> None:
    shown = Page(plan_markdown(published_plan("x"))).shown.splitlines()
    number = shown.index("publish")
    assert shown[number + 1] == "census_0"
    assert shown[number + 2].startswith("to x: of 2 Jan 2026, ")
    assert shown[number + 2].endswith("; takes over from x, replaces x")
    assert shown[number + 3] == "a.yaml:3"
    assert shown.count("blocked") == 7
    reasons = [shown[at + 2] for at, line in enumerate(shown) if line == "blocked"]
    assert all(reason.startswith("not published: ") for reason in reasons)
    assert "0 to cancel, 1 to publish, 0 unchanged, 7 blocked" in shown[1]


@pytest.mark.fault(45)
@given(untrusted)
@example("@octocat #1 https://x.example a@b.example GH-1 :octocat: " + BASE)
def test_text_and_code_show_what_was_written(said: str) -> None:
    shown = one_line(said).strip()
    assert Page(f"x {text(said)} x").shown.replace("\u200b", "").strip() == f"x {shown} x".strip()
    assert Page(f"x {code(said)} x").shown.replace("\u200b", "").strip() == f"x {one_line(said)} x"
    assert Page(f"<details><summary>{code(said)}</summary>\n\nx\n\n</details>").tags == [
        "details",
        "summary",
        "code",
        "p",
    ]


@pytest.mark.fault(45)
@given(st.lists(untrusted.map(one_line), min_size=1))
@example(["```", "# h"])
@example(["x", "`````", "``` `````"])
def test_a_fence_holds_and_shows_what_was_written(lines: list[str]) -> None:
    page = Page(f"{fence(lines, 'diff')}\n\nafter")
    assert page.tags == ["pre", "code class=language-diff", "p"]
    assert page.shown == "\n".join(lines) + "\n\nafter\n"


@pytest.mark.parametrize(
    "address",
    ["gs://acme-models/census_0123456789abcdef/", "gs://www.acme.example/gh-1/v1.2/0123456", "gs://b"],
)
def test_addresses_in_cloud_storage_can_be_copied(address: str) -> None:
    for shown in (text(f"it is in {address}, by now"), code(f'"{address}"')):
        assert address in Page(shown).shown
    other = "https://www.acme.example/0123456"
    assert "\u200b" in Page(text(f"{address} {other}")).shown.partition("https")[2]
    assert_inert(Page(text(f"{address}@acme {address}#1 {address} {other}")))


def test_code_can_be_copied() -> None:
    for said in ("jobs/a-b.c/d_e.yaml:3", f"census_{BASE[:16]}", "/spec/x/0/y", BASE):
        assert "\u200b" not in Page(code(said)).shown


# The content, and its order


def test_without_changes_it_is_one_line() -> None:
    same = [changed(str(number), Edit.UNCHANGED, hours_before=1, hours_after=1) for number in range(12)]
    assert in_full(proposal(*same)) == (
        "No changes for <code>prod</code> against <code>0123456789ab</code>: 12 unchanged."
    )
    moved = structs.replace(same[0], notes=(noting("jobs/x.yaml"),))
    assert in_full(proposal(moved, *same)).endswith(": 13 unchanged (1 moved).")
    assert in_full(proposal()).endswith(": no jobs.")
    assert "\n" not in in_full(proposal(*same, base_problems=3), COMMENT_LIMIT)


def test_what_matters_is_said_first() -> None:
    shown = in_full(
        proposal(
            changed("unchanged", Edit.UNCHANGED, hours_before=2, hours_after=2),
            changed("new", Edit.NEW, hours_after=96.5),
            changed("changed", **specs(), code_changed=True, hours_before=12, hours_after=1024),
            changed(
                "removed",
                Edit.REMOVED,
                action=Action.NONE,
                hours_before=8,
                notes=(noting("a live run continues"),),
            ),
            changed("cancelled", Edit.REMOVED, action=Action.CANCEL, reason=CANCELLED),
            changed("blocked", action=Action.BLOCKED, reason=saying("too large")),
            problems=(Problem("jobs/x.yaml", 3, 5, "/spec", "unknown key", "did you\nmean y?"),),
            base_problems=2,
        )
    )
    page = Page(shown).shown
    order = ["1 problem in 1 file", "1 new, 2 changed, 2 removed, 1 unchanged (1 blocked)", "jobs/x.yaml:3:5"]
    order += ["blocked", "cancelled", "removed", "changed", "new"]
    places = [page.replace("\u200b", "").index(said) for said in order[:3]]
    assert places == sorted(places)
    rows = [line for line in shown.splitlines() if line.startswith("| ") and "<code>" in line]
    assert [re.findall("<code>(.*?)</code>", row)[0] for row in rows] == order[3:]
    assert "(**1 blocked**). The base has 2 problems" in shown
    assert "count as new. Jobs of invalid manifests are not counted." in shown
    assert "The base has 2 problems: the jobs of its invalid manifests count as new." in shown
    assert "did you mean y" in shown
    assert "| 1,024 |" in shown
    assert "| **blocked** | <code>blocked</code> | too large |" in shown


def test_details_show_the_diff_of_the_spec_and_the_files_of_a_changed_job() -> None:
    files = tuple(
        FileChange(f"trainer/{name}", *counts)
        for name, *counts in (("task.py", 12, 3), ("x.bin", None, None), ("run.sh", 0, 0))
    )
    note = Note(NoteCode.CANCELLED_IF_LIVE)
    shown = in_full(proposal(changed("census", **specs(), code_changed=True, notes=(note,), files=files)))
    assert "<details open><summary><code>census</code> · CustomJob · run <code>census_0123" in shown
    assert (
        """
- if its run is still live, it is cancelled

```diff
- replicaCount: 1
+ replicaCount: 2
+ machine: n1
```

- <code>trainer/task.py</code> +12 -3
- <code>trainer/x.bin</code> binary
- <code>trainer/run.sh</code> mode

</details>
"""
        in shown
    )
    assert shown.count("if its run is still live") == 1


def test_details_fold_the_whole_spec_of_a_new_job() -> None:
    shown = in_full(proposal(changed("new", Edit.NEW, **specs(AFTER, AFTER))))
    assert "<details><summary><code>new</code>" in shown
    assert "```yaml\nreplicaCount: 2\nmachine: n1\n```" in shown


def test_table_has_no_empty_column_and_says_nothing_twice() -> None:
    new = changed("new", Edit.NEW, **specs(AFTER, AFTER))
    removed = changed("gone", Edit.REMOVED, action=Action.CANCEL, reason=CANCELLED)
    assert "| | job | file |\n|---|---|---|\n| new | <code>new</code> | <code>" in in_full(proposal(new))
    shown = Page(
        in_full(proposal(new, structs.replace(removed, notes=(Note(NoteCode.CANCELLED_IF_LIVE),))))
    ).shown
    assert "onDelete: cancel; if its run is still live, it is cancelled" in shown.replace("\u200b", "")
    assert "accelerator-hours" not in shown
    notes = (noting("a note of all"), noting("another note"))
    both = [changed(name, **specs(), notes=notes[: 1 + (name == "a")]) for name in "ab"]
    shown = in_full(proposal(*both))
    assert shown.count("a note of all") == shown.count("another note") == 1
    assert "For each changed job: moved from a note of all." in Page(shown).shown
    assert plan_text(proposal(*both)).count("a note of all") == 1


def test_terminal_calls_a_removed_job_removed() -> None:
    gone = changed("gone", Edit.REMOVED, action=Action.NONE, notes=(noting("its run continues"),))
    lines = plan_text(proposal(gone)).splitlines()
    assert lines[2].startswith(f"  - removed {gone.job_name}  ")
    assert lines[3].strip() == "moved from its run continues"


def test_rows_link_their_file_at_the_commit_and_the_plan_its_run() -> None:
    links = Links("https://github.com/acme/models/blob", "b" * 40, "ml/", "https://github.com/acme/models/r")
    odd = structs.replace(changed("odd"), path='jobs/"a) b#1.yaml')
    shown = plan_markdown(proposal(odd, changed("gone", Edit.REMOVED, line=0)), None, links)
    hrefs = re.findall(r'<a href="(.*?)">', shown)
    assert hrefs == [
        f"https://github.com/acme/models/blob/{BASE}/ml/jobs/gone.yaml",
        f"https://github.com/acme/models/blob/{'b' * 40}/ml/jobs/%22a%29%20b%231.yaml#L3",
        links.run,
    ]
    asked = Plan(GOOGLE, (structs.replace(changed(), edit=None),), (), None)
    assert "/ml/jobs/census.yaml#L3" in plan_markdown(asked, None, links)
    assert "Workflow run" in plan_markdown(asked, None, links)


def test_limits_that_apply_would_refuse_are_said_at_the_top() -> None:
    refused = structs.replace(proposal(changed()), refusals=("the plan has 12 submissions",))
    assert in_full(refused).split("\n\n")[1] == (
        "**Apply would refuse this plan:** the plan has 12 submissions."
    )
    assert "Apply would refuse this plan: the plan has 12 submissions." in plan_text(refused)


def test_commands_in_a_sentence_are_code_and_other_backticks_are_text() -> None:
    refusal = "apply some of the jobs: `reconciler apply PATH`; `rm -rf`"
    page = Page(in_full(structs.replace(proposal(changed()), refusals=(refusal,))))
    assert ("p code", "reconciler apply PATH") in page.texts
    assert "; `rm -rf`." in page.shown


def test_jobs_with_the_same_change_are_one_row_with_a_folded_list() -> None:
    """39 jobs share a trainer; other changes come before them, the largest first, and are open."""
    files = (FileChange("trainer/task.py", 1, 1),)
    shared = [changed(f"job-{n:02}", code_changed=True, files=files, hours_after=2) for n in range(39)]
    large = changed("large", **specs({"a": 1, "b": 2, "c": 3}, {"a": 2, "b": 3, "c": 4}))
    small = changed("small", **specs({"a": 1}, {"a": 2}))
    new = changed("new", Edit.NEW, **specs(AFTER, AFTER))
    links = Links("https://github.com/acme/models/blob", "b" * 40)
    shown = plan_markdown(proposal(*shared, small, large, new), COMMENT_LIMIT, links)
    rows = [line for line in shown.splitlines() if line.startswith(("| changed", "| new"))]
    assert [re.findall("<code>(.*?)</code>", row)[0] for row in rows] == ["large", "small", "new", "job-00"]
    names = [f"job-{n:02}" for n in range(39)]
    assert re.findall("<code>(.*?)</code>", rows[-1]) == names
    assert "| <details><summary>39 jobs</summary><a href=" in rows[-1]
    assert rows[-1].count("</a>") == 39
    assert rows[-1].endswith("</details> | 78 | |")
    details = re.findall("<details(.*?)><summary>(.*?)</summary>", shown)[1:]
    assert [(is_open.strip(), re.findall("<code>(.*?)</code>", head)[0]) for is_open, head in details] == [
        ("open", "large"),
        ("open", "small"),
        ("", "new"),
        ("", "job-00"),
    ]
    assert details[-1][1] == "<code>job-00</code> and 38 more jobs with the same change · CustomJob"
    assert shown.count("<code>trainer/task.py</code> +1 -1") == 1
    assert_inert(Page(shown))


@pytest.mark.parametrize(
    "other",
    [
        {"files": (FileChange("trainer/task.py", 1, 2),)},
        specs({"replicaCount": "1"}, {"replicaCount": "3", "machine": "n1"}),
        {"notes": (noting("jobs/x.yaml"),)},
        {"action": Action.BLOCKED},
        {"reason": saying("2 fields changed")},
        {"edit": Edit.REMOVED},
    ],
)
def test_other_changes_are_rows_of_their_own(other: dict[str, Any]) -> None:
    files = (FileChange("trainer/task.py", 1, 1),)
    one = changed("one", **specs(), files=files)
    assert "2 jobs" in in_full(proposal(one, changed("two", **specs(), files=files)))
    assert "2 jobs" not in in_full(proposal(one, changed("two", **{**specs(), "files": files, **other})))
    unknown = [changed(name, reason=saying("rerun changed")) for name in ("one", "two")]
    assert "2 jobs" not in in_full(proposal(*unknown))


def test_the_same_fields_among_other_lines_are_shown_without_these() -> None:
    jobs = [changed(name, **specs({"a": 1, "b": name}, {"a": 2, "b": name})) for name in ("one", "two")]
    assert "```diff\n  /a\n- 1\n+ 2\n```" in in_full(proposal(*jobs))


@pytest.mark.slow
def test_a_list_of_names_takes_a_part_of_the_document_alone() -> None:
    jobs = [changed(f"job-{n:04}", **specs()) for n in range(2000)]
    shown = in_full(proposal(*jobs), COMMENT_LIMIT)
    assert len(shown.encode()) < COMMENT_LIMIT
    assert "<summary>2000 jobs</summary>" in shown
    listed = shown.count("<code>job-") - 1
    assert f"… and {2000 - listed:,} more</details>" in shown
    assert listed > 400
    assert in_full(proposal(*jobs)).count("<code>job-") == 2001


def cost(**more: Any) -> str:
    given = structs.replace(proposal(changed()), cost=Cost(**{"submissions": 3, **more}))
    text_lines = "\n".join(plan_text(given).splitlines())
    shown = Page(in_full(given)).shown.replace("\u200b", "")
    for sentence in filter(None, re.findall("(Merging .*|Without .*|On an .*)", text_lines)):
        assert sentence in shown
    return text_lines


def test_costs_are_those_that_the_limit_counts() -> None:
    t4, a100 = "NVIDIA_TESLA_T4", "NVIDIA_A100_80GB"
    assert "Merging submits 3 jobs, at most 24 accelerator-hours (A100 80GB, T4).\n" in cost(
        hours=24.0, accelerators=(a100, t4)
    )
    assert "Merging submits 3 jobs.\n" in cost()
    assert "Merging submits no job.\n" in cost(submissions=0)
    assert "at most 1,344.1 accelerator-hours (T4)" in cost(hours=1344.01, accelerators=(t4,))
    shown = cost(hours=2.4000000000000004, accelerators=(t4,), untimed=("a",), unknown=tuple("bcdefgh"))
    assert "at most 2.4 accelerator-hours" in shown
    assert "Without a time limit, counted with the service's 168 hours: a.\n" in shown
    assert "On an unknown machine type, counted without accelerators: b, c, d, e, f, 2 more.\n" in shown


def test_a_comparison_begins_with_the_commit_the_branch_and_the_time() -> None:
    links = Links("https://github.com/acme/models/blob", "b" * 40)
    merge = Merge("c" * 40, "main", "main", datetime(2026, 1, 2, 3, 4, tzinfo=UTC))
    commit = f'<a href="https://github.com/acme/models/commit/{"c" * 40}"><code>cccccccccccc</code></a>'
    same = changed("same", Edit.UNCHANGED)
    for plan in (proposal(changed()), proposal(same)):
        first = plan_markdown(plan, None, links, merge).splitlines()[0]
        assert first == f"{commit} into <code>main</code>, planned 2026-01-02 03:04 UTC."
    other = replace(merge, base="release", applied="main")
    first = plan_markdown(proposal(changed()), None, links, other).splitlines()[0]
    assert first.endswith(
        "**Only <code>main</code> is applied:** a merge into <code>release</code> starts and cancels no job."
    )
    assert replace(merge, applied="").is_applied


@given(untrusted, untrusted)
def test_names_of_branches_are_inert(base: str, applied: str) -> None:
    merge = Merge("c" * 40, base or "x", applied, datetime(2026, 1, 2, tzinfo=UTC))
    assert_inert(Page(plan_markdown(proposal(changed()), None, Links(), merge)))


def test_a_change_of_no_job_and_no_setting_is_known_as_one() -> None:
    same = changed("same", Edit.UNCHANGED)
    warning = Problem("jobs/a.yaml", 3, 5, "/spec", "n1-x is not known", "", WarningKind.MACHINE_TYPE)
    assert changes_nothing(proposal(same, warnings=(warning,), base_problems=1))
    for plan in (
        proposal(changed()),
        proposal(structs.replace(same, notes=(noting("jobs/x.yaml"),))),
        proposal(problems=(structs.replace(warning, kind=""),)),
        proposal(settings=(FieldChange("/source", "a", "b"),)),
        Plan(GOOGLE, (), (), None),
    ):
        assert not changes_nothing(plan)


def test_settings_are_told_before_all_else() -> None:
    fields = (
        FieldChange("/environments/prod/project", "acme-ml", "acme-other"),
        FieldChange("/environments/prod/location", "us-east1", "us-central1"),
        FieldChange("/limits/submissions", None, "no limit"),
        FieldChange("/images/x/python", "3.11", "3.12"),
    )
    alone = differing(proposal(), settings=fields[3:])
    assert "**Settings change:** 1 in <code>reconciler.yaml</code>.\n" in in_full(alone)
    assert not in_full(alone).startswith("No changes")
    assert "What that means" in in_full(differing(proposal(), notes=("What that means",)))
    shown = in_full(
        differing(
            proposal(changed(), problems=(Problem("jobs/x.yaml", 3, 5, "", "wrong"),)),
            settings=fields,
            notes=("what that means",),
        )
    )
    assert (
        "**Settings change:** 4 in <code>reconciler.yaml</code>; affected: where jobs run, the limits "
        "of each apply.\n" in shown
    )
    page = Page(shown).shown
    order = ["Settings change", "what that means", "1 problem", "1 changed", "decides"]
    order += ["/environments/prod/project", "jobs/x.yaml:3:5", "census"]
    assert [page.index(said) for said in order] == sorted(page.index(said) for said in order)
    rows = [row for row in shown.splitlines() if row.startswith("| <code>&#47;")]
    assert [Page(f"{row}").shown.strip() for row in rows] == [
        '| /environments/prod/project | "acme-ml" | "acme-other" | where jobs run |',
        '| /environments/prod/location | "us-east1" | "us-central1" | where jobs run |',
        '| /limits/submissions | nothing | "no limit" | the limits of each apply |',
        '| /images/x/python | "3.11" | "3.12" | |',
    ]


def test_of_invalid_settings_no_jobs_are_counted() -> None:
    broken = differing(proposal(problems=(Problem("reconciler.yaml", 1, 1, "", "wrong"),)), notes=("why",))
    for shown in (in_full(broken), plan_text(broken)):
        assert "why" in shown
        assert "no jobs" not in shown
        assert "unchanged" not in shown


def test_settings_in_a_terminal() -> None:
    images = tuple(FieldChange(f"/images/{n}/python", "3.11", "3.12") for n in range(60))
    fields = (FieldChange("/source", "a\x1b[2J", "b"), *images)
    shown = plan_text(differing(proposal(changed()), settings=fields, notes=("what\nthat means",)))
    lines = shown.splitlines()
    assert lines[1:5] == [
        "",
        "Settings change, in reconciler.yaml:",
        '  ! /source: "a\\u001b[2J" → "b"  (which runs belong to this repository)',
        '    /images/0/python: "3.11" → "3.12"',
    ]
    assert lines[53:57] == ["    … and 11 more", "", "what\\nthat means", ""]
    assert_inert_in_a_log(shown)
    assert "no job differs" not in plan_text(differing(proposal(), settings=fields[:1]))


# Limits


@pytest.mark.slow
def test_no_number_of_jobs_and_problems_hides_the_settings() -> None:
    fields = (FieldChange("/source", "a", "b" * 1000), FieldChange("/github/repository", "a/b", "c/d"))
    problems = tuple(Problem(f"jobs/{'x' * 400}{n}.yaml", 1, 1, "", "y" * 500) for n in range(500))
    shown = in_full(differing(many(), problems=problems, settings=fields), COMMENT_LIMIT)
    assert len(shown.encode()) < COMMENT_LIMIT
    assert "affected: which runs belong to this repository, where results are posted." in shown
    assert shown.count("| <code>&#47;source</code>") == shown.count("| <code>&#47;github/repository") == 1
    much = tuple(FieldChange(f"/images/{'é' * 100}{n}/python", "@" * 300, "#" * 300) for n in range(2000))
    shown = in_full(differing(many(), problems=problems, settings=fields + much), COMMENT_LIMIT)
    assert len(shown.encode()) < COMMENT_LIMIT
    assert shown.count("| <code>&#47;source</code>") == shown.count("| <code>&#47;github/repository") == 1
    assert "**Settings change:** 2,002 in" in shown
    assert "*Not shown of the settings: " in shown
    assert "<code>stop-0</code>" in shown


def many(count: int = 2000, fields: int = 2) -> Plan:
    def parts(number: int) -> dict[str, Any]:
        """Return the parts of a change that no other job has."""
        before, after = ({f"pool{n}": n + more for n in range(fields)} for more in (0, 1))
        return specs(before, {**after, "pool0": number + 1})

    changes = [changed(f"job-{n:04}", **parts(n), hours_before=1, hours_after=2) for n in range(count)]
    news = [changed(f"new-{n:04}", Edit.NEW, hours_after=2) for n in range(10)]
    blocked = [changed(f"stop-{n}", **parts(n), action=Action.BLOCKED) for n in range(3)]
    return proposal(*news, *changes, *blocked, problems=(Problem("jobs/x.yaml", 1, 1, "", "no"),) * 40)


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "least"), [(COMMENT_LIMIT, 100), (SUMMARY_LIMIT, 2000)])
def test_of_2000_changed_jobs_what_matters_stays(limit: int, least: int) -> None:
    shown = in_full(many(fields=20), limit)
    assert limit * 0.9 < len(shown.encode()) < limit
    assert "**40 problems in 1 file.**" in shown
    assert "10 new, 2,003 changed (**3 blocked**). Jobs of invalid" in shown
    assert "**The plan is too long to show in full:** the workflow run's" in shown
    assert shown.count("- <code>jobs/x.yaml") == 40, "every problem"
    rows, details = len(re.findall("^\\| [^|]", shown, re.M)), shown.count("</details>")
    assert rows >= least
    assert details > 10
    for number in range(3):
        assert shown.count(f"<code>stop-{number}</code>") == 2, "in the table and among the details"
    left = dict(re.findall(r"\*Not shown of the (table|details): (.*?)\.\*", shown))
    assert left.get("table", "") == (f"{2003 - rows:,} changed, 10 new" if rows < 2013 else "")
    assert left["details"] == f"{2003 - details:,} changed"


def test_what_fits_is_shown_whole_whatever_the_limit() -> None:
    few = many(3)
    assert in_full(few, COMMENT_LIMIT) == in_full(few, SUMMARY_LIMIT) == in_full(few)
    assert "Not shown" not in in_full(few)
    exactly = len(in_full(few).encode()) + 1
    assert in_full(few, exactly) == in_full(few)
    assert "Not shown" in in_full(few, exactly - 1)


@pytest.mark.slow
def test_one_giant_does_not_take_the_place_of_the_others() -> None:
    before, after = ({f"{'k' * 300}{n}": letter * 400 for n in range(60)} for letter in "ab")
    giant = changed("giant", **specs(before, after))
    rest = many(300)
    shown = in_full(structs.replace(rest, changes=(giant, *rest.changes)), 20_000)
    assert "| <code>giant</code> |" in shown
    assert shown.count("<details>") > 3
    names = in_full(proposal(*(changed("\U0001f389" * 100_000 + str(n)) for n in range(50))), 20_000)
    assert names.count("<tr>") or names.count("| changed |") > 1


@pytest.mark.slow
@settings(max_examples=20)
@given(proposals(), st.integers(4_000, 8_000), st.integers(1, 10))
def test_no_limit_is_passed_and_nothing_is_cut_in_two(
    made: Callable[[Callable[[str], str]], Plan], limit: int, times: int
) -> None:
    one = made(str)
    assert one.comparison
    more = differing(one, problems=one.comparison.problems * times)
    shown = in_full(structs.replace(more, changes=one.changes * times), limit)
    assert len(shown.encode()) < limit
    page = Page(shown)
    assert page.shown.rstrip().endswith("shows the actual plan.")
    assert {tag.split()[0] for tag in page.tags} <= OURS
    assert_inert(page)


OURS = {"h3", "p", "strong", "em", "code", "ul", "li", "br", "details", "summary", "pre", "sub"}
OURS |= {"a", "table", "thead", "tbody", "tr", "th", "td"}


@pytest.mark.slow
def test_a_plan_of_2000_jobs_fits_into_a_summary() -> None:
    proposed = [structs.replace(change, edit=None) for change in many(fields=30).changes]
    drift = tuple(Drift(DriftKind.ORPHANED, f"job_{n}", "job", noting("no manifest")) for n in range(50))
    shown = plan_markdown(Plan(Target("local", "local", "local", "local"), tuple(proposed), drift, None))
    assert len(shown.encode()) < SUMMARY_LIMIT
    assert shown.count("| submit |") == 2010
    assert shown.count("| orphaned |") == 50
    assert "Not shown of the details: " in shown
    assert "`reconciler plan` shows the rest" in shown


def test_long_texts_are_cut() -> None:
    assert cut("x" * 500) == "x" * 500
    assert cut("x" * 501) == "x" * 499 + "…"
    assert len(Page(text("y" * 10_000)).shown.strip()) == 500
