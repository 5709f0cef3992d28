"""Buckets of output folders that the embedded service doesn't have yet."""

from __future__ import annotations

from msgspec.structs import replace

from reconciler.google.responses import NotFoundAtServiceError
from reconciler.model.manifest import ML_V1
from reconciler.model.plan import Plan
from reconciler.model.reason import ReasonCode, because
from reconciler.operations.session import Session
from reconciler.planning.planner import with_blocked


def with_new_buckets(session: Session, plan: Plan) -> Plan:
    """Return a plan of the embedded service with the buckets that its runs would make; others as they are.

    Submissions to AI Platform whose bucket is missing are blocked: their create would be refused.

    Args:
        plan: From `with_output_folders`.
    """
    if not session.is_local:
        return plan
    of_changes = [
        (change.output.removeprefix("gs://").partition("/")[0], change.desired)
        for change in plan.changes
        if change.output and change.desired
    ]
    named = {*session.config.buckets_of(session.environment), *session.config.public_buckets}
    asked = {bucket for bucket, _ in of_changes} - named
    missing = {bucket for bucket in asked if not _exists(session, bucket)}
    reasons = {
        job.job_name: because(ReasonCode.JOB_DIR_BUCKET_MISSING, bucket=f"gs://{bucket}")
        for bucket, job in of_changes
        if bucket in missing and job.manifest.api_version == ML_V1
    }
    made = {bucket for bucket, job in of_changes if bucket in missing and job.manifest.api_version != ML_V1}
    new_buckets = tuple(f"gs://{bucket}" for bucket in sorted(made))
    return replace(with_blocked(plan, reasons), new_buckets=new_buckets)


def _exists(session: Session, bucket: str) -> bool:
    try:
        session.connection.get("storage.buckets.get", bucket=bucket, fields="name")
    except NotFoundAtServiceError:
        return False
    return True
