"""Remedies of lines that pip's requirements files may have and that a list of requirements may not."""

from __future__ import annotations

import re

_OF_INDEX = re.compile(r"(?:-i|-f|--(?:extra-)?index-url|--find-links|--no-index|--trusted-host)\b")
_URL = re.compile(r"(?:git|hg|svn|bzr)\+\S+|https?://\S+")


def option_remedy(line: str) -> str:
    """Return where an option or an address belongs that stands among requirements; "" for another line.

    An index may need a password, which the remedy doesn't repeat.
    """
    if match := _OF_INDEX.match(line):
        name = {"-i": "index-url", "-f": "find-links"}.get(match[0], match[0].lstrip("-"))
        variable = f"PIP_{name.upper().replace('-', '_')}"
        return (
            f"remove it, and set it for pip here: {variable}=… or `pip config set global.{name} …`"
            "; then run `reconciler serve --stop` once. For the cloud, take an image that has the packages, "
            'or write the line into the lock file of "package.module"'
        )
    if re.match(r"(?:-r|-c|--requirement|--constraint)\b", line):
        return "write the lines of that file here"
    if re.match(r"(?:-e|--editable)\b", line):
        return "remove it: the package itself is installed, and no other folder is staged"
    if _URL.match(line):
        return 'write the name of the distribution before it: "NAME @ …"'
    return ""
