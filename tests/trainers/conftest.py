"""Table of trainers, which `make trainers OPTIONS=--keep` writes into the documentation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests.bench.keep import into_docs

HEAD = ("trainer", "job and image", "ran with", "gs:// by", "needed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keep", action="store_true", help="renew the table in docs/embedded-service.md")


@pytest.fixture(scope="session")
def rows(request: pytest.FixtureRequest) -> Iterator[list[Sequence[str]]]:
    """Yield the rows of the table; write them only if every test passed."""
    found: list[Sequence[str]] = []
    yield found
    lines = [HEAD, ["---"] * len(HEAD), *found]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    request.config.get_terminal_writer().write(f"\n{text}\n")
    if request.config.getoption("keep") and not request.session.testsfailed:
        into_docs("embedded-service.md", text, "trainers")
