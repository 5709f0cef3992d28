"""What a request told in confidence is hidden in whatever way a service quotes it, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reconciler.base.sanitize import one_line, redacted, without_credentials

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
