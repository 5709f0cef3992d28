"""The law of import: a job that the service has accepted comes back as the manifest that makes it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bodies import ML, VERTEX, custom_job, ml_job, tuning_job
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from served import Service

from reconciler.manifests import schemas
from reconciler.model.diff import diff, is_default, is_filled, is_left_out, is_spelling
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1
from reconciler.operations.importing.live import live_job
from reconciler.operations.importing.manifest import spec_of, tidy

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "gcloud" / "flags.jsonl").read_text("utf-8").splitlines()
]
# In snake_case: the service answers in camelCase.
BODIES = [case for case in CASES if "body" in case and case["id"] != "cj-035"]
PLACES = {
    "aip": (ML, ML_V1, "Job"),
    "cj": (f"{VERTEX}/customJobs", AIPLATFORM_V1, "CustomJob"),
    "hp": (f"{VERTEX}/hyperparameterTuningJobs", AIPLATFORM_V1, "HyperparameterTuningJob"),
}
Json = dict[str, Any]


def assert_comes_back(service: Service, place: str, body: Json) -> bool:
    """Create a job, read it, import it; False if the service refuses the job."""
    url, api_version, kind = PLACES[place]
    answer = service.post(url, body)
    if answer.status != 200:
        return False
    name = answer.json.get("name") or f"projects/demo/jobs/{answer.json['jobId']}"
    resource = service.get(f"/v1/{name}").json
    found = live_job(resource)
    assert (found.api_version, found.kind) == (api_version, kind)
    spec, labels = spec_of(kind, found.body)
    expected, given_labels = spec_of(kind, body)
    assert labels == given_labels
    after = tidy(api_version, kind, spec)
    schema = schemas.manifest_schema(api_version, kind)
    assert schema is not None
    before = tidy(api_version, kind, expected)
    told = [
        field
        for field in diff(after, before)
        if not (is_filled(field) or is_left_out(field) or is_default(field) or is_spelling(field))
    ]
    assert told == []
    return True


@pytest.mark.parametrize("case", BODIES, ids=lambda case: case["id"])
def test_accepted_body_comes_back(case: Json, service: Service) -> None:
    place = case["id"].partition("-")[0]
    assert_comes_back(service, place, case["body"])


def test_most_bodies_are_accepted_by_the_service(service: Service) -> None:
    accepted = 0
    for number, case in enumerate(BODIES):
        body = dict(case["body"])
        if "jobId" in body:
            body["jobId"] = f"job_{number}"
        accepted += assert_comes_back(service, case["id"].partition("-")[0], body)
    assert accepted > 50


TEXTS = st.text("abcdefgh0123", min_size=1, max_size=8)
POOL = st.fixed_dictionaries(
    {
        "machineSpec": st.fixed_dictionaries(
            {"machineType": st.sampled_from(["n1-standard-4", "e2-highmem-8"])}
        ),
        "replicaCount": st.just("1"),
        "containerSpec": st.fixed_dictionaries(
            {"imageUri": TEXTS.map(lambda text: f"gcr.io/tide/{text}:1")},
            optional={
                "args": st.lists(TEXTS, max_size=3),
                "command": st.lists(TEXTS, max_size=3),
                "env": st.lists(
                    st.fixed_dictionaries({"name": TEXTS.map(lambda text: f"V_{text}"), "value": TEXTS}),
                    max_size=3,
                    unique_by=lambda variable: variable["name"],
                ),
            },
        ),
    },
    optional={
        "diskSpec": st.fixed_dictionaries(
            {},
            optional={
                "bootDiskType": st.sampled_from(["pd-ssd", "pd-standard"]),
                "bootDiskSizeGb": st.integers(100, 900),
            },
        )
    },
)
SCHEDULING = st.fixed_dictionaries(
    {}, optional={"timeout": st.integers(60, 10**6).map(lambda n: f"{n}s"), "disableRetries": st.booleans()}
)
JOB_SPEC = st.fixed_dictionaries(
    {"workerPoolSpecs": st.lists(POOL, min_size=1, max_size=2)},
    optional={
        "scheduling": SCHEDULING,
        "enableWebAccess": st.booleans(),
        "serviceAccount": TEXTS.map(lambda text: f"{text}@tide.iam.gserviceaccount.com"),
        "baseOutputDirectory": TEXTS.map(lambda text: {"outputUriPrefix": f"gs://tide-{text}/x"}),
    },
)
LABELS = st.dictionaries(TEXTS.map(lambda text: f"l{text}"), TEXTS, max_size=3)


@settings(max_examples=25, suppress_health_check=[*HealthCheck])
@given(spec=JOB_SPEC, labels=LABELS, trials=st.integers(1, 20))
def test_generated_jobs_come_back(service: Service, spec: Json, labels: Json, trials: int) -> None:
    more = {"labels": labels} if labels else {}
    assert assert_comes_back(service, "cj", {**custom_job(), "jobSpec": spec, **more})
    tuned = {**tuning_job(), "trialJobSpec": spec, "maxTrialCount": trials, "parallelTrialCount": 1}
    assert assert_comes_back(service, "hp", {**tuned, **more})


@pytest.mark.parametrize(("place", "body"), [("cj", custom_job()), ("hp", tuning_job()), ("aip", ml_job())])
def test_small_job_of_each_kind_comes_back(place: str, body: Json, service: Service) -> None:
    assert assert_comes_back(service, place, {**body, "labels": {"team": "hydro"}})
