"""Objects as files: written from outside, written concurrently, and never outside their bucket."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reconciler.training_service.http.message import ApiError
from reconciler.training_service.state import database
from reconciler.training_service.state.database import utc_now
from reconciler.training_service.storage import files, index
from reconciler.training_service.storage.files import Wanted
from reconciler.training_service.storage.objects import ANY, Conditions, Objects
from reconciler.training_service.storage.upload_sessions import Uploads


class Home:
    """A home's buckets, without a service."""

    def __init__(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        self.path = path
        self.bucket = path / "gcs" / "bucket"
        self.objects = Objects(path, database.open_file(path / "state.db"), utc_now)
        self.uploads = Uploads(path)

    def put(self, name: str, data: bytes = b"data", conditions: Conditions = ANY) -> int:
        with self.uploads.staged(iter([data])) as staged:
            return self.objects.put("bucket", name, staged, {"contentType": "text/x"}, conditions).generation

    def names(self, **wanted: str) -> list[str]:
        return [found.name for found in self.objects.walk("bucket", Wanted(**wanted))]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path / "home")
    made.objects.create_bucket("bucket", {})
    yield made
    assert list((made.path / "uploads").glob("*")) == []


def settle(path: Path, seconds_ago: float = 10) -> None:
    """Date the file some time ago."""
    then = path.stat().st_mtime_ns - int(seconds_ago * 1e9)
    os.utime(path, ns=(then, then))


def test_a_file_from_outside_is_an_object(home: Home) -> None:
    home.put("own")
    (home.bucket / "model").mkdir()
    file = home.bucket / "model" / "weights.bin"
    file.write_bytes(b"123")
    settle(file)
    found = home.objects.get("bucket", "model/weights.bin")
    assert (found.size, found.body) == (3, {})
    assert home.objects.get("bucket", "model/weights.bin") == found
    assert home.names() == ["model/weights.bin", "own"]


def test_object_of_file_from_outside_was_created_when_its_file_was_written(home: Home) -> None:
    tick = timedelta(milliseconds=20)  # of the kernel's clock
    file, before = home.bucket / "a", utc_now() - tick
    file.write_bytes(b"one")
    settle(file, 3600)  # as a copy has the time of its original
    after = utc_now() + tick
    with closing(database.open_file(home.path / "state.db")) as connection:
        an_hour_later = Objects(home.path, connection, lambda: utc_now() + timedelta(hours=1))
        found = an_hour_later.get("bucket", "a")
    assert before <= datetime.fromisoformat(found.created) <= after
    assert datetime.fromisoformat(found.updated) > after


def test_a_file_changed_from_outside_is_a_new_generation(home: Home) -> None:
    before = home.put("a", b"old")
    file = home.bucket / "a"
    file.write_bytes(b"new")
    settle(file, 60)  # same size, same inode
    found = home.objects.get("bucket", "a")
    assert found.generation > before
    assert found.body == {}
    with pytest.raises(ApiError, match="pre-conditions"):
        home.put("a", conditions=Conditions(generation=before))
    home.put("a", conditions=Conditions(generation=found.generation))


def test_a_touched_file_is_the_same_generation(home: Home) -> None:
    before = home.put("a", b"old")
    settle(home.bucket / "a", 60)
    found = home.objects.get("bucket", "a")
    assert (found.generation, found.body) == (before, {"contentType": "text/x"})
    settle(home.bucket / "a", 60)
    home.put("a", conditions=Conditions(generation=before))


def test_two_changes_within_a_tick_of_the_clock_are_seen(home: Home) -> None:
    file = home.bucket / "a"
    file.write_bytes(b"one")
    settle(file, -60)  # the tick isn't over, however slow the machine is
    time = file.stat().st_mtime_ns
    first = home.objects.get("bucket", "a")
    with file.open("r+b") as opened:
        opened.write(b"two")
    os.utime(file, ns=(time, time))
    assert home.objects.get("bucket", "a").md5 != first.md5


def test_a_file_just_written_from_outside_can_be_patched_and_deleted(home: Home) -> None:
    (home.bucket / "a").write_bytes(b"x")
    settle(home.bucket / "a", -60)  # a modification time that is not yet past can't be trusted
    generation = home.objects.get("bucket", "a").generation
    patched = home.objects.patch("bucket", "a", lambda body: body | {"contentType": "a/b"}, ANY)
    assert (patched.generation, patched.metageneration, patched.body) == (
        generation,
        2,
        {"contentType": "a/b"},
    )
    home.objects.delete("bucket", "a", None, Conditions(generation=generation))
    assert home.names() == []


def test_content_that_is_being_read_stays_what_it_was(home: Home) -> None:
    home.put("a", b"old")
    content = home.objects.open("bucket", "a")
    home.put("a", b"new")
    with content.file as file:
        assert file.read() == b"old"


def test_links_are_never_followed(home: Home, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_bytes(b"secret")
    (home.bucket / "folder").symlink_to(secret)
    (home.bucket / "file").symlink_to(secret / "key")
    (home.bucket / "loop").symlink_to("loop")
    os.mkfifo(home.bucket / "fifo")
    assert home.names() == []
    for name in ("folder/key", "file", "loop", "fifo", "loop/x"):
        with pytest.raises(ApiError, match="No such object"):
            home.objects.open("bucket", name)
        with pytest.raises(ApiError, match="No such object"):
            home.objects.delete("bucket", name, None, ANY)
    with pytest.raises(ApiError, match="link or special file"):
        home.put("folder/key", b"overwritten")
    home.put("file", b"replaced")
    assert (secret / "key").read_bytes() == b"secret"
    assert not (home.bucket / "file").is_symlink()


def test_a_folder_that_is_swapped_for_a_link_while_names_are_walked_leads_nowhere(
    home: Home, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "key").touch()
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (home.bucket / "d").mkdir()
            (home.bucket / "d").rmdir()
            (home.bucket / "d").symlink_to(tmp_path / "outside")
            (home.bucket / "d").unlink()

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(300):
            assert home.names() == []
            with pytest.raises(ApiError):
                home.objects.open("bucket", "d/key")
    finally:
        stop.set()
        swapping.join()


@pytest.mark.fault(33)
def test_a_failed_write_leaves_the_object_as_it_was(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.put("a", b"old")

    def full() -> Iterator[bytes]:
        yield b"new"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"), home.uploads.staged(full()):
        pass
    assert (home.bucket / "a").read_bytes() == b"old"


RACER = """
import sys, threading
from contextlib import ExitStack
from pathlib import Path
from reconciler.training_service.state import database
from reconciler.training_service.http.message import ApiError
from reconciler.training_service.storage.objects import Conditions, Objects
from reconciler.training_service.state.database import utc_now
from reconciler.training_service.storage.upload_sessions import Uploads

home, me, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
objects = Objects(home, database.open_file(home / "state.db"), utc_now)
uploads = Uploads(home)
won = []

def race(number, thread, staged):
    try:
        objects.put("bucket", f"claim-{number}", staged, {}, Conditions(generation=0))
        won.append(f"{number} {me}-{thread}")
    except ApiError as error:
        assert error.http == 412, error

def race_all(number):
    with ExitStack() as stack:
        staged = [stack.enter_context(uploads.staged(iter([f"{me}-{n}".encode()]))) for n in range(4)]
        threads = [threading.Thread(target=race, args=(number, n, each)) for n, each in enumerate(staged)]
        print("ready", flush=True)
        sys.stdin.readline()
        for each in threads: each.start()
        for each in threads: each.join()

for number in range(rounds): race_all(number)
print(*won, sep="\\n", flush=True)
"""


@pytest.mark.slow
def test_one_of_many_threads_of_two_processes_wins_each_claim(home: Home) -> None:
    rounds = 25
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(home.path), name, str(rounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("a", "b")
    ]
    for _ in range(rounds):
        for racer in racers:
            assert racer.stdout
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin
            racer.stdin.write("go\n")
            racer.stdin.flush()
    lines = [line for racer in racers for line in racer.communicate()[0].splitlines() if line]
    assert all(racer.returncode == 0 for racer in racers)
    winners = dict(line.split() for line in lines)
    assert len(lines) == len(winners) == rounds
    for number, winner in winners.items():
        assert (home.bucket / f"claim-{number}").read_text() == winner


PART = st.text(st.sampled_from("ab.-/\u00e9"), min_size=1, max_size=4)


def shown(home: Home) -> list[str]:
    """Return the names that a trainer sees in the bucket, folders with "/" appended."""
    found = (str(path.relative_to(home.bucket)) + "/" * path.is_dir() for path in home.bucket.rglob("*"))
    return sorted(found)


def content(home: Home, name: str) -> bytes:
    with home.objects.open("bucket", name).file as file:
        return file.read()


def test_object_and_folder_of_one_name_exist_side_by_side(home: Home) -> None:
    first = home.put("a", b"file")
    home.put("a/b", b"below")
    assert home.names() == ["a", "a/b"]
    assert shown(home) == ["a\n", "a/", "a/b"]
    assert home.objects.get("bucket", "a").generation == first
    assert (content(home, "a"), content(home, "a/b")) == (b"file", b"below")
    second = home.put("a", b"newer", Conditions(generation=first))
    assert (content(home, "a"), shown(home)) == (b"newer", ["a\n", "a/", "a/b"])
    home.objects.delete("bucket", "a", second, ANY)
    assert (home.names(), shown(home)) == (["a/b"], ["a/", "a/b"])
    home.put("a", b"again")
    assert content(home, "a") == b"again"


def test_object_has_its_plain_name_again_once_the_folder_is_empty(home: Home) -> None:
    home.put("a/b/c")
    generation = home.put("a", b"file")
    home.put("a/d/")
    home.objects.delete("bucket", "a/b/c", None, ANY)
    assert shown(home) == ["a\n", "a/", "a/b/", "a/d/"]
    home.objects.delete("bucket", "a/d/", None, ANY)
    assert (home.names(), shown(home)) == (["a"], ["a"])
    assert home.objects.get("bucket", "a").generation == generation


def test_file_that_a_trainer_writes_replaces_the_one_beside_a_removed_folder(home: Home) -> None:
    home.put("a/b")
    first = home.put("a", b"old")
    (home.bucket / "a/b").unlink()
    (home.bucket / "a").rmdir()
    assert (home.names(), content(home, "a")) == (["a"], b"old")
    (home.bucket / "a").write_bytes(b"trainer's")
    settle(home.bucket / "a")
    assert (home.names(), content(home, "a")) == (["a"], b"trainer's")
    assert home.objects.get("bucket", "a").generation > first
    home.objects.delete("bucket", "a", None, ANY)
    assert (home.names(), shown(home)) == ([], [])


def test_folder_object_is_seen_as_a_plain_folder(home: Home) -> None:
    generation = home.put("a/b/", b"")
    assert (home.names(), shown(home)) == (["a/b/"], ["a/", "a/b/"])
    found = home.objects.get("bucket", "a/b/")
    assert (found.generation, found.size, found.body) == (generation, 0, {"contentType": "text/x"})
    with pytest.raises(ApiError, match="pre-conditions"):
        home.put("a/b/", b"", Conditions(generation=0))
    home.put("a/b", b"file")
    home.put("a/b/c", b"below")
    home.put("a/b-c", b"before")
    home.put("a/b/", b"any content")
    assert home.names() == ["a/b", "a/b-c", "a/b/", "a/b/c"]
    assert home.names(prefix="a/b/") == ["a/b/", "a/b/c"]
    assert home.names(start="a/b/c") == ["a/b/c"]
    assert (content(home, "a/b/"), content(home, "a/b")) == (b"any content", b"file")
    assert shown(home) == ["a/", "a/b\n", "a/b-c", "a/b/", "a/b/c"]


def test_folder_object_ends_with_its_folder(home: Home) -> None:
    home.put("a/b/", b"old")
    (home.bucket / "a/b").rmdir()
    assert home.names() == []
    with pytest.raises(ApiError, match="No such object"):
        home.objects.get("bucket", "a/b/")
    (home.bucket / "a/b").mkdir()
    home.put("a/b/", b"new", Conditions(generation=home.objects.get("bucket", "a/b/").generation))
    (home.bucket / "a/b").rmdir()
    home.put("a/b/", b"newest", Conditions(generation=0))
    assert content(home, "a/b/") == b"newest"
    home.objects.delete("bucket", "a/b/", None, ANY)
    assert (home.names(), shown(home)) == ([], ["a/"])


def test_folder_that_a_trainer_makes_is_no_object(home: Home) -> None:
    (home.bucket / "a").mkdir()
    (home.bucket / "a" / "\n").touch()
    (home.bucket / "\n").touch()
    assert home.names() == []
    with pytest.raises(ApiError, match="No such object"):
        home.objects.get("bucket", "a/")
    with pytest.raises(ApiError, match="No such object"):
        home.objects.delete("bucket", "a/", None, ANY)


def test_longest_name_has_no_room_for_a_folder_beside_it(home: Home) -> None:
    name = "x" * 255
    with pytest.raises(ApiError, match="No such object"):
        home.objects.get("bucket", name)
    home.put(name)
    with pytest.raises(ApiError, match="Objects are files"):
        home.put(name + "/b")
    assert home.names() == [name]


NAMES = st.lists(st.sampled_from(["a", "b", "a-", "a.b"]), min_size=1, max_size=3).map("/".join)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.booleans(), NAMES, st.sampled_from(["", "/"])), max_size=14))
def test_objects_are_kept_whatever_their_names_begin_with(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bool, str, str]]
) -> None:
    home = Home(tmp_path_factory.mktemp("homes") / "home")
    home.objects.create_bucket("bucket", {})
    kept: dict[str, tuple[int, bytes]] = {}
    for number, (puts, name, end) in enumerate(steps):
        whole, data = name + end, str(number).encode()
        if puts:
            kept[whole] = home.put(whole, data, Conditions(generation=kept.get(whole, (0,))[0])), data
        elif whole in kept:
            home.objects.delete("bucket", whole, kept.pop(whole)[0], ANY)
        else:
            with pytest.raises(ApiError, match="No such object"):
                home.objects.delete("bucket", whole, None, ANY)
        assert home.names() == sorted(kept)
    for name, (generation, data) in kept.items():
        assert (home.objects.get("bucket", name).generation, content(home, name)) == (generation, data)
    plain = [name for name in kept if not any(other.startswith(name + "/") for other in kept)]
    assert all((home.bucket / name).is_dir() is name.endswith("/") for name in plain)


@pytest.mark.slow
@settings(max_examples=60)
@example({"a/b", "a/c", "b"}, "", "a/c")
@example({"a/b", "ab"}, "a", "a/b")
@given(
    st.sets(
        st.lists(st.text("ab.-é", min_size=1, max_size=3), min_size=1, max_size=3).map("/".join), max_size=12
    ),
    PART,
    PART,
)
def test_a_walk_gives_the_wanted_names_in_the_order_of_their_bytes(
    tmp_path_factory: pytest.TempPathFactory, names: set[str], prefix: str, start: str
) -> None:
    folder = tmp_path_factory.mktemp("bucket")
    kept = set()
    for name in sorted(names):
        path = folder / name
        if any(part in (".", "..") for part in name.split("/")) or path.exists():
            continue
        if any(parent.is_file() for parent in path.parents):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        kept.add(name)
    with files.opened(folder) as opened:
        found = walked(opened, Wanted(prefix, start))
        folded = walked(opened, Wanted(prefix, start, fold=True))
    wanted = [
        name
        for name in sorted(kept, key=str.encode)
        if name.startswith(prefix) and name.encode() >= start.encode()
    ]
    assert found == wanted
    assert folded == list(dict.fromkeys(first_part(name, prefix) for name in wanted))


@pytest.mark.parametrize(
    "prefix", ["../", "../secret/", "./", "a/../../secret/", "linked/", "a\0/", "\ud800/"]
)
def test_a_walk_below_a_prefix_never_leaves_the_bucket(tmp_path: Path, prefix: str) -> None:
    for name in ("bucket/a/b", "secret/key"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "bucket" / "linked").symlink_to(tmp_path / "secret")
    with files.opened(tmp_path / "bucket") as opened:
        assert walked(opened, Wanted(prefix)) == []
        assert walked(opened, Wanted("a/")) == ["a/b"]


@pytest.mark.parametrize("prefix", ["a", "a/", "a/b", "a/b/", "a/b/c"])
def test_a_walk_below_a_prefix_finds_what_is_there_and_no_missing_folder(tmp_path: Path, prefix: str) -> None:
    for name in ("a/b/c", "a/b.c", "ab/c", "b"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    names = [name for name in ("a/b.c", "a/b/c", "ab/c") if name.startswith(prefix)]
    with files.opened(tmp_path) as opened:
        assert walked(opened, Wanted(prefix)) == names
        assert walked(opened, Wanted("missing/")) == walked(opened, Wanted("b/")) == []


def walked(folder: int, wanted: Wanted) -> list[str]:
    return [found.name for found in files.walk(folder, wanted)]


def first_part(name: str, prefix: str) -> str:
    end = name.find("/", len(prefix))
    return name if end < 0 else name[: end + 1]


@pytest.mark.parametrize("before", ["nothing", "an older one"])
def test_what_was_said_of_an_object_is_not_lost_when_all_ends_as_it_takes_its_place(
    home: Home, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    old = home.put("a", b"old") if before == "an older one" else 0
    place = files.place

    def ended(*arguments: Any) -> None:
        place(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(files, "place", ended)
        with pytest.raises(KeyboardInterrupt), home.uploads.staged(iter([b"new"])) as staged:
            home.objects.put("bucket", "a", staged, {"metadata": {"claim": "new"}})
    settle(
        home.bucket / "a"
    )  # otherwise a second read, on a busy machine, may be the first to trust its time
    found = home.objects.get("bucket", "a")
    assert (found.body, found.size) == ({"metadata": {"claim": "new"}}, 3)
    assert found.generation > old
    assert home.objects.get("bucket", "a") == found
    with pytest.raises(ApiError, match="pre-conditions"):
        home.put("a", conditions=Conditions(generation=old))
    home.put("a", conditions=Conditions(generation=found.generation))


def test_what_was_said_of_an_object_that_never_took_its_place_is_said_of_no_other(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.put("a", b"old")

    def ended(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(files, "place", ended)
        with pytest.raises(KeyboardInterrupt), home.uploads.staged(iter([b"new"])) as staged:
            home.objects.put("bucket", "a", staged, {"metadata": {"claim": "new"}})
    assert home.objects.get("bucket", "a").body == {"contentType": "text/x"}
    with pytest.raises(ApiError, match="pre-conditions"), home.uploads.staged(iter([b"new"])) as staged:
        home.objects.put("bucket", "a", staged, {"metadata": {"claim": "late"}}, Conditions(generation=1))
    (home.bucket / "a").write_bytes(b"new")  # from outside, with the same content
    assert home.objects.get("bucket", "a").body == {}


def announced(home: Home) -> int:
    connection = sqlite3.connect(home.path / "state.db")
    with closing(connection):
        return int(connection.execute("SELECT count(*) FROM announced").fetchone()[0])


def test_nothing_stays_announced(home: Home) -> None:
    generation = home.put("a")
    home.put("a", conditions=Conditions(generation=generation))
    (home.bucket / "link").symlink_to("a")
    for name, conditions in (("a", Conditions(generation=0)), ("link/b", ANY), ("..", ANY)):
        with pytest.raises(ApiError):
            home.put(name, conditions=conditions)
    assert announced(home) == 0


def test_nothing_stays_announced_of_what_another_writer_was_faster_with(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce, others = index.announce, Home(home.path)

    def overtaken(connection: sqlite3.Connection, *announced: Any) -> None:
        announce(connection, *announced)
        monkeypatch.setattr(index, "announce", announce)
        connection.execute("COMMIT")
        others.put("a", b"faster")
        connection.execute("BEGIN IMMEDIATE")

    monkeypatch.setattr(index, "announce", overtaken)
    with pytest.raises(ApiError, match="pre-conditions"):
        home.put("a", b"slower", Conditions(generation=0))
    assert announced(home) == 0
    with home.objects.open("bucket", "a").file as file:
        assert file.read() == b"faster"
