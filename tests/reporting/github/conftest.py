"""The transport to the tests' GitHub."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reconciler.base.http import DirectTransport
from tests.support.tls import Loopback


@pytest.fixture
def transport() -> Iterator[DirectTransport]:
    made = DirectTransport(Loopback())
    yield made
    made.close()
