"""YAML of all kinds: valid, damaged, and expensive to parse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from reconciler.manifests.yaml_scalars import MAX_INTEGER

MANIFEST = """\
# the census model
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {name: census, labels: {team: "risk"}}
spec:
  workerPoolSpecs:
    - machineSpec: &machine
        machineType: n1-standard-4
      replicaCount: 1
      pythonPackageSpec:
        args: ['--epochs=3', --rate, "1e-4"]
    - {machineSpec: *machine, replicaCount: 2}
"""


def same(left: Any, right: Any) -> bool:
    """Return whether values and the types of all parts are equal: 1 is not 1.0, and true is not 1."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


TEXT = st.text(
    st.characters(
        exclude_categories=["Cs", "Cc"], exclude_characters="\u2028\u2029\ufeff\ufffe\uffff"
    ).filter(lambda char: not "\u202a" <= char <= "\u202e" and not "\u2066" <= char <= "\u2069"),
    max_size=12,
) | st.sampled_from(
    ["no", "010", "1:30", "2026-11-07", "~", "", "a\nb\tc", "<<", "é", "3.10", "- a", "a: b", "#"]
)

KEYS = TEXT.filter(lambda text: text == __import__("unicodedata").normalize("NFC", text))

NUMBERS = (
    st.integers(-MAX_INTEGER, MAX_INTEGER) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()
)

VALUES = st.recursive(
    st.none() | NUMBERS | TEXT,
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(KEYS, parts, max_size=4),
    max_leaves=12,
)

DOCUMENTS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=4) | st.lists(VALUES, min_size=1, max_size=4)


def alias_bomb(levels: int, width: int = 10) -> str:
    lines = ["l0: &l0 [" + ", ".join(["x"] * width) + "]"]
    lines += [f"l{n}: &l{n} [" + ", ".join([f"*l{n - 1}"] * width) + "]" for n in range(1, levels)]
    return "\n".join(lines)


def merge_bomb() -> str:
    keys = ", ".join(f"k{n}: {n}" for n in range(100))
    return (
        f"a: &a {{{keys}}}\nb:\n"
        + "  - {<<: ["
        + ", ".join(["*a"] * 30)
        + "]}\n" * 1
        + "  - {<<: *a}\n" * 300
    )


BOMBS = {
    "aliases": (alias_bomb(9), "more than 20,000 values"),
    "aliases, deep": (alias_bomb(40, 1), "deeper than 32 levels"),
    "merges": (merge_bomb(), "more than 20,000 values"),
    "brackets": ("[" * 10_000, "deeper than 32 levels"),
    "braces": ("{a: " * 10_000, "deeper than 32 levels"),
    "dashes": ("- " * 10_000, "deeper than 32 levels"),
    "one long list": ("[" + "1," * 120_000 + "]", "more than 20,000 values"),
    "many keys": ("\n".join(f"k{n}: 1" for n in range(20_000)), "more than 20,000 values"),
    "long text": ("a: " + "x" * 70_000, "longer than 65,536 characters"),
    "long key": ("? '" + "x" * 1_025 + "'\n: 1", "key is longer than 1,024 characters"),
    "digits": ("a: " + "9" * 60_000, "beyond 2^53"),
    "document": ("# " + "x" * 300_000, "larger than 256 KB"),
    "file": ("# " + "x" * 11_000_000, "larger than 10 MB"),
    "documents": ("---\na: 1\n" * 10_002, "more than 10,000 documents"),
    "mistakes": ("---\na: no\n" * 9_000, "YAML 1.1 reads no as false"),
    "broken documents": ("---\n[\n" * 9_000, "the document ends where a value is needed"),
    "control characters": ("\x01" * 100_000, "U+0001 is a control character"),
    "repeated keys": ("a: 1\n" * 9_000, 'the key "a" is defined twice'),
    "anchors": ("[" + ", ".join(f"&a{n} x" for n in range(15_000)) + "]\n---\na: no", "YAML 1.1 reads no"),
}

CORPUS = sorted((Path(__file__).parents[1] / "bad_manifests").glob("*/jobs/**/*.yaml"))

TOKENS = [
    *(
        token.encode()
        for token in (": ", "- ", "[", "]", "{", "}", '"', "'", "&a ", "*a", "<<: ", "!!str ", "! ", "|\n")
    ),
    *(
        token.encode()
        for token in (">\n", "? ", "\t", "\r", "\n---\n", "\n...\n", "%YAML 1.2\n", "\\u", "no", "010", "1e5")
    ),
    *(
        token.encode()
        for token in ("#", "\n", "  ", ",", "@", "`", "é", "\u202e", "\0", "\ufeff", "2026-11-07", "\\x1b")
    ),
    b"\xff",
    b"\xc3",
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Draw a realistic file with a few insertions and cuts."""
    data = bytearray(
        draw(st.sampled_from([MANIFEST.encode(), *(path.read_bytes()[:3000] for path in CORPUS)]))
    )
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, len(data)))
        if draw(st.booleans()):
            data[place:place] = draw(st.sampled_from(TOKENS))
        else:
            del data[place : place + draw(st.integers(1, 30))]
    return bytes(data)


# Texts on which readers of YAML and of JSON disagree or fail.
PIECES = [
    *(
        "- ",
        ": ",
        "? ",
        "---\n",
        "...\n",
        "%YAML 1.1\n",
        "\n",
        "  ",
        "[",
        "]",
        "{",
        "}",
        ",",
        "#",
        "|\n",
        ">-\n",
    ),
    *(
        "'",
        '"',
        "&a ",
        "*a",
        "<<: ",
        "!!binary ",
        "!!python/object/apply:os.system ",
        "no",
        "on",
        "0777",
        "1_0",
    ),
    *(
        "12:30:45",
        "2026-11-07",
        "1e3",
        ".nan",
        ".inf",
        "-.inf",
        "~",
        "null",
        '"\\ud800"',
        '"\\x00"',
        "\u202e",
    ),
    *("\x1b", "\ufeff", "9" * 400, "1e999", "apiVersion", "kind", "metadata", "spec", "env", "package"),
    *("é", "e\u0301", "\r", "\t", "token: ", "ghp_", "://a:b@"),
]
