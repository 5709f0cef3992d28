"""Pointers as in the specification of Git LFS, and paths that lead into a submodule."""

from __future__ import annotations

import pytest

from reconciler.model.stand_ins import Submodule, fetching, pointer_digest, submodule_at

VERSION = "version https://git-lfs.github.com/spec/v1\n"
OID, FIRST, OTHER = "0" * 64, "1" * 64, "a2" * 32
LAST = f"oid sha256:{OID}\nsize 12345\n"


@pytest.mark.parametrize(
    ("text", "digest"),
    [
        (VERSION + LAST, OID),
        ("version https://hawser.github.com/spec/v1\n" + LAST, OID),
        (f"{VERSION}ext-0-foo sha256:{FIRST}\n{LAST}", FIRST),
        (f"{VERSION}ext-0-foo sha256:{FIRST}\next-1-bar.x sha256:{OTHER}\n{LAST}", FIRST),
    ],
    ids=["plain", "first version", "extension", "extensions"],
)
def test_pointer_digest_is_digest_of_file_in_work_tree(text: str, digest: str) -> None:
    """An extension changes the stored content in Git LFS; its line has the digest of its input."""
    assert pointer_digest(text.encode()) == digest


@pytest.mark.parametrize(
    "text",
    [
        "",
        LAST,
        (VERSION + LAST).rstrip("\n"),
        VERSION + LAST + "\n",
        (VERSION + LAST).replace("\n", "\r\n"),
        f"{VERSION}size 1\noid sha256:{OID}\n",
        f"{VERSION}oid sha256:{OTHER.upper()}\nsize 1\n",
        f"{VERSION}oid sha256:{OID[1:]}\nsize 1\n",
        f"{VERSION}oid md5:{OID[:32]}\nsize 1\n",
        f"{VERSION}{LAST}zz 1\n",
        f"version https://git-lfs.github.com/spec/v2\n{LAST}",
        f"{VERSION}ext-1-foo sha256:{FIRST}\next-0-bar sha256:{OTHER}\n{LAST}",
        f"{LAST}{VERSION}",
        f"# {VERSION}{LAST}",
    ],
)
def test_other_text_has_no_pointer_digest(text: str) -> None:
    assert pointer_digest(text.encode()) == ""


def test_text_of_1024_bytes_has_no_pointer_digest() -> None:
    lines = [f"ext-{n}-{'n' * 10} sha256:{FIRST}\n" for n in range(10)]
    text = f"{VERSION}{''.join(lines)}{LAST}"
    assert len(text) < 1024
    assert pointer_digest(text.encode()) == FIRST
    longer = text.replace("ext-0-", "ext-0-" + "n" * (1024 - len(text)))
    assert len(longer) == 1024
    assert pointer_digest(longer.encode()) == ""


def test_path_of_submodule_or_below_it_belongs_to_submodule() -> None:
    unread = {"vendor/lib": "1" * 40}
    assert submodule_at("vendor/lib", unread) == Submodule("vendor/lib", "1" * 40)
    assert submodule_at("vendor/lib/a/b", unread) == Submodule("vendor/lib", "1" * 40, "a/b")
    for path in ("vendor", "vendor/library", "", "lib"):
        assert submodule_at(path, unread) is None


def test_remedy_quotes_a_folder_for_the_shell() -> None:
    assert "`git submodule update --init 'a b'`" in fetching("a b")
    assert "`git -C 'a b' submodule update --init c`" in fetching("a b/c", "a b")
