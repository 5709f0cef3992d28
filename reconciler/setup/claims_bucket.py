"""The bucket of claims: made where it is missing, checked where it exists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reconciler.base.errors import ServiceError
from reconciler.google.claim_store import PREFIX
from reconciler.google.client import execute
from reconciler.google.responses import ApiError, NotFoundAtServiceError
from reconciler.model.fields import part_of, text_of
from reconciler.model.manifest import JsonObject
from reconciler.setup.next_steps import Step, grants

if TYPE_CHECKING:  # most set-ups open no session
    from reconciler.operations.session import Session


_FIELDS = "name,location,iamConfiguration,lifecycle,retentionPolicy,versioning,softDeletePolicy"
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
        ServiceError: A rule of the bucket deletes claims, and nothing was changed; or a service can't be
            reached, or denies the request.
    """
    bucket = session.environment.claims_bucket
    resource = _bucket(session)
    # All checks come before the first write.
    if resource is not None:
        _refuse_deletion(bucket, resource)
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
        _refuse_deletion(environment.claims_bucket, resource)
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


def _refuse_deletion(bucket: str, resource: JsonObject) -> None:
    """Raise ServiceError if the bucket's rules delete claims, or prevent updates of them."""
    if part_of(resource, "retentionPolicy"):
        raise ServiceError(
            f"the bucket {bucket} has a retention policy, but claims are rewritten often",
            hint=f"run `gcloud storage buckets update gs://{bucket} --clear-retention-period`, or name "
            'another bucket under "claimsBucket"',
        )
    rules = part_of(resource, "lifecycle").get("rule")
    if isinstance(rules, list) and any(_deletes_claims(rule) for rule in rules if isinstance(rule, dict)):
        raise ServiceError(
            f"a lifecycle rule of the bucket {bucket} deletes objects: without its claim, a job would be "
            "submitted a second time",
            hint=f"run `gcloud storage buckets update gs://{bucket} --clear-lifecycle`, limit the rule by "
            f'matchesPrefix to other names than "{PREFIX}…", or name another bucket under "claimsBucket"',
        )


def _deletes_claims(rule: JsonObject) -> bool:
    condition = part_of(rule, "condition")
    if part_of(rule, "action").get("type") != "Delete" or _only_old_versions(condition):
        return False
    given = condition.get("matchesPrefix")
    # An unreadable prefix counts as no limit, so that the bucket is refused.
    prefixes = given if isinstance(given, list) and given else [""]
    texts = [prefix if isinstance(prefix, str) else "" for prefix in prefixes]
    return any(prefix.startswith(PREFIX) or PREFIX.startswith(prefix) for prefix in texts)


def _only_old_versions(condition: JsonObject) -> bool:
    """Return True if only noncurrent versions of objects can meet the condition."""
    counted = (condition.get(name) for name in ("numNewerVersions", "daysSinceNoncurrentTime"))
    return (
        condition.get("isLive") is False
        or any(isinstance(number, int) and number > 0 for number in counted)
        or bool(text_of(condition, "noncurrentTimeBefore"))
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
