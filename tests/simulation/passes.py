"""Passes of a single reconciler: the product's own code, from the checkout to the statuses on GitHub."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from reconciler.base.errors import ReconcilerError
from reconciler.cli.apply import WAITING_PATIENCE
from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.engines.spec.output_folder import spec_of_attempt
from reconciler.manifests.settings import Limits
from reconciler.model.claim import BY_COMMAND
from reconciler.model.job import State
from reconciler.model.manifest import JsonObject
from reconciler.model.plan import Action, Change, DesiredJob, Plan, Target, Trigger
from reconciler.model.ports import Bounds, Ports
from reconciler.model.publication import model_folder
from reconciler.model.reason import Reason
from reconciler.model.standing import Publication
from reconciler.operations.execute import PATIENCE, Applier
from reconciler.operations.load_desired import Desired
from reconciler.operations.observed_state import comparable_state
from reconciler.operations.origin import Origin
from reconciler.operations.plan import wanted_of, with_origin
from reconciler.operations.publications import brought_back, with_publications
from reconciler.operations.publish import PublicationApplier
from reconciler.operations.report import open_record, report
from reconciler.operations.tree import TreeCheck
from reconciler.output.wording.plan import outcome_error, reason_text
from reconciler.planning.limits import check_limits
from reconciler.planning.lineage import bringers, brought_since
from reconciler.planning.outcome import Outcome, Status
from reconciler.planning.planner import make_plan, with_publications_of
from reconciler.planning.state import TargetState
from reconciler.reporting.github.settings import GitHubSettings
from reconciler.reporting.github.statuses import GitHubReporter
from reconciler.reporting.status_rules import View
from reconciler.submission.announcements import AnnouncedClaims
from reconciler.submission.claims_upkeep import cancel, record_cancel
from reconciler.submission.look import FULL_AFTER, Observation, keep_summary, look
from reconciler.submission.observe import Observed, observe
from reconciler.submission.summary import Wanted

from .github import API, REPOSITORY, GitHubPort, Statuses
from .jobs import CredentialsPort, JobsPort
from .model import OURS, Job, Place
from .models import Models, ModelsPort, Site, StillModels, folders_of_models
from .process import Process
from .scenario import Commit, Repository
from .still import still_ports
from .store import Claims, Records, RecordsPort, StorePort
from .world import World

LIMITS = Limits(submissions=20)
PAUSE = 15.0
_ENDS = (Action.NONE, Action.BLOCKED)
_AT_ONCE = (1, 2, 8)
"""Concurrent submissions of a reconciler."""
_BY_HAND = 0.1
_COMMANDS = 0.3
_AGAIN = 0.3
_ANSWERS = (60.0, 600.0, 3600.0)
"""Seconds that a person takes to confirm a plan."""
_INTERVALS = (5.0, 60.0, 300.0, 600.0)


@dataclass(slots=True)
class Outside:
    """State and settings that all reconcilers share.

    Attributes:
        place: The reconcilers' environment.
        bounds: The service bounds that the reconcilers assume.
        repairs: True if the cancels of duplicates are executed.
        draining: True once no reconciler begins another pass.
        quarrels: True if work trees are edited even while draining.
        people: Chance of its own for the passes that a person starts.
        adopters: Chance of its own and its rate: passes before which a person adopts a job.
        older: True if half of the reconcilers run a version without summaries.
        audits: Chance of its own and its rate: passes that read the whole history.
        answers: Chance of its own and its rate: plans that a person confirms only after a while.
        least_history: The number of claims and runs from which on a summary is written.
        parts: Chance of its own and its rate: passes over some of the jobs, as by `apply PATH`.
        behind: Chance of its own and its rate: passes of a clone that lacks the newest commits. At rate 0,
            no pass compares the checkout with the applied commit, so that such runs stay unchanged.
        edits: Chance of its own and its rate: passes of a work tree in which a job has other content.
        models: What is published; None in runs that publish nothing.
    """

    world: World
    claims: Claims
    repository: Repository
    statuses: Statuses
    records: Records
    place: Place
    bounds: Bounds
    repairs: bool = True
    draining: bool = False
    quarrels: bool = False
    people: random.Random = field(default_factory=random.Random)
    adopters: tuple[random.Random, float] = (random.Random(0), 0.0)
    older: bool = False
    audits: tuple[random.Random, float] = (random.Random(0), 0.0)
    answers: tuple[random.Random, float] = (random.Random(0), 0.0)
    least_history: int = 0
    parts: tuple[random.Random, float] = (random.Random(0), 0.0)
    behind: tuple[random.Random, float] = (random.Random(0), 0.0)
    edits: tuple[random.Random, float] = (random.Random(0), 0.0)
    models: Models | None = None

    def one_pass(self, process: Process, *, full: bool = False) -> Plan | None:
        """Run an apply and a report; return the plan, or None if it couldn't be executed."""
        head, ports = self._checked_out(process), self._ports(process)
        tree = self._edited(head)
        is_edited = tree is not head
        commit = self._part_of(tree)
        whole = commit is tree
        self.world.checker.began(commit, process.name, whole=whole, compares=self._compares(process))
        if self.claims.genesis and not self.least_history:
            self.world.checker.agree(process.name, *self.both_plans())
        try:
            by_hand = not self.draining and self.people.random() < _BY_HAND
            wanted, is_old = wanted_of(commit.jobs), self.is_old(process.name)
            is_full = full or self.audits[0].random() < self.audits[1]
            seen = self._look(process, ports, wanted, frozenset(), full=is_full, is_old=is_old)
            self.world.checker.looked(process.name, seen)
            observed = seen.observed
            self._command(process, ports, observed)
            self._adopt(process, ports, seen, commit)
            publishing = self._publishing(process, ports, head, commit, whole=whole)
            state = self._state(commit, ports, observed, publishing)
            plan = self._plan_of(state, by_hand=by_hand, whole=whole)
            if publishing:
                plan = with_origin(publishing.site, plan, publishing.origin)
            if by_hand:
                self.world.checker.by_hand(plan, process.name)
            check = TreeCheck(ports.claims, lambda: commit, self.place.engine, process.name, whole=whole)
            if self._compares(process):
                check.check()
            check_limits(plan, 0.0, LIMITS, None)
            self.world.trace(process.name, _said(plan))
            self.world.checker.planned(plan, process.name)
            if by_hand and self.answers[0].random() < self.answers[1]:
                process.sleep(self.answers[0].choice(_ANSWERS) * self.answers[0].uniform(0.5, 1.5))
            ports.claims.prepare()
            records, is_behind = RecordsPort(process, self.world, self.records), check.finding.is_behind
            read = records.all()
            told = {sha: found.record for sha, found in read.items()}
            lineage = self.repository.lineage(head, told)
            brought_by = bringers(plan, lineage, commit.sha, told.values(), observed.claims)
            applier = Applier(
                ports,
                body_of,
                commit_of=lambda job: "" if is_edited else brought_by.get(job.manifest.base_name, commit.sha),
                patience=self._patience(),
                pause=PAUSE,
                together=partial(process.together, self.world.rng.choice(_AT_ONCE)),
                withheld=check.withheld if self._compares(process) else lambda: None,
            )
            own, brought = set[str](), set[str]()
            if not is_edited and not is_behind:
                names = {job.manifest.base_name for job in commit.jobs}
                own = {n for n in names if lineage.brought(n) or brought_by.get(n) == commit.sha}
                brought = own | brought_since(lineage, told.values(), commit.jobs)
            if publishing:
                plan, state = _with_brought_back(publishing, plan, state, brought)
            if self._compares(process):
                check.record()
            if not is_edited and not is_behind:
                passed = lineage if whole else replace(lineage, passed_over={}, parts=())
                open_record(records, read, commit.sha, plan, passed, own)
            outcomes = list(applier.run(plan))
            if publishing:
                outcomes += publishing.publisher(state, brought, applier.withheld).run(plan)
            for outcome in outcomes:
                said = outcome_error(outcome) or outcome.state
                self.world.trace(process.name, f"{outcome.change.job_name}: {outcome.status}: {said}")
                self.world.checker.told(outcome, process.name)
            # A store without a summary is read completely, regardless of the commits' pending statuses.
            also = frozenset() if self.least_history else self._record_keys(process)
            seen = self._look(process, ports, wanted, also, full=is_full, is_old=is_old)
            self.world.checker.looked(process.name, seen)
            # The summary keeps the folders that a plan had to read.
            state = self._state(commit, ports, seen.observed, publishing)
            observed = replace(seen.observed, folders=state.folders, in_place=state.in_place)
            seen = replace(seen, observed=observed)
            if not applier.upkeep(commit.jobs, observed):
                self.world.checker.saw(observed.runs)
            if not is_old:
                keep_summary(ports, seen, wanted, also, whole=whole)
            if publishing:
                self.world.checker.published(state, process.name)
            if is_behind:
                return plan
            sha = "" if is_edited else commit.sha
            standings = {base: name.publication for base, name in state.names.items()}
            self._report(process, commit, observed, outcomes, standings, sha=sha, whole=whole)
        except ReconcilerError as error:
            self.world.trace(process.name, f"stopped: {error.message}")
            return None
        return plan

    def _publishing(
        self, process: Process, ports: Ports, head: Commit, commit: Commit, *, whole: bool
    ) -> Publishing | None:
        """Return what a pass publishes with; None if it publishes nothing, as older versions don't."""
        models, world = self.models, self.world
        if models is None or self.is_old(process.name):
            return None
        changed = {job.job_name for job in commit.jobs} - {job.job_name for job in head.jobs}
        site = Site(
            world, self.place, ports, commit, changed, lambda to: ModelsPort(process, world, models, to)
        )
        desired = Desired(commit.jobs, {}, whole=whole, is_part=not whole)
        made = {job.job_name for job in commit.jobs} - changed
        return Publishing(site, desired, Origin(commit.sha, made))

    def is_busy(self, plan: Plan) -> bool:
        """Return True if the plan contains an action that may succeed: a folder may have become empty."""
        return any(
            change.action not in _ENDS
            for change in plan.changes
            if not (change.action is Action.PUBLISH and self.is_hopeless(change))
        )

    def is_hopeless(self, change: Change) -> bool:
        """Return True if only a person can publish a run: files of it are gone, or were changed."""
        models, publication = self.models, change.publication
        if models is None or publication is None:
            return False
        to = publication.publish.to
        copies = models.below(model_folder(to, change.job_name))
        record = models.record(to, change.job_name)
        recorded = {file.name: (file.size, file.crc32c) for file in record.files} if record else {}
        runs = [job for job in self.world.jobs if job.job_name == change.job_name]
        files = [models.below(folder) for job in runs for folder in folders_of_models(job)[:1]]
        facts = [{name: found.facts for name, found in of_run.items()} for of_run in (copies, *files)]
        is_other = any(
            of_run.get(name, wanted) != wanted
            for name, wanted in {**facts[-1], **recorded}.items()
            for of_run in facts
        )
        return is_other or not all(files) or not recorded.keys() <= {*copies, *facts[-1]}

    def _edited(self, commit: Commit) -> Commit:
        """Return a commit, sometimes with other content of a job, as in an edited work tree."""
        chance, rate = self.edits
        if (self.draining and not self.quarrels) or chance.random() >= rate:
            return commit
        job = self.repository.edited(chance)
        others = [other for other in commit.jobs if job and other.manifest.name != job.manifest.name]
        if job is None or len(others) == len(commit.jobs):
            return commit
        jobs = sorted([*others, job], key=lambda job: job.manifest.name)
        return Commit(commit.sha, tuple(jobs), commit.before)

    def _part_of(self, commit: Commit) -> Commit:
        """Return a commit, sometimes with only some of its jobs."""
        chance, rate = self.parts
        if self.draining or len(commit.jobs) < 2 or chance.random() >= rate:
            return commit
        jobs = chance.sample(commit.jobs, chance.randrange(1, len(commit.jobs)))
        return Commit(commit.sha, tuple(sorted(jobs, key=lambda job: job.manifest.name)), commit.before)

    def _compares(self, process: Process) -> bool:
        compares = self.behind[1] > 0 or self.models is not None
        return compares and not self.is_old(process.name)

    def _checked_out(self, process: Process) -> Commit:
        """Return the newest commit, or sometimes an earlier commit, as in a clone without a recent pull."""
        chance, rate = self.behind
        history = self.repository.history
        if self.draining or not self._compares(process) or chance.random() > rate:
            return self.repository.head
        return history[max(0, len(history) - 1 - chance.choice((1, 1, 2, 4)))]

    def is_old(self, who: str) -> bool:
        """Return True if a reconciler runs a version without summaries and records of applied commits."""
        return self.older and who.startswith("r") and int(who[1:]) % 2 == 0

    def _look(
        self,
        process: Process,
        ports: Ports,
        wanted: Wanted,
        also: frozenset[str],
        *,
        full: bool,
        is_old: bool,
    ) -> Observation:
        if is_old:
            return Observation(observe(ports), None, None, full=True)
        process.looks = True
        try:
            return look(ports, wanted, also, full=full, full_after=FULL_AFTER)
        finally:
            process.looks = False

    def both_plans(self) -> tuple[Plan, Plan]:
        """Return the plans of a short look and of a full look at this moment."""
        commit = self.repository.head
        ports = still_ports(self.world, self.claims, self.place, self.bounds, self.least_history)
        looks = [look(ports, wanted_of(commit.jobs), full=full).observed for full in (False, True)]
        publishing = self._still_publishing(ports, commit)
        states = [self._state(commit, ports, observed, publishing) for observed in looks]
        short, full = map(self._plan_of, states)
        return short, full

    def _still_publishing(self, ports: Ports, commit: Commit) -> Publishing | None:
        models = self.models
        if models is None:
            return None
        site = Site(self.world, self.place, ports, commit, (), lambda to: StillModels(models, to))
        return Publishing(site, Desired(commit.jobs, {}), Origin(commit.sha))

    def _record_keys(self, process: Process) -> frozenset[str]:
        records = RecordsPort(process, self.world, self.records).all().values()
        return frozenset(key for found in records for job in found.record.jobs.values() for key in job.keys)

    def _command(self, process: Process, ports: Ports, observed: Observed) -> None:
        """Sometimes run `reconciler cancel` for a live run that a claim names, before the pass goes on."""
        named = {claim.resource for claim in observed.claims.values()}
        live = [run for run in observed.runs if run.resource in named and not run.state.ended]
        live = [run for run in live if run.state is not State.CANCELLING]
        if self.draining or not live or self.people.random() > _COMMANDS:
            return
        run = self.people.choice(live)
        self.world.trace(process.name, f"reconciler cancel {run.job_name}")
        self.world.checker.commanded(run.resource, process.name)
        record_cancel(ports, run, BY_COMMAND)
        cancel(ports, run)

    def _adopt(self, process: Process, ports: Ports, seen: Observation, commit: Commit) -> None:
        """Sometimes run `reconciler import --adopt` for a job that a person made by hand.

        Sometimes the job is already adopted, for content that differs only in `rerun`.
        """
        chance, rate = self.adopters
        by_hand = [job for job in self.world.jobs if job.origin == "person"]
        if self.draining or not by_hand or chance.random() > rate:
            return
        # Usually the newest: others have ended, or are adopted already.
        job = by_hand[-1] if chance.random() < 0.8 else chance.choice(by_hand)
        taken = [job for job in by_hand if job.adopted_as and not job.state.ended]
        is_again = bool(taken) and chance.random() < _AGAIN
        if is_again:
            job = chance.choice(taken)
            self.repository.rerun(_base_of(job))
            commit = self.repository.head
        wanted = next((one for one in commit.jobs if one.manifest.name == _base_of(job)), None)
        if wanted is None or wanted.manifest.kind != job.kind:
            return
        self.world.trace(process.name, f"reconciler import --adopt {job.job_name}")
        self.world.checker.adopts(job, process.name)
        # The command always reads the whole history.
        observed = seen.observed if seen.full else observe(ports)
        adopted = Applier(ports, body_of).adopt(wanted, job.name, observed, "", lambda uri: False)
        said = f"as {adopted.claim.job_name}" if adopted.claim else f"not: {adopted.why}"
        self.world.trace(process.name, f"adopted {said}")

    def _state(
        self, commit: Commit, ports: Ports, observed: Observed, publishing: Publishing | None = None
    ) -> TargetState:
        state = comparable_state(ports.jobs, commit.jobs, observed, OURS)
        if publishing is None:
            return state
        site, desired, is_full = publishing.site, publishing.desired, observed.is_full
        return with_publications(site, desired, state, observed.in_place, is_full=is_full)

    def _plan_of(self, state: TargetState, *, by_hand: bool = False, whole: bool = True) -> Plan:
        plan = make_plan(
            Target(self.place.environment, self.place.engine, "acme-ml", "us-central1"),
            state,
            whole=whole,
            occasion=Trigger(by_hand),
        )
        if self.repairs:
            return plan
        return replace(plan, changes=tuple(change for change in plan.changes if not change.repair))

    def _patience(self) -> float:
        return self.world.rng.choice((PATIENCE, PATIENCE, WAITING_PATIENCE))

    def _report(
        self,
        process: Process,
        commit: Commit,
        observed: Observed,
        outcomes: list[Outcome],
        standings: Mapping[str, Publication | None],
        *,
        sha: str,
        whole: bool,
    ) -> None:
        problems = {
            o.change.base_name: error
            for o in outcomes
            if o.status is not Status.APPLIED
            and (o.change.desired or o.change.publication)
            and (error := outcome_error(o))
        }
        state = self._state(commit, self._ports(process), observed)
        names = {base: replace(name, publication=standings.get(base)) for base, name in state.names.items()}
        state = replace(state, names=names)
        view = View(self.place.contexts, sha, state, self._plan_of(state, whole=whole), problems)
        settings = GitHubSettings(REPOSITORY, API, "token")
        transport = GitHubPort(process, self.world, self.statuses)
        reporter = GitHubReporter(
            transport,
            settings,
            sleep=process.sleep,
            chance=self.world.rng.random,
            clock=process.time_since_boot,
        )
        report(RecordsPort(process, self.world, self.records), reporter, view)

    def _ports(self, process: Process) -> Ports:
        store = StorePort(process, self.world, self.claims, self.place)
        return Ports(
            source=OURS,
            claims=AnnouncedClaims(store, process, self.world.rng.randbytes, self.least_history),
            jobs=JobsPort(process, self.world),
            credentials=CredentialsPort(process, self.world),
            clock=process,
            chance=self.world.rng.randbytes,
            bounds=self.bounds,
            owner=process.name,
            instance=self.place.instance,
            neighbours=self.place.neighbours,
            least_history=self.least_history,
        )


@dataclass(frozen=True, slots=True)
class Publishing:
    """What a pass publishes with.

    Attributes:
        site: The environment and the checkout.
        desired: The jobs.
        origin: The commit of the jobs.
    """

    site: Site
    desired: Desired
    origin: Origin

    def publisher(
        self, state: TargetState, own: Collection[str], withheld: Callable[[], Reason | None]
    ) -> PublicationApplier:
        """Return the product's executor."""
        return PublicationApplier(self.site, self.desired, state, self.origin, own, withheld)


def _with_brought_back(
    publishing: Publishing, plan: Plan, state: TargetState, own: Collection[str]
) -> tuple[Plan, TargetState]:
    """Return plan and state with what the commit records again, as the product's apply does."""
    again = brought_back(publishing.site, publishing.desired, state, own)
    changed = [name for base, name in again.names.items() if name is not state.names[base]]
    return (with_publications_of(plan, changed) if changed else plan), again


def reconcile(process: Process, outside: Outside, rng: random.Random) -> None:
    """Run pass after pass; no state is kept between two passes."""
    while not outside.draining:
        outside.one_pass(process)
        process.passes += 1
        if not outside.draining:
            process.sleep(rng.choice(_INTERVALS) * rng.random())


def body_of(job: DesiredJob, job_name: str, labels: Mapping[str, str]) -> JsonObject:
    """Return a create's body, as the engine writes it."""
    manifest = job.manifest
    spec = spec_of_attempt(manifest.api_version, manifest.kind, job.spec, job.job_name, job_name)
    engine = engine_spec(manifest.api_version)
    return engine.body(manifest.kind, spec, job_name, {**manifest.labels, **labels})


def _base_of(job: Job) -> str:
    """Return the manifest name for which a job was made by hand."""
    return job.job_name.partition("__")[0]


def _said(plan: Plan) -> str:
    changes = "; ".join(f"{c.action} {c.job_name} ({reason_text(c.reason)})" for c in plan.changes)
    drift = "; ".join(f"{d.kind} {d.job_name}" for d in plan.drift)
    return f"plan: {changes or 'nothing'}" + (f"; found: {drift}" if drift else "")
