"""Why Google refuses a request that no role would have permitted, and the remedy of each reason.

Google names the reason in `google.rpc.ErrorInfo` among the error's details, by the values of
https://cloud.google.com/php/docs/reference/common-protos/latest/Api.ErrorReason, and Cloud Storage, which is
older, in `errors`: https://cloud.google.com/storage/docs/json_api/v1/status-codes. Where neither does, as for
encryption keys, the message says it.
"""

from __future__ import annotations

import re

from reconciler.model.fields import part_of, parts_of, text_of
from reconciler.model.manifest import JsonObject

_SERVICE = re.compile(r"[a-z0-9.-]{1,100}")
_CONSUMER = re.compile(r"projects/([a-z0-9.:-]{1,100})")

_BILLING = (
    "no billing account pays for {project}: link an open one, `gcloud billing projects link {project} "
    "--billing-account=ACCOUNT`, and try again a few minutes later"
)
_ORGANIZATION = (
    "a policy of the organization forbids this, whatever roles the identity has: ask who manages it"
)
_QUOTA_PROJECT = (
    "the identity may not use the quota project {project}: give it roles/serviceusage.serviceUsageConsumer "
    "there, or use another one: `gcloud auth application-default set-quota-project PROJECT`"
)
_REQUESTER_PAYS = (
    "the bucket lets the requester pay, which the reconciler doesn't: use another bucket, or run `gcloud "
    "storage buckets update gs://BUCKET --no-requester-pays`"
)
_SUSPENDED = "Google has suspended {project}: its owners have a mail that says why, and how to appeal"
_REMEDIES = {
    "SERVICE_DISABLED": "enable the API, `gcloud services enable {service} --project={project}`, and try "
    "again a few minutes later",
    "BILLING_DISABLED": _BILLING,
    "CONSUMER_INVALID": 'Google has no project {project}, or it was deleted: correct "project" in '
    "reconciler.yaml",
    "CONSUMER_SUSPENDED": _SUSPENDED,
    "GCP_SUSPENDED": _SUSPENDED,
    "SECURITY_POLICY_VIOLATED": "a perimeter of VPC Service Controls keeps this machine or identity out, "
    "whatever roles it has: give the identifier in the message to who manages the perimeter",
    "USER_PROJECT_DENIED": _QUOTA_PROJECT,
    "ACCESS_TOKEN_SCOPE_INSUFFICIENT": "the token lacks the scope "
    "https://www.googleapis.com/auth/cloud-platform: run `gcloud auth application-default login`, or give "
    "the machine's service account that scope",
    "ORG_RESTRICTION_VIOLATION": _ORGANIZATION,
    "LOCATION_POLICY_VIOLATED": _ORGANIZATION,
    "RESOURCE_USAGE_RESTRICTION_VIOLATED": _ORGANIZATION,
    "accountDisabled": _BILLING,
    "UserProjectAccountProblem": _BILLING,
    "UserProjectAccessDenied": _QUOTA_PROJECT,
    "orgPolicyConstraintFailed": _ORGANIZATION,
    "retentionPolicyNotMet": "a retention policy keeps this object as it is until the time in the message: "
    "use a bucket without one, as what the reconciler keeps is written again and again",
    "objectUnderActiveHold": "a hold keeps this object as it is: release it, `gcloud storage objects update "
    "gs://BUCKET/NAME --no-event-based-hold --no-temporary-hold`, and use a bucket that puts none on them",
}
_REMEDIES["accessNotConfigured"] = _REMEDIES["SERVICE_DISABLED"]
_BY_WORDS = {
    "cloud kms key": "the service that encrypts with this key may not use it: give its service agent, not "
    "this identity, roles/cloudkms.cryptoKeyEncrypterDecrypter on the key; for Cloud Storage by `gcloud "
    "storage service-agent --project={project} --authorize-cmek=KEY`",
    "serviceusage.services.use": _QUOTA_PROJECT,
    "scope": _REMEDIES["ACCESS_TOKEN_SCOPE_INSUFFICIENT"],
}


def remedy_of(error: JsonObject, *, is_denied: bool) -> str:
    """Return the remedy of an error's reason; "" if the reason is unknown, or a role is what is missing.

    Args:
        error: The field `error` of a response, a `google.rpc.Status` or the form of Cloud Storage.
        is_denied: True for a 403, whose message may say the reason.
    """
    details = parts_of(error, "details")
    for part in (*details, *parts_of(error, "errors")):
        if (reason := text_of(part, "reason")) in _REMEDIES:
            return _REMEDIES[reason].format(**_values(part_of(part, "metadata")))
    violations = (violation for detail in details for violation in parts_of(detail, "violations"))
    if "requester pays bucket" in text_of(error, "message").lower():
        return _REQUESTER_PAYS
    if any("constraints/" in f"{text_of(v, 'type')} {text_of(v, 'description')}" for v in violations):
        return _ORGANIZATION
    message = text_of(error, "message").lower() if is_denied else ""
    remedies = (remedy for words, remedy in _BY_WORDS.items() if words in message)
    return next(remedies, "").format(**_values({}))


def _values(metadata: JsonObject) -> dict[str, str]:
    """Return what an error's metadata name; a placeholder for what they don't."""
    service = _SERVICE.fullmatch(text_of(metadata, "service"))
    consumer = _CONSUMER.fullmatch(text_of(metadata, "consumer"))
    return {"service": service[0] if service else "API", "project": consumer[1] if consumer else "PROJECT"}
