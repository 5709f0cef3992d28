"""A staged archive is used only if Cloud Storage confirms that it is the archive."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest

from reconciler.base.errors import ServiceError
from reconciler.google.staging import Staging
from reconciler.packaging.sdist import Sdist
from tests.support.opened import connected
from tests.support.raw_server import RawServer, answer

DATA = b"archive"
MD5 = hashlib.md5(DATA, usedforsecurity=False).hexdigest()
GOOD = {"size": str(len(DATA)), "md5Hash": base64.b64encode(bytes.fromhex(MD5)).decode()}


def put(found: dict[str, Any]) -> str:
    archive = Sdist("task-1.tar.gz", DATA, hashlib.sha256(DATA).hexdigest(), MD5)
    with RawServer([answer(200, json.dumps(found).encode())]).running() as server:
        return Staging(connected(server.url), "acme-staging").put(archive)


def test_what_is_there_already_is_used() -> None:
    assert put(GOOD).startswith("gs://acme-staging/reconciler/packages/")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"size": "8"}, "something other"),
        ({"size": None}, "something other"),
        ({"size": "many"}, "something other"),
        ({"size": "9" * 5000}, "something other"),
        ({"md5Hash": "x"}, "something other"),
        ({"md5Hash": 7}, "something other"),
        ({"md5Hash": None}, "something other"),
    ],
)
def test_anything_else_is_never_run(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ServiceError, match=said) as caught:
        put({**GOOD, **change})
    assert caught.value.hint


def test_an_answer_without_a_size_says_nothing() -> None:
    with pytest.raises(ServiceError, match="doesn't say what"):
        put({"md5Hash": GOOD["md5Hash"]})
