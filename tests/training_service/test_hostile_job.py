"""A job whose trainer tries to reach other jobs, the claims, and more memory than it has.

It runs as the same user as all other jobs. Reads by other means of that user's programs are out of scope
here, as docs/embedded-service.md says.
"""

from __future__ import annotations

import json
import secrets
import ssl
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.verification import PolicyBuilder, VerificationError
from cryptography.x509.verification import Store as Authorities

from reconciler.training_service.state.database import CLAIMS
from reconciler.training_service.state.records import JobRecord, JobState
from tests.support.training_service import runs, trainers
from tests.support.training_service.misbehaving import failure_of, of_small_machines
from tests.support.training_service.proxy import to_storage_of
from tests.support.training_service.served import Service
from tests.support.waiting import until

OWN, SECRET, CLAIM = "own data", "data of the victim", "a claim"
STORAGE = "storage.googleapis.com"

VICTIM = """
import os, pathlib, shutil, time
out = pathlib.Path(os.environ["OUT"])
shutil.copy(os.environ["SSL_CERT_FILE"], out / "victim.pem")
(out / "port").write_text(os.environ["HTTPS_PROXY"].rpartition(":")[2])
while not (out / "over").exists():
    time.sleep(0.01)
"""

# Notes the result of each attempt: the content read, or the error.
HOSTILE = """
import base64, json, os, pathlib, shutil, socket, subprocess, urllib.parse, urllib.request
from google.cloud import storage

out = pathlib.Path(os.environ["OUT"])
found = {}

def attempt(name, act):
    try:
        found[name] = str(act())
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"

client = storage.Client()
mine, theirs = client.bucket("mine"), client.bucket("of-victim")
attempt("own object by the client", lambda: mine.blob("own").download_as_text())
attempt("own objects by the client", lambda: [blob.name for blob in client.list_blobs("mine")])
attempt("buckets by the client", lambda: [bucket.name for bucket in client.list_buckets()])
attempt("object by the client", lambda: theirs.blob("secret").download_as_text())
attempt("objects by the client", lambda: [blob.name for blob in client.list_blobs("of-victim")])
attempt("copy by the client", lambda: theirs.copy_blob(theirs.blob("secret"), mine, "copy"))
attempt("write by the client", lambda: theirs.blob("secret").upload_from_string("x"))
attempt("claim by the client", lambda: mine.blob("claims/claim").download_as_text())
attempt("claim's deletion by the client", lambda: mine.blob("claims/claim").delete())
attempt("claim's copy by the client", lambda: mine.copy_blob(mine.blob("claims/claim"), mine, "copy"))

def http(url, body=None, **headers):
    headers = {"Content-Type": "application/json", **headers}
    return urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30).read().decode()

own_url = os.environ["STORAGE_EMULATOR_HOST"]
service = own_url.partition("/jobs/")[0]
SECRET = "of-victim/o/secret?alt=media"
attempt("own object by HTTP", lambda: http(f"{own_url}/storage/v1/b/mine/o/own?alt=media"))
for name, url in {
    "object": f"{own_url}/storage/v1/b/{SECRET}",
    "claim": f"{own_url}/storage/v1/b/mine/o/claims%2Fclaim?alt=media",
    "claim by another spelling": f"{own_url}/storage/v1/b/mine/o/x%2F..%2Fclaims%2Fclaim?alt=media",
    "object by name": f"{own_url}/of-victim/secret",
    "object by a detour": f"{own_url}/mine/../of-victim/secret",
    "object without a secret": f"{service}/storage/v1/b/{SECRET}",
    "object by a guessed secret": f"{service}/jobs/{'x' * 32}/storage/v1/b/{SECRET}",
    "object by the victim's name": f"{service}/jobs/victim/storage/v1/b/{SECRET}",
    "jobs": f"{own_url}/v1/projects/my-project/locations/us-central1/customJobs",
    "service": f"{service}/_service/health",
    "service from the job's address": f"{own_url}/../../_service/health",
}.items():
    attempt(f"{name} by HTTP", lambda: http(url))
entry = {"logName": "projects/my-project/logs/x", "textPayload": "forged"}
entry["resource"] = {"type": "ml_job", "labels": {"job_id": "victim"}}
entries = json.dumps({"entries": [entry]}).encode()
attempt("line in the log", lambda: http(f"{own_url}/v2/entries:write", entries))

def gsutil(*arguments):
    done = subprocess.run(["gsutil", *arguments], capture_output=True, text=True)
    return done.stdout + done.stderr

attempt("own object by gsutil", lambda: gsutil("cat", "gs://mine/own"))
attempt("object by gsutil", lambda: gsutil("cat", "gs://of-victim/secret"))
attempt("claim by gsutil", lambda: gsutil("cat", "gs://mine/claims/claim"))
attempt("objects by gsutil", lambda: gsutil("ls", "-r", "gs://mine", "gs://of-victim"))

for name, place in {"/gcs": "/gcs", "folder": os.environ["RECONCILER_GCS_DIR"]}.items():
    root = pathlib.Path(place)
    attempt(f"all files below {name}", lambda: sorted(map(str, root.rglob("*"))))
    attempt(f"object below {name}", lambda: (root / "of-victim/secret").read_text())
    attempt(f"object below {name} by a detour", lambda: (root / "mine/../of-victim/secret").read_text())
    attempt(f"claim below {name}", lambda: (root / "mine/claims/claim").read_text())

own_proxy = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
their_port = int((out / "port").read_text())

def connect(port, password, target="storage.googleapis.com:443", then=b""):
    secret = base64.b64encode(f"run:{password}".encode()).decode()
    head = f"CONNECT {target} HTTP/1.1\\r\\nProxy-Authorization: Basic {secret}\\r\\n\\r\\n"
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(head.encode())
        answer = connection.recv(4096)
        if then:
            connection.sendall(then)
            answer = connection.recv(4096)
        return answer.decode()

attempt("own object by the proxy", lambda: http("https://storage.googleapis.com/mine/own"))
attempt("object by the proxy", lambda: http("https://storage.googleapis.com/of-victim/secret"))
attempt("object by the proxy's other host", lambda: http(f"https://www.googleapis.com/storage/v1/b/{SECRET}"))
attempt("claim by the proxy", lambda: http("https://storage.googleapis.com/mine/claims%2Fclaim"))
request = f"GET /storage/v1/b/{SECRET} HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n".encode()
place = service.partition("://")[2]
attempt("object by a tunnel", lambda: connect(own_proxy.port, own_proxy.password, place, request))
for name, password in {"own": own_proxy.password, "no": "", "a guessed": "x" * 32}.items():
    attempt(f"their proxy with {name} secret", lambda: connect(their_port, password))

shutil.copy(os.environ["SSL_CERT_FILE"], out / "hostile.pem")
(out / "found").write_text(json.dumps(found))
"""


@dataclass
class Attack:
    """The result of the attack.

    Attributes:
        found: The result of each attempt.
        job, victim: The two jobs.
        certificates: The certificates of the victim's proxy, with their key.
        out: The folder with the files of authorities that both runs trust.
    """

    found: dict[str, str]
    job: JobRecord
    victim: JobRecord
    certificates: bytes
    out: Path


@pytest.fixture
def attack(service: Service, installed: runs.Starter) -> Attack:
    for name, content in {"mine/own": OWN, "mine/claims/claim": CLAIM, "of-victim/secret": SECRET}.items():
        path = service.home / "gcs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    service.store.set_setting(CLAIMS, ["mine/claims/"])
    out = str(service.home.parent / "out")
    victim = service.store.add_job(_job("of-victim", out, "victim"))
    job = service.store.add_job(_job("mine", out, "hostile"))
    patient = to_storage_of(service, installed(VICTIM, job=victim, plain=True), victim).start()
    patient.wrote("port")
    run = to_storage_of(
        service,
        installed(HOSTILE, job=job, requires=("google-cloud-storage",), buckets=("mine", "mine/claims/")),
        job,
    )
    # Without a proxy that forwards, requests unknown to the service would go to Google.
    run.environ = {"HTTPS_PROXY": "http://127.0.0.1:1", "NO_PROXY": "127.0.0.1"}
    assert run.start().end() == ("SUCCEEDED", 0, ""), run.log()
    certificates = patient.folder.certificates.read_bytes()
    (run.out / "over").touch()
    assert patient.end()[0] == "SUCCEEDED"
    return Attack(json.loads(run.wrote("found")), job, victim, certificates, run.out)


def _job(bucket: str, out: str, job_id: str) -> JobRecord:
    job = trainers.custom_job(args=[f"gs://{bucket}/x"], env={"OUT": out})
    return replace(job, job_id=job_id, gcs_secret=secrets.token_urlsafe(24))


def test_it_reads_its_own_objects_and_no_other_bucket_and_no_claim(attack: Attack, service: Service) -> None:
    own = {name: got for name, got in attack.found.items() if name.startswith("own object by ")}
    assert own == dict.fromkeys(own, OWN)
    assert len(own) == 4
    assert attack.found["own objects by the client"] == "['own']"
    leaked = {name: got for name, got in attack.found.items() if SECRET in got or CLAIM in got}
    assert leaked == {}
    for name, got in attack.found.items():
        if name.endswith("by the client") and not name.startswith(("own", "buckets")):
            assert got.startswith("Forbidden: 403"), (name, got)
    assert "of-victim" not in attack.found["buckets by the client"]
    assert "secret" not in attack.found["objects by gsutil"].replace("gs://of-victim", "")
    assert (service.home / "gcs/of-victim/secret").read_text() == SECRET
    assert (service.home / "gcs/mine/claims/claim").read_text() == CLAIM
    assert not (service.home / "gcs/mine/copy").exists()


def test_it_sees_only_its_bucket_as_files_and_no_claim_in_it(attack: Attack) -> None:
    for name in ("/gcs", "folder"):
        files = attack.found[f"all files below {name}"]
        assert "secret" not in files
        assert "claim'" not in files
        for attempt in (f"object below {name}", f"object below {name} by a detour", f"claim below {name}"):
            assert attack.found[attempt].startswith(("FileNotFoundError", "PermissionError")), attempt


def test_no_proxy_and_no_guess_opens_another_job_s_bucket(attack: Attack) -> None:
    found = attack.found
    for secret in ("own", "no", "a guessed"):
        assert found[f"their proxy with {secret} secret"].startswith("HTTP/1.1 407")
    for name in ("object by the proxy", "object by the proxy's other host", "claim by the proxy"):
        assert found[name] == "HTTPError: HTTP Error 403: Forbidden"
    assert found["object by a tunnel"].startswith("HTTP/1.1 401")
    for name in ("object without a secret by HTTP", "object by a guessed secret by HTTP", "service by HTTP"):
        assert found[name] == "HTTPError: HTTP Error 401: Unauthorized", name
    for name in ("object by HTTP", "claim by HTTP", "object by name by HTTP"):
        assert found[name] == "HTTPError: HTTP Error 403: Forbidden", name
    for name in ("jobs by HTTP", "service from the job's address by HTTP"):
        assert found[name].startswith("HTTPError: HTTP Error 4"), name


def test_what_it_logs_is_its_own(attack: Attack, service: Service) -> None:
    assert attack.found["line in the log"].strip() == "{}"
    listed = service.post("/v2/entries:list", {"resourceNames": ["projects/my-project"]}).json["entries"]
    (forged,) = (entry for entry in listed if entry.get("textPayload") == "forged")
    assert forged["resource"]["labels"]["job_id"] == "hostile"


def test_nobody_else_trusts_the_authority_of_a_run(attack: Attack) -> None:
    own, authority = x509.load_pem_x509_certificates(attack.certificates)

    def verify(authorities: list[x509.Certificate]) -> None:
        builder = PolicyBuilder().store(Authorities(authorities))
        builder.build_server_verifier(x509.DNSName(STORAGE)).verify(own, [])

    verify(x509.load_pem_x509_certificates((attack.out / "victim.pem").read_bytes()))
    of_the_system = ssl.create_default_context().get_ca_certs(binary_form=True)
    others = [
        x509.load_pem_x509_certificates((attack.out / "hostile.pem").read_bytes()),
        [x509.load_der_x509_certificate(each) for each in of_the_system],
    ]
    for authorities in filter(None, others):
        assert authority not in authorities
        with pytest.raises(VerificationError):
            verify(authorities)


def test_the_authority_s_key_is_nowhere_so_it_signs_nothing_more(attack: Attack) -> None:
    own, authority = x509.load_pem_x509_certificates(attack.certificates)
    assert attack.certificates.count(b"PRIVATE KEY-----") == 2  # begin and end of a single key
    key = load_pem_private_key(attack.certificates, None)
    assert key.public_key() == own.public_key() != authority.public_key()
    for name in ("victim.pem", "hostile.pem"):
        assert b"PRIVATE" not in (attack.out / name).read_bytes()


def test_its_address_is_worth_nothing_after_its_end(attack: Attack, service: Service) -> None:
    url = f"/jobs/{attack.job.gcs_secret}/storage/v1/b/mine/o/own?alt=media"
    assert service.call("GET", url, token="").content.decode() == OWN
    service.store.move(attack.job.id, JobState.SUCCEEDED, only_from={JobState.QUEUED}, at=service.store.now())
    assert service.call("GET", url, token="").status == 401


def test_memory_of_processes_that_leave_their_parents_and_sessions_counts(installed: runs.Starter) -> None:
    """Each process takes little, hides from its parent, and outlives it."""
    source = """
        import os, pathlib, time
        out = pathlib.Path(os.environ["OUT"])
        for number in range(8):
            if os.fork() == 0:
                os.setsid()
                if os.fork():
                    os._exit(0)
                os.environ.clear()
                held = os.urandom(32 * 1024 * 1024)
                (out / str(number)).touch()
                time.sleep(600)
                os._exit(0)
        time.sleep(600)
    """
    run = of_small_machines(installed(source, plain=True))
    code, message = failure_of(run)
    assert code == 8
    assert "MiB of memory, and its machines have 128 MiB here" in message
    until(lambda: run.folder.over())
