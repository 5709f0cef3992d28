"""Reader of a trainer's Python code: its uses of variables and paths, and its options. No code runs.

`operations/code_warnings.py` compares these facts with a job; `migrate` finds in them the places that Vertex
AI treats differently. Code that may be prepared for the lack of a variable has no fact about it.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain

from msgspec.structs import replace

from reconciler.packaging.code_facts import (
    FOLDERS,
    REPORT,
    URI,
    VARIABLES,
    CodeFacts,
    FileFacts,
    Option,
    Unread,
    Use,
    UseKind,
)
from reconciler.packaging.python_syntax import (
    UnreadCodeError,
    Visit,
    name_of,
    parse,
    references,
    texts_in,
    used_names,
    visit,
)
from reconciler.packaging.source_tree import SourceFile

_TAG = "hyperparameter_metric_tag"
_RESOLVERS = ("TPUClusterResolver",)
# Functions that take the paths of files, and the position of the path. `open` alone is Python's own.
_FILE_FUNCTIONS = {
    **dict.fromkeys(("open", "io.open", "codecs.open", "gzip.open", "bz2.open", "lzma.open"), 0),
    **dict.fromkeys(("os.makedirs", "os.mkdir", "os.listdir", "joblib.load", "torch.load"), 0),
    **dict.fromkeys(("joblib.dump", "torch.save", "shutil.copy", "shutil.copyfile", "shutil.copytree"), 1),
}
_PATH_METHODS = ("open", "mkdir", "read_text", "read_bytes", "write_text", "write_bytes")
_TAKES_PATH = frozenset(name.rpartition(".")[2] for name in (*_FILE_FUNCTIONS, *_PATH_METHODS))
_DECLARING = ("add_argument", "option")
_PATHS = ("Path", "PosixPath", "PurePath")
# Other libraries' paths, which may have these names, reach Cloud Storage.
_OTHER_PATHS = (b"cloudpathlib", b"upath", b"etils")
_SAME_BEGINNING = ("rstrip", "strip", "joinpath", "format")
_CHANGES_SCHEME = ("startswith", "replace", "removeprefix", "lstrip", "partition", "split", "sub", "match")
_ARGUMENTS = ("args", "arguments", "flags", "opts", "opt", "options", "params", "hparams")
_PRINTS = ("print", "debug", "info", "warning", "error", "exception", "critical", "log")
_FAILS_WITH_NONE = ("join", "loads", "Path", "open", "makedirs", "mkdir", "int", "urlparse")
_MOST_STEPS = 20  # from a name to its value
# What may take other options than those that are declared, or whose required ones depend on a command.
_MORE_OPTIONS = re.compile(
    rb"parse_known|ignore_unknown_options|allow_extra_args|parents\s*=|(?<!parse_args\()\bsys\.argv\b(?!\[0)"
    rb"|from sys import|undefok|HfArgumentParser|CLI\("
    rb"|\b(?:fire|typer|hydra|jsonargparse|tyro|draccus|simple_parsing|configargparse)\b"
)
_COMMANDS = re.compile(rb"add_subparsers|click\.group|\.group\(")


class TrainerReader:
    """Reader that parses each content of a file once, however many packages have it."""

    def __init__(self) -> None:
        self._facts: dict[bytes, FileFacts | UnreadCodeError] = {}

    def file_facts(self, file: SourceFile) -> FileFacts:
        """Return the facts of a file; raise UnreadCodeError if it can't be read."""
        digest = file.digest
        if digest not in self._facts:
            try:
                self._facts[digest] = _FileReader(file.content).facts()
            except UnreadCodeError as error:
                self._facts[digest] = error
        facts = self._facts[digest]
        if isinstance(facts, UnreadCodeError):
            raise facts
        return facts

    def code_facts(self, files: Iterable[SourceFile]) -> CodeFacts:
        """Return the facts of a program of these files."""
        by_path: dict[str, FileFacts] = {}
        unread = []
        for file in files:
            try:
                by_path[file.path] = self.file_facts(file)
            except UnreadCodeError as error:
                unread.append(Unread(file.path, error.line, error.reason))
        used = used_names([facts.names for facts in by_path.values()])
        prepared = {name for facts in by_path.values() for name in facts.prepared}
        defined = {name for facts in by_path.values() for name in facts.names}
        uses = [replace(use, path=path) for path, facts in by_path.items() for use in facts.uses]
        uses = [use for use in uses if use.kind is not UseKind.NEEDS or use.name not in prepared]
        options = [replace(option, path=path) for path, facts in by_path.items() for option in facts.options]
        functions = {use.function for use in uses if use.kind in (UseKind.NEEDS, UseKind.OPENS)}
        functions |= {option.function for option in options if option.is_required}
        return CodeFacts(
            tuple(use for use in uses if use.function in used),
            tuple(
                option if option.function in used else replace(option, is_required=False)
                for option in options
            ),
            tuple(unread),
            any(facts.has_more_options or facts.fillers - defined for facts in by_path.values()),
            not functions <= {None, *used},
        )


class _FileReader:
    """Reader of a file; raises UnreadCodeError if it can't be read."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._visits = visit(parse(content))
        names, attributes = [*self._of(ast.Name)], self._of(ast.Attribute)
        self._tested = {node.id for node, _, _, is_test in names if is_test}
        self._stored = {node.attr for node, _, _, _ in attributes if node.ctx.__class__ is ast.Store}
        self._bound = Counter(node.id for node, _, _, _ in names if node.ctx.__class__ is not ast.Load)
        self._bound.update(node.arg for node, _, _, _ in self._of(ast.arg))
        self._bound.update(
            node.name for node, _, _, _ in self._of(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        )
        self._bound.update(
            (alias.asname or alias.name).partition(".")[0]
            for node, _, _, _ in self._of(ast.Import, ast.ImportFrom)
            for alias in node.names
        )
        self._values = dict(self._assigned())
        self._calls = [(name_of(call[0].func), *call) for call in self._of(ast.Call)]
        self._changes_scheme = any(
            name in _CHANGES_SCHEME and any(text.startswith(("gs:", "/gcs")) for text in texts_in(node.args))
            for name, node, _, _, _ in self._calls
        )

    def _of(self, *kinds: type[ast.AST]) -> Iterable[Visit]:
        return chain.from_iterable(self._visits.get(kind, ()) for kind in kinds)

    def _assigned(self) -> Iterator[tuple[str, ast.expr]]:
        """Yield the names with a single value, and the value."""
        for node, _, _, _ in self._of(ast.Assign, ast.AnnAssign, ast.NamedExpr):
            target = node.target if not isinstance(node, ast.Assign) else node.targets[0]
            if isinstance(target, ast.Name) and node.value and self._bound[target.id] == 1:
                yield target.id, node.value

    def facts(self) -> FileFacts:
        """Return the facts of the file."""
        mentions = [visit for visit in self._of(ast.Constant) if visit[0].value in VARIABLES]
        needs = [*self._needs()] if mentions else []
        provided = {id(node): node.value for node, _, _, _ in mentions}
        for mention, _ in needs:
            provided.pop(id(mention), None)
        fillers = set()
        for name, node, _, _, _ in self._calls:
            if name in _PRINTS:
                for argument in node.args:
                    provided.pop(id(argument), None)
            if any(argument.__class__ is ast.Name and self._is_parser(argument) for argument in node.args):
                fillers.add(name)
        options, are_literal = self._options()
        has_commands = _COMMANDS.search(self._content) is not None
        return FileFacts(
            (
                *(Use(node.lineno, UseKind.NEEDS, str(node.value), "", runs_in) for node, runs_in in needs),
                *(Use(node.lineno, UseKind.NAMES_VARIABLE, node.value) for node, _, _, _ in mentions),
                *self._other_uses(),
            ),
            tuple(replace(option, is_required=False) for option in options) if has_commands else options,
            references(self._visits),
            frozenset(provided.values()),
            frozenset(fillers),
            has_commands or not are_literal or _MORE_OPTIONS.search(self._content) is not None,
        )

    def _options(self) -> tuple[tuple[Option, ...], bool]:
        """Return the options with literal names, and True if all have."""
        options, required = [], set()
        for name, node, function, is_certain, _ in self._calls:
            if name in _DECLARING or name.startswith("DEFINE_"):
                if option := self._option(name, node):
                    options.append(replace(option, function=function if is_certain else None))
            elif name.startswith("mark_flag"):
                required.update(texts_in(node.args[:1]))
        literal = tuple(
            replace(option, is_required=True) if not required.isdisjoint(option.names) else option
            for option in options
            if option.names
        )
        return literal, len(literal) == len(options)

    def _needs(self) -> Iterator[tuple[ast.Constant, str | None]]:
        """Yield the mentions of variables that the file fails without, with the function that does."""
        for node, function, is_certain, _ in self._of(ast.Subscript):
            is_read = isinstance(node.ctx, ast.Load) and self._is_environment(node.value)
            if is_read and (mention := self._mention(node.slice)):
                yield mention, function if is_certain else None
        reads = {
            node: mention
            for name, node, _, _, _ in self._calls
            if name in ("get", "getenv") and len(node.args) == 1 and not node.keywords and self._is_get(node)
            if (mention := self._mention(node.args[0]))
        }
        if not reads:
            return
        kinds = (ast.Attribute, ast.Subscript, ast.BinOp, ast.Call, ast.JoinedStr)
        for node, function, is_certain, _ in self._of(*kinds):
            for part in _parts_that_are_not_none(node):
                if isinstance(part, ast.Name) and part.id not in self._tested:
                    part = self._values.get(part.id, part)
                if part in reads:
                    yield reads[part], function if is_certain else None

    def _other_uses(self) -> Iterator[Use]:
        for node, _, _, _ in self._of(ast.Compare):
            if "master" in texts_in([node.left, *node.comparators]):
                yield Use(node.lineno, UseKind.COMPARES_WITH_MASTER)
        for node, _, _, _ in self._of(ast.Subscript):
            if _is_job_dir(node):
                yield Use(node.lineno, UseKind.JOB_DIR_IN_TF_CONFIG)
        for name, node, function, is_certain, _ in self._calls:
            if name == "get" and texts_in(node.args[:1]) == ["job_dir"] and _is_job(node.func):
                yield Use(node.lineno, UseKind.JOB_DIR_IN_TF_CONFIG)
            elif name == REPORT:
                tags = [keyword.value for keyword in node.keywords if keyword.arg == _TAG]
                tag = next(iter(texts_in(tags or node.args)), "")
                yield Use(node.lineno, UseKind.REPORTS_METRIC, tag)
            elif name in ("scalar", "add_scalar") and _is_summary(node.func):
                yield Use(node.lineno, UseKind.WRITES_SUMMARY)
            elif name in _RESOLVERS:
                yield Use(node.lineno, UseKind.RESOLVES_TPU)
            elif name in _TAKES_PATH and (beginning := self._opened(node)):
                call = _dotted(node.func) or f"Path.{name}"
                yield Use(node.lineno, UseKind.OPENS, beginning, call, function if is_certain else None)

    def _mention(self, node: ast.expr) -> ast.Constant | None:
        """Return the name of a variable, as it is written, that an expression stands for."""
        value = self._value(node)
        return value if isinstance(value, ast.Constant) and value.value in VARIABLES else None

    def _opened(self, node: ast.Call) -> str:
        """Return the beginning of the path that a call takes for a file's; "" if it is unknown."""
        if any(word in self._content for word in _OTHER_PATHS):
            return ""
        function, beginning = _dotted(node.func), ""
        position = _FILE_FUNCTIONS.get(function, -1)
        if function == "open" and self._bound["open"]:
            return ""
        if 0 <= position < len(node.args):
            beginning = self._beginning(node.args[position])
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _PATH_METHODS:
            beginning = self._beginning(node.func.value) if self._is_path(node.func.value) else ""
        # Code that looks at the scheme may have another path for this call.
        return "" if self._changes_scheme and beginning != URI else beginning

    def _beginning(self, node: ast.expr) -> str:
        """Return "gs://", the variable or the "--option" that a path begins with; "" if it is unknown."""
        for _ in range(_MOST_STEPS):
            node = self._value(node)
            if isinstance(node, ast.Constant):
                return URI if isinstance(node.value, str) and node.value.startswith(URI) else ""
            if isinstance(node, ast.JoinedStr) and node.values:
                node = node.values[0]
            elif isinstance(node, ast.FormattedValue):
                node = node.value
            elif isinstance(node, ast.BinOp):
                node = node.left
            elif isinstance(node, ast.Subscript):
                return self._variable(node.slice) if self._is_environment(node.value) else ""
            elif isinstance(node, ast.Attribute):
                return self._argument(node)
            elif not isinstance(node, ast.Call) or not (node.args or isinstance(node.func, ast.Attribute)):
                return ""
            elif self._is_get(node):
                return self._variable(node.args[0])
            elif isinstance(node.func, ast.Attribute) and node.func.attr in _SAME_BEGINNING:
                node = node.func.value
            elif node.args and name_of(node.func) in ("join", "str", "fspath", *_PATHS):
                node = node.args[0]
            else:
                return ""
        return ""

    def _variable(self, node: ast.expr) -> str:
        mention = self._mention(node)
        return mention.value if mention and mention.value in FOLDERS else ""

    def _argument(self, node: ast.Attribute) -> str:
        """Return "--NAME" for args.NAME, unless the code gives it a value itself."""
        is_argument = isinstance(node.value, ast.Name) and node.value.id.lower() in _ARGUMENTS
        return f"--{node.attr}" if is_argument and node.attr not in self._stored else ""

    def _value(self, node: ast.expr) -> ast.expr:
        """Return the value of a name, and other expressions as they are."""
        for _ in range(_MOST_STEPS):
            if not isinstance(node, ast.Name) or node.id not in self._values:
                break
            node = self._values[node.id]
        return node

    def _is_environment(self, node: ast.expr) -> bool:
        return name_of(self._value(node)) == "environ"

    def _is_get(self, node: ast.Call) -> bool:
        """Return True for os.getenv(…) and os.environ.get(…)."""
        if not node.args:
            return False
        if name_of(node.func) == "getenv":
            return True
        if not isinstance(node.func, ast.Attribute):
            return False
        return node.func.attr == "get" and self._is_environment(node.func.value)

    def _is_path(self, node: ast.expr) -> bool:
        """Return True for a path of pathlib."""
        for _ in range(_MOST_STEPS):
            node = self._value(node)
            if isinstance(node, ast.BinOp):
                node = node.left
            elif isinstance(node, ast.Call) and name_of(node.func) in _PATHS:
                return True
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                node = node.func.value  # a method such as `joinpath`
            else:
                return False
        return False

    def _is_parser(self, node: ast.expr) -> bool:
        value = self._value(node)
        return isinstance(value, ast.Call) and name_of(value.func) == "ArgumentParser"

    def _option(self, name: str, node: ast.Call) -> Option | None:
        """Return the option that a call declares, without names if these aren't literal; None for none."""
        values = {keyword.arg: keyword.value for keyword in node.keywords}
        is_flag = name.startswith("DEFINE_")  # of absl, and of TensorFlow
        if name == "option" and b"click" not in self._content:
            return None
        words = texts_in(node.args[:1] if is_flag else node.args)
        if not words or any(not isinstance(word, ast.Constant) for word in node.args[:1]):
            return Option(node.lineno, ())
        names = [part.lstrip("-") for word in words for part in word.split("/") if is_flag or part[:1] == "-"]
        if not names:
            return None  # a positional argument
        required, default = values.get("required"), values.get("default")
        if is_flag and len(node.args) > 1:
            default = node.args[1]
        return Option(
            node.lineno,
            tuple(names),
            is_required=isinstance(required, ast.Constant) and required.value is True,
            is_strict=not is_flag,
            default=self._beginning(default) if default else "",
        )


def _parts_that_are_not_none(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the parts of a node that make it fail, or write to a folder "None", if they are None."""
    if isinstance(node, ast.Attribute | ast.Subscript):
        yield node.value
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Div):
        yield from (node.left, node.right)
    elif isinstance(node, ast.Call) and name_of(node.func) in _FAILS_WITH_NONE:
        yield from node.args[:1]
    elif isinstance(node, ast.JoinedStr) and len(node.values) > 1:
        first, second, *_ = node.values
        if (
            isinstance(first, ast.FormattedValue)
            and texts_in([second])[0:1]
            and "/" in texts_in([second])[0][:1]
        ):
            yield first.value


def _dotted(function: ast.expr) -> str:
    """Return a name such as "os.makedirs"; "" for another expression."""
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return f"{function.value.id}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def _is_job_dir(node: ast.Subscript) -> bool:
    return texts_in([node.slice]) == ["job_dir"] and _names_job(node.value)


def _is_job(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and _names_job(function.value)


def _names_job(node: ast.expr) -> bool:
    """Return True for `x["job"]` and `x.get("job", …)`."""
    if isinstance(node, ast.Subscript):
        return texts_in([node.slice]) == ["job"]
    return isinstance(node, ast.Call) and name_of(node.func) == "get" and texts_in(node.args)[:1] == ["job"]


def _is_summary(function: ast.expr) -> bool:
    """Return True for `….summary.scalar` and `add_scalar`."""
    if not isinstance(function, ast.Attribute):
        return False
    return function.attr == "add_scalar" or (
        function.attr == "scalar" and name_of(function.value) == "summary"
    )
