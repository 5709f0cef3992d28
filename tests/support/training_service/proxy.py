"""Programs that have Google's addresses compiled in."""

from __future__ import annotations

from urllib.parse import urlsplit

from reconciler.training_service.state.records import JobRecord
from tests.support.training_service import runs
from tests.support.training_service.served import Service


def to_storage_of(service: Service, run: runs.Run, job: JobRecord) -> runs.Run:
    """Return the run with the address of the served home's storage."""
    text = run.folder.spec.read_text()
    run.folder.spec.write_text(
        text.replace("127.0.0.1:9/jobs/x", f"{urlsplit(service.url).netloc}/jobs/{job.gcs_secret}")
    )
    return run
