"""Google Cloud and GitHub behind a company's proxy, as the only way to resolve and reach them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.connect_proxy import connect_proxy
from tests.support.fault_proxy import FaultProxy
from tests.support.github_server import WRITE, GitHubServer
from tests.support.google_place import google_place
from tests.support.held_service import HeldService
from tests.support.namespace import IS_INSIDE, run_inside
from tests.support.repository import Repository
from tests.support.tls import behind_tls

pytestmark = pytest.mark.slow

TOKEN = "ghs_of-a-workflow"


@contextmanager
def company(
    repository: Repository, tmp_path: Path, *, credentials: str = "", tls: bool = False
) -> Iterator[tuple[dict[str, str], GitHubServer, HeldService]]:
    """Yield the variables of a machine in the company, its GitHub, and its Google."""
    server = GitHubServer(tokens={TOKEN: WRITE})
    with (
        HeldService(repository.home).running() as service,
        FaultProxy(service.url, 1).running() as front,
        connect_proxy(tmp_path / "proxy", credentials=credentials, tls=tls) as url,
        google_place(repository, service, front.url, tmp_path, submitter=False, proxy=url) as environ,
        server.running(),
        behind_tls(server.plain_url, "github.example.test") as github,
    ):
        for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "jobs")):
            repository.git(*words)
        server.commits.add(repository.git("rev-parse", "HEAD"))
        named = url.replace("://", f"://{credentials}@" if credentials else "://")
        variables = {
            **environ,
            "HTTPS_PROXY": named,
            "GITHUB_ACTIONS": "true",
            "GITHUB_REPOSITORY": "acme/models",
            "GITHUB_API_URL": github,
            "GITHUB_TOKEN": TOKEN,
        }
        yield variables, server, service


if IS_INSIDE:

    @pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
    @pytest.mark.parametrize("credentials", ["", "me:secret"], ids=["open", "with credentials"])
    def test_plan_apply_and_report_go_through_the_proxy(
        repository: Repository, tmp_path: Path, tls: bool, credentials: str
    ) -> None:
        repository.job()
        with company(repository, tmp_path, credentials=credentials, tls=tls) as (environ, github, service):
            assert repository.run("init", "--claims", **environ).code == 0
            planned = repository.run("plan", **environ)
            assert (planned.code, "1 to submit" in planned.out) == (0, True), planned.err
            applied = repository.run("apply", **environ)
            assert applied.code == 0, applied.err
            assert len(service.names("acme-ml", "us-central1")) == 1
            reported = repository.run("report", **environ)
            assert reported.code == 0, reported.err
            assert github.statuses
            assert "secret" not in f"{planned}{applied}{reported}"

    def test_what_fails_on_the_way_is_told_apart_and_no_login_is_advised(
        repository: Repository, tmp_path: Path
    ) -> None:
        repository.job()
        with company(repository, tmp_path, credentials="me:secret") as (environ, _, _service):
            without = repository.run("plan", **{**environ, "HTTPS_PROXY": ""})
            assert "its name doesn't resolve" in without.err
            assert "name it in HTTPS_PROXY" in without.err
            unnamed = environ["HTTPS_PROXY"].replace("me:secret@", "")
            anonymous = repository.run("plan", **{**environ, "HTTPS_PROXY": unnamed})
            assert "demands a user name and a password" in anonymous.err
            assert "USER:PASSWORD@" in anonymous.err
            wrong = repository.run(
                "plan", **{**environ, "HTTPS_PROXY": environ["HTTPS_PROXY"].replace("secret", "wr0ng")}
            )
            assert "refuses the user name and the password" in wrong.err
            exempt = repository.run("plan", **{**environ, "NO_PROXY": ".example.test"})
            assert "its name doesn't resolve" in exempt.err
            socks = repository.run("plan", **{**environ, "HTTPS_PROXY": "socks5://me:secret@localhost:1"})
            assert "names a proxy of the kind socks5" in socks.err
            (tmp_path / "none").mkdir()
            untrusting = repository.run("plan", **{**environ, "SSL_CERT_FILE": "/none.pem"})
            assert "SSL_CERT_FILE names '/none.pem', which doesn't exist" in untrusting.err
            for failed in (without, anonymous, wrong, exempt, socks, untrusting):
                assert failed.code == 1
                assert "login" not in failed.err
                assert not any(word in failed.err for word in ("secret", "wr0ng"))

else:

    def test_google_and_github_behind_a_proxy_in_a_namespace(tmp_path: Path) -> None:
        run_inside(__file__, tmp_path)
