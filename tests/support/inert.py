"""Untrusted text, and its effect on a terminal or a workflow's runner."""

from __future__ import annotations

import unicodedata

from hypothesis import strategies as st

# Random text seldom contains the critical characters, so they are mixed in.
DANGEROUS = [
    "::",
    ":",
    "##[",
    "#",
    "[error]",
    "::error::",
    "::stop-commands::x",
    "::add-mask::x",
    "##[group]x",
    "\x1b[31m",
    "\x1b]0;title\x07",
    "\x1b[2J",
    "\x9b31m",
    "\r",
    "\n",
    "\t",
    "\x85",
    "\u2028",
    "\u200b",
    "\u202e",
    "\u2066",
    "\ufe0f",
    "\u0301",
    "\u00ad",
    "\u00a0",
    "\u3164",
    "\ud800",
    "\U000e0041",
    "🎉",
    "é",
    "e\u0301",
    " ",
    "%",
    ",",
    "\\",
]

texts = st.lists(st.one_of(st.sampled_from(DANGEROUS), st.text(max_size=5)), max_size=12).map("".join)

ACTED_ON = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def runner_finds_command(line: str) -> bool:
    """Return whether the runner finds a command, as `ActionCommand.cs` does; the comparison ignores marks."""
    compared = "".join(
        c for c in line if unicodedata.category(c)[0] != "M" and unicodedata.category(c) != "Cf"
    )
    return compared.lstrip().startswith("::") or "##[" in compared
