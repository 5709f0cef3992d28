"""Statuses posted to GitHub: their time, their choice, and the message if GitHub refuses them."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from reconciler.base.http import DirectTransport, HttpRequest
from reconciler.model.job import State
from reconciler.reporting.github import statuses
from reconciler.reporting.github.settings import GitHubSettings
from reconciler.reporting.github.statuses import Failed, GitHubReporter, Outdated, Posted
from reconciler.reporting.status import plain_status
from tests.support.github_server import (
    DESCRIPTION,
    READ,
    WRITE,
    Answer,
    GitHubServer,
    error,
    page_of_html,
    primary_limit,
    secondary_limit,
)
from tests.support.raw_server import RawServer, answer, reset, send_then_close
from tests.support.statuses import HASH, SHA, TOKEN, status
from tests.support.tls import server_tls

# The text of a status


# The status that stands


# Posting


@pytest.fixture
def github() -> Iterator[GitHubServer]:
    server = GitHubServer(commits={SHA}, tokens={TOKEN: WRITE, "read-only": READ})
    with server.running():
        yield server
    assert server.violations == []
    assert server.most_at_once <= 1


@pytest.fixture
def waited() -> list[float]:
    return []


@pytest.fixture
def reporter(
    github: GitHubServer, transport: DirectTransport, waited: list[float]
) -> Callable[..., GitHubReporter]:
    def make(**changed: str) -> GitHubReporter:
        settings = GitHubSettings(github.repository, github.url, TOKEN)
        return GitHubReporter(
            transport, replace(settings, **changed), sleep=waited.append, chance=lambda: 0.0
        )

    return make


def shown(github: GitHubServer) -> dict[str, str]:
    """Return state by context, as PyGithub reads it."""
    from github import Auth, Github

    client = Github(
        base_url=github.plain_url,
        auth=Auth.Token("read-only"),
        lazy=True,
        per_page=100,
        retry=None,
        seconds_between_requests=0,
    )
    found: dict[str, str] = {}
    for read in client.get_repo(github.repository).get_commit(SHA).get_statuses():
        found.setdefault(read.context, read.state)
    return found


def test_statuses_are_posted_and_others_can_read_them(
    github: GitHubServer, reporter: Callable[..., GitHubReporter]
) -> None:
    statuses = [
        status(State.SUCCEEDED, url="https://console.cloud.google.com/x"),
        status(State.FAILED, "trees", error="boom 🎉 \x1b[31m" + "x" * 200),
        plain_status("error", "reconciler/prod/blocked-one", "the region isn't the location"),
        plain_status("pending", "reconciler/prod/new", "not submitted yet"),
    ]
    outcomes = reporter().report(SHA, statuses)
    assert outcomes == [Posted(given) for given in sorted(statuses, key=lambda s: s.context)]
    assert shown(github) == {
        "reconciler/prod/census": "success",
        "reconciler/prod/trees": "failure",
        "reconciler/prod/blocked-one": "error",
        "reconciler/prod/new": "pending",
    }
    kept = {given["context"]: given for given in github.statuses[SHA]}
    assert kept["reconciler/prod/census"]["target_url"] == "https://console.cloud.google.com/x"
    assert kept["reconciler/prod/census"]["description"] == f"succeeded · run {HASH}"
    assert kept["reconciler/prod/new"]["target_url"] is None


def test_statuses_without_a_page_link_the_run_that_posts_them_first(
    github: GitHubServer, reporter: Callable[..., GitHubReporter]
) -> None:
    console, runs = "https://console.cloud.google.com/x", "https://github.com/acme/models/actions/runs"
    statuses = [
        status(State.SUCCEEDED, url=console),
        plain_status("success", "reconciler", "1 of 1 succeeded"),
    ]
    reporter(run_url=f"{runs}/1").report(SHA, statuses)
    kept = {given["context"]: given["target_url"] for given in github.statuses[SHA]}
    assert kept == {"reconciler": f"{runs}/1", "reconciler/prod/census": console}
    # A scheduled run without news posts no status, although its own page is another.
    assert reporter(run_url=f"{runs}/2").report(SHA, statuses) == []
    later = plain_status("failure", "reconciler", "1 job failed")
    assert reporter(run_url=f"{runs}/3").report(SHA, [later]) == [Posted(later)]
    assert github.statuses[SHA][0]["target_url"] == f"{runs}/3"


def test_what_is_there_already_isnt_posted_again(
    github: GitHubServer, reporter: Callable[..., GitHubReporter]
) -> None:
    statuses = [status(State.RUNNING), status(State.QUEUED, "trees")]
    reporter().report(SHA, statuses)
    assert reporter().report(SHA, statuses) == []
    assert len(github.posted()) == 2
    later = [status(State.SUCCEEDED), statuses[1]]
    assert reporter().report(SHA, later) == [Posted(later[0])]
    assert shown(github)["reconciler/prod/census"] == "success"


def test_the_newest_status_of_a_context_counts(
    github: GitHubServer, reporter: Callable[..., GitHubReporter]
) -> None:
    for state in (State.RUNNING, State.SUCCEEDED):
        reporter().report(SHA, [status(state)])
    assert reporter().report(SHA, [status(State.SUCCEEDED)]) == []
    assert reporter().report(SHA, [status(State.RUNNING)]) == [Outdated(status(State.RUNNING))]
    assert len(github.posted()) == 2


def test_a_context_counts_without_its_case(
    github: GitHubServer, reporter: Callable[..., GitHubReporter]
) -> None:
    there = status(State.SUCCEEDED)
    github.add(SHA, context="Reconciler/PROD/Census", description=there.description)
    assert reporter().report(SHA, [there]) == []
    both = [status(State.RUNNING, "trees"), status(State.RUNNING, "Trees")]
    posted, refused = reporter().report(SHA, both)
    assert posted == Posted(both[1])
    assert isinstance(refused, Failed)
    assert "rename one" in refused.message


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 250])
def test_all_pages_are_read(
    count: int, github: GitHubServer, reporter: Callable[..., GitHubReporter]
) -> None:
    there = status(State.SUCCEEDED)
    github.add(SHA, context=there.context, description=there.description)
    github.add(SHA, count)
    assert reporter().report(SHA, [there, status(State.RUNNING, "trees")]) == [
        Posted(status(State.RUNNING, "trees"))
    ]
    assert len(github.requests) == (count + 1) // 100 + 2


@pytest.mark.slow
def test_all_pages_are_read_before_anything_is_posted(
    github: GitHubServer, reporter: Callable[..., GitHubReporter]
) -> None:
    github.add(SHA, 450, context="reconciler/prod/census")
    there = status(State.SUCCEEDED, "trees")
    github.statuses[SHA].append({**github.statuses[SHA][0], "context": there.context, "description": "old"})
    reporter().report(SHA, [status(State.RUNNING), there])
    assert [method for method, _, _ in github.requests] == ["GET"] * 5 + ["POST"] * 2


def test_reading_has_an_end(transport: DirectTransport) -> None:
    """Every page of this server names a next page."""
    page = answer(200, b"[]", link='<http://localhost/?page=2>; rel="next"')
    with RawServer([page], tls=server_tls()).running() as server:
        settings = GitHubSettings("acme/models", server.url, TOKEN)
        (outcome,) = GitHubReporter(transport, settings).report(SHA, [status()])
    assert isinstance(outcome, Failed)
    assert "more than 10000" in outcome.message
    assert len(server.arrived) == 100


def test_a_proxy_that_drops_the_link_header_hides_no_page(transport: DirectTransport) -> None:
    full = json.dumps([{"state": "success", "context": f"ci/{n}"} for n in range(100)]).encode()
    there = status(State.SUCCEEDED)
    last = json.dumps([{"state": "success", "context": there.context, "description": there.description}])
    with RawServer([answer(200, full), answer(200, last.encode())], tls=server_tls()).running() as server:
        settings = GitHubSettings("acme/models", server.url, TOKEN)
        assert GitHubReporter(transport, settings).report(SHA, [there]) == []
    assert [request.target.partition("?")[2] for request in server.arrived] == [
        "per_page=100&page=1",
        "per_page=100&page=2",
    ]


def test_statuses_that_cant_be_ours_are_passed_over(transport: DirectTransport) -> None:
    there = status(State.SUCCEEDED)
    page: list[Any] = [
        None,
        1,
        {},
        {"state": "neutral", "context": there.context},
        {"state": [], "context": "x"},
    ]
    page.append({"state": "success", "context": there.context, "description": there.description})
    with RawServer([answer(200, json.dumps(page).encode())], tls=server_tls()).running() as server:
        settings = GitHubSettings("acme/models", server.url, TOKEN)
        assert GitHubReporter(transport, settings).report(SHA, [there]) == []


def test_an_enterprises_own_server(transport: DirectTransport) -> None:
    github = GitHubServer(commits={SHA}, tokens={TOKEN: WRITE}, prefix="/api/v3")
    with github.running():
        settings = GitHubSettings(github.repository, github.url, TOKEN)
        assert GitHubReporter(transport, settings).report(SHA, [status()]) == [Posted(status())]
    assert github.violations == []


def test_nothing_to_report_asks_nothing(
    github: GitHubServer, reporter: Callable[..., GitHubReporter]
) -> None:
    assert reporter().report(SHA, []) == []
    assert github.requests == []


@pytest.mark.slow
def test_many_posts_are_spread_out(
    github: GitHubServer, reporter: Callable[..., GitHubReporter], waited: list[float]
) -> None:
    reporter().report(SHA, [status(State.RUNNING, f"few{n}") for n in range(20)])
    assert waited == []
    reporter().report(SHA, [status(State.RUNNING, f"many{n}") for n in range(21)])
    assert waited == [1.0] * 20


# Refusals by GitHub


def only_message(outcomes: list[Posted | Failed]) -> str:
    """Return the single message that all outcomes have."""
    assert outcomes
    assert all(isinstance(outcome, Failed) for outcome in outcomes)
    (message,) = {outcome.message for outcome in outcomes if isinstance(outcome, Failed)}
    assert TOKEN not in message
    assert message.isprintable()
    return message


TWO = [status(State.RUNNING), status(State.RUNNING, "trees")]


def test_no_token(github: GitHubServer, reporter: Callable[..., GitHubReporter]) -> None:
    message = only_message(reporter(token="").report(SHA, TWO))
    assert "set GITHUB_TOKEN" in message
    assert "statuses: write" in message
    assert github.requests == []


def test_a_token_that_github_doesnt_know(
    github: GitHubServer, reporter: Callable[..., GitHubReporter]
) -> None:
    message = only_message(reporter(token="expired").report(SHA, TWO))
    assert "GITHUB_TOKEN" in message
    assert "(HTTP 401); GitHub says: Bad credentials" in message
    assert len(github.requests) == 1


def test_a_token_that_may_not_write(github: GitHubServer, reporter: Callable[..., GitHubReporter]) -> None:
    message = only_message(reporter(token="read-only").report(SHA, TWO))
    assert "`permissions: {statuses: write}`" in message
    assert "acme/models" in message
    assert [status for _, _, status in github.requests] == [200, 403], "one refusal is enough"


ARCHIVED = error(403, "Repository was archived so is read-only.")
"""As reported in github.com/r-universe-org/help/issues/247."""
SSO = error(
    403,
    "Resource protected by organization SAML enforcement. You must grant your Personal Access token access "
    "to this organization.",
)
"""As reported in github.com/gr2m/octokit-plugin-create-pull-request/issues/67."""
ALLOW_LIST = error(
    403,
    "Although you appear to have the correct authorization credentials, the `acme` organization has an IP "
    "allow list enabled, and your IP address is not permitted to access this resource.",
)
"""As reported in github.com/aquasecurity/trivy/issues/10567."""


@pytest.fixture
def _no_archived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statuses, "_archived", {})


@pytest.mark.usefixtures("_no_archived")
@pytest.mark.parametrize(
    ("refusal", "remedy"),
    [
        (ARCHIVED, "acme/models is archived"),
        (SSO, "authorize the token for it"),
        (ALLOW_LIST, "the organization's IP allow list lacks this machine's address"),
    ],
)
def test_refusal_that_no_permission_would_change_has_its_own_remedy(
    github: GitHubServer, reporter: Callable[..., GitHubReporter], refusal: Answer, remedy: str
) -> None:
    github.queued = [refusal]
    message = only_message(reporter().report(SHA, TWO))
    assert remedy in message
    assert "permission" not in message.partition("; GitHub says")[0]


@pytest.mark.usefixtures("_no_archived")
def test_archived_repository_is_asked_once_by_a_process(
    github: GitHubServer, reporter: Callable[..., GitHubReporter]
) -> None:
    github.queued = [None, ARCHIVED]
    first = only_message(reporter().report(SHA, TWO))
    assert [status for _, _, status in github.requests] == [200, 403]
    assert only_message(reporter().report(SHA, TWO)) == first
    assert len(github.requests) == 2
    other = reporter(repository="acme/other").report(SHA, TWO)
    assert "is archived" not in only_message(other)


def test_a_repository_that_isnt_there(github: GitHubServer, reporter: Callable[..., GitHubReporter]) -> None:
    message = only_message(reporter(repository="acme/other").report(SHA, TWO))
    assert "a repository acme/other with that commit" in message
    assert "`github.repository`" in message


def test_a_repository_that_has_moved(github: GitHubServer, reporter: Callable[..., GitHubReporter]) -> None:
    github.moved_to = "acme/old"
    message = only_message(reporter(repository="acme/old").report(SHA, TWO))
    assert "acme/old has moved" in message
    assert len(github.requests) == 1, "the token is sent nowhere else"


def test_a_commit_that_isnt_there(github: GitHubServer, reporter: Callable[..., GitHubReporter]) -> None:
    message = only_message(reporter().report("f" * 40, TWO))
    assert "push it first (HTTP 422)" in message


@pytest.mark.slow
@pytest.mark.fault(27)
def test_the_last_ten_of_a_thousand_statuses_are_kept_for_the_end(
    github: GitHubServer, reporter: Callable[..., GitHubReporter]
) -> None:
    census, trees = TWO
    github.add(SHA, 989, context=census.context, description="old")
    assert reporter().report(SHA, [census]) == [Posted(census)]
    newer = structs.replace(census, description="running for long")
    assert reporter().report(SHA, [newer, trees]) == [Posted(trees)], "the other contexts have room"
    end = status(State.SUCCEEDED)
    assert reporter().report(SHA, [end]) == [Posted(end)]


@pytest.mark.slow
@pytest.mark.fault(27)
def test_the_thousandth_status_is_the_last(
    github: GitHubServer, reporter: Callable[..., GitHubReporter]
) -> None:
    github.add(SHA, 999, context=TWO[0].context, description="old")
    failed = status(State.FAILED)
    assert reporter().report(SHA, [failed]) == [Posted(failed)]
    (refused,) = reporter().report(SHA, [status(State.SUCCEEDED)])
    assert isinstance(refused, Failed)
    assert "1,000 statuses for one commit and context" in refused.message


@pytest.mark.parametrize(
    "details",
    [
        "Validation failed: no",
        [
            {
                "resource": "Status",
                "code": "custom",
                "field": "description",
                "message": "Validation failed: no",
            }
        ],
    ],
)
def test_a_refused_status_doesnt_stop_the_others(
    details: object, github: GitHubServer, reporter: Callable[..., GitHubReporter]
) -> None:
    github.queued = [None, error(422, "Validation Failed", errors=details)]
    refused, posted = reporter().report(SHA, TWO)
    assert isinstance(refused, Failed)
    assert refused.message == (
        "GitHub refused the status (HTTP 422); GitHub says: Validation Failed: Validation failed: no"
    )
    assert posted == Posted(TWO[1])


@pytest.mark.parametrize(
    ("limit", "seconds"), [(secondary_limit(403, 7), 7), (secondary_limit(429, 120), 120)]
)
def test_a_limit_that_names_a_time_is_waited_for_once(
    limit: Any,
    seconds: int,
    github: GitHubServer,
    reporter: Callable[..., GitHubReporter],
    waited: list[float],
) -> None:
    github.queued = [None, limit]
    assert reporter().report(SHA, TWO) == [Posted(given) for given in TWO]
    assert waited == [seconds]

    waited.clear()
    more = [status(State.SUCCEEDED), status(State.SUCCEEDED, "trees")]
    github.queued = [None, limit, limit]
    message = only_message(reporter().report(SHA, more))
    assert f"no more requests for {seconds} s; the next report posts what is left" in message
    assert waited == [seconds]


def test_one_wait_is_for_the_whole_report(
    github: GitHubServer, reporter: Callable[..., GitHubReporter], waited: list[float]
) -> None:
    github.queued = [None, secondary_limit(), None, secondary_limit()]
    posted, refused = reporter().report(SHA, TWO)
    assert posted == Posted(TWO[0])
    assert isinstance(refused, Failed)
    assert waited == [60.0]


def test_a_secondary_limit_without_a_time_lasts_a_minute(
    github: GitHubServer, reporter: Callable[..., GitHubReporter], waited: list[float]
) -> None:
    github.queued = [None, secondary_limit(retry_after=None)]
    assert reporter().report(SHA, TWO) == [Posted(given) for given in TWO]
    assert waited == [60.0]


def test_nobody_waits_for_an_hour(
    github: GitHubServer, reporter: Callable[..., GitHubReporter], waited: list[float]
) -> None:
    github.queued = [None, secondary_limit(retry_after=121)]
    assert "for 121 s" in only_message(reporter().report(SHA, TWO))
    github.queued = [primary_limit(reset=1795255500)]
    assert "no more requests until 10:05 UTC" in only_message(reporter().report(SHA, TWO))
    assert waited == []


def test_a_limit_that_says_nothing_more(
    github: GitHubServer, reporter: Callable[..., GitHubReporter], waited: list[float]
) -> None:
    github.queued = [None, error(429, "Too Many Requests")]
    message = only_message(reporter().report(SHA, TWO))
    assert message.startswith(
        "GitHub accepts no more requests; the next report posts what is left (HTTP 429)"
    )
    assert waited == []


def test_a_server_error_while_reading_is_tried_again(
    github: GitHubServer, reporter: Callable[..., GitHubReporter], waited: list[float]
) -> None:
    github.queued = [page_of_html(502), page_of_html(503)]
    assert reporter().report(SHA, TWO) == [Posted(given) for given in TWO]
    assert waited == [0.5, 1.0]


def test_a_server_that_stays_broken(github: GitHubServer, reporter: Callable[..., GitHubReporter]) -> None:
    github.queued = [page_of_html(502)] * 4
    message = only_message(reporter().report(SHA, TWO))
    assert message == "GitHub is unavailable; the next report posts what is left (HTTP 502)"
    assert len(github.requests) == 4
    assert only_message(reporter(api_url=github.url + "/nothing").report(SHA, TWO))
    github.violations.clear()  # The API description lacks this path.


def test_a_server_error_while_posting_is_not_tried_again(
    github: GitHubServer, reporter: Callable[..., GitHubReporter]
) -> None:
    github.queued = [None, page_of_html(500)]
    assert "unavailable" in only_message(reporter().report(SHA, TWO))
    assert github.posted() == []
    assert reporter().report(SHA, TWO) == [Posted(given) for given in TWO], "the next report posts it"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_isnt_followed(status: int, transport: DirectTransport) -> None:
    with RawServer([answer(status, b"", location="/elsewhere")], tls=server_tls()).running() as server:
        settings = GitHubSettings("acme/models", server.url, TOKEN)
        message = only_message(GitHubReporter(transport, settings).report(SHA, TWO))
    assert "write its new name" in message
    assert len(server.arrived) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "body", [b"<html>Log in to the Wi-Fi ::error::</html>", b"{}", b"null", b"[" * 100_000, b"\xff"]
)
def test_something_that_isnt_github(body: bytes, transport: DirectTransport) -> None:
    with RawServer([answer(200, body)], tls=server_tls()).running() as server:
        settings = GitHubSettings("acme/models", server.url, TOKEN)
        message = only_message(GitHubReporter(transport, settings).report(SHA, TWO))
    assert message == f"the server at {server.url} doesn't answer like GitHub (HTTP 200)"


def test_a_server_that_repeats_the_request(transport: DirectTransport) -> None:
    told = json.dumps({"message": f"bad header Authorization: Bearer {TOKEN}\x1b[31m\n::error::x"})
    with RawServer([answer(400, told.encode())], tls=server_tls()).running() as server:
        settings = GitHubSettings("acme/models", server.url, TOKEN)
        message = only_message(GitHubReporter(transport, settings).report(SHA, TWO))
    assert "Bearer ***" in message


@pytest.mark.slow
@pytest.mark.parametrize("fault", [reset, send_then_close(b""), send_then_close(b"HTTP/1.1 201 Cr")])
def test_a_lost_answer_to_a_post_is_told_and_not_repeated(fault: Any, transport: DirectTransport) -> None:
    with RawServer([answer(200, b"[]"), fault], tls=server_tls()).running() as server:
        settings = GitHubSettings("acme/models", server.url, TOKEN)
        message = only_message(GitHubReporter(transport, settings).report(SHA, TWO))
    assert message.startswith(f"no complete answer from {server.url}")
    assert server.count("POST") == 1


def test_github_out_of_reach(transport: DirectTransport, waited: list[float]) -> None:
    with RawServer([answer()], tls=server_tls()).running() as server:
        pass
    settings = GitHubSettings("acme/models", server.url, TOKEN)
    reporter = GitHubReporter(transport, settings, sleep=waited.append, chance=lambda: 0.0)
    assert "can't be reached: connection refused" in only_message(reporter.report(SHA, TWO))
    assert waited == [0.5, 1.0, 2.0]


def test_a_token_that_http_cant_carry(github: GitHubServer, reporter: Callable[..., GitHubReporter]) -> None:
    message = only_message(reporter(token=f"{TOKEN}\nX: y").report(SHA, TWO))
    assert '"Authorization" has characters' in message
    assert github.requests == []


# The address to post to


# The tests' own GitHub


def test_the_description_is_what_the_script_makes() -> None:
    trim = runpy.run_path(str(DESCRIPTION.with_name("trim.py")))["trim"]
    text = DESCRIPTION.read_text()
    assert json.dumps(trim(json.loads(text)), indent=1, sort_keys=True) + "\n" == text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({"state": "success", "description": "x" * 141}, 422, "Description is too long"),
        ({"state": "success", "description": "🎉"}, 422, "4-byte Unicode"),
        ({"state": "success", "target_url": "gs://bucket"}, 422, "must use http(s) scheme"),
        ({"state": "neutral"}, 201, ""),
        ({"state": "success", "unknown": 1}, 201, ""),
        ({"state": "success", "description": "x" * 140}, 201, ""),
    ],
)
def test_the_tests_github_notices_what_github_would(
    body: dict[str, Any], status: int, told: str, transport: DirectTransport
) -> None:
    github = GitHubServer(commits={SHA}, tokens={TOKEN: WRITE})
    with github.running():
        response = transport.send(
            HttpRequest(
                "POST",
                f"{github.url}/repos/{github.repository}/statuses/{SHA}",
                {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
                json.dumps(body).encode(),
            )
        )
    assert response.status == status
    assert told in response.body.decode()
    good = body == {"state": "success", "description": "x" * 140}
    assert len(github.violations) == (0 if good else 1)


def test_the_tests_github_notices_an_answer_that_github_wouldnt_give(transport: DirectTransport) -> None:
    github = GitHubServer(commits={SHA}, tokens={TOKEN: WRITE}, queued=[Answer(200, [{"state": "success"}])])
    with github.running():
        transport.send(HttpRequest("GET", f"{github.url}/repos/acme/models/commits/{SHA}/statuses"))
    (violation,) = github.violations
    assert violation.startswith("answer 200 to GET")
