"""The quick and the helpful YAML reader: text that the first accepts reads the same in both and in PyYAML."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reconciler.base.diagnostics import MAX_DEPTH, MAX_KEY, MAX_VALUES, Problem
from reconciler.manifests import plain_reader, yaml_load, yaml_reader
from reconciler.manifests.plain_reader import MAX_BYTES, read_plain_document
from reconciler.manifests.yaml_load import clean_documents, load_documents
from reconciler.manifests.yaml_text import Chunk, check_text, split
from tests.support.yaml_styles import written
from tests.support.yaml_texts import BOMBS, CORPUS, DOCUMENTS, MANIFEST, TOKENS, mutated, same

_EXPONENT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+")


def check_reading(data: bytes) -> bool:
    """Return True if the quick reader accepts `data`; fail if its result differs from the other reader's."""
    documents, problems = load_documents(data, "job.yaml")
    clean = clean_documents(data)
    if problems or not documents:
        assert clean is None
        return False
    assert clean is not None
    assert [(found.line, found.aliased) for found in clean] == [
        (document.line, document.aliased) for document in documents
    ]
    for found, document in zip(clean, documents, strict=True):
        assert same(found.value, document.value)
        assert found.aliased or _count(found.value) <= 2 * len(data)
    check_against_pyyaml(data, [found.value for found in clean])
    return True


def check_against_pyyaml(data: bytes, values: list[Any]) -> None:
    """Fail if a loader of PyYAML refuses an accepted document, or reads another value in it."""
    values = [value for value in values if value is not None]
    # Load each document by itself: PyYAML reads none without "---" behind "...".
    documents = [chunk.data for chunk in split(check_text(data)[0])]
    for loader in (yaml.CSafeLoader, yaml.SafeLoader):
        try:
            theirs = [value for each in documents for value in yaml.load_all(each, Loader=loader)]
        except yaml.MarkedYAMLError as error:
            # PyYAML's scanner ends unquoted text in brackets at "?", against the specification and libyaml.
            if loader is yaml.CSafeLoader or not str(error.problem).endswith("but got '?'"):
                raise
        else:
            assert _alike(values, [value for value in theirs if value is not None])


def _alike(ours: Any, theirs: Any) -> bool:
    """Return True if values and types are equal; numbers with exponents are text for PyYAML."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(_alike(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_alike, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, str):
        return bool(_EXPONENT.fullmatch(theirs)) and math.isclose(ours, float(theirs))
    return same(ours, theirs)


def _count(value: Any) -> int:
    """Return the number of values, keys included."""
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(_count, value.values()))
    return 1 + sum(map(_count, value)) if isinstance(value, list) else 1


# --- Arbitrary texts ------------------------------------------------------------------------------------

KEY = st.sampled_from(
    [
        "a",
        "b",
        "name",
        "'a'",
        '"b"',
        '"\\x61"',
        "1",
        "'1'",
        "no",
        "<<",
        "é",
        "e\u0301",
        "? a\n",
        "&k a",
        "~",
        "",
        "*x",
        "!t a",
        "[a]",
        "a b",
        "k!",
        "=",
        "1.5",
        '"a\\tb"',
        "a" * (MAX_KEY + 1),
        "a" * MAX_KEY,
    ]
)
SCALAR = st.sampled_from(
    [
        "x",
        "12",
        "1e-4",
        "1.5",
        "010",
        "no",
        "true",
        "~",
        "",
        "'q'",
        '"d"',
        '"\\u00e9\\n"',
        '"\\0"',
        '"\\x85"',
        "|\n   block\n   text",
        ">-\n   folded\n\n   text",
        "&x v",
        "*x",
        "! 12",
        "!",
        "!!str 3",
        "!t v",
        "a!b",
        "! ",
        "x # c",
        "gs://b/c?d=e&f=g",
        "*.tfrecord",
        "a: b",
        "2026-11-07",
        "1:30",
        "0x1F",
        ".5",
        "-.5",
        ".nan",
        "\t",
        "x\ty",
        "a\u00a0b",
        "x\n   y",
        "[1, [2, {a: b}], ]",
        "{a: 1, b, c: }",
        "{a: 1, a: 2}",
        "[a: , b: ]",
        "[? a : b, ]",
        "[&y [*x], *y]",
        "{<<: *x}",
        "&x {a: 1}",
        "9007199254740993",
        "\u2028",
        "\x85",
        "- 1",
        '"a\\\n   b"',
        "'a\n   b'",
        "[!, x]",
        "[! , x]",
        "{!: x}",
        "[? , ? ]",
        "---",
        "😀",
    ]
)


@st.composite
def nasty(draw: st.DrawFn) -> bytes:
    """Draw lines of keys and items, most of them YAML, with rare elements in them."""
    lines: list[str] = [
        draw(st.sampled_from(["", "", "", "---", "\ufeff", "%YAML 1.1\n---", "# c", "\t", "!t", "&r"]))
    ]
    indent = draw(st.sampled_from([0, 0, 0, 2]))
    for _ in range(draw(st.integers(1, 7))):
        head = draw(st.sampled_from(["{}: ", "{}: ", "{}: ", "{}:", "- {}: ", "- ", "? {}\n: ", "{}:\t"]))
        kind = draw(st.integers(0, 9))
        line = " " * indent + head.format(draw(KEY) if kind > 7 else draw(st.sampled_from("abcdefgh")))
        if kind == 0:
            lines.append(line.rstrip())
            indent += draw(st.sampled_from([0, 1, 2]))
            continue
        lines.append(line + draw(SCALAR if kind > 3 else st.sampled_from(["x", "1", "'q'", "[1, {a: b}]"])))
        indent = draw(st.sampled_from([indent, indent, indent, 0, max(indent - 2, 0)]))
        if draw(st.integers(0, 14)) == 0:
            lines.append(
                draw(st.sampled_from(["---", "...", "--- x", "---\n---", "...\n%YAML 1.2\n---", "--- # c"]))
            )
            indent = 0
    return (
        draw(st.sampled_from(["\n", "\n", "\r\n", "\r"])).join(lines) + draw(st.sampled_from(["", "\n"]))
    ).encode()


@pytest.mark.slow
@settings(max_examples=150)
@given(nasty())
@example(b"a: 1\nb: &x 2\nc: *x\n")
@example(b"a: {b: 1, <<: {c: 2}}\n")
def test_nasty_lines_are_read_alike_or_not_at_all(data: bytes) -> None:
    check_reading(data)


# Separators of values, and lookalikes of separators.
PIECES = [
    *["- ", ": ", "? ", "-", ":", "?", "::", ", ", ",", "[", "]", "{", "}", " ", "  ", "\t", "\t", " \t"],
    *["\n", "\n", "\n  ", "\n  ", "\n\n", "\n\t", "#", " #", " # ", "|", ">", "|-", ">+", "|2", ">1-"],
    *["a", "b: ", "key: ", "x y", "x\ty", "a#b", "a:b", "1", "~", "/", "'", '"', "'s'", '"q"', '"a\tb"'],
    *["'a\n\tb'", "&a ", "&a\t", "*a", "!", "!t ", "!t\t", "<<", "%", "@", "`", "---", "---\t", "..."],
    *[
        "\n---\n",
        ">#",
        "%YAML 1.1\n---\n",
        "%YAML\t1.1\n---\n",
        "key: |\n  text\n",
        "key: >\n  a\tb\n",
        "key:\n  - a\n",
    ],
    *["[a, b]", "{a: b}", '{"a":b}', "é", "😀", "\u00a0", '"\\/"', '"\\x41"', "\n  \t x"],
]


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_pyyaml_reads_each_accepted_document_alike(text: str) -> None:
    check_reading(text.encode())


TAB = ("a tab isn't allowed here", "write a space, or put text that contains a tab in quotes")
INDENT = ("a tab can't indent", "indent with spaces")
COMMENT = ('a comment begins with a space and "#"', 'write a space before the "#"')
LENIENT = {
    "in a flow sequence": ("a: [b,\tc]\n", 1, 7, TAB),
    "in a flow mapping": ("é😀:\n  {b:\tc}\n", 2, 6, TAB),
    "before a flow item": ("a: [b,\n\tc]\n", 2, 1, INDENT),
    "behind a colon": ("a:\tb\n", 1, 3, TAB),
    "behind a value": ("a: b\t\n", 1, 5, TAB),
    "before a comment": ("a: 'b'\t# c\n", 1, 7, TAB),
    "in unquoted text": ("a: b\tc\n", 1, 5, TAB),
    "in unquoted text of several lines": ("a: b\n  \tc\n", 2, 3, INDENT),
    "behind an anchor": ("a: &b\tc\n", 1, 6, TAB),
    "behind a block indicator": ("a: |\t\n  b\n", 1, 5, TAB),
    "in the second document": ("a: 1\n---\nb:\t1\n", 3, 3, TAB),
    "a comment behind >": ("a: ># comment\n  b\n", 1, 5, COMMENT),
    "a comment behind |": ("a: |# comment\n  b\n", 1, 5, COMMENT),
    "a comment behind >-": ("a: >-# comment\n  b\n", 1, 6, COMMENT),
    "a comment behind |2": ("a: |2# comment\n   b\n", 1, 6, COMMENT),
}
STRICT = [
    "a: 'b\tc'\n",
    'a: "b\tc"\n',
    "a: 'b\n\tc'\n",
    "a: |\n  b\tc\n  \td\n",
    "a: b # c\td\n",
    "# b\tc\na: b\n",
    "a: > # b\tc\n  d\n",
    "a: '># b'\n",
    "a: b>#c\n",
    "a: |\n  ># b\n",
    "a: 1 # ># b\n",
]


@pytest.mark.usefixtures("_parser")
@pytest.mark.parametrize("name", LENIENT)
def test_form_that_only_libyaml_reads_is_refused_with_place_and_remedy(name: str) -> None:
    text, line, column, (message, hint) = LENIENT[name]
    _, problems = load_documents(text.encode(), "job.yaml")
    assert problems == [Problem("job.yaml", line, column, "", message, hint)]
    assert clean_documents(text.encode()) is None


@pytest.mark.usefixtures("_parser")
@pytest.mark.parametrize("text", STRICT)
def test_tab_or_number_sign_inside_text_is_read(text: str) -> None:
    assert check_reading(text.encode())


def test_each_refused_tab_of_a_document_is_reported() -> None:
    _, problems = load_documents(b"a: [1,\t2]\nb: x\t\n\n# c\td\nc:\t1\n", "job.yaml")
    assert [(problem.line, problem.column) for problem in problems] == [(1, 7), (2, 5), (5, 3)]


VALUES = """
x 1 - -- --- ... -1 . x: :x x::y x#y #x '' "" 'x' 'x''y' "x\\ty" 010 no 1e3 0.5 x'y
= << ~ é x\\y /x _x %x @x `x ?x !x *x [] [x] [x,y] [x:y] [x#y] [-] [--x] [,] [x,] [[x]] [x x] [x:] [+1] {} {a}
{a:x} | >- ]x }x ,x $x (x) \tx x\t
+1 -.5
"""
LONGER = """
- x|x: y|x :y|x y|x  y|x #y|'x' y|'x: #y'|[x, 'y, z',1]|[x y, -z]|[x: y]|[x , y]|{a: x}|{a: x,b: 'y}'}
{a: x, a: y}|{a: x, b: -}|{'a': x}|{a: -x}|{a:  x}|x, y|&x y|? x|"x: y" # z|[x] # y|[x]# y|{a: [x]}
- - x|a: [x, {b: c}]|x\\|!!str x
"""
LINES = st.tuples(
    st.sampled_from(["", "", "", "  ", "  ", "    ", " ", "   "]),
    st.sampled_from(["", "", "", "- ", "- ", "-   ", "-", "- - "]),
    st.sampled_from(
        ["a: ", "b: ", "c: ", "a:", "b:", "c:", "a:  ", "a/b.c: ", "no: ", "a :", "a:b: ", "", ""]
    ),
    st.sampled_from(["", *re.split(r"[ \n]", VALUES), *re.split(r"[|\n]", LONGER)]),
    st.sampled_from(["", "", "", "", " ", "  # c", " #", "#", " # : [", "\t# c"]),
).map("".join)


@pytest.mark.slow
@settings(max_examples=100)
@given(
    st.lists(LINES, min_size=1, max_size=8).map("\n".join),
    st.sampled_from(["", "\n", "\n\n", "\n---", "\n..."]),
)
@example("---a: b", "")
@example("a:\n- b: c\n  - d", "")
@example("a: b\n  - c", "\n")
@example("a: b\n\n\n  c", "\n")
def test_lines_are_read_alike_or_not_at_all(lines: str, end: str) -> None:
    check_reading((lines + end).encode())


@pytest.mark.slow
@settings(max_examples=60)
@given(mutated())
def test_a_damaged_manifest_is_read_alike_or_not_at_all(data: bytes) -> None:
    check_reading(data)


@settings(max_examples=150)
@given(st.lists(st.sampled_from([*TOKENS, b"a", b"b: c", b": "]), max_size=15).map(b"".join))
def test_tokens_in_any_order_are_read_alike_or_not_at_all(data: bytes) -> None:
    check_reading(data)


@pytest.mark.slow
@settings(max_examples=30)
@given(st.data(), DOCUMENTS)
def test_a_value_in_any_style_is_read_alike(data: st.DataObject, value: Any) -> None:
    assert check_reading(data.draw(written(value)).encode())


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_what_is_beyond_a_limit_is_left_to_the_helpful_way(name: str) -> None:
    assert clean_documents(BOMBS[name][0].encode()) is None


@pytest.mark.slow
def test_the_corpus_of_mistakes_is_read_alike() -> None:
    for path in CORPUS:
        check_reading(path.read_bytes())


# --- Single cases ---------------------------------------------------------------------------------------


def stairs(line: str, count: int, last: str) -> str:
    """Return lines that are each indented two columns deeper than the line before."""
    return "".join(f"{'  ' * depth}{each}\n" for depth, each in enumerate([*[line] * count, last]))


PLAIN = {
    "a manifest": MANIFEST.replace(" &machine", "")
    .replace("{machineSpec: *machine, replicaCount: 2}", "a: 1")
    .replace('{name: census, labels: {team: "risk"}}', "{name: census}"),
    "brackets": "a: [1, 2.5, 'b, c', \"d: [\", e f,-g,h:i]\nb: {c: x, d: '}',e: z}\n",
    "empty": "a: []\nb: {}\nc: ''\n",
    "texts": "a: 'x'\nb: \"y\"\nc: d  # e\nf: g #\n#\n  # h\n",
    "no tags": "a: x!\nb: a!b # so!\n",
    "signs": "a: gs://b/*.c?d&e\nb: 1 & 2 * 3\nc: -x\nd: --y=[{z}]\n",
    "a sign": "a: 'x !'\n",
    "lists": "a:\n- b: 1\n  c:\n  - d\n  -   e: 2\n      f: 3\ng:\n    -   h\n",
    "a list": "- 1\n",
    "a list of mappings": "  - a: 1\n    b: 2\n  - c: 3\n",
    "indented": "  a:\n   b:\n      c: 1\n  d: 2\n",
    "a marker": "---\n\n# a\na: 1\n",
    "deep": stairs("a:", MAX_DEPTH - 1, "a: 1"),
    "a list, deep": stairs("- a:", MAX_DEPTH // 2 - 1, "- a: 1"),
    "brackets, deep": stairs("a:", MAX_DEPTH - 2, "a: [1]"),
    "a long key": f"{'k' * 1000}: 1\n",
    "as large as may be": "a: x\n#".ljust(MAX_BYTES, "-"),
}
ODD_BUT_FINE = {
    "brackets in brackets": "{a: [1, 2.5, {b: }], c: x}",
    "JSON": json.dumps({"a": [1, "b c", None, True], "1": {"": 1}}, indent=1),
    "blocks": "a: |\n  b\n  \tc\nd: >\n  e\n",
    "more lines than one": "a: b\n  c\n",
    "more lines than one, as items": "a: b\n  - c\n",
    "more lines than one, in a list": "- a\n  - b\n",
    "more lines than one, quoted": "a: 'b\n  c'\n",
    "more lines than one, in brackets": "a: [b,\n  c]\n",
    "nothing": "a:\nb: 1\n",
    "nothing at the end": "b: 1\na:\n",
    "nothing in a list": "- a:\n- b\n",
    "a dash alone": "-\n  a: 1\n",
    "dashes": "- - 1\n",
    "a quote in quotes": "a: 'b''c'\n",
    "a quoted key": "'a': 1\n",
    "a comma": "a: [b, ]\n",
    "blanks": "a: b  c\nd: e \n",
    "a text with a number sign": "a: b#c\n",
    "a marker with a comment": "--- # a\na: 1\n",
    "more than ASCII": "a: é😀\nb: '\u00a0'\n",
    "an explicit key": f"? {'k' * MAX_KEY}\n: 1\n",
    "an anchor": "a: &x 1\nb: 2\n",
    "an anchor of a list": "a: &x [1]\n",
    "an anchor of a key": "&x a: 1\n",
    "an anchor in a list": "a: [&x 1]\n",
    "an anchor of a mapping in a list": "a: [&x {}]\n",
    "an anchor of all": "--- &x\na: 1\n",
    "an alias": "a: &x {b: 1}\nc: [*x, *x]\n",
    "a merge": "a: &x {b: 1}\nc: {<<: *x}\n",
    "an escape": 'a: "b\\nc"\n',
    "a key beyond ASCII": "é: 1\n",
    "text": "x\n",
    "null": "--- null\n",
    "large": "a: x\n#".ljust(MAX_BYTES + 1, "-"),
}
WRONG = {
    "a key twice": "a: 1\na: 2\n",
    "a key twice, quoted": "a: 1\n'a': 2\n",
    "a key twice, within": "a: [{b: 1, b: 1}]\n",
    "a number as key": "1: a\n",
    "no key": ": a\n",
    "a word as key": "no: a\n",
    "a merge of nothing": "<<: 1\n",
    "a mapping as key": "{a: b}: c\n",
    "a list as key": "? [a]\n: c\n",
    "a tag": "a: !!str 1\n",
    "a tag of a key": "!!str a: 1\n",
    "a tag without a name": "a: ! 1\n",
    "a tag without a name, behind a bracket": "a: [! 1]\n",
    "a tag of all": "--- !t\na: 1\n",
    "an unclear scalar": "a: 010\n",
    "an unclear scalar in a list": "a: [no]\n",
    "an escaped control": 'a: "\\x1b"\n',
    "an escaped control in a list": 'a: ["\\x1b"]\n',
    "an escaped control in a key": '"a\\x1b": 1\n',
    "half a character": 'a: "\\ud800"\n',
    "a tab": "a:\n\tb: 1\n",
    "syntax": "a: [\n",
    "more behind": "a: 1\n--- [b]\nc\n",
    "what belongs to nothing": "{a: 1} b\n",
    "a directive": "%YAML 3.0\n---\na: 1\n",
    "lines too deep": stairs("a:", MAX_DEPTH, "a: 1"),
    "a list in lines too deep": stairs("- a:", MAX_DEPTH // 2, "- a: 1"),
    "brackets in lines too deep": stairs("a:", MAX_DEPTH - 1, "a: [1]"),
    "a key below a text": "a: b\n  c: d\n",
    "a key below an item": "- a\n  b: c\n",
    "a key beside items": "- a\nb: c\n",
    "an item beside keys": "a: b\n- c\n",
    "an item behind a deeper list": "a:\n  - b\n- c\n",
    "less deep than any": "a:\n    b: 1\n  c: 2\n",
    "deeper than the one before": "a: 1\nb:\n  c: 1\n   d: 2\n",
    "a key twice, in lines": "a:\n- b: 1\n  b: 2\n",
    "a key twice, in brackets": "a: {b: 1, b: 2}\n",
    "a word as key in brackets": "a: {no: 1}\n",
    "two keys on a line": "a: b: c\n",
    "more behind quotes": "a: 'b' c\n",
    "more behind brackets": "a: [b] c\n",
    "no blank behind the colon": "a: 1\nb:c\n",
    "too deep": "{a: " * MAX_DEPTH + "{}" + "}" * MAX_DEPTH,
    "a list too deep": "a: " + "[" * MAX_DEPTH + "]" * MAX_DEPTH,
    "a list too deep in lists": "a: [{b: " + "[" * (MAX_DEPTH - 2) + "]" * (MAX_DEPTH - 2) + "}]",
    "a key too long": f"? {'k' * (MAX_KEY + 1)}\n: 1\n",
    "a key of combined characters": "e\u0301: 1\n",
    "one wrong of two": "a: 1\n---\nb: no\n",
    "nothing": "# a\n",
}


@pytest.fixture(params=["libyaml", "pure Python"])
def _parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "pure Python":
        monkeypatch.setattr(yaml_reader, "Parser", yaml_reader.PurePythonParser)


@pytest.mark.usefixtures("_parser")
@pytest.mark.parametrize("name", PLAIN)
def test_what_is_plain_is_read_quickly(name: str) -> None:
    chunk = Chunk(PLAIN[name].encode(), 1)
    plain, whole = read_plain_document(chunk), yaml_reader.read(chunk)
    assert plain is not None
    assert same(plain[0], whole.value)
    assert plain[1] == whole.line
    assert check_reading(chunk.data)


@pytest.mark.usefixtures("_parser")
@pytest.mark.parametrize("name", ODD_BUT_FINE)
def test_what_is_odd_but_fine_is_left_to_the_slower_reader(name: str) -> None:
    data = ODD_BUT_FINE[name].encode()
    assert read_plain_document(Chunk(data, 1)) is None
    assert check_reading(data)


@pytest.mark.usefixtures("_parser")
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_read_in_no_quick_way(name: str) -> None:
    data = WRONG[name].encode()
    assert not check_reading(data)
    assert read_plain_document(Chunk(data, 1)) is None or "two" in name


@pytest.mark.parametrize("char", ["\x85", "\u2028", "\x00", "\x7f", "\u202e", "\ufeff", "\ud800"])
def test_what_no_file_may_hold_is_read_in_no_quick_way(char: str) -> None:
    for text in (f"a: b{char}c: d\n", f"a: 1 # {char}\n", f"a: |\n  {char}\n", f"a: '{char}'\n"):
        assert not check_reading(text.encode("utf-8", "surrogatepass"))


@pytest.mark.slow
def test_as_many_values_as_the_helpful_way_takes() -> None:
    for count in (MAX_VALUES - 3, MAX_VALUES - 2, MAX_VALUES - 1):
        data = f"a: [{'1,' * count}]".encode()
        assert (clean_documents(data) is None) == bool(load_documents(data, "job.yaml")[1])


def test_a_key_that_was_fine_in_quotes_is_none_without_them() -> None:
    for text in ('"1": a\n', "'no': a\n", '"<<": a\n', '"k\\x20": a\n'):
        assert clean_documents(text.encode())
    for text in ("1: a\n", "no: a\n", "<<: a\n"):
        assert clean_documents(text.encode()) is None


def test_documents_have_their_lines_and_aliases() -> None:
    text = "# a\n---\n\na: 1\n---\n---\nb: &x [2, 3]\nc: *x\n...\n# c\n---\n- d\n"
    found = clean_documents(text.encode())
    assert found is not None
    assert [(document.line, document.aliased) for document in found] == [(4, 0), (7, 2), (12, 0)]


def test_a_file_may_hold_as_many_documents_as_the_helpful_way_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_load, "MAX_DOCUMENTS", 3)
    for count in range(1, 6):
        for start in ("", "# a\n"):
            data = (start + "---\na: 1\n" * count).encode()
            assert (clean_documents(data) is None) == bool(load_documents(data, "job.yaml")[1])


def test_what_is_remembered_of_texts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    values, lines = plain_reader.plain_values, plain_reader._lines
    monkeypatch.setattr("reconciler.manifests.yaml_scalars._MOST_KEPT", 3)
    values.clear()
    lines.clear()
    for number in range(10):
        assert check_reading(
            f"key{number}: value{number}\nn{number}: '{'x' * 100}'\nm: {'y' * 200}\n".encode()
        )
        assert len(lines) <= 3
        assert len(values) <= 3
        assert max(map(len, values)) < 100
    assert max(map(len, lines)) <= 64


@pytest.mark.slow
@pytest.mark.parametrize("module", ["files", "secrets", "yaml_load"])
def test_importing_brings_no_parser_along(module: str) -> None:
    code = f"import sys, reconciler.manifests.{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"yaml", "jsonschema", "jsonschema_rs"} & set(done.stdout.split())
