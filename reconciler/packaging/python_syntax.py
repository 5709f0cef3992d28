"""The syntax of Python files, parsed and walked within limits: no code runs.

A walk also marks the code that certainly runs. Code in a condition, in a `try` or in an unused function is
uncertain: its author may be prepared for a failure there.
"""

from __future__ import annotations

import ast
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

MAX_BYTES = 1_000_000
"""The maximum size of a file."""
MAX_FILES = 200
"""The maximum number of files of a package that are read."""
MAX_DEPTH = 250
"""The maximum depth of a file's syntax tree; the words of a very long sum nest as deep."""

MAX_NODES = 100_000
"""The maximum number of nodes of a file's syntax tree: those of 10,000 lines and more."""

_NO_NODES = frozenset(
    {
        *("ctx", "op", "ops", "id", "attr", "arg", "name", "names", "asname", "module", "level", "kind"),
        *("simple", "conversion", "is_async", "type_comment", "type_ignores", "rest", "kwd_attrs"),
    }
)
_CONDITIONS = (ast.BoolOp, ast.Compare)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# The fields of nodes that may not run when the node does.
_MAYBE: Mapping[type[ast.AST], tuple[str, ...]] = {
    ast.If: ("body", "orelse"),
    ast.IfExp: ("body", "orelse"),
    ast.While: ("body", "orelse"),
    ast.For: ("orelse",),
    ast.Try: ("body", "handlers", "orelse"),
    ast.TryStar: ("body", "handlers", "orelse"),
    ast.With: (),
    ast.match_case: ("guard", "body"),
    ast.Lambda: ("body",),
}
_TOO_DEEP = "its syntax is nested too deep"
# Some replica of each run is the first one.
_FIRST_REPLICA = ("rank", "chief", "master", "primary")


class UnreadCodeError(Exception):
    """Error for a file that isn't read.

    Attributes:
        reason: The reason, as a clause.
        line: From 1.
    """

    def __init__(self, reason: str, line: int = 1) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


Visit = tuple[Any, str, bool, bool]
"""A node; the function around it ("" for none; the class of special methods); True if the node runs whenever
that function does; and True if it is a part of a condition."""
Visits = Mapping[type[ast.AST], Sequence[Visit]]
"""The nodes of a file by their class."""


def parse(content: bytes) -> ast.Module:
    """Return the syntax of a file; raise UnreadCodeError if it is too large or no Python 3."""
    if len(content) > MAX_BYTES:
        raise UnreadCodeError(f"it is larger than {MAX_BYTES // 1_000_000} MB")
    try:
        with warnings.catch_warnings():
            # Python warns of odd escapes in the code; these are not this command's warnings.
            warnings.simplefilter("ignore")
            return ast.parse(content)
    except (SyntaxError, ValueError) as error:
        reason = f"it isn't Python 3: {getattr(error, 'msg', None) or 'it has no text'}"
        raise UnreadCodeError(reason, getattr(error, "lineno", None) or 1) from None
    except (RecursionError, MemoryError):
        raise UnreadCodeError(_TOO_DEEP) from None


def visit(tree: ast.Module) -> Visits:
    """Return all expressions and statements; raise UnreadCodeError beyond a limit."""
    visits: defaultdict[type[ast.AST], list[Visit]] = defaultdict(list)
    todo: list[tuple[ast.AST, str, bool, bool, str, int]] = [(tree, "", True, False, "", 0)]
    count = 0
    while todo:
        node, function, is_certain, is_test, class_name, depth = todo.pop()
        kind = node.__class__
        visits[kind].append((node, function, is_certain, is_test))
        count += 1
        if depth > MAX_DEPTH:
            raise UnreadCodeError(_TOO_DEEP, getattr(node, "lineno", 1))
        if count > MAX_NODES:
            raise UnreadCodeError(f"it has more than {MAX_NODES:,} expressions and statements")
        maybe = _uncertain_fields(node) if kind in _MAYBE else ()
        is_test = is_test or kind in _CONDITIONS
        within = node.name if isinstance(node, ast.ClassDef) else ""
        for field in _FIELDS[kind]:
            value = getattr(node, field, None)
            inside, certain = function, is_certain and field not in maybe
            if field == "body" and isinstance(node, _DEFINITIONS):
                # Whoever uses a class runs its special methods.
                is_special = class_name and node.name.startswith("__")
                inside, certain = class_name if is_special else node.name, True
            below = is_test or field == "test"
            for child in value if value.__class__ is list else (value,):
                if isinstance(child, ast.AST):
                    todo.append((child, inside, certain, below, within, depth + 1))
                if kind is ast.BoolOp:
                    certain = False  # the second operand of `and` and `or` depends on the first
    return visits


class _Fields(dict[type[ast.AST], tuple[str, ...]]):
    """The fields that hold expressions and statements, by the class of their node; made at first use."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        fields = () if kind is ast.Constant else tuple(name for name in kind._fields if name not in _NO_NODES)
        self[kind] = fields
        return fields


_FIELDS = _Fields()


def references(visits: Visits) -> dict[str, set[str]]:
    """Return the names that each function of a file uses for certain; "" has those outside of functions."""
    names: defaultdict[str, set[str]] = defaultdict(set)
    for definition in _DEFINITIONS:
        for node, function, is_certain, _ in visits.get(definition, ()):
            names[node.name]  # it is defined, though it may use nothing
            if is_certain and node.decorator_list:
                names[function].add(node.name)  # a decorator may register it to be called
    for node, function, is_certain, _ in visits.get(ast.Name, ()):
        if is_certain:
            names[function].add(node.id)
    for node, function, is_certain, _ in visits.get(ast.Attribute, ()):
        if is_certain:
            names[function].add(node.attr)
    for node, _, _, _ in visits.get(ast.ImportFrom, ()):
        for alias in node.names:
            if alias.asname:
                names[alias.asname].add(alias.name)
    return names


def used_names(files: Sequence[Mapping[str, set[str]]]) -> set[str]:
    """Return the names that the code of some files uses for certain, functions of these names included."""
    used = {""}
    todo = [""]
    while todo:
        name = todo.pop()
        for names in files:
            new = names.get(name, set()) - used
            used |= new
            todo += new
    return used


def name_of(function: ast.expr) -> str:
    """Return the last name of an expression such as `os.path.join`; "" for other expressions."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def texts_in(nodes: Sequence[ast.expr]) -> list[str]:
    """Return the literal texts among some expressions, and in literal lists of them."""
    texts = []
    for node in nodes:
        inner = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
        texts += [
            element.value
            for element in inner
            if isinstance(element, ast.Constant) and isinstance(element.value, str)
        ]
    return texts


def _uncertain_fields(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.If) and _holds_somewhere(node.test):
        return ("orelse",)
    if isinstance(node, ast.While) and isinstance(node.test, ast.Constant) and node.test.value:
        return ("orelse",)
    if isinstance(node, ast.Try) and not node.handlers:
        return ()
    if isinstance(node, ast.With) and any(_suppresses(item.context_expr) for item in node.items):
        return ("body",)
    return _MAYBE.get(node.__class__, ())


def _holds_somewhere(test: ast.expr) -> bool:
    """Return True for `__name__ == "__main__"`, and for a comparison with the number of the replica."""
    compared = [test.left, *test.comparators] if isinstance(test, ast.Compare) else [test]
    names = [name_of(part.func if isinstance(part, ast.Call) else part).lower() for part in compared]
    return "__name__" in names or any(word in name for word in _FIRST_REPLICA for name in names)


def _suppresses(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Call) and name_of(expression.func) == "suppress"
