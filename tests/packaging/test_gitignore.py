"""`.gitignore` patterns: each odd case by name, and agreement with git itself on any input."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.packaging.gitignore import decide, parse


def excludes(patterns: str | bytes, path: str, *, folder: bool = False) -> bool:
    """Return whether a `.gitignore` excludes a path or a folder above it."""
    rules = parse(patterns.encode("utf-8") if isinstance(patterns, str) else patterns)
    names = os.fsencode(path).split(b"/")
    for depth in range(1, len(names) + 1):
        rule = decide(rules, names[:depth], folder=folder or depth < len(names))
        if rule is not None and not rule.negated:
            return True
    return False


@pytest.mark.parametrize(
    ("patterns", "excluded", "counting"),
    [
        ("*.log", ["a.log", "deep/down/.log"], ["a.logs", "a.log2/x"]),
        ("data/", ["data/x", "deep/data/x"], ["data", "mydata/x"]),
        ("/data", ["data", "data/x"], ["deep/data"]),
        ("a/b", ["a/b", "a/b/c"], ["x/a/b", "a/bc"]),
        ("*\n!*.py", ["a.txt", "b/c.py"], ["a.py"]),
        ("*\n!*/\n!*.py", ["a.txt", "b/c.txt"], ["a.py", "b/c.py"]),
        ("**/cache", ["cache", "a/cache/x", "a/b/cache"], ["caches"]),
        ("a/**", ["a/x", "a/x/y"], ["a", "b/a/x"]),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z"], ["a/bz", "z"]),
        ("a/*/z", ["a/b/z"], ["a/z", "a/b/c/z"]),
        ("a**z", ["az", "abz", "x/abz"], ["a/z"]),
        ("a**/z", ["az", "a/z", "a/b/z"], ["b/a/z"]),
        ("**\\/z", ["a/z", "a/b/z"], ["z"]),
        ("*\\/z", ["a/z"], ["z", "a/b/z"]),
        ("a*b\na?c", ["a\nb", "a\nc"], ["a\nd"]),
        ("?.py", ["a.py"], ["é.py", ".py", "ab.py"]),
        ("??.py", ["é.py", "ab.py"], ["a.py"]),
        ("[ab-d].py\n[!ab].c\n[^ab].h", ["a.py", "c.py", "x.c", "x.h"], ["e.py", "a.c", "b.h"]),
        ("[]-]x\n[!]]y\n[a-]z", ["]x", "-x", "ay", "-z", "az"], ["ax", "]y", "bz"]),
        ("[a-c-e]", ["b", "-", "e"], ["d"]),
        ("[[:digit:][:upper:]]", ["1", "A"], ["a", "é"]),
        ("[[:nothing:]]\n[ab\nx\\", [], ["a", ":", "[ab", "x", "x\\"]),
        ("[\\]]\n\\*\n\\!a\n\\#b", ["]", "*", "!a", "#b"], ["a", "b"]),
        ("#a\n\n!", [], ["#a", "a", "!"]),
        ("a \nb\\ \nc\\\\ ", ["a", "b ", "c\\"], ["a ", "b"]),
        ("a\r\nb\r", ["a", "b"], ["a\r"]),
        ("\ufeffa\nb", ["a", "b"], []),
        ("A", ["A"], ["a"]),
        ("/\n//a\na//b\n", [], ["a", "a/b", "x"]),
        (b"\xff\nb\0c", ["\udcff", "b"], ["c", "bc"]),
    ],
)
def test_patterns(patterns: str | bytes, excluded: list[str], counting: list[str]) -> None:
    assert [path for path in excluded if not excludes(patterns, path)] == []
    assert [path for path in counting if excludes(patterns, path)] == []


def test_a_rule_knows_its_line() -> None:
    rules = parse(b"# what is made\n\n*.log\n!keep.log\n")
    assert [(rule.line, rule.negated) for rule in rules] == [(3, False), (4, True)]


@pytest.mark.parametrize(
    "pattern",
    ["*a" * 60 + "b", "*[!b]" * 60 + "b", "**/" * 5000 + "b", "**/a*/" * 60 + "b", "[[:" * 20_000],
)
def test_no_pattern_takes_long(pattern: str) -> None:
    """A backtracking match of the first pattern would practically never end."""
    assert not excludes(pattern, "/".join(["a" * 250] * 8))


WORDS = r"""a b ab . * ** *** ? / **/ /** ! \ # - ^ ] \* \/ [ab] [!a] [^b] [a-c] [ [a [a- []a] [!]] [b-a] [\]]
[[: [[:x:]] [[:alpha:]] [[:digit:]_] [![:space:]] [[:punct:]-z]"""
PATTERNS = st.lists(st.sampled_from([*WORDS.split(), " ", "\t", "\r", "é"]), min_size=1, max_size=5).map(
    "".join
)
ORDINARY = r"a b ab abc é éa - !a # [ ] a\ * 1_"
NAMES = st.sampled_from([*ORDINARY.split(), "a b", "a ", "\t"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


@pytest.fixture(scope="module")
def git_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    (folder / ".git" / "info" / "exclude").write_text("")
    return folder


def excluded_by_git(repository: Path, paths: list[str]) -> set[str]:
    command = ["git", "-c", "core.excludesFile=/dev/null", "-c", "core.ignoreCase=false"]
    command += ["check-ignore", "--no-index", "--stdin", "-z"]
    said = subprocess.run(
        command, cwd=repository, input="\0".join(f"./{path}" for path in paths).encode(), capture_output=True
    )
    assert said.returncode in (0, 1), said.stderr
    return {path.removeprefix("./") for path in said.stdout.decode().split("\0") if path}


@pytest.mark.slow
@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(PATTERNS, min_size=1, max_size=3), st.lists(PATHS, min_size=20, max_size=60))
def test_git_agrees(git_repository: Path, patterns: list[str], paths: list[str]) -> None:
    data = "\n".join(patterns).encode("utf-8")
    (git_repository / ".gitignore").write_bytes(data)
    assert {path for path in paths if excludes(data, path)} == excluded_by_git(git_repository, paths)
