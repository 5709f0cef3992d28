"""The stand-ins for gsutil and gcloud storage, run as programs; Google's client reads the results."""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from reconciler.training_service.storage import copies
from reconciler.training_service.storage.gsutil.main import write_launchers
from tests.support.training_service import trainers
from tests.support.training_service.served import Service
from tests.support.waiting import patience

TREE = ("dir1/dir2/a/b/c", "dir1/dir2/d.txt", "dir1/e.txt", "f")


@dataclass
class Shell:
    """A shell in a folder of files, with the stand-ins in its PATH and a job's storage."""

    work: Path
    buckets: Path
    env: dict[str, str]

    def run(self, command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["/bin/sh", "-fc", command], cwd=self.work, env=self.env, input=stdin, capture_output=True
        )

    def out(self, command: str, stdin: bytes = b"") -> str:
        done = self.run(command, stdin)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def fails(self, command: str) -> str:
        done = self.run(command)
        assert done.returncode == 1
        return done.stderr.decode()

    def contents(self) -> dict[str, str]:
        """Return the content of the bucket `out` as Google's client reads it."""
        url = self.env["STORAGE_EMULATOR_HOST"]
        client = storage.Client("p", AnonymousCredentials(), client_options={"api_endpoint": url})
        return {blob.name: blob.download_as_text() for blob in client.bucket("out").list_blobs()}

    def objects(self) -> set[str]:
        return {*self.contents()}


def below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def plant(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}")


@pytest.fixture
def shell(service: Service, tmp_path: Path) -> Shell:
    spec = {"baseOutputDirectory": {"outputUriPrefix": "gs://out/x"}}
    job = service.store.add_job(trainers.custom_job(spec=spec, args=["gs://away"]))
    work = tmp_path / "work"
    plant(work, TREE)
    (service.home / "gcs" / "out").mkdir(parents=True)
    write_launchers(tmp_path / "bin")
    env = {
        "PATH": f"{tmp_path / 'bin'}:{os.defpath}",
        "STORAGE_EMULATOR_HOST": f"{service.url}/jobs/{job.gcs_secret}",
        "PYTHONPATH": "/nowhere",
        "PYTHONHOME": "/nowhere",
    }
    return Shell(work, service.home / "gcs", env)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "there", "made"),
    [
        ("f gs://out", (), {"f"}),
        ("f gs://out/g", (), {"g"}),
        ("f gs://out/sub/", (), {"sub/f"}),
        ("f gs://out/sub", ("sub/x",), {"sub/x", "sub/f"}),
        ("-r dir1/dir2 gs://out", (), {"dir2/a/b/c", "dir2/d.txt"}),
        ("-r dir1/dir2 gs://out/sub", (), {"sub/a/b/c", "sub/d.txt"}),
        ("-r dir1/dir2/ gs://out/sub", (), {"sub/a/b/c", "sub/d.txt"}),
        ("-r dir1/dir2 gs://out/sub/", (), {"sub/dir2/a/b/c", "sub/dir2/d.txt"}),
        ("-r dir1/dir2 gs://out/sub", ("sub/x",), {"sub/x", "sub/dir2/a/b/c", "sub/dir2/d.txt"}),
        ("dir1/dir2/** gs://out", (), {"c", "d.txt"}),
        ("dir1/dir2/* gs://out", (), None),
        ("-r dir1/* gs://out/new", (), {"new/dir2/a/b/c", "new/dir2/d.txt", "new/e.txt"}),
        ("dir1/*.txt gs://out", (), {"e.txt"}),
        ("f dir1/e.txt gs://out/both/", (), {"both/f", "both/e.txt"}),
        ("-n f gs://out/g", ("g",), {"g"}),
        ("gs://out/a/x gs://out/b", ("a/x",), {"a/x", "b"}),
        ("-r gs://out/a gs://out/b", ("a/x/y",), {"a/x/y", "b/x/y"}),
        ("gs://out/a/[x-z]? gs://out/b/", ("a/x1", "a/w1", "a/y/z"), {"a/x1", "a/w1", "a/y/z", "b/x1"}),
    ],
)
def test_names_of_copies_are_made_as_the_tools_make_them(
    words: str, there: tuple[str, ...], made: set[str] | None, shell: Shell
) -> None:
    plant(shell.buckets / "out", there)
    done = shell.run(f"gsutil -m cp {words}")
    if made is None:
        assert done.returncode == 1
        assert b"Omitting directory" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    renamed = {"f gs://out/g": {"g": "f"}, "gs://out/a/x gs://out/b": {"b": "x"}}.get(words, {})
    found = shell.contents()
    assert {*found} == made
    for name, content in found.items():
        source = renamed.get(name, name.rpartition("/")[2])
        assert content.endswith((f" {source}", f"/{source}"))


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["gsutil", "gsutil -q", "gcloud storage", "gcloud --quiet storage"])
def test_both_tools_do_the_same(tool: str, shell: Shell) -> None:
    shell.out(f"{tool} cp -r dir1/dir2 gs://out/sub")
    assert shell.objects() == {"sub/a/b/c", "sub/d.txt"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "made"),
    [
        ("gs://out/a/b/c .", {"c"}),
        ("gs://out/a/b/c sub/new", {"sub/new"}),
        ("-r gs://out/a .", {"a/b/c", "a/d"}),
        ("-r gs://out/a new", {"new/b/c", "new/d"}),
        ("-r gs://out .", {"out/a/b/c", "out/a/d", "out/e"}),
        ("gs://out/** .", {"c", "d", "e"}),
        ("gs://out/* .", None),
    ],
)
def test_downloads_are_named_alike(words: str, made: set[str] | None, shell: Shell) -> None:
    plant(shell.buckets / "out", ("a/b/c", "a/d", "e"))
    shell.work = shell.work / "empty"
    shell.work.mkdir()
    done = shell.run(f"gsutil cp {words}")
    assert (done.returncode == 0) == (made is not None), done.stderr
    assert below(shell.work) == (made if made is not None else {"e"})


@pytest.mark.slow
def test_contents_of_any_kind_go_through(shell: Shell) -> None:
    data = bytes(range(256)) * 20_000
    (shell.work / "data").write_bytes(data)
    shell.out("gsutil cp data gs://out/x/data && gsutil cp gs://out/x/data back")
    assert (shell.work / "back").read_bytes() == data
    shell.out("gsutil cp - gs://out/streamed", data)
    assert shell.run("gsutil cat gs://out/streamed").stdout == data
    assert shell.run("gcloud storage cp gs://out/streamed -").stdout == data


def test_rsync_copies_what_differs_and_deletes_only_when_told(shell: Shell) -> None:
    plant(shell.buckets / "out", ("sync/extra", "sync/d.txt"))
    (shell.buckets / "out/sync/d.txt").write_text("old")
    done = shell.run("gsutil -m rsync -r dir1/dir2 gs://out/sync")
    assert shell.objects() == {"sync/a/b/c", "sync/d.txt", "sync/extra"}
    assert (shell.buckets / "out/sync/d.txt").read_text() == "content of dir1/dir2/d.txt"
    assert done.stderr.count(b"Copying") == 2
    again = shell.run(
        "gcloud storage rsync --recursive --delete-unmatched-destination-objects dir1/dir2 gs://out/sync"
    )
    assert again.returncode == 0
    assert b"Copying" not in again.stderr
    assert shell.objects() == {"sync/a/b/c", "sync/d.txt"}
    shell.out("mkdir down && gsutil rsync gs://out/sync down")
    assert below(shell.work / "down") == {"d.txt"}


@pytest.mark.slow
def test_ls_rm_and_mv(shell: Shell) -> None:
    plant(shell.buckets / "out", ("a/b/c", "a/d", "e"))
    assert shell.out("gsutil ls gs://out") == "gs://out/a/\ngs://out/e\n"
    assert shell.out("gsutil ls gs://out/a") == "gs://out/a/b/\ngs://out/a/d\n"
    assert shell.out("gcloud storage ls gs://out/**") == "gs://out/a/b/c\ngs://out/a/d\ngs://out/e\n"
    assert shell.out("gsutil ls") == "gs://out/\n"
    shell.out("gsutil mv gs://out/e gs://out/moved/e && gsutil -q mv f gs://out/up")
    assert shell.objects() == {"a/b/c", "a/d", "moved/e", "up"}
    assert not (shell.work / "f").exists()
    shell.out("gsutil -m rm -r gs://out/a && gsutil rm gs://out/up")
    assert shell.objects() == {"moved/e"}


@pytest.mark.slow
def test_mv_between_locations_takes_as_many_calls_as_it_needs(
    shell: Shell, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "LARGEST_PART", 1024**2)
    service.post("/storage/v1/b?project=demo", {"name": "away", "location": "EU"})
    data = os.urandom(5 * 1024**2 // 2)
    (shell.buckets / "out/large").write_bytes(data)
    shell.out("gsutil mv gs://out/large gs://away/large")
    assert (shell.buckets / "away/large").read_bytes() == data
    assert shell.objects() == set()


@pytest.mark.slow
def test_du_prints_sizes_of_objects_and_of_all_below_a_prefix(shell: Shell) -> None:
    plant(shell.buckets / "out", ("a/b/c", "a/d", "e"))
    sizes = {name: len(f"content of {name}") for name in ("a/b/c", "a/d", "e")}
    below, everything = sizes["a/b/c"] + sizes["a/d"], sum(sizes.values())
    assert shell.out("gsutil du gs://out").splitlines() == [
        f"{sizes['a/b/c']:<11}  gs://out/a/b/c",
        f"{sizes['a/d']:<11}  gs://out/a/d",
        f"{sizes['e']:<11}  gs://out/e",
        f"{sizes['a/b/c']:<11}  gs://out/a/b/",
        f"{below:<11}  gs://out/a/",
        f"{everything:<11}  gs://out",
    ]
    assert shell.out("gsutil du -s gs://out/a") == f"{below:<11}  gs://out/a/\n"
    assert shell.out("gcloud storage du -s gs://out") == f"{everything:<11}  gs://out\n"
    (shell.buckets / "out/big").write_bytes(b"x" * 1_572_864)
    assert shell.out("gsutil du -ch gs://out/big") == "1.5 MiB      gs://out/big\n1.5 MiB      total\n"
    assert "matched no objects" in shell.fails("gsutil du gs://out/none")


def test_gcloud_prints_the_job_s_project_and_region(shell: Shell) -> None:
    assert shell.out("gcloud config get-value project") == "my-project\n"
    assert re.fullmatch(r"[a-z]+-[a-z]+[0-9]\n", shell.out("gcloud config get-value compute/region"))
    assert "only `gcloud storage`" in shell.fails("gcloud config get-value disable_prompts")
    assert "only `gcloud storage`" in shell.fails("gcloud config get-value")


@pytest.mark.slow
def test_what_fails_says_why_and_exits_1(shell: Shell) -> None:
    assert "No URLs matched: nothing" in shell.fails("gsutil cp nothing gs://out")
    assert "No URLs matched: gs://out/no" in shell.fails("gsutil rm gs://out/no")
    assert "matched no objects" in shell.fails("gsutil ls gs://out/no")
    assert "AccessDeniedException: 403" in shell.fails("gsutil cp f gs://other/f")
    assert "these commands are served here: cat, cp" in shell.fails("gsutil iam get gs://out")
    assert "knows no --zone" in shell.fails("gcloud storage cp --zone x f gs://out")
    assert "only `gcloud storage`" in shell.fails("gcloud ai-platform jobs list")
    assert "only `gcloud storage`" in shell.fails("gcloud auth list")
    assert "Omitting directory" in shell.fails("gsutil cp dir1 gs://out")
    assert shell.run("gsutil -m rm -f gs://out/no").returncode == 0


@pytest.mark.slow
def test_a_call_is_quick(shell: Shell) -> None:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        shell.out("gsutil -q ls gs://out")
        times.append(time.perf_counter() - began)
    assert min(times) < patience(1.0)  # 0.1 s on an idle machine


@pytest.mark.slow
def test_stat_tells_whether_an_object_is_there(shell: Shell) -> None:
    shell.out("gsutil cp f gs://out/x/a.txt")
    told = shell.out("gsutil stat gs://out/x/a.txt")
    assert told.startswith("gs://out/x/a.txt:\n")
    assert re.search(rf"Content-Length: +{len('content of f')}\n", told)
    assert shell.out("gsutil -q stat gs://out/x/a.txt") == ""
    assert (
        shell.fails("gsutil stat gs://out/x/b.txt") == "CommandException: No URLs matched: gs://out/x/b.txt\n"
    )
    assert shell.fails("gsutil -q stat gs://out/x/b.txt") == ""
    assert "gs://out/x/a.txt:" in shell.out("gsutil stat 'gs://out/x/*'")
    assert "only works with object URLs" in shell.fails("gsutil stat gs://out")


@pytest.mark.slow
def test_folder_objects_are_copied_as_folders(shell: Shell) -> None:
    url = shell.env["STORAGE_EMULATOR_HOST"]
    client = storage.Client("p", AnonymousCredentials(), client_options={"api_endpoint": url})
    for name in ("d/", "d/x", "d/e/"):
        client.bucket("out").blob(name).upload_from_string(b"")
    shell.out(
        "gsutil cp -r gs://out/d . && gcloud storage cp -r gs://out/d new && gsutil rsync -r gs://out mirror"
    )
    for folder in ("d", "new", "mirror/d"):
        assert [path.name for path in sorted((shell.work / folder).iterdir())] == ["e", "x"]
        assert (shell.work / folder / "e").is_dir()
    shell.out("gsutil mv gs://out/d gs://out/m")
    assert shell.objects() == {"m/", "m/x", "m/e/"}
    shell.out("gsutil rm -r gs://out/m")
    assert shell.objects() == set()
