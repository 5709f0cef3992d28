"""Scalars: values that YAML 1.1 and 1.2 read alike, and refused scalars."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.manifests.yaml_scalars import MAX_INTEGER, UnclearScalarError, plain_values
from tests.support.yaml_texts import same


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("NULL", None),
        ("true", True),
        ("False", False),
        ("tRue", "tRue"),
        ("yess", "yess"),
        ("nO", "nO"),
        ("0", 0),
        ("-0", 0),
        ("+12", 12),
        ("007", 7),
        ("0x1F", 31),
        (str(MAX_INTEGER), MAX_INTEGER),
        (f"-{MAX_INTEGER}", -MAX_INTEGER),
        ("3.10", 3.1),
        ("1.", 1.0),
        (".5", 0.5),
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        ("6.02e23", 6.02e23),
        ("1.2.3", "1.2.3"),
        ("10:60", "10:60"),
        ("01:30", "01:30"),
        ("2026-11", "2026-11"),
        ("inf", "inf"),
        ("NaN", "NaN"),
        ("0o8", "0o8"),
        ("1_a", "1_a"),
        ("-", "-"),
        ("--epochs=3", "--epochs=3"),
        ("gs://bucket/a", "gs://bucket/a"),
    ],
)
def test_what_all_yaml_readers_agree_on(text: str, value: Any) -> None:
    assert same(plain_values[text], value)


@pytest.mark.fault(38)
@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("no", 'write "no" with quotes, or false'),
        ("Yes", 'write "Yes" with quotes, or true'),
        ("y", 'write "y" with quotes, or true'),
        ("OFF", 'write "OFF" with quotes, or false'),
        ("010", 'write "010" with quotes, or 10'),
        ("-017", 'write "-017" with quotes, or -17'),
        ("08", 'write "08" with quotes, or 8'),
        ("0o17", 'write "0o17" with quotes, or a decimal number'),
        ("0b11", 'write "0b11" with quotes, or a decimal number'),
        ("-0x1F", 'write "-0x1F" with quotes, or a decimal number'),
        ("1_000", 'write "1_000" with quotes, or 1000'),
        ("1_0.5", 'write "1_0.5" with quotes, or 10.5'),
        ("1:30", 'write "1:30" with quotes'),
        ("12:30:45", 'write "12:30:45" with quotes'),
        ("1:30.5", 'write "1:30.5" with quotes'),
        ("2026-11-07", 'write "2026-11-07" with quotes'),
        ("2026-11-07T10:00:00Z", 'write "2026-11-07T10:00:00Z" with quotes'),
        ("2026-1-7 1:00:00 +2", 'write "2026-1-7 1:00:00 +2" with quotes'),
        ("-.5", 'write "-.5" with quotes, or -0.5'),
        ("+.5e3", 'write "+.5e3" with quotes, or +0.5e3'),
        ("=", 'write "=" with quotes'),
        ("<<", 'write "<<" with quotes'),
        (".nan", 'write a number, or ".nan" with quotes'),
        ("-.INF", 'write a number, or "-.INF" with quotes'),
        ("1e999", 'write a smaller one, or "1e999" with quotes'),
        ("9007199254740993", 'write "9007199254740993" with quotes, if the field takes digits as text'),
        ("0x20000000000001", 'write "0x20000000000001" with quotes, if the field takes digits as text'),
    ],
)
def test_what_they_read_differently_is_refused_with_what_to_write(text: str, hint: str) -> None:
    with pytest.raises(UnclearScalarError) as caught:
        plain_values[text]
    assert caught.value.hint == hint


def _by_yaml_1_1(text: str) -> Any:
    loader = yaml.SafeLoader("")
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))
    if tag in ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:merge", "tag:yaml.org,2002:value"):
        return UnclearScalarError
    try:
        return loader.construct_object(yaml.ScalarNode(tag, text))
    except ValueError:
        return UnclearScalarError  # such as "0b_"


_CORE_1_2 = (  # https://yaml.org/spec/1.2.2/#1032-tag-resolution
    (r"null|Null|NULL|~|", lambda text: None),
    (r"true|True|TRUE|false|False|FALSE", lambda text: text.lower() == "true"),
    (r"[-+]?[0-9]+", int),
    (r"0o[0-7]+", lambda text: int(text[2:], 8)),
    (r"0x[0-9a-fA-F]+", lambda text: int(text, 16)),
    (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", float),
    (r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", lambda text: math.nan),
)


def _by_yaml_1_2(text: str) -> Any:
    for pattern, convert in _CORE_1_2:
        if re.fullmatch(pattern, text):
            return convert(text)
    return text


NUMBER_LIKE = st.text("0123456789+-._:eExobaFTZ", min_size=1, max_size=12)

WORD_LIKE = st.sampled_from(
    ["yes", "NO", "on", "Off", "y", "N", "True", "null", "~", ".nan", "-.INF", "inf", "=", "<<"]
)


@pytest.mark.slow
@pytest.mark.fault(38)
@settings(max_examples=600)
@given(NUMBER_LIKE | WORD_LIKE)
def test_a_scalar_is_what_both_versions_read_or_refused(text: str) -> None:
    older, newer = _by_yaml_1_1(text), _by_yaml_1_2(text)
    has_exponent = re.fullmatch(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+|\.[0-9]+[eE][-+]?[0-9]+", text)
    try:
        ours = plain_values[text]
    except UnclearScalarError:
        ours = UnclearScalarError
    if has_exponent and math.isfinite(float(text)):
        assert same(ours, float(text))
    elif text in ("y", "Y", "n", "N", "=", "<<"):
        assert ours is UnclearScalarError
    elif same(older, newer) and not _is_beyond(newer):
        assert same(ours, newer)
    else:
        assert ours is UnclearScalarError


def _is_beyond(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    return isinstance(value, int) and abs(value) > MAX_INTEGER
