"""Untrusted text has no effect wherever it is shown, and secrets of a request are hidden."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reconciler.base.sanitize import (
    is_on_runner,
    lines,
    one_line,
    redacted,
    status_description,
    without_credentials,
    workflow_command,
)
from tests.support.inert import ACTED_ON, runner_finds_command, texts


@pytest.mark.fault(45)
@given(texts)
@example("::error file=a,line=1::owned")
@example(" \u00a0::error::owned")
@example(":\ufe0f:error::owned")
@example("x #\u0301#[error]owned")
@example("#\x1b[0m#[error]owned")
@example("##\x1b[1m[error]owned")
@example("\x1b\x1b[0m[2Jcleared")
def test_one_line_is_one_line_that_does_nothing(text: str) -> None:
    line = one_line(text)
    assert not [char for char in line if unicodedata.category(char) in ACTED_ON]
    assert not runner_finds_command(line)
    assert line.encode().decode() == line


@given(texts)
def test_one_line_changes_nothing_the_second_time(text: str) -> None:
    assert one_line(one_line(text)) == one_line(text)


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters=":#")))
@example("loss: 0.1 # step 3, see a::b, C#, ##, [x]")
@example("Übung über 3 €, 東京")
def test_harmless_text_stays_as_it_is(text: str) -> None:
    assert one_line(text) == text
    assert lines(text) == [text]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2Jgone", r"\x1b[2Jgone"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("100%\rowned", r"100%\rowned"),
        ("a\nb", r"a\nb"),
        ("a\tb", "a       b"),
        ("abc\u202egpj.exe", r"abc\u202egpj.exe"),
        ("pass\u200bword", r"pass\u200bword"),
        ("blank\u3164name", r"blank\u3164name"),
        ("half \ud800", r"half \ud800"),
        ("one\u00a0two", "one\u00a0two"),
        ("::error::x", r"\x3a:error::x"),
        ("  ::error::x", r"  \x3a:error::x"),
        ("a ##[error]x", r"a \x23\x23[error]x"),
        ("a ::error::x", "a ::error::x"),
    ],
)
def test_what_is_shown(text: str, shown: str) -> None:
    assert one_line(text) == shown


@pytest.mark.fault(45)
@given(texts)
@example("progress 1\r::error::owned")
@example("a\r\n##[group]owned\n")
def test_each_line_of_a_text_does_nothing(text: str) -> None:
    told = lines(text)
    assert told == [one_line(line) for line in told]
    # The runner splits text printed in a single write at line ends again.
    assert not any(runner_finds_command(line) for line in re.split("[\r\n]", "\n".join(told)))


def test_lines_are_kept_apart() -> None:
    assert lines("a\r\nb\rc\n\nd\n") == ["a", "b", "c", "", "d"]
    assert lines("") == [""]


@pytest.mark.fault(45)
@given(texts, st.integers(1, 140))
@example("x" * 141, 140)
@example("é" * 140, 140)
@example("🎉" * 141, 140)
@example("e\u0301" * 71, 140)
def test_a_description_is_one_that_github_takes(text: str, limit: int) -> None:
    description = status_description(text, limit)
    assert len(description) == len(description.encode("utf-16-le")) // 2 <= limit
    assert not [char for char in description if unicodedata.category(char) in ACTED_ON]
    assert description == description.strip()
    assert status_description(description, limit) == description


@given(st.text(st.characters(categories=["L", "N", "P"], max_codepoint=0x24F), max_size=200))
@example("x" * 140)
@example("x" * 141)
def test_a_description_is_cut_only_where_it_must_be(text: str) -> None:
    description = status_description(text)
    if len(text) <= 140:
        assert description == text.strip()
    else:
        assert description == text[:139] + "…"


def test_a_description_of_several_lines() -> None:
    assert status_description("  Traceback:\n\tFile 'x'\r\n\x1b[31mboom \x07🎉\x1b[0m ") == (
        "Traceback: File 'x' boom \ufffd\ufffd"
    )


def test_a_description_that_is_cut_after_a_word_ends_without_a_blank() -> None:
    assert status_description("quota used up", 7) == "quota…"


def undo(text: str, *escapes: tuple[str, str]) -> str:
    for escape, char in escapes:
        text = text.replace(escape, char)
    return text


def parsed(line: str) -> tuple[str, dict[str, str], str]:
    """Return a command as `ActionCommand.cs` of actions/runner reads it."""
    head, _, data = line[2:].partition("::")
    name, _, properties = head.partition(" ")
    pairs = (pair.split("=", 1) for pair in properties.strip().split(",") if pair)
    read = {
        key: undo(value, ("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%"))
        for key, value in pairs
    }
    return name, read, undo(data, ("%0D", "\r"), ("%0A", "\n"), ("%25", "%"))


@pytest.mark.fault(45)
@given(texts, texts)
@example("wrong: 100%0Asure\n::error::owned", "jobs/a,b:c.yaml")
@example("wrong", "jobs/50%3Aoff.yaml")
def test_a_workflow_command_is_read_as_it_was_meant(message: str, path: str) -> None:
    command = workflow_command("error", message, file=path, line=3)
    assert not {"\r", "\n"} & set(command)
    assert parsed(command) == ("error", {"file": one_line(path), "line": "3"}, "\n".join(lines(message)))


def test_a_workflow_command_without_properties() -> None:
    assert workflow_command("notice", "100% done") == "::notice::100%25 done"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("::error::x # y", r"\x3a:error::x # y"),
        (" ::x", r" \x3a:x"),
        ("##[group]x: y", r"\x23\x23[group]x: y"),
        (":\ufe0f:x", "\\x3a\ufe0f:x"),
        ("#\u0301#[x", "\\x23\u0301\\x23[x"),
        ("é::x", "é::x"),
        ("##é[x", "##é[x"),
    ],
)
def test_only_the_characters_that_begin_a_command_of_the_runner_are_escaped(text: str, expected: str) -> None:
    assert one_line(text) == expected


# --- secrets of a request ---------------------------------------------------------------------------------

SECRET = 'sécret "of\tmine" it\'s\nsecond line'
QUOTED = [
    SECRET,
    json.dumps(SECRET)[1:-1],
    json.dumps(SECRET, ensure_ascii=False)[1:-1],
    repr(SECRET)[1:-1],
    one_line(SECRET),
]


def hidden(text: str, *values: Any) -> str:
    return redacted(text, {"env": [{"name": "A", "value": value} for value in values]})


@pytest.mark.fault(47)
@pytest.mark.parametrize("form", QUOTED)
def test_nothing_is_left_of_a_value_however_it_is_quoted(form: str) -> None:
    assert len({*QUOTED}) == len(QUOTED)
    assert hidden(f"<{form}>", SECRET) == "<***>"


@pytest.mark.fault(47)
def test_a_line_of_a_value_is_hidden_too() -> None:
    for line in SECRET.splitlines():
        assert hidden(f"<{one_line(line)}>", SECRET) == "<***>"


@pytest.mark.fault(47)
@pytest.mark.parametrize(
    ("value", "text", "told"),
    [
        ("12345678", "x12345678y", "x***y"),
        ("1234567", "x1234567y", "x1234567y"),
        ("1234567", "1234567", "***"),
        ("1", "a1 1a 1", "a1 1a ***"),
        (".*", "what .* means", "what *** means"),
        ("of mine!", "of mine?", "of mine?"),
    ],
)
def test_a_short_value_is_hidden_only_where_it_stands_alone(value: str, text: str, told: str) -> None:
    assert hidden(text, value) == told


def test_a_value_that_ends_with_another_is_hidden_as_a_whole() -> None:
    assert hidden("my-password is bad", "password", "my-password") == "*** is bad"


def test_what_is_no_variable_hides_nothing() -> None:
    body = {"env": ["bad-word", None, {"value": 7}, {"name": "bad-word"}], "args": ["bad-word"]}
    assert redacted("bad-word 7", body) == "bad-word 7"


def test_a_raw_line_of_a_value_is_hidden_with_its_tabs() -> None:
    assert hidden('bad line: sécret "of\tmine" it\'s', SECRET) == "bad line: ***"


@pytest.mark.fault(47)
@pytest.mark.parametrize(
    "credential",
    [
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "ya29.a0AfH6SMB-x_y",
        "1//0gAbCdEfGhIjKlMnOp",
        "GOCSPX-a1B2c3D4",
    ],
)
@pytest.mark.parametrize("before", ["", "refused: ", "é"])
def test_a_credential_is_hidden_wherever_an_error_quotes_it(credential: str, before: str) -> None:
    assert without_credentials(f"{before}{credential} is no good") == f"{before}*** is no good"


@pytest.mark.fault(47)
def test_the_word_after_bearer_is_hidden_and_other_words_stay() -> None:
    assert without_credentials("Bearer abc/def+g== for the bearer") == "Bearer *** for the bearer"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, False),
        ({"GITHUB_ACTIONS": "true"}, True),
        ({"GITHUB_ACTIONS": "false"}, False),
        ({"GITHUB_RUN_ID": "7"}, True),
        ({"GITHUB_RUN_ID": ""}, False),
    ],
)
def test_runner_reads_the_output_in_actions_and_where_they_are_hidden(
    environ: dict[str, str], expected: bool
) -> None:
    assert is_on_runner(environ) is expected


def test_value_is_hidden_at_any_depth() -> None:
    container = {"containerSpec": {"env": [{"name": "A", "value": "swordfish"}]}}
    body = {"jobSpec": {"workerPoolSpecs": [{"replicaCount": "1"}, container]}}
    assert redacted("wrong value swordfish", body) == "wrong value ***"


@pytest.mark.parametrize("value", ["", " ", "\n \n"])
def test_blank_value_hides_nothing(value: str) -> None:
    body = {"env": [{"name": "A", "value": value}]}
    assert redacted("wrong value, (7)", body) == "wrong value, (7)"
