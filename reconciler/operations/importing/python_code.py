"""Command lines in Python code and notebooks: literal lists and texts, and lines for the shell."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from reconciler.operations.importing.command_line import find_command
from reconciler.operations.importing.found import Found, calls_of, is_config, new_state
from reconciler.operations.importing.marks import DATE, mark
from reconciler.operations.importing.shell import ShellState, read_shell

_MAGIC = re.compile(r"[ \t]*[!%]")
_SHELL_LINE = re.compile(r"[ \t]*(?:!{1,2}|%sx |%system )[ \t]*(.*)", re.DOTALL)
_SHELL_CELL = re.compile(r"%%(?:bash|sh|script[ ]+(?:bash|sh))\b")
_ENVIRONMENT = re.compile(r"[ \t]*%(?:env|set_env)[ ]+(\w+)(?:=|[ ]+)(.*)")
_BRACED = re.compile(r"(?<![$\\])\{([^{}\n]*)\}")
_TIME = re.compile("date|time", re.IGNORECASE)
_MOST_DEPTH = 50


class PythonReader:
    """Reader of code, or of a notebook's cells one after the other; nothing is run."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.found: list[Found] = []
        self._fixed = values
        self._names: dict[str, Any] = dict(values)

    def read(self, code: str, line: int) -> None:
        """Read some code; `line` is its first line in the file."""
        code = code.replace("\r\n", "\n")
        if _SHELL_CELL.match(code):
            self._shell(code.partition("\n")[2], line + 1)
            return
        lines = code.split("\n")
        plain = list(lines)
        place = 0
        calls: list[tuple[int, str]] = []
        while place < len(lines):
            start, place = place, place + 1
            if not _MAGIC.match(lines[start]):
                continue
            while lines[place - 1].rstrip().endswith("\\") and place < len(lines):
                place += 1
            text = "\n".join(lines[start:place])
            indent = re.match(r"[ \t]*", text)
            plain[start:place] = [f"{indent[0] if indent else ''}pass", *[""] * (place - start - 1)]
            calls.append((start, text))
        self._python("\n".join(plain), line)
        for start, text in calls:
            self._magic(text, line + start)

    def _magic(self, text: str, line: int) -> None:
        if match := _ENVIRONMENT.match(text):
            self._assign(match[1], match[2].strip())
        elif match := _SHELL_LINE.fullmatch(text):
            self._shell(_BRACED.sub(self._inserted, match[1]), line)

    def _inserted(self, match: re.Match[str]) -> str:
        """Return the value of Python's expression in a line for the shell."""
        name = match[1].strip()
        value = self._names.get(name)
        if isinstance(value, str | int | float):
            return str(value)
        return mark(DATE if _TIME.search(name) else name)

    def _shell(self, text: str, line: int) -> None:
        texts = {name: value for name, value in self._names.items() if isinstance(value, str)}
        state: ShellState = new_state({})
        state.variables.update(texts)
        for name, value in self._fixed.items():
            state.variables[name] = value
        read_shell(text, state, line)
        self.found += calls_of(state)

    def _assign(self, name: str, value: Any) -> None:
        if name not in self._fixed:
            self._names[name] = value

    def _python(self, code: str, line: int) -> None:
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
        for node in ast.walk(tree):
            self._node(node, line)

    def _node(self, node: ast.AST, line: int) -> None:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            value = self._value(node.value, 0)
            target = node.targets[0]
            if isinstance(target, ast.Name):
                self._assign(target.id, value)
                if is_config(value):
                    self.found.append(Found(line + node.lineno - 1, value=value))
            elif (
                isinstance(target, ast.Subscript)
                and isinstance(target.slice, ast.Constant)
                and ast.unparse(target.value) == "os.environ"
            ):
                self._assign(str(target.slice.value), value)
        elif isinstance(node, ast.List):
            words = self._value(node, 0)
            if (
                isinstance(words, list)
                and all(isinstance(word, str) for word in words)
                and find_command(words)
            ):
                self.found.append(Found(line + node.lineno - 1, words))
        elif isinstance(node, ast.Call):
            for argument in node.args[:1]:
                text = self._value(argument, 0)
                if isinstance(text, str) and text.lstrip().startswith("gcloud "):
                    self._shell(text, line + node.lineno - 1)

    def _value(self, node: ast.AST, depth: int) -> Any:
        """Return the value of an expression of literals and known names; a mark for anything else."""
        if depth > _MOST_DEPTH:
            return mark("VALUE")
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._names.get(node.id, mark(node.id))
        if isinstance(node, ast.JoinedStr):
            return "".join(self._text(part, depth) for part in node.values)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self._value(node.left, depth + 1), self._value(node.right, depth + 1)
            if isinstance(left, list) and isinstance(right, list):
                return left + right
            return f"{left}{right}" if isinstance(left, str) and isinstance(right, str) else mark("VALUE")
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(item, depth + 1) for item in node.elts]
        if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
            pairs = zip(node.keys, node.values, strict=True)
            return {str(key.value): self._value(part, depth + 1) for key, part in pairs}  # type: ignore[union-attr]
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "str"
            and node.args
        ):
            return self._text(node.args[0], depth)
        source = ast.unparse(node)[:200]
        return mark(DATE if _TIME.search(source) else source)

    def _text(self, node: ast.AST, depth: int) -> str:
        inner = node.value if isinstance(node, ast.FormattedValue) else node
        value = self._value(inner, depth + 1)
        return str(value) if isinstance(value, str | int | float) else mark(ast.unparse(inner)[:200])
