"""Labels of a manifest: with the reconciler's own, every valid number of them fits on a job in the cloud."""

from __future__ import annotations

import json

import pytest

from reconciler.manifests import schemas
from reconciler.model.job import PREFIX
from tests.support.team import Team

MOST_IN_CLOUD = 64
"""https://cloud.google.com/resource-manager/docs/labels-overview#requirements"""


def most_in_manifest() -> int:
    schema = schemas.document("custom-job.schema.json")
    return int(schema["properties"]["metadata"]["properties"]["labels"]["maxProperties"])


def job_with_labels(team: Team, number: int, instance: str) -> None:
    """Commit a job with a package and this number of labels, in an environment of this instance."""
    path = team.author.job(args=["one"])
    labels = json.dumps({f"label-{index}": "x" for index in range(number)})
    path.write_text(path.read_text().replace("  name: census\n", f"  name: census\n  labels: {labels}\n"))
    settings = team.author.root / "reconciler.yaml"
    if instance:
        engine = "    engine: google\n"
        settings.write_text(settings.read_text().replace(engine, f"{engine}    instance: {instance}\n"))
        assert team.run(team.author, "init", "--claims").code == 0
    team.commit()


@pytest.mark.parametrize(("instance", "added"), [("", 6), ("blue", 7)])
def test_job_with_most_labels_of_a_manifest_is_submitted(cloud: Team, instance: str, added: int) -> None:
    job_with_labels(cloud, most_in_manifest(), instance)
    applied = cloud.run(cloud.author, "apply")
    assert applied.code == 0, applied.out
    (job,) = cloud.service.jobs(*cloud.place)
    assert len([label for label in job["labels"] if label.startswith(PREFIX)]) == added
    # An instance is what most environments lack: with it, there is room for no other label.
    assert len(job["labels"]) == MOST_IN_CLOUD - 7 + added


@pytest.mark.parametrize("instance", ["", "blue"])
def test_manifest_with_one_more_label_is_refused(cloud: Team, instance: str) -> None:
    job_with_labels(cloud, 58, instance)
    for command in ("validate", "apply"):
        refused = cloud.run(cloud.author, command)
        assert refused.code == 3
        assert "has 58 keys" in refused.err + refused.out
        assert "at most 57" in refused.err + refused.out
    assert cloud.service.jobs(*cloud.place) == []
