"""The job that a name means to every command: the run of the desired content, and the newest other one.

A base name needs one short listing of its runs and the claims of their contents. All manifests are read only
if the file of its last claim no longer has the name; all jobs and claims only if it has no run: then the name
may be that of a new manifest, of a deleted run, or misspelt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from reconciler.base.diagnostics import same_word, similar_word
from reconciler.base.errors import InvalidError, NotFoundError, ServiceError, UsageError
from reconciler.model.claim import Claim, ClaimId, ClaimState
from reconciler.model.claimed_run import age, made
from reconciler.model.job import KEY, ActualJob, State
from reconciler.model.manifest import ManifestPlace
from reconciler.model.plan import DesiredJob
from reconciler.operations.load_desired import load_desired
from reconciler.operations.session import Session
from reconciler.planning.attempts import Attempt, base_of, keys_of
from reconciler.planning.state import NameState, target_state
from reconciler.submission.observe import observe

_MOST_CONTENTS = 5
"""Contents of a base name, the newest ones, whose claims are read; those of live runs are read too."""
_NAME = re.compile("[A-Za-z0-9_-]{1,200}")

Claims = Mapping[ClaimId, Claim]


class NamedJob(Struct):
    """A run, an attempt without a run, or a desired job without an attempt.

    Attributes:
        state: What exists under its base name.
        attempt: None for a job that was never submitted.
        run: None if the service has none.
        is_base_name: True if a person wrote the base name, which means all of its runs.
        path: The file that a claim names, for a base name that no manifest has now; "" if unknown.
        unread: As in `JobDetails`.
    """

    state: NameState
    attempt: Attempt | None = None
    run: ActualJob | None = None
    is_base_name: bool = False
    path: str = ""
    unread: dict[str, str] = field(default_factory=dict)

    @property
    def desired(self) -> DesiredJob | None:
        """The manifest's present job of the base name."""
        return self.state.desired

    @property
    def claim(self) -> Claim | None:
        """The claim of the run, or of an attempt without a run."""
        claim = self.attempt.claim if self.attempt else None
        return claim if claim and (self.run is None or made(claim, self.run)) else None

    @property
    def base_name(self) -> str:
        """The manifest's name; the beginning of the job's name if nothing names it."""
        if self.desired:
            return self.desired.manifest.name
        name = self.claim.base_name if self.claim else ""
        return name or base_of(self.attempt.name if self.attempt else "")

    @property
    def place(self) -> ManifestPlace:
        """The place of its manifest."""
        if self.desired is None:
            return ManifestPlace(self.path, relation="missing" if self.path else "")
        is_current = self.attempt is None or self.attempt.id.key in keys_of(self.desired)
        manifest = self.desired.manifest
        return ManifestPlace(manifest.path, manifest.line, "current" if is_current else "changed")

    @property
    def unsettled(self) -> tuple[Claim, ...]:
        """The base name's other claims without a run."""
        claims = (other.claim for other in self.state.attempts if other is not self.attempt and other.claim)
        return tuple(claim for claim in claims if claim.state is not ClaimState.BOUND)

    @property
    def other_run(self) -> ActualJob | None:
        """The base name's newest run of other content that a recorded request made; None for none."""
        key = self.attempt.id.key if self.attempt else ""
        runs = (other.run for other in self.state.attempts if other.claim and other.id.key != key)
        return max(filter(None, runs), key=age, default=None)

    @property
    def live_runs(self) -> list[ActualJob]:
        """The live runs of a base name that claims stand for, oldest first; none for a job name."""
        # Of several runs of one attempt, apply cancels all but the one that its claim stands for.
        attempts = self.state.attempts if self.is_base_name else ()
        runs = (attempt.run for attempt in attempts if attempt.claim)
        return sorted((run for run in runs if run and not run.state.ended), key=age)

    def body(self) -> Mapping[str, object]:
        """Return the run's resource as the API returns it; raise NotFoundError without a run."""
        if self.run is None:
            raise NotFoundError(
                "the service has no run of this job", hint="see `reconciler show` without --format yaml"
            )
        return self.run.body


def find_job(session: Session, name: str) -> NamedJob:
    """Return the job of a job name; of a base name, the run of the desired content, else the newest run.

    A run has its spec.

    Raises:
        NotFoundError: No job, claim or manifest has this name.
        ServiceError: The jobs can't be read.
    """
    return _Finder(session, name).find()


class _Finder(Struct):
    """Search for the job of a name."""

    session: Session
    name: str
    unread: dict[str, str] = field(default_factory=dict)

    def find(self) -> NamedJob:
        """Return the job; raise NotFoundError."""
        normalized = self.name.replace("-", "_")
        if _NAME.fullmatch(self.name):
            for base in dict.fromkeys((base_of(normalized), normalized)):
                if job := self._among_runs(base):
                    return job
        return self._among_all(normalized)

    def _among_runs(self, base: str) -> NamedJob | None:
        """Return the job if the service has a run of this base name and `name` means it."""
        listed = [run for run in self.session.jobs.of_base(base) if base_of(run.job_name) == base]
        runs = sorted(self.session.own(listed), key=age, reverse=True)
        if not runs:
            return None
        keys = self._keys(runs)
        claims = self._claims(keys)
        path = next((claim.path for run in runs for claim in claims.values() if made(claim, run)), "")
        desired = self._manifest(path, base)
        claims |= self._claims([key for key in keys_of(desired) if key not in keys] if desired else [])
        runs += self._adopted(claims)
        state = target_state([desired] if desired else [], runs, claims).names.get(base, NameState(base))
        exact = self._exact(state.attempts)
        if not exact and self.name.replace("-", "_") != base:
            return None
        return self._chosen(state, exact, path)

    def _keys(self, runs: Sequence[ActualJob]) -> list[str]:
        """Return the keys of the newest contents, of live runs, and of the runs of exactly this name."""
        newest = dict.fromkeys(run.labels.get(KEY, "") for run in runs)
        also = (run.labels.get(KEY, "") for run in runs if not run.state.ended or run.job_name == self.name)
        return [key for key in dict.fromkeys([*islice(newest, _MOST_CONTENTS), *also]) if key]

    def _among_all(self, base: str) -> NamedJob:
        """Return the job of any manifest, claim or run; raise NotFoundError with a similar name."""
        desired = self._load([])
        job = next((j for j in desired if self.name == j.job_name or base == j.manifest.base_name), None)
        if job is not None:
            # Only the manifest's own content counts: earlier ones have no run either.
            claims = self._claims(keys_of(job))
            state = target_state([job], [], claims).names[job.manifest.base_name]
            return self._chosen(state, self._exact(state.attempts), job.manifest.path)
        names = target_state(desired, *self._observed()).names
        for state in names.values():
            if exact := self._exact(state.attempts):
                return self._chosen(state, exact)
        if base in names:
            return self._chosen(names[base], ())
        raise NotFoundError(f'there is no job "{self.name}"', hint=self._hint(names.values()))

    def _exact(self, attempts: Iterable[Attempt]) -> list[Attempt]:
        """Return the attempts with a run or a claim of exactly this job name."""
        return [
            one
            for one in attempts
            if self.name in (one.name, *(run.job_name for run in (*one.others, *one.strangers)))
        ]

    def _chosen(self, state: NameState, exact: Sequence[Attempt], path: str = "") -> NamedJob:
        """Return the newest run of the attempts that the name means, else the last of these attempts."""
        attempts = exact or state.wanted or state.attempts
        if not attempts:
            return NamedJob(state, is_base_name=True, unread=self.unread)
        # Runs with a claim are certainly ours; others only have the same name.
        claimed = [(one, one.run) for one in attempts if one.run and one.claim]
        runs = claimed or [(one, run) for one in attempts for run in (one.run, *one.strangers) if run]
        if runs:
            attempt, run = max(runs, key=lambda pair: age(pair[1]))
        else:
            attempt, run = max(attempts, key=lambda one: one.id.attempt), None
        path = path or next((one.claim.path for one in attempts if one.claim), "")
        run = read_run(self.session, attempt, run)
        return NamedJob(state, attempt, run, not exact, path, self.unread)

    def _adopted(self, claims: Claims) -> Iterator[ActualJob]:
        """Yield the adopted runs, which no listing by label shows."""
        for claim in claims.values():
            with suppress(NotFoundError):
                if claim.is_adopted and not claim.gone:
                    yield self.session.jobs.read(claim.api_version, claim.kind, claim.resource)

    def _claims(self, keys: Iterable[str]) -> dict[ClaimId, Claim]:
        claims: dict[ClaimId, Claim] = {}
        try:
            for key in keys:
                versions = self.session.claims.of_key(key)
                claims |= {id: versioned.claim for id, versioned in versions.items()}
        except ServiceError as error:
            self.unread["claim"] = error.message
        return claims

    def _observed(self) -> tuple[tuple[ActualJob, ...], Claims]:
        try:
            observed = observe(self.session.ports)
            return observed.runs, observed.claims
        except ServiceError as error:
            # Unusable claims must not hide a run.
            self.unread["claim"] = error.message
            return self.session.runs(), {}

    def _manifest(self, path: str, base: str) -> DesiredJob | None:
        """Return the job of this base name: from the file that a claim names, else from all manifests."""
        # The path comes from a bucket: it must not lead out of the repository.
        is_inside = path and not (Path(path).is_absolute() or ".." in Path(path).parts)
        for paths in ([self.session.config.root / path], []) if is_inside else ([],):
            job = next((job for job in self._load(paths) if job.manifest.base_name == base), None)
            if job:
                return job
        return None

    def _load(self, paths: Sequence[Path]) -> tuple[DesiredJob, ...]:
        try:
            return load_desired(self.session.config, self.session.environment, paths).jobs
        except UsageError:
            return ()
        except InvalidError as error:
            self.unread["manifest"] = f"{error.message}: see `reconciler validate`"
            return ()

    def _hint(self, states: Iterable[NameState]) -> str:
        names = [name for state in states for name in (state.name, *(one.name for one in state.attempts))]
        similar = same_word(self.name, names) or similar_word(self.name, names)
        return f"did you mean {similar}?" if similar else "see `reconciler status`"


def read_run(session: Session, attempt: Attempt, run: ActualJob | None) -> ActualJob | None:
    """Return a run of an attempt, with its spec; a cancelled one with the reason that its claim records.

    `run` is None for an attempt that no listing shows a run of. Return None if the service no longer has it.
    """
    claim = attempt.claim
    try:
        if run is not None:
            read = session.read(run)
        # A run whose labels were changed outside is in no listing of ours.
        elif claim and claim.resource and not claim.gone:
            read = session.jobs.read(claim.api_version, claim.kind, claim.resource)
        else:
            return None
    except NotFoundError:
        return None
    if read.state is not State.CANCELLED:
        return read
    return replace(read, cancelled=claim.error if claim and claim.resource == read.resource else None)
