"""`python -m tests.bench.published ROOT HOME`: put the models of all manifests that publish in their places.

The summary says so of every run, as after an apply that published them. Where there are too few for a
summary, each look is full and reads the objects: `current.json`, and the record of a model without files. It
prints the number of models.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from reconciler.google.client import Connection
from reconciler.manifests.settings import load_config
from reconciler.model.naming import label_of
from reconciler.model.plan import DesiredJob
from reconciler.model.publication import CurrentModel, InPlace, PublishedModel, model_folder
from reconciler.operations.load_desired import load_desired
from reconciler.operations.session import Session, embedded_endpoint
from reconciler.submission.summary import encoded, read_summary
from reconciler.training_service.client import EmbeddedService


def put_in_place(root: Path, home: Path) -> int:
    """Put the models in their places; those of other manifests are no longer known to be in one."""
    config = load_config(root)
    environment = config.environment(None)
    jobs = load_desired(config, environment, []).jobs
    places = {label_of(job.identity): job.publish.to for job in jobs if job.publish}
    with EmbeddedService(home, start=False) as service:
        session = Session(config, environment, Connection(embedded_endpoint(service, environment)))
        stored = session.claims.summary()
        preface, summary = read_summary(stored)
        if stored is None or preface is None or summary is None:
            for job in jobs:
                _write_objects(session, job)
            return len(places)
        kept = [
            replace(one, in_place=InPlace(to, summary.taken) if to else None)
            for one in summary.kept
            for to in [places.get(one.versioned.claim.id.key)]
        ]
        content = encoded(preface, replace(summary, kept=tuple(kept)))
        assert session.claims.write_summary(content, stored.generation), "nobody else writes it"
    return len(places)


def _write_objects(session: Session, job: DesiredJob) -> None:
    if job.publish is None:
        return
    folder, store = model_folder(job.publish.to, job.job_name), session.publications(job.publish.to)
    about: Mapping[str, Any] = {
        "job_name": job.job_name,
        "base_name": job.manifest.name,
        "hash": job.identity,
        "source": session.config.source,
        "environment": session.environment.name,
        "commit": "",
        "time": session.now(),
    }
    store.prepare()
    store.write_model(PublishedModel(origin=folder, **about))
    store.write_current(CurrentModel(folder=folder, **about), store.current().generation)


if __name__ == "__main__":
    print(put_in_place(Path(sys.argv[1]), Path(sys.argv[2])))
