"""Complete listings, of all pages or an error; and listings of only the runs that may have changed.

A listing reads all pages in a single pass, and never returns a part of the items.

A long-running process remembers the claims and runs of a target, and lists fewer runs in each pass.

Without this memory, each pass of `watch` would list every run that the repository ever had: 20 s for 10,000
runs, if the service gives 100 to a page and takes 0.2 s for each. Claims are listed in each pass all the
same, because any claim may change at any moment.

Only runs that may be new or changed are listed again: all runs created since a time before which every listed
run had ended. An ended run can only be deleted or, on AI Platform, get other labels. The process notices such
a change within an hour. The delay causes no additional job:

- The end of an attempt counts, not the existence of its run. The end of a deleted run is recorded here and in
  its claim.
- Labels identify the owner of a run, and a submission lists the runs of its key and attempt separately before
  it sends a create.
- Only live runs are cancelled, and every live run is listed in each pass.

No run stays unlisted: a run that was missing in a listing was created less than `executes + visible` before
the listing, and the next listing begins earlier than that. All times are the service's.

After any inconsistency, all runs are listed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cached_property
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from reconciler.base.errors import ServiceError
from reconciler.base.http import HttpResponse, NoAnswerError
from reconciler.google.client import ApiError, object_of, text_of, typed_record
from reconciler.model.claim import ClaimId, ClaimState, time_of
from reconciler.model.job import ActualJob
from reconciler.model.manifest import JsonObject
from reconciler.model.ports import Bounds, Versioned

RESTARTS = 3
"""Number of times that a listing starts again before it fails."""

# Statuses by which a service may refuse a page token that has expired.
_REFUSALS = frozenset({400, 404, 410, 412})

Item = TypeVar("Item", bound=msgspec.Struct)
Found = TypeVar("Found")


class Pages(Generic[Item]):
    """Reader of a listing's pages.

    Args:
        items: The field of the responses that contains a page's items.
        item: The type of an item. Its first field identifies the item and must not be empty.
    """

    def __init__(self, items: str, item: type[Item]) -> None:
        self.items = items
        self._item = item
        self._identity = item.__struct_encode_fields__[0]
        self._identity_of = attrgetter(item.__struct_fields__[0])

    def read(self, body: bytes) -> tuple[dict[str, Item], str]:
        """Return a page's items by their identity, and the next page's token; raise NoAnswerError."""
        try:
            page = self._decoder.decode(body)
        except (ValueError, RecursionError):
            return self._read_leniently(object_of(body))
        return dict(zip(map(self._identity_of, page.items), page.items, strict=True)), page.token

    def _read_leniently(self, page: JsonObject) -> tuple[dict[str, Item], str]:
        """Return the same of a page that has a field with a value of another type."""
        found, token = self.resources(page)
        return {name: typed_record(self._item, item) for name, item in found.items()}, token

    def resources(self, page: JsonObject) -> tuple[dict[str, JsonObject], str]:
        """Return the items as the service wrote them, by their identity, and the next page's token.

        Raises:
            NoAnswerError: The page is none; fields with a value of another type do no harm.
        """
        token, items = page.get("nextPageToken") or "", page.get(self.items, [])
        if not isinstance(token, str) or not _encodable(token):
            raise NoAnswerError("the service's answer has a page token that is not text")
        is_complete = isinstance(items, list) and all(
            isinstance(item, dict) and text_of(item, self._identity) for item in items
        )
        if not is_complete:
            raise NoAnswerError(f"the service's answer has {self.items} without {self._identity}")
        return {item[self._identity]: item for item in items}, token

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        # mypy can't check a type that is computed at run time.
        items: Any = list[self._item]  # type: ignore[name-defined]
        fields = [("items", items, msgspec.field(default_factory=list)), ("token", str, "")]
        names = {"items": self.items, "token": "nextPageToken"}
        return msgspec.json.Decoder(msgspec.defstruct("Page", fields, rename=names))


class ResourcePages(Generic[Item]):
    """Reader of a listing's pages that keeps every field of the items."""

    def __init__(self, pages: Pages[Item]) -> None:
        self.items = pages.items
        self._pages = pages

    def read(self, body: bytes) -> tuple[dict[str, JsonObject], str]:
        """Return a page's items by their identity, and the next page's token; raise NoAnswerError."""
        return self._pages.resources(object_of(body))


class PageReader(Protocol[Found]):
    """Reader of the pages that `listing` goes through."""

    items: str

    def read(self, body: bytes) -> tuple[dict[str, Found], str]:
        """Return a page's items by their identity, and the next page's token; raise NoAnswerError."""


class _BrokenOffError(Exception):
    """Listing that can't be continued."""


def listing(get: Callable[..., HttpResponse], pages: PageReader[Found]) -> list[Found]:
    """Return every item of a listing; an item that moves to a later page meanwhile is returned once.

    Args:
        get: Requests the page of a `pageToken`; None stands for the first page.

    Raises:
        ServiceError: No complete listing can be read.
    """
    for _ in range(1 + RESTARTS):
        with suppress(_BrokenOffError):
            return _pass(get, pages)
    raise ServiceError(
        f"the listing of {pages.items} failed {1 + RESTARTS} times: the service rejects its own page tokens",
        hint="try again later; nothing is decided from an incomplete listing",
    )


def _pass(get: Callable[..., HttpResponse], pages: PageReader[Found]) -> list[Found]:
    tokens: set[str] = set()
    found, token = pages.read(get(pageToken=None).body)
    while token:
        if token in tokens:
            # The service returned a token twice: the listing would never end.
            raise _BrokenOffError
        tokens.add(token)
        try:
            body = get(pageToken=token).body
        except ApiError as error:
            if error.status not in _REFUSALS:
                raise
            # Without the token, the rest of the items would be left out.
            raise _BrokenOffError from None
        items, token = pages.read(body)
        found |= items
    return list(found.values())


def _encodable(text: str) -> bool:
    # JSON's escapes can contain half of a surrogate pair, which UTF-8 can't encode.
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


LASTS = 3600.0
"""Seconds after which all runs are listed again."""
LEAST_MARGIN = timedelta(minutes=10)
"""Smallest time between the beginning of a listing and the newest run."""

_REFUSED = 400  # of a filter

Lister = Callable[[str, str], Iterable[ActualJob]]
"""Lister of the runs of an apiVersion: all, or those created at a time (RFC 3339) or later."""


class KnownClaims(Struct):
    """Claims of the last pass.

    Attributes:
        ids: The ids of all claims.
        named: apiVersion and resource of the jobs of bound claims without a recorded end or deletion; of
            adopted jobs none, which listings by label never show.
        vanished: True if a claim is missing. Claims are kept for ever: the bucket was emptied or replaced.
    """

    ids: Set[ClaimId] = frozenset()
    named: frozenset[tuple[str, str]] = frozenset()
    vanished: bool = False

    def replace(self, found: Mapping[ClaimId, Versioned]) -> None:
        """Replace the claims by those of the present pass."""
        self.vanished = not self.ids <= found.keys()
        self.ids = found.keys()
        claims = (versioned.claim for versioned in found.values())
        self.named = frozenset(
            (claim.api_version, claim.resource)
            for claim in claims
            if claim.ended is None and claim.state is ClaimState.BOUND
            if not (claim.gone or claim.is_adopted)
        )


class _Past(Struct):
    """Runs of one apiVersion that aren't listed again.

    Attributes:
        ended: The runs created before `until`, by resource, oldest first; all have ended.
        until: The time from which the next listing begins.
        newest: The creation time of the newest run of all passes.
    """

    ended: dict[str, ActualJob]
    until: datetime
    newest: datetime


class _InconsistentError(Exception):
    """Inconsistency between a listing and the runs of earlier listings."""


class KnownRuns:
    """Runs of the last pass that the next pass needn't list."""

    def __init__(self) -> None:
        self._past: dict[str, _Past] = {}
        self._whole: float | None = None

    def forget(self) -> None:
        """List all runs in the next pass."""
        self._past = {}
        self._whole = None

    def look(
        self,
        versions: Sequence[str],
        lister: Lister,
        *,
        now: float,
        margin: timedelta,
        named: Collection[tuple[str, str]] = (),
    ) -> tuple[ActualJob, ...]:
        """Return all runs of these apiVersions, oldest first within each.

        Args:
            now: Seconds of the process's monotonic clock.
            margin: The longest time for which listings may lack a new run.
            named: apiVersion and resource of runs that must exist: if any is missing, all runs are listed.

        Raises:
            ServiceError: A listing failed; the next pass lists all runs.
        """
        # Forget first: after an error, the next pass begins with a whole listing.
        past, whole = self._past, self._whole
        self.forget()
        margin = max(margin, LEAST_MARGIN)
        if whole is not None and now - whole < LASTS:
            try:
                runs = self._runs(versions, lister, past, margin)
                seen = {(run.api_version, run.resource) for run in runs} if named else set()
                if any(job[0] in versions and job not in seen for job in named):
                    raise _InconsistentError
            except _InconsistentError:
                self.forget()
            else:
                self._whole = whole
                return runs
        runs = self._runs(versions, lister, {}, margin)
        self._whole = now
        return runs

    def _runs(
        self, versions: Sequence[str], lister: Lister, past: Mapping[str, _Past], margin: timedelta
    ) -> tuple[ActualJob, ...]:
        found = (self._of(version, lister, past.get(version), margin) for version in versions)
        return tuple(run for runs in found for run in runs)

    def _of(self, version: str, lister: Lister, past: _Past | None, margin: timedelta) -> list[ActualJob]:
        """Return the runs of one apiVersion, and remember those that needn't be listed again."""
        listed = _listed(version, lister, past)
        dated = [(moment, run) for run in listed if (moment := time_of(run.create_time))]
        dated.sort(key=lambda made: (made[0], made[1].resource))
        # The next listing can't begin later after a run without a creation time, or before the requested one.
        is_odd = len(dated) < len(listed) or bool(past and dated and dated[0][0] < past.until)
        if past and is_odd:
            raise _InconsistentError
        if is_odd or not (past or dated):
            return listed
        moments = [moment for moment, _ in dated[-1:]]
        newest = max([*moments, past.newest] if past else moments)
        # The next listing begins before the oldest live run, and before any run that this one may still lack.
        live = (moment for moment, run in dated if not run.state.ended)
        until = min(newest - margin, next(live, newest))
        before = past.ended if past else {}
        runs = [*before.values(), *(run for _, run in dated)]
        before.update((run.resource, run) for moment, run in dated if moment < until)
        self._past[version] = _Past(before, until, newest)
        return runs


class TargetMemory:
    """Memory of one target's claims and runs, for one pass at a time."""

    def __init__(self) -> None:
        self.claims = KnownClaims()
        self.runs = KnownRuns()
        self._target: object = None

    def of(self, target: object) -> TargetMemory:
        """Return this memory, emptied if it belongs to another target."""
        if self._target != target:
            self.claims, self.runs, self._target = KnownClaims(), KnownRuns(), target
        return self

    def list_runs(self, versions: Sequence[str], lister: Lister, bounds: Bounds) -> tuple[ActualJob, ...]:
        """Return all runs of these apiVersions, after the claims of this pass were listed."""
        # The claims vouch for deleted runs: with claims missing, only a whole listing is right.
        if self.claims.vanished:
            self.runs.forget()
        margin = bounds.executes + bounds.visible
        return self.runs.look(versions, lister, now=time.monotonic(), margin=margin, named=self.claims.named)


def _listed(version: str, lister: Lister, past: _Past | None) -> list[ActualJob]:
    if past is None:
        return list(lister(version, ""))
    try:
        return list(lister(version, past.until.isoformat().replace("+00:00", "Z")))
    except ApiError as error:
        if error.status == _REFUSED:
            raise _InconsistentError from None
        raise
