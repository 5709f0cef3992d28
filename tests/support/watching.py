"""`reconciler watch` as a process, and its events."""

from __future__ import annotations

import io
import json
import logging
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import urllib3
from prometheus_client.parser import text_string_to_metric_families

from reconciler.cli.events import events
from reconciler.operations.watch.metrics import Metrics
from reconciler.operations.watch.report import PassReporter
from tests.support.repository import Repository
from tests.support.waiting import PATIENCE


class Watch:
    """The process; each line of its stderr is an event."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    def told(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the events of that name with these fields."""
        return [e for e in self.events if e["event"] == event and fields.items() <= e.items()]

    def awaits(self, event: str, count: int = 1, **fields: Any) -> dict[str, Any]:
        """Wait for this number of events of that name with these fields; return the newest."""
        with self._changed:
            found = self._changed.wait_for(
                lambda: len(self.told(event, **fields)) >= count or self.process.poll() is not None, PATIENCE
            )
        assert found, self.lines
        assert len(self.told(event, **fields)) >= count, self.lines
        return self.told(event, **fields)[-1]

    def awaits_rest(self) -> None:
        """Wait for two more passes, so that all earlier changes have been seen."""
        self.awaits("pass", len(self.told("pass")) + 2)

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Return the answer of its listener."""
        url = self.awaits("listening")["url"]
        answer = urllib3.request("GET", f"{url}{path}", headers=headers, retries=False)
        return answer.status, answer.data.decode()

    def metrics(self) -> dict[str, float]:
        """Return every sample, by its name and the values of its labels."""
        families = text_string_to_metric_families(self.get("/metrics")[1])
        return {
            " ".join([sample.name, *sample.labels.values()]): sample.value
            for family in families
            for sample in family.samples
        }

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and return the exit code; a traceback fails the test."""
        self.process.send_signal(number)
        return self.end_of()

    def end_of(self) -> int:
        """Return its exit code, once it ends by itself."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self.process.stdout is not None
        assert self.process.stdout.read() == ""
        assert not any("Traceback" in line for line in self.lines), "".join(self.lines)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            if stream:
                stream.close()


@contextmanager
def watching(repository: Repository, *arguments: str, **environ: str) -> Iterator[Watch]:
    """Yield a `reconciler watch` that logs every event as JSON."""
    watch = Watch(repository.start("watch", "--log-format", "json", "-v", *arguments, **environ))
    try:
        yield watch
    finally:
        watch.close()


class Told:
    """A reporter of passes, and its events."""

    def __init__(self) -> None:
        self._stream = io.StringIO()
        self.metrics = Metrics(lambda: 1000.0)
        self.reporter = PassReporter(events("json", logging.INFO, self._stream), self.metrics)

    def lines(self) -> list[dict[str, Any]]:
        """Return the events since the last call."""
        told = [json.loads(line) for line in self._stream.getvalue().splitlines()]
        self._stream.seek(0)
        self._stream.truncate()
        return told

    def names(self) -> list[str]:
        return [line["event"] for line in self.lines()]

    def samples(self) -> dict[str, float]:
        families = text_string_to_metric_families(self.metrics.page().content.decode())
        return {
            " ".join([sample.name, *sample.labels.values()]): sample.value
            for family in families
            for sample in family.samples
        }
