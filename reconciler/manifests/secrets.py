"""Search for secrets in manifests: passwords, keys, tokens.

It finds secrets committed by mistake, not hidden ones. Known shapes are searched for in the whole text of a
file, comments included, because readers of the repository see those too. A value whose name alone suggests
a secret (`HF_TOKEN`, `--signing-key`) must also look random; behind `--password`, `--token`, `--api-key` or a
variable's `…_PASSWORD` every value counts that isn't a reference or a placeholder. `reconcile.notSecret` has
the pointers of values that are none.

The library detect-secrets isn't used: its entropy checks take digests for secrets, so that it depends on a
list of exceptions beside the files, and it gives no columns.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reconciler.base.diagnostics import (
    MAX_COUNTED_PER_FILE,
    MAX_SECRETIVE,
    Finding,
    Keys,
    Problem,
    pointer_of,
    quote,
)

if TYPE_CHECKING:
    from reconciler.manifests.yaml_document import Document

_HINT = (
    "remove it, and revoke it if it was committed, as the history keeps it; put the new one into Secret "
    "Manager, and have the trainer read it from there"
)
_HINT_BY_NAME = f"{_HINT}; if it isn't a secret, "
_OTHER_NAME = "give it another name"
_MIN_LENGTH = 12
_MIN_ENTROPY = 3.0  # bits a character; English words have about 3.3 in a short text, "xxxxxxxx" has 0
_MIN_DISTINCT = 8


class _Shape(Struct, frozen=True):
    """Form of one kind of secret.

    Attributes:
        kind: Its name in messages.
        sign: The text that each such secret begins with. Searching for plain text is many times faster than
            for a pattern.
        rest: The pattern behind the sign. For a search in linear time, it is limited to some hundred
            characters, or no second match can begin inside its run of characters. Group 1, if it exists, is
            the secret.
        not_behind: The class of characters that can't precede the sign; "" for none.
    """

    kind: str
    sign: str
    rest: str
    not_behind: str = ""

    @property
    def pattern(self) -> str:
        """The whole pattern."""
        sign = re.escape(self.sign)
        return sign + (f"(?<!{self.not_behind}{sign})" if self.not_behind else "") + self.rest

    def found_in(self, text: str) -> Iterator[re.Match[str]]:
        """Yield each match in a text."""
        # Compiled when first used, as few ever are.
        return re.finditer(self.pattern, text, re.ASCII) if self.sign in text else iter(())


_ALNUM = "[0-9A-Za-z]"
_SHAPES = (
    _Shape("a private key", "-----BEGIN", r" [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"),
    _Shape("a Google API key", "AIza", r"[\w-]{35}(?![\w-])", r"\w"),
    _Shape("a Google access token", "ya29.", r"[\w.-]{20,}", r"\w"),
    _Shape("a Google refresh token", "1//0", r"[\w-]{40,}", r"[\w/]"),
    _Shape("a Google client secret", "GOCSPX-", r"[\w-]{20,}", r"\w"),
    _Shape("a GitHub token", "gh", r"[pousr]_[0-9A-Za-z]{36,}", _ALNUM),
    _Shape("a GitHub token", "github_pat_", r"\w{36,}", _ALNUM),
    _Shape("a GitLab token", "gl", r"(?:pat|dt|rt|ptt|cbt|ft|soat|imt|agent)-[\w.-]{20,}", _ALNUM),
    _Shape("a Slack token", "xox", r"[a-z](?:\.xox[a-z])?-[0-9A-Za-z-]{20,}", _ALNUM),
    _Shape("a Slack token", "xapp-", r"[0-9A-Za-z-]{20,}", _ALNUM),
    _Shape("a Slack webhook", "hooks.slack.com", r"/services/T\w{6,20}/B\w{6,20}/\w{16,}"),
    _Shape("an AWS access key", "AKIA", r"[A-Z2-7]{16}(?![0-9A-Za-z])", _ALNUM),
    _Shape("an AWS access key", "ASIA", r"[A-Z2-7]{16}(?![0-9A-Za-z])", _ALNUM),
    _Shape("a Hugging Face token", "hf_", r"[0-9A-Za-z]{30,}", _ALNUM),
    _Shape("a Hugging Face token", "api_org_", r"[0-9A-Za-z]{30,}", _ALNUM),
    _Shape("an Anthropic key", "sk-ant-", r"[\w-]{20,}", _ALNUM),
    _Shape("an OpenAI key", "sk-", r"(?:(?:proj|svcacct|admin|None)-[\w-]{20,}|[0-9A-Za-z]{40,})", _ALNUM),
    _Shape("a Weights & Biases key", "wandb_v", r"[0-9]{1,2}_[\w-]{40,}", _ALNUM),
    _Shape("a Databricks token", "dapi", r"[0-9a-f]{32}(?![0-9a-z])", _ALNUM),
    _Shape("an npm token", "npm_", r"[0-9A-Za-z]{36}(?!\w)", _ALNUM),
    _Shape("a PyPI token", "pypi-", r"[\w-]{60,}", _ALNUM),
    _Shape("a Stripe key", "rk_live_", r"[0-9A-Za-z]{20,}", _ALNUM),
    _Shape("a Stripe key", "sk_live_", r"[0-9A-Za-z]{20,}", _ALNUM),
    _Shape("a signed token (JWT)", "eyJ", r"[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{20,}", r"[\w.-]"),
    _Shape("an Azure storage key", "AccountKey=", r"[0-9A-Za-z+/]{40,}={0,2}"),
    _Shape("an Azure storage key", "SharedAccessKey=", r"[0-9A-Za-z+/]{40,}={0,2}"),
    _Shape("a password in an address", "://", r"[^\s/:@?#\"'<>]{0,200}:([^\s/@?#\"'<>]{3,200})@"),
)

# Names that end with such a word, as dbPassword does; not passwordFile and not maxTokens.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_NAME = re.compile(
    r"(?:^| )(?:token|secret|secrets|password|passwd|passphrase|pwd|credential|credentials"
    r"|(?:api|access|account|auth|private|secret|signing|encryption) ?key)(?: value| [0-9]+)?$"
)
# Names of arguments and variables whose values count as secrets, whatever they look like.
_PASSWORD = re.compile(r"(?:^| )(?:password|passwd|passphrase|pwd)$")
_FLAG_NAME = re.compile(rf"{_PASSWORD.pattern}|^(?:(?:access|api|auth) )?token$|(?:^| )api ?key$")
_NO_SECRETS = frozenset({"", "true", "false", "yes", "no", "none", "null", "prompt", "ask"})
# Ends of such names in a file's text. Most files have none and need no further search.
_LAST_WORDS = "token|secrets?|passw(?:or)?d|passphrase|pwd|credentials?|key"
_SUFFIX = "(?:[ _.-]?value|[ _.-]?[0-9]+)?"
_NO_LETTER = "(?:$|[^A-Za-z_-]|[_-](?:$|[^A-Za-z]))"
_LOOK_AHEAD = re.compile(r"\(\?!(?:\[[^]]*\]|\\w)\)")
_TIMES = re.compile(r"\{(\d+)(?:,\d*)?\}")
_MAX_TIMES = 16
# Each secret name contains one of these.
_STEM = "|".join(
    "".join(f"[{letter}{letter.upper()}]" for letter in stem)
    for stem in ("token", "secret", "passw", "passphrase", "pwd", "credential", "key")
)
_STEM_PATTERN = re.compile(_STEM)
_MAX_ASSIGNED = 300
# NAME=VALUE, --name=VALUE, --name VALUE within one text, such as a shell's command; a value may hold others.
_ASSIGNED = re.compile(
    rf"""(?<![\w-])(?=[\w-]*?(?:{_STEM}))(?:--?([A-Za-z][\w-]*)(?:=|\ +)|([A-Za-z_]\w*)=)
    (?=["']?([^\s"';|]{{{_MIN_LENGTH},{_MAX_ASSIGNED}}}))""",
    re.VERBOSE,
)
# The same for display: the beginning, with a name of any length.
_ASSIGNMENT = re.compile(r"""(?<![\w-])(?:--?([A-Za-z][\w-]*)(?:=|\ +)|([A-Za-z_]\w*)=)["']?""", re.VERBOSE)
_VALUE = re.compile(r"""[^\s"';|-][^\s"';|]*""")
_HIDDEN = "***"
"""Stands for a secret where a value is shown."""
_FLAG = re.compile(r"--?([A-Za-z][\w-]*)")
_FLAG_WITH_VALUE = re.compile(rf"{_FLAG.pattern}=(.*)", re.DOTALL)
_REFERENCE = re.compile(
    r"""[$%<{\[*].*                      # $(VAR), ${VAR}, %VAR%, <your token>, {{ token }}, ***
    | [A-Za-z][\w+.-]*://.*              # an address; a password in it is a shape of its own
    | (?:\.{1,2}|~)?/[\w.-]+/[^+=]*      # a file
    | (?:projects|secrets|locations)/.*  # a resource's name
    | (?:sha\d+|md5):.*                  # a digest
    | [0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}
    """,
    re.VERBOSE | re.DOTALL,
)
# In small letters. Each begins with plain text: searching for them is many times faster than alternatives.
_PLACEHOLDERS = (
    *("change.?me", "replace", "placeholder", "example", "dummy", "redacted", "your.", "insert.", "todo"),
    *("fixme", "not.?set", "xxx", r"\*\*\*", r"\.\.\."),
)
_NOT_PASSWORDS = frozenset({"password", "passwd", "pass", "secret", "token", "pwd"})
# Each further word begins with a capital: a text can be divided in one way only, in linear time.
_PARTS = re.compile(r"[^\W_]+")
_WORDS = re.compile(r"(?:[A-Z]?[a-z]{2,}(?:[A-Z][a-z]{2,})*|[A-Z]{2,}|[A-Za-z])?[0-9]{0,4}")


def secrets(data: bytes, documents: list[Document], path: str) -> list[Problem]:
    """Return a problem for each place of a file that seems to contain a secret; no problem quotes it.

    `documents` are the readable ones. Places may be inexact in a file that isn't UTF-8.
    """
    if not may_hold_secrets(data):
        return []
    values = [document.value for document in documents]
    problems = list(islice(_find_shapes(data, path, _exempt_texts(values)), MAX_COUNTED_PER_FILE))
    for number, keys, name in islice(_find_named(values), MAX_COUNTED_PER_FILE):
        position = documents[number].position(keys)
        is_manifest = isinstance(values[number], dict) and "apiVersion" in values[number]
        exempted = f'add "{pointer_of(keys)}" to the list "notSecret" under "reconcile"'
        hint = _HINT_BY_NAME + (exempted if is_manifest else _OTHER_NAME)
        message = f"the value of {quote(name)} looks like a secret"
        if not name:
            message, hint = "the file has too many values whose names look like secrets", "split it"
        problems.append(Problem(path, position.line, position.column, pointer_of(keys), message, hint))
    return problems


def has_secrets(data: bytes, values: Iterable[Any]) -> bool:
    """Return True if `secrets` would find one in a file with these documents' values."""
    if not may_hold_secrets(data):
        return False
    values = [*values]
    return any(_find_shapes(data, "", _exempt_texts(values))) or any(_find_named(values))


def exemption_findings(manifest: Any) -> Iterator[Finding]:
    """Yield each pointer of `reconcile.notSecret` that names no value that looks like a secret."""
    pointers = _exemptions(manifest)
    named = {pointer_of(keys) for _, keys, _ in _NamedSecrets().find([manifest])} if pointers else set()
    for index, pointer in enumerate(pointers):
        value = value_at(manifest, pointer)
        if pointer in named or (isinstance(value, str) and _has_shape(value)):
            continue
        is_there = value is not None
        message = f"the value at {quote(pointer)} doesn't look like a secret"
        message = message if is_there else f"there is no value at {quote(pointer)}"
        hint = "remove it" if is_there else "correct the pointer, or remove it"
        yield Finding(("reconcile", "notSecret", index), message, hint)


def _exemptions(value: Any) -> list[str]:
    """Return the pointers in a document's `reconcile.notSecret`."""
    policy = value.get("reconcile") if isinstance(value, dict) else None
    pointers = policy.get("notSecret") if isinstance(policy, dict) else None
    return [one for one in pointers if isinstance(one, str)] if isinstance(pointers, list) else []


def _exempt_texts(values: Iterable[Any]) -> list[str]:
    exempt_values = (value_at(value, pointer) for value in values for pointer in _exemptions(value))
    return [text for text in exempt_values if isinstance(text, str)]


def _find_named(values: Sequence[Any]) -> Iterator[tuple[int, Keys, str]]:
    exempt = [set(_exemptions(value)) for value in values]
    for number, keys, name in _NamedSecrets().find(values):
        if not exempt[number] or pointer_of(keys) not in exempt[number]:
            yield number, keys, name


def value_at(value: Any, pointer: str) -> Any:
    """Return the value at a JSON pointer; None if there is none."""
    for name in pointer.split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isascii() and name.isdecimal() and int(name[:9]) < len(value):
            value = value[int(name[:9])]
        else:
            return None
    return value if pointer.startswith("/") else None


def without_secrets(value: Any, name: str = "", exempt: Collection[str] = ()) -> Any:
    """Return a value of JSON for display, with `***` for every text that seems to be a secret.

    This hides more than `secrets` reports: a value under the name of a secret needn't look random.

    Args:
        name: The key of the value, or the flag before it.
        exempt: Whole texts that are no secrets.
    """
    if isinstance(value, Mapping):
        variable_name = value.get("name")
        variable = variable_name if isinstance(variable_name, str) else ""
        return {
            key: without_secrets(part, (key == "value" and variable) or key, exempt)
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        flags = ["", *(item if isinstance(item, str) else "" for item in value)]
        return [without_secrets(item, _flag(flag), exempt) for flag, item in zip(flags, value, strict=False)]
    if not isinstance(value, str) or value in exempt:
        return value
    if _is_secret_name(name) and not _is_placeholder(value) and not value.startswith("-"):
        return _HIDDEN
    for shape in _SHAPES:
        for match in list(filter(_is_genuine, shape.found_in(value))):
            # A private key goes on behind its first line, which is all that the shape describes.
            whole = value[match.start() :] if shape.sign == "-----BEGIN" else match[match.re.groups]
            value = value.replace(whole, _HIDDEN) if whole else value
    return _without_assigned(value)


def _flag(text: str) -> str:
    """Return the name of a flag such as `--password`; "" for any other text."""
    match = _FLAG.fullmatch(text)
    return match[1] if match else ""


def _without_assigned(text: str) -> str:
    """Return a text with `***` for each value of an assignment, such as `--password=…`, to a secret name."""
    parts, end = [], 0
    for match in _ASSIGNMENT.finditer(text):
        if match.start() < end or not _is_secret_name(match[1] or match[2]):
            continue
        value = _VALUE.match(text, match.end())
        if value and not _is_placeholder(value[0]):
            parts += [text[end : match.end()], _HIDDEN]
            end = value.end()
    return "".join([*parts, text[end:]])


def may_hold_secrets(data: bytes) -> bool:
    """Return False if `secrets` would certainly find none: a fast check that settles most files.

    It depends on jsonschema-rs, which is slow to import.
    """
    return _fast_search()(data.decode("utf-8", "replace"))


@cache
def _fast_search() -> Callable[[str], bool]:
    """Return a search for all shapes and names at once, by Rust's regular expressions.

    They take linear time for any number of alternatives, while Python's try each alternative at each place.
    jsonschema-rs exposes them through the keyword "pattern".
    """
    from jsonschema_rs import Draft202012Validator, RegexOptions

    names = f"(?i:{_LAST_WORDS})(?i:{_SUFFIX}){_NO_LETTER}"
    shapes = (re.escape(shape.sign) + _loose(shape.rest) for shape in _SHAPES)
    pattern = "|".join([*shapes, names])
    return Draft202012Validator({"pattern": pattern}, pattern_options=RegexOptions()).is_valid


def _loose(pattern: str) -> str:
    """Return a pattern with few states for Rust that matches wherever `pattern` does, and elsewhere too."""
    # Without lookaheads, and with small repetition counts. Rust's `\s` includes blanks beyond ASCII, which
    # would match less in the negated sets here: hence ASCII's, written out.
    pattern = _LOOK_AHEAD.sub("", pattern).replace(r"\s", r" \t\n\r\f\x0b")
    return _TIMES.sub(lambda times: f"{{{min(int(times[1]), _MAX_TIMES)},}}", pattern)


def _find_shapes(data: bytes, path: str, exempt: Iterable[str] = ()) -> Iterator[Problem]:
    text = data.decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    for shape in _SHAPES:
        line, counted = 1, 0
        for match in filter(_is_genuine, shape.found_in(text)):
            if any(match[0] in one for one in exempt):
                continue
            start = match.start()
            line += text.count("\n", counted, start)
            counted = start
            column = start - text.rfind("\n", 0, start)
            yield Problem(path, line, column, "", f"this looks like {shape.kind}", _HINT)


def _is_genuine(match: re.Match[str]) -> bool:
    """Return False for the placeholders of manuals."""
    if match.re.groups:
        return not (_is_placeholder(match[1]) or match[1].lower() in _NOT_PASSWORDS)
    return len(set(match[0])) >= _MIN_DISTINCT


def _is_placeholder(text: str) -> bool:
    if _REFERENCE.fullmatch(text):
        return True
    lower = text.lower()
    # Compiled when first used, as few files have a text that may be a secret.
    return any(re.search(placeholder, lower) for placeholder in _PLACEHOLDERS)


class _TooMuchError(Exception):
    """A file has more values with secret names than the search covers."""


_SEARCHED = {str, list, dict}


class _NamedSecrets:
    """Search of a file's values for secrets that only their names reveal.

    Each value costs its length, at least `_MAX_ASSIGNED`, from a fixed budget, which bounds the work.
    """

    def __init__(self) -> None:
        self._left = MAX_SECRETIVE

    def find(self, values: Iterable[Any]) -> Iterator[tuple[int, Keys, str]]:
        """Yield the document's number, the path and the name of each secret; the name "" at the budget's end.

        `values` are those of the file's documents.
        """
        for number, value in enumerate(values):
            try:
                yield from ((number, keys, name) for keys, name in self._values(value))
            except _TooMuchError:
                yield number, (), ""
                return

    def _values(self, value: Any) -> Iterator[tuple[Keys, str]]:
        """Yield the path to each secret value, and its name."""
        # A list around the value, as each part is checked together with its collection. A collection with
        # several aliases is checked once: a few aliases can repeat a large number of values.
        seen: set[int] = set()
        # Collections, each with its path as a chain of pairs: most paths are never needed.
        todo: list[tuple[Any, Any]] = [(None, [value])]
        while todo:
            path, around = todo.pop()
            below = []
            for key, part in enumerate(around) if around.__class__ is list else around.items():
                kind = part.__class__
                if kind is list or kind is dict:
                    # A collection of numbers needs no search.
                    kinds = {*map(type, part if kind is list else part.values())}
                    if not kinds.isdisjoint(_SEARCHED) and id(part) not in seen:
                        seen.add(id(part))
                        below.append(((path, key), part))
            todo += reversed(below)
            yield from ((_keys(path, key), name) for key, name in self._in_collection(around))

    def _in_collection(self, around: dict[str, Any] | list[Any]) -> Iterator[tuple[str | int, str]]:
        """Yield the key of each text that is a secret or contains one, and its name."""
        by_key = self._in_mapping(around) if isinstance(around, dict) else self._in_list(around)
        secret_keys: set[str | int] = set()
        for key, name in by_key:
            if key not in secret_keys:
                secret_keys.add(key)
                yield key, name
        for key, part in around.items() if isinstance(around, dict) else enumerate(around):
            is_text = part.__class__ is str and len(part) > _MIN_LENGTH and ("=" in part or "-" in part)
            if is_text and key not in secret_keys and (name := self._assigned(part)):
                yield key, name

    def _assigned(self, text: str) -> str:
        """Return the first name in a text that a secret is assigned to, as `--password=…`; "" for none."""
        start = 0
        while match := _ASSIGNED.search(text, start):
            name, value = match[1] or match[2], match[3]
            if self._is_secret(name, value):
                return "" if _has_shape(text) else name
            # Whole words contain no secret, but a value cut off at the limit may.
            is_done = len(value) < _MAX_ASSIGNED and _is_words(value)
            start = match.end(3) if is_done else match.end()
        return ""

    def _in_mapping(self, mapping: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        name = mapping.get("name")
        value = mapping.get("value")
        if isinstance(name, str) and (self._is_secret(name, value) or self._is_plain(_PASSWORD, name, value)):
            yield "value", name
        for key, part in mapping.items():
            if self._is_secret(key, part):
                yield key, key

    def _in_list(self, items: list[Any]) -> Iterator[tuple[int, str]]:
        """Yield the index of each argument that is a secret by its own flag or by the flag before it."""
        for index, item in enumerate(items):
            with_value = _FLAG_WITH_VALUE.fullmatch(item) if item.__class__ is str else None
            if with_value and self._is_plain(_FLAG_NAME, with_value[1], with_value[2]):
                yield index, with_value[1]
        for index, (first, second) in enumerate(pairwise(items), start=1):
            if second.__class__ is not str or first.__class__ is not str or first[:1] != "-":
                continue
            flag = _flag(first)
            is_plain = flag and second[:1] != "-" and self._is_plain(_FLAG_NAME, flag, second)
            if flag and (is_plain or self._is_secret(flag, second)):
                yield index, flag

    def _pay(self, value: str) -> None:
        self._left -= max(len(value), _MAX_ASSIGNED)
        if self._left < 0:
            raise _TooMuchError

    def _is_plain(self, pattern: re.Pattern[str], name: str, value: Any) -> bool:
        """Return True if a text under such a name is neither a placeholder nor a reference."""
        if value.__class__ is not str or value.lower() in _NO_SECRETS or not _is_secret_name(name, pattern):
            return False
        self._pay(value)
        return not _is_placeholder(value) and not _has_shape(value)

    def _is_secret(self, name: str, value: Any) -> bool:
        if value.__class__ is not str or len(value) < _MIN_LENGTH or not _STEM_PATTERN.search(name):
            return False
        self._pay(value)
        return _is_secret_name(name) and _is_random(value) and not _has_shape(value)


def _keys(path: Any, last: str | int) -> Keys:
    """Return the path from the document, without the index in the list around it."""
    keys: list[str | int] = [last]
    while path:
        path, key = path
        keys.append(key)
    return tuple(reversed(keys[:-1]))


def _has_shape(text: str) -> bool:
    """Return True if a shape reveals the secret: `_find_shapes` reports it then."""
    return any(_is_genuine(match) for shape in _SHAPES for match in shape.found_in(text))


def _is_secret_name(name: str, pattern: re.Pattern[str] = _SECRET_NAME) -> bool:
    # Most names contain no stem, which is faster to see than their words.
    return bool(_STEM_PATTERN.search(name) and pattern.search(" ".join(_WORD.findall(name)).lower()))


def _is_random(text: str) -> bool:
    """Return True if a text is neither words nor a placeholder."""
    if _is_placeholder(text) or _is_words(text):
        return False
    entropy = -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())
    return entropy >= _MIN_ENTROPY


def _is_words(text: str) -> bool:
    return all(map(_WORDS.fullmatch, _PARTS.findall(text)))
