"""Sentences about the address at which a manifest's `publish` puts models."""

from __future__ import annotations

from datetime import UTC, datetime

from reconciler.model.details import JobDetails, PublishedPlace
from reconciler.output.wording.plan import reason_text


def published_text(details: JobDetails) -> str:
    """Return where a job's model is, or what is in its place; "" for a job that isn't published.

    It isn't sanitized.
    """
    if details.place is None:
        unread = details.unread.get("publication")
        return f"can't be read: {unread}" if unread else ""
    return _place_text(details.place)


def _place_text(place: PublishedPlace) -> str:
    if place.is_own and place.since:
        return f"{place.to} (in place since {_day(place.since)})"
    if place.reason:
        return f"not at {place.to}: {reason_text(place.reason)}"
    there = f"{place.job_name} is there since {_day(place.since)}" if place.since else "nothing is there"
    return f"not at {place.to}: {there}; `reconciler plan` shows why"


def with_place(result: str, place: PublishedPlace | None) -> str:
    """Return a run's result in a few words, with whether its model is published."""
    if place is None:
        return result
    published = "published" if place.is_own else "not published"
    return f"{result}; {published}" if result else published


def _day(time: datetime) -> str:
    return f"{time.astimezone(UTC):%-d %b %Y}"
