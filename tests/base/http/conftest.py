"""The transport, and servers on loopback for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from reconciler.base.http import DirectTransport
from tests.support.raw_server import RawServer
from tests.support.tls import Loopback


@pytest.fixture
def transport() -> Iterator[DirectTransport]:
    made = DirectTransport(Loopback(), max_body=10_000)
    yield made
    made.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., RawServer]]:
    with ExitStack() as stack:
        yield lambda *behaviours, **more: stack.enter_context(RawServer([*behaviours], **more).running())
