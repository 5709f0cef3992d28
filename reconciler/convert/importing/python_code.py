"""Command lines in Python code and notebooks: literal lists and texts, and lines for the shell."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reconciler.convert.importing.command_line import find_command
from reconciler.convert.importing.import_result import Found, calls_of, is_config, new_state
from reconciler.convert.importing.placeholders import DATE, SourceError, mark
from reconciler.convert.importing.shell import ShellState, read_shell

_MAGIC = re.compile(r"[ \t]*[!%]")
_SHELL_LINE = re.compile(r"[ \t]*(?:!{1,2}|%sx |%system )[ \t]*(.*)", re.DOTALL)
_SHELL_CELL = re.compile(r"%%(?:bash|sh|script[ ]+(?:bash|sh))\b")
_ENVIRONMENT = re.compile(r"[ \t]*%(?:env|set_env)[ ]+(\w+)(?:=|[ ]+)(.*)")
_BRACED = re.compile(r"(?<![$\\])\{([^{}\n]*)\}")
_TIME = re.compile("date|time", re.IGNORECASE)
_FORMATTED = re.compile(r"%(?:\((\w+)\))?[-+ #0]*\d*(?:\.\d+)?[a-zA-Z]|\{(\w*)[^{}\n]*\}")
_MOST_DEPTH = 50


class PythonReader:
    """Reader of code, or of a notebook's cells one after the other; nothing is run."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._entries: list[Found] = []
        self._fixed = values
        self._names: dict[str, Any] = dict(values)
        self._unused: dict[str, int] = {}
        self._line = 1
        self._depth = 0

    @property
    def entries(self) -> list[Found]:
        """The commands and configs so far, with the lists of words that no call uses."""
        self._use(self._unused)
        return self._entries

    def read(self, code: str, line: int) -> None:
        """Read some code; `line` is its first line in the file."""
        code = code.replace("\r\n", "\n")
        if _SHELL_CELL.match(code):
            self._shell(code.partition("\n")[2], line + 1)
            return
        lines = code.split("\n")
        plain = list(lines)
        index = 0
        calls: list[tuple[int, str]] = []
        while index < len(lines):
            start, index = index, index + 1
            if not _MAGIC.match(lines[start]):
                continue
            while lines[index - 1].rstrip().endswith("\\") and index < len(lines):
                index += 1
            text = "\n".join(lines[start:index])
            indent = re.match(r"[ \t]*", text)
            plain[start:index] = [f"{indent[0] if indent else ''}pass", *[""] * (index - start - 1)]
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
        self._entries += calls_of(state)

    def _assign(self, name: str, value: Any) -> None:
        if name not in self._fixed:
            self._names[name] = value

    def _python(self, code: str, line: int) -> None:
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
        self._line = line
        try:
            self._block(tree.body)
        except RecursionError:
            raise SourceError("the code is nested too deeply", hint="import the command line alone") from None

    def _block(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._function(node)
        elif isinstance(node, ast.If) and "__name__" not in ast.unparse(node.test)[:20]:
            self._branches(node, [node.body, node.orelse])
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            for name in ast.walk(node.target) if not isinstance(node, ast.While) else ():
                if isinstance(name, ast.Name):
                    self._assign(name.id, mark(name.id))
            self._branches(node, [node.body, []])
            self._block(node.orelse)
        elif isinstance(node, ast.Try):
            self._block(node.body)
            self._branches(node, [[], *(handler.body for handler in node.handlers)])
            self._block([*node.orelse, *node.finalbody])
        elif isinstance(node, ast.Match):
            self._branches(node, [[], *(case.body for case in node.cases)])
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            self._assignment(node.targets[0], node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assignment(node.target, node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            self._extend(node.target.id, self._value(node.value, 0))
        elif isinstance(node, ast.Expr) and self._is_addition(node.value):
            return
        else:
            self._expressions(node)
            for field in ("body", "orelse"):
                self._block(part for part in getattr(node, field, ()) if isinstance(part, ast.stmt))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Read a function, whose arguments are unknown and whose names are its own."""
        names, unused = dict(self._names), dict(self._unused)
        every = node.args
        for argument in (*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg):
            if argument is not None:
                self._assign(argument.arg, mark(argument.arg))
        self._block(node.body)
        self._use([name for name in self._unused if name not in unused])
        self._names = names

    def _branches(self, node: ast.stmt, branches: Sequence[Sequence[ast.stmt]]) -> None:
        """Read blocks of which one runs; a name that they leave with different values is unknown."""
        self._expressions(node)
        before, after = self._names, []
        self._depth += 1
        for branch in branches:
            self._names = dict(before)
            self._block(branch)
            after.append(self._names)
        self._depth -= 1
        self._names = dict(before)
        for name in {name: None for names in after for name in names}:
            values = [names.get(name) for names in after]
            if any(value != values[0] for value in values):
                is_longer = all(isinstance(value, list) for value in (before.get(name), *values))
                unknown = mark(name)
                self._assign(name, [*before[name], unknown] if is_longer else unknown)
            else:
                self._assign(name, values[0])

    def _assignment(self, target: ast.expr, node: ast.expr) -> None:
        value = self._value(node, 0)
        if isinstance(target, ast.Name):
            self._use([target.id] if target.id in self._unused else [])
            self._assign(target.id, value)
            if is_config(value):
                self._entries.append(Found(self._line + node.lineno - 1, value=value))
            elif _is_command(value):
                self._unused[target.id] = self._line + node.lineno - 1
                return
        elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            key, container = str(target.slice.value), self._container(target.value)
            if ast.unparse(target.value) == "os.environ":
                self._assign(key, value)
            elif isinstance(container, dict):
                container[key] = mark(key) if self._depth else value
        self._expression(node)

    def _container(self, node: ast.AST) -> Any:
        """Return the dictionary that code changes: all that contain it see the change."""
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            around = self._container(node.value)
            return around.get(str(node.slice.value)) if isinstance(around, dict) else None
        return self._names.get(node.id) if isinstance(node, ast.Name) else None

    def _extend(self, name: str, value: Any) -> None:
        """Add to a list or text; what is added to a list may be unknown."""
        before = self._names.get(name)
        if isinstance(before, list):
            self._assign(name, [*before, *(value if isinstance(value, list) else [mark(name)])])
        else:
            is_text = isinstance(before, str) and isinstance(value, str)
            self._assign(name, f"{before}{value}" if is_text else mark(name))

    def _is_addition(self, node: ast.expr) -> bool:
        """Follow a call that changes a list; False for any other expression."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            return False
        target, method, container = node.func.value, node.func.attr, self._container(node.func.value)
        value = self._value(node.args[-1], 0)
        if isinstance(container, dict) and method == "update":
            fields = value if isinstance(value, dict) else {"unknown fields": mark("FIELDS")}
            container.update({key: mark(key) for key in fields} if self._depth else fields)
            return True
        if (
            isinstance(container, list)
            and isinstance(target, ast.Subscript)
            and method in ("append", "extend")
        ):
            is_known = not self._depth and (method == "append" or isinstance(value, list))
            container += ([value] if method == "append" else value) if is_known else [mark("VALUE")]
            return True
        if not (isinstance(target, ast.Name) and isinstance(container, list)):
            return False
        if method in ("append", "extend"):
            self._extend(target.id, [value] if method == "append" else value)
        elif method in ("insert", "remove"):
            self._extend(target.id, None)
        return method in ("append", "extend", "insert", "remove")

    def _use(self, names: Iterable[str]) -> None:
        """Note the commands of lists of words."""
        for name in [*names]:
            line, words = self._unused.pop(name), self._names.get(name)
            if isinstance(words, list) and _is_command(words):
                self._entries.append(Found(line, words))

    def _expressions(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                self._expression(child)

    def _expression(self, node: ast.AST) -> None:
        """Note the commands in an expression."""
        line = self._line + getattr(node, "lineno", 1) - 1
        if isinstance(node, ast.List | ast.BinOp):
            words = self._value(node, 0)
            if _is_command(words):
                self._entries.append(Found(line, words))
                for part in ast.walk(node):
                    # Such a list begins other commands, and is perhaps none by itself.
                    self._unused.pop(getattr(part, "id", ""), None)
                return
        elif isinstance(node, ast.Name) and _is_command(self._names.get(node.id)):
            self._unused.setdefault(node.id, line)
            self._use([node.id])
        elif isinstance(node, ast.Call):
            # Of `"gcloud …".split()` the text is in front of the call.
            is_split = isinstance(node.func, ast.Attribute) and node.func.attr == "split"
            texts = [node.func.value] if isinstance(node.func, ast.Attribute) and is_split else []
            for part in (*texts, *node.args[:1]):
                text = self._value(part, 0)
                if isinstance(text, str) and text.lstrip().startswith("gcloud "):
                    self._shell(text, line)
        self._expressions(node)

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
            if isinstance(left, list):
                return [*left, *(right if isinstance(right, list) else [mark("FLAGS")])]
            return f"{left}{right}" if isinstance(left, str) and isinstance(right, str) else mark("VALUE")
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return self._formatted(node.left, (), depth)
        if isinstance(node, ast.List | ast.Tuple):
            lists = [
                value if isinstance(item, ast.Starred) and isinstance(value, list) else [value]
                for item, value in ((item, self._item(item, depth)) for item in node.elts)
            ]
            return [word for words in lists for word in words]
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
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
            return self._formatted(node.func.value, node.keywords, depth)
        source = ast.unparse(node)[:200]
        return mark(DATE if _TIME.search(source) else source)

    def _item(self, node: ast.AST, depth: int) -> Any:
        return self._value(node.value if isinstance(node, ast.Starred) else node, depth + 1)

    def _formatted(self, node: ast.AST, keywords: Sequence[ast.keyword], depth: int) -> Any:
        """Return a text with known values in place of `{name}`, and marks for what else it inserts."""
        text = self._value(node, depth + 1)
        if not isinstance(text, str):
            return mark("VALUE")
        known_texts = {keyword.arg: self._text(keyword.value, depth) for keyword in keywords if keyword.arg}

        def value(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            return known_texts.get(name) or mark(name if name and not name.isdecimal() else "VALUE")

        return _FORMATTED.sub(value, text)

    def _text(self, node: ast.AST, depth: int) -> str:
        inner = node.value if isinstance(node, ast.FormattedValue) else node
        value = self._value(inner, depth + 1)
        return str(value) if isinstance(value, str | int | float) else mark(ast.unparse(inner)[:200])


def _is_command(words: Any) -> bool:
    return (
        isinstance(words, list) and all(isinstance(word, str) for word in words) and bool(find_command(words))
    )
