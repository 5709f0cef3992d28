"""An evaluator of GitHub Actions expressions, for the operators and functions that the workflows here use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STATUS_FUNCTIONS = ("success", "failure", "always", "cancelled")
_TOKEN = re.compile(r"\s*(\|\||&&|==|!=|[!(),]|'(?:[^']|'')*'|\d+|[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*)")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class Situation:
    """The inputs of expressions.

    Attributes:
        contexts: `github`, `inputs` and others.
        has_failed: True if a needed job has failed.
    """

    contexts: Mapping[str, Any] = field(default_factory=dict)
    has_failed: bool = False

    def value(self, expression: str) -> Any:
        """Return the value of an expression without its braces; a missing property is None."""
        tokens = _TOKEN.findall(expression)
        assert "".join(tokens) == re.sub(r"\s+(?=(?:[^']*'[^']*')*[^']*$)", "", expression), expression
        parser = _Parser(tokens, self)
        value = parser.either()
        assert not parser.tokens, expression
        return value

    def text(self, template: str) -> str:
        """Return a text with the expressions in it replaced by their values."""
        return re.sub(r"\$\{\{(.*?)\}\}", lambda found: _text(self.value(found[1])), template)

    def runs(self, condition: str | None) -> bool:
        """Return whether a job with this `if`, None for none, runs; by default not after a failure."""
        written = (condition or "true").strip().removeprefix("${{").removesuffix("}}").strip()
        if not any(f"{name}(" in written for name in STATUS_FUNCTIONS):
            written = f"success() && ({written})"
        return bool(self.value(written))


class _Parser:
    def __init__(self, tokens: list[str], situation: Situation) -> None:
        self.tokens = tokens
        self._situation = situation

    def either(self) -> Any:
        value = self._both()
        while self._takes("||"):
            other = self._both()
            value = value or other
        return value

    def _both(self) -> Any:
        value = self._comparison()
        while self._takes("&&"):
            other = self._comparison()
            value = value and other
        return value

    def _comparison(self) -> Any:
        value = self._single()
        for sign in ("==", "!="):
            if self._takes(sign):
                return (_folded(value) == _folded(self._single())) is (sign == "==")
        return value

    def _single(self) -> Any:
        token = self.tokens.pop(0)
        if token == "!":
            return not self._single()
        if token == "(":
            value = self.either()
            assert self._takes(")")
            return value
        if token.startswith("'"):
            return token[1:-1].replace("''", "'")
        if token.isdecimal():
            return int(token)
        if self._takes("("):
            return self._called(token)
        return _WORDS[token] if token in _WORDS else self._property(token)

    def _called(self, name: str) -> Any:
        arguments = []
        while not self._takes(")"):
            arguments.append(self.either())
            self._takes(",")
        has_failed = self._situation.has_failed
        match name, arguments:
            case "always", []:
                return True
            case "success", []:
                return not has_failed
            case "failure", []:
                return has_failed
            case "cancelled", []:
                return False
        raise AssertionError(f"{name}() is unknown here")

    def _property(self, path: str) -> Any:
        value: Any = self._situation.contexts
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def _takes(self, token: str) -> bool:
        if self.tokens[:1] != [token]:
            return False
        del self.tokens[0]
        return True


def _folded(value: Any) -> Any:
    # GitHub compares texts without regard to case.
    return value.lower() if isinstance(value, str) else value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
