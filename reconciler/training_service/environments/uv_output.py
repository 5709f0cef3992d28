"""Reading of what uv 0.13 prints when a command fails: its cause in one line."""

from __future__ import annotations

import re

_NO_SOLUTION = "No solution found"
_NOT_BUILT = re.compile(r"^error: Failed to build `(?P<what>[^`]+)`", re.MULTILINE)
_WHEELS = re.compile(
    r"only found wheels for `(?P<name>[^`]+)` \(v(?P<version>[^)]+)\) with the following Python \w+ tags?: "
    r"(?P<tags>[^\n]+)"
)
_NOT_USABLE = re.compile(r"\b(\S+==\S+) has no usable wheels\b")
_TAG = re.compile(r"`cp(\d)(\d+)m?`")
# The last line of a traceback, or of a compiler's complaints.
_RAISED = re.compile(
    r"^\s*((?:\w+\.)*\w*(?:Error|Exception)\b.*|error: (?!Failed to build).+)$", re.MULTILINE
)
_FULL = ("No space left on device", "File too large")
_REMARKS = ("Using Python ", "warning: Requirements file", "hint: ", "Building ")


def is_unresolved(output: str) -> bool:
    """Return True if no distribution suits the Python and the requirements."""
    return _NO_SOLUTION in output


def reason_of(output: str, python: str) -> str:
    """Return the cause of a failed command in one line.

    Args:
        output: The output of uv.
        python: The Python to install for, such as "3.11".
    """
    if any(words in output for words in _FULL):
        return next(line.strip() for line in output.splitlines() if any(words in line for words in _FULL))
    if match := _NOT_BUILT.search(output):
        return _reason_of_build(output, match["what"], python)
    if match := _WHEELS.search(output):
        minors = sorted({(int(major), int(minor)) for major, minor in _TAG.findall(match["tags"])})
        others = ", ".join(f"{major}.{minor}" for major, minor in minors) or match["tags"]
        return f"{match['name']}=={match['version']} has no wheel for Python {python}, only for {others}"
    cause = _last_cause(output)
    if match := _NOT_USABLE.search(cause):
        return f"{match[1]} has no wheel for Python {python}, and can't be built here"
    return cause


def _reason_of_build(output: str, what: str, python: str) -> str:
    """Return why a package couldn't be built: the error that its build raised, else uv's last cause."""
    raised, cause = _RAISED.findall(output), _last_cause(output)
    if not raised and cause.startswith("Call to "):
        # A build backend that ended without an exception: uv shows what it printed before or below.
        before, _, below = output.partition("error: Failed to build ")
        _, mark, printed = below.rpartition("[stderr]")
        own = printed.partition("\n\nhint: ")[0] if mark else before
        raised = [line.strip() for line in own.splitlines() if line.strip() and not line.startswith(_REMARKS)]
    why = raised[-1].strip() if raised else cause
    # The trainer's own archive, which has no wheel.
    is_own = "/" in what.partition(" @ ")[0]
    return why if is_own else f"{what} has no wheel for Python {python}, and could not be built: {why}"


def _last_cause(output: str) -> str:
    """Return the last of uv's causes, or its last line without any, in one line."""
    _, mark, rest = output.rpartition("cause: ")
    if mark:
        cause = " ".join(rest.partition("\n\n")[0].split()).removesuffix(".")
        return cause.removesuffix(", we can conclude that your requirements are unsatisfiable")
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith(_REMARKS)]
    return lines[-1] if lines else "the installer failed"
