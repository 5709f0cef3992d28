"""Third-party clients against the service: each call listed in docs/clients.md."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from google.api_core.exceptions import Conflict, NotFound, PreconditionFailed
from google.cloud import storage
from google.cloud.storage import transfer_manager
from google.cloud.storage.exceptions import InvalidResponse
from google.oauth2.credentials import Credentials

from reconciler.training_service.jobs.environment_variables import for_google_clients
from tests.support.documented import documented
from tests.support.training_service import trainers
from tests.support.training_service.served import TOKEN, Service
from tests.support.unpacked import unpack


class Tried(list[str]):
    """The tried calls, in order."""

    def __call__(self, *calls: str) -> None:
        self.extend(calls)


@pytest.mark.slow
def test_every_call_of_google_cloud_storage(service: Service, tmp_path: Path) -> None:
    tried = Tried()
    client = storage.Client(
        project="demo", credentials=Credentials(TOKEN), client_options={"api_endpoint": service.url}
    )
    bucket = client.create_bucket("bucket")
    with pytest.raises(Conflict):
        client.create_bucket("bucket")
    assert [each.name for each in client.list_buckets()] == ["bucket"]
    assert (client.get_bucket("bucket").name, client.lookup_bucket("none")) == ("bucket", None)
    tried("create_bucket", "list_buckets", "get_bucket", "lookup_bucket")

    bucket.blob("a").upload_from_string("one", content_type="text/plain", if_generation_match=0)
    (tmp_path / "file").write_bytes(b"two" * 200_000)
    bucket.blob("a/b", chunk_size=256 * 1024).upload_from_filename(tmp_path / "file", checksum="crc32c")
    bucket.blob("folder/").upload_from_file(io.BytesIO())
    with bucket.blob("stream").open("wb", chunk_size=256 * 1024) as writer:
        writer.write(b"x" * 600_000)
    tried("upload_from_string", "upload_from_filename", "upload_from_file", "open")
    assert bucket.blob("a").download_as_text() == "one"
    bucket.blob("a/b").download_to_filename(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "file").read_bytes()
    assert bucket.blob("stream").download_as_bytes(start=5, end=7) == b"xxx"
    tried("download_as_text", "download_to_filename", "download_as_bytes")

    found = client.list_blobs("bucket", delimiter="/", include_trailing_delimiter=True)
    assert [blob.name for blob in found] == ["a", "folder/", "stream"]
    assert found.prefixes == {"a/", "folder/"}
    assert [blob.name for blob in client.list_blobs("bucket", match_glob="{a,s}*")] == ["a", "stream"]
    blob = bucket.get_blob("a")
    assert blob is not None
    assert (blob.exists(), bucket.blob("none").exists(), bucket.get_blob("none")) == (True, False, None)
    blob.metadata = {"k": "v"}
    blob.patch()
    blob.reload()
    assert blob.metadata == {"k": "v"}
    tried("list_blobs", "get_blob", "exists", "patch", "reload")

    made = bucket.blob("composed")
    made.content_type = "text/plain"
    made.compose([blob, bucket.blob("a/b"), blob], if_generation_match=0)
    assert (made.download_as_bytes()[-6:], made.component_count) == (b"twoone", 3)
    with pytest.raises(PreconditionFailed):
        made.compose([blob], if_generation_match=0)
    with pytest.raises(NotFound):
        made.compose([bucket.blob("none")])
    bucket.copy_blob(blob, bucket, "copied")
    assert bucket.blob("rewritten").rewrite(blob) == (None, 3, 3)
    bucket.rename_blob(bucket.blob("copied"), "renamed")
    bucket.move_blob(bucket.blob("renamed"), "moved")
    tried("compose", "copy_blob", "rewrite", "rename_blob", "move_blob")

    policy = bucket.get_iam_policy()
    policy["roles/storage.objectViewer"].add("user:anna@example.com")
    bucket.set_iam_policy(policy)
    assert bucket.get_iam_policy()["roles/storage.objectViewer"] == {"user:anna@example.com"}
    with pytest.raises(PreconditionFailed):
        bucket.set_iam_policy(policy)
    assert bucket.test_iam_permissions(["storage.objects.get"]) == ["storage.objects.get"]
    tried("get_iam_policy", "set_iam_policy", "test_iam_permissions")

    with client.batch():
        blob.metadata = {"k": "w"}
        blob.patch()
        bucket.delete_blob("rewritten")
    assert (bucket.get_blob("rewritten"), bucket.get_blob("a").metadata) == (None, {"k": "w"})
    tried("batch")
    with pytest.raises(InvalidResponse, match="501"):
        transfer_manager.upload_chunks_concurrently(
            tmp_path / "file", bucket.blob("chunks"), worker_type=transfer_manager.THREAD
        )

    blob.delete(if_generation_match=blob.generation)
    bucket.delete_blob("a/b")
    with pytest.raises(Conflict, match="not empty"):
        bucket.delete()
    bucket.delete_blobs(list(bucket.list_blobs()))
    bucket.delete()
    assert not bucket.exists()
    tried("delete", "delete_blob", "delete_blobs", "Bucket.delete")
    assert tried == documented("google-cloud-storage")


class Rclone:
    """rclone with the service as its remote `gcs:`, and without the user's settings."""

    def __init__(self, service: Service, folder: Path) -> None:
        # Google's token endpoint gets no further token request as long as this token lasts.
        token = {"access_token": TOKEN, "token_type": "Bearer", "expiry": "2099-01-01T00:00:00Z"}
        self.tried = Tried()
        self._env = {
            **os.environ,
            "RCLONE_CONFIG": str(folder / "rclone.conf"),
            "RCLONE_CONFIG_GCS_TYPE": "google cloud storage",
            "RCLONE_CONFIG_GCS_ENDPOINT": f"{service.url}/storage/v1/",
            "RCLONE_CONFIG_GCS_PROJECT_NUMBER": "demo",
            "RCLONE_CONFIG_GCS_TOKEN": json.dumps(token),
            "RCLONE_RETRIES": "1",
        }

    def __call__(self, command: str, *words: str | Path) -> str:
        done = self.run(command, *words)
        assert done.returncode == 0, done.stderr
        if command not in self.tried:
            self.tried(command)
        return done.stdout

    def run(self, command: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["rclone", command, *words], env=self._env, input="piped", capture_output=True, text=True
        )


@pytest.mark.slow
def test_every_call_of_rclone(service: Service, tmp_path: Path) -> None:
    if shutil.which("rclone") is None:
        pytest.skip("rclone is missing")
    rclone = Rclone(service, tmp_path)
    source, back = tmp_path / "source", tmp_path / "back"
    (source / "below").mkdir(parents=True)
    (source / "below" / "x").write_bytes(b"x" * 100_000)
    (source / "y").write_bytes(b"y")
    rclone("mkdir", "gcs:bucket")
    rclone("sync", source, "gcs:bucket/tree")
    rclone("check", source, "gcs:bucket/tree")
    assert rclone("lsf", "-R", "--files-only", "gcs:bucket").split() == ["tree/below/x", "tree/y"]
    (source / "y").write_bytes(b"other")
    assert "1 differences found" in rclone.run("check", source, "gcs:bucket/tree").stderr
    (source / "below" / "x").unlink()
    rclone("sync", source, "gcs:bucket/tree")
    assert rclone("cat", "gcs:bucket/tree/y") == "other"
    rclone("copyto", "gcs:bucket/tree/y", "gcs:bucket/copied")
    rclone("moveto", "gcs:bucket/copied", "gcs:bucket/moved")
    rclone("rcat", "gcs:bucket/piped")
    rclone("copy", "gcs:bucket", back)
    rclone("check", "--download", "gcs:bucket", back)
    assert rclone("md5sum", "gcs:bucket/piped").split()[0] == hashlib.md5(b"piped").hexdigest()
    assert [each["Name"] for each in json.loads(rclone("lsjson", "gcs:bucket"))] == ["moved", "piped", "tree"]
    assert "not empty" in rclone.run("rmdir", "gcs:bucket").stderr
    rclone("delete", "gcs:bucket/tree")
    rclone("deletefile", "gcs:bucket/moved")
    rclone("purge", "gcs:bucket")
    assert rclone("lsd", "gcs:") == ""
    rclone("mkdir", "gcs:bucket")
    rclone("rmdir", "gcs:bucket")
    assert service.get("/storage/v1/b/bucket").status == 404
    assert rclone.tried == documented("rclone")


Script = Callable[[str], list[str]]


@pytest.fixture
def script(service: Service, tmp_path: Path, wheelhouse: Path) -> Script:
    """Return a function that runs a script with a job's variables, and returns the calls that it tried."""
    packages = unpack(wheelhouse, tmp_path / "packages")
    job = service.store.add_job(
        trainers.custom_job(spec={"baseOutputDirectory": {"outputUriPrefix": "gs://out/x"}})
    )
    url = f"{service.url}/jobs/{job.gcs_secret}"
    assert service.post("/storage/v1/b?project=demo", {"name": "out"}).status == 200

    def run(text: str) -> list[str]:
        (tmp_path / "script.py").write_text(f"tried = []\n{text}\nimport json\nprint(json.dumps(tried))\n")
        env = {
            **os.environ,
            **for_google_clients(url),
            "PYTHONPATH": str(packages),
            "GOOGLE_CLOUD_PROJECT": "demo",
        }
        env |= {"URL": service.url, "TOKEN": TOKEN}
        done = subprocess.run(
            [sys.executable, "script.py"], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        found: list[str] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run


GCSFS = """
import gcsfs
fs = gcsfs.GCSFileSystem(project="demo")

fs.pipe("out/a/b.txt", b"hello")
assert fs.cat("out/a/b.txt") == b"hello"
with fs.open("out/big", "wb", block_size=2**18) as file:
    for _ in range(5):
        file.write(b"x" * 200_000)
with fs.open("out/big", "rb") as file:
    file.seek(900_000)
    assert file.read() == b"x" * 100_000
fs.touch("out/a/c")
fs.put(__file__, "out/put")
fs.get("out/put", "got")
assert open("got").read() == open(__file__).read()
tried += ["pipe", "cat", "open", "touch", "put", "get"]

fs.pipe("out/folder/", b"")
assert fs.ls("out", refresh=True) == ["out/a", "out/big", "out/folder", "out/put"]
assert fs.find("out/a/") == ["out/a/b.txt", "out/a/c"]
assert fs.glob("out/**/*.txt") == ["out/a/b.txt"]
assert fs.info("out/a/b.txt")["size"] == 5 == fs.du("out/a/b.txt")
assert (fs.exists("out/big"), fs.exists("out/none"), fs.isdir("out/folder")) == (True, False, True)
assert ("out", ["a", "folder"], ["big", "put"]) in fs.walk("out")
tried += ["ls", "find", "glob", "info", "du", "exists", "isdir", "walk"]

fs.setxattrs("out/big", content_type="x/y", k="v")
fs.invalidate_cache()
assert fs.getxattr("out/big", "k") == "v"
fs.merge("out/merged", ["out/a/b.txt", "out/a/c", "out/a/b.txt"])
assert fs.cat("out/merged") == b"hellohello"
fs.cp("out/merged", "out/copied")
fs.mv("out/copied", "out/moved")
tried += ["setxattrs", "getxattr", "merge", "cp", "mv"]

fs.makedirs("out/none/below", exist_ok=True)
fs.rm("out/a/b.txt")
fs.rm("out/**")
assert fs.ls("out", refresh=True) == []
fs.rmdir("out")
fs.mkdir("out")
tried += ["makedirs", "rm", "rmdir", "mkdir"]
"""


def test_every_call_of_gcsfs(script: Script) -> None:
    assert script(GCSFS) == documented("gcsfs")


PYARROW = """
from pyarrow import fs, parquet, table
gcs = fs.GcsFileSystem(anonymous=True, project_id="demo")

def types(*paths):
    return [info.type.name for info in gcs.get_file_info([*paths])]

gcs.create_dir("out/p/q")
with gcs.open_output_stream("out/p/x") as file:
    file.write(b"data" * 1_000_000)
assert gcs.open_input_stream("out/p/x").read() == b"data" * 1_000_000
assert gcs.open_input_file("out/p/x").read_at(4, 8) == b"data"
tried += ["create_dir", "open_output_stream", "open_input_stream", "open_input_file"]
assert types("out/p", "out/p/q", "out/p/x", "out/none") == ["Directory", "Directory", "File", "NotFound"]
found = gcs.get_file_info(fs.FileSelector("out", recursive=True))
assert [info.path for info in found] == ["out/p", "out/p/q", "out/p/x"], found
tried += ["get_file_info", "FileSelector"]

parquet.write_table(table({"a": [1, 2]}), "out/t.parquet", filesystem=gcs)
assert parquet.read_table("out/t.parquet", filesystem=gcs).to_pydict() == {"a": [1, 2]}
parquet.write_table(table({"a": [3]}), "gs://anonymous@out/u.parquet")
assert parquet.read_table("gs://anonymous@out/u.parquet").to_pydict() == {"a": [3]}
tried += ["parquet.write_table", "parquet.read_table"]

gcs.copy_file("out/p/x", "out/copied")
gcs.move("out/copied", "out/moved")
gcs.delete_file("out/moved")
gcs.delete_dir("out/p/q")
gcs.delete_dir_contents("out/p")
assert types("out/p/x", "out/p/q") == ["NotFound", "NotFound"]
gcs.delete_dir("out")
assert types("out") == ["NotFound"]
gcs.create_dir("out")
tried += ["copy_file", "move", "delete_file", "delete_dir", "delete_dir_contents"]
"""


def test_every_call_of_pyarrow(script: Script) -> None:
    assert script(PYARROW) == documented("pyarrow")


LOGGING = """
import logging, os
import google.cloud.logging
from google.auth.credentials import AnonymousCredentials
from google.oauth2.credentials import Credentials

def client(url, credentials):
    options = {"api_endpoint": url}
    return google.cloud.logging.Client(
        project="my-project", credentials=credentials, client_options=options, _use_grpc=False
    )

own = client(os.environ["STORAGE_EMULATOR_HOST"], AnonymousCredentials())
logger = own.logger("steps")
logger.log_text("text", severity="WARNING")
logger.log_struct({"message": "struct", "epoch": 3}, labels={"k": "v"})
with logger.batch() as batch:
    batch.log_text("first of batch")
    batch.log_text("second of batch")
own.setup_logging()
logging.getLogger().warning("by %s", "logging")
logging.getLogger().handlers[0].transport.worker.stop()
tried += ["log_text", "log_struct", "batch", "setup_logging"]

everything = client(os.environ["URL"], Credentials(os.environ["TOKEN"]))
def listed(filter_, **more):
    since = 'timestamp>="2000-01-01T00:00:00Z" '  # otherwise the client asks for one day
    return [entry.payload for entry in everything.list_entries(filter_=since + filter_, **more)]
named = 'logName="projects/my-project/logs/steps"'
about_client, *found = listed(named, page_size=2)
assert "logging.googleapis.com/diagnostic" in about_client
assert found[0] == "text" and found[1]["message"] == "struct", found
assert found[2:] == ["first of batch", "second of batch"]
assert listed(named, order_by="timestamp desc")[-2:] == ["text", about_client]
assert listed('logName="projects/my-project/logs/python"') == ["by logging"]
assert len(listed("")) == 6 and listed("severity>=ERROR") == []
tried += ["list_entries"]
"""


def test_every_call_of_google_cloud_logging(script: Script) -> None:
    assert script(LOGGING) == documented("google-cloud-logging")
