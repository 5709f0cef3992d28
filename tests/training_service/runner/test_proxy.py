"""The proxy of a run, asked as programs do that have Google's addresses compiled in."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from reconciler.training_service.jobs import environment_variables
from reconciler.training_service.runner import proxy, proxy_server
from reconciler.training_service.runner.proxy import sign_certificates
from reconciler.training_service.state.records import JobRecord
from tests.support.tls import server_tls
from tests.support.training_service import runs, trainers
from tests.support.training_service.mounts import works
from tests.support.training_service.proxy import to_storage_of
from tests.support.training_service.runs import UNABLE, nothing_is_left_of
from tests.support.training_service.served import Service

API, XML, LOGGING = "www.googleapis.com", "storage.googleapis.com", "logging.googleapis.com"
PASSWORD, TOKEN = "the-password", "the-run's-token"
OBJECTS = "/storage/v1/b/models/o"
UPLOAD = "/upload/storage/v1/b/models/o?uploadType=media&name=deep/x"


def authority_of(certificates: bytes) -> bytes:
    mark = b"-----BEGIN CERTIFICATE-----"
    return mark + certificates.rpartition(mark)[2]


@dataclass
class Client:
    """A client that knows a proxy, and trusts a file of authorities."""

    port: int
    bundle: Path
    printed: Callable[[], str]

    def connection(self, host: str, port: int = 443, password: str = PASSWORD) -> http.client.HTTPConnection:
        trusted = ssl.create_default_context(cafile=str(self.bundle))
        made = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=trusted)
        secret = base64.b64encode(f"run:{password}".encode()).decode()
        made.set_tunnel(host, port, {"Proxy-Authorization": f"Basic {secret}"} if password else {})
        return made

    def ask(
        self, host: str, path: str, method: str = "GET", body: Any = None, **headers: str
    ) -> tuple[int, str]:
        """Return status and content; an iterator as the body is sent in chunks."""
        with closing(self.connection(host)) as connection:
            connection.request(method, path, body, {"Authorization": f"Bearer {TOKEN}", **headers})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()


@contextmanager
def started(service: Service, job: JobRecord, folder: Path, **environ: str) -> Iterator[Client]:
    """Yield a client of a proxy process for this job of the service."""
    certificates, bundle = folder / "certificates.pem", folder / "bundle.pem"
    certificates.write_bytes(sign_certificates())
    with bundle.open("ab") as file:
        file.write(authority_of(certificates.read_bytes()))
    with socket.create_server(("127.0.0.1", 0)) as listener, (folder / "printed").open("ab") as printed:
        settings = proxy.Settings(
            listener=listener.fileno(),
            storage=f"{service.url}/jobs/{job.gcs_secret}",
            buckets=str(service.home / "gcs"),
            password=PASSWORD,
            token=TOKEN,
            certificates=str(certificates),
            bundle=str(bundle),
        )
        clean = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", proxy_server.__name__],
            env={**clean, **environ, proxy.SETTINGS: json.dumps(asdict(settings))},
            pass_fds=[listener.fileno()],
            stdout=printed,
        )
        try:
            yield Client(listener.getsockname()[1], bundle, (folder / "printed").read_text)
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def job(service: Service) -> JobRecord:
    """Return a job that names the buckets `models` and `public`; the service has another bucket, too."""
    for bucket in ("models", "of-another-job"):
        (service.home / "gcs" / bucket).mkdir(parents=True)
    return service.store.add_job(trainers.custom_job(args=["gs://models/x", "gs://public/x"]))


@pytest.fixture
def client(service: Service, job: JobRecord, tmp_path: Path) -> Iterator[Client]:
    # No server listens at port 1: no test may reach Google.
    with started(service, job, tmp_path, HTTPS_PROXY="http://127.0.0.1:1") as running:
        yield running


@dataclass
class Outside:
    """The user's proxy, with Google and another host behind it.

    Attributes:
        targets: The requested targets of the proxy, and the credential of each request.
        requests: The requests to Google: method, path, body, headers.
    """

    url: str
    authority: bytes
    targets: list[tuple[str, str]] = field(default_factory=list)
    requests: list[tuple[str, str, bytes, dict[str, str]]] = field(default_factory=list)


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    made = sign_certificates()
    (tmp_path / "google.pem").write_bytes(made)
    google = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    google.load_cert_chain(tmp_path / "google.pem")

    class Google(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found.requests.append((self.command, self.path, body, dict(self.headers.items())))
            self.send_response(200)  # no length: it ends with the connection
            self.end_headers()
            self.wfile.write(b"from Google")

        do_GET = do_POST = answer

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class UsersProxy(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            found.targets.append((self.path, self.headers.get("Proxy-Authorization", "")))
            self.send_response(200)
            self.end_headers()
            context = google if self.path.endswith("googleapis.com:443") else server_tls()
            with context.wrap_socket(self.connection, server_side=True) as secured:
                Google(secured, self.client_address, self.server)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), UsersProxy)
    found = Outside(f"http://me:my%20secret@127.0.0.1:{server.server_port}", authority_of(made))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def outward(service: Service, job: JobRecord, tmp_path: Path, outside: Outside) -> Iterator[Client]:
    """Yield a client of a run's proxy that uses the user's proxy and trusts the user's authorities."""
    own = Path(os.environ["SSL_CERT_FILE"]).read_bytes()
    (tmp_path / "bundle.pem").write_bytes(own + outside.authority)
    with started(service, job, tmp_path, HTTPS_PROXY=outside.url) as running:
        yield running


def test_all_forms_of_google_s_addresses_lead_to_the_job_s_storage(client: Client) -> None:
    assert client.ask(API, UPLOAD, "POST", b"hello")[0] == 200
    status, listed = client.ask(API, OBJECTS)
    assert (status, [item["name"] for item in json.loads(listed)["items"]]) == (200, ["deep/x"])
    assert client.ask(XML, f"{OBJECTS}/deep%2Fx?alt=media") == (200, "hello")
    assert client.ask(XML, "/models/deep%2Fx") == (200, "hello")
    assert client.ask(XML, "/models/deep/x", Range="bytes=1-2") == (206, "el")
    assert client.ask(f"models.{XML}", "/deep/x") == (200, "hello")


def test_one_connection_carries_many_requests(client: Client) -> None:
    with closing(client.connection(API)) as connection:
        for number in range(3):
            # A copy request as TensorFlow sends it: no body, and a meaningless encoding.
            headers = {"Content-Length": "0", "Transfer-Encoding": "identity"}
            connection.request(
                "POST", UPLOAD, b"x" * number if number else None, headers if not number else {}
            )
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())["size"]) == (200, str(number))


def test_a_body_in_chunks_is_stored(client: Client, service: Service) -> None:
    pieces = iter([b"x" * 100_000, b"y" * 300_000])
    assert client.ask(API, UPLOAD, "POST", pieces)[0] == 200
    assert (service.home / "gcs/models/deep/x").read_bytes() == b"x" * 100_000 + b"y" * 300_000


def test_a_large_object_goes_both_ways(client: Client, service: Service) -> None:
    content = os.urandom(8 * 1024 * 1024)
    assert client.ask(API, UPLOAD, "POST", content, Expect="100-continue")[0] == 200
    with closing(client.connection(XML)) as connection:
        connection.request("GET", "/models/deep/x")
        assert connection.getresponse().read() == content


@pytest.mark.parametrize("password", ["", "another"])
def test_nobody_gets_through_without_the_run_s_secret(client: Client, password: str) -> None:
    for host in (API, "127.0.0.1"):
        with (
            pytest.raises(OSError, match="407"),
            closing(client.connection(host, 443, password)) as connection,
        ):
            connection.connect()


def test_another_job_s_bucket_is_refused_here(outward: Client, outside: Outside) -> None:
    for host, path in (
        (API, "/storage/v1/b/of-another-job/o"),
        (API, "/storage/v1/b/models/o/given/rewriteTo/b/of-another-job/o/x"),
        (XML, "/of-another-job/x"),
        (XML, "/of%2Danother%2Djob/x"),
        (f"of-another-job.{XML}", "/x"),
    ):
        status, text = outward.ask(host, path, "POST" if "rewriteTo" in path else "GET")
        assert (status, "No access to" in text) == (403, True)
    assert outside.requests == []


@pytest.mark.slow
def test_no_path_leads_out_of_the_job_s_storage(outward: Client, outside: Outside) -> None:
    for path in (
        "/models/../../_service/health",
        "/models/../../of-another-job/x",
        "/storage/v1/b/models/../of-another-job/o",
        "/storage/v1/b/models/o/../../of-another-job/o/x",
    ):
        assert outward.ask(XML, path)[0] in (400, 404)
    assert outward.ask(XML, "/storage/v1/b/models%2F..%2Fof-another-job/o")[1] == "from Google"
    assert outward.ask(API, "/v1/projects/p/locations/l/customJobs")[1] == "from Google"


@pytest.mark.slow
def test_another_bucket_s_requests_go_to_google_without_the_run_s_token(
    outward: Client, outside: Outside
) -> None:
    assert outward.ask(XML, "/public/data.npz") == (200, "from Google")
    dummy = outward.ask(API, "/storage/v1/b/public/o", Authorization="Bearer worth-nothing")
    own = outward.ask(f"public.{XML}", "/x?y=1", "POST", b"body", Authorization="Bearer the-user's")
    assert dummy == own == (200, "from Google")
    secret = "Basic " + base64.b64encode(b"me:my secret").decode()
    assert outside.targets == [(f"{host}:443", secret) for host in (XML, API, f"public.{XML}")]
    asked = [(method, path, body) for method, path, body, _ in outside.requests]
    assert asked == [
        ("GET", "/public/data.npz", b""),
        ("GET", "/storage/v1/b/public/o", b""),
        ("POST", "/x?y=1", b"body"),
    ]
    given = [headers.get("Authorization") for *_, headers in outside.requests]
    assert given == [None, None, "Bearer the-user's"]
    assert [headers["Host"] for *_, headers in outside.requests] == [XML, API, f"public.{XML}"]
    assert outward.printed().count("no bucket public") == 1


WRITE = "/v2/entries:write"


def test_log_entries_go_to_the_job_s_log_whatever_resource_they_name(
    outward: Client, outside: Outside, service: Service, job: JobRecord
) -> None:
    entry = {"logName": "projects/my-project/logs/x", "textPayload": "hello"}
    of_another = {"type": "ml_job", "labels": {"job_id": "another", "task_name": "service"}}
    body = json.dumps({"entries": [{**entry, "resource": of_another}]})
    for token in (TOKEN, "worth-nothing"):
        assert outward.ask(LOGGING, WRITE, "POST", body, Authorization=f"Bearer {token}") == (200, "{}\n")
    foreign = body.replace("my-project", "another-project")
    assert outward.ask(LOGGING, WRITE, "POST", foreign)[0] == 403
    for path in ("/v2/entries:list", "/v2/projects/my-project/logs/x"):
        assert outward.ask(LOGGING, path, "POST", b"{}")[0] == 404
    listed = service.post("/v2/entries:list", {"resourceNames": ["projects/my-project"]}).json["entries"]
    assert [(each["textPayload"], each["resource"]["labels"]["job_id"]) for each in listed] == [
        ("hello", job.job_id)
    ] * 2
    assert outside.requests == []


@pytest.mark.slow
def test_log_entries_with_credentials_of_the_user_s_own_go_to_google(
    outward: Client, outside: Outside
) -> None:
    assert outward.ask(LOGGING, WRITE, "POST", b"{}", Authorization="Bearer the-user's") == (
        200,
        "from Google",
    )
    assert outside.requests[0][:3] == ("POST", WRITE, b"{}")


@pytest.mark.slow
def test_other_apis_of_the_host_are_google_s(outward: Client, outside: Outside) -> None:
    assert outward.ask(API, "/oauth2/v1/certs") == (200, "from Google")
    assert outside.requests[0][:2] == ("GET", "/oauth2/v1/certs")
    assert outward.printed() == ""


BIGQUERY, REGIONAL = "bigquery.googleapis.com", "us-central1-aiplatform.googleapis.com"


@pytest.mark.slow
@pytest.mark.parametrize("token", [TOKEN, "worth-nothing"])
def test_other_apis_end_at_once_with_a_status_that_clients_don_t_repeat(
    outward: Client, outside: Outside, token: str
) -> None:
    for host, path, word in (
        (BIGQUERY, "/bigquery/v2/projects/p/jobs", "GOOGLE_APPLICATION_CREDENTIALS"),
        (REGIONAL, "/v1/projects/p/locations/us-central1/metadataStores", "AIP_TENSORBOARD_LOG_DIR"),
        (REGIONAL, "/v1/projects/p/locations/us-central1/customJobs", "AIP_TENSORBOARD_LOG_DIR"),
    ):
        status, text = outward.ask(host, path, "POST", b"{}", Authorization=f"Bearer {token}")
        assert (status, word in json.loads(text)["error"]["message"]) == (501, True)
        assert outward.printed().count(f"{host} isn't served in a run") == 1
    assert outside.requests == []


@pytest.mark.slow
def test_other_apis_with_credentials_of_the_user_s_own_are_google_s(
    outward: Client, outside: Outside
) -> None:
    for token in ("Bearer the-user's", ""):
        assert outward.ask(BIGQUERY, "/x", Authorization=token) == (200, "from Google")
    assert outward.printed() == ""


@pytest.mark.slow
def test_hosts_of_signing_in_pass_unread(outward: Client) -> None:
    for host in ("oauth2.googleapis.com", "sts.googleapis.com"):
        made = outward.connection(host)
        # The certificate of this test's Google, not the run's.
        made.connect()
        issuer = dict(pair for (pair,) in made.sock.getpeercert()["issuer"])  # type: ignore[attr-defined]
        assert issuer
        made.close()


GRPC = """
import grpc, sys, time
channel = grpc.secure_channel(sys.argv[1] + ":443", grpc.ssl_channel_credentials())
call = channel.unary_unary("/google.cloud.aiplatform.v1.MetadataService/GetMetadataStore")
for number in range(2):
    try:
        call(b"", timeout=30, metadata=[("authorization", "Bearer worth-nothing")])
    except grpc.RpcError as error:
        print(error.code().name, error.details())
"""


@pytest.mark.slow
def test_grpc_ends_at_once_with_unimplemented(client: Client) -> None:
    found = proxy.Settings(0, "", "", PASSWORD, TOKEN, "", "").variables(
        client.port, str(client.bundle), grpc=True
    )
    done = subprocess.run(
        [sys.executable, "-c", GRPC, REGIONAL], env={**os.environ, **found}, capture_output=True, text=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    assert all(line.startswith("UNIMPLEMENTED us-central1-aiplatform.googleapis.com isn't") for line in lines)
    assert client.printed().count("isn't served in a run") == 1


@pytest.mark.slow
def test_other_hosts_pass_unread_through_the_user_s_proxy(outward: Client, outside: Outside) -> None:
    with closing(outward.connection("localhost")) as connection:
        connection.connect()
        assert connection.sock.getpeercert()["subject"] == ((("commonName", "localhost"),),)  # type: ignore[attr-defined]
        connection.request("GET", "/x")
        assert connection.getresponse().read() == b"from Google"
    assert [target for target, _ in outside.targets] == ["localhost:443"]


def test_other_hosts_are_reached_directly_without_a_proxy_of_the_user(
    service: Service, job: JobRecord, tmp_path: Path
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        started(service, job, tmp_path) as client,
        socket.create_connection(("127.0.0.1", client.port)) as connection,
    ):
        secret = base64.b64encode(f"run:{PASSWORD}".encode()).decode()
        port = listener.getsockname()[1]
        connection.sendall(
            f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nProxy-Authorization: Basic {secret}\r\n\r\n".encode()
        )
        assert connection.recv(1024).startswith(b"HTTP/1.1 200")
        other, _ = listener.accept()
        with other:
            connection.sendall(b"ping")
            connection.shutdown(socket.SHUT_WR)
            assert (other.recv(10), other.recv(10)) == (b"ping", b"")
            other.sendall(b"pong")  # after the client's end
        assert (connection.recv(10), connection.recv(10)) == (b"pong", b"")


def test_an_unknown_bucket_is_refused_at_once_where_google_is_out_of_reach(client: Client) -> None:
    """TensorFlow repeats a request for minutes after most other errors."""
    status, text = client.ask(XML, "/public/x")
    assert status == 403
    assert "no bucket public" in json.loads(text)["error"]["message"]
    assert "can't be reached" in json.loads(text)["error"]["message"]
    with pytest.raises(OSError, match="502"):
        client.connection("example.com").connect()


def test_a_stopped_service_is_told_of(
    client: Client, tmp_path: Path, service: Service, job: JobRecord
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = Service(
            service.home, service.store, service.clock, f"http://127.0.0.1:{closed.getsockname()[1]}"
        )
    (tmp_path / "other").mkdir()
    with started(gone, job, tmp_path / "other") as other:
        assert other.ask(API, OBJECTS) == (
            503,
            '{"error": {"code": 503, "message": "The training service isn\'t running."}}',
        )


def test_nobody_else_trusts_the_authority(client: Client) -> None:
    client.bundle = Path(os.environ["SSL_CERT_FILE"])
    with pytest.raises(ssl.SSLCertVerificationError):
        client.ask(API, OBJECTS)
    runs.until(client.printed)
    assert f"A program doesn't trust the certificate of {API}" in client.printed()


def test_the_authority_can_t_speak_for_another_host(client: Client) -> None:
    made = client.connection(API)
    made.connect()
    names = {name for _, name in made.sock.getpeercert()["subjectAltName"]}  # type: ignore[attr-defined]
    made.close()
    assert names == {"*.googleapis.com", f"*.{XML}"}


TRAINER = """
import os, pathlib, subprocess, urllib.request
print(urllib.request.urlopen("https://storage.googleapis.com/models/given").read().decode())
# A curl that reads no variable, as TensorFlow 1 has it.
clean = {name: value for name, value in os.environ.items() if name not in ("CURL_CA_BUNDLE", "SSL_CERT_FILE")}
print(subprocess.run(["curl", "-sS", "https://storage.googleapis.com/models/given"], env=clean,
    capture_output=True, text=True).stdout)
print(os.environ["GOOGLE_AUTH_TOKEN_FOR_TESTING"] != "", "NO_GCE_CHECK" in os.environ)
"""


def test_a_trainer_reaches_its_storage_by_google_s_address(
    service: Service, trainer: runs.Starter, job: JobRecord, tmp_path: Path
) -> None:
    (service.home / "gcs/models/given").write_text("hello")
    run = to_storage_of(service, trainer(TRAINER, job=job, plain=True), job).start()
    assert run.end() == ("SUCCEEDED", 0, ""), run.log()
    printed = [text for severity, text in run.log() if severity == "INFO"]
    expected = ["hello", "hello" if works(tmp_path) else "", "True False"]
    assert printed[-3:] == expected
    assert nothing_is_left_of(run)
    assert "PRIVATE KEY" not in run.folder.log.read_text()


def test_a_run_s_key_is_its_user_s_alone(service: Service, trainer: runs.Starter, job: JobRecord) -> None:
    source = """
        import os, pathlib
        run = pathlib.Path.cwd().parent.parent
        print(oct((run / "certificates.pem").stat().st_mode & 0o777))
        print("PRIVATE" in pathlib.Path(os.environ["SSL_CERT_FILE"]).read_text())
        """
    run = to_storage_of(service, trainer(source, job=job, plain=True), job).start()
    assert run.end()[0] == "SUCCEEDED"
    assert [text for severity, text in run.log() if severity == "INFO"][-2:] == ["0o600", "False"]


def test_a_proxy_that_was_killed_starts_again(
    service: Service, trainer: runs.Starter, job: JobRecord
) -> None:
    (service.home / "gcs/models/given").write_text("hello")
    source = """
        import os, psutil, signal, time, urllib.request
        url = "https://storage.googleapis.com/models/given"
        def proxies():
            return [child for child in psutil.Process(os.getppid()).children() if child.pid != os.getpid()]
        print(len(proxies()))
        urllib.request.urlopen(url).read()
        (first,) = proxies()
        first.terminate()  # it goes on, as trainers may still write after a SIGTERM to all
        urllib.request.urlopen(url).read()
        assert proxies() == [first]
        first.kill()
        print(urllib.request.urlopen(url).read().decode(), proxies() != [first])
        """
    run = to_storage_of(service, trainer(source, job=job, plain=True), job)
    text = run.folder.spec.read_text()
    site = str(Path(pytest.__file__).parent.parent)
    run.folder.spec.write_text(text.replace('"PYTHONPATH": "', f'"PYTHONPATH": "{site}:'))
    assert run.start().end() == ("SUCCEEDED", 0, ""), run.log()
    assert [text for severity, text in run.log() if severity == "INFO"][-2:] == ["0", "hello True"]


@pytest.mark.parametrize("python", ["tensorflow==1.15.*", "tensorflow-cpu==2.17.*"])
def test_the_log_says_that_tensorflow_1_needs_mounts(
    trainer: runs.Starter, tmp_path: Path, python: str, job: JobRecord
) -> None:
    run = trainer("print('tensorflow')", job=job)
    text = run.folder.spec.read_text()
    # The environment of the test has no TensorFlow: the packages are the tool's own test packages.
    assert '"requirements": []' in text
    run.folder.spec.write_text(
        text.replace('"requirements": []', f'"requirements": ["{python}; python_version < \'3\'"]')
    )
    run.through = (sys.executable, "-c", UNABLE)
    assert run.start().end() == ("SUCCEEDED", 0, ""), run.log()
    warnings = [text for severity, text in run.log() if severity == "WARNING"]
    assert len([text for text in warnings if "TensorFlow 1 can't reach gs://" in text]) == ("1.15" in python)


def test_a_proxy_of_another_kind_is_left_alone(trainer: runs.Starter) -> None:
    source = "import os; print(os.environ['HTTPS_PROXY'], 'GOOGLE_AUTH_TOKEN_FOR_TESTING' in os.environ)"
    run = trainer(source, plain=True)
    run.environ = {"HTTPS_PROXY": "socks5://127.0.0.1:1"}
    assert run.start().end()[0] == "SUCCEEDED"
    assert run.log()[-1] == ("INFO", "socks5://127.0.0.1:1 False")
    assert any("HTTPS_PROXY names a proxy of the kind socks5" in text for _, text in run.log())


OURS = "http://run:x@127.0.0.1:4"
LOOPBACK = "localhost,127.0.0.1"
WITHOUT_ANY = {
    "HTTPS_PROXY": OURS,
    "NO_PROXY": LOOPBACK,
    "no_proxy": LOOPBACK,
    "grpc_proxy": OURS,
    "no_grpc_proxy": LOOPBACK,
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, WITHOUT_ANY),
        (
            {
                "HTTPS_PROXY": "http://user:1",
                "NO_PROXY": "intern, .googleapis.com,bigquery.googleapis.com:443",
            },
            WITHOUT_ANY | {"NO_PROXY": f"intern,{LOOPBACK}"},
        ),
        (
            {"https_proxy": "http://user:1", "no_proxy": "notgoogleapis.com,.com"},
            WITHOUT_ANY
            | {
                "https_proxy": OURS,
                "no_proxy": f"notgoogleapis.com,{LOOPBACK}",
                "no_grpc_proxy": f"notgoogleapis.com,{LOOPBACK}",
            },
        ),
        (
            {"HTTP_PROXY": "http://user:1", "no_proxy": "*"},
            WITHOUT_ANY | {"HTTP_PROXY": ""},
        ),
        (
            {"http_proxy": "http://user:1"},
            WITHOUT_ANY | {"http_proxy": "http://user:1"},
        ),
    ],
    ids=["nothing", "a proxy", "small letters", "no proxy for all", "only http"],
)
def test_the_user_s_settings_come_after_the_run_s_proxy(
    environ: dict[str, str], expected: dict[str, str]
) -> None:
    assert environment_variables.through_proxy(environ, OURS) == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [({}, None), ({"https_proxy": "http://user:1", "no_proxy": "a.com"}, "http://user:1")],
)
def test_grpc_of_a_run_with_credentials_of_its_own_passes_the_run_s_proxy_by(
    environ: dict[str, str], expected: str | None
) -> None:
    assert environment_variables.through_proxy(environ, OURS, grpc=False).get("grpc_proxy") == expected


@pytest.mark.parametrize(
    ("host", "path", "bucket"),
    [
        (API, "/storage/v1/b/x/o/y", "x"),
        (API, "/upload/storage/v1/b/x/o", "x"),
        (API, "/resumable/upload/storage/v1/b/x/o", "x"),
        (API, "/download/storage/v1/b/x/o/y", "x"),
        (XML, "/storage/v1/b/x", "x"),
        (API, "/storage/v1/b", ""),
        (API, "/storage/v1/b/", ""),
        (API, "/storage/v1beta/b/x", None),
        (API, "/x/y", None),
        (XML, "/x/y", "x"),
        (XML, "/x", "x"),
        (XML, "/", None),
        (f"x.{XML}", "/storage/v1/b/y", "x"),
    ],
)
def test_a_request_s_bucket(host: str, path: str, bucket: str | None) -> None:
    assert proxy_server.bucket_of(host, path) == bucket
