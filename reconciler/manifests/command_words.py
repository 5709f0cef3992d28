"""The words of a container's command and arguments: no shell reads them, so each item is one word.

The API passes them on: "The command to be invoked when the container is started" and "The arguments to be
passed when starting the container" (`ContainerSpec.command` and `args`); of values of `env` it says that
`$(NAME)` is replaced (`EnvVar.value`). What only a shell would do with a word is a warning.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from reconciler.base.diagnostics import Finding, Keys, quote
from reconciler.base.warning_kinds import WarningKind
from reconciler.manifests.written_forms import flow, flow_word

COMMANDS = frozenset({"command", "containerCommand"})
WORD_LISTS = COMMANDS | {"args", "containerArgs"}
"""The fields that are lists of words."""

_MOST_SHOWN = 1_000  # characters of an exact remedy
# Words without any of these, behind a program, need no closer look.
_SUSPECT = re.compile(r"""[\s$"'\[&|;<>]""")
_SHELL = re.compile(r"(?:.*/)?(?:ba|da|z|k|a)?sh")
_RUNS_TEXT = re.compile(r"-[a-z]*c")
_ARGUMENTS_OF_SCRIPT = re.compile(r"\$\{?[@*0-9]")
_OPERATOR = re.compile(r"&&|\|\||;|\||>>?|<|&|2>&1")
_SHELL_TEXT = re.compile(r"(?:^|\s)(?:&&|\|\||\||>>?|<|2>&1)(?:\s|$)|;\s|;$|&&|\|\||`|\$\([^)]{0,200}\s")
# `"$ref"` in JSON and `^a$` in a pattern are no variables; Google's samples have `$(NAME)` in arguments.
_VARIABLE = re.compile(
    r"(?<![$\\])\$\{?([A-Z_][A-Z0-9_]*)\b|(?<![$\\])\$\{([A-Za-z_]\w*)\}|(?:^|[=/:,])\$([A-Za-z_]\w*)"
)
_VALUE_VARIABLE = re.compile(r"(?<![$\\])\$(?:\{([A-Za-z_]\w*)\}|([A-Z_][A-Z0-9_]*)\b)")
_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_FILE = re.compile(r"\.(?:bash|bin|elf|exe|jar|out|pl|py|R|rb|run|sh)")
_SCRIPT_PATH = re.compile(r".*/.*\.py")  # may be executable
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_NOTED_FIRST = re.compile(
    rf"-.*|{_MODULE.pattern}|[^/=]+\.(?:py|sh)|{_ASSIGNMENT.pattern}|{_SHELL.pattern}", re.DOTALL
)
_INTERPRETERS = re.compile(r"(?:\S*/)?(?:python[0-9.]*|(?:ba|da|z)?sh|torchrun|accelerate|deepspeed)\s")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*(?=[\s=]|$)")
_FLAG_INSIDE = re.compile(r"\s--[A-Za-z]")
_TAKES_ARGUMENTS = re.compile(r"--?[\w.-]*(?:args?|arguments?|flags?|opts?|options?|command|cmd)")
_HOLDS_ARGUMENTS = re.compile(rf"(?:{_TAKES_ARGUMENTS.pattern}=|--?[\w.-]+=[\"'-])")
_QUOTED = re.compile(r"""(?P<flag>--?[A-Za-z][\w.-]*=)?(?P<mark>["'])(?P<text>.*)(?P=mark)""", re.DOTALL)
_LIST_START = re.compile(r"\s*\[\s*[\"']")


class _Word(NamedTuple):
    """One word: its field, its index there from 0, and its text."""

    field: str
    at: int
    text: str


def word_findings(
    keys: Keys, holder: Mapping[str, Any], command: str = "command", args: str = "args"
) -> Iterable[Finding]:
    """Return warnings of words that only a shell would understand.

    Args:
        keys: The path of `holder`.
        holder: What has the two lists; values that aren't lists of text are skipped.
        command, args: The names of the two lists; "" for a holder without a command.
    """
    program, arguments = holder.get(command) or [], holder.get(args) or []
    if program.__class__ is not list or arguments.__class__ is not list:
        return ()
    try:
        text = "".join(program + arguments)
    except TypeError:
        return ()
    # Nearly all manifests end here.
    if not _SUSPECT.search(text) and not (program and _NOTED_FIRST.fullmatch(program[0])):
        return ()
    lists = {command: program, args: arguments}
    words = [_Word(name, at, text) for name, texts in lists.items() for at, text in enumerate(texts)]
    return (
        Finding((*keys, *finding.keys), finding.message, finding.hint, kind=WarningKind.COMMAND_WORDS)
        for finding in _Words(words, command, args).findings()
    )


def variable_findings(keys: Keys, env: Sequence[Any]) -> Iterator[Finding]:
    """Yield a warning for each variable of `env` whose value names another one as a shell would.

    `EnvVar.value`: "Variables that reference a $(VAR_NAME) are expanded".
    """
    for index, variable in enumerate(env):
        value = variable.get("value") if isinstance(variable, dict) else None
        if isinstance(value, str) and "$" in value and _VALUE_VARIABLE.search(value):
            message = f"only $(NAME) is replaced in a value, so the program gets the text {quote(value)}"
            right = _VALUE_VARIABLE.sub(lambda match: f"$({match[1] or match[2]})", value)
            hint = f"write value: {flow_word(right)}" if _is_shown([right]) else "write $(NAME)"
            yield Finding((*keys, index, "value"), message, hint, kind=WarningKind.VARIABLE_VALUE)


def list_hint(name: str, text: str) -> str:
    """Return what to write for a text in place of the list of words under `name`, one of `WORD_LISTS`."""
    words = _json_words([text]) or split(text)
    if name in COMMANDS and _script_at(words) is None:
        is_for_shell = _SHELL_TEXT.search(text) or _VARIABLE.search(text)
        words = ["bash", "-c", text.strip()] if is_for_shell else with_program(words)
    return _written(name, words)


def mapping_hint(name: str, arguments: Mapping[str, Any]) -> str:
    """Return what to write for a mapping in place of the list of words under `name`; "" if it is unclear."""
    if any(isinstance(value, dict | list) for value in arguments.values()):
        return ""
    return _written(name, [argument_of(flag, value) for flag, value in arguments.items()])


def argument_of(flag: str, value: Any) -> str:
    """Return the argument that a key with a value stands for, such as "--epochs=5"."""
    name = flag if flag.startswith("-") else f"--{flag}"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return name if value is None else f"{name}={text}"


def split(text: str) -> list[str]:
    """Return the words of a text as a shell would split it; at its blanks if long, or with an open quote."""
    try:
        return shlex.split(text) if len(text) <= _MOST_SHOWN else text.split()
    except ValueError:
        return text.split()


def with_program(words: Sequence[str]) -> list[str]:
    """Return the words of a command behind the program that runs them; as they are if they name one."""
    first = words[0] if words else ""
    if first in ("-m", "-c") or first.endswith(".py"):
        return ["python", *words]
    if first.endswith(".sh") and "/" not in first:
        return ["bash", *words]
    if _ASSIGNMENT.fullmatch(first):
        return ["env", *words]
    if _MODULE.fullmatch(first) and not _FILE.search(first[first.rindex(".") :]):
        return ["python", "-m", *words]
    return list(words)


def _is_shown(words: Sequence[str]) -> bool:
    return sum(map(len, words)) <= _MOST_SHOWN and all(word.isprintable() for word in words)


def _written(name: str, words: Sequence[str]) -> str:
    return (
        f"write {name}: {flow(list(words))}" if words and _is_shown(words) else "write each word as an item"
    )


def _script_at(words: Sequence[str]) -> int | None:
    """Return the index of the text that a shell among the words runs by its option -c; None without one."""
    for start, word in enumerate(words):
        if not _SHELL.fullmatch(word):
            continue
        at = start + 1
        while at < len(words) and words[at].startswith("-"):
            if _RUNS_TEXT.fullmatch(words[at]):
                return at + 1 if at + 1 < len(words) else None
            at += 2 if words[at].endswith("o") else 1  # `-o pipefail`
        return None
    return None


def _json_words(parts: Sequence[str]) -> list[str]:
    """Return the words of a JSON list of texts that was cut into parts; [] for none."""
    for between in (",", " "):
        text = between.join(parts)
        for form in (text, text.replace("'", '"')):
            try:
                words: list[str | int | float] = msgspec.json.decode(form, type=list[str | int | float])
            except (msgspec.DecodeError, UnicodeEncodeError):
                continue
            return [str(word) for word in words]
    return []


def _shell_text(words: Sequence[str]) -> str:
    """Return words as a shell's text that keeps operators and variables.

    Flags stay as they are, because a shell splits `--epochs 5` and takes the quotes off `--rate="0.1"`.
    """
    is_plain = re.compile(r"""[^\s"']+|--?[A-Za-z][\w.-]*(?:\s[^"']*|=["'].*["'])""")
    return " ".join(word if is_plain.fullmatch(word) else shlex.quote(word) for word in words)


class _Words:
    """The words of one container, and what they don't do; paths begin at its fields."""

    def __init__(self, words: Sequence[_Word], command: str, args: str) -> None:
        self._words = words
        self._texts = [word.text for word in words]
        self._command, self._args = command, args
        self._has_command = words[0].field == command
        self._script = _script_at(self._texts)
        self._told: set[int] = set()

    def findings(self) -> Iterator[Finding]:
        yield from self._first()
        yield from self._cut_list()
        if self._script is not None:
            yield from self._behind_script(self._script)
        else:
            yield from self._shell_words()
        for at, word in enumerate(self._texts[: self._script]):
            if at not in self._told and not self._is_code(at):
                yield from self._quoted(at, word) or self._blanks(at, word)

    def _finding(self, at: int, message: str, hint: str) -> Finding:
        self._told.add(at)
        word = self._words[at]
        return Finding((word.field, word.at), message, hint)

    def _is_code(self, at: int) -> bool:
        """Return True for the text that an interpreter runs by its option -c."""
        return at > 0 and bool(_RUNS_TEXT.fullmatch(self._texts[at - 1]))

    def _first(self) -> Iterator[Finding]:
        """Yield what keeps the first word from being a program."""
        first, *rest = self._texts
        commands = [word.text for word in self._words if word.field == self._command]
        is_text = bool(re.search(r"\s", first.strip()))
        message = f"{quote(first)} is one word, and no program has that name"
        if not self._has_command:
            if self._command and is_text and _INTERPRETERS.match(first):
                if _SHELL_TEXT.search(first):
                    hint = f"{_written(self._command, ['bash', '-c', first, *rest])}\nin its place"
                else:
                    hint = _written(self._args, [*split(first), *rest])
                yield self._finding(0, message, hint)
        elif _SHELL_TEXT.search(first):
            text = " ".join([first, _shell_text(rest)]).strip()
            yield self._finding(0, message, self._in_one(["bash", "-c", text]))
        elif is_text:
            right = with_program([*split(first), *commands[1:]])
            yield self._finding(0, message, _written(self._command, right))
        elif first.startswith("-") and first not in ("-m", "-c"):
            hint = f'{_written(self._args, self._texts)}\nand remove "{self._command}"'
            yield self._finding(0, f"{quote(first)} is an argument, and no program", hint)
        elif not _SCRIPT_PATH.fullmatch(first) and (right := with_program(commands)) != commands:
            message = f"{quote(first)} is not a program that a container finds"
            yield self._finding(0, message, _written(self._command, right))

    def _cut_list(self) -> Iterator[Finding]:
        """Yield the first JSON list of each field that is no list of words, but text."""
        for field in (self._command, self._args):
            places = [at for at, word in enumerate(self._words) if word.field == field]
            starts = (at for at in places if _LIST_START.match(self._texts[at]))
            if (start := next(starts, None)) is None:
                continue
            ends = (at for at in places if at >= start and self._texts[at].rstrip().endswith("]"))
            end = next(ends, start)
            is_value = start == end and (len(places) > 1 or start > places[0])
            words = [] if is_value else _json_words(self._texts[start : end + 1])
            if words:
                what = "a JSON list is one word here" if start == end else "a JSON list was cut at its commas"
                message = f"{what}, so the program gets the text {quote(self._texts[start])}"
                right = [*(self._texts[places[0] : start]), *words, *self._texts[end + 1 : places[-1] + 1]]
                self._told.update(range(start, end + 1))
                yield self._finding(start, message, _written(field, right))

    def _behind_script(self, script: int) -> Iterator[Finding]:
        """Yield the first word that a shell's script gets and doesn't use."""
        text, following = self._texts[script], self._texts[script + 1 :]
        if following and not _ARGUMENTS_OF_SCRIPT.search(text):
            shell = f"{self._texts[script - 2]} {self._texts[script - 1]}"
            message = f"{quote(shell)} runs only the word behind it, so {quote(following[0])} has no effect"
            right = [*self._texts[:script], f"{text} {_shell_text(following)}"]
            hint = self._in_one(right) if self._has_command else _written(self._args, right)
            yield self._finding(script + 1, message, hint)

    def _shell_words(self) -> Iterator[Finding]:
        """Yield the first word of each field that only a shell would replace or obey."""
        told: set[str] = set()
        for at, word in enumerate(self._texts):
            field = self._words[at].field
            if field in told or at in self._told or self._is_code(at):
                continue
            is_value = at > 0 and bool(re.fullmatch(r"--?[A-Za-z][\w-]*", self._texts[at - 1]))
            is_operator = bool(_OPERATOR.fullmatch(word)) and not is_value
            variable = _VARIABLE.search(word)
            if is_operator or variable:
                told.add(field)
                message = f'no shell reads "{field}", so the program gets the text {quote(word)}'
                name = next(filter(None, variable.groups())) if variable else ""
                yield self._finding(at, message, self._shell_hint(name))

    def _shell_hint(self, variable: str) -> str:
        read = f'read the variable in the trainer: os.environ["{variable}"]' if variable else ""
        if not self._command:
            return read or "remove it: there is no shell, and the module gets every word"
        if not self._has_command:
            run = f"let a shell run the program: {self._command}: [bash, -c, …]"
            return f"{read}, or {run}" if read else run
        shell = self._in_one(["bash", "-c", _shell_text(with_program(self._texts))])
        return f"{shell}, or {read}" if read else shell

    def _in_one(self, command: Sequence[str]) -> str:
        """Return the hint to write a command in place of both lists."""
        has_args = self._words[-1].field == self._args
        return _written(self._command, command) + (f'\nand remove "{self._args}"' if has_args else "")

    def _quoted(self, at: int, word: str) -> list[Finding]:
        """Return the warning of quotes that a shell would have taken off."""
        match = _QUOTED.fullmatch(word)
        if (
            not match
            or not (match["flag"] or match["text"].startswith("-"))
            or match["mark"] in match["text"]
        ):
            return []
        message = f"no shell takes the quotes off {quote(word)}, so the program gets them"
        right = f"{match['flag'] or ''}{match['text']}"
        hint = f"write {flow_word(right)}" if _is_shown([right]) else "remove the quotes"
        return [self._finding(at, message, hint)]

    def _blanks(self, at: int, word: str) -> list[Finding]:
        """Return the warning of an argument that was meant as several."""
        stripped = word.strip()
        flag = _FLAG.match(stripped)
        is_text = bool(re.search(r"\s", stripped if at else word))
        before = self._texts[at - 1] if at else ""
        if _TAKES_ARGUMENTS.fullmatch(before) and at:
            return []
        is_several = is_text and bool(flag) and not re.match(r"--?[\w.-]+=\S", stripped)
        is_padded = bool(flag) and stripped != word
        has_flags = is_text and bool(_FLAG_INSIDE.search(stripped)) and not _HOLDS_ARGUMENTS.match(stripped)
        if not (is_several or is_padded or has_flags):
            return []
        words = split(re.sub(r"^(--?[\w.-]+)\s*=\s*", r"\1=", stripped)) or [stripped]
        if not _is_shown(words):
            hint = "write each word as an item"
        elif len(words) == 1:
            hint = f"write {flow_word(words[0])}"
        elif len(words) == 2 and words[0].startswith("--") and not words[1].startswith("-"):
            hint = f'write "{words[0]}={words[1]}", or two items: {", ".join(map(flow_word, words))}'
        else:
            hint = f"write {len(words)} items: {', '.join(map(flow_word, words))}"
        return [self._finding(at, f"{quote(word)} is one argument, its blanks included", hint)]
