"""The listener of live pages, health and metrics: its addresses, and the permitted clients."""

from __future__ import annotations

import socket

import pytest
import urllib3

from reconciler.base.errors import ServiceError, UsageError
from reconciler.base.listener.message import Response
from reconciler.operations.watch.health import Health
from reconciler.pages.listener import address_of, listening


class TestListener:
    @pytest.mark.parametrize(
        ("text", "address"),
        [
            ("127.0.0.1:9464", ("127.0.0.1", 9464)),
            ("127.0.0.2:0", ("127.0.0.2", 0)),
            ("localhost:1", ("127.0.0.1", 1)),
            ("[::1]:9464", ("::1", 9464)),
        ],
    )
    def test_addresses_of_this_machine(self, text: str, address: tuple[str, int]) -> None:
        assert address_of(text) == address

    @pytest.mark.parametrize(
        "text",
        ["", "9464", ":9464", "0.0.0.0:9464", "10.0.0.1:1", "[::]:1", "::1:1", "example.com:1",
         "127.0.0.1:65536", "127.0.0.1:", "127.0.0.1:٣", "127.0.0.1:1\n"],
    )  # fmt: skip
    def test_no_other_address_is_listened_at(self, text: str) -> None:
        with pytest.raises(UsageError):
            address_of(text)

    def test_health_is_gone_when_no_pass_has_ended_for_too_long(self) -> None:
        now = 0.0
        health = Health(100.0, lambda: now)
        with listening(("127.0.0.1", 0), {"/healthz": health.page}) as url:

            def asked() -> tuple[int, bytes]:
                answer = urllib3.request("GET", f"{url}/healthz", retries=False)
                return answer.status, answer.data

            now = 100.0
            assert asked() == (200, b"ok: the last pass ended 100 s ago\n")
            now = 101.0
            assert asked() == (503, b"stuck: the last pass ended 101 s ago\n")
            health.passed()
            assert asked()[0] == 200

    def test_who_asks_for_the_head_gets_all_but_the_text(self) -> None:
        with listening(("127.0.0.1", 0), {"/metrics": lambda: Response(200, (), b"some")}) as url:
            port = int(url.rpartition(":")[2])

            def asked(line: str) -> list[bytes]:
                with socket.create_connection(("127.0.0.1", port), 30) as connection:
                    connection.sendall(f"{line} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
                    head, _, text = connection.makefile("rb").read().partition(b"\r\n\r\n")
                found = {line for line in head.split(b"\r\n") if not line.startswith(b"Date")}
                return [*sorted(found), text]

            *head, text = asked("GET /metrics")
            assert (b"Content-Length: 4" in head, text) == (True, b"some")
            assert asked("HEAD /metrics") == [*head, b""]
            assert b"HTTP/1.0 404 Not Found" in asked("HEAD /else")

    def test_an_address_in_use_is_told(self) -> None:
        with listening(("127.0.0.1", 0), {}) as url:
            port = int(url.rpartition(":")[2])
            with pytest.raises(ServiceError, match="can't listen"), listening(("127.0.0.1", port), {}):
                pytest.fail("two listen at one address")

    @pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", ""])
    def test_a_name_of_another_host_reads_nothing(self, host: str) -> None:
        with listening(("127.0.0.1", 0), {"/metrics": lambda: Response(200, (), b"secret")}) as url:
            answer = urllib3.request("GET", f"{url}/metrics", headers={"Host": host}, retries=False)
            assert (answer.status, b"secret" in answer.data) == (403, False)
