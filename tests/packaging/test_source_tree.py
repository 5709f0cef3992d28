"""The files of a folder that count, and the exclusion of all files outside the repository."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import stat
import subprocess
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.base.errors import ExitCode
from reconciler.packaging import source_tree
from reconciler.packaging.source_tree import SourceFile, SourceTree, SourceTreeError, read_source_tree
from reconciler.packaging.work_tree import MAX_IGNORE_BYTES, not_a_file
from tests.support.meddler import Meddler


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    write(folder, {"trainer/task.py": "print()\n"})
    return folder


def write(root: Path, files: Mapping[str, str | bytes]) -> None:
    for path, content in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))


def link(root: Path, path: str, target: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).symlink_to(target)


def paths(root: Path, package: str = "trainer") -> list[str]:
    return [file.path for file in read_source_tree(root / package, root).files]


def contents(root: Path, package: str = "trainer") -> dict[str, bytes]:
    return {file.path: file.content for file in read_source_tree(root / package, root).files}


def refusals(root: Path, package: str = "trainer") -> list[str]:
    """Return the messages of all findings."""
    with pytest.raises(SourceTreeError) as caught:
        read_source_tree(root / package, root)
    assert caught.value.exit_code == ExitCode.INVALID
    assert all(finding.hint for finding in caught.value.findings)
    return [finding.message for finding in caught.value.findings]


# The files that count


def test_all_files_count_sorted_with_their_bytes(root: Path) -> None:
    write(root, {"trainer/z": b"\r\n\0\xff", "trainer/Y/a": "", "trainer/z.d/é.csv": "1", "other/x": ""})
    (root / "trainer" / "empty").mkdir()
    assert list(contents(root).items()) == [
        ("Y/a", b""),
        ("task.py", b"print()\n"),
        ("z", b"\r\n\0\xff"),
        ("z.d/é.csv", b"1"),
    ]


@pytest.mark.parametrize(
    "never",
    [
        ".git/x",
        "sub/.git",
        "a/__pycache__/x.py",
        "x.pyc",
        "x.PYO",
        ".venv/x.py",
        ".DS_Store",
        ".reconciler/x",
    ],
)
def test_what_never_is_code(root: Path, never: str) -> None:
    write(root, {".gitignore": f"!{never}\n", f"trainer/{never}": "x"})
    assert paths(root) == ["task.py"]


@pytest.mark.parametrize("alike", [".gitignore", ".github/x", "git", "venv/x.py", "x.pyc.txt", "pycache/x"])
def test_what_only_looks_alike_counts(root: Path, alike: str) -> None:
    write(root, {f"trainer/{alike}": ""})
    assert alike in paths(root)


def test_gitignore_files_from_the_root_down(root: Path) -> None:
    write(
        root,
        {
            "../.gitignore": "*",
            ".gitignore": "*.csv\n/trainer/local.py\n",
            "trainer/.gitignore": "!keep.csv\n/top.py\nmodels/\n",
            "trainer/sub/.gitignore": "keep.csv\n",
            "other/.gitignore": "*",
        },
    )
    counted = ["keep.csv", "sub/a.py", "sub/local.py", "sub/top.py"]
    excluded = ["data.csv", "local.py", "top.py", "models/m.py", "sub/models/m.py", "sub/keep.csv"]
    write(root, {f"trainer/{path}": "" for path in counted + excluded})
    assert paths(root) == sorted([*counted, "task.py", ".gitignore", "sub/.gitignore"])


def test_what_is_ignored_is_not_looked_at(root: Path) -> None:
    write(root, {".gitignore": "odd/\n*.fifo\npw\n", "trainer/odd/x": ""})
    os.mkfifo(root / "trainer" / "x.fifo")
    os.mkfifo(root / "trainer" / "odd" / "fifo")
    link(root, "trainer/pw", "/etc/passwd")
    link(root, "trainer/odd/pw", "/etc/passwd")
    assert paths(root) == ["task.py"]


def test_a_gitignore_that_is_a_link_is_none(root: Path) -> None:
    write(root, {"trainer/patterns": "*.csv\n", "trainer/a.csv": ""})
    link(root, "trainer/.gitignore", "patterns")
    assert "a.csv" in paths(root)


def test_the_root_may_be_the_package(root: Path) -> None:
    write(root, {".git/config": "", "jobs/a.yaml": ""})
    assert paths(root, ".") == ["jobs/a.yaml", "trainer/task.py"]


@pytest.mark.parametrize(
    ("mode", "executable"), [(0o644, False), (0o755, True), (0o700, True), (0o655, False)]
)
def test_only_the_owner_decides_what_is_executable(root: Path, mode: int, executable: bool) -> None:
    (root / "trainer" / "task.py").chmod(mode)
    (file,) = read_source_tree(root / "trainer", root).files
    assert file.executable == executable


NAMES = st.sampled_from(["a", "b", "a.py", "b.csv", "d", "x y", "é"])
WORDS = "a * *.py !*.py d/ !d/ /a a/b !a/b **/d d/** !*/ ? *.csv /* é /p p/ p/a /p/* !/p/a p/**/a !p #"
PATTERNS = st.sampled_from([*WORDS.split(), "x\\ y", ""])
IGNORE_FILES = st.dictionaries(
    st.sampled_from(["", "p/", "p/d/", "p/a/", "p/d/d/", "q/"]), st.lists(PATTERNS, max_size=4), max_size=4
)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.sets(st.lists(NAMES, min_size=1, max_size=4).map(tuple), min_size=1, max_size=12), IGNORE_FILES)
def test_git_agrees_on_whole_trees(files: set[tuple[str, ...]], ignored: dict[str, list[str]]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        subprocess.run(["git", "init", "--quiet", root], check=True)
        (root / ".git" / "info" / "exclude").write_text("")
        for names in sorted(files, key=len, reverse=True):
            file = root.joinpath("p", *names)
            if not file.exists() and not any(parent.is_file() for parent in file.parents):
                write(root, {"/".join(("p", *names)): ""})
        for folder, patterns in ignored.items():
            if not any(parent.is_file() for parent in [root / folder, *(root / folder).parents]):
                write(root, {f"{folder}.gitignore": "\n".join(patterns)})
        try:
            counted = {f"p/{path}" for path in paths(root, "p")}
        except SourceTreeError:
            counted = set()  # the package itself, or its whole content, is excluded
        assert counted == kept_by_git(root)


def kept_by_git(root: Path) -> set[str]:
    """Return the files below p/ that git wouldn't ignore."""
    there = [str(file.relative_to(root)) for file in root.joinpath("p").rglob("*") if file.is_file()]
    git = ["git", "-c", "core.excludesFile=/dev/null", "-c", "core.ignoreCase=false"]
    said = subprocess.run(
        [*git, "check-ignore", "--no-index", "--stdin", "-z"],
        cwd=root,
        input="\0".join(there).encode(),
        capture_output=True,
    )
    assert said.returncode in (0, 1), said.stderr
    return set(there) - set(said.stdout.decode().split("\0"))


# Links


def test_links_that_stay_inside_count_as_what_they_point_to(root: Path) -> None:
    write(
        root,
        {"shared/lib/a.py": "A", "shared/lib/a.log": "", "shared/.gitignore": "*.log\n", "tool": "#!"},
    )
    (root / "tool").chmod(0o755)
    link(root, "trainer/lib", "../shared/./lib/")
    link(root, "trainer/sub/run", "../../tool")
    link(root, "trainer/twice", "lib")
    tree = read_source_tree(root / "trainer", root)
    assert [(file.path, file.executable, file.content) for file in tree.files] == [
        ("lib/a.py", False, b"A"),
        ("sub/run", True, b"#!"),
        ("task.py", False, b"print()\n"),
        ("twice/a.py", False, b"A"),
    ]


def test_a_link_is_no_other_code_than_a_copy(root: Path) -> None:
    write(root, {"shared/a.py": "A"})
    link(root, "trainer/shared", "../shared")
    linked = read_source_tree(root / "trainer", root)
    (root / "trainer" / "shared").unlink()
    write(root, {"trainer/shared/a.py": "A"})
    assert read_source_tree(root / "trainer", root) == linked


def test_the_package_may_be_reached_by_a_link(root: Path) -> None:
    link(root, "links/here", "../trainer")
    assert paths(root, "links/here") == ["task.py"]


@pytest.mark.fault(39)
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("../../outside", 'is a link to "../../outside", which leads out of the repository'),
        ("../trainer/../../outside", "leads out of the repository"),
        ("../away/secret", "leads out of the repository"),
        ("../away/../outside/secret", "leads out of the repository"),
        ("/etc/passwd", 'is a link to "/etc/passwd", which leads out of the repository, here or on another'),
        ("{root}/trainer/task.py", "leads out of the repository, here or on another machine"),
        ("../.git/config", '".git" is never code'),
        ("../dotgit/config", '".git" is never code'),
        ("../.GIT/config", "does not exist"),
        ("../.reconciler/service.json", '".reconciler" is never code'),
        ("../data", 'line 1 of ".gitignore" excludes "data"'),
        ("../data/x.csv", 'line 1 of ".gitignore" excludes "data"'),
        ("../big.csv", 'line 2 of ".gitignore" excludes "big.csv"'),
        ("nothing", "does not exist"),
        ("task.py/x", "does not exist"),
        ("TASK.PY", "does not exist"),
        ("link", "leads in a circle"),
        ("../back", "leads in a circle"),
        (".", "leads back to a folder that contains it"),
        ("sub/../../trainer", "leads back to a folder that contains it"),
        ("..", "is the repository's root"),
        ("../fifo", "is a fifo"),
    ],
)
def test_other_links_are_refused(root: Path, target: str, message: str) -> None:
    write(root, {".git/config": "", ".reconciler/service.json": "", "data/x.csv": "", "big.csv": ""})
    write(root, {".gitignore": "/data/\n*.csv\n", "../outside/secret": "S", "trainer/sub/x.py": ""})
    link(root, "away", "../outside")
    link(root, "dotgit", ".git")
    link(root, "back", "trainer/link")
    os.mkfifo(root / "fifo")
    link(root, "trainer/link", target.format(root=root))
    (told,) = refusals(root)
    assert told.startswith('"trainer/link" is a link to ')
    assert message in told


@pytest.mark.slow
@pytest.mark.fault(39)
def test_links_may_not_multiply_without_end(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each folder holds two links to the next: 2^30 paths to the last."""
    monkeypatch.setattr(source_tree, "MAX_FILES", 1000)
    for number in range(30):
        for name in "ab":
            link(root, f"f{number}/{name}", f"../f{number + 1}")
    write(root, {"f30/x": ""})
    link(root, "trainer/start", "../f0")
    assert refusals(root) == ['"trainer" holds more than 1,000 files and folders']


@pytest.mark.fault(39)
@pytest.mark.parametrize(
    ("package", "message"),
    [
        ("nothing", '"nothing" does not exist'),
        ("trainer/task.py", '"trainer/task.py" is not a folder'),
        ("../outside", '"../outside" leads out of the repository'),
        (".git/hooks", '"hooks"'),
        ("data/sub", 'line 1 of ".gitignore" excludes "data"'),
        ("away", '"away" leads out of the repository'),
        ("empty", '"empty" contains no file to package'),
        ("logs", '"logs" contains no file to package'),
    ],
)
def test_folders_that_are_no_package(root: Path, package: str, message: str) -> None:
    write(root, {"../outside/x.py": "", ".git/hooks/x": "", "data/sub/x.py": "", "logs/a.log": ""})
    write(root, {".gitignore": "data\n*.log\n"})
    (root / "empty" / "emptier").mkdir(parents=True)
    link(root, "away", "../outside")
    (told,) = refusals(root, package)
    assert message in told or (package == ".git/hooks" and '".git" is never code' in told)


# File types and names


@pytest.mark.fault(39)
def test_what_is_no_file_is_refused(root: Path) -> None:
    os.mkfifo(root / "trainer" / "fifo")
    with socket.socket(socket.AF_UNIX) as listening, moved_to(root / "trainer"):
        listening.bind("socket")
    assert refusals(root) == ['"trainer/fifo" is a fifo', '"trainer/socket" is a socket']


@pytest.mark.fault(39)
def test_devices_are_refused() -> None:
    """The test uses an existing device: to make a device takes more rights than a test has."""
    assert not_a_file(Path("/dev/null").stat().st_mode).message == "is a device"


@contextmanager
def moved_to(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.mark.skipif(os.uname().sysname == "Darwin", reason="the file system there takes no such name")
def test_names_that_are_not_utf8_are_refused(root: Path) -> None:
    Path(os.fsdecode(os.fsencode(root / "trainer") + b"/caf\xe9")).touch()
    assert refusals(root) == [r'"trainer/caf\xe9" has a name that isn\'t UTF-8'.replace("\\'", "'")]


@pytest.mark.parametrize(
    "name", ["a\nb", "a\x1b[31m", "a\x7f", "a\u202eb", "a\u2028", "a\\b", "\x9b", "a\u200fb"]
)
def test_names_that_cannot_be_shown_as_they_are_are_refused(root: Path, name: str) -> None:
    write(root, {f"trainer/{name}": "", f"trainer/{name}.d/x": ""})
    told = refusals(root)
    assert len(told) == 2
    assert all("has a control character or a backslash in its name" in message for message in told)
    assert all(message.isprintable() for message in told)


@pytest.mark.parametrize(
    "name", ["a b", "日本語", "naïve", "a\u00a0b", "👩\u200d🔬", "-x", "%s", "'\"", "~", "a."]
)
def test_other_names_count(root: Path, name: str) -> None:
    write(root, {f"trainer/{unicodedata.normalize('NFC', name)}": ""})
    assert len(paths(root)) == 2


def test_decomposed_names_are_refused(root: Path) -> None:
    write(root, {"trainer/cafe\u0301": ""})
    assert refusals(root) == ['"trainer/cafe\u0301" has a name that another system may spell in other bytes']


@pytest.mark.fault(39)
@pytest.mark.parametrize(
    ("one", "other"), [("A.py", "a.py"), ("Straße", "STRASSE"), ("D/x", "d/y"), ("É", "é")]
)
def test_names_that_differ_in_case_alone_are_refused(root: Path, one: str, other: str) -> None:
    if (root / "TRAINER").exists():
        pytest.skip("the file system here can't hold both")
    write(root, {f"trainer/{one}": "", f"trainer/{other}": ""})
    first, second = sorted(path.partition("/")[0] for path in (one, other))
    message = f'"trainer/{second}" is the same as "{first}" except for upper and lower case'
    assert refusals(root) == [message]
    write(root, {".gitignore": f"/trainer/{second}\n"})
    assert len(paths(root)) == 2


def test_all_findings_are_told_at_once(root: Path) -> None:
    link(root, "trainer/sub/b", "/b")
    link(root, "trainer/a", "/a")
    os.mkfifo(root / "trainer" / "sub" / "c")
    with pytest.raises(SourceTreeError) as caught:
        read_source_tree(root / "trainer", root)
    assert [finding.path for finding in caught.value.findings] == [
        "trainer/a",
        "trainer/sub/b",
        "trainer/sub/c",
    ]
    assert str(caught.value).endswith("(and 2 more)")


# Limits


@pytest.mark.fault(37)
def test_too_many_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_tree, "MAX_FILES", 12)
    write(
        root,
        {f"trainer/sub/{number}": "" for number in range(10)}
        | {".gitignore": "*.csv\n", "trainer/x.csv": ""},
    )
    assert len(paths(root)) == 11
    write(root, {"trainer/one-more": ""})
    assert refusals(root) == ['"trainer" holds more than 12 files and folders']


@pytest.mark.fault(37)
def test_too_many_bytes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_tree, "MAX_BYTES", 2_000_000)
    write(root, {"trainer/big": bytes(1_999_000), "trainer/small": bytes(992)})
    assert len(paths(root)) == 3
    write(root, {"trainer/small": bytes(993)})
    assert refusals(root) == ['"trainer" holds more than 2 MB']


def test_a_huge_file_is_not_read_to_its_end(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_tree, "MAX_BYTES", 1_000_000)
    os.truncate(root / "trainer" / "task.py", 2**40)
    assert refusals(root) == ['"trainer" holds more than 1 MB']


def test_the_limits_are_those_that_are_documented() -> None:
    assert (source_tree.MAX_FILES, source_tree.MAX_BYTES) == (10_000, 200_000_000)


@pytest.mark.fault(37)
def test_too_deep(root: Path) -> None:
    write(root, {"trainer/" + "d/" * 64 + "x": ""})
    assert len(paths(root)) == 2
    write(root, {"trainer/" + "d/" * 65 + "x": ""})
    (told,) = refusals(root)
    assert told.endswith("is nested deeper than 64 folders")


def test_a_gitignore_that_is_too_large(root: Path) -> None:
    write(root, {"trainer/.gitignore": b"x" * MAX_IGNORE_BYTES})
    assert ".gitignore" in paths(root)
    write(root, {"trainer/.gitignore": b"x" * (MAX_IGNORE_BYTES + 1)})
    assert refusals(root) == ['"trainer" holds a .gitignore of more than 65,536 bytes']


# Concurrent changes to the tree


@pytest.fixture(scope="module")
def meddler() -> Meddler:
    return Meddler()


@pytest.mark.fault(39)
@pytest.mark.parametrize(
    "swapped", ["trainer/sub/x.py", "trainer/sub", "shared", "shared/lib", "shared/lib/y.py"]
)
@pytest.mark.parametrize("target", ["outside/sub", "outside/sub/x.py"])
def test_a_link_swapped_in_is_never_followed(root: Path, meddler: Meddler, swapped: str, target: str) -> None:
    write(root, {"../outside/sub/x.py": "SECRET", "../outside/sub/lib/y.py": "SECRET"})
    write(root, {"trainer/sub/x.py": "", "shared/lib/y.py": ""})
    link(root, "trainer/lib", "../shared/lib")

    def swap() -> None:
        (root / swapped).rename(root.parent / "moved")
        (root / swapped).symlink_to(root.parent / target)

    with meddler.at_the_opening_of(Path(swapped).name, swap):
        (told,) = refusals(root)
    assert "can't be read" in told or "does not exist" in told or "leads out of the repository" in told


@pytest.mark.fault(39)
def test_a_fifo_swapped_in_is_not_waited_for(root: Path, meddler: Meddler) -> None:
    def swap() -> None:
        (root / "trainer" / "task.py").unlink()
        os.mkfifo(root / "trainer" / "task.py")

    with meddler.at_the_opening_of("task.py", swap):
        assert refusals(root) == ['"trainer/task.py" is a fifo']


def test_a_file_that_grows_meanwhile_still_meets_the_limit(
    root: Path, meddler: Meddler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_tree, "MAX_BYTES", 1_000_000)
    with meddler.at_the_opening_of("task.py", lambda: write(root, {"trainer/task.py": bytes(1_000_001)})):
        assert refusals(root) == ['"trainer" holds more than 1 MB']


def test_no_descriptor_stays_open(root: Path) -> None:
    write(root, {"shared/x.py": "", "trainer/a/b/c/x.py": ""})
    link(root, "trainer/shared", "../shared")
    process = psutil.Process()
    read_source_tree(root / "trainer", root)
    before = process.num_fds()
    read_source_tree(root / "trainer", root)
    link(root, "trainer/a/b/c/out", "/etc")
    link(root, "trainer/shared2", "../shared/nothing")
    os.mkfifo(root / "trainer" / "a" / "fifo")
    assert len(refusals(root)) == 3
    assert process.num_fds() == before


# The digest


def test_the_digest_is_over_paths_modes_and_bytes(root: Path) -> None:
    def digest() -> str:
        return read_source_tree(root / "trainer", root).digest

    task = root / "trainer" / "task.py"
    first = digest()
    os.utime(task, (1, 1))
    task.chmod(0o600)
    (root / "trainer" / "empty").mkdir()
    assert digest() == first
    shutil.copytree(root / "trainer", root / "deeper" / "trainer")
    assert read_source_tree(root / "deeper" / "trainer", root).digest == first

    task.chmod(task.stat().st_mode | stat.S_IXUSR)
    digests = {first, digest()}
    write(root, {"trainer/task.py": "print( )\n"})
    digests.add(digest())
    task.rename(task.with_name("task2.py"))
    digests.add(digest())
    write(root, {"trainer/empty/__init__.py": ""})
    digests.add(digest())
    assert len(digests) == 5


FILES = st.builds(
    SourceFile,
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=6),
    st.booleans(),
    st.binary(max_size=40),
)
TREES = st.lists(FILES, max_size=4, unique_by=lambda file: file.path).map(tuple)


@given(TREES, TREES)
def test_two_trees_have_one_digest_only_if_they_are_equal(
    one: tuple[SourceFile], other: tuple[SourceFile]
) -> None:
    assert (SourceTree(one).digest == SourceTree(other).digest) == (set(one) == set(other))


def test_the_digest_is_what_is_documented() -> None:
    hashed = b"reconciler source tree 1\n"
    hashed += (
        b"a.py\0-" + hashlib.sha256(b"1").digest() + "é/b".encode() + b"\0x" + hashlib.sha256(b"2").digest()
    )
    tree = SourceTree((SourceFile("é/b", True, b"2"), SourceFile("a.py", False, b"1")))
    assert tree.digest == hashlib.sha256(hashed).hexdigest()


def test_no_file_can_pretend_to_be_two() -> None:
    one = SourceFile("a", False, b"1")
    two = SourceFile("b", True, b"2")
    encoded = SourceTree((one, two)).digest
    glued = SourceFile("a", False, b"1" + b"b\0x" + b"2")
    assert SourceTree((glued,)).digest != encoded
    assert SourceTree((two, one)).digest == encoded
