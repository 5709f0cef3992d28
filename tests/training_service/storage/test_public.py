"""Public buckets, read from a server that has Google's name in a namespace of its own."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import urllib3
from google.api_core.exceptions import BadRequest, Forbidden, NotFound
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from reconciler.training_service.jobs.environment_variables import for_google_clients
from reconciler.training_service.runner.proxy import sign_certificates
from reconciler.training_service.storage import public
from reconciler.training_service.storage.gsutil.main import write_launchers
from tests.support.namespace import IS_INSIDE, run_inside
from tests.support.training_service import trainers
from tests.support.training_service.served import TOKEN, Service, serving
from tests.support.unpacked import unpack

pytestmark = pytest.mark.slow

READERS = """
import gcsfs, pandas, pyarrow.fs
print(gcsfs.GCSFileSystem().ls("cloud-samples-data/a"))
print(pandas.read_csv("gs://cloud-samples-data/a/x.csv").age.sum())
print(len(pyarrow.fs.GcsFileSystem().open_input_stream("cloud-samples-data/a/x.csv").read()))
"""
HOST, BUCKET = "storage.googleapis.com", "cloud-samples-data"


@dataclass
class Google:
    """Cloud Storage under its name: the storage of another home, open to everybody.

    Attributes:
        asked: Each request's path with its query, and its range.
        credentials: The received credentials.
        status: The status to answer with; 0 for the storage's own answers.
    """

    bucket: storage.Bucket
    server: ThreadingHTTPServer
    asked: list[tuple[str, str]] = field(default_factory=list)
    credentials: list[str] = field(default_factory=list)
    status: int = 0


def google_at(upstream: Service, folder: Path) -> Google:
    made = sign_certificates()
    (folder / "google.pem").write_bytes(made)
    mark = b"-----BEGIN CERTIFICATE-----"
    (folder / "authority.pem").write_bytes(mark + made.rpartition(mark)[2])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "google.pem")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append((self.path, self.headers.get("Range", "")))
            found.credentials += [value for name, value in self.headers.items() if name == "authorization"]
            kept = {name: value for name, value in self.headers.items() if name.lower() == "range"}
            answer = urllib3.request(
                "GET", f"{upstream.url}/jobs/{TOKEN}{self.path}", headers=kept, retries=False
            )
            self.send_response(found.status or answer.status)
            self.send_header("Content-Length", str(len(answer.data)))
            self.end_headers()
            self.wfile.write(answer.data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 443), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    found = Google(client_of(upstream).create_bucket(BUCKET), server)
    return found


def client_of(service: Service, secret: str = TOKEN) -> storage.Client:
    options = {"api_endpoint": f"{service.url}/jobs/{secret}"}
    return storage.Client("demo", AnonymousCredentials(), client_options=options)


if IS_INSIDE:

    @pytest.fixture
    def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
        (tmp_path / "google").mkdir()
        with serving(tmp_path / "google" / "home") as upstream:
            found = google_at(upstream, tmp_path)
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
            thread = threading.Thread(target=found.server.serve_forever)
            thread.start()
            yield found
            found.server.shutdown()
            found.server.server_close()
            thread.join()

    @pytest.fixture
    def own(google: Google, service: Service) -> Service:
        """Return a service whose settings name the bucket."""
        settings = {"reachable": [], "public": [BUCKET]}
        assert service.call("PUT", "/_service/buckets", settings).status == 200
        return service

    def test_clients_read_and_list_a_public_bucket_without_a_token(google: Google, own: Service) -> None:
        google.bucket.blob("a/x.csv").upload_from_string("one", content_type="text/csv")
        google.bucket.blob("a/b/y.csv").upload_from_string("two")
        google.bucket.blob("z").upload_from_string("")
        bucket = client_of(own).bucket(BUCKET)
        assert [blob.name for blob in bucket.list_blobs()] == ["a/b/y.csv", "a/x.csv", "z"]
        pages = bucket.list_blobs(prefix="a/", delimiter="/")
        assert ([blob.name for blob in pages], pages.prefixes) == (["a/x.csv"], {"a/b/"})
        assert [blob.name for blob in bucket.list_blobs(match_glob="**/y.*")] == ["a/b/y.csv"]
        assert [blob.name for blob in bucket.list_blobs(page_size=1)] == ["a/b/y.csv", "a/x.csv", "z"]
        blob = bucket.get_blob("a/x.csv")
        assert blob is not None
        theirs = google.bucket.get_blob("a/x.csv")
        assert theirs is not None
        same = ("generation", "metageneration", "crc32c", "md5_hash", "size", "content_type", "updated")
        assert [getattr(blob, name) for name in same] == [getattr(theirs, name) for name in same]
        assert not [path for path, _ in google.asked if "/download/" in path]
        assert (blob.download_as_text(), bucket.blob("z").download_as_bytes()) == ("one", b"")
        assert bucket.blob("a/x.csv").download_as_bytes(start=1, end=1) == b"n"
        assert own.get(f"/{BUCKET}/a/x.csv").content == b"one"
        with pytest.raises(NotFound):
            bucket.blob("none").download_as_bytes()
        copy = client_of(own).create_bucket("mine")
        bucket.copy_blob(blob, copy, "copied")
        assert copy.blob("copied").download_as_text() == "one"
        assert google.credentials == []

    def test_a_job_reads_a_public_bucket_that_it_names_nowhere(google: Google, own: Service) -> None:
        google.bucket.blob("x").upload_from_string("one")
        job = own.store.add_job(trainers.custom_job())
        bucket = client_of(own, job.gcs_secret).bucket(BUCKET)
        assert [blob.name for blob in bucket.list_blobs()] == ["x"]
        assert bucket.blob("x").download_as_text() == "one"

    def test_gcsfs_pandas_and_pyarrow_read_a_public_bucket(
        google: Google, own: Service, tmp_path: Path, wheelhouse: Path
    ) -> None:
        google.bucket.blob("a/x.csv").upload_from_string("age\n38\n39\n")
        job = own.store.add_job(trainers.custom_job())
        env = {
            **os.environ,
            **for_google_clients(f"{own.url}/jobs/{job.gcs_secret}"),
            "PYTHONPATH": str(unpack(wheelhouse, tmp_path / "packages")),
        }
        done = subprocess.run([sys.executable, "-c", READERS], env=env, capture_output=True, text=True)
        assert done.stdout.splitlines() == ["['cloud-samples-data/a/x.csv']", "77", "10"], done.stderr
        write_launchers(tmp_path / "tools")
        for words in (["cat", f"gs://{BUCKET}/a/x.csv"], ["cp", f"gs://{BUCKET}/a/*.csv", "-"]):
            copied = subprocess.run([tmp_path / "tools" / "gsutil", *words], env=env, capture_output=True)
            assert copied.stdout == b"age\n38\n39\n", copied.stderr

    def test_content_is_kept_by_its_generation(
        google: Google, own: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(public, "_FRESH", 0.0)
        monkeypatch.setattr(public, "_PIECE", 1000)
        content = os.urandom(2500)
        google.bucket.blob("x").upload_from_string(content)
        bucket = client_of(own).bucket(BUCKET)
        assert [bucket.blob("x").download_as_bytes() for _ in range(2)] == [content] * 2
        pieces = [part for path, part in google.asked if "/download/" in path]
        assert pieces == ["bytes=0-999", "bytes=1000-1999", "bytes=2000-2499"]
        google.bucket.blob("x").upload_from_string("changed")
        assert bucket.blob("x").download_as_bytes() == b"changed"

    def test_the_least_recently_used_content_makes_room(
        google: Google, own: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(public, "LARGEST", 250)
        bucket = client_of(own).bucket(BUCKET)
        for number, name in enumerate("abc"):
            google.bucket.blob(name).upload_from_string("x" * 100)
            assert len(bucket.blob(name).download_as_bytes()) == 100
            for path in (own.home / "public" / BUCKET).glob("*[0-9]"):
                if not path.name.endswith(".json") and path.stat().st_mtime > 1000:
                    os.utime(path, (number, number))
        kept = [path for path in (own.home / "public" / BUCKET).iterdir() if path.suffix != ".json"]
        assert len(kept) == 2
        fetched = len(google.asked)
        bucket.blob("c").download_as_bytes()
        assert len([path for path, _ in google.asked[fetched:] if "/download/" in path]) == 0
        google.bucket.blob("big").upload_from_string("x" * 300)
        with pytest.raises(BadRequest, match="Put the file here"):
            bucket.blob("big").download_as_bytes()

    def test_the_user_s_files_come_first(google: Google, own: Service) -> None:
        for name in ("a/x", "b"):
            google.bucket.blob(name).upload_from_string("theirs")
        folder = own.home / "gcs" / BUCKET
        (folder / "a").mkdir()
        (folder / "a" / "x").write_text("mine")
        (folder / "c").write_text("mine")
        bucket = client_of(own).bucket(BUCKET)
        read = {blob.name: blob.download_as_text() for blob in bucket.list_blobs()}
        assert read == {"a/x": "mine", "b": "theirs", "c": "mine"}
        assert [blob.size for blob in bucket.list_blobs()] == [4, 6, 4]

    def test_many_readers_at_once_get_whole_objects_though_room_is_made(
        google: Google, own: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(public, "LARGEST", 3000)
        for number in range(8):
            google.bucket.blob(str(number)).upload_from_string(f"{number}" * 1000)

        def read(number: int) -> bytes:
            return own.get(f"/{BUCKET}/{number % 8}").content

        with ThreadPoolExecutor(6) as pool:
            for number, content in enumerate(pool.map(read, range(80))):
                assert content == f"{number % 8}".encode() * 1000

    def test_names_that_no_file_can_have_are_read_all_the_same(google: Google, own: Service) -> None:
        bucket = client_of(own).bucket(BUCKET)
        with pytest.raises(BadRequest, match="Google answers 400"):  # the server here has files too
            bucket.blob("a//b").download_as_bytes()
        assert any("a%2F%2Fb" in path for path, _ in google.asked)

    def test_nothing_is_written_to_a_public_bucket(google: Google, own: Service) -> None:
        google.bucket.blob("x").upload_from_string("theirs")
        bucket = client_of(own).bucket(BUCKET)
        blob = bucket.blob("x")
        blob.metadata = {"a": "b"}
        begin = blob.create_resumable_upload_session
        writes = (lambda: blob.upload_from_string("mine"), begin, blob.delete, blob.patch, bucket.delete)
        for write in (
            *writes,
            lambda: bucket.copy_blob(blob, bucket, "y"),
            lambda: bucket.rename_blob(blob, "y"),
        ):
            with pytest.raises(Forbidden, match="only read here"):
                write()
        assert [each.name for each in google.bucket.list_blobs()] == ["x"]

    def test_without_a_network_the_message_says_where_to_put_the_file(google: Google, own: Service) -> None:
        google.bucket.blob("kept").upload_from_string("one")
        bucket = client_of(own).bucket(BUCKET)
        assert bucket.blob("kept").download_as_text() == "one"
        google.server.socket.close()
        place = own.home / "gcs" / BUCKET / "data" / "x.csv"
        with pytest.raises(BadRequest, match=f"put the file here: {place}"):
            bucket.blob("data/x.csv").download_as_text()
        with pytest.raises(BadRequest, match=f"put the file here: {place.parent.parent}"):
            list(bucket.list_blobs())
        assert bucket.blob("kept").download_as_text() == "one"
        place.parent.mkdir()
        place.write_text("by hand")
        assert bucket.blob("data/x.csv").download_as_text() == "by hand"
        assert [blob.name for blob in bucket.list_blobs()] == ["data/x.csv"]

    @pytest.mark.parametrize(("status", "error"), [(403, Forbidden), (401, Forbidden), (418, BadRequest)])
    def test_a_bucket_that_is_not_public_is_refused(
        google: Google, own: Service, status: int, error: type[Exception]
    ) -> None:
        google.bucket.blob("x").upload_from_string("one")
        google.status = status
        with pytest.raises(error, match=f"gs://{BUCKET}"):
            client_of(own).bucket(BUCKET).blob("x").download_as_text()

    def test_a_name_that_leaves_the_settings_is_no_bucket_any_more(google: Google, own: Service) -> None:
        google.bucket.blob("x").upload_from_string("one")
        own.call("PUT", "/_service/buckets", {"reachable": [], "public": []})
        with pytest.raises(NotFound):
            client_of(own).bucket(BUCKET).blob("x").download_as_text()
        assert client_of(own).lookup_bucket(BUCKET) is None
        assert google.asked == []

else:

    def test_public_buckets_in_a_namespace(tmp_path: Path) -> None:
        run_inside(__file__, tmp_path, HOST)
