"""The error that a trainer printed last, and what of the manifest or the environment it is about.

The text is from others. A value that is taken out of it has a narrow form: the name of a module, a variable,
a flag or a bucket. The sources of the words are in docs/causes.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from msgspec import Struct, json

from reconciler.model.distributions import GENERIC_MODULES, distribution_of
from reconciler.model.manifest import ML_V1, Manifest
from reconciler.model.own_modules import OwnModules
from reconciler.model.reason import ReasonCode

TRACEBACK = "Traceback (most recent call last):"
_PLACE = r'  File "(?:[^"]*/)?([^"/]+)", line (\d+)'
_SYNTAX = r"(Syntax|Indentation|Tab)Error: "
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:: |$)")
_MOST = 8192  # characters that are read
_JSON_MESSAGE = re.compile(r'"message": "((?:[^"\\]|\\.)+)"')
_GRPC_DETAILS = re.compile(r'details = "([^"]+)"')
_FORBIDDEN = re.compile(r"\w+: Forbidden: \S+")  # of gcsfs, whose message is below


class PrintedError(Struct, frozen=True):
    """The error that a trainer printed last.

    Attributes:
        line: The exception with its message, or else the last line, in one line; "" for none.
        above: The lines above it: of a traceback, the places with their source.
        below: The rest of a message of several lines.
    """

    line: str = ""
    above: str = ""
    below: str = ""

    @property
    def statement(self) -> str:
        """The source of the innermost place; "" for none."""
        places = re.findall(r'^  File "[^"]*", line \d+.*\n    (?! )(.+)', self.above, re.MULTILINE)
        return places[-1].strip() if places else ""

    @property
    def file(self) -> str:
        """The path of the innermost file with source, "" for none."""
        files = re.findall(r'^  File "([^"]*)", line \d+.*\n    (?! ).+', self.above, re.MULTILINE)
        return files[-1] if files else ""


Diagnosis = tuple[ReasonCode, Mapping[str, Any]]


def printed_error(text: str) -> PrintedError:
    """Return the error that a job's message ends with; its first line is the service's."""
    _, mark, rest = text[-_MOST:].rpartition(TRACEBACK)
    lines = [line for line in rest.splitlines() if line.strip()]
    if not mark:
        lines = lines[1:]
    if not lines:
        return PrintedError()
    start = _start(lines, whole=bool(mark))
    above, below = "\n".join(lines[:start]), "\n".join(lines[start + 1 :])
    return PrintedError(_message(lines[start].strip(), above, lines[start + 1 :]), above, below)


def _start(lines: Sequence[str], *, whole: bool) -> int:
    """Return the index of the exception's line, of the last line without one."""
    if whole:
        return next((index for index, line in enumerate(lines) if not line[0].isspace()), len(lines) - 1)
    # The beginning of a long traceback is cut off; an exception follows the indented lines of its place.
    raised = [
        index
        for index, (above, line) in enumerate(pairwise(lines), start=1)
        if above[0].isspace() and not line[0].isspace()
    ]
    # A message of several lines may have indented ones too.
    exceptions = [index for index in raised if _EXCEPTION.match(lines[index])]
    return (exceptions or raised or [len(lines) - 1])[-1]


def _message(first: str, above: str, below: Sequence[str]) -> str:
    """Return an exception in one line: the message inside what a service answered, not its braces."""
    rest = "\n".join(below)
    if first[-1] in "{[" or first[0] in "}]":
        found = _JSON_MESSAGE.search(rest) or _JSON_MESSAGE.search(above)
        said = _unescaped(found[1]) if found else ""
        begin = first.rstrip("{['\" ") if first[-1] in "{[" else ""
        return f"{begin} {said}".strip() or first
    if first.endswith("terminated with:") and (details := _GRPC_DETAILS.search(rest)):
        return f"{first.partition(':')[0]}: {details[1]}"
    if first.endswith(":") or _FORBIDDEN.fullmatch(first):
        said = next((line.strip() for line in below if re.search(r"\w", line)), "")
        return f"{first} {said}".rstrip()
    first = first.partition(" [reason: ")[0]  # of a gRPC client: its details follow in many lines
    frames = re.findall(_PLACE, above)
    # Elsewhere the last place may be in a library, and helps nobody.
    return (
        f"{first} ({frames[-1][0]}, line {frames[-1][1]})" if frames and re.match(_SYNTAX, first) else first
    )


def _unescaped(text: str) -> str:
    try:
        return str(json.decode(f'"{text}"'))
    except ValueError:
        return text


def diagnose(error: PrintedError, api_version: str, manifest: Manifest | None) -> Diagnosis | None:
    """Return what of the manifest or the environment an error is about; None for an error of the code.

    Args:
        error: The error that the trainer printed.
        api_version: The manifest's.
        manifest: The job's manifest as it is now; None if unknown.
    """
    return (
        _unset_variable(error, api_version)
        or _missing_module(error, manifest)
        or _entry_module(error, manifest)
        or _path_of_a_bucket(error, manifest)
        or _answer_of_cloud_storage(error)
        or _arguments(error, manifest)
        or _accelerator(error)
    )


_OUTPUT_FOLDERS = r"AIP_(?:MODEL|CHECKPOINT|TENSORBOARD_LOG)_DIR"
_OF_CLUSTER = "TF_CONFIG"
_FROM_ENVIRON = re.compile(r'File "(?:<frozen os>|[^"]*/os\.py)", line \d+, in __getitem__')
_NO_PROJECT = re.compile(r"[Pp]roject (?:was not passed and )?could not be determined")
# A variable that is missing shows as what a default in its place can't do.
_OF_DEFAULTS = re.compile(
    r"TypeError: .*NoneType|json\.decoder\.JSONDecodeError: Expecting value|KeyError: '(?:cluster|task)'"
    r"|FileNotFoundError: \[Errno 2\] No such file or directory: ''"
)


def _unset_variable(error: PrintedError, api_version: str) -> Diagnosis | None:
    match = re.fullmatch(r"KeyError: '([A-Za-z_][A-Za-z0-9_]*)'", error.line)
    name = match[1] if match and _FROM_ENVIRON.search(error.above) else ""
    # The last place is cut off, or of the standard library, where the name itself says enough.
    if match and re.fullmatch(rf"{_OUTPUT_FOLDERS}|{_OF_CLUSTER}", match[1]):
        name = match[1]
    if not name and _OF_DEFAULTS.match(error.line):
        named = re.findall(rf"\b(?:{_OUTPUT_FOLDERS}|{_OF_CLUSTER})\b", error.above, re.IGNORECASE)
        name = named[-1].upper() if named else ""
    if not name and _NO_PROJECT.search(error.line):
        name = "GOOGLE_CLOUD_PROJECT"
    if not name:
        return None
    values = {"variable": name}
    if re.fullmatch(_OUTPUT_FOLDERS, name):
        return ReasonCode.OUTPUT_FOLDER_UNSET, values
    if name == _OF_CLUSTER and api_version != ML_V1:
        return ReasonCode.CLUSTER_UNSET, values
    return ReasonCode.VARIABLE_UNSET, values


_NO_MODULE = re.compile(r"(?:ModuleNotFoundError|ImportError): No module named '?([\w.]+)'?")
# pandas and fsspec
_OPTIONAL = re.compile(
    r"ImportError: (?:Missing optional dependency '|(?:Please )?[Ii]nstall |`Import )(?P<name>[\w.-]+)"
)
_NO_CLIENT = re.compile(r"ImportError: cannot import name '(\w+)' from 'google\.cloud'")
_IMPORTED_CLIENT = re.compile(r"(?:from google\.cloud import |import google\.cloud\.)(\w+)")


def _missing_module(error: PrintedError, manifest: Manifest | None) -> Diagnosis | None:
    module = _name_of_missing(error)
    if not module:
        return None
    values: dict[str, Any] = {"module": module}
    if manifest and manifest.package:
        entry, folder = _entry(manifest), manifest.package.name
        modules = OwnModules(manifest.package, entry)
        # The folder's name may also be that of a distribution.
        inner = re.match(rf"(?:from|import) {re.escape(folder)}(?:\.| import )(\w+)", error.statement)
        if inner and module.partition(".")[0] == folder and "." not in entry and modules.find(inner[1]):
            return ReasonCode.ENTRY_MODULE_ALONE, {"entry": f"{folder}.{entry}"}
        if full := modules.find(module, beside=error.file):
            values |= {"full": full, "import": _corrected(error.statement, module, full)}
            is_exact = full == module
            return ReasonCode.MODULE_LEFT_OUT if is_exact else ReasonCode.MODULE_OF_PACKAGE, values
        values |= _place_of_requirements(manifest)
    elif manifest:
        values["place"] = "elsewhere"
    if module.partition(".")[0] not in GENERIC_MODULES:
        values["distribution"] = distribution_of(module)
    return ReasonCode.MODULE_MISSING, values


def _entry(manifest: Manifest) -> str:
    """Return the module that a job with a package runs, such as "trainer.task"."""
    return manifest.module or next(iter(manifest.python_modules), "")


def _name_of_missing(error: PrintedError) -> str:
    """Return the module that an import didn't find; "" for another error."""
    if match := _NO_CLIENT.match(error.line):
        return f"google.cloud.{match[1]}"
    match = _NO_MODULE.match(error.line) or _OPTIONAL.match(error.line)
    name = match[1] if match else ""
    if name == "fsspec" and "gs://" in error.above:
        return "gcsfs"  # it needs the other, and reads these addresses
    client = _IMPORTED_CLIENT.match(error.statement)
    return f"google.cloud.{client[1]}" if name in ("google", "google.cloud") and client else name


def _corrected(statement: str, module: str, full: str) -> str:
    """Return the import of a module of the package itself, in place of the statement that failed."""
    parent, _, last = full.rpartition(".")
    top = module.partition(".")[0]
    around = full.removesuffix(module).rstrip(".")
    if match := re.fullmatch(rf"from ({re.escape(module)}(?:\.\w+)*) import ([\w, *()]+)", statement):
        return f"from {around}.{match[1]} import {match[2]}"
    if match := re.fullmatch(rf"import {re.escape(top)}( as \w+)?", statement):
        return f"from {around} import {top}{match[1] or ''}"
    return f"from {parent} import {last}"


def _place_of_requirements(manifest: Manifest) -> Mapping[str, str]:
    """Return the file that names what is installed with a package, by its path in the repository."""
    assert manifest.package is not None
    folder = Path(manifest.path, "..", manifest.written)
    written = _normal(folder)
    if manifest.module:
        lock = f"{written}/{manifest.requirements}" if manifest.requirements else ""
        return {"place": "lock", "folder": written, "lock": lock}
    names = ("setup.py", "pyproject.toml")
    own = next((name for name in names if (manifest.package / name).is_file()), "requirements.txt")
    return {"place": f"{written}/{own}"}


def _normal(path: Path) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


_RELATIVE = "ImportError: attempted relative import with no known parent package"
_NO_ENTRY = re.compile(
    r"\S*python[\d.]*: (?:No module named (?P<missing>[\w.]+)"
    r"|Error while finding module specification for '(?P<unfound>[\w.]+)')"
)


def _entry_module(error: PrintedError, manifest: Manifest | None) -> Diagnosis | None:
    """Return a diagnosis of a module that can't be run as the manifest names it."""
    if error.line.startswith(_RELATIVE):
        folder = manifest.package.name if manifest and manifest.package else ""
        entry = f"{folder}.{_entry(manifest)}" if manifest and folder.isidentifier() else "trainer.task"
        return ReasonCode.ENTRY_MODULE_ALONE, {"entry": entry}
    if match := _NO_ENTRY.match(error.line):
        return ReasonCode.ENTRY_MODULE_MISSING, {"module": match["missing"] or match["unfound"]}
    return None


_BUCKET = r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"
_OPENED = re.compile(
    rf"(?:\[Errno \d+\] .*|[Uu]nable to open file.*|Parent directory.*?)['\"= ]gs:/+(?P<bucket>{_BUCKET})"
    r"(?P<path>/[^'\" ,]*)?"
)
_MOUNTED = re.compile(rf"\[Errno 2\] .*['\"= ]/gcs/(?P<bucket>{_BUCKET})(?P<path>/[^'\" ,]*)?")


_WRITES = re.compile(r"""['"][wax]b?\+?['"]|\b(?:save\w*|dump|to_\w+|write\w*|mkdir|makedirs|export\w*)\(""")


def _path_of_a_bucket(error: PrintedError, manifest: Manifest | None) -> Diagnosis | None:
    match = _OPENED.search(error.line) or _MOUNTED.search(error.line)
    if match is None:
        return None
    is_written = _WRITES.search(error.statement) is not None
    values = {"bucket": match["bucket"], "object": (match["path"] or "")[1:], "is_written": is_written}
    if match.re is _OPENED:
        return ReasonCode.ADDRESS_OPENED, values
    is_named = manifest is None or any(match["bucket"] in text for _, text in _texts(manifest.spec))
    return ReasonCode.BUCKET_FILE_MISSING, {**values, "is_named": is_named}


_DENIED = re.compile(r"\b403\b|Forbidden|[Pp]ermission|does not have \S*storage\.|No access to")
_ABSENT = re.compile(r"\b404\b|NotFound|No such object|bucket does not exist")
_OF_STORAGE = re.compile(
    r"/storage/v1/|gs://|storage\.googleapis\.com|storage\.(?:objects|buckets)\.|[Bb]ucket"
)
_BUCKETS = (
    re.compile(rf"/b/(?P<bucket>{_BUCKET})(?:/o/(?P<object>[^?\s:\"']+))?"),
    re.compile(rf"No such object: (?P<bucket>{_BUCKET})/(?P<object>[^:\"'\s]+)"),
    re.compile(rf"gs://(?P<bucket>{_BUCKET})(?:/(?P<object>[^\s\"'?:,]+))?"),
    re.compile(rf"[Bb]ucket[: ]+[`'\"\\\[]*(?P<bucket>{_BUCKET})(?P<object>)"),
    re.compile(rf"storage\.googleapis\.com/(?P<bucket>{_BUCKET})/(?P<object>[^?\s:\"']+)"),
)
_ROLES = (
    (re.compile(r"storage\.buckets\."), "roles/storage.legacyBucketReader"),
    (re.compile(r"storage\.objects\.(?:create|delete|update)"), "roles/storage.objectUser"),
)
_ACCOUNT = re.compile(r"[\w.-]+@[\w.-]+\.gserviceaccount\.com")
_GCSFS_MISSING = re.compile(rf"FileNotFoundError: (?:b/)?(?P<bucket>{_BUCKET})/(?:o/)?(?P<object>\S+)")


def _answer_of_cloud_storage(error: PrintedError) -> Diagnosis | None:
    text = f"{error.line}\n{error.below}"
    if "gcsfs" in error.above and (match := _GCSFS_MISSING.fullmatch(error.line)):
        return ReasonCode.OBJECT_MISSING, {"bucket": match["bucket"], "object": unquote(match["object"])}
    if not _OF_STORAGE.search(text):
        return None
    found = next((match for words in _BUCKETS if (match := words.search(text))), None)
    if found is None or not (_DENIED.search(text) or _ABSENT.search(text)):
        return None
    values = {"bucket": found["bucket"], "object": unquote(found["object"] or "")}
    if _DENIED.search(text):
        account = _ACCOUNT.search(text)
        role = next((role for words, role in _ROLES if words.search(text)), "roles/storage.objectViewer")
        return ReasonCode.BUCKET_DENIED, {**values, "account": account[0] if account else "", "role": role}
    is_bucket = "bucket does not exist" in text or not values["object"]
    return (ReasonCode.BUCKET_MISSING if is_bucket else ReasonCode.OBJECT_MISSING), values


_REQUIRED = re.compile(
    r"(?:error: the following arguments are required: |Error: Missing option |flag (?=--\S+=None))"
    r"(?P<names>.*)"
)
_UNKNOWN = re.compile(
    r"(?:error: unrecognized arguments: |Error: No such option:? |Unknown command line flag )(?P<names>.*)"
)
_INVALID = re.compile(r"error: argument (?P<names>[^:]+): (?:invalid|expected|not allowed)")
_FLAG = re.compile(r"--?[A-Za-z][\w-]*")
_NAMES = re.compile(r"[\w./-]+")


def _arguments(error: PrintedError, manifest: Manifest | None) -> Diagnosis | None:
    """Return a diagnosis of the arguments that a trainer got: by the manifest, or by its study."""
    if match := _REQUIRED.search(error.line):
        # Of several spellings of a flag the last is the longest one.
        names = (name.rpartition("/")[2] for name in _NAMES.findall(match["names"]))
        return ReasonCode.ARGUMENT_MISSING, {"names": tuple(dict.fromkeys(names))}
    match = _UNKNOWN.search(error.line) or _INVALID.search(error.line)
    # absl quotes the name without its dashes.
    flags = _FLAG.findall(match["names"]) or re.findall(r"'(\w+)'", match["names"]) if match else []
    for flag in flags:
        name = flag.lstrip("-")
        if source := _source_of_flag(name, manifest):
            code = ReasonCode.ARGUMENT_UNKNOWN if _UNKNOWN.search(error.line) else ReasonCode.ARGUMENT_INVALID
            return code, {"name": name, **source}
    return None


def _source_of_flag(flag: str, manifest: Manifest | None) -> Mapping[str, str]:
    """Return the field that passes an argument as `source`; of "args", an `item` with a blank in it."""
    for key, value in _texts(manifest.spec) if manifest else ():
        if (key in ("parameterId", "parameterName") and value == flag) or (key, flag) == (
            "jobDir",
            "job-dir",
        ):
            return {"source": key}
        if key in ("args", "containerArgs") and (
            match := re.fullmatch(
                rf"--?{re.escape(flag)}(?:(?P<blank> )|=.*)?(?P<value>.*)", value, re.DOTALL
            )
        ):
            return {"source": key, "item": value} if match["blank"] else {"source": key}
    return {}


def _texts(node: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts in a spec, with the name of their field."""
    if isinstance(node, str):
        yield key, node
    elif isinstance(node, Mapping):
        for name, value in node.items():
            yield from _texts(value, name)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _texts(value, key)


_NO_GPU = re.compile(
    r"No CUDA GPUs are available|Found no NVIDIA driver|torch\.cuda\.is_available\(\) is False"
    r"|not compiled with CUDA enabled|no CUDA-capable device|invalid device ordinal"
)
_GPU_MEMORY = re.compile(r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|ResourceExhaustedError: .*GPU")


def _accelerator(error: PrintedError) -> Diagnosis | None:
    if _NO_GPU.search(error.line):
        return ReasonCode.ACCELERATOR_MISSING, {}
    if _GPU_MEMORY.search(error.line):
        return ReasonCode.ACCELERATOR_MEMORY, {}
    return None
