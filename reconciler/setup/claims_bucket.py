"""The bucket of claims: made where it is missing, checked where it exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reconciler.base.errors import ServiceError
from reconciler.google.claim_store import PREFIX
from reconciler.google.client import execute
from reconciler.google.responses import ApiError, NotFoundAtServiceError
from reconciler.model.fields import part_of, parts_of, text_of
from reconciler.model.manifest import JsonObject
from reconciler.setup.next_steps import Step, grants

if TYPE_CHECKING:  # most set-ups open no session
    from reconciler.operations.session import Session


_FIELDS = (
    "name,location,iamConfiguration,lifecycle,retentionPolicy,versioning,softDeletePolicy,"
    "defaultEventBasedHold,billing"
)
_OTHER_NAMES = re.compile("[^A-Za-z0-9_-]")
"""A character that no object in the folder of claims has behind the last slash of its name."""
_CONFLICT = 409


@dataclass(frozen=True, slots=True)
class Prepared:
    """Claims bucket that is ready.

    Attributes:
        bucket: Its name without `gs://`.
        folder: The prefix of the names of this repository's claims.
        location: The bucket's location; "" if the service doesn't report it.
        made: True if this call created the bucket.
        runs: The number of this repository's runs that exist already.
        warnings: Settings that make claims less safe.
        steps: The permissions to grant; none for the embedded service.
    """

    bucket: str
    folder: str
    location: str
    made: bool
    runs: int
    warnings: tuple[Step, ...]
    steps: tuple[Step, ...]


def prepare_claims(session: Session, *, changes_owner: bool = False) -> Prepared:
    """Create the bucket and initialize the claims, unless both are done; repeated calls change nothing.

    With `changes_owner`, the claims belong to the repository of this run of GitHub Actions; elsewhere to
    none, so that the next command in Actions records its own.

    Raises:
        ServiceError: The bucket's settings don't fit claims, and nothing was changed; or a service can't be
            reached, or denies the request.
    """
    bucket = session.environment.claims_bucket
    resource = _bucket(session)
    # All checks come before the first write.
    if resource is not None:
        _refuse_unfit(session, resource)
    runs = len(session.runs())
    ready = resource if resource is not None else _create(session)
    session.claims.prepare()
    if changes_owner:
        session.claims.change_owner()
    return Prepared(
        bucket=bucket,
        folder=session.claims.folder,
        location=text_of(ready, "location"),
        made=resource is None,
        runs=runs,
        warnings=() if session.is_local else tuple(_warnings(session, ready)),
        steps=() if session.is_local else tuple(grants(session.environment, session.config.source)),
    )


def _bucket(session: Session) -> JsonObject | None:
    bucket = session.environment.claims_bucket
    try:
        buckets = session.connection.client("storage.buckets")
        resource: JsonObject = execute(buckets.get(bucket=bucket, fields=_FIELDS))
        return resource
    except NotFoundAtServiceError:
        return None
    except ApiError as error:
        raise _explained(session, error) from None


def _create(session: Session) -> JsonObject:
    environment = session.environment
    body = {
        "name": environment.claims_bucket,
        "location": environment.location,
        "iamConfiguration": {
            "uniformBucketLevelAccess": {"enabled": True},
            "publicAccessPrevention": "enforced",
        },
        "versioning": {"enabled": True},
    }
    buckets = session.connection.client("storage.buckets")
    try:
        made: JsonObject = execute(buckets.insert(project=environment.project, body=body))
    except ApiError as error:
        # A concurrent call may have created it. Google also returns 409 for another project's bucket.
        resource = _bucket(session) if error.status == _CONFLICT else None
        if resource is None:
            raise _explained(session, error) from None
        _refuse_unfit(session, resource)
        return resource
    return made


def _explained(session: Session, error: ApiError) -> ServiceError:
    environment = session.environment
    # A 404 from a proxy, for example, doesn't mean that the project is missing.
    status = error.status if error.status != 404 or isinstance(error, NotFoundAtServiceError) else 0
    hints = {
        400: 'correct "location" or "claimsBucket" in reconciler.yaml',
        403: f"the account that prepares it needs the role roles/storage.admin in the project "
        f"{environment.project}",
        404: f'the project {environment.project} may not exist: correct "project" in reconciler.yaml',
        409: "bucket names are shared by all of Google Cloud: choose another one under "
        '"claimsBucket" in reconciler.yaml',
        412: "a policy of the organization forbids a bucket like this: ask an administrator to create one "
        "that it allows",
    }
    return ServiceError(
        f"the claims bucket {environment.claims_bucket} can't be prepared: {error.message}",
        hint=error.remedy or hints.get(status) or error.hint or "try again when Cloud Storage answers",
    )


def _refuse_unfit(session: Session, resource: JsonObject) -> None:
    """Raise ServiceError if the bucket's settings delete claims, or keep them from being written again."""
    bucket, folder = session.environment.claims_bucket, f"{PREFIX}{session.config.source}/"
    other = 'name another bucket under "claimsBucket"'
    update = f"gcloud storage buckets update gs://{bucket}"
    if policy := part_of(resource, "retentionPolicy"):
        # A locked policy can't be removed.
        clear = "" if policy.get("isLocked") is True else f", or run `{update} --clear-retention-period`"
        raise ServiceError(
            f"the bucket {bucket} has a retention policy, but claims are rewritten often", hint=other + clear
        )
    if resource.get("defaultEventBasedHold") is True:
        raise ServiceError(
            f"the bucket {bucket} puts a hold on each new object, but claims are rewritten often",
            hint=f"{other}, or run `{update} --no-default-event-based-hold`",
        )
    if part_of(resource, "billing").get("requesterPays") is True:
        raise ServiceError(
            f"the bucket {bucket} lets the requester pay, and refuses requests that name no project to pay",
            hint=f"{other}, or run `{update} --no-requester-pays`",
        )
    rules = parts_of(part_of(resource, "lifecycle"), "rule")
    if any(_deletes_claims(rule, folder) for rule in rules):
        show = f"gcloud storage buckets describe gs://{bucket} --format='json(lifecycle_config)'"
        raise ServiceError(
            f"a lifecycle rule of the bucket {bucket} deletes objects: without its claim, a job would be "
            "submitted a second time",
            hint=f'except "{folder}" from the rule: `{show}` shows it, give it a matchesPrefix with the '
            f"names that it is for, and run `{update} --lifecycle-file=FILE`; or {other}. Only if nobody "
            f"needs the bucket's rules, run `{update} --clear-lifecycle`",
        )


def _deletes_claims(rule: JsonObject, folder: str) -> bool:
    """Return True if a rule may delete an object in the folder; an unreadable condition counts as none."""
    condition = part_of(rule, "condition")
    if part_of(rule, "action").get("type") != "Delete" or _is_for_other_objects(condition):
        return False
    prefixes = _texts(condition, "matchesPrefix")
    suffixes = _texts(condition, "matchesSuffix")
    return any(prefix.startswith(folder) or folder.startswith(prefix) for prefix in prefixes) and not all(
        _OTHER_NAMES.search(suffix.rpartition("/")[2]) for suffix in suffixes
    )


def _texts(condition: JsonObject, name: str) -> list[str]:
    """Return a condition's texts, "" for one that can't be read; a single "" for no condition."""
    given = condition.get(name)
    texts = given if isinstance(given, list) and given else [""]
    return [text if isinstance(text, str) else "" for text in texts]


def _is_for_other_objects(condition: JsonObject) -> bool:
    """Return True if only noncurrent versions can meet the condition, or objects with a custom time.

    Nothing in the folder of claims has a custom time.
    """
    newer, days = condition.get("numNewerVersions"), condition.get("daysSinceNoncurrentTime")
    return (
        condition.get("isLive") is False
        or (isinstance(newer, int) and newer > 0)
        or isinstance(days, int)
        or isinstance(condition.get("daysSinceCustomTime"), int)
        or any(text_of(condition, name) for name in ("noncurrentTimeBefore", "customTimeBefore"))
    )


def _warnings(session: Session, resource: JsonObject) -> Iterator[Step]:
    environment = session.environment
    bucket, access = environment.claims_bucket, part_of(resource, "iamConfiguration")
    update = f"gcloud storage buckets update gs://{bucket}"
    if bucket == environment.staging_bucket:
        yield Step(
            "the claims are in the staging bucket: a training job that may write there can overwrite or "
            "delete them, and jobs would be submitted again; use a bucket that jobs can't write to",
            'name it under "claimsBucket" in reconciler.yaml, and run this command again',
        )
    if part_of(access, "uniformBucketLevelAccess").get("enabled") is not True:
        yield Step(
            "single objects of the bucket may have permissions of their own",
            f"{update} --uniform-bucket-level-access",
        )
    if text_of(access, "publicAccessPrevention") != "enforced":
        yield Step("the bucket may be made public", f"{update} --public-access-prevention")
    if part_of(resource, "versioning").get("enabled") is not True:
        yield Step("a claim deleted by mistake can be restored for a few days only", f"{update} --versioning")
