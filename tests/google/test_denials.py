"""Reasons of Google's refusals, in bodies as Google sends them: each has a remedy of its own."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from reconciler.base.errors import ServiceError
from reconciler.engines.api.vertex_ai import VertexAi
from reconciler.google.claim_store import ObjectClaims
from reconciler.google.credentials import GeneratedTokens
from reconciler.google.publication_store import PublicationStore
from reconciler.google.responses import ApiError, api_error
from reconciler.model.ports import GOOGLE_BOUNDS
from tests.support.opened import LOCATION, PROJECT, connected
from tests.support.raw_server import RawServer, answer

DATE = "Sat, 21 Nov 2026 13:06:11 GMT"


def infos(reason: str, **metadata: str) -> list[dict[str, Any]]:
    """Return the details of an error with the domain of Google's own services."""
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "domain": "googleapis.com"}
    return [{**info, "reason": reason, "metadata": metadata}]


def denied(message: str, details: list[dict[str, Any]]) -> dict[str, Any]:
    return {"code": 403, "message": message, "status": "PERMISSION_DENIED", "details": details}


def denied_by_storage(message: str, reason: str, code: int = 403) -> dict[str, Any]:
    errors = [{"message": message, "domain": "global", "reason": reason}]
    return {"code": code, "message": message, "errors": errors}


_ENABLE = "https://console.developers.google.com/apis/api/aiplatform.googleapis.com/overview?project=acme-ml"
# As reported in public: the sources are beside each, and only the names are changed.
RECORDED: dict[str, dict[str, Any]] = {
    # github.com/google-gemini/gemini-cli/issues/1343
    "API not enabled": denied(
        "Vertex AI API has not been used in project acme-ml before or it is disabled. Enable it by visiting "
        f"{_ENABLE} then retry. If you enabled this API recently, wait a few minutes for the action to "
        "propagate to our systems and retry.",
        infos(
            "SERVICE_DISABLED",
            serviceTitle="Vertex AI API",
            consumer="projects/acme-ml",
            containerInfo="acme-ml",
            service="aiplatform.googleapis.com",
            activationUrl=_ENABLE,
        ),
    ),
    # github.com/GoogleCloudPlatform/php-docs-samples/issues/1235
    "no billing": denied(
        "This API method requires billing to be enabled. Please enable billing on project #1051023892108 by "
        "visiting https://console.developers.google.com/billing/enable?project=1051023892108 then retry.",
        infos("BILLING_DISABLED", service="vision.googleapis.com", consumer="projects/1051023892108"),
    ),
    # github.com/googleapis/python-storage/issues/1456
    "no billing of a bucket": denied_by_storage(
        "The billing account for the owning project is disabled in state absent", "accountDisabled"
    ),
    # github.com/cloudquery/cloudquery/issues/1062
    "VPC Service Controls": denied(
        "Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: eYhDkfYCu-dO",
        [
            {
                "@type": "type.googleapis.com/google.rpc.PreconditionFailure",
                "violations": [{"type": "VPC_SERVICE_CONTROLS", "description": "eYhDkfYCu-dOCjuj"}],
            },
            *infos(
                "SECURITY_POLICY_VIOLATED",
                service="firestore.googleapis.com",
                uid="eYhDkfYCu-dOCjuj",
                consumer="projects/acme-ml",
            ),
        ],
    ),
    # github.com/googleapis/google-cloud-java/issues/3594
    "key": denied_by_storage(
        "Permission denied on Cloud KMS key. Please ensure that your Cloud Storage service account has been "
        "authorized to use this key.",
        "forbidden",
    ),
    # cloud.google.com/storage/docs/json_api/v1/status-codes, github.com/treeverse/lakeFS/issues/1339
    "retention": denied_by_storage(
        "Object 'acme-claims/reconciler/claims/a' is subject to bucket's retention policy and cannot be "
        "deleted, overwritten or archived until 2026-12-05T11:36:47.70576-08:00",
        "retentionPolicyNotMet",
    ),
    "hold": denied_by_storage(
        "Object 'acme-claims/reconciler/claims/a' is under active Event-Based hold and cannot be deleted, "
        "overwritten or archived until hold is removed.",
        "objectUnderActiveHold",
    ),
    # github.com/lbjlaq/Antigravity-Manager/issues/3050
    "quota project": denied(
        "Caller does not have required permission to use project acme-quota. Grant the caller the "
        "roles/serviceusage.serviceUsageConsumer role, or a custom role with the serviceusage.services.use "
        "permission, by visiting https://console.developers.google.com/iam-admin/iam?project=acme-quota and "
        "then retry. Propagation of the new permission may take a few minutes.",
        infos(
            "USER_PROJECT_DENIED",
            containerInfo="acme-quota",
            consumer="projects/acme-quota",
            service="aiplatform.googleapis.com",
        ),
    ),
    # github.com/googleapis/google-cloud-ruby/issues/6456
    "quota project of a bucket": denied_by_storage(
        "ci@acme-ml.iam.gserviceaccount.com does not have serviceusage.services.use access to the Google "
        "Cloud project.",
        "forbidden",
    ),
    # cloud.google.com/resource-manager/docs/organization-restrictions/error-messages
    "organization policy": denied(
        "Access denied by organization restriction. Please contact your administrator for additional "
        "information.",
        infos("ORG_RESTRICTION_VIOLATION", service="aiplatform.googleapis.com"),
    ),
    # github.com/firebase/firebase-tools/issues/1978
    "organization policy on locations": {
        "code": 400,
        "message": "The request has violated one or more Org Policies. Please refer to the respective "
        "violations for more information.",
        "status": "FAILED_PRECONDITION",
        "details": [
            {
                "@type": "type.googleapis.com/google.rpc.PreconditionFailure",
                "violations": [
                    {
                        "type": "constraints/gcp.resourceLocations",
                        "subject": "orgpolicy:projects/acme-ml",
                        "description": "Constraint constraints/gcp.resourceLocations violated",
                    }
                ],
            }
        ],
    },
    # github.com/opentargets/issues/issues/2338
    "requester pays": denied_by_storage(
        "Bucket is requester pays bucket but no user project provided.", "required", 400
    ),
    # github.com/googleapis/python-aiplatform/issues/902
    "scope": denied(
        "Request had insufficient authentication scopes.",
        infos("ACCESS_TOKEN_SCOPE_INSUFFICIENT", service="aiplatform.googleapis.com"),
    ),
    # github.com/GoogleCloudPlatform/training-data-analyst/issues/1811
    "no such project": denied(
        "Permission denied on resource project acme-ml-2.",
        infos("CONSUMER_INVALID", consumer="projects/acme-ml-2", service="aiplatform.googleapis.com"),
    ),
}
# github.com/GoogleCloudPlatform/t5x-on-vertex-ai/issues/5
ROLE = denied(
    "Permission 'aiplatform.customJobs.list' denied on resource "
    "'//aiplatform.googleapis.com/projects/acme-ml/locations/us-central1' (or it may not exist).",
    [
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "IAM_PERMISSION_DENIED",
            "domain": "aiplatform.googleapis.com",
            "metadata": {
                "permission": "aiplatform.customJobs.list",
                "resource": "projects/acme-ml/locations/us-central1",
            },
        }
    ],
)
REMEDIES = {
    "API not enabled": "`gcloud services enable aiplatform.googleapis.com --project=acme-ml`",
    "no billing": "`gcloud billing projects link 1051023892108 --billing-account=ACCOUNT`",
    "no billing of a bucket": "`gcloud billing projects link PROJECT --billing-account=ACCOUNT`",
    "VPC Service Controls": "give the identifier in the message to who manages the perimeter",
    "key": "--authorize-cmek=KEY`",
    "retention": "use a bucket without one",
    "hold": "--no-event-based-hold --no-temporary-hold`",
    "quota project": "may not use the quota project acme-quota",
    "quota project of a bucket": "`gcloud auth application-default set-quota-project PROJECT`",
    "organization policy": "a policy of the organization forbids this",
    "organization policy on locations": "a policy of the organization forbids this",
    "requester pays": "gs://BUCKET --no-requester-pays`",
    "scope": "`gcloud auth application-default login`",
    "no such project": 'Google has no project acme-ml-2, or it was deleted: correct "project"',
}


def error_of(error: dict[str, Any]) -> ApiError:
    return api_error(error["code"], json.dumps({"error": error}).encode())


@pytest.mark.parametrize("name", RECORDED)
def test_each_reason_has_its_own_remedy(name: str) -> None:
    error = error_of(RECORDED[name])
    assert REMEDIES[name] in error.remedy
    assert error.hint == error.remedy
    assert "reconciler init --claims" not in error.hint
    same = [other for other in RECORDED if REMEDIES[name] in error_of(RECORDED[other]).remedy]
    assert {re.split(" o[fn] ", other)[0] for other in same} == {re.split(" o[fn] ", name)[0]}


def test_missing_role_is_no_other_reason() -> None:
    error = error_of(ROLE)
    assert error.remedy == ""
    assert "`reconciler init --claims` prints who needs which role" in error.hint


@pytest.mark.parametrize(
    "details",
    [
        None,
        7,
        [None, 7, "SERVICE_DISABLED", []],
        infos("A_REASON_OF_TOMORROW", service="aiplatform.googleapis.com"),
        [{"reason": 7, "metadata": []}],
        [{"violations": [None, {"type": 7}]}],
    ],
)
def test_details_without_a_known_reason_leave_the_role(details: Any) -> None:
    error = error_of({"code": 403, "message": "no", "status": "PERMISSION_DENIED", "details": details})
    assert (error.remedy, "needs which role" in error.hint) == ("", True)


@pytest.mark.parametrize("value", ["a b", "`rm -rf /`", "x" * 200, "projects/", "projects/{service}", ""])
def test_metadata_put_no_other_text_into_a_command(value: str) -> None:
    error = error_of(denied("no", infos("SERVICE_DISABLED", service=value, consumer=value)))
    assert "`gcloud services enable API --project=PROJECT`" in error.remedy


def test_scope_in_the_message_of_another_refusal_is_no_missing_scope() -> None:
    assert error_of({"code": 400, "message": "the scope of the job"}).remedy == ""


@pytest.mark.parametrize("name", [name for name in RECORDED if RECORDED[name]["code"] == 403])
def test_whoever_explains_a_refusal_prints_the_remedy_in_place_of_a_role(name: str) -> None:
    body = json.dumps({"error": RECORDED[name]}).encode()
    with RawServer([answer(403, body, date=DATE)]).running() as server:
        connection = connected(server.url)
        claims = ObjectClaims(connection, "acme-claims", "acme-jobs", PROJECT, LOCATION, may_be_new=False)
        tokens = GeneratedTokens(connection, "ci@acme-ml.iam.gserviceaccount.com", GOOGLE_BOUNDS.lifetime)
        for act in (
            lambda: claims.check(0),
            PublicationStore(connection, "gs://acme-models/census").current,
            tokens.mint,
            lambda: VertexAi(connection).jobs({}),
        ):
            with pytest.raises(ServiceError) as caught:
                act()
            assert REMEDIES[name] in caught.value.hint
            assert "roles/storage" not in caught.value.hint
            assert "TokenCreator" not in caught.value.hint
