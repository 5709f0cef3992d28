"""Words of a command line -> the command of gcloud, with its flags as they were written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, field

from reconciler.base.diagnostics import similar_word
from reconciler.convert.importing.flag_values import value_of
from reconciler.convert.importing.flags import (
    ALPHA,
    BETA,
    COMMANDS,
    GA,
    GLOBAL_FLAGS,
    OLD_GROUPS,
    Command,
    Flag,
)
from reconciler.convert.importing.placeholders import SourceError, flag_error, is_mark, quoted, shown

_GLOBAL = {flag.name: flag for flag in GLOBAL_FLAGS}
_TRACKS = {"alpha": ALPHA, "beta": BETA}
_MOST_WORDS = 8
_NESTED = 5  # flags files that name flags files


class Invocation(Struct):
    """One call of a command.

    Attributes:
        command: The command.
        values: The values of each flag, as written or as a flags file has them.
        job: The job's name, if it is an argument.
        arguments: The words behind "--"; None without "--".
        unknown: The words that are unknown as a whole, and so may be flags.
    """

    command: Command
    values: dict[str, list[Any]] = field(default_factory=dict)
    job: str = ""
    arguments: list[str] | None = None
    unknown: list[str] = field(default_factory=list)

    def has(self, name: str) -> bool:
        """Return True if a flag was given."""
        return name in self.values

    def get(self, name: str, default: Any = None) -> Any:
        """Return a flag's value; raise SourceError if it is malformed."""
        if name not in self.values:
            return default
        flag = _GLOBAL.get(name) or next(flag for flag in self.command.flags if flag.name == name)
        return value_of(flag, self.values[name])


FlagsReader = Callable[[str], Any]
"""Returns the value of a flags file."""


def find_command(words: Sequence[str]) -> tuple[Command, str, list[str]] | None:
    """Return the command, its release track and its flags and arguments; None for any other command."""
    if not words or words[0].rpartition("/")[2] != "gcloud":
        return None
    group: list[str] = []
    flags: list[str] = []
    index = 1
    while index < len(words) and len(group) < _MOST_WORDS:
        word = words[index]
        if word.startswith("-"):
            if word == "--":
                return None
            flags.append(word)
            flag = _GLOBAL.get(word)
            if flag is not None and flag.kind != "switch" and index + 1 < len(words):
                index += 1
                flags.append(words[index])
        else:
            group.append(word)
        index += 1
        track = _TRACKS.get(group[0], GA) if group else GA
        plain = group[1:] if group and group[0] in _TRACKS else group
        command_words = (OLD_GROUPS.get(plain[0], plain[0]), *plain[1:]) if plain else ()
        for command in COMMANDS:
            if command_words == command.words:
                return command, track, [*flags, *words[index:]]
    return None


def parse(words: Sequence[str], flags_file: FlagsReader) -> Invocation | None:
    """Return the call that words make; None if they call another program or command; raise SourceError."""
    parts = find_command(words)
    if parts is None:
        return None
    command, track, rest = parts
    invocation = Invocation(command)
    _Parser(invocation, track, flags_file).parse(rest)
    _check(invocation)
    return invocation


class _Parser:
    """Parser of the flags behind a command."""

    def __init__(self, invocation: Invocation, track: str, flags_file: FlagsReader) -> None:
        self._invocation = invocation
        self._command = invocation.command
        self._track = track
        self._flags_file = flags_file
        self._flags = {**_GLOBAL, **{flag.name: flag for flag in self._command.flags}}

    def parse(self, words: Sequence[str]) -> None:
        index = 0
        while index < len(words):
            word = words[index]
            index += 1
            if word == "--":
                if not self._command.takes_arguments:
                    behind = quoted(" ".join(words[index - 1 :]))
                    raise flag_error("--", f"this command takes no arguments: {behind}", "write --args=A,B")
                self._invocation.arguments = list(words[index:])
                return
            if not word.startswith("-"):
                self._argument(word)
                continue
            name, equals, value = word.partition("=")
            flag = self._flag(name)
            if flag is None:  # the negative of a switch
                continue
            if flag.kind == "switch":
                if equals and flag.name not in _GLOBAL:
                    raise flag_error(name, "takes no value", f"write {name}")
                self._add(flag, True, 0)
            elif equals:
                self._add(flag, value, 0)
            elif index < len(words) and _is_value(words[index]):
                self._add(flag, words[index], 0)
                index += 1
            else:
                raise flag_error(name, "the value is missing", f"write {name}=VALUE")

    def _flag(self, name: str) -> Flag | None:
        flag = self._flags.get(name)
        if flag is not None and self._track in flag.tracks:
            return flag
        if flag is not None:
            hint = f"write gcloud {flag.tracks[0]} {' '.join(self._command.words)}"
            raise flag_error(name, "is a flag of the release tracks alpha and beta only", hint)
        positive = self._flags.get("--" + name.removeprefix("--no-"))
        if name.startswith("--no-") and positive is not None and positive.kind == "switch":
            self._invocation.values.pop(positive.name, None)
            return None
        similar = similar_word(name, self._flags)
        hint = f"did you mean {similar}? " if similar else ""
        behind = "put arguments of the trainer after '--'" if self._command.takes_arguments else ""
        raise flag_error(str(shown(name))[:80], "unknown flag", (hint + behind).strip())

    def _argument(self, word: str) -> None:
        if self._command.names_job and not self._invocation.job:
            self._invocation.job = word
        elif is_mark(word):
            self._invocation.unknown.append(str(shown(word)))
        else:
            command = " ".join(("gcloud", *self._command.words))
            hint = 'quote a value with blanks; put the trainer\'s arguments after "--"'
            raise SourceError(f"{command} takes no argument {quoted(word)}", hint=hint)

    def _add(self, flag: Flag, value: Any, depth: int) -> None:
        if flag.name != "--flags-file":
            self._invocation.values.setdefault(flag.name, []).append(value)
            return
        if depth >= _NESTED:
            raise flag_error(flag.name, "flags files name each other", "put the flags into one file")
        content = self._flags_file(str(value))
        for mapping in content if isinstance(content, list) else [content]:
            if not isinstance(mapping, dict):
                raise flag_error(flag.name, "the file contains no flags", 'write "--flag: value"')
            for name, part in mapping.items():
                named_flag = self._flag(str(name))
                if named_flag is not None:
                    self._add(named_flag, part, depth + 1)


def _is_value(word: str) -> bool:
    """Return True if a word counts as a flag's value; one with a dash and no blank counts as a flag."""
    if not word.startswith("-") or word == "-" or " " in word:
        return word != "--"
    return word[1:].replace(".", "", 1).isdecimal()


def _check(invocation: Invocation) -> None:
    """Check all values and the flags that must or must not be together; raise SourceError."""
    command = invocation.command
    for name in invocation.values:
        invocation.get(name)
    for first, second in command.together:
        for given, missing in ((first, second), (second, first)):
            if invocation.has(given) and not invocation.has(missing):
                raise flag_error(missing, f"is missing, because {given} is given", f"add {missing}")
    for first, second in command.exclusive:
        if invocation.has(first) and invocation.has(second):
            raise flag_error(first, f"excludes {second}", "remove one of the two")
    for name in command.required:
        if not invocation.has(name) and not invocation.unknown:
            raise flag_error(name, "is missing", f"add {name}")
    if command.names_job and not invocation.job:
        raise SourceError("the job's name is missing", hint=f"write gcloud {' '.join(command.words)} NAME")
