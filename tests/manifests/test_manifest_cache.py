"""What is remembered of manifests: believed where it can be, never wrong; and what many processes read."""

from __future__ import annotations

import copy
import errno
import itertools
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

import reconciler
from reconciler.base import workers
from reconciler.base.diagnostics import Problem
from reconciler.base.errors import InvalidError
from reconciler.base.state_dir import Home, HomeError, locate, prepare_home
from reconciler.base.state_dir_trust import accept
from reconciler.manifests import cache, fast_validate, files, schemas
from reconciler.manifests import validate as reading
from reconciler.manifests.cache import CacheFile, KnownFile, KnownFiles, cached_manifests
from reconciler.manifests.settings import load_config
from reconciler.manifests.validate import Validation, validate
from reconciler.operations.load_desired import load_desired
from tests.manifests.test_validate import GOOD, write

ROOT = Path(__file__).parents[2]
NOTHING: frozenset[str] = frozenset()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with three jobs, one of them with code."""
    root = tmp_path / "repository"
    for name, kind in (("one", "HyperparameterTuningJob"), ("two", "Job")):
        write(root, f"jobs/{name}.yaml", named(name, kind))
    write(root, "jobs/three.yaml", named("three", "CustomJob"))
    write(root, "trainers/census/task.py", "")
    return root


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The variables of a user whose key is outside of the repository."""
    (tmp_path / "home").mkdir()
    return {"HOME": str(tmp_path / "home")}


@pytest.fixture(autouse=True)
def _other_code() -> Iterator[None]:
    """What one test takes for the tool's code is no other test's."""
    cache.fingerprint.cache_clear()
    yield
    cache.fingerprint.cache_clear()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is some seconds after the files were written, so that their times can be trusted."""
    monkeypatch.setattr(reading, "time", SimpleNamespace(time_ns=lambda: time.time_ns() + 10 * 10**9))


def named(name: str, kind: str = "HyperparameterTuningJob") -> dict[str, Any]:
    value = copy.deepcopy(GOOD[kind])
    value["metadata"]["name"] = name
    return value


def check(root: Path, environ: dict[str, str]) -> Validation:
    """What `validate` does."""
    with cached_manifests(root, NOTHING, environ) as known:
        return validate(root, [root / "jobs"], known=known, whole=True)


def cache_of(root: Path) -> Path:
    (file,) = (root / ".reconciler" / "cache").iterdir()
    return file


def loaded(root: Path, environ: dict[str, str]) -> KnownFiles:
    with cached_manifests(root, NOTHING, environ) as known:
        return known


def no_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> dict[bytes, KnownFile]:
        raise AssertionError("a file is parsed that is known")

    monkeypatch.setattr(fast_validate, "known_files", refuse)


def no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> Problem:
        raise AssertionError("a file is opened that wasn't touched")

    monkeypatch.setattr(files.Folders, "read", refuse)


def rewrite(file: Path, text: str) -> None:
    """Change a file so that its size and the time of its last change stay."""
    before = file.stat()
    assert len(text.encode()) == before.st_size
    while file.stat().st_ctime_ns == before.st_ctime_ns:  # the clock ticks every few milliseconds
        file.write_text(text)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns


# --- What is remembered ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("later")
def test_a_file_that_was_not_touched_is_not_opened(
    root: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = check(root, environ)
    assert [manifest.name for manifest in first.manifests] == ["one", "three", "two"]
    no_reading(monkeypatch)
    again = check(root, environ)
    assert again == first
    assert again.identities == first.identities


@pytest.mark.usefixtures("later")
def test_an_edit_of_the_same_size_and_time_is_seen(root: Path, environ: dict[str, str]) -> None:
    check(root, environ)
    file = root / "jobs" / "one.yaml"
    rewrite(file, file.read_text().replace('"one"', '"won"'))
    assert [manifest.name for manifest in check(root, environ).manifests] == ["won", "three", "two"]
    rewrite(file, file.read_text().replace('"won"', "[{} ]"[:5]))
    assert [problem.path for problem in check(root, environ).problems] == ["jobs/one.yaml"]


def test_what_was_written_just_now_is_read_again_but_not_parsed(
    root: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a tick of the clock, a second edit could leave the times as they are."""
    monkeypatch.setattr(reading, "time", SimpleNamespace(time_ns=lambda: (root / "jobs").stat().st_ctime_ns))
    first = check(root, environ)
    assert len(loaded(root, environ).files) == 3
    assert not loaded(root, environ).places
    no_parsing(monkeypatch)
    assert check(root, environ) == first
    no_reading(monkeypatch)
    with pytest.raises(AssertionError, match="is opened"):
        check(root, environ)


@pytest.mark.usefixtures("later")
def test_a_file_that_is_only_elsewhere_is_not_parsed(
    root: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(root, environ)
    (root / "jobs" / "one.yaml").rename(root / "jobs" / "moved.yaml")
    no_parsing(monkeypatch)
    found = check(root, environ)
    assert [manifest.path for manifest in found.manifests] == [
        "jobs/moved.yaml",
        "jobs/three.yaml",
        "jobs/two.yaml",
    ]
    assert {Path(place.place).name for place in loaded(root, environ).places} == {
        "moved.yaml",
        "three.yaml",
        "two.yaml",
    }


@pytest.mark.usefixtures("later")
def test_what_is_gone_is_forgotten_only_when_everything_was_looked_at(
    root: Path, environ: dict[str, str]
) -> None:
    check(root, environ)
    with cached_manifests(root, NOTHING, environ) as known:
        validate(root, [root / "jobs" / "one.yaml"], known=known)
    assert len(loaded(root, environ).files) == 3
    (root / "jobs" / "two.yaml").unlink()
    check(root, environ)
    known = loaded(root, environ)
    assert (len(known.files), len(known.places)) == (2, 2)


@pytest.mark.usefixtures("later")
def test_nothing_is_written_where_nothing_was_learned(root: Path, environ: dict[str, str]) -> None:
    check(root, environ)
    before = cache_of(root).stat()
    check(root, environ)
    assert cache_of(root).stat().st_ino == before.st_ino
    write(root, "jobs/four.yaml", named("four"))
    check(root, environ)
    after = cache_of(root).stat()
    assert after.st_ino != before.st_ino
    assert stat.S_IMODE(after.st_mode) == 0o600
    assert (root / ".reconciler" / ".gitignore").read_text() == "*\n"


@pytest.mark.usefixtures("later")
def test_problems_of_several_files_are_told_though_each_is_known(root: Path, environ: dict[str, str]) -> None:
    """Names that are there twice, and a package that changes, are never remembered."""
    write(root, "jobs/four.yaml", named("one", "Job"))
    expected = validate(root, [root / "jobs"])
    assert ["is already used" in problem.message for problem in expected.problems] == [True]
    assert check(root, environ) == check(root, environ) == expected
    (root / "jobs" / "four.yaml").unlink()
    (root / "trainers" / "census" / "task.py").rename(root / "trainers" / "census" / "other.py")
    found = check(root, environ)
    assert ["has no module" in problem.message for problem in found.problems] == [True]
    shutil.rmtree(root / "trainers")
    assert ["no such folder" in problem.message for problem in check(root, environ).problems] == [True]
    write(root, "trainers/census/task.py", "")
    assert check(root, environ).problems == ()


def test_a_live_memory_is_of_one_set_of_filled_fields(root: Path) -> None:
    """What an environment fills in decides about what is valid."""
    value = named("two", "Job")
    del value["spec"]["trainingInput"]["region"]
    write(root, "jobs/two.yaml", value)
    known = KnownFiles()
    for filled, valid in ((frozenset({"region"}), True), (NOTHING, False), (frozenset({"region"}), True)):
        found = validate(root, [root / "jobs"], filled, known=known, whole=True)
        assert (not found.problems) is valid


@pytest.mark.usefixtures("later")
def test_a_live_memory_opens_nothing_while_nothing_changes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = KnownFiles()
    first = validate(root, [root / "jobs"], known=known, whole=True)
    no_reading(monkeypatch)
    assert validate(root, [root / "jobs"], known=known, whole=True) == first


# --- What is believed -----------------------------------------------------------------------------------


def lie(root: Path, environ: dict[str, str]) -> None:
    """Write a cache that says something else of a file, with the key of `environ`."""
    known = KnownFiles()
    validate(root, [root / "jobs"], known=known)
    text = (root / "jobs" / "one.yaml").read_text()
    other = root.parent / "other"
    write(other, "jobs/one.yaml", text.replace('"one"', '"lie"'))
    untrue = KnownFiles()
    validate(other, [other / "jobs"], known=untrue)
    (file,) = untrue.files
    (place,) = (place for place in known.places if place.place.endswith("one.yaml"))
    with cached_manifests(root, NOTHING, environ) as saved:
        for each in (*known.places,):
            content = known.with_digest(each.digest)
            assert content is not None
            saved.add(file if each is place else content, each.place, each.signature)


@pytest.mark.usefixtures("later")
def test_a_cache_with_the_right_key_is_believed(root: Path, environ: dict[str, str]) -> None:
    """So that the tests below show what they are about."""
    lie(root, environ)
    assert {manifest.name for manifest in check(root, environ).manifests} == {"lie", "two", "three"}


@pytest.mark.usefixtures("later")
def test_a_cache_with_another_key_is_not_believed(root: Path, environ: dict[str, str]) -> None:
    """Such as one that a stranger's pull request brings."""
    stranger = root.parent / "stranger"
    stranger.mkdir()
    lie(root, {"HOME": str(stranger)})
    with pytest.raises(HomeError):
        loaded(root, environ)
    accept(locate(root, environ), environ)
    assert not loaded(root, environ).files
    assert {manifest.name for manifest in check(root, environ).manifests} == {"one", "two", "three"}


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("part", ["version", "code", "schemas", "library"])
def test_a_cache_of_another_version_is_not_believed(
    root: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    check(root, environ)
    assert loaded(root, environ).files
    if part == "version":
        monkeypatch.setattr(reconciler, "__version__", "0.0.0")
    elif part == "code":
        package = root.parent / "package"
        shutil.copytree(ROOT / "reconciler", package, ignore=shutil.ignore_patterns("__pycache__"))
        monkeypatch.setattr(reconciler, "__file__", str(package / "__init__.py"))
        cache.fingerprint.cache_clear()
        assert loaded(root, environ).files
        checks = package / "manifests" / "rules.py"
        checks.write_text(checks.read_text() + "\n")
        cache.fingerprint.cache_clear()
    elif part == "schemas":
        folder = root.parent / "schemas"
        shutil.copytree(schemas.folder(), folder)
        monkeypatch.setattr(schemas, "folder", lambda: folder)
        cache.fingerprint.cache_clear()
        assert loaded(root, environ).files
        file = folder / schemas.SETTINGS
        file.write_bytes(file.read_bytes().replace(b'"minimum": ', b'"minimum": 2', 1))
    else:
        files_of = cache._files_of
        monkeypatch.setattr(cache, "_files_of", lambda name: [*files_of(name), ("new.py", 0, 0)])
    cache.fingerprint.cache_clear()
    assert not loaded(root, environ).files


def flipped(place: float) -> Callable[[bytes], bytes]:
    def flip(data: bytes) -> bytes:
        at = int(place * (len(data) - 1))
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    return flip


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize(
    "damage",
    [
        *map(flipped, (0.0, 0.01, 0.02, 0.5, 1.0)),
        lambda data: b"",
        lambda data: data[:20],
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data + b"\0",
        lambda data: b"garbage" * 100,
    ],
)
def test_a_damaged_cache_is_as_good_as_none(
    root: Path, environ: dict[str, str], damage: Callable[[bytes], bytes]
) -> None:
    expected = check(root, environ)
    file = cache_of(root)
    file.write_bytes(damage(file.read_bytes()))
    assert not loaded(root, environ).files
    assert check(root, environ) == expected
    assert loaded(root, environ).files


@pytest.mark.usefixtures("later")
def test_the_cache_may_be_deleted_at_any_time(root: Path, environ: dict[str, str]) -> None:
    expected = check(root, environ)
    for gone in (cache_of(root), root / ".reconciler" / "cache", root / ".reconciler"):
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        assert check(root, environ) == expected
        assert loaded(root, environ).files


def test_a_key_that_is_not_private_is_not_used(root: Path, environ: dict[str, str]) -> None:
    environ["RECONCILER_HOME"] = str(root.parent / "kept")  # such a home needs no key
    check(root, environ)
    folder = Path(environ["HOME"], ".local", "state", "reconciler")
    key = folder / "key"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, key)] == [0o700, 0o600]
    assert loaded(root, environ).files
    for path in (key, folder):
        mode = path.stat().st_mode
        path.chmod(mode | 0o044)
        assert not loaded(root, environ).files
        path.chmod(mode)
    assert loaded(root, environ).files
    secret = key.read_bytes()
    for other in (secret[:-1], secret + b"\0", b""):
        key.write_bytes(other)
        assert not loaded(root, environ).files
    key.unlink()
    key.symlink_to(root / "key")
    (root / "key").write_bytes(secret)
    (root / "key").chmod(0o600)
    assert not loaded(root, environ).files


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"HOME": "relative"},
        {"HOME": "/nowhere/at/all"},
        {"XDG_STATE_HOME": "ROOT/.state"},
        {"HOME": "ROOT"},
    ],
)
def test_without_a_key_outside_of_the_repository_there_is_no_cache(
    root: Path, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    environ = {name: value.replace("ROOT", str(root)) for name, value in variables.items()}
    assert not check(root, environ).problems
    assert not (root / ".reconciler").exists()


def test_the_key_lies_in_the_users_state_folder(root: Path, environ: dict[str, str]) -> None:
    environ["XDG_STATE_HOME"] = str(root.parent / "states")
    check(root, environ)
    assert (root.parent / "states" / "reconciler" / "key").is_file()
    assert not Path(environ["HOME"], ".local").exists()


def test_key_is_made_when_a_cache_file_is_first_saved(root: Path, environ: dict[str, str]) -> None:
    file = CacheFile(root, "one.bin", environ)
    assert file.load() is None
    assert not file.save(b"content", first=False)
    assert not Path(environ["HOME"], ".local").exists()
    assert file.save(b"content")
    assert Path(environ["HOME"], ".local", "state", "reconciler", "key").is_file()
    found = file.load()
    assert found is not None
    assert bytes(found) == b"content"


# --- What stands in its way -----------------------------------------------------------------------------


def a_file_is_the_folder(root: Path) -> None:
    prepare_home(Home(root / ".reconciler", root), {"HOME": str(root.parent / "home")})
    write(root, ".reconciler/cache", "")


def a_link_is_the_folder(root: Path) -> None:
    (root.parent / "elsewhere").mkdir()
    prepare_home(Home(root / ".reconciler", root), {"HOME": str(root.parent / "home")})
    (root / ".reconciler" / "cache").symlink_to(root.parent / "elsewhere")


@pytest.mark.parametrize("obstacle", [a_file_is_the_folder, a_link_is_the_folder])
def test_where_no_cache_can_be_there_is_none(
    root: Path, environ: dict[str, str], obstacle: Callable[[Path], None]
) -> None:
    obstacle(root)
    before = sorted(root.parent.rglob("*"))
    assert not check(root, environ).problems
    assert not loaded(root, environ).files
    made = set(root.parent.rglob("*")) - set(before)
    # A link that a repository holds leads nowhere that anything is written to.
    assert not [path for path in made if "elsewhere" in str(path) or path.suffix == ".bin"]


@pytest.mark.parametrize("call", ["open", "replace", "mkdir"])
def test_a_full_disk_fails_nothing_and_leaves_nothing(
    root: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    check(root, environ)
    before = cache_of(root).read_bytes()
    write(root, "jobs/four.yaml", named("four"))
    actual = getattr(os, call)

    def full(*arguments: Any, **options: Any) -> Any:
        if call == "open" and not arguments[1] & os.O_CREAT:
            return actual(*arguments, **options)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    found = check(root, environ)
    monkeypatch.undo()
    assert len(found.manifests) == 4
    assert cache_of(root).read_bytes() == before or call == "mkdir"


def test_a_cache_has_bounds(root: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_BYTES", 1000)
    check(root, environ)
    assert not [*root.rglob("*.bin")]
    monkeypatch.undo()
    check(root, environ)
    assert loaded(root, environ).files
    monkeypatch.setattr(cache, "MAX_BYTES", 1000)
    assert not loaded(root, environ).files


# --- Whole commands -------------------------------------------------------------------------------------

IMPORTED = """
import sys
from reconciler.__main__ import main
try:
    status = main()
except SystemExit as error:
    status = error.code
print(*(name for name in ("yaml", "jsonschema", "jsonschema_rs") if name in sys.modules), file=sys.stderr)
sys.exit(status)
"""


def command(root: Path, environ: dict[str, str]) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", IMPORTED, "validate", "--format", "json"]
    variables = {**os.environ, "XDG_STATE_HOME": "", **environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        arguments, cwd=root, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_two_commands_at_once_are_both_right_and_leave_a_good_cache(
    root: Path, environ: dict[str, str]
) -> None:
    """And a command that finds all known imports nothing that parses or judges."""
    both = [command(root, environ) for _ in range(2)]
    told = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert [json.loads(out)["files"] for out, _ in told] == [3, 3]
    assert len(loaded(root, environ).files) == 3
    cache_of(root)  # and nothing beside it
    out, error = command(root, environ).communicate()
    assert json.loads(out)["valid"]
    assert error.split() == []


def test_the_fingerprint_is_over_all_code_that_decides() -> None:
    code = (
        "import sys, reconciler.manifests.settings, reconciler.manifests.cache, reconciler.manifests.examine"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}, reconciler.manifests.validate; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    imported = {name for name in done.stdout.split() if name.startswith("reconciler.")}
    assert len(imported) > 20
    for name in imported:
        below = name.removeprefix("reconciler.")
        package = below.rpartition(".")[0] or "."
        assert below in cache._PACKAGES or package in cache._PACKAGES, name


# --- Processes that share the reading -------------------------------------------------------------------

# In a process of its own: a fork of one with threads might wait for ever.
SHARED = """
import json, os, signal, sys
from pathlib import Path
from msgspec.structs import asdict, replace
from reconciler.manifests import fast_validate as known
from reconciler.manifests import validate as reading
from reconciler.base import workers
from reconciler.manifests.validate import validate

root, mode = Path(sys.argv[1]), sys.argv[2]
started = []
workers.count_of_processors = lambda: 3
reading.FEWEST = 1 if mode != "alone" else 10**9
reading._PIECE = 4
main, known_files = os.getpid(), known.known_files

def or_end(contents, filled):
    if os.getpid() != main:
        if mode == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if mode == "killed later" and any(b'"census-7"' in data for data in contents.values()):
            os.kill(os.getpid(), signal.SIGKILL)
        if mode == "raising":
            raise MemoryError
    return known_files(contents, filled)

known.known_files = or_end
if mode == "no forks":
    def refuse():
        raise OSError(11, "Resource temporarily unavailable")
    os.fork = refuse
fork = os.fork
def counting():
    pid = fork()
    if pid:
        started.append(pid)
    return pid
os.fork = counting
found = validate(root, [root / "jobs"])
try:
    os.waitpid(-1, os.WNOHANG)
    left = True
except ChildProcessError:
    left = False
print(json.dumps({
    "manifests": [repr(replace(manifest, packed=manifest.spec)) for manifest in found.manifests],
    "identities": found.identities,
    "problems": [asdict(problem) for problem in found.problems],
    "invalid": sorted(found.invalid),
    "started": len(started),
    "left": left,
}))
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty jobs, some of them with mistakes, two with one name, and a package."""
    root = tmp_path_factory.mktemp("many")
    for number in range(30):
        value = named(f"census-{number}", "Job" if number % 3 else "CustomJob")
        if number % 10 == 4:
            value["spec"]["trainingInput" if number % 3 else "workerPoolSpecs"] = 5
        write(root, f"jobs/{number % 4}/{number}.yaml", value)
    write(root, "jobs/twice.yaml", named("census_11"))
    (root / "jobs" / "broken.yaml").write_bytes(b"\xff")
    write(root, "jobs/trainers/census/task.py", "")
    return root


def shared(root: Path, mode: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SHARED, str(root), mode], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    assert not found.pop("left")
    return found


@pytest.fixture(scope="module")
def alone(many: Path) -> dict[str, Any]:
    """What one process finds."""
    found = shared(many, "alone")
    assert found.pop("started") == 0
    assert len(found["manifests"]) == 27
    assert len(found["problems"]) >= 5
    return found


@pytest.mark.parametrize("mode", ["together", "killed", "killed later", "raising", "no forks"])
def test_many_processes_find_what_one_does_whatever_becomes_of_them(
    many: Path, alone: dict[str, Any], mode: str
) -> None:
    found = shared(many, mode)
    assert found.pop("started") == (0 if mode == "no forks" else 2)
    assert found == alone


def test_a_cache_changes_neither_what_is_found_nor_its_order(
    many: Path, alone: dict[str, Any], environ: dict[str, str]
) -> None:
    for _ in range(2):
        found = check(many, environ)
        told = [repr(replace(manifest, packed=manifest.spec)) for manifest in found.manifests]
        assert told == alone["manifests"]
        assert [problem.path for problem in found.problems] == [told["path"] for told in alone["problems"]]
        assert [[list(pair) for pair in each] for each in found.identities] == alone["identities"]


def test_there_are_no_other_processes_beside_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert workers.can_fork() is (sys.platform != "darwin")
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert not workers.can_fork()
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not workers.can_fork()


# --- The jobs of a repository ----------------------------------------------------------------------------


@pytest.fixture
def plain(root: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose jobs bring no code, with the variables set."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", environ["HOME"])
    for name, kind in (("one", "Job"), ("two", "HyperparameterTuningJob"), ("three", "Job")):
        value = named(name, kind)
        value["reconcile"] = {"attempts": 3, "rerun": "again"} if name == "two" else {"onDelete": "cancel"}
        write(root, f"jobs/{name}.yaml", value)
    shutil.rmtree(root / "trainers")
    return root


def desired(root: Path, known: KnownFiles | None = None) -> list[Any]:
    """Return the jobs that a repository asks for with all their fields; by default, with the cache."""
    config = load_config(root)
    return [
        replace(job, packed=job.spec, manifest=replace(job.manifest, packed=job.manifest.spec))
        for job in load_desired(config, config.environment(None), [], known).jobs
    ]


EDITS: dict[str, Callable[[Path], object]] = {
    "same size and time": lambda root: rewrite(
        root / "jobs" / "one.yaml", (root / "jobs" / "one.yaml").read_text().replace('"one"', '"won"')
    ),
    "renamed": lambda root: (root / "jobs" / "one.yaml").rename(root / "jobs" / "other.yaml"),
    "removed": lambda root: (root / "jobs" / "one.yaml").unlink(),
    "added": lambda root: (
        shutil.copy(root / "jobs" / "one.yaml", root / "jobs" / "sub.yaml")
        and rewrite(
            root / "jobs" / "sub.yaml", (root / "jobs" / "sub.yaml").read_text().replace("one", "sub")
        )
    ),
    "broken": lambda root: (root / "jobs" / "one.yaml").write_text("- broken\n"),
    "a link out": lambda root: (root / "jobs" / "out.yaml").symlink_to("/etc/hostname"),
    "code": lambda root: (
        write(root, "trainers/census/task.py", ""),
        write(root, "jobs/one.yaml", named("one", "CustomJob")),
    ),
}


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_load_desired_sees_every_change_with_a_warm_cache(
    plain: Path, edit: Callable[[Path], object]
) -> None:
    before = desired(plain, KnownFiles())
    assert [job.manifest.name for job in before] == ["one", "three", "two"]
    assert [desired(plain) for _ in range(2)] == [before] * 2
    edit(plain)
    for _ in range(2):
        try:
            expected: Any = desired(plain, KnownFiles())
        except InvalidError as error:
            expected = error.problems
        try:
            found: Any = desired(plain)
        except InvalidError as error:
            found = error.problems
        assert found == expected
        assert found != before


NETWORK = {"network": "projects/1/global/networks/n"}


@pytest.mark.usefixtures("later")
def test_load_desired_fills_the_defaults_of_the_settings_with_a_warm_cache(plain: Path) -> None:
    seen = []
    for defaults in ({}, NETWORK, {"network": f"{NETWORK['network']}2"}, {**NETWORK, "timeout": "60s"}):
        write(
            plain, "reconciler.yaml", {"environments": {"local": {"engine": "local", "defaults": defaults}}}
        )
        expected = desired(plain, KnownFiles())
        assert [desired(plain) for _ in range(2)] == [expected] * 2
        filled = [job.spec != job.manifest.spec for job in expected]
        assert all(filled) if defaults else not any(filled)
        seen.append(expected)
    assert all(one != other for one, other in itertools.combinations(seen, 2))


# --- Settings --------------------------------------------------------------------------------------------


def test_settings_are_kept_by_their_content_and_where_there_is_a_cache(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = root / "reconciler.yaml"
    settings.write_text("source: one\n")
    kept = root / ".reconciler" / "cache" / "settings.bin"
    assert load_config(root).source == "one"
    assert not kept.exists()
    prepare_home(Home(root / ".reconciler", root), os.environ)
    kept.parent.mkdir()
    assert load_config(root).source == "one"
    assert kept.exists()
    with monkeypatch.context() as changed:
        changed.setattr("reconciler.manifests.validate.check_document", None)
        assert load_config(root).source == "one"
    settings.write_text("source: two\n")
    assert [load_config(root).source for _ in range(2)] == ["two", "two"]
    data = bytearray(kept.read_bytes())
    data[-1] ^= 1
    kept.write_bytes(data)
    assert load_config(root).source == "two"
    settings.write_text("sauce: two\n")
    for _ in range(2):
        with pytest.raises(InvalidError):
            load_config(root)
    # What is kept of one file is believed of no other.
    shutil.copy(kept, kept.with_name("other.bin"))
    assert CacheFile(root, "settings.bin", os.environ).load() is not None
    assert CacheFile(root, "other.bin", os.environ).load() is None
