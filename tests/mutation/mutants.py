"""Mutants of a module: its syntax tree with a single small change each.

Annotations, decorators, imports, docstrings and texts with a space stay unchanged: these texts are for
people, and no test should pin them.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

REMOVED = "(removed)"
MODULE_LEVEL = "(module)"

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_OTHER_FUNCTION = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}
_LEFT_OUT_METHODS = frozenset({"lower", "upper", "strip", "lstrip", "rstrip", "replace", "removeprefix"})

_AROUND_CONSTANTS = (
    *(ast.Assign, ast.AnnAssign, ast.Return, ast.keyword, ast.arguments, ast.Lambda, ast.Call, ast.Tuple),
    *(ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Subscript),
)
"""Nodes that are needed to identify a constant."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """Change of a syntax tree.

    Attributes:
        function: The qualified name of the surrounding function or class; `(module)` outside both.
        line: The first changed source line, without indentation.
        change: `old source -> new source`; equal changes of a function end with ` #2`, ` #3`.
            A constant is shown with the expression around it.
        number: The line's number.
        level: True if it takes effect at the module's import, not at a function's call.
        apply: Callback that changes the original tree permanently.
    """

    function: str
    line: str
    change: str
    number: int
    level: bool
    apply: Callable[[], None]


def mutants_of(source: str, tree: ast.Module) -> list[Mutant]:
    """Return all mutants of a module, in line order; `tree` is its parsed source."""
    lines = source.splitlines()
    seen: Counter[tuple[str, str]] = Counter()
    made = []
    for edit in _edits(tree, (), inside=False):
        line = lines[edit.number - 1].strip()
        change = f"{edit.was} -> {edit.becomes}"
        key = (edit.function, change)
        seen[key] += 1
        said = change if seen[key] == 1 else f"{change} #{seen[key]}"
        made.append(Mutant(edit.function, line, said, edit.number, not edit.inside, edit.apply))
    return made


@dataclass(frozen=True, slots=True)
class _Edit:
    number: int
    was: str
    becomes: str
    apply: Callable[[], None]
    function: str
    inside: bool


def _edits(node: ast.AST, names: tuple[str, ...], *, inside: bool) -> Iterator[_Edit]:
    """Yield the changes of all nodes below a node; `names` are the surrounding definitions."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "keywords" if _is_class(node) else ""):
            continue
        within = inside or (name == "body" and isinstance(node, ast.FunctionDef))
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or _is_left_alone(node, name, child, within):
                continue
            for was, becomes, new in _replacements(node, name, child):
                apply, undo = (_replacing(node, name, index, one) for one in (new, child))
                if isinstance(child, ast.Constant) and isinstance(node, _AROUND_CONSTANTS):
                    was = _text(node)
                    apply()
                    becomes = _text(node)
                    undo()
                yield _Edit(_line_of(child), was, becomes, apply, ".".join(names) or MODULE_LEVEL, within)
            below = names
            if isinstance(child, ast.FunctionDef | ast.ClassDef) and not within:
                below = (*names, child.name)
            yield from _edits(child, below, inside=within)


def _line_of(node: Any) -> int:
    number: int = (node.target if isinstance(node, ast.comprehension) else node).lineno
    return number


def _is_class(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef)


def _replacing(node: ast.AST, name: str, index: int | None, new: ast.AST) -> Callable[[], None]:
    def apply() -> None:
        if index is None:
            setattr(node, name, new)
        else:
            getattr(node, name)[index] = new

    return apply


def _is_left_alone(node: ast.AST, name: str, child: ast.AST, inside: bool) -> bool:
    if isinstance(child, ast.Import | ast.ImportFrom | ast.Assert | ast.expr_context):
        return True
    if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
        return True
    if isinstance(child, ast.If) and _text(child.test) == "TYPE_CHECKING":
        return True
    if isinstance(child, ast.match_case) and _is_never(child):
        return True
    if isinstance(child, ast.Assign) and not inside and _is_type_alias(child):
        return True
    if isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant):
        return any(isinstance(part, ast.Constant) and " " in str(part.value) for part in node.values)
    return isinstance(node, ast.FormattedValue) and name == "format_spec"


def _is_never(case: ast.match_case) -> bool:
    return any(isinstance(n, ast.Name) and n.id == "assert_never" for n in ast.walk(case))


def _is_type_alias(assign: ast.Assign) -> bool:
    """Return True for a type alias with a CamelCase name: `Finding = tuple[Drift, Change | None]`."""
    target = assign.targets[0]
    return isinstance(target, ast.Name) and target.id[:1].isupper() and not target.id.isupper()


Replacement = tuple[str, str, ast.AST]


def _replacements(node: ast.AST, name: str, child: Any) -> Iterator[Replacement]:
    was = _text(child)
    made = [(was, REMOVED if isinstance(new, ast.Pass) else _text(new), new) for new in _others(name, child)]
    if not isinstance(child, ast.Constant) and not (isinstance(node, ast.Subscript) and name == "slice"):
        made += ((_text(part), REMOVED, new) for part, new in _without_a_part(child))
    if isinstance(child, ast.Constant) and not (child.value is None and isinstance(node, ast.Compare)):
        made += ((was, repr(value), ast.Constant(value)) for value in _other_values(child.value))
    for _, _, new in made:
        if not isinstance(child, ast.comprehension):
            ast.copy_location(new, child)
        ast.fix_missing_locations(new)
    yield from made


def _text(node: ast.AST) -> str:
    """Return the node's source as a single line."""
    return " ".join(ast.unparse(node).split())


def _others(name: str, child: Any) -> Iterator[ast.AST]:
    """Yield the replacements for a node."""
    match child:
        case ast.Compare():
            yield from _of_comparison(child)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for rest in _without_one(values):
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
            yield ast.BinOp(left, _OPERATORS[type(op)](), right)
        case ast.IfExp(_, body, orelse):
            yield body
            yield orelse
        case ast.Call():
            yield from _of_call(child)
        case ast.comprehension(target, iterable, ifs, is_async):
            for rest in _without_one(ifs):
                yield ast.comprehension(target, iterable, rest, is_async)
        case ast.MatchOr(patterns):
            for rest in _without_one(patterns):
                yield rest[0] if len(rest) == 1 else ast.MatchOr(rest)
        case ast.stmt():
            yield from _of_statement(child)
        case _:
            pass
    if name == "test" and not isinstance(child, ast.Compare | ast.BoolOp) and not _is_not(child):
        yield ast.UnaryOp(ast.Not(), child)


def _without_a_part(node: Any) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield each element of a tuple, list, set or mapping, with the node without it."""
    match node:
        case ast.Tuple(parts, ast.Load()) | ast.List(parts, ast.Load()):
            for part, rest in zip(parts, _without_one(parts), strict=True):
                yield part, type(node)(rest, ast.Load())
        case ast.Set(parts):
            for part, rest in zip(parts, _without_one(parts), strict=True):
                yield part, ast.Set(rest) if rest else ast.Call(ast.Name("set", ast.Load()), [], [])
        case ast.Dict(keys, values):
            pairs = zip(_without_one(keys), _without_one(values), strict=True)
            for key, value, (rest, of) in zip(keys, values, pairs, strict=True):
                yield key or value, ast.Dict(rest, of)
        case _:
            pass


def _without_one(items: list[Any]) -> list[list[Any]]:
    return [[*items[:i], *items[i + 1 :]] for i in range(len(items))]


def _is_not(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _of_comparison(node: ast.Compare) -> Iterator[ast.AST]:
    for i, op in enumerate(node.ops):
        for other in _COMPARISONS[type(op)]:
            yield ast.Compare(node.left, [*node.ops[:i], other(), *node.ops[i + 1 :]], node.comparators)


def _other_values(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield value + 1
        yield value - 1
    elif isinstance(value, str | bytes):
        other: Any = "other" if isinstance(value, str) else b"other"
        if not value:
            yield other
        elif len(value.split()) == 1:
            yield value + other
            yield value[:0]
    elif value is None:
        yield "other"


def _of_call(call: ast.Call) -> Iterator[ast.AST]:
    func, args, keywords = call.func, call.args, call.keywords
    plain = [not isinstance(arg, ast.Starred) for arg in args]
    is_symmetrical = isinstance(func, ast.Name) and func.id in ("min", "max")
    for i in range(len(args) - 1):
        if plain[i] and plain[i + 1] and not is_symmetrical:
            yield ast.Call(func, [*args[:i], args[i + 1], args[i], *args[i + 2 :]], keywords)
    for i in range(len(keywords)):
        yield ast.Call(func, args, [*keywords[:i], *keywords[i + 1 :]])
    if isinstance(func, ast.Name) and func.id in _OTHER_FUNCTION:
        kept = keywords if _OTHER_FUNCTION[func.id] != "list" else []
        yield ast.Call(ast.Name(_OTHER_FUNCTION[func.id], ast.Load()), args, kept)
    if isinstance(func, ast.Attribute) and func.attr in _LEFT_OUT_METHODS:
        yield func.value
    if len(args) > 1 and plain[-1]:
        yield ast.Call(func, args[:-1], keywords)


def _of_statement(node: ast.stmt) -> Iterator[ast.AST]:
    match node:
        case ast.Return(value) if value is not None and not _is_nothing(value):
            yield ast.Return(ast.Constant(None))
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break() | ast.Delete():
            yield ast.Pass()
        case ast.Assign(targets) if not isinstance(targets[0], ast.Name):
            yield ast.Pass()
        case _:
            pass


def _is_nothing(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and not node.value
