"""The files of a package that a module imports, found by the text of the import statements: no code runs."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from reconciler.packaging.python_syntax import MAX_BYTES
from reconciler.packaging.source_tree import SourceFile

# A bracket ends at the next one, or hostile text would be searched once for each of its brackets.
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<module>[.\w]+)[ \t]+import[ \t]*"
    r"(?:\((?P<several>[^()]*)\)|(?P<names>[^#;\r\n]*))"
    r"|import[ \t]+(?P<modules>[^#;\r\n]*))",
    re.MULTILINE,
)
_MAX_NAME = 300  # characters; each dot of a name is a folder to look into
_COMMENT = re.compile(r"#[^\n]*")


def imported_files(files: Sequence[SourceFile], module: str) -> Iterator[SourceFile]:
    """Yield the Python files of a package that running a module imports, the module's own first.

    Imports by other means than statements aren't followed. There are no files if the package lacks the
    module.
    """
    by_path = {file.path: file for file in files if file.path.endswith(".py")}
    root, around = _place_of(by_path, module)
    seen: set[str] = set()
    todo = deque((module, f"{module}.__main__"))
    while todo:
        for path in _paths_of(todo.popleft(), root, around):
            if path in by_path and path not in seen:
                seen.add(path)
                yield by_path[path]
                inside = around + path.removeprefix(root)
                text = by_path[path].content[:MAX_BYTES].decode("utf-8", "replace")
                todo += (name for name in _imported(text, inside) if len(name) <= _MAX_NAME)


def _place_of(by_path: Mapping[str, SourceFile], module: str) -> tuple[str, str]:
    """Return the root of imports in the package, and the packages around the package's own folder."""
    names = module.split(".")
    for depth in range(len(names)):
        inside = "/".join(names[depth:])
        files = (f"{inside}.py", f"{inside}/__main__.py")
        if any(file in by_path for file in files):
            return "", "".join(f"{name}/" for name in names[:depth])
        # A package that builds itself may have its code in a folder such as `src`.
        below = [path.removesuffix(file) for path in by_path for file in files if path.endswith(f"/{file}")]
        if below and not depth:
            return min(below), ""
    return "", ""


def _paths_of(module: str, root: str, around: str) -> Iterator[str]:
    """Yield the paths that the files of a module, and of the packages around it, would have."""
    names = f"{module.replace('.', '/')}/".removeprefix(around).split("/")[:-1]
    inside = root + "/".join(names)
    yield from (f"{inside}.py", f"{inside}/__init__.py")
    for depth in range(1, len(names)):
        yield f"{root}{'/'.join(names[:depth])}/__init__.py"


def _imported(text: str, path: str) -> Iterator[str]:
    """Yield the names that a file imports: modules, and names in them that may be modules."""
    for match in _IMPORT.finditer(text):
        if match["modules"] is not None:
            yield from filter(None, map(_first_word, match["modules"].split(",")))
            continue
        module = _absolute(match["module"], path)
        yield module
        for name in _COMMENT.sub("", match["several"] or match["names"] or "").split(","):
            if word := _first_word(name):
                yield f"{module}.{word}".removeprefix(".")


def _absolute(module: str, path: str) -> str:
    """Return the absolute name of a module that the file at a path imports."""
    dots = len(module) - len(module.lstrip("."))
    folders = path.split("/")[:-1]
    if not dots:
        return module
    around = folders[: len(folders) - (dots - 1)]
    return ".".join(filter(None, (*around, module.lstrip("."))))


def _first_word(text: str) -> str:
    return text.split(None, 1)[0] if text.strip() else ""
