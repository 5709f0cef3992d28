"""The edit of `rerun` in a manifest: nothing but that value changes, in whatever layout it is written."""

from __future__ import annotations

import pytest

from reconciler.manifests.yaml_load import load_documents, with_rerun

HEAD = "# a job\napiVersion: v1  # the API\nkind: CustomJob\nmetadata: {name: a}\n"
SPEC = "# what runs\nspec:\n  - 1\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (HEAD + SPEC, HEAD + 'reconcile: {rerun: "new"}\n' + SPEC),
        (
            HEAD + "reconcile:\n  # twice\n  attempts: 2  # at most\n" + SPEC,
            HEAD + 'reconcile:\n  # twice\n  rerun: "new"\n  attempts: 2  # at most\n' + SPEC,
        ),
        (
            HEAD + "reconcile:\n    attempts: 2\n    rerun: old # why\n" + SPEC,
            HEAD + 'reconcile:\n    attempts: 2\n    rerun: "new" # why\n' + SPEC,
        ),
        (
            HEAD + "reconcile: {attempts: 2, rerun: 'o''ld'} # both\n" + SPEC,
            HEAD + 'reconcile: {attempts: 2, rerun: "new"} # both\n' + SPEC,
        ),
        (
            HEAD + "reconcile: {attempts: 2}\n" + SPEC,
            HEAD + 'reconcile: {"rerun": "new", attempts: 2}\n' + SPEC,
        ),
        (HEAD + "reconcile: {}\n" + SPEC, HEAD + 'reconcile: {"rerun": "new"}\n' + SPEC),
        (HEAD + "reconcile: # later\n" + SPEC, HEAD + 'reconcile: {rerun: "new"} # later\n' + SPEC),
        (HEAD + "reconcile:\n  rerun:\n" + SPEC, HEAD + 'reconcile:\n  rerun: "new"\n' + SPEC),
        (
            HEAD + "reconcile:\n  rerun: |\n    a\n    b\n  attempts: 2\n" + SPEC,
            HEAD + 'reconcile:\n  rerun: "new"\n  attempts: 2\n' + SPEC,
        ),
        (
            '{"kind": "CustomJob", "spec": []}',
            '{"reconcile": {"rerun": "new"}, "kind": "CustomJob", "spec": []}',
        ),
        (
            "kind: A\r\nreconcile:\r\n  attempts: 2\r\nspec: 1\r\n",
            'kind: A\r\nreconcile:\r\n  rerun: "new"\r\n  attempts: 2\r\nspec: 1\r\n',
        ),
        ("\ufeffkind: ä\nspec: 1\n", '\ufeffkind: ä\nreconcile: {rerun: "new"}\nspec: 1\n'),
        ("kind: A\nspec: 1", 'kind: A\nreconcile: {rerun: "new"}\nspec: 1'),
    ],
)
def test_rerun_is_written_and_all_else_stays(before: str, after: str) -> None:
    line = load_documents(before.encode(), "")[0][0].line
    assert with_rerun(before.encode(), line, "new").decode() == after


def test_of_several_documents_the_one_that_begins_in_the_line_is_edited() -> None:
    text = "kind: A\nspec: 1\n---\n# second\nkind: B\nspec: 2\n---\nkind: C\nspec: 3\n"
    edited = with_rerun(text.encode(), 5, "new").decode()
    assert edited == text.replace("spec: 2", 'reconcile: {rerun: "new"}\nspec: 2')


@pytest.mark.parametrize(
    "text",
    [
        "kind: &k old\nreconcile: {rerun: *k}\nspec: 1\n",
        "kind: A\nother: &o {attempts: 2}\nreconcile: *o\nspec: 1\n",
        "kind: A\nreconcile: &r {attempts: 2}\nspec: 1\n",
    ],
    ids=["alias for the text", "alias for the mapping", "anchor"],
)
def test_what_an_alias_would_change_as_well_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="edited safely"):
        with_rerun(text.encode(), 1, "new")


def test_a_line_in_which_no_document_begins_is_refused() -> None:
    with pytest.raises(ValueError, match="no job begins on line 7"):
        with_rerun(b"kind: A\nspec: 1\n", 7, "new")
