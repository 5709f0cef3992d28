"""Adoption: of a job that equals the request's result, and of a job that a person made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.base.errors import ServiceError
from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.model.claim import Claim, ClaimId, ClaimState, claim_json, claim_of
from reconciler.model.diff import DEFAULTS, FieldChange, is_default, is_filled, is_left_out, is_spelling
from reconciler.model.job import (
    ATTEMPT,
    CODE,
    COMMIT,
    INSTANCE,
    KEY,
    REQUEST_ID,
    SOURCE,
    ActualJob,
    State,
    labels_digest,
)
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1, TRAINING_PIPELINE
from reconciler.submission.adoption import Adopted, Adoption, adopt, differences
from reconciler.submission.observe import observe
from tests.support.memory_ports import Outside, labels
from tests.support.planning import run_of, wanted
from tests.support.submission import CLAIM, KEY_1, ORDER, body, settle

LABELS = {
    SOURCE: "acme",
    INSTANCE: "blue",
    KEY: "k" * 52,
    ATTEMPT: "1",
    CODE: "c" * 52,
    REQUEST_ID: "t1",
    COMMIT: "0" * 40,
    "team": "risk",
}
POOL = {
    "machineSpec": {"machineType": "n1-standard-4", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 1},
    "replicaCount": "1",
    "pythonPackageSpec": {
        "executorImageUri": "image",
        "packageUris": ["gs://mine/a.tar.gz", f"gs://b/reconciler/packages/{'0' * 64}/x.tar.gz"],
        "pythonModule": "task",
        "args": ["--epochs=3", "604800s"],
        "env": [{"name": "A", "value": "1"}],
    },
}
SPEC = {"workerPoolSpecs": [POOL], "scheduling": {"timeout": "3600s"}, "serviceAccount": "a@b"}
CUSTOM = engine_spec(AIPLATFORM_V1).body(
    "CustomJob", {**SPEC, "encryptionSpec": {"kmsKeyName": "k"}}, "census_1", LABELS
)
TUNING = engine_spec(AIPLATFORM_V1).body(
    "HyperparameterTuningJob",
    {
        "studySpec": {"metrics": [{"metricId": "m", "goal": "MAXIMIZE"}], "algorithm": "GRID_SEARCH"},
        "trialJobSpec": SPEC,
        "maxTrialCount": 4,
        "parallelTrialCount": 2,
        "maxFailedTrialCount": 1,
        "encryptionSpec": {"kmsKeyName": "k"},
    },
    "census_1",
    LABELS,
)
ML = engine_spec(ML_V1).body(
    "Job",
    {"trainingInput": {"region": "r", "scaleTier": "CUSTOM", "workerCount": "2", "args": ["a"]}},
    "census_1",
    LABELS,
)
OUTPUT = {
    "name": "projects/1/locations/l/customJobs/1",
    "state": "JOB_STATE_RUNNING",
    "createTime": "2026-01-01T00:00:00Z",
    "updateTime": "2026-01-01T00:00:00Z",
    "error": {"code": 1},
    "webAccessUris": {"workerpool0-0": "u"},
    "trials": [{"id": "1"}],
    "trainingOutput": {"consumedMLUnits": 1},
    "etag": "e",
}
PIPELINE = engine_spec(AIPLATFORM_V1).body(
    TRAINING_PIPELINE,
    {
        "trainingTaskDefinition": "gs://task_1.0.0.yaml",
        "trainingTaskInputs": SPEC,
        "modelToUpload": {
            "displayName": "census",
            "labels": {"team": "risk"},
            "containerSpec": {"imageUri": "serving"},
        },
        "modelId": "census",
        "encryptionSpec": {"kmsKeyName": "k"},
    },
    "census_1",
    LABELS,
)
BODIES = {"custom": CUSTOM, "tuning": TUNING, "ml": ML, "pipeline": PIPELINE}


def find_differences(body: Mapping[str, Any], resource: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    job = run_of(wanted(), State.RUNNING, body=resource)
    return [(change.pointer, change.before, change.after) for change in differences(body, job)]


def change_value(body: Mapping[str, Any], *keys: str | int, to: Any = None) -> dict[str, Any]:
    """Return a copy with the value at `keys` replaced, or without it if `to` is None."""
    whole: Any = deepcopy(dict(body))
    place = whole
    for key in keys[:-1]:
        place = place[key]
    if to is None:
        del place[keys[-1]]
    elif isinstance(place, list):
        place[int(keys[-1]) : int(keys[-1]) + 1] = [to]
    else:
        place[keys[-1]] = to
    return dict(whole)


def list_leaves(value: Any, keys: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], Any]]:
    if isinstance(value, dict) and value:
        return [leaf for name, item in value.items() for leaf in list_leaves(item, (*keys, name))]
    if isinstance(value, list) and value:
        return [leaf for index, item in enumerate(value) for leaf in list_leaves(item, (*keys, index))]
    return [(keys, value)]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_job_equals_its_request_with_any_output_fields_of_service(
    body: Mapping[str, Any],
) -> None:
    assert find_differences(body, {**body, **OUTPUT}) == []


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_every_changed_field_of_request_is_difference(body: Mapping[str, Any]) -> None:
    asked = {name: value for name, value in body.items() if name not in ("labels", "trainingTaskDefinition")}
    for keys, value in list_leaves(asked):
        other = value + "x" if isinstance(value, str) else value + 1
        pointer = "".join(f"/{key}" for key in keys)
        assert find_differences(body, change_value(body, *keys, to=other)) == [(pointer, other, value)]


@pytest.mark.fault(73)
def test_pipeline_equals_its_request_as_service_answers_it() -> None:
    """The service writes the task definition anew, adds to the model, and returns no containerSpec."""
    model = {
        "displayName": "census",
        "labels": {"team": "risk"},
        "name": "projects/1/locations/l/models/census",
        "artifactUri": "gs://b/model",
        "versionAliases": ["default"],
    }
    answer = {
        **PIPELINE,
        **OUTPUT,
        "trainingTaskDefinition": "gs://elsewhere/task.yaml",
        "modelToUpload": model,
    }
    assert find_differences(PIPELINE, answer) == []


@pytest.mark.parametrize(
    "field", ["trainingTaskDefinition", "trainingTaskInputs", "modelToUpload", "modelId"]
)
def test_missing_field_of_pipeline_is_difference(field: str) -> None:
    (difference,) = find_differences(PIPELINE, change_value(PIPELINE, field))
    assert difference == (f"/{field}", None, PIPELINE[field])
    (difference,) = find_differences(change_value(PIPELINE, field), PIPELINE)
    assert difference == (f"/{field}", PIPELINE[field], None)


def test_unknown_field_of_body_counts_as_difference() -> None:
    body = {"script": "echo hello", "name": "night", "labels": LABELS}
    assert find_differences(body, {**body, "state": "RUNNING"}) == []
    assert find_differences(body, {**body, "script": "echo"}) == [("/script", "echo", "echo hello")]


@pytest.mark.parametrize("name", [SOURCE, INSTANCE, KEY, ATTEMPT, CODE])
def test_identifying_label_counts_as_difference(name: str) -> None:
    assert find_differences(CUSTOM, change_value(CUSTOM, "labels", name, to="x")) == [
        (f"/labels/{name}", "x", LABELS[name])
    ]
    assert find_differences(CUSTOM, change_value(CUSTOM, "labels", name)) == [
        (f"/labels/{name}", None, LABELS[name])
    ]
    assert find_differences(change_value(CUSTOM, "labels", name), CUSTOM) == [
        (f"/labels/{name}", LABELS[name], None)
    ]


@pytest.mark.parametrize("name", [REQUEST_ID, COMMIT, "team"])
def test_request_commit_and_user_labels_do_not_count_as_differences(name: str) -> None:
    assert find_differences(CUSTOM, change_value(CUSTOM, "labels", name, to="x")) == []
    assert find_differences(CUSTOM, change_value(CUSTOM, "labels", name)) == []


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("jobSpec", "workerPoolSpecs", 1), POOL),
        (("jobSpec", "workerPoolSpecs", 1), {"replicaCount": "1"}),
        (("jobSpec", "workerPoolSpecs", 0, "pythonPackageSpec", "args", 2), ""),
        (("jobSpec", "workerPoolSpecs", 0, "pythonPackageSpec", "packageUris", 2), "gs://evil/x.tar.gz"),
        (("jobSpec", "workerPoolSpecs", 0, "containerSpec"), {"imageUri": "evil"}),
        (
            ("jobSpec", "workerPoolSpecs", 0, "diskSpec"),
            {"bootDiskType": "pd-standard", "bootDiskSizeGb": 100},
        ),
        (("jobSpec", "scheduling", "strategy"), "SPOT"),
        (("jobSpec", "enableWebAccess"), True),
        (("jobSpec", "network"), "n"),
    ],
)
def test_additional_field_of_job_counts_as_difference(keys: tuple[str | int, ...], value: Any) -> None:
    pointer = "".join(f"/{key}" for key in keys)
    resource = change_value(CUSTOM, *keys, to=value)
    assert find_differences(CUSTOM, resource) == [(pointer, value, None)]
    assert find_differences(resource, CUSTOM) == [(pointer, None, value)]


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("jobSpec", "workerPoolSpecs", 0, "diskSpec"), {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 100}),
        (("jobSpec", "workerPoolSpecs", 0, "containerSpec"), {}),
        (("jobSpec", "workerPoolSpecs", 0, "nfsMounts"), []),
        (("jobSpec", "scheduling", "strategy"), "STRATEGY_UNSPECIFIED"),
        (("jobSpec", "scheduling", "maxWaitDuration"), "86400s"),
        (("jobSpec", "scheduling", "disableRetries"), False),
        (("jobSpec", "network"), ""),
        (("jobSpec", "baseOutputDirectory"), {"outputUriPrefix": ""}),
    ],
)
def test_empty_or_default_field_equals_missing_field(keys: tuple[str | int, ...], value: Any) -> None:
    resource = change_value(CUSTOM, *keys, to=value)
    assert find_differences(CUSTOM, resource) == []
    assert find_differences(resource, CUSTOM) == []


def test_empty_early_stopping_message_counts_as_difference() -> None:
    for value in ({}, {"useElapsedDuration": False}):
        resource = change_value(TUNING, "studySpec", "medianAutomatedStoppingSpec", to=value)
        pointer = "/studySpec/medianAutomatedStoppingSpec"
        assert find_differences(TUNING, resource) == [(pointer, value, None)]
        assert find_differences(resource, TUNING) == [(pointer, None, value)]
    hidden = {**TUNING, "studySpec": {"convexAutomatedStoppingSpec": {}}}
    assert [pointer for pointer, *_ in find_differences(hidden, {**TUNING, "studySpec": {}})] == [
        "/studySpec/convexAutomatedStoppingSpec"
    ]
    nothing = {name: value for name, value in TUNING.items() if name != "studySpec"}
    assert [pointer for pointer, *_ in find_differences(nothing, hidden)] == ["/studySpec"]
    assert [pointer for pointer, *_ in find_differences(hidden, nothing)] == ["/studySpec"]


def test_empty_early_stopping_message_does_not_count_as_left_out() -> None:
    assert not is_left_out(FieldChange("/studySpec/convexAutomatedStoppingSpec", None, {}))
    assert not is_left_out(FieldChange("/studySpec", None, {"convexAutomatedStoppingSpec": {}}))
    assert is_left_out(FieldChange("/studySpec", None, {"metrics": []}))


def test_job_without_usable_labels_differs_in_every_identifying_label() -> None:
    for odd in (None, ["a"], "a", 7):
        pointers = [pointer for pointer, *_ in find_differences(CUSTOM, {**CUSTOM, "labels": odd})]
        assert pointers == sorted(f"/labels/{name}" for name in (SOURCE, INSTANCE, KEY, ATTEMPT, CODE))


SPELLINGS = [
    ("/replicaCount", "2", 2, True),
    ("/replicaCount", "2", 3, False),
    ("/replicaCount", "2", 2.0, True),
    ("/replicaCount", "2", 2.5, False),
    ("/trainingTaskDefinition", "gs://a/custom_task_1.0.1.yaml", "gs://b/custom_task_1.0.0.yaml", True),
    ("/trainingTaskDefinition", "gs://a/custom_task_1.0.1.yaml", None, False),
    ("/x", "1", True, False),
    ("/x", "True", True, False),
    ("/x", "1.0", 1.0, False),
    ("/args/0", "3600s", "3600.0s", False),
    ("/scheduling/timeout", "3600s", "3600.0s", True),
    ("/scheduling/timeout", "3600s", "3600.000000000s", True),
    ("/scheduling/timeout", "0.5s", "0.500s", True),
    ("/scheduling/timeout", "3600s", "3601s", False),
    ("/scheduling/timeout", "3600s", None, False),
    ("/scheduling/timeout", "soon", "later", False),
    ("/scheduling/timeout", "1.2.3s", "1.2.3s.", False),
    ("/scheduling/maxRunningTime", "60s", "60.0s", True),
    ("/scheduling/maxWaitTime", "60s", "60.0s", True),
    ("/scheduling/maxWaitDuration", "60s", "60.0s", True),
    ("/x", "a", "b", False),
    ("/x", 1, 2, False),
    ("/x", -(2**63), str(-(2**63)), True),
    ("/x", 2**64 - 1, str(2**64 - 1), True),
]


@pytest.mark.parametrize(("pointer", "one", "other", "same"), SPELLINGS)
def test_spellings_of_same_value_are_equal(pointer: str, one: Any, other: Any, same: bool) -> None:
    assert is_spelling(FieldChange(pointer, one, other)) == same
    assert is_spelling(FieldChange(pointer, other, one)) == same


def test_spellings_of_numbers_with_thousands_of_digits_are_compared() -> None:
    """A manifest may hold such numbers; Python refuses to print them."""
    assert not is_spelling(FieldChange("/x", 10**5000, "1" + "0" * 5000))
    assert not is_spelling(FieldChange("/timeout", 10**5000, "3600s"))
    assert is_spelling(FieldChange("/timeout", "9" * 5000 + "s", "9" * 5000))


EXPECTED = {
    ("bootDiskSizeGb", 100),
    ("bootDiskType", "hyperdisk-balanced"),
    ("bootDiskType", "pd-ssd"),
    ("evaluatorCount", "0"),
    ("goal", "MAXIMIZE"),
    ("hyperparameterMetricTag", "training/hptuning/metric"),
    ("maxRunningTime", "604800s"),
    ("maxTrials", 1),
    ("maxWaitDuration", "86400s"),
    ("parameterServerCount", "0"),
    ("replicaCount", "1"),
    ("scaleType", "NONE"),
    ("strategy", "STANDARD"),
    ("timeout", "604800s"),
    ("workerCount", "0"),
}


def test_defaults_are_the_documented_values() -> None:
    assert {(name, value) for name, values in DEFAULTS.items() for value in values} == EXPECTED


@pytest.mark.parametrize(("name", "value"), sorted(EXPECTED, key=str))
def test_default_equals_missing_value_only_for_its_field(name: str, value: Any) -> None:
    there = FieldChange(f"/a/{name}", value, None)
    assert is_filled(there)
    assert is_default(FieldChange(f"/a/{name}", None, value))
    assert not is_left_out(FieldChange(f"/a/{name}", None, value))
    assert not is_default(there)
    assert not is_filled(FieldChange("/a/other", value, None))
    assert not is_filled(FieldChange(f"/a/{name}", value, "else"))
    assert not is_filled(FieldChange(f"/a/{name}/0", value, None))
    assert not is_filled(FieldChange(f"/a/{name}", "else", None))
    assert is_filled(FieldChange("/a", {name: value, "more": {"empty": []}}, None))
    assert not is_filled(FieldChange("/a", {name: value, "other": "more"}, None))


@pytest.mark.parametrize("value", [False, 0, 0.0, "", [], {}, {"a": {"b": ""}}, "MODE_UNSPECIFIED"])
def test_empty_value_equals_missing_value_on_either_side(value: Any) -> None:
    assert is_filled(FieldChange("/x", value, None))
    assert is_left_out(FieldChange("/x", None, value))
    assert is_default(FieldChange("/x", None, value))
    assert not is_left_out(FieldChange("/x", "there", value))
    assert not is_left_out(FieldChange("/x/0", None, value))
    assert not is_filled(FieldChange("/x/0", value, None))


@pytest.mark.parametrize("value", [True, 1, 0.1, "a", ["a"], [""], [{}], {"a": "b"}, "UNSPECIFIED", "0"])
def test_non_empty_value_differs_from_missing_value(value: Any) -> None:
    assert not is_filled(FieldChange("/x", value, None))
    assert not is_left_out(FieldChange("/x", None, value))
    assert not is_default(FieldChange("/x", None, value))


def test_default_is_recognised_in_each_spelling() -> None:
    assert is_filled(FieldChange("/replicaCount", 1, None))
    assert is_filled(FieldChange("/timeout", "604800.000s", None))
    assert is_filled(FieldChange("/bootDiskSizeGb", "100", None))
    assert not is_filled(FieldChange("/bootDiskSizeGb", True, None))


# --- every field that a request may set -------------------------------------------------------------------

FIELDS = [
    "displayName",
    "jobId",
    "encryptionSpec",
    "inputDataConfig",
    "jobSpec",
    "maxFailedTrialCount",
    "maxTrialCount",
    "modelId",
    "modelToUpload",
    "parallelTrialCount",
    "parentModel",
    "studySpec",
    "trainingInput",
    "trainingTaskDefinition",
    "trainingTaskInputs",
    "trialJobSpec",
]


def find_pointers(body: dict[str, Any], resource: dict[str, Any]) -> list[str]:
    job = run_of(wanted(), State.RUNNING, body=resource)
    return [change.pointer for change in differences(body, job)]


@pytest.mark.parametrize("field", FIELDS)
def test_known_field_on_either_side_alone_is_difference(field: str) -> None:
    assert find_pointers({}, {field: "set"}) == [f"/{field}"]
    assert find_pointers({field: "set"}, {}) == [f"/{field}"]
    assert find_pointers({field: "set"}, {field: "set"}) == []


def test_unknown_field_counts_as_difference_only_in_request() -> None:
    assert find_pointers({"newField": "set"}, {}) == ["/newField"]
    assert find_pointers({}, {"newField": "set"}) == []


def test_commit_label_is_ignored_and_key_label_is_compared() -> None:
    assert find_pointers({"labels": {COMMIT: "1", KEY: "k"}}, {"labels": {COMMIT: "2", KEY: "k"}}) == []
    assert find_pointers({"labels": {KEY: "k"}}, {"labels": {KEY: "l"}}) == [f"/labels/{KEY}"]


@pytest.mark.parametrize(
    ("asked", "there"),
    [({"replicaCount": 2}, {"replicaCount": "2"}), ({"args": []}, {}), ({}, {"args": []})],
    ids=["another spelling", "left out", "filled in"],
)
def test_other_spelling_or_empty_list_of_service_is_not_difference(asked: object, there: object) -> None:
    assert find_pointers({"jobSpec": asked}, {"jobSpec": there}) == []


@pytest.mark.parametrize(
    ("before", "after", "one"),
    [
        (3600, "3600s", True),
        ("3600s", "3600.0s", True),
        (2**70, 2**71, False),
        ("٣s", "3s", False),
        ("soon", "soon", False),
    ],
)
def test_durations_are_compared_by_value(before: object, after: object, one: bool) -> None:
    assert is_spelling(FieldChange("/timeout", before, after)) is one
    assert is_spelling(FieldChange("/timeout", after, before)) is one


# --- adoption of a job that a person made -----------------------------------------------------------------

PACKAGE = "gs://staging/reconciler/packages/0/x.tar.gz"


def make_body_by_hand(**more: Any) -> dict[str, Any]:
    """Return the body of the same job as a person sends it."""
    return {**body("", **more), "displayName": "census 7", "labels": {"team": "risk"}}


@pytest.fixture
def outside() -> Outside:
    return Outside()


@pytest.fixture
def job(outside: Outside) -> ActualJob:
    return outside.jobs.add(make_body_by_hand())


def make_adoption(job: ActualJob, claim: Claim = CLAIM) -> Adoption:
    return Adoption(
        claim, (claim.id.key,), job.resource, lambda name: make_body_by_hand(), "", lambda uri: False
    )


def adopt_job(outside: Outside, job: ActualJob, claim: Claim = CLAIM) -> Adopted:
    return adopt(outside.ports, make_adoption(job, claim), observe(outside.ports))


def test_adopted_claim_keeps_name_of_job(outside: Outside, job: ActualJob) -> None:
    checked: list[int] = []
    outside.claims.check = lambda runs: checked.append(runs)  # type: ignore[method-assign]
    result = adopt_job(outside, job, replace(CLAIM, on_delete="cancel"))
    claim = result.claim
    assert result == Adopted(outside.claim, "")
    assert claim is not None
    assert (claim.state, claim.resource, claim.job_name) == (ClaimState.BOUND, job.resource, "census 7")
    assert outside.claims.history[0].on_delete == "keep"
    assert (claim.labels, claim.owner) == (labels_digest(job.labels), "a test")
    assert checked == [1, 1]
    assert claim.is_adopted
    assert claim_of(claim_json(claim)) == claim
    assert [run.resource for run in observe(outside.ports).runs] == [job.resource]


@pytest.mark.fault(54)
def test_apply_sends_no_request_for_adopted_content(outside: Outside, job: ActualJob) -> None:
    adopt_job(outside, job)
    assert settle(outside).claim == outside.claim
    assert outside.jobs.sent == []


@pytest.mark.fault(54)
def test_adoption_writes_no_claim_while_request_is_under_way(outside: Outside, job: ActualJob) -> None:
    found = observe(outside.ports)
    settle(outside)
    before = outside.claim
    result = adopt(outside.ports, make_adoption(job), found)
    assert (result.claim, outside.claim) == (None, before)
    assert result.why == "is too late: another process has just claimed the manifest's content"


@pytest.mark.fault(54)
def test_simultaneous_adoptions_both_return_adopted_claim(outside: Outside, job: ActualJob) -> None:
    results: list[Adopted] = []

    def adopt_meanwhile(claim: Claim) -> None:
        outside.claims.before_write = lambda claim: None
        results.append(adopt_job(outside, job))

    outside.claims.before_write = adopt_meanwhile
    results.append(adopt_job(outside, job))
    assert [result.claim for result in results] == [outside.claim, outside.claim]
    assert len(outside.claims.history) == 1


@pytest.mark.fault(54)
@pytest.mark.parametrize("fault", ["lost", "denied"])
def test_adoption_succeeds_when_claim_write_took_effect_without_success_answer(
    fault: str, outside: Outside, job: ActualJob
) -> None:
    outside.claims.faults = [fault]
    assert adopt_job(outside, job).claim == outside.claim


@pytest.mark.fault(54)
def test_repeated_adoption_succeeds_after_failed_write(outside: Outside, job: ActualJob) -> None:
    outside.claims.faults = ["failed"]
    with pytest.raises(ServiceError, match="the store is away"):
        adopt_job(outside, job)
    assert outside.claims.held == {}
    assert adopt_job(outside, job).claim == adopt_job(outside, job).claim == outside.claim


def test_adoption_fails_when_store_was_emptied(outside: Outside, job: ActualJob) -> None:
    found = observe(outside.ports)
    outside.claims.genesis = False
    with pytest.raises(ServiceError, match="no genesis"):
        adopt(outside.ports, make_adoption(job), found)


def claim_for_other_content(outside: Outside, job: ActualJob) -> None:
    claim = replace(CLAIM, id=ClaimId("z" * 52), base_name="other", state=ClaimState.BOUND)
    outside.claims.write(replace(claim, resource=job.resource), 0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda outside, job: outside.jobs.jobs.clear(), "no longer exists"),
        (lambda outside, job: outside.jobs.becomes(job, State.FAILED), "has ended (FAILED)"),
        (claim_for_other_content, "is the job of the manifest other already"),
        (
            lambda outside, job: settle(outside, ORDER),
            "is too late: the manifest was submitted already (census_0123, bound)",
        ),
        (
            lambda outside, job: outside.jobs.add({**body("t"), "labels": labels(KEY_1)}),
            "is not the manifest's only job: projects/acme/locations/here/customJobs/2 has its labels",
        ),
    ],
    ids=["gone", "ended", "other", "begun", "labelled"],
)
def test_job_that_cannot_belong_to_manifest_is_not_adopted(
    change: Callable[[Outside, ActualJob], object], why: str, outside: Outside, job: ActualJob
) -> None:
    change(outside, job)
    before = dict(outside.claims.held)
    assert adopt_job(outside, job) == Adopted(None, why)
    assert outside.claims.held == before


def test_job_with_labels_of_another_repository_is_not_adopted(outside: Outside) -> None:
    job = outside.jobs.add({**make_body_by_hand(), "labels": labels("x" * 52, source="others")})
    assert adopt_job(outside, job).why.startswith("has the label reconciler-")


def test_differences_are_named_without_secrets(outside: Outside) -> None:
    secret = "AKIA" + "Q3R7T2U6V4W5X7YZ"
    job = outside.jobs.add(make_body_by_hand(serviceAccount="a@b", network=secret))
    result = adopt_job(outside, job)
    assert (result.claim, result.why) == (None, "differs from the manifest's job")
    found = {field.pointer: (field.before, field.after) for field in result.fields}
    assert found.keys() == {"/jobSpec/network", "/jobSpec/serviceAccount"}
    assert found["/jobSpec/serviceAccount"] == ("a@b", None)
    assert secret not in str(found)


def test_job_is_read_by_its_kind(outside: Outside, job: ActualJob) -> None:
    asked: list[tuple[str, str, str]] = []

    def read(api_version: str, kind: str, resource: str) -> ActualJob:
        asked.append((api_version, kind, resource))
        return job

    outside.jobs.read = read  # type: ignore[method-assign]
    adopt_job(outside, job)
    assert asked == [(CLAIM.api_version, CLAIM.kind, job.resource)]


def test_adopted_job_is_not_claimed_again(outside: Outside, job: ActualJob) -> None:
    first = adopt_job(outside, job)
    outside.claims.before_write = lambda claim: pytest.fail("a second write")
    assert adopt_job(outside, job) == first


def test_write_without_effect_is_lost_to_another_process(
    outside: Outside, job: ActualJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside.claims, "write", lambda claim, generation: None)
    assert adopt_job(outside, job).why.startswith("is too late: another process")


def test_written_claim_is_not_read_again(
    outside: Outside, job: ActualJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside.claims, "read", lambda id: pytest.fail("a needless read"))
    assert adopt_job(outside, job).claim == outside.claim


@pytest.fixture
def pipeline(outside: Outside) -> ActualJob:
    """A pipeline as the service answers it: without input-only fields, and with fields of its own."""
    model = {"displayName": "census", "artifactUri": "gs://b/model"}
    answer = {**make_body_by_hand(), "trainingTaskDefinition": "gs://b/task.yaml", "modelToUpload": model}
    return outside.jobs.add(answer)


def make_pipeline_adoption(job: ActualJob) -> Adoption:
    model = {
        "displayName": "census",
        "containerSpec": {"imageUri": "serving"},
        "explanationSpec": {"parameters": {"topK": 3}},
        "versionAliases": [],
    }
    asked = {
        **make_body_by_hand(),
        "labels": {"team": "risk", "stage": "test"},
        "trainingTaskDefinition": "gs://a/task.yaml",
        "modelToUpload": model,
    }
    return replace(make_adoption(job), body=lambda name: asked)


def test_adoption_names_fields_of_model_that_service_does_not_return(
    outside: Outside, pipeline: ActualJob
) -> None:
    """Defaults aren't named, nor what the service adds, nor fields outside the model."""
    result = adopt(outside.ports, make_pipeline_adoption(pipeline), observe(outside.ports))
    assert result.claim == outside.claim
    assert result.uncompared == ("modelToUpload.containerSpec", "modelToUpload.explanationSpec")


def test_refused_adoption_names_no_uncompared_fields(
    outside: Outside, pipeline: ActualJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside.claims, "write", lambda claim, generation: None)
    result = adopt(outside.ports, make_pipeline_adoption(pipeline), observe(outside.ports))
    assert (result.claim, result.uncompared) == (None, ())


SAME = "gs://mine/a.tar.gz"


@pytest.mark.parametrize(
    ("uris", "more", "held", "pointers"),
    [
        ([SAME], {}, [SAME], []),
        (["gs://mine/b.tar.gz"], {}, [SAME], ["/jobSpec/packageUris/0"]),
        (["gs://mine/b.tar.gz"], {}, [PACKAGE], ["/jobSpec/packageUris/0"]),
        ([PACKAGE], {}, [PACKAGE], []),
        ([PACKAGE], {}, [], ["/package"]),
        ([PACKAGE], {"network": "n"}, [], ["/jobSpec/network", "/package"]),
        ([SAME], {"network": SAME}, [SAME], ["/jobSpec/network"]),
        ([], {}, [None], ["/jobSpec/packageUris/0"]),
    ],
    ids=["elsewhere", "other", "other-beside", "same", "changed", "and-more", "only-code", "none"],
)
def test_package_counts_by_its_bytes(
    uris: list[str], more: dict[str, str], held: list[str], pointers: list[str], outside: Outside
) -> None:
    job = outside.jobs.add(make_body_by_hand(packageUris=uris, **more))
    wanted = make_body_by_hand(packageUris=[PACKAGE])
    adoption = Adoption(CLAIM, (KEY_1,), job.resource, lambda name: wanted, PACKAGE, held.__contains__)
    result = adopt(outside.ports, adoption, observe(outside.ports))
    assert [field.pointer for field in result.fields] == pointers
    assert (result.claim is None) == bool(pointers)
    if pointers[-1:] == ["/package"]:
        assert (result.fields[-1].before, result.fields[-1].after) == (PACKAGE, "other bytes")
