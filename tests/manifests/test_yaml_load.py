"""Strict YAML: values read, texts refused with their place, and robustness against any input."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reconciler.base.diagnostics import Problem
from reconciler.manifests import yaml_document, yaml_reader
from reconciler.manifests.yaml_document import Document
from reconciler.manifests.yaml_load import load_documents, with_rerun
from tests.support.yaml_styles import written
from tests.support.yaml_texts import BOMBS, CORPUS, DOCUMENTS, MANIFEST, alias_bomb, mutated, same


def loaded(text: str | bytes) -> Any:
    """Return the value of a text with a single document and no problem."""
    documents, problems = load_documents(text.encode() if isinstance(text, str) else text, "job.yaml")
    assert problems == []
    (document,) = documents
    return document.value


def refused(text: str | bytes) -> list[Problem]:
    problems = load_documents(text.encode() if isinstance(text, str) else text, "job.yaml")[1]
    assert problems
    return problems


# --- Values ---------------------------------------------------------------------------------------------


@pytest.fixture(params=["libyaml", "pure Python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Select each of PyYAML's two parsers."""
    if request.param == "pure Python":
        monkeypatch.setattr(yaml_reader, "Parser", yaml_reader.PurePythonParser)
        monkeypatch.setattr(yaml_document, "_Loader", yaml.SafeLoader)
    return str(request.param)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data(), DOCUMENTS)
def test_a_value_is_read_as_it_was_written_in_any_style(data: st.DataObject, value: Any) -> None:
    text = data.draw(written(value))
    assert _sorted(loaded(text)) == _sorted(value)


@pytest.mark.slow
@settings(max_examples=50)
@given(DOCUMENTS)
def test_what_pyyaml_writes_is_read_back(value: Any) -> None:
    plain = yaml.safe_dump(value, allow_unicode=True, default_style='"')
    documents, problems = load_documents(plain.encode(), "job.yaml")
    # With this style PyYAML writes numbers as tagged text, and it is refused: compare only accepted texts.
    if not problems:
        assert same(documents[0].value, yaml.safe_load(plain))


def _sorted(value: Any) -> str:
    """Return a form in which types count and the order of keys doesn't."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{_sorted(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_sorted, value)) + "]"
    return repr(value)


def test_a_manifest(parser: str) -> None:
    value = loaded(MANIFEST)
    assert value["spec"]["workerPoolSpecs"] == [
        {
            "machineSpec": {"machineType": "n1-standard-4"},
            "replicaCount": 1,
            "pythonPackageSpec": {"args": ["--epochs=3", "--rate", "1e-4"]},
        },
        {"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": 2},
    ]


def test_text_over_several_lines_keeps_its_line_ends_and_tabs(parser: str) -> None:
    assert loaded("a: |\n  one\n  \ttwo\n\nb: >-\n  three\n  four\n") == {
        "a": "one\n\ttwo\n",
        "b": "three four",
    }


@pytest.mark.fault(38)
def test_merge_keys(parser: str) -> None:
    text = (
        "a: &a {x: 1, z: 2}\nb: &b {z: 3, w: 4}\nc: {<<: [*a, *b], x: 5}\nd: {w: 0, <<: *b}\ne: {'<<': 1}\n"
    )
    value = loaded(text)
    assert value["c"] == {"x": 5, "z": 2, "w": 4}
    assert value["d"] == {"w": 0, "z": 3}
    assert value["e"] == {"<<": 1}


def test_documents_have_their_lines(parser: str) -> None:
    text = "# a\n---\n\na: 1\n---\n---\nb: 2\n...\n# c\n---\n- d\n"
    documents, problems = load_documents(text.encode(), "job.yaml")
    assert not problems
    assert [(document.line, document.value) for document in documents] == [
        (4, {"a": 1}),
        (7, {"b": 2}),
        (11, ["d"]),
    ]


@pytest.mark.parametrize(
    "text", ["", " \n", "# a\n", "---\n", "---\n...\n---\n# a\n", "\ufeff", "%YAML 1.2\n---\n"]
)
def test_a_file_without_a_document_has_none_and_no_problem(text: str, parser: str) -> None:
    assert load_documents(text.encode(), "job.yaml") == ([], [])


def test_a_null_that_is_written_is_a_document() -> None:
    assert loaded("--- null\n") is None


# --- Places ---------------------------------------------------------------------------------------------


def document_of(text: str) -> Document:
    documents, _ = load_documents(text.encode(), "job.yaml")
    return documents[0]


@pytest.mark.parametrize(
    ("keys", "of_key", "place"),
    [
        ((), False, (2, 1)),
        (("kind",), False, (3, 7)),
        (("kind",), True, (3, 1)),
        (("metadata", "labels", "team"), False, (4, 41)),
        (("spec", "workerPoolSpecs", 0), True, (7, 7)),
        (("spec", "workerPoolSpecs", 0, "pythonPackageSpec", "args", 1), False, (11, 30)),
        (("spec", "workerPoolSpecs", 0, "containerSpec"), False, (7, 7)),
        (("spec", "nothing", "here"), False, (5, 1)),
        (("spec", "workerPoolSpecs", 7), False, (6, 3)),
        (("spec", "workerPoolSpecs", 1, "machineSpec", "machineType"), False, (8, 22)),
        (("kind", "x"), False, (3, 1)),
    ],
)
def test_places(keys: tuple[str | int, ...], of_key: bool, place: tuple[int, int], parser: str) -> None:
    position = document_of(MANIFEST).position(keys, of_key=of_key)
    assert (position.line, position.column) == place


def test_places_behind_a_merge_key_are_where_it_is_written(parser: str) -> None:
    document = document_of("a: &a\n  x: 1\n  y1: 2\nb:\n  <<: [*a]\n  x: 3\n")
    assert document.position(("b", "y1")).line == 3
    assert document.position(("b", "x")).line == 6


def test_places_in_a_later_document(parser: str) -> None:
    documents, _ = load_documents(b"a: 1\n---\n# b\nb:\n  - c: 3.10\n", "job.yaml")
    position = documents[1].position(("b", 0, "c"))
    assert (position.line, position.column) == (5, 8)
    assert documents[1].source_text(("b", 0, "c")) == "3.10"
    assert documents[1].source_text(("b",)) == documents[1].source_text(("z", 1)) == ""


def test_columns_count_characters(parser: str) -> None:
    (problem,) = refused("a: {é😀: 1, b: no}\n")
    assert (problem.line, problem.column) == (1, 15)


# --- Refused texts --------------------------------------------------------------------------------------


def told(text: str | bytes) -> list[tuple[int, int, str]]:
    return [(problem.line, problem.column, problem.pointer) for problem in refused(text)]


def test_one_mistake_does_not_hide_the_next(parser: str) -> None:
    text = "a: no\non: 1\nb: [010, {c: 2026-11-07, c: 1}]\n'a': 2\n"
    assert told(text) == [
        (1, 4, "/a"),
        (2, 1, "/on"),
        (3, 5, "/b/0"),
        (3, 14, "/b/1/c"),
        (3, 26, "/b/1/c"),
        (4, 1, "/a"),
    ]


@pytest.mark.fault(38)
def test_the_problem_of_a_repeated_key_names_the_first() -> None:
    (problem,) = refused("a: 1\nb:\n  x: 1\n  y1: 2\n  x: 3\n")
    assert problem == Problem(
        "job.yaml", 5, 3, "/b/x", 'the key "x" is defined twice, first on line 3', "remove one of the two"
    )


@pytest.mark.fault(38)
def test_keys_that_are_equal_once_they_are_read(parser: str) -> None:
    assert told("a: 1\n\"\\x61\": 2\n'a': 3\n") == [(2, 1, "/a"), (3, 1, "/a")]


@pytest.mark.parametrize("key", ["1", "1.5", "true", "~", "null", "0x1F"])
def test_keys_are_text(key: str, parser: str) -> None:
    (problem,) = refused(f"a:\n  {key}: x\n")
    assert (problem.line, problem.column, problem.hint) == (2, 3, f'write "{key}" with quotes')


@pytest.mark.parametrize(
    "text", ["{a: {[b]: c}}", "{a: {{b: c}: d}}", "a: {{ name }}", "a: {{ name }}/b", "? - a\n: b"]
)
def test_a_collection_is_no_key(text: str, parser: str) -> None:
    (problem,) = refused(text)
    assert problem.message == "a mapping or a list can't be a key"


@pytest.mark.parametrize(
    "text",
    [
        "a: !!str b",
        "a: !b c",
        "a: ! 12",
        "a: &x ! 12",
        "a: !<tag:x,1:y> b",
        "a: !!map {}",
        "a: ! [b]",
        "!!str a: b",
    ],
)
def test_tags_are_refused(text: str, parser: str) -> None:
    (problem,) = refused(text)
    assert problem.message == "there is a tag, or text without quotes that begins with !"


def test_an_exclamation_mark_in_text_is_no_tag(parser: str) -> None:
    assert loaded("a: 'x !'\nb: \"! y\"\nc: x !y\n# !\n") == {"a": "x !", "b": "! y", "c": "x !y"}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: &a [*a]", (1, 8)),
        ("a: &a {b: {c: *a}}", (1, 15)),
        ("&a a: [*b]", (1, 8)),
        ("a: &x 1\nb: &x 2", (2, 4)),
        ("a: {<<: 1}", (1, 5)),
        ("a: {<<: [1]}", (1, 5)),
        ("a: &a {<<: *a}", (1, 12)),
    ],
)
def test_aliases_that_stand_for_nothing_usable(text: str, place: tuple[int, int], parser: str) -> None:
    (problem,) = refused(text)
    assert (problem.line, problem.column) == place


def test_a_merge_key_that_is_anchored_is_text_elsewhere(parser: str) -> None:
    assert loaded("{&x <<: {a: 1}, b: *x}") == {"b": "<<", "a": 1}


@pytest.mark.parametrize(
    "char", ["\0", "\x1b", "\x07", "\x7f", "\x85", "\x9b", "\u202e", "\u2066", "\u2028", "\ufeff"]
)
def test_characters_that_nobody_sees_are_refused_wherever_they_stand(char: str) -> None:
    for text in (f"a: b # {char}\n", f"\na: 'b {char}'\n", f"a: |\n  b {char}\n"):
        (problem,) = refused(text)
        lines = text.split("\n")
        line = next(number for number, line in enumerate(lines) if char in line)
        assert (problem.line, problem.column) == (line + 1, lines[line].index(char) + 1)
        assert problem.message.startswith(f"U+{ord(char):04X} ")


@pytest.mark.parametrize("escape", [r"\0", r"\e", r"\a", r"\x7f", r"\x85", r"\u202e", r"\u2069", r"\N"])
def test_they_are_refused_as_escapes_too(escape: str, parser: str) -> None:
    assert told(f'a: [x, "b {escape}"]\n') == [(1, 8, "/a/1")]
    assert len(told(f'"{escape}": 1\n')) == 1


@pytest.mark.fault(38)
def test_half_a_character_is_refused(parser: str) -> None:
    assert len(refused(r'a: "\ud800"')) == 1


@pytest.mark.parametrize("escape", [r"\n", r"\t", r"\r", r"\u2028", r"\x41", r"\U0001f600", r"\_"])
def test_other_escapes_are_fine(escape: str, parser: str) -> None:
    assert loaded(f'a: "{escape}"\n') == yaml.safe_load(f'a: "{escape}"\n')


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings_are_named(encoding: str) -> None:
    (problem,) = refused(MANIFEST.encode(encoding))
    assert problem.line == 1
    assert encoding[:6].upper() in problem.message
    assert problem.hint == "save the file as UTF-8"


def test_a_byte_order_mark_is_no_part_of_the_first_key() -> None:
    assert loaded(b"\xef\xbb\xbfa: b\r\nc: |\r\n  d\r\n") == {"a": "b", "c": "d\n"}


def test_bytes_that_are_not_utf_8_have_a_place() -> None:
    (problem,) = refused("a: é\nb: ".encode() + b"caf\xe9\n")
    assert (problem.line, problem.column, problem.message) == (2, 7, "the byte 0xe9 is not UTF-8")


def test_a_binary_file_is_called_so() -> None:
    (problem,) = refused(b"\x1f\x8b\x08\0\0\0\0\0\x02\xff\xe2")
    assert (problem.line, problem.column, problem.message) == (1, 1, "this is a binary file")


SYNTAX = {
    "tab": ("a:\n\tb: 1\n", 2, 1, "a tab can't indent"),
    "quote": ("a: 1\nb: 'c\nd: 1\n", 2, 4, "this quote is never closed"),
    "bracket": ("a: [b,\n  c\n", 1, 4, 'a "," or a "]" is missing'),
    "brace": ("a: {b: 1\nc: 2}\n", 2, 2, 'a "," or a "}" is missing'),
    "outdented": ("a:\n    b: 1\n  c: 2\n", 3, 3, "this line's indentation fits none of the lines above"),
    "indented": (
        "a: 1\n  b: 2\n",
        2,
        3,
        "this line is indented deeper than the one above, which already has its value",
    ),
    "blank": ("a:1\nb: 2\n", 1, 3, "a space is missing after the colon"),
    "colon": ("a: b: c\n", 1, 4, 'text that contains ": " needs quotes'),
    "lonely": ("a: 1\nb\nc: 2\n", 2, 1, "this line is not a key with a value"),
    "at": ("a: @b\n", 1, 4, 'without quotes, text can\'t begin with "@"'),
    "conflict": ("a: 1\n<<<<<<< ours\nb: 1\n", 2, 1, "an unresolved merge conflict begins here"),
}


@pytest.mark.parametrize("name", SYNTAX)
def test_syntax_errors_have_a_place_and_a_remedy(name: str) -> None:
    text, line, column, message = SYNTAX[name]
    (problem,) = refused(text)
    assert (problem.line, problem.column, problem.message) == (line, column, message)
    assert problem.hint


@pytest.mark.parametrize("name", SYNTAX)
def test_they_are_the_same_from_the_slower_parser(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = refused(SYNTAX[name][0])
    monkeypatch.setattr(yaml_reader, "Parser", yaml_reader.PurePythonParser)
    assert refused(SYNTAX[name][0]) == fast


@pytest.mark.parametrize("text", ["a: b: " + "x" * 61, "a\tb: c: d", "a: b's: c"])
def test_what_cannot_be_shown_is_not_put_into_a_remedy(text: str) -> None:
    (problem,) = refused(text)
    assert problem.message == 'text that contains ": " needs quotes'
    assert problem.hint == "write the text in quotes"


def test_what_follows_a_broken_document_is_read_all_the_same() -> None:
    text = "a: [\n---\nb: 1\n---\nc: '\n...\nd: no\n---\ne: 2\n"
    documents, problems = load_documents(text.encode(), "job.yaml")
    assert [document.value for document in documents] == [{"b": 1}, {"d": "no"}, {"e": 2}]
    assert [problem.line for problem in problems] == [2, 5, 7]


def test_a_broken_document_says_what_it_could_before_it_broke() -> None:
    assert [problem.line for problem in refused("a: no\nb: yes\nc: [\n")] == [1, 2, 4]


# --- Bounds ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.fault(37)
@pytest.mark.parametrize("name", BOMBS)
def test_no_input_takes_much_memory_or_gets_past_a_limit(name: str) -> None:
    text, message = BOMBS[name]
    data = text.encode()
    tracemalloc.start()
    try:
        documents, problems = load_documents(data, "job.yaml")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert any(message in problem.message for problem in problems)
    assert all(len(problem.message) + len(problem.hint) < 1_000 for problem in problems)
    assert peak < 64 * 1024 * 1024
    assert sum(document.aliased for document in documents) <= 20_000


@pytest.mark.slow
def test_what_is_just_inside_the_limits_is_read() -> None:
    assert loaded("[" * 32 + "]" * 32)
    assert loaded("a: 1 #".ljust(256 * 1024, "x"))
    assert len(loaded("[" + "1," * 19_999 + "]")) == 19_999
    assert len(loaded("a: " + "x" * 65_536)["a"]) == 65_536
    assert len(loaded(alias_bomb(3))["l2"]) == 10
    assert len(load_documents(b"---\na: 1\n" * 9_999, "job.yaml")[0]) == 9_999


# --- Arbitrary input ------------------------------------------------------------------------------------


def check_loading(data: bytes) -> list[Document]:
    documents, problems = load_documents(data, "job.yaml")
    lines = data.count(b"\n") + data.count(b"\r") + 1
    for problem in problems:
        assert 1 <= problem.line <= lines
        assert problem.column >= 1
        assert problem.message
        assert (problem.message + problem.hint).replace("\n", "").isprintable()
    for document in documents:
        assert 1 <= document.line <= lines
        for keys in document.unreadable:
            assert 1 <= document.position(keys).line <= lines
    return documents


@settings(max_examples=200)
@given(
    st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
@example(b"\0")
@example(b"a\0")
@example(b"\xef\xbb\xbf\xef\xbb\xbf")
@example(b"%")
@example(b"--- |\n---")
def test_any_bytes_give_documents_and_problems(data: bytes) -> None:
    check_loading(data)


@pytest.mark.slow
@settings(max_examples=1000)
@given(mutated())
def test_any_damage_to_a_manifest_gives_documents_and_problems(data: bytes) -> None:
    check_loading(data)


@pytest.fixture
def slower(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Use PyYAML's own parser."""

    def read(data: bytes) -> tuple[list[Document], list[Problem]]:
        with monkeypatch.context() as patch:
            patch.setattr(yaml_reader, "Parser", yaml_reader.PurePythonParser)
            return load_documents(data, "job.yaml")

    return read


@pytest.mark.slow
def test_the_slower_parser_reads_the_corpus_as_the_quicker_one_does(slower: Any) -> None:
    for path in CORPUS:
        if "surrogate" in str(path):
            continue  # a syntax error for libyaml only
        data = path.read_bytes()
        documents, problems = load_documents(data, "job.yaml")
        slow_documents, slow_problems = slower(data)
        assert [(problem.line, problem.pointer, problem.message) for problem in slow_problems] == [
            (problem.line, problem.pointer, problem.message) for problem in problems
        ], path
        assert [document.value for document in slow_documents] == [document.value for document in documents]


@pytest.mark.slow
@settings(max_examples=100)
@given(mutated())
def test_where_both_parsers_read_they_read_the_same(data: bytes) -> None:
    documents, problems = load_documents(data, "job.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml_reader, "Parser", yaml_reader.PurePythonParser)
        slow_documents, slow_problems = load_documents(data, "job.yaml")
    if not problems and not slow_problems:
        assert [document.value for document in slow_documents] == [document.value for document in documents]


# --- the edit of rerun ------------------------------------------------------------------------------------

HEAD = "# a job\napiVersion: v1  # the API\nkind: CustomJob\nmetadata: {name: a}\n"
SPEC = "# what runs\nspec:\n  - 1\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (HEAD + SPEC, HEAD + 'reconcile: {rerun: "new"}\n' + SPEC),
        (
            HEAD + "reconcile:\n  # twice\n  attempts: 2  # at most\n" + SPEC,
            HEAD + 'reconcile:\n  # twice\n  rerun: "new"\n  attempts: 2  # at most\n' + SPEC,
        ),
        (
            HEAD + "reconcile:\n    attempts: 2\n    rerun: old # why\n" + SPEC,
            HEAD + 'reconcile:\n    attempts: 2\n    rerun: "new" # why\n' + SPEC,
        ),
        (
            HEAD + "reconcile: {attempts: 2, rerun: 'o''ld'} # both\n" + SPEC,
            HEAD + 'reconcile: {attempts: 2, rerun: "new"} # both\n' + SPEC,
        ),
        (
            HEAD + "reconcile: {attempts: 2}\n" + SPEC,
            HEAD + 'reconcile: {"rerun": "new", attempts: 2}\n' + SPEC,
        ),
        (HEAD + "reconcile: {}\n" + SPEC, HEAD + 'reconcile: {"rerun": "new"}\n' + SPEC),
        (HEAD + "reconcile: # later\n" + SPEC, HEAD + 'reconcile: {rerun: "new"} # later\n' + SPEC),
        (HEAD + "reconcile:\n  rerun:\n" + SPEC, HEAD + 'reconcile:\n  rerun: "new"\n' + SPEC),
        (
            HEAD + "reconcile:\n  rerun: |\n    a\n    b\n  attempts: 2\n" + SPEC,
            HEAD + 'reconcile:\n  rerun: "new"\n  attempts: 2\n' + SPEC,
        ),
        (
            '{"kind": "CustomJob", "spec": []}',
            '{"reconcile": {"rerun": "new"}, "kind": "CustomJob", "spec": []}',
        ),
        (
            "kind: A\r\nreconcile:\r\n  attempts: 2\r\nspec: 1\r\n",
            'kind: A\r\nreconcile:\r\n  rerun: "new"\r\n  attempts: 2\r\nspec: 1\r\n',
        ),
        ("\ufeffkind: ä\nspec: 1\n", '\ufeffkind: ä\nreconcile: {rerun: "new"}\nspec: 1\n'),
        ("kind: A\nspec: 1", 'kind: A\nreconcile: {rerun: "new"}\nspec: 1'),
    ],
)
def test_rerun_is_written_and_all_else_stays(before: str, after: str) -> None:
    line = load_documents(before.encode(), "")[0][0].line
    assert with_rerun(before.encode(), line, "new").decode() == after


def test_of_several_documents_the_one_that_begins_in_the_line_is_edited() -> None:
    text = "kind: A\nspec: 1\n---\n# second\nkind: B\nspec: 2\n---\nkind: C\nspec: 3\n"
    edited = with_rerun(text.encode(), 5, "new").decode()
    assert edited == text.replace("spec: 2", 'reconcile: {rerun: "new"}\nspec: 2')


@pytest.mark.parametrize(
    "text",
    [
        "kind: &k old\nreconcile: {rerun: *k}\nspec: 1\n",
        "kind: A\nother: &o {attempts: 2}\nreconcile: *o\nspec: 1\n",
        "kind: A\nreconcile: &r {attempts: 2}\nspec: 1\n",
    ],
    ids=["alias for the text", "alias for the mapping", "anchor"],
)
def test_what_an_alias_would_change_as_well_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="edited safely"):
        with_rerun(text.encode(), 1, "new")


def test_a_line_in_which_no_document_begins_is_refused() -> None:
    with pytest.raises(ValueError, match="no job begins on line 7"):
        with_rerun(b"kind: A\nspec: 1\n", 7, "new")
