"""Tokens go to their owners, and to hosts that the user allowed: attacks by files that a branch can add."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from reconciler.base.errors import InvalidError, ServiceError
from reconciler.base.http import DirectTransport, HttpRequest, NotSentError
from reconciler.base.http.destination import GITHUB, GOOGLE, OwnerHosts, ThisMachine, destination_of
from reconciler.google.credentials import DefaultCredentials
from reconciler.manifests.settings import Config, from_document, load_config
from reconciler.manifests.token_hosts import token_hosts
from reconciler.operations.session import open_session
from reconciler.reporting.github.settings import github_settings
from tests.support.google_place import CONFIG, SUBMITTER
from tests.support.held_service import HeldService
from tests.support.raw_server import Arrived, Behaviour, RawServer, answer
from tests.support.repository import Repository
from tests.support.tls import behind_tls, server_tls
from tests.support.token_server import private_key, token_server
from tests.support.waiting import PATIENCE
from tests.support.watching import watching

TOKEN = "ya29.the-users-own-token"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
APIS = ("aiplatform", "ml", "storage", "logging", "iamcredentials")
Serve = Callable[..., RawServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Yield a starter of strangers' servers; their TLS certificates are trusted."""
    with ExitStack() as stack:

        def running(*behaviours: Behaviour, plain: bool = False) -> RawServer:
            tls = None if plain else server_tls()
            return stack.enter_context(RawServer([*behaviours], tls=tls).running())

        yield running


def place(url: str) -> str:
    """Return host and port of a test's server."""
    return urlsplit(url).netloc


class Lookups:
    """The names that this process asks the resolver for, as the interpreter reports them."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] | None = None
        sys.addaudithook(self._hear)

    def _hear(self, name: str, arguments: tuple[object, ...]) -> None:
        if self.seen is None or name != "socket.getaddrinfo":
            return
        host, port = arguments[:2]
        self.seen.append((host.decode() if isinstance(host, bytes) else str(host), int(str(port))))
        raise OSError("far enough")

    @contextmanager
    def noted(self) -> Iterator[list[tuple[str, int]]]:
        self.seen = found = []
        try:
            yield found
        finally:
            self.seen = None


@pytest.fixture(scope="module")
def lookups() -> Lookups:
    return Lookups()


# The rule


@pytest.mark.parametrize(
    "url",
    [
        "https://googleapis.com/",
        "https://storage.googleapis.com/upload?x=@evil.example",
        "https://us-central1-aiplatform.googleapis.com",
        "https://aiplatform.us-central1.rep.googleapis.com/",
        "https://STORAGE.GoogleAPIs.com/",
        "HTTPS://storage.googleapis.com:443/",
        "https://storage.googleapis.com:/",
    ],
)
def test_googles_hosts_get_googles_token(url: str) -> None:
    assert GOOGLE.permits(destination_of(url))
    assert not GITHUB.permits(destination_of(url))


@pytest.mark.parametrize(
    "url", ["https://api.github.com", "https://api.acme-1.ghe.com/x", "https://API.GitHub.com:443"]
)
def test_githubs_hosts_get_githubs_token(url: str) -> None:
    assert GITHUB.permits(destination_of(url))
    assert not GOOGLE.permits(destination_of(url))


STRANGE = [
    "https://evil.example/",
    "https://evilgoogleapis.com/",
    "https://googleapis.com.evil.example/",
    "https://storage.googleapis.com.evil.example/",
    "https://googleapis.com@evil.example/",
    "https://googleapis.com:443@evil.example/",
    "https://@storage.googleapis.com/",
    "https://evil.example#.googleapis.com/",
    "https://evil.example?.googleapis.com/",
    "https://evil.example/.googleapis.com/",
    "https://evil.example\\.googleapis.com/",
    "https://evil.example\\@storage.googleapis.com/",
    "https://evil.example%2f.googleapis.com/",
    "https://evil.example%23.googleapis.com/",
    "https://evil.example;.googleapis.com/",
    "https://evil.example:443.googleapis.com/",
    "https://evil.example\t.googleapis.com/",
    "https://evil.example\n.googleapis.com/",
    "https://evil.example .googleapis.com/",
    "https://storage.googleapis.com./",
    "https://storage.googleapis.com../",
    "https://.googleapis.com/",
    "https://storage..googleapis.com/",
    "https://[storage.googleapis.com]/",
    "https://[::1]/",
    "https://googleapis\u3002com/",
    "https://googleapis\uff0ecom/",
    "https://goog\u200bleapis.com/",
    "https://g\u043e\u043egleapis.com/",
    "https://xn--gogleapis-9sa.com/",
    "https://storage.googleapis.com:8443/",
    "https://storage.googleapis.com:0443443/",
    "https://storage.googleapis.com:0/",
    "https://storage.googleapis.com:4_43/",
    "https://storage.googleapis.com:\u0664\u0664\u0663/",
    "http://storage.googleapis.com/",
    "http://storage.googleapis.com:443/",
    "ftp://storage.googleapis.com/",
    "//storage.googleapis.com/",
    "https:storage.googleapis.com/",
    "https:///storage.googleapis.com/",
    "storage.googleapis.com",
    "",
    "https://api.github.com.evil.example/",
    "https://xapi.github.com/",
    "https://github.com/",
    "https://api.ghe.com/",
    "https://api.a.b.ghe.com/",
    "https://api..ghe.com/",
    "https://evil.ghe.com/",
    "https://api.evil.example/.ghe.com/",
    "http://api.github.com/",
    "https://api.github.com:8443/",
    "https://api.github.com./",
]


@pytest.mark.parametrize("url", STRANGE)
@pytest.mark.parametrize("rule", [GOOGLE, GITHUB, GOOGLE.also({("proxy.example", 443), ("::2", 443)})])
def test_strange_urls_get_no_token(lookups: Lookups, url: str, rule: OwnerHosts) -> None:
    with lookups.noted() as asked, pytest.raises(NotSentError):
        DirectTransport(rule).send(HttpRequest("GET", url, AUTHORIZED))
    assert asked == []


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1/", "http://192.0.2.1/", "http://127.0.0.1.evil.example/", "http://127.1/"]
)
def test_training_services_token_stays_on_loopback(url: str) -> None:
    assert not ThisMachine().permits(destination_of(url))
    assert ThisMachine().permits(destination_of("http://127.0.0.1:8080/v1"))


@pytest.mark.parametrize("name", ["Authorization", "authorization", "Cookie", "Proxy-Authorization"])
def test_transport_without_a_rule_sends_no_credential(serve: Serve, name: str) -> None:
    server = serve(answer())
    with pytest.raises(NotSentError, match="may not be sent") as caught:
        DirectTransport().send(HttpRequest("GET", server.url, {name: f"Bearer {TOKEN}"}))
    assert TOKEN not in str(caught.value)
    assert server.connections == 0
    assert DirectTransport().send(HttpRequest("GET", server.url)).status == 200


NAMES = "googleapis.com storage. GoogleApis.COM api.github.com evil.example proxy.example api. acme .ghe.com"
MARKS = ". .. / // \\ @ : :443 :8443 :80 # ? ; %2e %2f %40 [ ] ::1 xn-- - _ & = x \u3002 \uff0e \u2024 \u2100"
# Half of them are empty, so that some texts are valid.
PIECES = st.just("") | st.sampled_from([*NAMES.split(), *MARKS.split(), "\t", "\n", "\0", " "])
TEXTS = st.tuples(PIECES, PIECES, st.sampled_from(NAMES.split()), PIECES, PIECES).map("".join)
SCHEMES = st.sampled_from(
    ["https://"] * 8 + ["http://", "HTTPS://", "https:/", "https:", "https:\\\\", "//", " https://"]
)
PERMITTED = {
    "Google": re.compile(r"(?:.*\.)?googleapis\.com"),
    "GitHub": re.compile(r"api\.github\.com|api\.[^.]+\.ghe\.com"),
}


@pytest.mark.slow
@settings(max_examples=1000)  # a first connection reads the certificates
@given(scheme=SCHEMES, text=TEXTS, allows=st.booleans(), owner=st.sampled_from([GOOGLE, GITHUB]))
@example(scheme="https://", text="storage.googleapis.com/", allows=False, owner=GOOGLE)
@example(scheme="https://", text="GoogleApis.COM:443", allows=False, owner=GOOGLE)
@example(scheme="https://", text="api.acme.ghe.com?x", allows=False, owner=GITHUB)
@example(scheme="https://", text="proxy.example:8443/", allows=True, owner=GITHUB)
def test_connections_with_a_token_lead_to_permitted_hosts_only(
    lookups: Lookups, scheme: str, text: str, allows: bool, owner: OwnerHosts
) -> None:
    """The resolver is the judge: it gets the host and port of the transport's real connection."""
    allowed = {("proxy.example", 8443)} if allows else set()
    transport = DirectTransport(owner.also(allowed))
    with lookups.noted() as asked, pytest.raises(NotSentError):
        transport.send(HttpRequest("GET", scheme + text, AUTHORIZED, timeout=5.0))
    for host, port in asked:
        is_own = PERMITTED[owner.owner].fullmatch(host) is not None and port == 443
        assert is_own or (host, port) in allowed
        assert (scheme + text).lower().startswith("https://")
    event("connects" if asked else "refused")


def test_permitted_hosts_are_looked_up(lookups: Lookups) -> None:
    """The law above has a case: a permitted URL gets as far as the resolver."""
    with lookups.noted() as asked, pytest.raises(NotSentError):
        DirectTransport(GOOGLE).send(HttpRequest("GET", "https://Storage.GoogleApis.com/x", AUTHORIZED))
    assert asked == [("storage.googleapis.com", 443)]


# The user's allowed hosts


def test_hosts_of_the_variable_are_allowed(tmp_path: Path) -> None:
    hosts = token_hosts(
        tmp_path, {"RECONCILER_TOKEN_HOSTS": " Proxy.Example:8443, other.example,[2001:DB8::1]:99 ,"}
    )
    places = {("proxy.example", 8443), ("other.example", 443), ("2001:db8::1", 99)}
    assert hosts.google.allowed == hosts.github.allowed == places


@pytest.mark.parametrize(
    "written",
    [
        "https://proxy.example",
        "*.example",
        ".example",
        "proxy.example/",
        "a@b",
        "proxy.example.",
        "a b",
        "a:0",
        "a:x",
        "é",
        "a#b",
        "google:",
        "google:8443",
        "google: a",
        "google:github:a",
        "gitlab:a.example",
    ],
)
def test_what_is_no_host_is_refused_by_name(tmp_path: Path, written: str) -> None:
    with pytest.raises(InvalidError, match="RECONCILER_TOKEN_HOSTS") as caught:
        token_hosts(tmp_path, {"RECONCILER_TOKEN_HOSTS": written})
    assert "HOST or HOST:PORT" in caught.value.hint


HOSTS = st.sampled_from(["h", "proxy.example", "google", "github", "google.example", "[::1]", "10.0.0.1"])
ENTRIES = st.tuples(
    st.sampled_from(["", "google:", "github:", "Google:", "GITHUB:"]),
    HOSTS,
    st.sampled_from(["", ":443", ":8443"]),
).map("".join)


@given(entries=st.lists(ENTRIES, max_size=4), in_file=st.booleans())
@example(entries=["google:h", "github:h:8443"], in_file=False)
@example(entries=["google", "github:github:8443"], in_file=True)
def test_entry_for_one_owner_never_lets_the_other_token_go_there(
    tmp_path_factory: pytest.TempPathFactory, entries: list[str], in_file: bool
) -> None:
    folder = tmp_path_factory.mktemp("settings")
    environ = (
        allow_by_file(folder, "\n".join(entries))
        if in_file
        else {"HOME": str(folder), "RECONCILER_TOKEN_HOSTS": ",".join(entries)}
    )
    try:
        hosts = token_hosts(folder / "root", environ)
    except InvalidError:
        # The text may mean a port of a host named "google", or a host "8443" for Google's token.
        assert any(re.fullmatch(r"(google|github):\d+", entry) for entry in entries)
        return
    for rule, other in ((hosts.google, "github:"), (hosts.github, "google:")):
        for_it = [entry for entry in entries if not entry.lower().startswith(other)]
        places = [entry.lower().removeprefix(f"{rule.owner.lower()}:") for entry in for_it]
        to = (destination_of(f"https://{place}") for place in places)
        assert rule.allowed == {(one.host, one.port) for one in to}


def allow_by_file(folder: Path, text: str) -> dict[str, str]:
    """Return the variables of a user with this file."""
    file = folder / "reconciler" / "token-hosts"
    file.parent.mkdir(parents=True, mode=0o755)
    file.write_text(text)
    file.chmod(0o644)
    return {"XDG_CONFIG_HOME": str(folder)}


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_comment_ends_at_a_line_feed_alone(separator: str, tmp_path: Path) -> None:
    environ = allow_by_file(tmp_path / "settings", f"# note{separator}other.example\n")
    assert not token_hosts(tmp_path / "root", environ).google.allowed


def test_hosts_of_the_users_file_are_allowed(tmp_path: Path) -> None:
    text = "# proxies\n\nproxy.example:8443 # ours\r\n other.example\n"
    root = tmp_path / "root"
    environ = allow_by_file(tmp_path / "settings", text)
    assert token_hosts(root, environ).google.allowed == {("proxy.example", 8443), ("other.example", 443)}
    environ = allow_by_file(tmp_path / "home" / ".config", "there.example")
    for relative in ("", "settings"):
        environ = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": relative}
        assert token_hosts(root, environ).google.allowed == {("there.example", 443)}


def test_a_wrong_line_of_the_users_file_is_named(tmp_path: Path) -> None:
    environ = allow_by_file(tmp_path / "settings", "proxy.example\n*.example\n")
    with pytest.raises(InvalidError, match=r"token-hosts, line 2: \"\*\.example\""):
        token_hosts(tmp_path / "root", environ)


def in_checkout(root: Path) -> dict[str, str]:
    return allow_by_file(root / ".config", "evil.example")


def in_checkout_above(root: Path) -> dict[str, str]:
    """Return the user's variables, with the settings' root in a folder of the checkout."""
    (root.parent / ".git").mkdir()
    (root.parent / ".git" / "HEAD").touch()
    return allow_by_file(root.parent / "cfg", "evil.example")


def by_link_into_checkout(root: Path) -> dict[str, str]:
    allow_by_file(root / "cfg", "evil.example")
    (root.parent / "settings").symlink_to(root / "cfg")
    return {"XDG_CONFIG_HOME": str(root.parent / "settings")}


def by_link_out_of_checkout(root: Path) -> dict[str, str]:
    allow_by_file(root.parent / "elsewhere", "evil.example")
    (root / "cfg").symlink_to(root.parent / "elsewhere")
    return {"XDG_CONFIG_HOME": str(root / "cfg")}


def writable_by_others(root: Path) -> dict[str, str]:
    environ = allow_by_file(root.parent / "settings", "evil.example")
    (root.parent / "settings/reconciler/token-hosts").chmod(0o646)
    return environ


def writable_folder(root: Path) -> dict[str, str]:
    environ = allow_by_file(root.parent / "settings", "evil.example")
    (root.parent / "settings/reconciler").chmod(0o775)
    return environ


def pipe(root: Path) -> dict[str, str]:
    environ = allow_by_file(root.parent / "settings", "")
    file = root.parent / "settings/reconciler/token-hosts"
    file.unlink()
    os.mkfifo(file)
    return environ


def folder_in_place(root: Path) -> dict[str, str]:
    environ = allow_by_file(root.parent / "settings", "")
    file = root.parent / "settings/reconciler/token-hosts"
    file.unlink()
    file.mkdir()
    return environ


def too_large(root: Path) -> dict[str, str]:
    return allow_by_file(root.parent / "settings", "evil.example\n" * 10_000)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (in_checkout, "it lies in the checkout"),
        (in_checkout_above, "it lies in the checkout"),
        (by_link_into_checkout, "it lies in the checkout"),
        (by_link_out_of_checkout, "it lies in the checkout"),
        (writable_by_others, "other users can write to it"),
        (writable_folder, "other users can write to its folder"),
        (pipe, "not a regular file"),
        (folder_in_place, "not a regular file"),
        (too_large, "larger than"),
    ],
)
def test_a_file_that_others_may_have_written_allows_nothing(
    tmp_path: Path, made: Callable[[Path], dict[str, str]], why: str
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "reconciler.yaml").touch()
    hosts = token_hosts(root, made(root))
    assert not hosts.google.allowed
    refused = hosts.refusal(hosts.google, "https://evil.example/")
    assert refused is not None
    assert why in refused[1]
    assert "RECONCILER_TOKEN_HOSTS=google:evil.example" in refused[1]


def test_a_file_of_another_user_allows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = allow_by_file(tmp_path / "settings", "evil.example")
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    hosts = token_hosts(tmp_path / "root", environ)
    assert not hosts.google.allowed
    assert "belongs to another user" in hosts.unused


# Google's token


@pytest.fixture(scope="module")
def key() -> str:
    return private_key()


@pytest.fixture
def google(tmp_path: Path, key: str) -> Iterator[dict[str, str]]:
    """Return the variables of a user with credentials; no host is allowed."""
    with token_server(lambda: TOKEN) as token_uri:
        credentials(tmp_path, key, token_uri)
        yield {"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "key.json"), "RECONCILER_ENV": "prod"}


def credentials(folder: Path, key: str, token_uri: str) -> None:
    told = {
        "type": "service_account",
        "client_email": "me@acme-ml.iam.gserviceaccount.com",
        "private_key": key,
        "private_key_id": "1",
        "project_id": "acme-ml",
        "token_uri": token_uri,
    }
    (folder / "key.json").write_text(json.dumps(told))


def lead_to(repository: Repository, url: str, *apis: str) -> None:
    """Write settings as a branch could add them."""
    endpoints = ", ".join(f'{api}: "{url}"' for api in apis)
    text = CONFIG.format(submitter=f"submitter: {SUBMITTER}", endpoints=endpoints)
    repository.write("reconciler.yaml", text)


COMMANDS = [
    "plan",
    "status",
    "logs census",
    "apply",
    "cancel census",
    "resolve census --give-up",
    "render census",
]


ALSO = ["tensorboard census", "fetch census", "verify gs://a/current.json", "init --claims", "report"]


@pytest.mark.parametrize("scheme", ["https", "http"])
@pytest.mark.parametrize("command", [*COMMANDS, *ALSO])
def test_endpoints_of_a_branch_get_no_google_token(
    repository: Repository, google: dict[str, str], serve: Serve, command: str, scheme: str
) -> None:
    repository.job("census")
    stranger = serve(answer(404), plain=scheme == "http")
    lead_to(repository, stranger.url, "storage")
    refused = repository.run(
        *command.split(), **google, GITHUB_ACTIONS="true", GITHUB_REPOSITORY="acme/models"
    )
    if command.startswith("render"):
        assert refused.code == 0, "it asks no service"
    else:
        assert refused.code == 3, refused.err
        assert "reconciler.yaml:11:" in refused.err
        assert "/environments/prod/endpoints/storage" in refused.err
        if scheme == "https":
            assert f'"{place(stranger.url)}" may not get the Google token' in refused.err
            assert f"RECONCILER_TOKEN_HOSTS=google:{place(stranger.url)}" in refused.err
            assert "no-settings/reconciler/token-hosts" in refused.err
        else:
            assert "plain http" in refused.err
    assert stranger.connections == 0


@pytest.mark.parametrize("api", APIS)
def test_each_endpoint_is_judged(
    repository: Repository, google: dict[str, str], serve: Serve, api: str
) -> None:
    repository.job("census")
    stranger = serve(answer(404))
    lead_to(repository, stranger.url, api)
    refused = repository.run("plan", **google)
    assert refused.code == 3
    assert f"/environments/prod/endpoints/{api}" in refused.err
    assert stranger.connections == 0


def test_plain_http_gets_no_google_token_though_the_user_allowed_the_host(
    repository: Repository, google: dict[str, str], serve: Serve
) -> None:
    repository.job("census")
    stranger = serve(answer(404), plain=True)
    lead_to(repository, stranger.url, *APIS)
    refused = repository.run("plan", **google, RECONCILER_TOKEN_HOSTS=place(stranger.url))
    assert refused.code == 3
    assert "plain http" in refused.err
    assert stranger.connections == 0


def test_a_host_gets_googles_token_once_the_user_allows_it(
    repository: Repository, google: dict[str, str], serve: Serve, tmp_path: Path
) -> None:
    repository.job("census")
    for allowed in (
        lambda url: {"RECONCILER_TOKEN_HOSTS": place(url)},
        lambda url: allow_by_file(tmp_path / "settings", place(url)),
    ):
        server = serve(answer(401))
        lead_to(repository, server.url, *APIS)
        assert repository.run("plan", **google, **allowed(server.url)).code == 1
        assert server.arrived[0].headers["authorization"] == f"Bearer {TOKEN}"


LEADING_AWAY = [
    "evil.example/",
    "x@evil.example#",
    "evil.example#",
    "evil.example?",
    "evil.example:443/",
    "evil.example\\",
]


@pytest.mark.parametrize(
    "location",
    [*LEADING_AWAY, "us-central1\n", "us-central1.evil.example", "US-central1", "é", "evil.example%2f", ""],
)
def test_a_location_leads_to_no_other_host(tmp_path: Path, location: str) -> None:
    prod = {"engine": "google", "project": "acme-ml", "location": location, "stagingBucket": "acme-staging"}
    document = {"source": "acme-jobs", "environments": {"prod": prod}}
    (tmp_path / "reconciler.yaml").write_text(json.dumps(document))
    with pytest.raises(InvalidError) as caught:
        load_config(tmp_path)
    assert {problem.pointer for problem in caught.value.problems} == {"/environments/prod/location"}


@pytest.mark.parametrize("location", [*LEADING_AWAY, "a\n"])
def test_the_address_is_judged_though_the_schema_let_a_location_pass(tmp_path: Path, location: str) -> None:
    config = google_config(tmp_path, location=location)
    with (
        pytest.raises(InvalidError) as caught,
        open_session(config, config.environment("prod"), {}, start=False),
    ):
        pytest.fail("the session is open")
    (problem,) = caught.value.problems
    assert problem.pointer == "/environments/prod/location"


def google_config(root: Path, **changed: object) -> Config:
    prod = {
        "engine": "google",
        "project": "acme-ml",
        "location": "us-central1",
        "stagingBucket": "acme-staging",
    }
    document = {"source": "acme-jobs", "environments": {"prod": {**prod, **changed}}}
    return from_document(root, document)


def test_google_itself_gets_googles_token(tmp_path: Path, lookups: Lookups) -> None:
    config = google_config(tmp_path)
    with open_session(config, config.environment("prod"), {}, start=False) as session:
        endpoint = session.connection.endpoint
        for api, root in endpoint.roots.items():
            with lookups.noted() as asked, pytest.raises(NotSentError):
                endpoint.transport.send(HttpRequest("POST", root, AUTHORIZED))
            host = "us-central1-aiplatform" if api == "aiplatform" else api
            assert asked == [(f"{host}.googleapis.com", 443)]


def test_an_answer_that_redirects_to_another_host_takes_no_token_there(
    repository: Repository, google: dict[str, str], serve: Serve
) -> None:
    repository.job("census")
    stranger = serve(answer(200))
    for status in (301, 302, 303, 307, 308):
        server = serve(answer(status, b"", location=stranger.url + "/"))
        lead_to(repository, server.url, *APIS)
        environ = {**google, "RECONCILER_TOKEN_HOSTS": place(server.url)}
        assert repository.run("plan", **environ).code == 1
        assert server.arrived
    assert stranger.connections == 0


@pytest.mark.slow
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_of_the_token_server_takes_no_assertion_along(
    tmp_path: Path, key: str, serve: Serve, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    stranger = serve(answer(200, json.dumps({"access_token": "theirs", "expires_in": 3600}).encode()))
    server = serve(answer(status, b"", location=stranger.url + "/token"))
    credentials(tmp_path, key, f"{server.url}/token")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    with pytest.raises(ServiceError, match="no usable Google credentials"):
        DefaultCredentials().headers()
    assert server.arrived
    assert stranger.connections == 0


def test_no_assertion_goes_by_plain_http(
    tmp_path: Path, key: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(answer(200), plain=True)
    credentials(tmp_path, key, f"{server.url}/token")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    with pytest.raises(ServiceError, match="token_uri, is not https"):
        DefaultCredentials().headers()
    assert server.connections == 0


FOUND = """
import os, sys
sys.argv = ["reconciler"]
from reconciler.base.errors import ServiceError
from reconciler.google.credentials import DefaultCredentials
try:
    print(dict(DefaultCredentials().headers()))
except ServiceError as error:
    print(error.message)
"""


@pytest.mark.slow
def test_files_of_a_checkout_name_no_credentials(tmp_path: Path, key: str, serve: Serve) -> None:
    """Check all files that google-auth, gcloud, requests or dotenv might read from the working directory."""
    stranger = serve(answer(200))
    root = tmp_path / "root"
    root.mkdir()
    credentials(root, key, f"{stranger.url}/token")
    told = (root / "key.json").read_text()
    variables = f"GOOGLE_APPLICATION_CREDENTIALS={root}/key.json\nGCE_METADATA_HOST={place(stranger.url)}\n"
    files = {
        ".env": variables,
        ".envrc": variables,
        ".netrc": f"machine localhost login a password {TOKEN}\n",
    }
    for name in (
        "application_default_credentials.json",
        ".config/gcloud/application_default_credentials.json",
        "gcloud/application_default_credentials.json",
        "credentials.json",
    ):
        files[name] = told
    files[".config/gcloud/configurations/config_default"] = (
        "[core]\nproject = evil\n[billing]\nquota_project = evil\n"
    )
    files[".boto"] = "[Credentials]\ngs_service_key_file = key.json\n"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "NO_GCE_CHECK": "true"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", FOUND],
        cwd=root,
        env=environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert "no usable Google credentials" in done.stdout, done.stderr
    assert stranger.connections == 0


def metadata(sock: socket.socket, request: Arrived) -> bool:
    """Return the answer of the metadata server of a machine at Google."""
    told: dict[str, object] = {
        "/computeMetadata/v1/instance/service-accounts/default/": {
            "email": "me@x",
            "aliases": [],
            "scopes": [],
        },
        "/computeMetadata/v1/instance/service-accounts/default/token": {
            "access_token": TOKEN,
            "expires_in": 3600,
        },
    }
    said = told.get(request.target.partition("?")[0], "googleapis.com")
    body = said.encode() if isinstance(said, str) else json.dumps(said).encode()
    more = {
        "metadata_flavor": "Google",
        "content_type": "text/plain" if isinstance(said, str) else "application/json",
    }
    return answer(200, body, **more)(sock, request)


@pytest.mark.slow
def test_the_metadata_server_is_asked_by_plain_http(tmp_path: Path, serve: Serve) -> None:
    """The server has no TLS; requests to it carry no secret."""
    server = serve(metadata, plain=True)
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        **dict.fromkeys(("GCE_METADATA_HOST", "GCE_METADATA_IP"), place(server.url)),
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", FOUND],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert f"Bearer {TOKEN}" in done.stdout, done.stdout + done.stderr
    assert not any(request.body or "authorization" in request.headers for request in server.arrived)


# GitHub's token


@pytest.mark.parametrize("scheme", ["https", "http"])
@pytest.mark.parametrize("command", ["apply", "report"])
def test_api_url_of_a_branch_gets_no_github_token(
    repository: Repository, serve: Serve, command: str, scheme: str
) -> None:
    repository.job("census")
    stranger = serve(answer(200, b"[]"), plain=scheme == "http")
    with (repository.root / "reconciler.yaml").open("a") as settings:
        settings.write(f'github:\n  repository: acme/models\n  apiUrl: "{stranger.url}"\n')
    for name in ("GITHUB_TOKEN", "GH_TOKEN"):
        refused = repository.run(command, **{name: "ghp_mine"})
        assert refused.code == 3
        assert "apiUrl" in refused.err
        assert "reconciler.yaml" in refused.err
        if scheme == "https":
            assert f'"{place(stranger.url)}" may not get the GitHub token' in refused.err
            assert "reconciler.yaml:5:" in refused.err
            assert f"RECONCILER_TOKEN_HOSTS=github:{place(stranger.url)}" in refused.err
            assert "no-settings/reconciler/token-hosts" in refused.err
    assert stranger.connections == 0
    assert not (repository.home / "service.json").exists(), "nothing was started"


def test_api_url_of_a_branch_that_comes_while_watching_gets_no_github_token(
    repository: Repository, serve: Serve
) -> None:
    stranger = serve(answer(200, b"[]"))
    repository.job("census", reconcile="{suspend: true}")
    repository.git("init", "-q", "-b", "main")
    repository.git("add", "-A")
    repository.git("commit", "-q", "-m", "a job")
    file = repository.root / "reconciler.yaml"
    before = file.read_text()
    with HeldService(repository.home).running(), watching(repository, GITHUB_TOKEN="ghp_mine") as watch:
        watch.awaits("pass")
        file.write_text(f'{before}github:\n  repository: acme/models\n  apiUrl: "{stranger.url}"\n')
        assert "GitHub token" in str(watch.awaits("invalid"))
        file.write_text(before)
        watch.awaits("pass", len(watch.told("pass")) + 1)
        assert watch.end() == 0
        assert "ghp_mine" not in "".join(watch.lines)
    assert stranger.connections == 0


def test_the_address_in_the_environment_is_the_users_word(tmp_path: Path) -> None:
    """Check the address that GitHub Actions sets: for github.com, ghe.com and an enterprise's own server."""
    environ = {"GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": "a/b", "GITHUB_TOKEN": "t"}
    for url in ("https://api.github.com", "https://api.acme.ghe.com", "https://ghes.example:8443/api/v3"):
        settings = github_settings(
            {"apiUrl": "https://evil.example"}, {**environ, "GITHUB_API_URL": url}, tmp_path
        )
        assert settings is not None
        assert settings.api_url == url
        assert settings.recipients.permits(destination_of(url))
        assert not settings.recipients.permits(destination_of("https://evil.example"))
    with pytest.raises(InvalidError, match="GITHUB_API_URL"):
        github_settings(None, {**environ, "GITHUB_API_URL": "http://localhost:8080"}, tmp_path)


@pytest.mark.parametrize("url", ["https://api.github.com/", "https://api.acme.ghe.com"])
def test_githubs_own_hosts_may_stand_in_the_file(tmp_path: Path, url: str) -> None:
    settings = github_settings({"repository": "a/b", "apiUrl": url}, {"GITHUB_TOKEN": "t"}, tmp_path)
    assert settings is not None
    assert settings.recipients == GITHUB


def test_githubs_redirect_to_another_host_takes_no_token_there(repository: Repository, serve: Serve) -> None:
    stranger = serve(answer(200, b"[]"))
    github = serve(answer(307, b"", location=stranger.url + "/"))
    repository.git("init", "-q", "-b", "main")
    repository.job("census", reconcile="{suspend: true}")
    repository.git("add", "-A")
    repository.git("commit", "-q", "-m", "a job")
    environ = {"GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": "acme/models", "GITHUB_API_URL": github.url}
    told = repository.run("apply", GITHUB_TOKEN="ghp_mine", **environ)
    assert "has moved" in told.err
    assert github.arrived[0].headers["authorization"] == "Bearer ghp_mine"
    assert stranger.connections == 0


def test_fronts_of_the_tests_carry_bytes_both_ways(serve: Serve) -> None:
    server = serve(answer(200, b"x" * 300_000), plain=True)
    with behind_tls(f"{server.url}/api") as url:
        transport = DirectTransport()
        for body in (b"", b"y" * 300_000):
            assert transport.send(HttpRequest("POST", url, body=body)).body == b"x" * 300_000
    assert [len(request.body) for request in server.arrived] == [0, 300_000]
