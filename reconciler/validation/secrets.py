"""What in a manifest looks like a secret: a password, a key, a token.

A net for what is committed by mistake, not for what is hidden on purpose. Known shapes are looked for in the
whole text of a file, comments included, since whoever reads the repository reads those too. Where only a name
says that something is secret (`DB_PASSWORD`, `--api-key`), its value has to look random as well.

The library detect-secrets isn't used: its own entropy checks take digests for secrets, so that it rests on a
list of exceptions beside the files, and it gives no columns.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from reconciler.diagnostics import MAX_COUNTED_PER_FILE, Problem, pointer_of, quote
from reconciler.validation.findings import Keys

if TYPE_CHECKING:
    from reconciler.validation.load import Document

_HINT = (
    "take it out, and revoke it if it was committed, as the history keeps it; put the new one into Secret "
    "Manager, and let the trainer read it there by its name"
)
_HINT_BY_NAME = f"{_HINT}; if it is none, give it another name"
_LEAST_LENGTH = 12
_LEAST_ENTROPY = 3.0  # bits a character; English words have about 3.3 in a short text, "xxxxxxxx" has 0
_LEAST_DISTINCT = 8


@dataclass(frozen=True, slots=True)
class _Shape:
    """What one kind of secret looks like.

    Attributes:
        kind: What messages call it.
        signs: Texts of which each such secret has one; looked for first, which is quick.
        pattern: Linear in the text's length: it begins only where a run of its characters begins, or takes
            no more than some hundred of them. Group 1, where there is one, is the secret itself.
    """

    kind: str
    signs: tuple[bytes, ...]
    pattern: str

    def found_in(self, text: str) -> Iterator[re.Match[str]]:
        """Each place of a text that has this shape."""
        return re.finditer(self.pattern, text, re.ASCII)  # compiled when first used, as few ever are


def _shape(kind: str, signs: str, pattern: str) -> _Shape:
    return _Shape(kind, tuple(signs.encode().split()), pattern)


_SHAPES = (
    _shape("a private key", "-----BEGIN", r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"),
    _shape("a Google API key", "AIza", r"(?<!\w)AIza[\w-]{35}(?![\w-])"),
    _shape("a Google access token", "ya29.", r"(?<!\w)ya29\.[\w.-]{20,}"),
    _shape("a Google refresh token", "1//0", r"(?<![\w/])1//0[\w-]{40,}"),
    _shape("a Google client secret", "GOCSPX-", r"(?<!\w)GOCSPX-[\w-]{20,}"),
    _shape(
        "a GitHub token",
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_",
        r"(?<![0-9A-Za-z])(?:gh[pousr]_[0-9A-Za-z]{36,}|github_pat_\w{36,})",
    ),
    _shape("a GitLab token", "gl", r"(?<![0-9A-Za-z])gl(?:pat|dt|rt|ptt|cbt|ft|soat|imt|agent)-[\w.-]{20,}"),
    _shape(
        "a Slack token", "xox xapp-", r"(?<![0-9A-Za-z])(?:xox[a-z](?:\.xox[a-z])?|xapp)-[0-9A-Za-z-]{20,}"
    ),
    _shape("a Slack webhook", "hooks.slack.com", r"hooks\.slack\.com/services/T\w{6,20}/B\w{6,20}/\w{16,}"),
    _shape("an AWS access key", "AKIA ASIA", r"(?<![0-9A-Za-z])A[KS]IA[A-Z2-7]{16}(?![0-9A-Za-z])"),
    _shape("a Hugging Face token", "hf_ api_org_", r"(?<![0-9A-Za-z])(?:hf|api_org)_[0-9A-Za-z]{30,}"),
    _shape("an Anthropic key", "sk-ant-", r"(?<![0-9A-Za-z])sk-ant-[\w-]{20,}"),
    _shape(
        "an OpenAI key",
        "sk-",
        r"(?<![0-9A-Za-z])sk-(?:(?:proj|svcacct|admin|None)-[\w-]{20,}|[0-9A-Za-z]{40,})",
    ),
    _shape("a Weights & Biases key", "wandb_v", r"(?<![0-9A-Za-z])wandb_v[0-9]{1,2}_[\w-]{40,}"),
    _shape("a Databricks token", "dapi", r"(?<![0-9A-Za-z])dapi[0-9a-f]{32}(?![0-9a-z])"),
    _shape("an npm token", "npm_", r"(?<![0-9A-Za-z])npm_[0-9A-Za-z]{36}(?!\w)"),
    _shape("a PyPI token", "pypi-", r"(?<![0-9A-Za-z])pypi-[\w-]{60,}"),
    _shape("a Stripe key", "k_live_", r"(?<![0-9A-Za-z])[rs]k_live_[0-9A-Za-z]{20,}"),
    _shape("a signed token (JWT)", "eyJ", r"(?<![\w.-])eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{20,}"),
    _shape(
        "an Azure storage key",
        "AccountKey= AccessKey=",
        r"(?:Account|SharedAccess)Key=[0-9A-Za-z+/]{40,}={0,2}",
    ),
    _shape("a password in an address", "://", r"://[^\s/:@?#\"'<>]{0,200}:([^\s/@?#\"'<>]{3,200})@"),
)

# Of names such as dbPassword, "the password's file" is none; nor is "how many tokens".
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_NAME = re.compile(
    r"(?:^| )(?:token|secret|secrets|password|passwd|passphrase|pwd|credential|credentials"
    r"|(?:api|access|account|auth|private|secret|signing|encryption) ?key)(?: value| [0-9]+)?$"
)
# The ends of such names in a file's bytes, in small letters: whether it is worth while to look at each value.
_LAST_WORDS = ("token", "secrets?", "passw(?:or)?d", "passphrase", "pwd", "credentials?", "key")
_BEHIND_THEM = "(?:[ _.-]?value|[ _.-]?[0-9]+)?"
_ENDS_OF_NAMES = tuple(
    re.compile(f"{word}{_BEHIND_THEM}(?![a-z]|[_-][a-z])".encode()) for word in _LAST_WORDS
)
_NO_LETTER = "(?:$|[^A-Za-z_-]|[_-](?:$|[^A-Za-z]))"
_LOOK_AROUND = re.compile(r"\(\?<?!(?:\[[^]]*\]|\\w)\)")
_TIMES = re.compile(r"\{(\d+)(?:,\d*)?\}")
_MOST_TIMES = 16
# NAME=VALUE, --name=VALUE, --name VALUE within one text, such as a shell's command; a value may hold others.
_ASSIGNED = re.compile(
    r"""(?<![\w-])(?:--?([A-Za-z][\w-]*)(?:=|\ +)|([A-Za-z_]\w*)=)(?=["']?([^\s"';|]{1,300}))""", re.VERBOSE
)
_FLAG = re.compile(r"--?([A-Za-z][\w-]*)")
_STANDS_FOR = re.compile(
    r"""[$%<{\[*].*                      # $(VAR), ${VAR}, %VAR%, <your token>, {{ token }}, ***
    | [A-Za-z][\w+.-]*://.*              # an address; a password in it is a shape of its own
    | (?:\.{1,2}|~)?/[\w.-]+/[^+=]*      # a file
    | (?:projects|secrets|locations)/.*  # a resource's name
    | (?:sha\d+|md5):.*                  # a digest
    | [0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}
    """,
    re.VERBOSE | re.DOTALL,
)
_PLACEHOLDER = re.compile(
    r"change.?me|replace|placeholder|example|dummy|redacted|your.|insert.|todo|fixme|not.?set|xxx|\*\*\*|\.\.\.",
    re.IGNORECASE,
)
_NO_PASSWORDS = frozenset({"password", "passwd", "pass", "secret", "token", "pwd"})
# Each next word begins with a capital: small letters can be read in one way only, and in linear time.
_WORDS = re.compile(r"(?:[A-Z]?[a-z]{2,}(?:[A-Z][a-z]{2,})*|[A-Z]{2,}|[A-Za-z])?[0-9]{0,4}")


def secrets(data: bytes, documents: list[Document], path: str) -> list[Problem]:
    """A problem for each place of a file that seems to hold a secret; none of them quotes it.

    Args:
        data: The file's bytes; in what isn't UTF-8, places may be a little off.
        documents: Those that could be read.
        path: What the problems call the file.
    """
    shaped = [shape for shape in _SHAPES if any(sign in data for sign in shape.signs)]
    found = list(islice(_shaped(data, shaped, path), MAX_COUNTED_PER_FILE)) if shaped else []
    if _may_name_secrets(data):
        named = (problem for document in documents for problem in _named(document, path))
        found += islice(named, MAX_COUNTED_PER_FILE)
    return found


def may_hold_secrets(data: bytes) -> bool:
    """Whether it is worth while to look for secrets in a file: where this is False, `secrets` finds none.

    The quick way to be done with most files; rests on jsonschema-rs, which is slow to import.
    """
    return _may_be_found()(data.decode("utf-8", "replace"))


@cache
def _may_be_found() -> Callable[[str], bool]:
    """One search for all shapes and names, by the regular expressions of the language Rust.

    They read a text once and in linear time, however many alternatives there are, where Python's try each one
    at each place; jsonschema-rs has them for the keyword "pattern".
    """
    from jsonschema_rs import Draft202012Validator, RegexOptions

    names = f"(?i:{'|'.join(_LAST_WORDS)})(?i:{_BEHIND_THEM}){_NO_LETTER}"
    pattern = "|".join([*(_loose(shape.pattern) for shape in _SHAPES), names])
    return Draft202012Validator({"pattern": pattern}, pattern_options=RegexOptions()).is_valid


def _loose(pattern: str) -> str:
    """A pattern that is found wherever `pattern` is, and elsewhere too: Rust's need few states for it.

    Nothing is looked at around it, and what is there many times is counted up to a few. Blanks are written
    out, as Rust's are also those beyond ASCII; they are in negated sets here, where more would be less.
    """
    pattern = _LOOK_AROUND.sub("", pattern).replace(r"\s", r" \t\n\r\f\x0b")
    return _TIMES.sub(lambda times: f"{{{min(int(times[1]), _MOST_TIMES)},}}", pattern)


def _shaped(data: bytes, shapes: list[_Shape], path: str) -> Iterator[Problem]:
    text = data.decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    for shape in shapes:
        line, counted = 1, 0
        for match in filter(_is_meant, shape.found_in(text)):
            start = match.start()
            line += text.count("\n", counted, start)
            counted = start
            column = start - text.rfind("\n", 0, start)
            yield Problem(path, line, column, "", f"this looks like {shape.kind}", _HINT)


def _is_meant(match: re.Match[str]) -> bool:
    """Whether it isn't what manuals write in a secret's place."""
    if match.re.groups:
        return not (_stands_for_another(match[1]) or match[1].lower() in _NO_PASSWORDS)
    return len(set(match[0])) >= _LEAST_DISTINCT


def _stands_for_another(text: str) -> bool:
    return bool(_STANDS_FOR.fullmatch(text) or _PLACEHOLDER.search(text))


def _may_name_secrets(data: bytes) -> bool:
    lower = data.lower()
    return any(end.search(lower) for end in _ENDS_OF_NAMES)


def _named(document: Document, path: str) -> Iterator[Problem]:
    for keys, name in _values_named((), document.value, set()):
        place = document.position(keys)
        message = f"the value of {quote(name)} looks like a secret"
        yield Problem(path, place.line, place.column, pointer_of(keys), message, _HINT_BY_NAME)


def _values_named(keys: Keys, value: Any, seen: set[int]) -> Iterator[tuple[Keys, str]]:
    """The way to each secret value, and the name that says that it is one.

    What aliases stand for is looked at once: few of them may stand for very much.
    """
    if isinstance(value, str):
        yield from ((keys, name) for name in _assigned(value))
        return
    if not isinstance(value, Mapping | list) or id(value) in seen:
        return
    seen.add(id(value))
    yield from _in_mapping(keys, value) if isinstance(value, Mapping) else _in_list(keys, value)
    for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from _values_named((*keys, key), part, seen)


def _assigned(text: str) -> list[str]:
    """The first name in a text that a secret is assigned to, as `--password=…`."""
    found = (flag or name for flag, name, value in _ASSIGNED.findall(text) if _is_secret(flag or name, value))
    first = list(islice(found, 1))
    return [] if first and _has_shape(text) else first


def _in_mapping(keys: Keys, mapping: Mapping[str, Any]) -> Iterator[tuple[Keys, str]]:
    name = mapping.get("name")
    if isinstance(name, str) and _is_secret(name, mapping.get("value")):
        yield (*keys, "value"), name
    for key, part in mapping.items():
        if _is_secret(key, part):
            yield (*keys, key), key


def _in_list(keys: Keys, items: list[Any]) -> Iterator[tuple[Keys, str]]:
    """`--password` as one argument, and its value as the next."""
    for index, (first, second) in enumerate(pairwise(items), start=1):
        flag = _FLAG.fullmatch(first) if isinstance(first, str) else None
        if flag and _is_secret(flag[1], second):
            yield (*keys, index), flag[1]


def _is_secret(name: str, value: Any) -> bool:
    if not isinstance(value, str) or len(value) < _LEAST_LENGTH:
        return False
    return _says_secret(name) and _is_random(value) and not _has_shape(value)


def _has_shape(text: str) -> bool:
    """Whether a shape gives the secret away, so that it is told already."""
    return any(_is_meant(match) for shape in _SHAPES for match in shape.found_in(text))


def _says_secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(" ".join(_WORD.findall(name)).lower()))


def _is_random(text: str) -> bool:
    """Whether it is neither words, nor what stands for something that is elsewhere."""
    if _stands_for_another(text):
        return False
    parts = re.split(r"[\W_]+", text)
    return _entropy(text) >= _LEAST_ENTROPY and not all(_WORDS.fullmatch(part) for part in parts)


def _entropy(text: str) -> float:
    """Bits a character, by how often each one is there."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())
