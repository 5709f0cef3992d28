"""Publication of a desired content's run: whether its model is in its place, due, or may not be published."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from msgspec import Struct

from reconciler.model.applied_tree import Relation
from reconciler.model.claim import time_of
from reconciler.model.expectation import Judgement, Rival, Uncompared
from reconciler.model.job import State
from reconciler.model.manifest import Publish
from reconciler.model.publication import CurrentModel, InPlace
from reconciler.model.reason import Reason, ReasonCode, because
from reconciler.model.standing import Publication, Standing
from reconciler.planning.attempts import Attempt
from reconciler.planning.state import NameState


class Publisher(Struct, frozen=True):
    """Who publishes.

    Attributes:
        source: The repository's id.
        environment: The environment's name.
        others: The base names, with '-' as '_', whose manifests publish at the same address.
        is_whole: True if these are all of the repository's: a job that isn't among them has no manifest.
        is_bringer: True if the checked-out commit brought the desired content, first or again.
    """

    source: str
    environment: str
    others: Collection[str] = ()
    is_whole: bool = True
    is_bringer: bool = False

    def owns(self, current: CurrentModel) -> bool:
        """Return True if this environment published the model in place."""
        return (current.source, current.environment) == (self.source, self.environment)


class Descent(Struct, frozen=True):
    """Relation of the checkout to the commit that published the model in place.

    Attributes:
        relation: The relation; NONE if nothing is compared.
        is_branch_head: True if the checkout is the head of its branch, as just fetched.
        remedy: What makes an unknown relation known, as a clause.
    """

    relation: Relation = Relation.NONE
    is_branch_head: bool = False
    remedy: str = ""

    @property
    def is_after(self) -> bool:
        """True if the checkout comes after that commit: it is newer, or what its branch was moved to."""
        is_moved = self.relation is Relation.DIVERGED and self.is_branch_head
        return self.relation is Relation.NEWER or is_moved

    @property
    def may_replace(self) -> bool:
        """True if the checkout's model may take the place of that commit's."""
        return self.is_after or self.relation in (Relation.NONE, Relation.SAME)


NOT_COMPARED = Descent()


class Stored(Struct, frozen=True):
    """Contents of an address, as far as they were read.

    Attributes:
        current: The content of `current.json`; None without it.
        generation: Its generation; 0 without it.
        is_written: True if there is a record of the desired run's model: it was published here.
        missing: Files of that record that the model's folder lacks.
        changed: Objects of that folder that aren't what the record says, or were copied.
        is_first: True if that record, if there is one, was only written by this publication.
        rival_metrics: The metrics that the record of the model in place has, if `has_rival` asks for them.
        unread: Why any of it can't be read, as a clause; "" if it was.
    """

    current: CurrentModel | None = None
    generation: int = 0
    is_written: bool = False
    missing: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    is_first: bool = False
    rival_metrics: Mapping[str, float] = {}
    unread: str = ""

    @property
    def was_published(self) -> bool:
        """True if the desired run's model was published here before."""
        return self.is_written and not self.is_first


def asks_for_publication(name: NameState) -> bool:
    """Return True if a base name has a good result that its manifest asks to publish."""
    job, last = name.desired, name.last_wanted
    if job is None or job.publish is None or last is None or last.state is not State.SUCCEEDED:
        return False
    if job.manifest.reconcile.suspend or name.overwriting:
        return False
    judgement, expect = name.judgement, job.manifest.expect
    return not expect or bool(judgement and not judgement.misses and len(judgement.judged) == len(expect))


def asks_for_comparison(name: NameState) -> bool:
    """Return True if a manifest asks to compare a metric with that of the model in place."""
    judged = name.judgement.judged if name.judgement else ()
    return any(one.expectation.worse is not None for one in judged)


def compares(name: NameState, stored: Stored, publisher: Publisher) -> bool:
    """Return True if `publication_of` needs the checkout's relation to the commit in `current.json`."""
    current = stored.current
    if current is None or stored.unread or not publisher.owns(current):
        return False
    if not _is_of(current, name):
        return bool(current.commit)
    return publisher.is_bringer or _has_other_since(name, current.time)


def has_rival(name: NameState, stored: Stored, publisher: Publisher) -> bool:
    """Return True if `publication_of` needs the metrics that the record of the model in place has."""
    current = stored.current
    if current is None or stored.unread or not publisher.owns(current) or not asks_for_comparison(name):
        return False
    return _rival(name, stored).uncompared is None


def publication_of(
    name: NameState,
    publish: Publish,
    stored: Stored,
    publisher: Publisher,
    checkout: Descent = NOT_COMPARED,
    obstacle: Reason | None = None,
) -> Publication:
    """Return the standing of the desired content's model.

    Args:
        name: What exists under its base name, for which `asks_for_publication` is True.
        publish: Its address.
        stored: The contents of the address.
        publisher: The repository and the environment.
        checkout: The relation that `compares` asks for.
        obstacle: Why the run's own files can't be copied, if they have to be; None if they can.
    """
    current = stored.current
    is_copied = stored.is_written and not stored.missing
    refusal = _refusal(name, publish, stored, publisher, checkout) or (None if is_copied else obstacle)
    reason = refusal or _due(name, publish, stored, publisher, checkout)
    standing = Standing.REFUSED if refusal else Standing.DUE if reason else Standing.IN_PLACE
    mark = InPlace(publish.to, current.time) if current and standing is Standing.IN_PLACE else None
    is_named = current is not None and is_model_of(current, published_attempt(name).name, publisher)
    return Publication(
        publish,
        standing,
        reason=reason,
        current=current,
        generation=stored.generation,
        is_copied=is_copied,
        mark=mark,
        was_published=stored.was_published,
        damaged=(*stored.missing, *stored.changed) if is_named else (),
    )


def _refusal(
    name: NameState, publish: Publish, stored: Stored, publisher: Publisher, checkout: Descent
) -> Reason | None:
    """Return why a model may not be put in the place; None if it may, or is there."""
    current = stored.current
    if stored.unread:
        return because(ReasonCode.PUBLICATION_UNREAD, why=stored.unread)
    if current and not publisher.owns(current):
        same_source = current.source == publisher.source
        other = current.environment if same_source else current.source
        return because(ReasonCode.PUBLISHED_BY_OTHER, to=publish.to, other=other, same_source=same_source)
    if current and not _is_of(current, name):
        if _base_of(current.base_name) in publisher.others:
            return because(ReasonCode.PUBLISHED_BY_OTHER_JOB, to=publish.to, other=current.base_name)
        if _base_of(current.base_name) != name.base_name and not publisher.is_whole:
            return because(ReasonCode.PUBLISHED_BY_UNKNOWN_JOB, to=publish.to, other=current.base_name)
        if not checkout.may_replace:
            about = {"commit": current.commit, "relation": checkout.relation, "remedy": checkout.remedy}
            return because(ReasonCode.PUBLISHED_BY_NEWER, **about)
    if stored.changed:
        about_files = {"job_name": published_attempt(name).name, "files": stored.changed}
        return because(ReasonCode.PUBLICATION_CHANGED, to=publish.to, **about_files)
    compared = _compared(name, stored)
    if compared and compared.misses:
        return because(ReasonCode.WORSE_THAN_PUBLISHED, judgement=compared)
    return None


def _compared(name: NameState, stored: Stored) -> Judgement | None:
    """Return the judgement of a model, beside the model in place where its manifest asks for that."""
    return name.judgement.beside(_rival(name, stored)) if name.judgement else None


def _rival(name: NameState, stored: Stored) -> Rival:
    current = stored.current
    if current is None:
        return Rival(uncompared=Uncompared.NOTHING_PUBLISHED)
    if _is_of(current, name):
        return Rival(current.job_name, uncompared=Uncompared.IN_PLACE)
    if stored.was_published:
        return Rival(current.job_name, uncompared=Uncompared.PUBLISHED_BEFORE)
    return Rival(current.job_name, stored.rival_metrics)


def _due(
    name: NameState, publish: Publish, stored: Stored, publisher: Publisher, checkout: Descent
) -> Reason | None:
    """Return why a model is to be published; None if it is in its place."""
    current = stored.current
    if current is None or not _is_of(current, name):
        return because(ReasonCode.PUBLISH, to=publish.to, **_about(name, stored))
    if stored.missing:
        return because(ReasonCode.PUBLICATION_INCOMPLETE, files=stored.missing)
    # Else a slower apply of a commit between would find the older commit there, and put its model here.
    if checkout.is_after and (publisher.is_bringer or _has_other_since(name, current.time)):
        return because(ReasonCode.PUBLISHED_BEFORE_OTHER)
    return None


def is_known_in_place(name: NameState, mark: InPlace) -> bool:
    """Return True if a mark of the summary still says that the desired content's model is in its place."""
    publish = name.desired.publish if name.desired else None
    return publish is not None and mark.to == publish.to and not _has_other_since(name, mark.time)


def may_be_replaced(name: NameState) -> bool:
    """Return True if a model is in its place, and an apply of another commit may have another one for it."""
    if name.publication is None or name.publication.standing is not Standing.IN_PLACE:
        return False
    return any(attempt.run and attempt.state in _PUBLISHED_STATES for attempt in name.others)


_PUBLISHED_STATES = frozenset({state for state in State if not state.ended} | {State.SUCCEEDED})
"""The states of a run whose model is published, or may be later."""


def is_model_of(current: CurrentModel, job_name: str, publisher: Publisher) -> bool:
    """Return True if the model in place is that of a run which this environment published."""
    return current.job_name == job_name and publisher.owns(current)


def _about(name: NameState, stored: Stored) -> Mapping[str, object]:
    """Return what the sentence about a due publication says: the run, its metrics, and what it replaces."""
    run, current = published_attempt(name).run, stored.current
    return {
        "ended": time_of(run.end_time) if run else None,
        "judgement": _compared(name, stored),
        "replaces": current.job_name if current else "",
        "taken_from": current.base_name if current and _base_of(current.base_name) != name.base_name else "",
    }


def published_attempt(name: NameState) -> Attempt:
    """Return the attempt whose model is published, where `asks_for_publication` is True."""
    assert name.last_wanted is not None, "its run succeeded"
    return name.last_wanted


def _base_of(name: str) -> str:
    return name.replace("-", "_")


def _is_of(current: CurrentModel, name: NameState) -> bool:
    return current.job_name == published_attempt(name).name


def _has_other_since(name: NameState, since: datetime) -> bool:
    """Return True if other content was submitted since a model was published.

    Its apply may still publish it: what it compares with must be a commit after its own.
    """
    runs = (attempt.run for attempt in name.others if attempt.run)
    created = (time_of(run.create_time) for run in runs)
    return any(time is not None and time > since for time in created)
