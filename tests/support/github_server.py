"""A fake GitHub: commit statuses and comments over HTTP, with GitHub's limits and errors.

Every request and every answer is checked against GitHub's own description of its API in `github/`.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from zlib import crc32

from openapi_core import OpenAPI
from openapi_core.exceptions import OpenAPIError
from openapi_core.testing import MockRequest, MockResponse

from tests.support.described_value import smallest
from tests.support.tls import behind_tls

DESCRIPTION = Path(__file__).parents[1] / "github" / "description.json"
DESCRIBED_HOST = "https://api.github.com"
DOCUMENTATION = "https://docs.github.com/rest/commits/statuses"
MAX_STATUSES = 1000
MAX_DESCRIPTION = 140
MAX_COMMENT = 65_536
WORKFLOWS = "github-actions[bot]"
READ, WRITE = "read", "write"


@cache
def description() -> OpenAPI:
    return OpenAPI.from_dict(json.loads(DESCRIPTION.read_bytes()))


@dataclass(frozen=True)
class Answer:
    """An answer of the server; without `described`, it comes from the machines before the API."""

    status: int
    value: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    described: bool = True

    @property
    def content_type(self) -> str:
        return "application/json; charset=utf-8" if self.described else "text/html"

    @property
    def body(self) -> bytes:
        return json.dumps(self.value).encode() if self.described else str(self.value).encode()


def error(status: int, message: str, **more: Any) -> Answer:
    headers = more.pop("headers", {})
    told = {"message": message, "documentation_url": DOCUMENTATION, "status": str(status), **more}
    return Answer(status, told, headers)


def invalid(reason: str) -> Answer:
    return error(422, "Validation Failed", errors=f"Validation failed: {reason}")


def invalid_comment(reason: str) -> Answer:
    detail = {"resource": "IssueComment", "field": "data", "code": "unprocessable", "message": reason}
    return error(422, "Validation Failed", errors=[detail])


def read_only() -> Answer:
    return error(403, "Resource not accessible by integration")


def secondary_limit(status: int = 403, retry_after: int | None = 60) -> Answer:
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return error(status, "You have exceeded a secondary rate limit. Please wait.", headers=headers)


def primary_limit(reset: int) -> Answer:
    headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(reset)}
    return error(403, "API rate limit exceeded for installation.", headers=headers)


def page_of_html(status: int) -> Answer:
    return Answer(status, "<html><body>Unicorn! ::error::</body></html>", described=False)


@dataclass
class GitHubServer:
    """A GitHub with a single repository.

    Attributes:
        repository: `owner/name`.
        commits: The commits it knows.
        tokens: The permission of each token.
        users: The owner of each token: a user or, with "[bot]" at its end, an App; others are a workflow's.
        comments: The comments of each existing pull request by its number, the oldest first.
        pulls: The pull requests that GitHub lists for each commit, from `add_pull`.
        moved_to: The repository's new name, when it was renamed.
        prefix: The prefix of the paths, `/api/v3` on an enterprise's own server.
        queued: Answers to give to the next requests, in place of the usual ones; None is the usual one.
        requests: Method, path with query, and status of every request.
        violations: The deviations from GitHub's description of its API.
        url: The API's address, by https.
        plain_url: The same by http, for clients that trust no authority of the tests.
    """

    repository: str = "acme/models"
    commits: set[str] = field(default_factory=set)
    tokens: dict[str, str] = field(default_factory=dict)
    users: dict[str, str] = field(default_factory=dict)
    comments: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    pulls: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    moved_to: str = ""
    prefix: str = ""
    queued: list[Answer | None] = field(default_factory=list)
    requests: list[tuple[str, str, int]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    statuses: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    at_once: int = 0
    most_at_once: int = 0
    url: str = ""
    plain_url: str = ""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0

    @contextmanager
    def running(self) -> Iterator[GitHubServer]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        self.plain_url = f"http://localhost:{server.server_port}{self.prefix}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            with behind_tls(self.plain_url) as self.url:
                yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join(10)

    def posted(self) -> list[str]:
        """Return the paths of the successful posts."""
        return [path for method, path, status in self.requests if method == "POST" and status == 201]

    def states(self, sha: str, context: str) -> list[str]:
        """Return the past states of a context, the oldest first."""
        return [kept["state"] for kept in self.statuses.get(sha, [])[::-1] if kept["context"] == context]

    def add(self, sha: str, count: int = 1, **status: Any) -> None:
        """Add statuses as if another client had posted them."""
        for _ in range(count):
            self._keep(sha, {"state": "success", "context": "ci/build", "description": None, **status})

    def comment(self, number: int, body: str, login: str = WORKFLOWS) -> dict[str, Any]:
        """Add a comment as if `login` had written it, and return it."""
        return self._keep_comment(number, body, login)

    def add_pull(self, number: int, sha: str, **fields: Any) -> None:
        """Add a pull request that was merged as a commit; `fields` are others of its fields."""
        described = json.loads(DESCRIPTION.read_bytes())
        pull = smallest(described["components"]["schemas"]["pull-request-simple"], described)
        pull["base"]["repo"] |= {"full_name": self.repository, "default_branch": "main"}
        pull["base"]["ref"] = "main"
        pull |= {"number": number, "state": "closed", "merged_at": _now(), "merge_commit_sha": sha, **fields}
        self.pulls.setdefault(sha, []).append(pull)
        self.comments.setdefault(number, [])

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        if method == "GET":
            # "This resource is also available via a legacy route", absent from the description.
            target = re.sub(r"/statuses/(\w+)", r"/commits/\1/statuses", target)
        with self._lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        self._check_request(method, target, headers, body)
        with self._lock:
            queued = self.queued.pop(0) if self.queued else None
            answer = queued or self._usual(method, target, headers, body)
            self.requests.append((method, target, answer.status))
            self.at_once -= 1
        if answer.described:
            self._check_answer(method, target, headers, body, answer)
        return answer

    def _usual(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        address = urlsplit(target)
        words = address.path.removeprefix(self.prefix).strip("/").split("/")
        if "user-agent" not in headers:
            return Answer(403, "Request forbidden by administrative rules.", described=False)
        token = headers.get("authorization", "").removeprefix("Bearer ").removeprefix("token ")
        if token not in self.tokens:
            return error(401, "Bad credentials" if token else "Requires authentication")
        if words == ["user"] and method == "GET":
            login = self.users.get(token, WORKFLOWS)
            return read_only() if login.endswith("[bot]") else Answer(200, _profile(login))
        if words[:1] != ["repos"] or "/".join(words[1:3]) != self.repository:
            if self.moved_to and "/".join(words[1:3]) == self.moved_to:
                return self._moved(method)
            return error(404, "Not Found")
        match method, words[3:]:
            case "POST", ["statuses", sha]:
                return self._create(sha, json.loads(body), self.tokens[token])
            case "GET", ["commits", sha, "statuses"]:
                return self._list(sha, address.path, parse_qs(address.query))
            case "GET", ["commits", sha, "pulls"]:
                if sha not in self.commits:
                    return error(422, f"No commit found for SHA: {sha}")
                return self._page(self.pulls.get(sha, []), address.path, parse_qs(address.query))
            case _, ["issues", *place]:
                said = json.loads(body)["body"] if body else ""
                return self._comment(method, place, said, address.path, parse_qs(address.query), token)
        return error(404, "Not Found")

    def _comment(
        self, method: str, place: list[str], said: str, path: str, query: dict[str, list[str]], token: str
    ) -> Answer:
        found = [c for of_one in self.comments.values() for c in of_one if str(c["id"]) == place[-1]]
        number = int(place[0]) if place[0].isdecimal() else 0
        if not (found if place[0] == "comments" else number in self.comments):
            return error(404, "Not Found")
        if method == "GET":
            return self._page(self.comments[number], path, query)
        if self.tokens[token] != WRITE:
            return read_only()
        if not said.strip():
            return invalid_comment("Body cannot be blank")
        if len(said) > MAX_COMMENT:
            return invalid_comment(f"Body is too long (maximum is {MAX_COMMENT} characters)")
        if method == "POST":
            kept = self._keep_comment(number, said, self.users.get(token, WORKFLOWS))
            return Answer(201, kept, {"Location": kept["url"]})
        # A token with write access may also change the comments of others.
        found[0] |= {"body": said, "updated_at": _now()}
        return Answer(200, found[0])

    def _keep_comment(self, number: int, body: str, login: str) -> dict[str, Any]:
        self._number += 1
        repository = f"{self.url}/repos/{self.repository}"
        kept = {
            "id": self._number,
            "node_id": f"IC_{self._number}",
            "url": f"{repository}/issues/comments/{self._number}",
            "html_url": f"https://github.com/{self.repository}/pull/{number}#issuecomment-{self._number}",
            "issue_url": f"{repository}/issues/{number}",
            "body": body,
            "user": _account(login),
            "created_at": _now(),
            "updated_at": _now(),
            "author_association": "NONE",
            "performed_via_github_app": None,
        }
        self.comments.setdefault(number, []).append(kept)
        return kept

    def _moved(self, method: str) -> Answer:
        url = f"{self.url}/repositories/1"
        status = 301 if method == "GET" else 307
        moved = {"message": "Moved Permanently", "url": url, "documentation_url": DOCUMENTATION}
        return Answer(status, moved, {"Location": url})

    def _create(self, sha: str, status: dict[str, Any], permission: str) -> Answer:
        if permission != WRITE:
            return read_only()
        if sha not in self.commits:
            return error(422, f"No commit found for SHA: {sha}")
        text = status.get("description") or ""
        if len(text) > MAX_DESCRIPTION:
            return invalid("Description is too long (maximum is 140 characters)")
        if any(char > "\uffff" for char in text):
            return invalid("Description doesn't accept 4-byte Unicode")
        if not (status.get("target_url") or "http://").startswith(("http://", "https://")):
            return invalid("Target url must use http(s) scheme")
        context = status.setdefault("context", "default").lower()
        if sum(s["context"].lower() == context for s in self.statuses.get(sha, [])) >= MAX_STATUSES:
            return invalid("This SHA and context has reached the maximum number of statuses.")
        kept = self._keep(sha, status)
        return Answer(201, kept, {"Location": kept["url"]})

    def _keep(self, sha: str, status: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        now = _now()
        kept = {
            "url": f"{self.url}/repos/{self.repository}/statuses/{sha}",
            "avatar_url": None,
            "id": self._number,
            "node_id": f"SC_{self._number}",
            "state": status["state"],
            "description": status.get("description"),
            "target_url": status.get("target_url"),
            "context": status["context"],
            "created_at": now,
            "updated_at": now,
            "creator": None,
        }
        # The newest comes first.
        self.statuses.setdefault(sha, []).insert(0, kept)
        return kept

    def _list(self, sha: str, path: str, query: dict[str, list[str]]) -> Answer:
        if sha not in self.commits:
            return error(422, f"No commit found for SHA: {sha}")
        return self._page(self.statuses.get(sha, []), path, query)

    def _page(self, found: list[dict[str, Any]], path: str, query: dict[str, list[str]]) -> Answer:
        per_page = min(int(query.get("per_page", ["30"])[0]), 100)
        page = int(query.get("page", ["1"])[0])
        last = max(1, -(-len(found) // per_page))
        url = f"{self.url.removesuffix(self.prefix)}{path}?per_page={per_page}&page="
        numbers = {"prev": page - 1, "next": page + 1, "last": last, "first": 1}
        if page == 1:
            del numbers["prev"], numbers["first"]
        if page >= last:
            del numbers["next"], numbers["last"]
        link = ", ".join(f'<{url}{number}>; rel="{name}"' for name, number in numbers.items())
        start = (page - 1) * per_page
        return Answer(200, found[start : start + per_page], {"Link": link} if link else {})

    def _check_request(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        try:
            description().validate_request(_described(method, target, self.prefix, headers, body))
        except OpenAPIError as problem:
            self.violations.append(f"request {method} {target}: {_causes(problem)}")

    def _check_answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes, answer: Answer
    ) -> None:
        request = _described(method, target, self.prefix, headers, body)
        response = MockResponse(
            answer.body, answer.status, headers=answer.headers, content_type="application/json"
        )
        try:
            description().validate_response(request, response)
        except OpenAPIError as problem:
            self.violations.append(f"answer {answer.status} to {method} {target}: {_causes(problem)}")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _account(login: str) -> dict[str, Any]:
    """Return an account as shown beside its comments and statuses; the same name has the same number."""
    url = f"https://api.github.com/users/{login}"
    links = ("followers", "following", "gists", "starred", "subscriptions", "organizations", "repos")
    return {
        "login": login,
        "id": crc32(login.encode()),
        "node_id": f"U_{login}",
        "avatar_url": f"https://avatars.githubusercontent.com/{login}",
        "gravatar_id": "",
        "url": url,
        "html_url": f"https://github.com/{login}",
        **{f"{name}_url": f"{url}/{name}" for name in links},
        "events_url": f"{url}/events",
        "received_events_url": f"{url}/received_events",
        "type": "Bot" if login.endswith("[bot]") else "User",
        "user_view_type": "public",
        "site_admin": False,
    }


def _profile(login: str) -> dict[str, Any]:
    """Return an account as its own user sees it."""
    unsaid = ("name", "company", "location", "email", "hireable", "bio")
    counted = ("public_repos", "public_gists", "followers", "following")
    return {
        **_account(login),
        **dict.fromkeys(unsaid),
        **dict.fromkeys(counted, 0),
        "blog": "",
        "created_at": _now(),
        "updated_at": _now(),
    }


def _described(method: str, target: str, prefix: str, headers: dict[str, str], body: bytes) -> MockRequest:
    """Return the request as sent to GitHub's own host, the only host in the description."""
    address = urlsplit(target)
    query = {name: values[-1] for name, values in parse_qs(address.query).items()}
    return MockRequest(
        DESCRIBED_HOST,
        method.lower(),
        address.path.removeprefix(prefix),
        args=query,
        headers=headers,
        data=body or None,
        content_type=headers.get("content-type", "").partition(";")[0],
    )


def _causes(problem: BaseException | None) -> str:
    told = []
    while problem is not None:
        told.append(repr(problem))
        problem = problem.__cause__ or problem.__context__
    return " <- ".join(told)


def _handler(github: GitHubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", "0")))
            answer = github.answer(self.command, self.path, headers, body)
            self.send_response(answer.status)
            for name, value in {**answer.headers, "Content-Type": answer.content_type}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

        def log_message(self, *_: object) -> None:
            pass

    return Handler
