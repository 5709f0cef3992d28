"""Laws of import's readers: quoting is reversible, no text makes them fail, manifests read back unchanged."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from reconciler.convert.importing.manifest import Imported, document, text_of
from reconciler.convert.importing.placeholders import SourceError, shown, without_marks
from reconciler.convert.importing.shell import ShellState, read_shell
from reconciler.convert.importing.sources import read_source
from reconciler.manifests.yaml_load import load_documents
from reconciler.model.manifest import AIPLATFORM_V1

CALL = "gcloud ai custom-jobs create"
ARGUMENT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
PARTS = [*"ab=1 \n\t'\"\\$`(){}[]|&;<>#!%:-,@", CALL, "--config=", "<<E\n", "$(", "${", "\r\n"]
HOSTILE = st.lists(st.sampled_from(PARTS), max_size=30).map("".join)
NAMES = ["a.sh", "Makefile", "a.yaml", "a.md", "a.py", "a.ipynb", "-", "a.json"]


@given(st.lists(ARGUMENT, min_size=1, max_size=5))
def test_quoted_words_are_read_as_they_were(arguments: list[str]) -> None:
    state = ShellState()
    read_shell(f"gcloud {' '.join(map(shlex.quote, arguments))}\n", state)
    assert state.commands[0].words == ["gcloud", *arguments]


@given(st.lists(ARGUMENT, min_size=1, max_size=3))
def test_values_of_quoted_variables_are_one_word(values: list[str]) -> None:
    state = ShellState()
    lines = [f"V{number}={shlex.quote(value)}" for number, value in enumerate(values)]
    uses = " ".join(f'"${{V{number}}}"' for number in range(len(values)))
    read_shell("\n".join([*lines, f"gcloud {uses}"]), state)
    assert state.commands[-1].words == ["gcloud", *values]


@given(st.sampled_from(NAMES), HOSTILE.map(str.encode) | st.binary(max_size=60))
def test_no_bytes_make_a_reader_fail(name: str, data: bytes) -> None:
    with suppress(SourceError):
        assert all(each.line >= 1 for each in read_source(name, data, {}))


KEYS = st.text("abcdef", min_size=1)
VALUES: Any = st.recursive(
    st.text(max_size=10) | st.integers(-(2**31), 2**31) | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(KEYS, VALUES, min_size=1, max_size=4),
    st.lists(st.text(max_size=20), max_size=2),
)
def test_printed_manifest_reads_as_it_was(spec: dict[str, Any], notes: list[str]) -> None:
    plain = _plain(spec)
    job = Imported(AIPLATFORM_V1, "CustomJob", "census", {}, plain, "a.sh:1", notes=notes)
    documents, problems = load_documents(text_of(job, Path("/jobs")).encode(), "a.yaml")
    if not problems:  # some characters are refused in manifests in every spelling
        assert [each.value for each in documents] == [document(job, Path("/jobs"))]
        assert documents[0].value["spec"] == shown(plain)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return without_marks("".join(char for char in value if char.isprintable() or char == "\n"))
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value
