"""The pages: inert for all values, complete, linked without a gap, and small."""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Iterator
from datetime import UTC, timedelta, timezone
from pathlib import PurePosixPath
from posixpath import normpath
from xml.etree.ElementTree import Element

import html5lib
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler.base.sanitize import one_line
from reconciler.model.claim import ClaimState
from reconciler.model.details import Goal, Study, Trial, Workers
from reconciler.model.job import LogEntry, State
from reconciler.pages.charts import axis_of, figures
from reconciler.pages.rendering import MOST_LABELS, Pages
from reconciler.pages.template import PageContent, address, safe_link
from reconciler.planning.outcome import Condition
from tests.support.inert import ACTED_ON, texts
from tests.support.sites import PAYLOADS, details_of, hostile_site, large_site, row_of, site_of, study_of

ELEMENTS = re.findall(
    r"\w+",
    "a b body br caption code dd details div dl dt figcaption figure footer h1 h2 h3 head header html li "
    "main meta nav ol p path pre rect section span strong style summary svg table tbody td text th thead "
    "time title tr ul",
)


def parsed(page: str) -> Element:
    """Return the document as a browser builds it; fail the test on an error of its grammar."""
    parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
    document: Element = parser.parse(page)
    return document


def elements(document: Element) -> Iterator[tuple[str, Element]]:
    for element in document.iter():
        if isinstance(element.tag, str):
            yield element.tag.rpartition("}")[2], element


def pages_of(pages: Pages) -> dict[str, str]:
    made = {path: pages.page(path) for path in pages.paths()}
    assert None not in made.values()
    return {path: text for path, text in made.items() if text}


def links(path: str, page: str) -> Iterator[str]:
    """Return the paths of the pages that a page links to."""
    for target in re.findall(r'href="([^"#]+)"', page):
        if not target.startswith("https://"):
            yield normpath(str(PurePosixPath(path).parent / target))


def words(element: Element) -> str:
    return "".join(element.itertext())


@pytest.mark.slow
@settings(max_examples=40)
@given(text=texts, number=st.floats())
@example(text=PAYLOADS[0], number=float("inf"))
@example(text=PAYLOADS[1], number=1.7e308)
@example(text=PAYLOADS[2], number=5e-324)
@example(text=PAYLOADS[3], number=-0.0)
@example(text=PAYLOADS[4], number=0.0)
@example(text=PAYLOADS[5], number=1.0)
@example(text=PAYLOADS[6], number=1.0)
@example(text=PAYLOADS[7], number=1.0)
@example(text=PAYLOADS[8], number=1.0)
@example(text=PAYLOADS[9], number=1.0)
@example(text=PAYLOADS[10], number=1.0)
@example(text=PAYLOADS[11], number=1.0)
@example(text=PAYLOADS[12], number=1.0)
@example(text=PAYLOADS[13], number=1.0)
def test_hostile_text_stays_text(text: str, number: float) -> None:
    made = pages_of(Pages(hostile_site(text, number)))
    for path, page in made.items():
        document = parsed(page)
        for tag, element in elements(document):
            assert tag in ELEMENTS, path
            for name, value in element.attrib.items():
                assert not name.startswith("on"), path
                assert name not in ("style", "src", "srcdoc", "action"), path
                if name == "href":
                    assert (
                        value.startswith(("#", "https://"))
                        or normpath(str(PurePosixPath(path).parent / value)) in made
                    )
        (policy,) = [each for _, each in elements(document) if each.get("http-equiv")]
        assert policy.get("content", "").startswith("default-src 'none'; style-src 'sha256-")
        assert not any(unicodedata.category(char) in ACTED_ON for char in page.replace("\n", ""))
        title = next(each for tag, each in elements(document) if tag == "title")
        assert words(title).endswith(f" · {one_line(text)}")


@given(name=texts, key=texts, other=texts)
@example(name="CON", key="", other="con")
@example(name="A", key="", other="a")
@example(name="../x", key="", other="..%2fx")
@example(name="job_0123456789abcdef", key="", other="JOB_0123456789abcdef")
def test_addresses_stay_in_their_folder_and_are_distinct_on_any_file_system(
    name: str, key: str, other: str
) -> None:
    made = address("jobs", name, key)
    assert re.fullmatch(r"jobs/[a-z0-9_.-]{1,140}\.html", made)
    assert ".." not in made
    assert not made.startswith("jobs/.html")
    if other != name:
        assert address("jobs", other, key).lower() != made.lower()
    if key:
        assert address("jobs", name) != made


@pytest.mark.parametrize("url", ["javascript:alert(1)", "http://x", "//x", "data:text/html,x", " https://x"])
def test_only_addresses_of_the_web_become_links(url: str) -> None:
    assert safe_link(url) == ""


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1, 100, 101, 450])
def test_every_link_leads_to_a_page_and_every_page_has_a_link(number: int) -> None:
    made = pages_of(Pages(large_site(number, 30)))
    linked = {link for path, page in made.items() for link in links(path, page)}
    assert linked <= made.keys()
    assert made.keys() - linked == set()
    assert len(made) == len({path.lower() for path in made})


def test_runs_with_one_name_have_pages_of_their_own() -> None:
    rows = [row_of(1), row_of(1, resource="other")]
    paths = [path for path in Pages(site_of(rows)).paths() if path.startswith("jobs/")]
    assert len(set(paths)) == 2


@pytest.mark.slow
def test_every_condition_has_a_sign_and_its_word() -> None:
    rows = [row_of(n, state) for n, state in enumerate(State)]
    rows += [row_of(20 + n, None, claim=claim) for n, claim in enumerate([*ClaimState, "none"])]
    rows += [row_of(40, None, claim=ClaimState.HELD, given_up=True), row_of(41, unreadable=True)]
    document = parsed(pages_of(Pages(site_of(rows)))["index.html"])
    states = {words(each) for _, each in elements(document) if each.get("class", "").startswith("state ")}
    found = {condition for condition in Condition if any(condition in state for state in states)}
    assert found == {*Condition} - {Condition.SUSPENDED}
    assert all(len(state) > 2 and not state[0].isalpha() for state in states)


def test_variables_show_their_names_alone_unless_values_are_wanted() -> None:
    row = row_of(1)
    spec = {"workerPoolSpecs": [{"containerSpec": {"env": [{"name": "MODE", "value": "swordfish"}]}}]}
    details = details_of(row, spec=spec, workers=(Workers("a", 1, env=(("MODE", "swordfish"),)),))
    site = replace(site_of([row]), details={(row.job_name, row.resource): details})
    without = "".join(pages_of(Pages(site)).values())
    assert "swordfish" not in without
    assert "MODE" in without
    shown = "".join(pages_of(Pages(replace(site, content=PageContent(env_values=True)))).values())
    assert "MODE=swordfish" in shown


def test_secrets_are_hidden_even_with_values() -> None:
    row = row_of(1)
    spec = {
        "env": [{"name": "API_TOKEN", "value": "x7Kp2mQ9vL4nR8sT"}],
        "args": ["--password=hunter2hunter2"],
    }
    failed = row_of(2, State.FAILED, cause=None, error="GET https://u:sesame99@host failed")
    site = site_of([row, failed], content=PageContent(logs=True, env_values=True))
    site = replace(site, details={**site.details, (row.job_name, row.resource): details_of(row, spec=spec)})
    made = "".join(pages_of(Pages(site)).values())
    assert "x7Kp2mQ9vL4nR8sT" not in made
    assert "hunter2" not in made
    assert "sesame99" not in made


def test_the_log_is_shown_only_on_request() -> None:
    row = row_of(1)
    # All output of a replica to its standard error has the severity ERROR.
    entry = LogEntry(at := "2026-01-02T10:00:00Z", "ERROR", "epoch 3 <done>", replica="workerpool0-0")
    details = details_of(row, log=(entry,))
    site = replace(site_of([row]), details={(row.job_name, row.resource): details})
    assert "epoch 3" not in "".join(pages_of(Pages(site)).values())
    shown = pages_of(Pages(replace(site, content=PageContent(logs=True))))
    assert f"{at[:19]} epoch 3 &lt;done&gt;" in "".join(shown.values())


def test_times_are_in_the_chosen_zone_with_utc_in_the_element() -> None:
    content = PageContent(zone=timezone(timedelta(hours=2)), zone_name="Somewhere")
    made = pages_of(Pages(site_of([row_of(1)], content=content)))["index.html"]
    assert (
        '<time datetime="2026-01-02T11:50:00Z" title="2026-01-02 13:50:00 Somewhere">2026-01-02 13:50</time>'
        in made
    )
    assert 'Times are in <span class="zone">Somewhere</span>' in made


MOMENTS = st.datetimes(timezones=st.just(UTC)).map(lambda time: time.isoformat()) | texts | st.just("")


@pytest.mark.slow
@settings(max_examples=100)
@given(
    times=st.lists(st.tuples(MOMENTS, MOMENTS, MOMENTS, MOMENTS), min_size=1, max_size=4),
    hours=st.integers(-23, 23),
)
@example(times=[("0001-01-01T00:00:00Z", "", "9999-12-31T23:59:59Z", "")], hours=-12)
@example(times=[("9999-12-31T23:59:59Z", "", "0001-01-01T00:00:00Z", "")], hours=12)
def test_bars_of_any_times_stay_within_the_timeline(
    times: list[tuple[str, str, str, str]], hours: int
) -> None:
    rows = [
        row_of(number, State.FAILED, create_time=created, start_time=started, end_time=ended)
        for number, (created, started, ended, _) in enumerate(times)
    ]
    details = {
        (row.job_name, row.resource): details_of(row, prepare_time=prepared)
        for row, (_, _, _, prepared) in zip(rows, times, strict=True)
    }
    content = PageContent(zone=timezone(timedelta(hours=hours)), zone_name="Z")
    made = pages_of(Pages(site_of(rows, details=details, content=content)))
    drawn = re.findall(r'<rect class="\w+" x="([^"]+)%" y="\d+" width="([^"]+)%"', "".join(made.values()))
    for x, width in drawn:
        assert 0 <= float(x) <= 100
        assert 0 <= float(width) <= 100.01 - float(x)


def test_a_commit_leads_to_its_page_on_github() -> None:
    row = row_of(1)
    made = pages_of(Pages(site_of([row], repository="https://github.com/acme/models")))
    assert f'href="https://github.com/acme/models/commit/{row.commit}"' in made[f"commits/{row.commit}.html"]
    without = pages_of(Pages(site_of([row], repository="http://github.test/acme/models")))
    assert "github" not in without[f"commits/{row.commit}.html"]


@pytest.mark.slow
def test_long_lists_have_links_to_pages_in_between() -> None:
    pages = Pages(large_site(10_000, 0))
    page = pages.page("runs.p50.html")
    assert page
    numbers = [int(number) for number in re.findall(r'aria-label="Page (\d+)"', page)]
    assert numbers == [1, 21, 41, 48, 49, 50, 51, 52, 60, 80, 100]


def test_best_so_far_is_a_line_of_steps() -> None:
    values = [0.1, 0.5, 0.3, 0.9]
    trials = tuple(Trial(str(n), "SUCCEEDED", {"x": n}, {"m": v}) for n, v in enumerate(values, 1))
    drawn = str(next(figures(Study((Goal("m", is_maximum=True),), trials))))
    (line,) = re.findall(r'class="line top c4" d="(M0\.0[^"]+)"', drawn)
    # Flat until a better trial, then straight up.
    assert line == "M0.0 1000.0H333.3V500.0H1000.0V0.0H1000.0"


def test_a_parameter_with_a_log_scale_has_a_log_axis() -> None:
    axis = axis_of([1e-5, 1e-1], is_log=True)
    assert axis is not None
    assert axis.place(1e-3) == pytest.approx(0.5)
    assert [text for _, text in axis.ticks()] == ["1e-05", "0.0001", "0.001", "0.01", "0.1"]
    linear = axis_of([1e-5, 1e-1])
    assert linear is not None
    assert linear.place(1e-3) == pytest.approx(0.0099, rel=0.01)
    drawn = "".join(map(str, figures(study_of(20))))
    assert "learning_rate (logarithmic)" in drawn
    assert "depth (logarithmic)" not in drawn


@given(
    values=st.lists(st.floats(allow_nan=True) | st.integers(-(10**30), 10**30), min_size=1),
    is_log=st.booleans(),
)
@example(values=[1.7e308, -1.7e308], is_log=False)
@example(values=[5e-324, 1e-323], is_log=True)
def test_axes_keep_every_value_and_mark_within_their_bounds(values: list[float], is_log: bool) -> None:
    axis = axis_of(values, is_log=is_log)
    if axis is not None:
        places = [axis.place(value) for value in values] + [place for place, _ in axis.ticks()]
        assert all(place is None or 0 <= place <= 1 for place in places)
        assert len(axis.ticks()) <= 20


def test_the_best_trial_is_marked_in_the_table() -> None:
    row, study = row_of(1), study_of(30)
    site = site_of([row])
    site = replace(site, details={(row.job_name, row.resource): details_of(row, study=study)})
    (page,) = [page for path, page in pages_of(Pages(site)).items() if path.startswith("jobs/")]
    (marked,) = [each for tag, each in elements(parsed(page)) if tag == "tr" and each.get("class") == "best"]
    assert study.best
    assert words(marked).startswith(f"{study.best.id} ★ best")


def test_more_labels_than_pages_are_listed_without_a_link() -> None:
    rows = [row_of(n, run_labels={"id": str(n)}) for n in range(MOST_LABELS + 5)]
    pages = Pages(site_of(rows, 0))
    assert len([path for path in pages.paths() if path.startswith("labels/")]) == MOST_LABELS
    index = pages.page("labels.html")
    assert index
    assert "5 others are only listed" in index


@pytest.mark.parametrize(
    "path", ["", "x.html", "index.p0.html", "index.p9.html", "index.p٣.html", "../index.html"]
)
def test_an_unknown_path_has_no_page(path: str) -> None:
    assert Pages(large_site(150, 1)).page(path) is None


@pytest.mark.slow
def test_pages_of_ten_thousand_jobs_stay_small() -> None:
    pages = Pages(large_site(10_000))
    overview = pages.page("index.html")
    assert overview
    assert len(overview) < 1_000_000
    sizes = [len(pages.page(path) or "") for path in pages.paths()]
    assert sum(sizes) < 200_000_000
    assert max(sizes) < 1_000_000


@pytest.mark.slow
def test_a_thousand_trials_draw_in_a_page_of_moderate_size() -> None:
    row = row_of(1)
    site = replace(
        site_of([row]), details={(row.job_name, row.resource): details_of(row, study=study_of(1000))}
    )
    pages = Pages(site)
    (path,) = [path for path in pages.paths() if path.startswith("jobs/")]
    began = time.process_time()
    page = pages.page(path)
    print(f"{time.process_time() - began:.2f} s")
    assert page
    assert len(page) < 2_000_000
