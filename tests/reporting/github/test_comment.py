"""The single comment on a pull request: recognised by its first line and by its author."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from reconciler.base.http import DirectTransport
from reconciler.cli import run
from reconciler.model.diff import Comparison
from reconciler.model.plan import Action, Change, Edit, Plan, Target
from reconciler.output.document import NOTHING_CHANGES
from reconciler.output.markdown import Links, Merge, plan_markdown
from reconciler.reporting.github.api import GitHubApi, GitHubRefusedError
from reconciler.reporting.github.comment import (
    COMMENTS,
    CommentResult,
    comment_body,
    fits,
    keep_comment,
    plan_marker,
)
from reconciler.reporting.github.settings import GitHubSettings
from tests.support.emulated_github import OWNERS, STRANGERS, emulated_github
from tests.support.github_server import (
    MAX_COMMENT,
    READ,
    WORKFLOWS,
    WRITE,
    GitHubServer,
    error,
    secondary_limit,
)
from tests.support.planning import saying
from tests.support.raw_server import RawServer, answer, reset
from tests.support.tls import server_tls

TOKEN = "ghs_very-secret-token"
NUMBER = 7
OURS = comment_body(plan_marker("prod"), "the old text")
Keep = Callable[..., CommentResult]


@pytest.fixture
def github() -> Iterator[GitHubServer]:
    server = GitHubServer(
        tokens={TOKEN: WRITE, "read-only": READ, "personal": WRITE, "app": WRITE},
        users={"personal": "octocat", "app": "other-app[bot]"},
        comments={NUMBER: []},
    )
    with server.running():
        yield server
    assert server.violations == []
    assert server.most_at_once <= 1


@pytest.fixture
def keep(github: GitHubServer, transport: DirectTransport) -> Keep:
    def keep(
        said: str = "the text", environment: str = "prod", token: str = TOKEN, *, create: bool = True
    ) -> CommentResult:
        settings = GitHubSettings(github.repository, github.url, token)
        api = GitHubApi(transport, settings, COMMENTS, sleep=lambda _: None, chance=lambda: 0.0)
        return keep_comment(api, NUMBER, plan_marker(environment), said, create=create)

    return keep


def read_back(url: str, token: str, number: int = NUMBER) -> list[tuple[str, str]]:
    """Return author and text of every comment, as PyGithub reads them."""
    from github import Auth, Github

    client = Github(
        base_url=url, auth=Auth.Token(token), lazy=True, per_page=100, retry=None, seconds_between_requests=0
    )
    return [(c.user.login, c.body) for c in client.get_repo("acme/models").get_issue(number).get_comments()]


def written(github: GitHubServer) -> list[str]:
    return [
        f"{method} {path.rpartition('/issues/')[2]}" for method, path, _ in github.requests if method != "GET"
    ]


def test_it_is_created_once_and_then_kept_up_to_date(github: GitHubServer, keep: Keep) -> None:
    assert [keep("one"), keep("two"), keep("two\r\n")] == [
        CommentResult.CREATED,
        CommentResult.UPDATED,
        CommentResult.UNCHANGED,
    ]
    assert read_back(github.plain_url, TOKEN) == [(WORKFLOWS, comment_body(plan_marker("prod"), "two"))]
    assert written(github) == ["POST 7/comments", "PATCH comments/1"]


def planned(head: str = "c" * 40, *, minute: int = 4, run: str = "42", base: str = "main") -> str:
    """Return a run's comment about a plan that is the same each time."""
    merge = Merge(head, base, "main", datetime(2026, 1, 2, 3, minute, tzinfo=UTC))
    links = Links(
        "https://github.com/acme/models/blob", head, "", f"https://github.com/acme/models/actions/runs/{run}"
    )
    change = Change(Action.NONE, saying(""), "census", "census_1", "CustomJob", edit=Edit.CHANGED)
    plan = Plan(Target("prod", "google", "p", "l"), (change,), (), None, comparison=Comparison("b" * 40))
    return plan_markdown(plan, None, links, merge)


@pytest.mark.slow
def test_a_later_run_with_the_same_plan_is_no_update(github: GitHubServer, keep: Keep) -> None:
    """The comment keeps the time and the run of the first; another commit or branch is an update."""
    assert keep(planned()) is CommentResult.CREATED
    assert keep(planned(minute=5, run="43")) is CommentResult.UNCHANGED
    assert read_back(github.plain_url, TOKEN)[0][1] == comment_body(plan_marker("prod"), planned())
    others = [
        planned("d" * 40),
        planned("d" * 40, base="release"),
        f"{planned('d' * 40, base='release')} more",
    ]
    assert [keep(other) for other in others] == [CommentResult.UPDATED] * 3
    assert len(written(github)) == 4


@pytest.mark.slow
def test_without_creation_a_comment_is_updated_alone(github: GitHubServer, keep: Keep) -> None:
    github.comment(NUMBER, OURS, "mallory")
    assert keep("nothing", create=False) is CommentResult.UNNEEDED
    assert written(github) == []
    assert keep("one") is CommentResult.CREATED
    assert [keep("nothing", create=False) for _ in range(2)] == [
        CommentResult.UPDATED,
        CommentResult.UNCHANGED,
    ]
    assert keep("nothing", "staging", create=False) is CommentResult.UNNEEDED


def test_without_creation_another_apps_comment_is_still_replaced(github: GitHubServer, keep: Keep) -> None:
    """The token's own app is known only after a comment is written."""
    assert keep("one", token="app") is CommentResult.CREATED
    assert keep("nothing", token="app", create=False) is CommentResult.CREATED
    assert [body for _, body in read_back(github.plain_url, TOKEN)] == [
        "*Replaced by a newer comment.*",
        comment_body(plan_marker("prod"), "nothing"),
    ]


def test_each_environment_has_its_own(github: GitHubServer, keep: Keep) -> None:
    for environment in ("prod", "prod-2", "local"):
        assert keep(environment, environment) is CommentResult.CREATED
    assert keep("new", "prod") is CommentResult.UPDATED
    shown = [body.split("\n", 1)[1] for _, body in read_back(github.plain_url, TOKEN)]
    assert shown == ["new", "prod-2", "local"]


def test_the_marker_is_not_shown() -> None:
    from markdown_it import MarkdownIt

    page = MarkdownIt("commonmark").render(comment_body(plan_marker("prod--a"), "# Plan"))
    assert page == "<!-- reconciler plan of prod--a -->\n<h1>Plan</h1>\n"


@pytest.mark.slow
@pytest.mark.parametrize("token", [TOKEN, "personal", "app"])
@pytest.mark.parametrize("stranger", ["mallory", "github-actions", "other[bot]", "octocat2"])
def test_anothers_comment_that_begins_alike_is_left_alone_and_hinders_nothing(
    github: GitHubServer, keep: Keep, token: str, stranger: str
) -> None:
    github.comment(NUMBER, OURS, stranger)
    github.comment(NUMBER, comment_body(plan_marker("prod"), "the text"), stranger)
    assert keep(token=token) is CommentResult.CREATED
    github.comment(NUMBER, OURS, stranger)
    before = [one for one in read_back(github.plain_url, TOKEN) if one[0] == stranger]
    keep("another text", token=token)
    found = read_back(github.plain_url, TOKEN)
    assert [one for one in found if one[0] == stranger] == before
    assert comment_body(plan_marker("prod"), "another text") in [
        body for login, body in found if login != stranger
    ]


def test_a_comment_that_only_holds_the_marker_is_not_it(github: GitHubServer, keep: Keep) -> None:
    quoted = f"> see\n{OURS}"
    github.comment(NUMBER, quoted)
    assert keep() is CommentResult.CREATED
    assert quoted in dict(enumerate(body for _, body in read_back(github.plain_url, TOKEN))).values()


def test_a_users_token_finds_the_users_comment(github: GitHubServer, keep: Keep) -> None:
    github.comment(NUMBER, OURS, WORKFLOWS)
    assert [keep(token="personal"), keep("two", token="personal")] == [
        CommentResult.CREATED,
        CommentResult.UPDATED,
    ]
    assert read_back(github.plain_url, TOKEN) == [
        (WORKFLOWS, OURS),
        ("octocat", comment_body(plan_marker("prod"), "two")),
    ]


def test_another_apps_token_leaves_one_comment_that_is_current(github: GitHubServer, keep: Keep) -> None:
    github.comment(NUMBER, OURS, "mallory")
    assert [keep("one", token="app"), keep("two", token="app")] == [
        CommentResult.CREATED,
        CommentResult.CREATED,
    ]
    assert read_back(github.plain_url, TOKEN) == [
        ("mallory", OURS),
        ("other-app[bot]", "*Replaced by a newer comment.*"),
        ("other-app[bot]", comment_body(plan_marker("prod"), "two")),
    ]


def test_it_is_found_on_the_last_page(github: GitHubServer, keep: Keep) -> None:
    for number in range(250):
        github.comment(NUMBER, f"comment {number}", "octocat")
    mine = github.comment(NUMBER, OURS)
    assert keep() is CommentResult.UPDATED
    assert written(github) == [f"PATCH comments/{mine['id']}"]
    assert sum("page=" in path for _, path, _ in github.requests) == 3


def test_of_two_from_a_race_the_newest_is_kept(github: GitHubServer, keep: Keep) -> None:
    github.comment(NUMBER, OURS)
    github.comment(NUMBER, OURS.replace("\n", "\r\n"))
    for expected in (CommentResult.UPDATED, CommentResult.UNCHANGED):
        assert keep() is expected
        assert [body for _, body in read_back(github.plain_url, TOKEN)] == [
            "*Replaced by a newer comment.*",
            comment_body(plan_marker("prod"), "the text"),
        ]


def test_only_an_app_is_taken_for_the_workflows(github: GitHubServer, keep: Keep) -> None:
    github.comment(NUMBER, OURS)["user"]["type"] = "User"
    assert keep() is CommentResult.CREATED


def test_a_comment_without_author_or_text_is_passed_over(github: GitHubServer, keep: Keep) -> None:
    github.comment(NUMBER, OURS)["user"] = None
    github.comment(NUMBER, "x").pop("body")
    assert keep() is CommentResult.CREATED


@pytest.mark.slow
@pytest.mark.parametrize("char", ["x", "\u00e9", "\U0001f389"])
def test_github_takes_the_longest_that_fits(github: GitHubServer, keep: Keep, char: str) -> None:
    size = len(char.encode("utf-16-le")) // 2
    longest = char * ((MAX_COMMENT - len(comment_body(plan_marker("prod"), ""))) // size)
    assert fits(comment_body(plan_marker("prod"), longest))
    assert not fits(comment_body(plan_marker("prod"), longest + "\U0001f389"))
    assert keep(longest) is CommentResult.CREATED
    if size == 1:
        with pytest.raises(GitHubRefusedError, match=r"refused the comment .* too long"):
            keep(longest + "x")
        github.violations.clear()


REFUSALS: list[tuple[Any, str]] = [
    (error(404, "Not Found"), "this token can't see a repository acme/models with that pull request"),
    (error(401, "Bad credentials"), "rejects the token"),
    (error(410, "This issue was deleted"), "HTTP 410"),
    (error(403, "Unable to create comment because issue is locked."), "issue is locked"),
    (error(403, "Resource not accessible by personal access token"), '"Pull requests: write"'),
    (error(422, "Validation Failed"), "GitHub refused the comment (HTTP 422)"),
    (secondary_limit(429, 3600), "no more requests for 3600 s"),
    (error(500, "oops"), "unavailable"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("said", "told"), REFUSALS)
def test_what_github_refuses_is_told(github: GitHubServer, keep: Keep, said: Any, told: str) -> None:
    github.queued = [None, None, said, said, said, said]
    with pytest.raises(GitHubRefusedError) as caught:
        keep()
    assert told in caught.value.message
    assert "commit status" not in caught.value.message
    assert not caught.value.read_only
    github.violations.clear()


def test_it_is_not_guessed_who_the_token_is(github: GitHubServer, keep: Keep) -> None:
    github.comment(NUMBER, OURS)
    github.queued = [error(403, "Resource protected by organization SAML enforcement.")]
    with pytest.raises(GitHubRefusedError, match="SAML"):
        keep(token="personal")
    assert written(github) == []


def test_a_comment_whose_answer_is_lost_is_not_written_twice(transport: DirectTransport) -> None:
    refused = answer(403, b'{"message": "Resource not accessible by integration"}')
    with RawServer([refused, answer(200, b"[]"), reset], tls=server_tls()).running() as server:
        api = GitHubApi(transport, GitHubSettings("acme/models", server.url, TOKEN), COMMENTS)
        with pytest.raises(GitHubRefusedError, match="no complete answer"):
            keep_comment(api, NUMBER, plan_marker("prod"), "text")
        assert server.count("POST") == 1


# The command


@pytest.fixture
def surroundings(
    github: GitHubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], str]:
    """Make a work tree and a run of GitHub Actions; return the path of the comment's text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reconciler.yaml").write_text(
        "environments: {staging: {engine: local, project: staging-jobs}}\n"
    )
    environ = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_API_URL": github.url,
        "GITHUB_REPOSITORY": github.repository,
        "GITHUB_EVENT_NAME": "pull_request",
        "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
        "GITHUB_TOKEN": TOKEN,
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "event.json").write_text(json.dumps({"pull_request": {"number": NUMBER}}))
    (tmp_path / "comment.md").write_text("### Plan\n")
    return str(tmp_path / "comment.md")


@pytest.mark.slow
def test_the_command_keeps_the_comment(
    github: GitHubServer, surroundings: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = []
    for _ in range(2):
        assert run(["report", "--comment", surroundings, "--env", "staging"]) == 0
        told.append(capsys.readouterr().out)
    assert told == [f"Comment on pull request 7: {kept}.\n" for kept in ("created", "unchanged")]
    assert read_back(github.plain_url, TOKEN) == [
        (WORKFLOWS, comment_body(plan_marker("staging"), "### Plan"))
    ]


@pytest.mark.slow
def test_plan_that_changes_nothing_only_updates_a_comment(
    github: GitHubServer, surroundings: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(surroundings).write_text(f"{NOTHING_CHANGES}No changes.\n")
    assert run(["report", "--comment", surroundings]) == 0
    assert capsys.readouterr().out == (
        "Comment on pull request 7: not needed, as no job and no setting differs.\n"
    )
    assert github.comments == {NUMBER: []}
    github.comment(NUMBER, comment_body(plan_marker("local"), "### Plan"))
    assert run(["report", "--comment", surroundings]) == 0
    assert read_back(github.plain_url, TOKEN) == [
        (WORKFLOWS, comment_body(plan_marker("local"), "No changes."))
    ]


@pytest.mark.parametrize("token", ["", "read-only"])
def test_a_fork_cannot_comment_which_is_no_failure(
    github: GitHubServer,
    surroundings: str,
    token: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", token)
    assert run(["report", "--comment", surroundings]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "none was written" in err or "no comment was written" in err
    assert github.comments == {NUMBER: []}
    assert token or not github.requests


def test_other_refusals_are_told_and_fail(
    github: GitHubServer,
    surroundings: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "wrong")
    assert run(["report", "--comment", surroundings]) == 1
    out, err = capsys.readouterr()
    assert "comment not written: GitHub rejects the token" in err
    assert "wrong" not in err.replace("it is wrong", "")
    assert not out


EVENTS = [
    "",
    "null",
    "[" * 100_000,
    "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    "{}",
    '{"pull_request": null}',
    *(f'{{"pull_request": {{"number": {number}}}}}' for number in ("0", "-1", "true", '"7"', "7.0", "null")),
    '{"number": 7, "issue": {"number": 7}}',
]


@pytest.mark.slow
@pytest.mark.parametrize("event", EVENTS)
def test_only_a_pull_requests_event_will_do(
    github: GitHubServer, surroundings: str, event: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("event.json").write_text(event)
    assert run(["report", "--comment", surroundings]) == 64
    assert "names no pull request" in capsys.readouterr().err
    assert github.requests == []


@pytest.mark.parametrize("name", ["push", "pull_request_target", "issue_comment", "workflow_run", ""])
def test_only_a_run_for_a_pull_request_will_do(
    github: GitHubServer, surroundings: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_EVENT_NAME", name)
    assert run(["report", "--comment", surroundings]) == 64
    assert github.requests == []


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"a\0b", "not text"),
        (b"\xff\xfe", "isn't UTF-8"),
        ("é".encode() * MAX_COMMENT, "longer than the 65,536 characters"),
        (b"x" * 10 * MAX_COMMENT, "longer than the 65,536 characters"),
    ],
)
def test_a_file_that_is_no_comment_is_refused(
    github: GitHubServer, surroundings: str, content: bytes, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(surroundings).write_bytes(content)
    assert run(["report", "--comment", surroundings]) == 64
    assert told in capsys.readouterr().err
    assert github.requests == []


def test_a_file_that_is_not_there(surroundings: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "--comment", f"{surroundings}.txt"]) == 64
    assert "No such file" in capsys.readouterr().err
    assert run(["report", "--comment", str(Path(surroundings).parent)]) == 64


def test_nothing_is_posted_where_no_repository_is_configured(
    github: GitHubServer, surroundings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS")
    assert run(["report", "--comment", surroundings]) == 0
    assert github.requests == []


# Somebody else's GitHub


@pytest.fixture(scope="module")
def emulator() -> Iterator[str]:
    with emulated_github() as url:
        yield url


@pytest.mark.slow
def test_an_emulator_of_github_understands_it(emulator: str, transport: DirectTransport) -> None:
    from github import Auth, Github

    def api(token: str) -> GitHubApi:
        return GitHubApi(transport, GitHubSettings("acme/models", emulator, token), COMMENTS)

    def client(token: str) -> Any:
        made = Github(base_url=emulator, auth=Auth.Token(token), retry=None, seconds_between_requests=0)
        return made.get_repo("acme/models")

    number = client(OWNERS).create_issue("A pull request, as far as comments go").number
    copied = comment_body(plan_marker("prod"), "two")
    client(STRANGERS).get_issue(number).create_comment(copied)
    for _ in range(101):
        client(OWNERS).get_issue(number).create_comment("well")
    kept = [keep_comment(api(OWNERS), number, plan_marker("prod"), said) for said in ("one", "two", "two")]
    assert kept == [CommentResult.CREATED, CommentResult.UPDATED, CommentResult.UNCHANGED]
    found = [(c.user.login, c.body) for c in client(STRANGERS).get_issue(number).get_comments()]
    assert [one for one in found if one[1] != "well"] == [("stranger", copied), ("acme", copied)]
