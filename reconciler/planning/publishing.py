"""Publication of a desired content's run: whether its model is in its place, due, or may not be published."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from reconciler.model.applied_tree import Relation
from reconciler.model.claim import time_of
from reconciler.model.job import State
from reconciler.model.publication import CurrentModel, Publish, PublishedModel
from reconciler.model.reason import Reason, ReasonCode, because
from reconciler.model.standing import Publication, Standing
from reconciler.planning.state import NameState

_PERMITTED = (Relation.NONE, Relation.SAME, Relation.NEWER)


class Publisher(Struct, frozen=True):
    """Who publishes: the repository's id and the environment's name."""

    source: str
    environment: str


class Checkout(Struct, frozen=True):
    """Relation of the checkout to the commit that published the model in place.

    Attributes:
        relation: The relation; NONE if nothing is compared.
        is_branch_head: True if the checkout is the head of its branch, as just fetched.
        remedy: What makes an unknown relation known, as a clause.
    """

    relation: Relation = Relation.NONE
    is_branch_head: bool = False
    remedy: str = ""


NOT_COMPARED = Checkout()


class Stored(Struct, frozen=True):
    """What an address has, as far as it was read.

    Attributes:
        current: What `current.json` says; None without it.
        generation: Its generation; 0 without it.
        model: The record of the desired run's model; None if it was not published here, or not looked for.
        missing: Files of that record that the model's folder lacks.
        changed: Objects of that folder that aren't what the record says, or were copied.
        unread: Why any of it can't be read, as a clause; "" if it was.
    """

    current: CurrentModel | None = None
    generation: int = 0
    model: PublishedModel | None = None
    missing: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unread: str = ""


def asks_for_publication(name: NameState) -> bool:
    """Return True if a base name has a good result that its manifest asks to publish."""
    job, last = name.desired, name.last_wanted
    if job is None or job.publish is None or last is None or last.state is not State.SUCCEEDED:
        return False
    if job.manifest.reconcile.suspend or name.overwriting:
        return False
    judgement, expect = name.judgement, job.manifest.expect
    return not expect or bool(judgement and not judgement.misses and len(judgement.judged) == len(expect))


def compares(name: NameState, stored: Stored, publisher: Publisher) -> bool:
    """Return True if `publication_of` needs the checkout's relation to the commit in `current.json`."""
    current = stored.current
    if current is None or not current.commit or stored.unread or not _is_own(current, publisher):
        return False
    return not _is_of(current, name) or _has_other_since(name, current)


def publication_of(
    name: NameState,
    publish: Publish,
    stored: Stored,
    publisher: Publisher,
    checkout: Checkout = NOT_COMPARED,
    obstacle: Reason | None = None,
) -> Publication:
    """Return the standing of the desired content's model.

    Args:
        name: What exists under its base name, for which `asks_for_publication` is True.
        publish: Its address.
        stored: What the address has.
        publisher: The repository and the environment.
        checkout: The relation that `compares` asks for.
        obstacle: Why the run's own files can't be copied, if they have to be; None if they can.
    """
    current = stored.current
    is_whole = stored.model is not None and not stored.missing

    def standing(standing: Standing, code: ReasonCode | None = None, /, **values: object) -> Publication:
        reason = because(code, **values) if code else None
        return Publication(publish, standing, reason, current, stored.generation, is_copied=is_whole)

    if stored.unread:
        return standing(Standing.REFUSED, ReasonCode.PUBLICATION_UNREAD, why=stored.unread)
    if current and not _is_own(current, publisher):
        other = {"other_source": current.source, "other_environment": current.environment}
        about = {"to": publish.to, "environment": publisher.environment, **other}
        is_own_source = current.source == publisher.source
        return standing(Standing.REFUSED, ReasonCode.PUBLISHED_BY_OTHER, **about, same_source=is_own_source)
    is_current = current is not None and _is_of(current, name)
    refusal = None
    if current and (not is_current or _has_other_since(name, current)):
        refusal = _refusal(current, checkout)
        if refusal and not is_current:
            return Publication(publish, Standing.REFUSED, refusal, current, stored.generation)
    if stored.changed:
        about = {"to": publish.to, "job_name": _job_name(name), "files": stored.changed}
        return standing(Standing.REFUSED, ReasonCode.PUBLICATION_CHANGED, **about)
    if obstacle and not is_whole:
        return Publication(publish, Standing.REFUSED, obstacle, current, stored.generation)
    if is_current and stored.missing:
        return standing(Standing.DUE, ReasonCode.PUBLICATION_INCOMPLETE, files=stored.missing)
    if is_current and not (current and _is_behind(name, current, checkout)):
        return standing(Standing.IN_PLACE)
    if is_current:
        # An apply of a commit between would still find the older one there, and publish its model over this.
        return standing(Standing.DUE, ReasonCode.PUBLISHED_BEFORE_OTHER)
    return standing(Standing.DUE, ReasonCode.PUBLISH, to=publish.to, **_about(name, current))


def in_place(publish: Publish, current: CurrentModel) -> Publication:
    """Return the standing of a model that is known to be in its place."""
    return Publication(publish, Standing.IN_PLACE, current=current)


def _about(name: NameState, current: CurrentModel | None) -> Mapping[str, object]:
    """Return what the sentence about a due publication says: the run, its metrics, and what it replaces."""
    last, judgement = name.last_wanted, name.judgement
    ended = time_of(last.run.end_time) if last and last.run else None
    return {
        "ended": ended,
        "judgement": judgement,
        "replaces": current.job_name if current else "",
        "taken_from": current.base_name if current and current.base_name != name.name else "",
    }


def _job_name(name: NameState) -> str:
    return name.last_wanted.name if name.last_wanted else ""


def _is_own(current: CurrentModel, publisher: Publisher) -> bool:
    return (current.source, current.environment) == (publisher.source, publisher.environment)


def _is_of(current: CurrentModel, name: NameState) -> bool:
    return current.job_name == _job_name(name)


def _has_other_since(name: NameState, current: CurrentModel) -> bool:
    """Return True if other content was submitted since a model was published.

    Its apply may still publish it: what it compares with must be a commit after its own.
    """
    runs = (attempt.run for attempt in name.others if attempt.run)
    created = (time_of(run.create_time) for run in runs)
    return any(time is not None and time > current.time for time in created)


def _is_behind(name: NameState, current: CurrentModel, checkout: Checkout) -> bool:
    return _has_other_since(name, current) and checkout.relation is Relation.NEWER


def _refusal(current: CurrentModel, checkout: Checkout) -> Reason | None:
    """Return why a checkout may not replace the model in place; None if it may."""
    relation = checkout.relation
    if relation in _PERMITTED or (relation is Relation.DIVERGED and checkout.is_branch_head):
        return None
    about = {"commit": current.commit, "relation": relation, "remedy": checkout.remedy}
    return because(ReasonCode.PUBLISHED_BY_NEWER, **about)
