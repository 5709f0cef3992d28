"""Glob patterns of object names."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.training_service.http.message import ApiError
from reconciler.training_service.storage.globs import Glob


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("foo*bar", ["foobar", "foo-bar", "foobarbar"], ["foo/bar", "foobarx", "xfoobar"]),
        ("foo**bar", ["foobar", "foo/bar", "foo/a/b/bar"], ["foobarx"]),
        ("**/c.txt", ["a/c.txt", "a/b/c.txt", "/c.txt"], ["c.txt", "ac.txt"]),
        ("a/*", ["a/", "a/b"], ["a", "a/b/c"]),
        ("a/**", ["a/", "a/b", "a/b/c"], ["a"]),
        ("?", ["a", "\u00e9"], ["", "/", "ab"]),
        ("[a-c]x", ["ax", "cx"], ["dx", "x"]),
        ("[!a-c]x", ["dx"], ["ax", "/x"]),
        ("[^a]", ["b"], ["a"]),
        ("[]a-]", ["]", "a", "-"], ["b"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("[.-0]", [".", "0"], ["/"]),
        ("[b-a]", [], ["a", "b", "-"]),
        ("{a,b*}c", ["ac", "bc", "bxc"], ["c", "b/c"]),
        ("{a,{b,c}d}{,.gz}", ["a", "bd", "cd.gz"], ["b", "d"]),
        ("{*,a}*", ["", "b"], ["b/c"]),
        ("**a*/b", ["a/b", "a/ac/b"], ["a/c/b", "a"]),
        ("a{}b", ["ab"], ["a{}b"]),
        ("x,y}", ["x,y}"], ["x"]),
        ("\\*\\{[\\]]", ["*{]"], ["a{]"]),
        ("", [""], ["a"]),
    ],
)
def test_pattern_matches_whole_names(pattern: str, matching: list[str], others: list[str]) -> None:
    glob = Glob(pattern)
    assert [name for name in [*matching, *others] if glob.matches(name)] == matching


@pytest.mark.parametrize("pattern", ["[a", "[", "[]", "{a", "{a,", "\\", "[a-"])
def test_unclosed_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ApiError, match="glob pattern"):
        Glob(pattern)


PIECES = st.sampled_from(["*", "**", "?", "a", "b", "/", "[ab]", "[!a]", "{a,b/}", "{*,b}"])
EXPRESSIONS = {
    "*": "[^/]*",
    "**": ".*",
    "?": "[^/]",
    "[!a]": "[^a/]",
    "{a,b/}": "(?:a|b/)",
    "{*,b}": "(?:[^/]*|b)",
}


@pytest.mark.slow
@settings(max_examples=500)
@given(st.lists(PIECES, max_size=6), st.text("ab/", max_size=8))
def test_pattern_matches_as_the_regular_expression_does(pieces: list[str], name: str) -> None:
    # Two adjacent stars form a double star.
    expression = "".join(EXPRESSIONS.get(piece, piece) for piece in pieces)
    expression = expression.replace("[^/]*[^/]*", ".*").replace("[^/]*.*", ".*").replace(".*[^/]*", ".*")
    if "[^/]*[^/]*" not in expression:
        assert Glob("".join(pieces)).matches(name) is (re.fullmatch(expression, name) is not None)


@pytest.mark.parametrize(
    "pattern", ["{a,b}" * 9, "{" + "a," * 256 + "}", "{a,b}" * 8 + "c" * 100, "a" * 1025]
)
def test_pattern_of_too_many_alternatives_is_refused(pattern: str) -> None:
    with pytest.raises(ApiError, match="glob pattern") as refused:
        Glob(pattern)
    assert refused.value.status == "INVALID_ARGUMENT"


def test_pattern_of_as_many_alternatives_as_allowed_matches() -> None:
    assert Glob("{a,b}" * 8).matches("abbaabba")


HOSTILE = (
    "*a" * 300 + "/b",
    "*a" * 100 + "**b" * 100,
    "**a" * 300 + "b",
    "**a*" + "a" * 500 + "b**",
    "**" + "a/*" * 300 + "b",
    "a/**" * 200 + "b",
    "{*,**}" * 8 + "b",
    "{a,b}" * 8 + "**" + "a/*" * 17 + "b**",
)


@pytest.mark.parametrize("pattern", HOSTILE)
def test_hostile_pattern_takes_bounded_time(pattern: str) -> None:
    glob = Glob(pattern)
    began = time.process_time()
    assert not any(glob.matches(name) for name in ("a" * 1024, "a/" * 512, ("a" * 31 + "/") * 32))
    # Some 0.05 s at most; a backtracking pattern would take years.
    assert time.process_time() - began < 5
