"""Command lines and configs in files of other tools: scripts, Makefiles, pages, notebooks, CI workflows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from textwrap import dedent
from typing import Any

import yaml

from reconciler.convert.importing.command_line import find_command
from reconciler.convert.importing.config_file import ConfigError, load_all
from reconciler.convert.importing.import_result import (
    FixedValues,
    Found,
    calls_of,
    expanded,
    is_config,
    new_state,
    without_expressions,
    without_placeholders,
)
from reconciler.convert.importing.live_job import is_answer, is_pipeline_request
from reconciler.convert.importing.placeholders import SourceError, mark, without_marks
from reconciler.convert.importing.python_code import PythonReader
from reconciler.convert.importing.shell import ShellError, ShellState, Value, read_shell

MAX_SOURCE = 8 * 1024 * 1024
"""Most bytes of a source."""

_BLOCK = re.compile(r"([ \t]*)(trainingInput|workerPoolSpecs|studySpec|trialJobSpec):[ \t]*$")
_FIELD = re.compile(r"[A-Za-z]\w*:(?:[ \t].*)?$")
_PROMPT = re.compile(r"^[ \t]*(?:(?:[$%>]+|[-*]|RUN|run:)[ \t]+|!)?")
_CALL = re.compile(r"(?:[A-Za-z_]\w*=\S*[ \t]+)*(?:(?:sudo|time|exec)[ \t]+)?[\w./~-]*\bgcloud[ \t]")
_LITERAL = re.compile(r"(?:export[ \t]+)?[A-Za-z_]\w*\+?=")
_HEREDOC = re.compile(r"<<-?[ \t]*['\"\\]?(\w+)")
_HEREDOC_CALL = re.compile(r"[ \t]*(?:cat|tee)\b.*<<")
_MAKE_ASSIGNMENT = re.compile(
    r"[ ]*(?:export[ ]+|override[ ]+)*([A-Za-z_][\w.-]*)[ \t]*(\?|:{0,3}|\+)=[ \t]*(.*)"
)
_DICTIONARY = re.compile(
    r"[ \t]*[A-Za-z_]\w*(?: = \{|\.update\(|(?:\[['\"]\w+['\"]\])+(?: = |\.(?:append|extend|update)\())"
)
_MOST_LINES = 300  # of a dictionary
_MOST_NESTED = 200  # variables of a Makefile, each used by the one before
_MOST_EXPANDED = 200_000  # characters of a variable or recipe
_MOST_IN_ALL = 4_000_000
_ALONE = "import the command line alone"


def read_source(name: str, data: bytes, values: Mapping[str, str]) -> list[Found]:
    """Return what a source contains; raise SourceError if it contains nothing to import.

    Args:
        name: The file's name; "-" for standard input.
        data: Its content.
        values: Values of variables that count more than the source's own.
    """
    if len(data) > MAX_SOURCE:
        hint = f"at most {MAX_SOURCE >> 20} MB are read; clear a notebook's outputs"
        raise SourceError("the file is too large", hint=hint)
    if b"\0" in data:
        raise SourceError("the file is binary", hint="name a script, a config or a page of text")
    text = without_marks(data.decode("utf-8-sig", "replace"))
    entries = _reader_of(name, text)(text, values)
    if not entries:
        hint = "import reads commands such as `gcloud ai custom-jobs create`, configs and saved answers"
        raise SourceError("the file contains no training job", hint=hint)
    return entries


_Reader = Callable[[str, Mapping[str, str]], list[Found]]


def _reader_of(name: str, text: str) -> _Reader:
    path = PurePath(name)
    suffix = path.suffix.lower()
    if suffix == ".ipynb":
        return _notebook
    if suffix in (".yaml", ".yml", ".json"):
        return _data
    if suffix == ".mk" or path.name in ("Makefile", "GNUmakefile", "makefile"):
        return _makefile
    if suffix == ".py":
        return _python_file
    if suffix in (".sh", ".bash", ".zsh", ".ksh") or text.startswith("#!"):
        return _python_file if "python" in text.partition("\n")[0] else _script
    if name == "-":
        return _standard_input
    return _page


# --- Shell scripts -----------------------------------------------------------------------------------------


def _script(text: str, values: Mapping[str, str]) -> list[Found]:
    state = new_state(values)
    read_shell(text.replace("\r\n", "\n"), state)
    return calls_of(state)


def _standard_input(text: str, values: Mapping[str, str]) -> list[Found]:
    try:
        entries = _data(text, values)
    except SourceError:
        entries = []
    return entries or _script(text, values)


# --- Pages of text -----------------------------------------------------------------------------------------


def _page(text: str, values: Mapping[str, str]) -> list[Found]:
    """Return the command lines and configs among the lines of a text."""
    lines = text.replace("\r\n", "\n").split("\n")
    state = new_state(values)
    index = 0
    while index < len(lines):
        line = _PROMPT.sub("", lines[index], count=1)
        is_file = _HEREDOC_CALL.match(line)
        if not (_CALL.match(line) or _LITERAL.match(line) or is_file):
            index += 1
            continue
        first, index, logical = index, index + 1, [line]
        while logical[-1].rstrip().endswith("\\") and index < len(lines):
            logical[-1] = logical[-1].rstrip()
            logical.append(lines[index])
            index += 1
        heredoc = _HEREDOC.search(logical[-1])
        while heredoc and index < len(lines):
            logical.append(lines[index])
            index += 1
            if logical[-1].strip() == heredoc[1]:
                break
        text = "\n".join(logical)
        # A file that the page writes is read as a config, which has its own placeholders.
        _read_line(text if is_file else without_placeholders(text), state, first + 1)
    blocks = [*_blocks(lines)]
    calls = [call for call in calls_of(state) if any(word.startswith("--") for word in call.words)]
    for call in calls:
        call.blocks = [block.value for block in blocks]
    return sorted([*calls, *blocks, *_dictionaries(lines, values)], key=lambda entry: entry.line)


def _read_line(text: str, state: ShellState, line: int) -> None:
    try:
        read_shell(text, state, line)
    except ShellError:
        # Prose may look like an assignment; only a command line has to be readable.
        if "gcloud" in text and "--" in text:
            raise


def _blocks(lines: list[str]) -> Iterator[Found]:
    """Yield the configs that a text contains."""
    index = 0
    while index < len(lines):
        match = _BLOCK.match(lines[index])
        if not match:
            index += 1
            continue
        indent = match[1]
        first, end = index, index + 1
        while first and lines[first - 1].startswith(indent) and _FIELD.match(lines[first - 1][len(indent) :]):
            first -= 1
        while end < len(lines) and _continues(lines[end], indent):
            end += 1
        block = "\n".join(line[len(indent) :] for line in lines[first:end])
        try:
            documents = load_all(block)
        except ConfigError:
            documents = []
        for value, line in documents:
            if is_config(value):
                yield Found(first + line, value=without_placeholders(value))
        index = end


def _dictionaries(lines: list[str], values: Mapping[str, str]) -> list[Found]:
    """Return the configs that a text shows as Python's dictionaries."""
    reader = PythonReader(values)
    index = 0
    while index < len(lines):
        first = index
        index += 1
        if not _DICTIONARY.match(lines[first]):
            continue
        depth = _depth(lines[first])
        while depth > 0 and index < min(len(lines), first + _MOST_LINES):
            depth += _depth(lines[index])
            index += 1
        reader.read(dedent("\n".join(lines[first:index])), first + 1)
    for entry in reader.entries:
        entry.value = without_placeholders(entry.value)
    return reader.entries


def _depth(line: str) -> int:
    return line.count("{") - line.count("}")


def _continues(line: str, indent: str) -> bool:
    if not line.strip():
        return True
    rest = line[len(indent) :]
    return line.startswith(indent) and (rest[:1] in " \t-#" or bool(_FIELD.match(rest)))


# --- YAML and JSON -----------------------------------------------------------------------------------------


def _data(text: str, values: Mapping[str, str]) -> list[Found]:
    """Return the configs, answers and command lines of a YAML or JSON file."""
    try:
        documents = load_all(text)
    except ConfigError:
        if "gcloud" not in text:
            raise
        return _page(text, values)  # a template, such as of Helm or Jinja
    entries = [
        Found(line, value=value)
        for value, line in documents
        if is_answer(value) or is_config(value) or is_pipeline_request(value)
    ]
    if entries:
        return entries
    return _workflow_calls(text, values)


# --- CI workflows ------------------------------------------------------------------------------------------

_VARIABLE_KEYS = ("env", "environment", "variables", "substitutions")
_SCALAR_BLOCKS = ("|", ">")


def _workflow_calls(text: str, values: Mapping[str, str]) -> list[Found]:
    """Return the command lines of a YAML file that `load_all` has accepted."""
    roots = [*yaml.compose_all(text, yaml.SafeLoader)]
    variables: dict[str, Value] = {}
    for root in roots:
        for name, value in _variables(root):
            variables[name] = value if variables.get(name, value) == value else mark(name)
    known_variables = {**variables, **values}
    return [call for root in roots for call in _calls_in(root, known_variables)]


def _nodes(root: Any) -> Iterator[Any]:
    """Yield each node once, those of aliases too."""
    todo, seen = [root], set()
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, yaml.SequenceNode):
            todo += reversed(node.value)
        elif isinstance(node, yaml.MappingNode):
            todo += [value for _, value in reversed(node.value)]


def _variables(root: Any) -> Iterator[tuple[str, str]]:
    for node in _nodes(root):
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            if key.value in _VARIABLE_KEYS and isinstance(value, yaml.MappingNode):
                for name, part in value.value:
                    if isinstance(part, yaml.ScalarNode) and isinstance(name.value, str):
                        yield name.value, without_expressions(part.value)


def _calls_in(root: Any, variables: Mapping[str, Value]) -> Iterator[Found]:
    in_lists: set[int] = set()
    for node in _nodes(root):
        if isinstance(node, yaml.SequenceNode):
            texts = [item.value for item in node.value if isinstance(item, yaml.ScalarNode)]
            words = [expanded(without_expressions(text), variables) for text in texts]
            for call in (words, ["gcloud", *words]):
                if len(texts) == len(node.value) and find_command(call):
                    yield Found(node.start_mark.line + 1, call, environ=_texts(variables))
                    in_lists.update(map(id, node.value))
            if not in_lists & {id(item) for item in node.value}:
                # The lines of a list are commands of one shell.
                in_lists.update(map(id, node.value))
                state = new_state(variables)
                for item in node.value:
                    _read_node(item, state)
                yield from calls_of(state)
        elif id(node) not in in_lists:
            state = new_state(variables)
            _read_node(node, state)
            yield from calls_of(state)


def _read_node(node: Any, state: ShellState) -> None:
    if isinstance(node, yaml.ScalarNode) and "gcloud" in node.value:
        line = node.start_mark.line + 1 + (node.style in _SCALAR_BLOCKS)
        read_shell(without_expressions(node.value).replace("$$", "$"), state, line)
    elif isinstance(node, yaml.ScalarNode) and "=" in node.value and "\n" not in node.value:
        read_shell(without_expressions(node.value), state, node.start_mark.line + 1)


def _texts(variables: Mapping[str, Value]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if isinstance(value, str)}


# --- Makefiles ---------------------------------------------------------------------------------------------


def _makefile(text: str, values: Mapping[str, str]) -> list[Found]:
    variables = _MakeVariables(values)
    calls: list[Found] = []
    lines = text.replace("\r\n", "\n").split("\n")
    index = conditions = 0
    while index < len(lines):
        first = index
        logical = [lines[index]]
        index += 1
        while logical[-1].endswith("\\") and index < len(lines):
            logical.append(lines[index])
            index += 1
        if logical[0].startswith("\t"):
            recipe = "\n".join(logical).lstrip("\t @+-")
            state = new_state(values)
            read_shell(variables.expanded(recipe), state, first + 1)
            calls += calls_of(state)
            continue
        line = " ".join(part.rstrip("\\").strip() for part in logical)
        if re.match(r"\s*(?:ifeq|ifneq|ifdef|ifndef)\b", line):
            conditions += 1
        elif re.match(r"\s*endif\b", line):
            conditions = max(0, conditions - 1)
        elif match := _MAKE_ASSIGNMENT.fullmatch(line):
            variables.assign(*match.groups(), is_certain=not conditions)
    return calls


class _MakeVariables:
    """Variables of a Makefile. Those assigned by := are texts, and others are expanded where they are used.

    https://www.gnu.org/software/make/manual/html_node/Flavors.html
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values: dict[str, Value] = FixedValues(values)
        self._simple: set[str] = set()
        # Of variables that are used now, and the texts of those that were; each is expanded once.
        self._used: list[str] = []
        self._texts: dict[str, str] = {}
        self._length = 0

    def assign(self, name: str, operator: str, text: str, *, is_certain: bool) -> None:
        """Carry out an assignment; `operator` is what stands before its equals sign."""
        value = re.sub(r"\s+#.*$", "", text).strip()
        if operator == "?" and name in self._values:
            return
        if operator.startswith(":") or (operator == "+" and name in self._simple):
            value = self.expanded(value)
        if operator == "+":
            value = f"{self._values.get(name, '')} {value}".strip()
        elif operator.startswith(":"):
            self._simple.add(name)
        else:
            self._simple.discard(name)
        # A value under a condition is a guess.
        self._check(len(value), _MOST_EXPANDED)
        self._values[name] = value if is_certain else mark(name)
        self._texts.clear()

    def expanded(self, text: str) -> str:
        """Return a text with make's references replaced by their values."""
        made: list[str] = []
        index = length = 0
        while index < len(text):
            char = text[index]
            following = text[index + 1 : index + 2]
            part, step = char, 1
            if char == "$" and following == "$":
                part, step = "$", 2
            elif char == "$" and following in ("(", "{"):
                end = _balanced(text, index + 1)
                part, step = self._value_of(text[index + 2 : end].strip()), end - index + 1
            elif char == "$" and following:
                part, step = mark("TARGET"), 2
            made.append(part)
            index += step
            length += len(part)
            self._check(length, _MOST_EXPANDED)
        if not self._used:
            self._length += length
            self._check(self._length, _MOST_IN_ALL)
        return "".join(made)

    def _value_of(self, name: str) -> str:
        value = self._values.get(name)
        if not isinstance(value, str):
            if re.match(r"shell\s+date\b", name):
                return mark("DATE")
            return mark("SHELL" if name.startswith("shell") else re.split(r"[\s:,]", name)[0])
        if name in self._simple:
            return value
        if name not in self._texts:
            if name in self._used:
                raise SourceError(
                    "the Makefile's variables refer to each other", hint="remove the circular reference"
                )
            if len(self._used) > _MOST_NESTED:
                raise SourceError("the Makefile's variables are nested too deeply", hint=_ALONE)
            self._used.append(name)
            self._texts[name] = self.expanded(value)
            self._used.pop()
        return self._texts[name]

    @staticmethod
    def _check(length: int, most: int) -> None:
        if length > most:
            message = f"the Makefile expands to too much text: more than {most:,} characters"
            raise SourceError(message, hint=_ALONE)


def _balanced(text: str, start: int) -> int:
    """Return the place of the bracket that closes the one at a place; the end of the text if none does."""
    close = {"(": ")", "{": "}"}[text[start]]
    depth = 0
    for end in range(start, len(text)):
        depth += (text[end] == text[start]) - (text[end] == close)
        if not depth:
            return end
    return len(text)


# --- Python and notebooks ----------------------------------------------------------------------------------


def _python_file(text: str, values: Mapping[str, str]) -> list[Found]:
    reader = PythonReader(values)
    reader.read(text, 1)
    return reader.entries


def _notebook(text: str, values: Mapping[str, str]) -> list[Found]:
    try:
        notebook = json.loads(text)
    except RecursionError:
        message = "the notebook's JSON is nested too deeply"
        raise SourceError(message, hint=_ALONE) from None
    except ValueError:
        raise SourceError("the notebook isn't JSON", hint="save it again") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise SourceError(
            "the file is not a notebook of format 4", hint="open it in Jupyter and save it again"
        )
    reader = PythonReader(values)
    entries: list[Found] = []
    offset = 0
    for cell in cells:
        source = cell.get("source") if isinstance(cell, dict) else None
        lines = source if isinstance(source, list) else [source]
        code = "".join(part for part in lines if isinstance(part, str))
        if not code.strip():
            continue
        # The place in the file, for messages; the first line may be in the file in another spelling.
        at = text.find(json.dumps(code.split("\n")[0], ensure_ascii=False)[1:-1], offset)
        offset = max(at, offset)
        line = text.count("\n", 0, offset) + 1
        if cell.get("cell_type") == "code":
            reader.read(code, line)
        elif cell.get("cell_type") == "markdown":
            entries += [entry for entry in _page(code, values) if entry.words]
    return [*reader.entries, *entries]
