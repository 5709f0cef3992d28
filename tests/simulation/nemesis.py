"""Acts of people, other installations and outages during the reconcilers' work."""

from __future__ import annotations

import gzip
import random
from typing import Any

from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.model.job import ATTEMPT, KEY, REQUEST_ID, SOURCE, State
from reconciler.model.manifest import ML_V1, JsonObject
from reconciler.model.naming import job_name, label_of
from reconciler.model.plan import DesiredJob
from reconciler.model.ports import Place
from reconciler.submission.summary import Preface, Summary, encoded

from .github import Statuses
from .model import OURS, PERSON, Job, by_hand_name, folder_of, ours, short_id
from .models import Models
from .scenario import PUBLISHED, Repository
from .store import Claims
from .world import World

_LOST = 0.8
"""Chance that such a copy is gone when a reconciler relies on it."""

BEFORE_A_LOOK = (" claims", " live runs", ": pending", ": none")
"""Ends of a reconciler's last step before a look for jobs."""


class Nemesis:
    """Random source of such acts.

    Args:
        by_hand: Chance of its own and its rate: jobs that people make by hand, for adoption.
        copycats: Chance of its own and its rate: foreign copies that are gone before they are read.
        losses: Chance of its own and its rate: losses of a bucket that has a summary.
        spoilers: Chance of its own and its rate: summaries that are lost or replaced.
        models: What is published; None for nothing.
        blinds: The looks before which listings may become blind, by the last step before them.
    """

    def __init__(
        self,
        world: World,
        claims: Claims,
        repository: Repository,
        statuses: Statuses,
        by_hand: tuple[random.Random, float],
        copycats: tuple[random.Random, float],
        losses: tuple[random.Random, float],
        spoilers: tuple[random.Random, float],
        *,
        blinds: tuple[str, ...],
        models: Models | None = None,
    ) -> None:
        self._models = models
        self._world = world
        self._claims = claims
        self._repository = repository
        self._statuses = statuses
        self._by_hand = by_hand
        self._copycats = copycats
        self._losses = losses
        self._spoilers = spoilers
        self._blinds = blinds
        self._lost: Any = None
        self._calm = world.rng.choice((0.002, 0.004, 0.008) if models else (0.0, 0.01, 0.03))

    def strike(self) -> None:
        """Give each act its chance, once a step."""
        rng, faults = self._world.rng, self._world.faults
        if rng.random() < self._calm:
            self._say("repository", self._repository.change())
        chance, rate = self._by_hand
        if rate and chance.random() < rate:
            self._make_by_hand(chance)
        chance, copies = self._copycats
        if copies and chance.random() < copies:
            self._copy_the_next_attempt(chance)
        chance, losses = self._losses
        if losses and self._claims.summary[0] and chance.random() < losses:
            faults.tells("bucket emptied")
            self._empty()
        chance, spoils = self._spoilers
        if spoils and self._claims.summary[0] and chance.random() < spoils:
            self._spoil(chance)
        if rng.random() > 0.05:
            return
        if faults.happens("storm of 429"):
            self._storm(429)
        if faults.happens("storm of 503"):
            self._storm(503)
        if faults.happens("claim store away"):
            self._world.store_away_until = self._until()
        if faults.happens("GitHub away"):
            self._statuses.away_until = self._until()
        if faults.happens("bucket emptied"):
            self._empty()
        self._meddle()
        if self._models:
            self._meddle_with(self._models)

    def _meddle_with(self, models: Models) -> None:
        """Let trainers, rules and people change the objects of models."""
        faults, world = self._world.faults, self._world
        done = [job for job in world.jobs if job.state is State.SUCCEEDED and models.below(folder_of(job))]
        published = [uri for uri in models.objects if uri.startswith(PUBLISHED) and uri.count("/") > 4]
        if done and faults.happens("run's folder emptied"):
            folder = folder_of(world.rng.choice(done))
            self._say("storage", f"deletes by a rule what is below {folder}")
            models.empties(folder)
        elif done and faults.happens("late writer"):
            job = world.rng.choice(done)
            self._say("person", f"lets {job.name} write again")
            models.saves(job, more=f", at {world.now}")
        if published and faults.happens("published file deleted"):
            uri = world.rng.choice(published)
            self._say("person", f"deletes {uri}")
            models.loses(uri)
        if faults.happens("no permission or quota to publish"):
            models.forbidden_until = self._until()

    def _spoil(self, chance: random.Random) -> None:
        """Delete the summary, truncate it, or replace it by bytes that aren't a summary of these claims."""
        content = self._claims.summary[0]
        now = self._world.time(self._world.now)
        elsewhere = Preface(Place("ours", "acme-ml", "europe-west4"), self._claims.marks)
        what, spoiled = chance.choice(
            (
                ("summary lost", b""),
                ("summary cut", content[: chance.randrange(1, len(content) + 1)]),
                ("summary oversized", gzip.compress(bytes(20 * 1024 * 1024), 1)),
                ("summary of another environment", encoded(elsewhere, Summary(now, 0, ""))),
            )
        )
        self._world.faults.tells(what)
        self._say("person", what)
        self._claims.spoil(spoiled)

    def _empty(self) -> None:
        # If an emptied bucket forgets an adoption, the job has no owner, and the checker has no rule for it.
        if not self.lost and not self._by_hand[1]:
            self._say("person", "emptied the claims bucket")
            self._lost = self._claims.empty()

    def before_a_look(self, doing: str) -> None:
        """Inject the worst fault before a reconciler looks for jobs; `doing` is its last step."""
        self._blind(doing)
        named = {found.claim.resource for found in self._claims.all().values()}
        strangers = [job for job in self._world.jobs if job.origin == "foreign" and not job.gone]
        strangers = [job for job in strangers if job.name not in named and job.api_version != ML_V1]
        if self._is_counted_on(strangers, doing):
            self._world.faults.tells("foreign job deleted")
        elif not strangers or not self._world.faults.happens("foreign job deleted"):
            return
        for job in strangers:
            self._say("foreign", f"deletes {job.name}")
            self._world.ends(job, State.CANCELLED)
            job.gone = True

    def _is_counted_on(self, strangers: list[Job], doing: str) -> bool:
        """Return True, in some worlds, if a reconciler relies on a later attempt that no request made."""
        chance, rate = self._copycats
        later = (short_id(*job.slot) for job in strangers if job.slot[1] != "1")
        is_deleted = rate > 0 and self._world.faults.on and chance.random() < _LOST
        return is_deleted and any(doing.endswith(f" {id}: none") for id in later)

    def _blind(self, doing: str) -> None:
        """Let listings omit all jobs, or all old jobs."""
        world = self._world
        if not doing.endswith(self._blinds):
            return
        times = 10 if doing.endswith(": pending") else 1
        if not world.faults.happens("listings go blind", times):
            return
        world.blind_until = world.now + world.rng.choice((60.0, 3600.0, 20000.0)) * world.rng.random()
        world.blind_age = world.rng.choice((0.0, 0.0, 600.0, 3600.0))
        self._say("service", f"lists no job older than {world.blind_age:.0f} s until {world.blind_until:.1f}")

    @property
    def lost(self) -> bool:
        """Return True while the claims are lost."""
        return self._lost is not None

    def make_good(self) -> None:
        """Repair everything: end outages, and restore lost data."""
        self._world.storm_until = self._world.store_away_until = self._statuses.away_until = 0.0
        self._world.blind_until = 0.0
        if self._models:
            self._models.forbidden_until = 0.0
        if self._lost is not None:
            self._say("person", "restored the claims bucket")
            self._claims.restore(self._lost)
            self._lost = None

    def _meddle(self) -> None:
        """Let people and other installations change jobs."""
        faults, world = self._world.faults, self._world
        made = [*ours(world.jobs), *(job for job in world.jobs if job.adopted_as)]
        made = [job for job in made if not job.gone]
        live = [job for job in made if not job.state.ended]
        # A job deleted before any claim names it can't be distinguished from a job that was never made.
        bound = {found.claim.resource for found in self._claims.all().values()}
        named = [job for job in made if job.name in bound and not self.lost]
        # ml has no delete, and reserves used names for ever.
        named = [job for job in named if job.api_version != ML_V1]
        ended = [job for job in named if job.state.ended]
        if live and faults.happens("cancelled by a person"):
            job = world.rng.choice(live)
            self._say("person", f"cancels {job.name}")
            world.ask_end(job, PERSON)
        if named and faults.happens("deleted by a person"):
            job = world.rng.choice(named)
            self._say("person", f"deletes {job.name}")
            world.ends(job, State.CANCELLED)
            job.gone = True
        if ended and faults.happens("record dropped"):
            job = world.rng.choice(ended)
            self._say("service", f"dropped the record of {job.name}")
            job.gone = True
        if self._repository.head.jobs:
            if faults.happens("foreign copy"):
                self._make("foreign", OURS)
            if faults.happens("foreign job with other content"):
                self._make("foreign", OURS, other=True)
            if faults.happens("another installation"):
                self._make("other", "other-team")

    def _make(self, origin: str, source: str, *, other: bool = False) -> None:
        """Make a job like a desired job that no reconciler asked for."""
        world = self._world
        jobs, attempt = list(self._repository.head.jobs), world.rng.choice((1, 1, 2))
        failed = [job for job in jobs if self._next_attempt(job) > 1]
        job = world.rng.choice(failed if failed and world.rng.random() < 0.5 else jobs)
        attempt = self._next_attempt(job) if job in failed else attempt
        body = self._body(job, source, attempt, world.rng.randbytes(8).hex(), other=other)
        if job.manifest.api_version == ML_V1 and any(job.job_name == body["jobId"] for job in world.jobs):
            return
        self._say(origin, f"makes a job like {job.job_name}")
        world.make(job.manifest.api_version, job.manifest.kind, body, origin)

    def _copy_the_next_attempt(self, chance: random.Random) -> None:
        """Make a job like the attempt after the last attempt that a manifest allows."""
        jobs = [job for job in self._repository.head.jobs if job.manifest.api_version != ML_V1]
        copied = {job.slot[0] for job in self._world.jobs if job.origin == "foreign" and not job.gone}
        spent = [job for job in jobs if self._next_attempt(job) > job.manifest.reconcile.attempts]
        spent = [job for job in spent if label_of(job.identity) not in copied]
        if spent:
            job = chance.choice(spent)
            body = self._body(job, OURS, self._next_attempt(job), chance.randbytes(8).hex())
            self._world.faults.tells("foreign copy")
            self._say("foreign", f"makes a job like the next {job.job_name}")
            self._world.make(job.manifest.api_version, job.manifest.kind, body, "foreign")

    def _make_by_hand(self, chance: random.Random) -> None:
        """Make a job by other means, without labels, and usually a manifest for it."""
        wanted = [*self._repository.head.jobs]
        job = chance.choice(wanted) if wanted and chance.random() < 0.3 else self._repository.imported(chance)
        manifest = job.manifest
        name = by_hand_name(manifest.name, len(self._world.jobs))
        self._say("person", f"makes {name} by hand")
        body = engine_spec(manifest.api_version).body(manifest.kind, job.spec, name, {})
        self._world.make(manifest.api_version, manifest.kind, body, "person")

    def _next_attempt(self, job: DesiredJob) -> int:
        """Return the attempt after the last failed attempt, which may exceed the allowed attempts."""
        label = label_of(job.identity)
        failed = [j for j in ours(self._world.jobs) if j.slot[0] == label and j.state is State.FAILED]
        return 1 + max((int(job.slot[1]) for job in failed), default=0)

    def _body(
        self, job: DesiredJob, source: str, attempt: int, mark: str, *, other: bool = False
    ) -> JsonObject:
        """Return a create's body with a job's name and labels; with `other`, the body of a different job."""
        manifest = job.manifest
        labels = {SOURCE: source, KEY: label_of(job.identity), ATTEMPT: str(attempt), REQUEST_ID: mark}
        name = job_name(manifest.base_name, job.identity, attempt)
        content = self._repository.desired(manifest.name, "other", manifest.reconcile) if other else job
        return engine_spec(manifest.api_version).body(manifest.kind, content.spec, name, labels)

    def _storm(self, status: int) -> None:
        self._world.storm, self._world.storm_until = status, self._until()

    def _until(self) -> float:
        return self._world.now + self._world.rng.choice((5.0, 60.0, 600.0)) * self._world.rng.random()

    def _say(self, who: str, what: str) -> None:
        self._world.trace(who, what)
