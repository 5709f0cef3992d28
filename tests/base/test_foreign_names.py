"""Strangers' names: an accepted one is a file of its own within the folder, on any file system."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.base.foreign_names import ForeignNameError, check_names

LONGEST_PART, LONGEST = 255, 1000


def fault_of(*names: str) -> str:
    """Return why the names are refused, with the refused one; "" if they aren't."""
    try:
        check_names(names, LONGEST_PART, LONGEST)
    except ForeignNameError as error:
        return f"{error.name!r}: {error.why}"
    return ""


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("model.bin", "variables/a", "variables/b", "assets/", "assets/deep/"),
        ("größe 📊.bin", "👩\u200d🔬.txt", "...", "a..b", " ", "-rf", "~", "$HOME", "C:", "a:b", "%2e%2e"),
        ("assets/", "assets/vocabulary.txt"),
        ("assets/vocabulary.txt", "assets/"),
        ("a" * 255, "/".join(["a" * 99] * 10)),
        (".gitignore", "git", "a.git"),
    ],
)
def test_names_of_models_are_accepted(names: tuple[str, ...]) -> None:
    assert fault_of(*names) == ""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "one of its parts is empty"),
        ("/", "it is absolute"),
        ("/etc/passwd", "it is absolute"),
        ("a//b", "one of its parts is empty"),
        ("a//", "one of its parts is empty"),
        ("..", 'it has a part "." or ".."'),
        ("../a", 'it has a part "." or ".."'),
        ("a/../../b", 'it has a part "." or ".."'),
        ("a/..", 'it has a part "." or ".."'),
        ("./a", 'it has a part "." or ".."'),
        ("a/.", 'it has a part "." or ".."'),
        ("a/../", 'it has a part "." or ".."'),
        ("a\\b", "it has a backslash"),
        ("..\\a", "it has a backslash"),
        ("a\x00b", "it has control characters"),
        ("a\nb", "it has control characters"),
        ("\x1b[2J", "it has control characters"),
        ("a\x7f", "it has control characters"),
        ("a\x85", "it has control characters"),
        ("a\u2028b", "it has control characters"),
        ("a\ud800", "it has control characters"),
        (".git/config", 'it has a part ".git"'),
        ("a/.GiT/hooks/x", 'it has a part ".git"'),
        (".g\u200cit/config", 'it has a part ".git"'),
        ("a" * 256, "it is too long for the file system here"),
        ("ä" * 128, "it is too long for the file system here"),
        ("/".join(["a" * 99] * 10) + "/b", "it is too long for the file system here"),
    ],
)
def test_name_that_is_no_path_below_the_folder_is_refused(name: str, why: str) -> None:
    assert fault_of("model.bin", name) == f"{name!r}: {why}"


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ("a", "a", "it is there twice"),
        ("Model", "model", 'it differs from "Model" in case or in Unicode\'s form alone'),
        ("caf\u00e9", "cafe\u0301", 'it differs from "caf\u00e9" in case or in Unicode\'s form alone'),
        ("stra\u00dfe", "STRASSE", 'it differs from "stra\u00dfe" in case or in Unicode\'s form alone'),
        ("\u212a", "k", 'it differs from "\u212a" in case or in Unicode\'s form alone'),
        ("\u017f", "S", 'it differs from "\u017f" in case or in Unicode\'s form alone'),
        ("\u0131", "I", 'it differs from "\u0131" in case or in Unicode\'s form alone'),
        ("\u1fb4", "\u03b1\u0345\u0301", 'it differs from "\u1fb4" in case or in Unicode\'s form alone'),
        ("a\u200db", "ab", 'it differs from "a\u200db" in case or in Unicode\'s form alone'),
        ("A/x", "a/y", 'it differs from "A" in case or in Unicode\'s form alone'),
        ("A/", "a/y", 'it differs from "A" in case or in Unicode\'s form alone'),
        ("a", "a/b", '"a" is both a file and a folder'),
        ("a/b", "a", '"a" is both a file and a folder'),
        ("a/b/c", "a/b", '"a/b" is both a file and a folder'),
        ("a", "a/", '"a" is both a file and a folder'),
        ("A", "a/b", 'it differs from "A" in case or in Unicode\'s form alone'),
    ],
)
def test_names_that_could_be_one_file_are_refused(first: str, second: str, why: str) -> None:
    assert fault_of(first) == fault_of(second) == ""
    assert fault_of(first, "other", second) == f"{second!r}: {why}"


SPECIAL = [
    *("a", "A", "b", "/", "/", ".", "..", "\\", " ", ":", "ä", "a\u0308", "ß", "ss", "K", "\u212a", "k"),
    *("\u0131", "I", "i", "\u0130", "i\u0307", "\u017f", "s", "\u03c3", "\u03c2", "\u03a3", "\ufb01", "fi"),
    *("\u1e9e", "\u0345", "\u0390", "\u1fd3", "\u01c4", "\u01c5", "\u200d", "\n", "\x00", "\ud800", ".git"),
]
NAMES = st.lists(
    st.one_of(st.sampled_from(SPECIAL), st.characters(), st.characters(max_codepoint=0x24F)), max_size=6
).map("".join)


def compared(name: str) -> list[str]:
    """Return the name as file systems compare it that ignore case and Unicode's form, each in its way."""
    converters = (str.lower, str.upper, str.casefold, lambda char: char.upper().lower())
    return [
        unicodedata.normalize("NFC", "".join(map(convert, unicodedata.normalize(form, name))))
        for form in ("NFC", "NFD")
        for convert in converters
    ]


FORMS: tuple[Callable[[str], str], ...] = (
    str,
    str.upper,
    str.lower,
    str.title,
    str.swapcase,
    *(partial(unicodedata.normalize, form) for form in ("NFC", "NFD")),
    lambda name: f"{name}/a",
    lambda name: f"{name}/",
    lambda name: f"{name.upper()}/b",
    lambda name: f"{name}/../b",
    lambda name: f"./{name}",
)


@st.composite
def names_and_variants(draw: st.DrawFn) -> list[str]:
    """Return names, of which some differ in their case, their form or their depth alone."""
    letters = "aAsSkKiI\u00e4\u00df\u212a\u0131\u0130\u017f\u03c3\u03c2\u1fb4\u01c5\ufb01"
    few = st.sampled_from("aAkK\u212a")
    part = st.one_of(few, st.sampled_from(letters), st.text(f"{letters}\u0308\u0345", min_size=1, max_size=3))
    paths = st.lists(part, min_size=1, max_size=3).map("/".join)
    names = draw(st.lists(st.one_of(paths, paths, paths, NAMES), min_size=1, max_size=4))
    changes = draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(FORMS)), max_size=3))
    return draw(st.permutations([*names, *(change(name) for name, change in changes)]))


@given(names_and_variants())
def test_accepted_names_are_files_of_their_own_within_the_folder(names: list[str]) -> None:
    accepted: list[str] = []
    for name in names:
        if not fault_of(*accepted, name):
            accepted.append(name)
    folder = Path("/home/ada/models")
    for name in accepted:
        path = os.path.normpath(folder / name)
        assert path == f"{folder}/{name}".removesuffix("/"), "it has one spelling"
        assert Path(path) != folder
        assert Path(path).is_relative_to(folder)
    folders = {str(parent) for name in accepted for parent in Path(name).parents} - {"."}
    folders |= {name.removesuffix("/") for name in accepted if name.endswith("/")}
    entries = [*(name for name in accepted if not name.endswith("/")), *folders]
    for forms in zip(*map(compared, entries), strict=True):
        assert len({*forms}) == len(entries)


@given(names_and_variants())
def test_order_of_names_decides_nothing(names: list[str]) -> None:
    assert bool(fault_of(*names)) == bool(fault_of(*reversed(names)))
