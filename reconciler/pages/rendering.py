"""Pages of a site by path: overview, timeline, runs, commits, states, labels and jobs.

Lists have pages of 100. A page is rendered only when it is asked for, so that a listener can serve one page
of many.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import quote

from markupsafe import Markup
from msgspec import Struct
from msgspec.structs import replace

from reconciler import __version__
from reconciler.base.diagnostics import counted
from reconciler.base.sanitize import one_line
from reconciler.manifests.secrets import without_secrets
from reconciler.model.claim import time_of
from reconciler.model.job import PREFIX
from reconciler.output.status_text import CONDITION_SIGNS, state_text
from reconciler.output.terminal import duration
from reconciler.output.text import short_error, summary_line, target_text
from reconciler.output.wording.cause import cause_headline, cause_text
from reconciler.output.wording.notes import note_text
from reconciler.output.wording.plan import row_error
from reconciler.pages.job import job_values, span_of, span_words
from reconciler.pages.site import CommitInfo, JobReader, RecordedJobs, Site, row_key
from reconciler.pages.template import (
    PAGE,
    PageClock,
    address,
    numbered,
    rendered,
    safe_link,
)
from reconciler.pages.timeline import bar, time_axis
from reconciler.planning.outcome import Condition, JobStatus
from reconciler.planning.status_rows import by_attention, is_shown, newest_first

MOST_LABELS = 1000
"""Values of labels with a page of their own."""
_MOST_URGENT = 20
_MOST_COMMITS = 8
_MOST_DRIFT = 20
_SHORT_SHA = 12
_CURRENT = ("state", "service_state", "start_time", "end_time", "cause", "error")
_JUMPS = 5
_MENU = (
    ("Overview", "index.html"),
    ("Timeline", "timeline.html"),
    ("Runs", "runs.html"),
    ("Commits", "commits.html"),
    ("Labels", "labels.html"),
)
_LEGEND = (
    ("queued", "queued"),
    ("preparing", "preparing"),
    ("running", "running"),
    ("ended", "succeeded"),
    ("broken", "failed"),
    ("stopped", "cancelled"),
)
_TONES: Mapping[Condition, str] = {
    Condition.FAILED: "bad",
    Condition.UNREADABLE: "bad",
    Condition.HELD: "bad",
    Condition.REFUSED: "bad",
    Condition.UNKNOWN: "warn",
    Condition.DELETED: "bad",
    Condition.GIVEN_UP: "mute",
    Condition.CANCELLED: "warn",
    Condition.RUNNING: "live",
    Condition.PREPARING: "live",
    Condition.QUEUED: "live",
    Condition.CANCELLING: "warn",
    Condition.NOT_SUBMITTED: "mute",
    Condition.SUCCEEDED: "good",
    Condition.SUSPENDED: "mute",
}
_URGENT = (
    Condition.FAILED,
    Condition.UNREADABLE,
    Condition.HELD,
    Condition.REFUSED,
    Condition.UNKNOWN,
    Condition.DELETED,
)

View = dict[str, Any]


class _List(Struct, frozen=True):
    """Pages of a list: the template, the heading, all items, and the values of one page of them."""

    template: str
    heading: str
    items: Sequence[Any]
    values: Callable[[Sequence[Any], int], View]

    @property
    def last(self) -> int:
        """The number of pages."""
        return max(1, -(-len(self.items) // PAGE))


class Pages:
    """Pages of a site.

    Args:
        site: Its values.
        jobs: Reads the details of jobs; None for those in the site's values.
    """

    def __init__(self, site: Site, jobs: JobReader | None = None) -> None:
        self._site = site
        self._reader = jobs or RecordedJobs(site.details)
        self._clock = PageClock(site.made, site.content.zone, site.content.zone_name)
        self._jobs = {
            path: row for row, path in _addresses([row for row in site.rows if self._reader.has_page(row)])
        }
        self._paths = {row_key(row): path for path, row in self._jobs.items()}
        self._shown = by_attention(row for row in site.rows if is_shown(row, whole=site.whole))
        self._runs = newest_first(site.rows)

    def paths(self) -> Iterator[str]:
        """Yield the path of every page."""
        for path, pages in self._lists.items():
            yield from (numbered(path, number) for number in range(1, pages.last + 1))
        yield "labels.html"
        yield from self._jobs

    def page(self, path: str, script: str = "", term: str = "") -> str | None:
        """Return a page; None for an unknown path.

        Args:
            path: The path below the site's root.
            script: The name of the script of live pages; "" for none.
            term: Part of the names of the jobs on the overview; "" for all jobs.
        """
        if path in self._jobs:
            return self._job_page(path, script)
        if path == "labels.html":
            return self._rendered("labels.html", path, "Labels", self._label_index(), script)
        first, number = _parts(path)
        pages = self._lists.get(first)
        if pages is None or not 1 <= number <= pages.last:
            return None
        if first == "index.html" and term:
            pages = replace(
                pages, items=[row for row in pages.items if term.lower() in row.base_name.lower()]
            )
        query = f"?q={quote(term, errors='replace')}" if term else ""
        items = pages.items[(number - 1) * PAGE : number * PAGE]
        values = {
            **pages.values(items, number),
            "pages": _pager(first, number, pages.last, query),
            "term": term,
        }
        if first == "index.html":
            order = f"most urgent first; page {number}" if number > 1 else "most urgent first"
            values["caption"] = f"{counted(len(pages.items), 'job')}, {order}"
        return self._rendered(pages.template, path, pages.heading, values, script, menu_path=first)

    @cached_property
    def _lists(self) -> dict[str, _List]:
        """All lists by the path of their first page."""
        times = [row for row in self._runs if time_of(row.create_time)]
        lists = {
            "index.html": _List("overview.html", "Overview", self._shown, self._overview),
            "timeline.html": _List("timeline.html", "Timeline", times, self._timeline),
            "runs.html": _List("list.html", "All runs", self._runs, self._list_of("runs")),
            "commits.html": _List("commits.html", "Commits", [*self._commits], self._commit_list),
        }
        for condition, rows in _grouped(self._shown, lambda row: [row.condition]).items():
            heading = f"Jobs: {condition}"
            lists[_state_path(condition)] = _List("list.html", heading, rows, self._list_of("jobs"))
        for (name, value), rows in self._labels.items():
            heading = f"Label {name}={value}"
            lists[address("labels", name, f"={value}")] = _List(
                "list.html", heading, rows, self._list_of("jobs")
            )
        for sha, rows in self._commits.items():
            heading, values = f"Commit {sha[:_SHORT_SHA]}", self._list_of("runs", sha)
            lists[address("commits", sha)] = _List("list.html", heading, rows, values)
        return lists

    @cached_property
    def _commits(self) -> dict[str, list[JobStatus]]:
        """All rows of each commit, the commit with the newest run first."""
        return _grouped(self._runs, lambda row: [row.commit] if row.commit in self._site.commits else [])

    @cached_property
    def _labels(self) -> dict[tuple[str, str], list[JobStatus]]:
        """The jobs of each label with a page, the most frequent values first."""
        by_label = sorted(self._all_labels.items(), key=lambda pair: (-len(pair[1]), pair[0]))
        return dict(by_label[:MOST_LABELS])

    @cached_property
    def _all_labels(self) -> dict[tuple[str, str], list[JobStatus]]:
        def own(row: JobStatus) -> list[tuple[str, str]]:
            return [label for label in row.labels.items() if not label[0].startswith((PREFIX, "goog-"))]

        return _grouped(self._shown, own)

    def _rendered(
        self, template: str, path: str, heading: str, values: View, script: str, menu_path: str = ""
    ) -> str:
        common = {
            "site": self._site,
            "run": safe_link(self._site.run),
            "clock": self._clock,
            "menu": _MENU,
            "here": menu_path or path,
            "heading": heading,
            "target": target_text(self._site.target),
            "version": __version__,
        }
        return rendered(template, path.count("/"), {**common, **values}, script)

    def _rows(self, rows: Sequence[JobStatus], *, by_run: bool = False, detailed: bool = False) -> list[View]:
        completed = self._reader.completed(rows)
        return [self._row(row, by_run=by_run, detailed=detailed) for row in completed]

    def _row(self, row: JobStatus, *, by_run: bool = False, detailed: bool = False) -> View:
        """Return the cells of a row.

        Args:
            by_run: True to show the name of the run, not that of its job.
            detailed: True to show the cause with its remedy.
        """
        started, condition = time_of(row.start_time), row.condition
        ended = time_of(row.end_time) or self._site.made
        words = cause_text if detailed else cause_headline
        cause = words(row.cause) if row.cause else ""
        return {
            "name": row.job_name if by_run or not row.base_name else row.base_name,
            "path": self._paths.get(row_key(row), ""),
            **_state(condition, state_text(row, condition)),
            "created": row.create_time,
            "ran": duration(ended - started) if started else "",
            "commit": row.commit[:_SHORT_SHA],
            "commit_path": address("commits", row.commit) if row.commit in self._site.commits else "",
            "words": without_secrets(cause or short_error(row_error(row)) or row.result),
        }

    def _overview(self, rows: Sequence[JobStatus], number: int) -> View:
        values: View = {"rows": self._rows(rows)}
        return values if number > 1 else {**values, **self._summary()}

    def _summary(self) -> View:
        """Return the values of the overview's first page alone."""
        plan, counts = self._site.plan, Counter(row.condition for row in self._shown)
        urgent = [row for row in self._shown if row.condition in _URGENT]
        drift = [*plan.drift] if plan else []
        names = {row.job_name: path for row in self._site.rows if (path := self._paths.get(row_key(row)))}
        shown = urgent[:_MOST_URGENT]
        return {
            "summary": summary_line(plan) if plan else "",
            "cards": [
                {
                    "count": f"{counts[condition]:,}",
                    "path": _state_path(condition),
                    **_state(condition, condition),
                }
                for condition in Condition
                if counts[condition]
            ],
            "attention": self._rows(shown, detailed=True),
            "attention_note": _first(len(shown), len(urgent), "the numbers above lead to all"),
            "drift": [
                {
                    "kind": finding.kind,
                    "name": finding.job_name,
                    "path": names.get(finding.job_name, ""),
                    "detail": note_text(finding.detail),
                }
                for finding in drift[:_MOST_DRIFT]
            ],
            "drift_note": _first(min(len(drift), _MOST_DRIFT), len(drift), "`reconciler plan` prints all"),
            "commits": self._commit_list([*self._commits][:_MOST_COMMITS], 1)["commits"],
        }

    def _list_of(self, noun: str, sha: str = "") -> Callable[[Sequence[JobStatus], int], View]:
        """Return the function that makes the values of a page of jobs or runs."""

        def values(rows: Sequence[JobStatus], number: int) -> View:
            return {
                "rows": self._rows(rows, by_run=noun == "runs"),
                "caption": f"The {noun} of this page" if number > 1 else f"The {noun}",
                "commit": self._info(sha) if sha else None,
                "commit_url": safe_link(f"{self._site.repository}/commit/{sha}"),
            }

        return values

    def _info(self, sha: str) -> CommitInfo:
        return self._site.commits[sha]

    def _commit_list(self, shas: Sequence[str], number: int) -> View:
        commits = []
        for sha in shas:
            counts, info = Counter(row.condition for row in self._commits[sha]), self._info(sha)
            commits.append(
                {
                    "path": address("commits", sha),
                    "short": sha[:_SHORT_SHA],
                    "time": info.time,
                    "subject": info.subject,
                    "author": info.author,
                    "counts": [
                        {"count": n, **_state(condition, condition)}
                        for condition in Condition
                        if (n := counts[condition])
                    ],
                }
            )
        return {"commits": commits}

    def _label_index(self) -> View:
        by_name: dict[str, list[View]] = defaultdict(list)
        for name, value in sorted(self._all_labels):
            has_page = (name, value) in self._labels
            path = address("labels", name, f"={value}") if has_page else ""
            by_name[name].append({"value": value, "path": path, "count": len(self._all_labels[name, value])})
        left = len(self._all_labels) - len(self._labels)
        omitted = f"The {MOST_LABELS:,} most frequent values have a page; {left:,} others are only listed."
        return {"labels": [*by_name.items()], "omitted": omitted if left else ""}

    def _timeline(self, rows: Sequence[JobStatus], number: int) -> View:
        times = zip(self._reader.completed(rows), self._reader.prepare_times(rows), strict=True)
        spans = [(row, span) for row, time in times if (span := span_of(row, time, self._site.made))]
        if not spans:
            return {"lanes": []}
        first = min(span.created for _, span in spans)
        last = max(span.end for _, span in spans)
        lanes = []
        for row, span in spans:
            words = span_words(span)
            drawn = bar(span, first, last, f"{row.job_name}: {words}")
            lanes.append({"row": self._row(row, by_run=True), "words": words, "bar": drawn})
        shown = f"{self._clock.moment(first)} to {self._clock.moment(last)}"
        return {
            "lanes": lanes,
            "legend": _LEGEND,
            "axis": time_axis(self._clock.local(first), self._clock.local(last)),
            "caption": Markup(f"{counted(len(lanes), 'run')}, the newest first, from {shown}."),  # noqa: S704 - ours
        }

    def _job_page(self, path: str, script: str) -> str | None:
        (row,) = self._reader.completed([self._jobs[path]])
        details = self._reader.details(row)
        if details is None:
            return None
        # The details are newer than the row.
        row = (
            replace(row, **{name: getattr(details, name) for name in _CURRENT}, reason=None)
            if details.create_time
            else row
        )
        commit = self._commit_fact(details.commit)
        span = span_of(details, details.prepare_time, self._site.made)
        of_base = newest_first(self._by_base[row.base_name])
        values = {
            **job_values(details, self._site.content, self._clock, commit),
            "row": self._row(row),
            "bar": bar(span, span.created, span.end, span_words(span)) if span else "",
            "attempts": self._rows(of_base[:PAGE], by_run=True) if len(of_base) > 1 else [],
            "attempts_note": _first(min(PAGE, len(of_base)), len(of_base), "the newest first"),
        }
        return self._rendered("job.html", path, row.base_name or row.job_name, values, script)

    def _commit_fact(self, sha: str) -> Markup:
        """Return a commit as a link with its subject and author; empty without a page of it."""
        info = self._site.commits.get(sha)
        if not sha or info is None:
            return Markup("")
        link = Markup('<a class="mono" href="../{}">{}</a>').format(address("commits", sha), sha[:_SHORT_SHA])
        by = f" by {info.author}" if info.author else ""
        return Markup("{} {}{}").format(link, one_line(info.subject), one_line(by))

    @cached_property
    def _by_base(self) -> dict[str, list[JobStatus]]:
        return _grouped(self._site.rows, lambda row: [row.base_name])


def _addresses(rows: Sequence[JobStatus]) -> Iterator[tuple[JobStatus, str]]:
    """Yield each row with the path of its page; the resource tells several runs with one name apart."""
    times = Counter(row.job_name for row in rows)
    for row in rows:
        yield row, address("jobs", row.job_name, row.resource if times[row.job_name] > 1 else "")


def _grouped(
    rows: Iterable[JobStatus], keys: Callable[[JobStatus], Iterable[Any]]
) -> dict[Any, list[JobStatus]]:
    groups: dict[Any, list[JobStatus]] = {}
    for row in rows:
        for key in keys(row):
            groups.setdefault(key, []).append(row)
    return groups


def _parts(path: str) -> tuple[str, int]:
    """Return the first page of a list and the number of the page."""
    stem, dot, number = path.removesuffix(".html").rpartition(".p")
    is_numbered = dot and number.isascii() and number.isdecimal() and len(number) < 10
    return (f"{stem}.html", int(number)) if is_numbered else (path, 1)


def _pager(first: str, number: int, last: int, query: str) -> View:
    return {
        "number": number,
        "last": last,
        "some": [(page, numbered(first, page) + query) for page in _some(number, last)],
        "before": numbered(first, number - 1) + query if number > 1 else "",
        "after": numbered(first, number + 1) + query if number < last else "",
    }


def _some(number: int, last: int) -> list[int]:
    """Return the numbers of the neighbouring pages, and of a few from the first to the last."""
    even = (round(1 + (last - 1) * part / _JUMPS) for part in range(_JUMPS + 1))
    return sorted({page for page in (*even, *range(number - 2, number + 3)) if 1 <= page <= last})


def _state_path(condition: Condition) -> str:
    return f"states/{condition.replace(' ', '-')}.html"


def _state(condition: Condition, text: str) -> View:
    return {"state": text, "sign": CONDITION_SIGNS[condition], "tone": _TONES[condition]}


def _first(shown: int, total: int, rest: str) -> str:
    return f"{shown} of {total:,}; {rest}" if shown < total else f"{total:,} in all"
