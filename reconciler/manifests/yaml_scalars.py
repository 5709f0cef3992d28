"""Meaning of unquoted YAML scalars: the common subset of YAML 1.1 and 1.2; where they differ, an error.

The tables are those of YAML 1.1 (https://yaml.org/type/) as PyYAML applies them, and of YAML 1.2's core
schema (https://yaml.org/spec/1.2.2/#103-core-schema). One form is read as in YAML 1.2: a number with an
exponent, such as 1e-4, is text for PyYAML and a number for every JSON reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

MAX_INTEGER = 2**53
"""Limit beyond which JSON readers with double-precision numbers lose digits (RFC 8259, section 6)."""

Scalar = str | int | float | bool | None
Meaning = TypeVar("Meaning")

_WORDS: dict[str, Scalar] = {
    "": None,
    "~": None,
    **dict.fromkeys(("null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
# "y" and "n" are in YAML 1.1's table, though PyYAML leaves them text.
_OTHER_WORDS = {
    word: meaning
    for meaning, names in (("true", ("yes", "on", "y")), ("false", ("no", "off", "n")))
    for name in names
    for word in (name, name.title(), name.upper())
}
_NUMBER_STARTS = frozenset("0123456789+-.")
_MAX_DIGITS = len(str(MAX_INTEGER))
_SHORT = 64
_MOST_KEPT = 1 << 14

# The beginning of every number and time, but not of most text with these signs, such as "--epochs".
_MAY_BE_NUMBER = re.compile(r"[-+]?\.?[0-9]|[-+]?\.[iInN]")
# A digit from 0 to 7 behind zeros has the same octal and decimal value.
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*|0+[0-7])")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"(?:[-+]?[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")

_ZERO_LED = re.compile(r"([-+]?)0++([1-9][0-9]*+)")
_OCTAL_2 = re.compile(r"0o[0-7]+")
_OTHER_BASE = re.compile(r"[-+]?0(?:b[01_]+|x[0-9a-fA-F_]+)")
_UNDERSCORED = re.compile(
    r"[-+]?(?:0[0-7_]+|[1-9][0-9_]*)"
    r"|(?:[-+]?[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?"
)
_SIXTIES = re.compile(r"[-+]?(?:[1-9][0-9_]*(?::[0-5]?[0-9])+|[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*)")
_NO_ZERO = re.compile(r"[-+]\.[0-9]+(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt]|[ \t]+)[0-9]{1,2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]*)?"
    r"(?:[ \t]*(?:Z|[-+][0-9]{1,2}(?::[0-9]{2})?))?"
)


class UnclearScalarError(ValueError):
    """Unquoted scalar that YAML's versions read differently, or that has no JSON form.

    Attributes:
        message: The mistake.
        hint: The correction.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class TextCache(dict[str, Meaning]):
    """Cache of the meanings of texts; keeps short ones, because most files share their words and lines."""

    def __init__(self, read: Callable[[str], Meaning]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, text: str) -> Meaning:
        meaning = self._read(text)
        if len(text) <= _SHORT:
            if len(self) >= _MOST_KEPT:
                self.clear()
            self[text] = meaning
        return meaning


def _read(text: str) -> Scalar:
    if text in _WORDS:
        return _WORDS[text]
    if text[0] in _NUMBER_STARTS:
        return _read_number(text) if _MAY_BE_NUMBER.match(text) else text
    if text in _OTHER_WORDS:
        raise _unclear(text, _OTHER_WORDS[text], "text", _OTHER_WORDS[text])
    if text in ("=", "<<"):
        raise _unclear(text, "a sign of its own", "text")
    return text


plain_values: TextCache[Scalar] = TextCache(_read)
"""`plain_values[text]` is the value of the unquoted scalar `text`; raises UnclearScalarError."""


def _read_number(text: str) -> Scalar:
    if _INTEGER.fullmatch(text):
        return _integer(text, 10)
    if _HEXADECIMAL.fullmatch(text):
        return _integer(text, 16)
    if _FLOAT.fullmatch(text) and not _ZERO_LED.fullmatch(text):
        return _float(text)
    _refuse_unclear(text)
    return text


def _integer(text: str, base: int) -> int:
    # int() takes quadratic time, so the digits are counted first.
    value = int(text, base) if len(text) <= _MAX_DIGITS + 2 else MAX_INTEGER + 1
    if abs(value) > MAX_INTEGER:
        raise UnclearScalarError(
            "this number is beyond 2^53, where readers of JSON lose its last digits",
            f'write "{_cut(text)}" with quotes, if the field takes digits as text',
        )
    return value


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise UnclearScalarError(
            "this number is too large for a double", f'write a smaller one, or "{_cut(text)}" with quotes'
        )
    return value


def _refuse_unclear(text: str) -> None:
    """Raise UnclearScalarError for a number or time in one version of YAML that differs in the other."""
    if match := _ZERO_LED.fullmatch(text):
        octal = set(match[2]) <= set("01234567")
        decimal = match[1] + match[2]
        raise _unclear(text, "an octal number" if octal else "text", "a decimal number", decimal)
    if _OCTAL_2.fullmatch(text):
        raise _unclear(text, "text", "an octal number", "a decimal number")
    if _OTHER_BASE.fullmatch(text):
        raise _unclear(text, "a number", "text", "a decimal number")
    if _UNDERSCORED.fullmatch(text):
        raise _unclear(text, "a number", "text", text.replace("_", ""))
    if _SIXTIES.fullmatch(text):
        raise _unclear(text, "a base-60 number", "text")
    if _NO_ZERO.fullmatch(text):
        raise _unclear(text, "text", "a number", text.replace(".", "0.", 1))
    if _TIME.fullmatch(text):
        raise _unclear(text, "a time", "text")
    if _NOT_FINITE.fullmatch(text):
        raise UnclearScalarError(
            f"{text} is not a number that JSON can represent", f'write a number, or "{text}" with quotes'
        )


def _unclear(text: str, first: str, second: str, instead: str = "") -> UnclearScalarError:
    return UnclearScalarError(
        f"without quotes, YAML 1.1 reads {_cut(text)} as {first}, YAML 1.2 as {second}",
        f'write "{_cut(text)}" with quotes' + (f", or {_cut(instead)}" if instead else ""),
    )


def _cut(text: str) -> str:
    return text if len(text) <= _SHORT else text[:_SHORT] + "…"
