"""Publications carried out: copies, their record and `current.json`, whoever writes there meanwhile."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
import urllib3
from msgspec.structs import replace

from reconciler.base.errors import NotFoundError
from reconciler.base.http import HttpRequest, HttpResponse, NoAnswerError, Transport
from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.google.client import Connection
from reconciler.manifests.settings import load_config
from reconciler.model.applied_tree import Relation
from reconciler.model.expectation import Expectation, Judged, Judgement, Measured
from reconciler.model.job import ActualJob, State
from reconciler.model.plan import Action, Change, DesiredJob, DriftKind, Plan
from reconciler.model.publication import (
    CurrentModel,
    PublishedModel,
    current_json,
    current_of,
    published_json,
    published_of,
)
from reconciler.model.reason import Reason, ReasonCode, because
from reconciler.operations.load_desired import Desired, load_desired
from reconciler.operations.origin import origin_of
from reconciler.operations.plan import with_origin
from reconciler.operations.publications import with_publications
from reconciler.operations.publish import PublicationApplier
from reconciler.operations.session import Session
from reconciler.output.text import plan_text
from reconciler.output.wording.plan import reason_text
from reconciler.planning.outcome import Outcome, Status
from reconciler.planning.planner import make_plan
from reconciler.planning.state import TargetState
from tests.support import planning
from tests.support.held_service import HeldService
from tests.support.memory_ports import Jobs, Time
from tests.support.metrics_files import study_run
from tests.support.planning import bound_to, run_of
from tests.support.publishing import JOB, TO, crc32c_of, current_model, path_of, published_model, put
from tests.support.repository import Repository

CURRENT = f"{TO}/current.json"
MANIFEST = """
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: {name}}}
publish: {publish}
spec:
  baseOutputDirectory: {{outputUriPrefix: "gs://models/{name}"}}
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-4}}
      replicaCount: 1
      containerSpec: {{imageUri: "example.test/plain:1", args: ["{content}"]}}
"""
STUDY = """
apiVersion: aiplatform.googleapis.com/v1
kind: HyperparameterTuningJob
metadata: {name: census}
publish: {}
spec:
  maxTrialCount: 3
  parallelTrialCount: 1
  studySpec:
    metrics: [{metricId: accuracy, goal: MAXIMIZE}]
    parameters: [{parameterId: lr, doubleValueSpec: {minValue: 0.1, maxValue: 1}}]
  trialJobSpec:
    baseOutputDirectory: {outputUriPrefix: "gs://models/census"}
    workerPoolSpecs:
      - machineSpec: {machineType: n1-standard-4}
        replicaCount: 1
        containerSpec: {imageUri: "example.test/plain:1"}
"""
FILES: Mapping[str, bytes] = {"model.bin": b"weights", "variables/größe 📊.bin": b"", "labels.txt": b"a\nb"}
STEPS = ("announcement", "copy", "record", "current.json")
"""The writes of a publication, in their order."""


class DiedError(BaseException):
    """The process was killed."""


@dataclass
class Wire:
    """A transport that notes what is asked of the publications, and can intervene at each of their writes.

    Attributes:
        sent: The decoded URL of each request.
        steps: Which of `STEPS` each write to the publications was.
        refused: The status of each refused step.
        before, after: Called with the step before a write is sent, and before its answer is returned.
    """

    transport: Transport
    sent: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    before: Callable[[str], object] = lambda step: None
    after: Callable[[str], object] = lambda step: None

    def send(self, request: HttpRequest) -> HttpResponse:
        url = unquote(request.url)
        self.sent.append(f"{request.method} {url}")
        step = _step(request.method, url, request.body or b"")
        for refused, status in self.refused.items():
            if refused == step or (refused.startswith("/") and refused in url):
                error = {"code": status, "message": f"refused with {status}"}
                return HttpResponse(status, {}, json.dumps({"error": error}).encode())
        if step:
            self.steps.append(step)
            self.before(step)
        answer = self.transport.send(request)
        if step:
            self.after(step)
        return answer

    def asked(self, part: str) -> list[str]:
        """Return the requests whose URL has this part."""
        return [url for url in self.sent if part in url]


def _step(method: str, url: str, body: bytes) -> str:
    if method != "POST" or "/o" not in url:
        return ""
    if "/rewriteTo/b/risk-models/" in url:
        return "copy"
    if "/b/risk-models/" in url:
        return "current.json" if b"current.json" in body else "record"
    return "announcement" if "/b/reconciler-staging/" in url else ""


def once(step: str, act: Callable[[], object]) -> Callable[[str], object]:
    """Return a hook that calls `act` at the first write of a step."""
    left = [step]

    def hook(at: str) -> None:
        if at in left:
            left.clear()
            act()

    return hook


def dies() -> None:
    raise DiedError


def loses_answer() -> None:
    raise NoAnswerError("the answer was lost")


@dataclass
class Process:
    """One process with a session of its own, whose requests are noted."""

    session: Session
    wire: Wire
    desired: Desired
    state: TargetState
    plan: Plan
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def job(self) -> DesiredJob:
        return self.desired.jobs[0]

    @property
    def change(self) -> Change:
        """The publication of the plan."""
        (change,) = (change for change in self.plan.changes if change.publication)
        return change

    @property
    def why(self) -> ReasonCode | None:
        """Why nothing was published; None if something was."""
        (outcome,) = self.outcomes
        assert (outcome.reason is None) is (outcome.status is Status.APPLIED)
        return outcome.reason.code if outcome.reason else None

    @property
    def said(self) -> str:
        (outcome,) = self.outcomes
        assert outcome.reason
        return reason_text(outcome.reason)


@dataclass
class Place:
    """A git repository with one job, its runs in memory, and buckets of the embedded service."""

    service: HeldService
    base: Session
    jobs: Jobs
    repository: Repository
    wanted: dict[str, DesiredJob] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.repository.root

    def write(self, content: str, *, name: str = "census", publish: str = "{}") -> None:
        """Write the job's manifest."""
        text = MANIFEST.format(name=name, content=content, publish=publish)
        self.repository.write("jobs/census.yaml", text)

    def commit(self, content: str | None = None, **options: Any) -> str:
        """Write the manifest, commit everything, and return the commit."""
        if content is not None:
            self.write(content, **options)
        self.repository.git("add", "-A", "jobs", "reconciler.yaml")
        self.repository.git("commit", "-q", "--allow-empty", "-m", content or "words")
        return self.repository.git("rev-parse", "HEAD")

    def job(self) -> DesiredJob:
        return self._load()[1].jobs[0]

    def _load(self) -> tuple[Any, Desired]:
        config = load_config(self.root)
        return config, load_desired(config, config.environment("local"), [])

    def run(self, files: Mapping[str, bytes] = FILES, *, folder: str = "", **fields: Any) -> ActualJob:
        """Have a run of the desired content succeed, with files in its folder."""
        job, number = self.job(), len(self.jobs.jobs) + 1
        known = {"spec": job.spec, "end_time": f"2026-01-{number:02}T01:00:00Z", **fields}
        run = run_of(job, State.SUCCEEDED, number=number, **known)
        self.add(run)
        for name, content in files.items():
            put(self.service.home, f"{folder or folder_of(run)}/{name}", content)
        return run

    def add(self, run: ActualJob) -> None:
        """Have the service know a run of the desired content."""
        self.jobs.jobs.append(run)
        self.wanted[run.resource] = self.job()

    def process(self, *, full: bool = False, judgement: Judgement | None = None) -> Process:
        """Start a process that has made a plan."""
        config, desired = self._load()
        base = Session(config, config.environment("local"), self.base.connection)
        wire = Wire(base.connection.endpoint.transport)
        connection = Connection(replace(base.connection.endpoint, transport=wire))
        session = Session(config, base.environment, connection)
        vars(session)["jobs"] = self.jobs
        runs = self.jobs.jobs
        claims = [bound_to(self.wanted[run.resource], run) for run in runs]
        listed = [replace(run, spec={}, body={}) for run in runs]
        state = planning.state_of(desired.jobs, listed, claims)
        if judgement:
            names = {base: replace(name, judgement=judgement) for base, name in state.names.items()}
            state = replace(state, names=names)
        state = with_publications(session, desired, state, {}, is_full=full)
        plan = make_plan(planning.LOCAL, state, whole=True)
        wire.sent.clear()
        return Process(session, wire, desired, state, plan)

    def publish(
        self,
        process: Process | None = None,
        *,
        withheld: Callable[[], Reason | None] = lambda: None,
        brought: Iterable[str] = (),
        **options: Any,
    ) -> Process:
        """Carry out the publications of a process; by default of a new one."""
        process = process or self.process(**options)
        session, desired = process.session, process.desired
        origin = origin_of(session.config, desired, desired.jobs, os.environ, whole=True)
        publisher = PublicationApplier(session, desired, process.state, origin, {*brought}, withheld)
        process.outcomes += publisher.run(with_origin(session, process.plan, origin))
        return process

    @property
    def current(self) -> CurrentModel:
        return current_of(path_of(self.service.home, CURRENT).read_bytes(), TO)

    def record(self, job_name: str) -> PublishedModel:
        content = path_of(self.service.home, f"{TO}/{job_name}/manifest.json").read_bytes()
        return published_of(content, job_name)

    def copies(self, job_name: str) -> dict[str, bytes]:
        """Return the published files of a job, without their record."""
        folder = path_of(self.service.home, f"{TO}/{job_name}")
        files = {
            file.relative_to(folder).as_posix(): file.read_bytes()
            for file in folder.rglob("*")
            if file.is_file()
        }
        files.pop("manifest.json", None)
        return files

    def remove(self, uri: str) -> None:
        """Delete a folder or an object of the embedded service."""
        path = path_of(self.service.home, uri)
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def assert_readable(self) -> str:
        """Assert that the files that `current.json` names are there as recorded; return their job's name."""
        name = self.current.job_name
        found = {file: (len(text), crc32c_of(text)) for file, text in self.copies(name).items()}
        assert found == {file.name: (file.size, file.crc32c) for file in self.record(name).files}
        return name


class ForgetfulJobs(Jobs):
    """A service that no longer has the hidden runs, which a plan still knows."""

    def read(self, api_version: str, kind: str, resource: str) -> ActualJob:
        if resource in self.hidden:
            raise NotFoundError(f"no {resource}")
        return super().read(api_version, kind, resource)


def folder_of(run: ActualJob) -> str:
    """Return the folder (gs://…) of a run's model."""
    return f"{engine_spec(run.api_version).output_directory(run.kind, run.spec)}/model"


@pytest.fixture
def place(service: HeldService, session: Session) -> Place:
    repository = Repository(service.home.parent)
    defaults = "{defaults: {publish: gs://risk-models}}"
    repository.write(
        "reconciler.yaml", f"source: acme-jobs\noutputs: own\nenvironments: {{local: {defaults}}}\n"
    )
    repository.git("init", "-q", "-b", "main")
    (service.home / "gcs/models").mkdir(parents=True)
    session.ports.claims.prepare()
    return Place(service, session, ForgetfulJobs(Time()), repository)


def two(place: Place) -> tuple[ActualJob, ActualJob]:
    """Publish a good model and then a bad one by commits of their own, and return their runs."""
    place.commit("good")
    good = place.run({"model.bin": b"good"})
    assert place.publish().why is None
    place.commit("bad")
    bad = place.run({"model.bin": b"bad", "more.bin": b"more"})
    assert place.publish().why is None
    assert place.assert_readable() == bad.job_name
    return good, bad


def test_first_publication_has_every_file_its_record_and_its_place(place: Place) -> None:
    sha = place.commit("good")
    run = place.run()
    met = Judgement((Judged(Expectation("accuracy", min=0.9), Measured(0.96)),))
    process = place.publish(judgement=met)
    assert process.change.action is Action.PUBLISH
    assert process.why is None
    assert place.copies(run.job_name) == FILES
    record, current = place.record(run.job_name), place.current
    assert {file.name: (file.size, file.crc32c) for file in record.files} == {
        name: (len(content), crc32c_of(content)) for name, content in FILES.items()
    }
    assert [file.name for file in record.files] == sorted(FILES)
    assert (record.origin, record.resource) == (folder_of(run), run.resource)
    assert record.metrics == {"accuracy": 0.96}
    for stored in (record, current):
        assert (stored.source, stored.environment, stored.commit) == ("acme-jobs", "local", sha)
        assert (stored.base_name, stored.job_name) == ("census", run.job_name)
        assert stored.hash == process.job.identity
        assert abs((stored.time - datetime.now(UTC)).total_seconds()) < 60
    assert current.folder == f"{TO}/{run.job_name}"
    assert place.process(full=True).plan.changes[1:] == ()


def test_order_of_writes_is_announcement_then_copies_then_record_then_place(place: Place) -> None:
    place.commit("good")
    place.run()
    assert place.publish().wire.steps == ["announcement", *["copy"] * 3, "record", "current.json"]


def test_folder_without_files_is_refused_with_remedy(place: Place) -> None:
    place.commit("good")
    run = place.run({})
    process = place.publish()
    assert process.why is ReasonCode.ERROR
    assert f"the run wrote no file below {folder_of(run)}" in process.said
    assert not path_of(place.service.home, CURRENT).exists()


def test_file_with_the_name_of_the_record_is_refused(place: Place) -> None:
    place.commit("good")
    place.run({**FILES, "manifest.json": b"{}"})
    process = place.publish()
    assert "has the name of the record" in process.said
    assert process.wire.steps in ([], ["announcement"])


def test_file_with_that_name_in_subfolder_is_published(place: Place) -> None:
    place.commit("good")
    run = place.run({**FILES, "export/manifest.json": b"{}"})
    assert place.publish().why is None
    assert place.copies(run.job_name)["export/manifest.json"] == b"{}"
    assert place.process(full=True).plan.changes[1:] == ()


@pytest.mark.slow
def test_more_than_ten_thousand_objects_are_refused_before_any_copy(place: Place) -> None:
    place.commit("good")
    place.run({f"{number:05}": b"" for number in range(10_001)})
    process = place.publish()
    assert process.why is ReasonCode.ERROR
    assert "has more than 10,000 objects (put many small files into few archives" in process.said
    assert process.wire.steps in ([], ["announcement"])


def test_folder_that_a_console_shows_is_no_file(place: Place) -> None:
    place.commit("good")
    run = place.run()
    placeholder = f"{folder_of(run)}/empty/"
    insert_placeholder(place, placeholder)
    assert place.publish().why is None
    insert_placeholder(place, f"{TO}/{run.job_name}/")
    insert_placeholder(place, f"{TO}/{run.job_name}/seen/")
    again = place.process(full=True)
    assert again.plan.changes[1:] == ()
    assert again.plan.drift == ()


def insert_placeholder(place: Place, uri: str) -> None:
    """Write an object with a slash at its end, as consoles do."""
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    service = place.service
    answer = urllib3.request(
        "POST",
        f"{service.url}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, safe='')}",
        headers={"Authorization": f"Bearer {service.token}"},
        body=b"",
    )
    assert answer.status == 200, answer.data


@pytest.mark.fault(69)
@pytest.mark.parametrize("full", [False, True])
def test_revert_replaces_current_alone_and_reads_no_run(place: Place, full: bool) -> None:
    good, bad = two(place)
    place.remove(folder_of(good))  # by a lifecycle rule
    sha = place.commit("good")
    process = place.publish(full=full)
    assert process.why is None
    assert process.wire.steps == ["announcement", "current.json"]
    assert process.wire.asked("/b/models/") == []
    assert place.assert_readable() == good.job_name
    assert place.current.commit == sha
    assert place.copies(bad.job_name) == {"model.bin": b"bad", "more.bin": b"more"}
    assert place.process(full=True).plan.changes[1:] == ()


def test_revert_needs_no_record_of_the_run_at_the_service(place: Place) -> None:
    good, _ = two(place)
    place.commit("good")
    process = place.process()
    place.jobs.jobs.remove(good)
    assert place.publish(process).why is None
    assert place.assert_readable() == good.job_name


def test_first_publication_needs_the_record_of_the_run_at_the_service(place: Place) -> None:
    place.commit("good")
    run = place.run()
    process = place.process()
    place.jobs.jobs.remove(run)
    assert place.publish(process).why is ReasonCode.FOLDER_UNKNOWN
    assert process.wire.steps in ([], ["announcement"])


@pytest.mark.fault(6)
@pytest.mark.parametrize("step", STEPS)
def test_process_that_dies_leaves_what_the_next_one_uses(place: Place, step: str) -> None:
    place.commit("good")
    run = place.run()
    dying = place.process()
    dying.wire.after = once(step, dies)
    with pytest.raises(DiedError):
        place.publish(dying)
    next_one = place.publish()
    assert place.assert_readable() == run.job_name
    assert place.copies(run.job_name) == FILES
    made = dying.wire.steps + next_one.wire.steps
    assert (made.count("copy"), made.count("record"), made.count("current.json")) == (3, 1, 1)


@pytest.mark.fault(66)
@pytest.mark.parametrize("step", STEPS)
def test_lost_answer_of_a_step_fails_and_the_next_pass_ends_it(place: Place, step: str) -> None:
    place.commit("good")
    run = place.run()
    losing = place.process()
    losing.wire.after = once(step, loses_answer)
    place.publish(losing)
    (outcome,) = losing.outcomes
    is_repeated = step == "announcement"
    assert (outcome.status is Status.APPLIED) is is_repeated
    next_one = place.publish()
    assert place.assert_readable() == run.job_name
    assert place.copies(run.job_name) == FILES
    made = losing.wire.steps + next_one.wire.steps
    assert (made.count("copy"), made.count("record"), made.count("current.json")) == (3, 1, 1)


@pytest.mark.fault(67, 68)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("status", "hint"), [(403, "grant"), (429, "quota")])
def test_refused_step_is_reported_and_ends_later(place: Place, step: str, status: int, hint: str) -> None:
    place.commit("good")
    run = place.run()
    path_of(place.service.home, TO).parent.mkdir()
    refused = place.process()
    refused.wire.refused = {step: status}
    place.publish(refused)
    (outcome,) = refused.outcomes
    assert outcome.status is Status.FAILED
    if step != "announcement":
        assert f"refused with {status}" in refused.said
        assert hint in refused.said
    assert not path_of(place.service.home, CURRENT).exists()
    assert place.publish().why is None
    assert place.assert_readable() == run.job_name


@pytest.mark.fault(67)
@pytest.mark.parametrize("bucket", ["models", "risk-models"])
@pytest.mark.parametrize("status", [403, 429])
def test_refused_read_is_reported_and_nothing_is_written(place: Place, bucket: str, status: int) -> None:
    place.commit("good")
    run = place.run()
    path_of(place.service.home, TO).parent.mkdir()
    refused = place.process()
    refused.wire.refused = {f"/b/{bucket}/o?": status}
    place.publish(refused)
    assert f"refused with {status}" in refused.said
    assert f"gs://{bucket}" in refused.said
    assert refused.wire.steps == ["announcement"]
    place.publish()
    assert place.assert_readable() == run.job_name


def test_copy_by_somebody_else_is_refused_until_a_person_deletes_it(place: Place) -> None:
    place.commit("good")
    run = place.run()
    folder = f"{TO}/{run.job_name}"
    put(place.service.home, f"{folder}/model.bin", b"theirs")
    for _ in range(2):
        process = place.publish()
        assert process.why is ReasonCode.PUBLICATION_CHANGED
        assert (
            f"{folder}, where model.bin is not as published: find out who, delete that folder" in process.said
        )
        assert process.wire.steps in ([], ["announcement"])
    place.remove(folder)
    assert place.publish().why is None
    assert place.copies(run.job_name) == FILES


def test_object_beside_the_copies_is_refused(place: Place) -> None:
    place.commit("good")
    run = place.run()
    put(place.service.home, f"{TO}/{run.job_name}/virus.bin", b"theirs")
    assert place.publish().why is ReasonCode.PUBLICATION_CHANGED
    assert not path_of(place.service.home, CURRENT).exists()


@pytest.mark.parametrize("other", [{"environment": "staging"}, {"source": "other-jobs"}])
def test_model_that_others_recorded_is_refused_until_a_person_deletes_it(
    place: Place, other: dict[str, str]
) -> None:
    place.commit("good")
    run = place.run()
    place.publish()
    record = path_of(place.service.home, f"{TO}/{run.job_name}/manifest.json")
    own = published_of(record.read_bytes(), run.job_name)
    # They died before they put it in the place.
    path_of(place.service.home, CURRENT).unlink()
    put(place.service.home, f"{TO}/{run.job_name}/manifest.json", published_json(replace(own, **other)))
    (change,) = [change for change in place.process().plan.changes if change.publication]
    assert (change.action, change.reason.code) == (Action.BLOCKED, ReasonCode.PUBLICATION_CHANGED)
    assert change.reason.values["files"] == ("manifest.json",)
    place.remove(f"{TO}/{run.job_name}")
    assert place.publish().why is None
    assert place.assert_readable() == run.job_name


@pytest.mark.fault(70)
def test_late_writer_of_a_copied_file_is_refused_until_a_person_deletes_the_copy(place: Place) -> None:
    place.commit("good")
    run = place.run()
    process = place.process()
    process.wire.after = once("copy", lambda: overwrite_all(place, run))
    place.publish(process)
    assert process.why is ReasonCode.PUBLICATION_CHANGED
    assert not path_of(place.service.home, CURRENT).exists()
    place.remove(f"{TO}/{run.job_name}")
    assert place.publish().why is None
    assert set(place.copies(run.job_name).values()) == {b"late"}
    assert place.assert_readable() == run.job_name


def overwrite_all(place: Place, run: ActualJob) -> None:
    for name in FILES:
        put(place.service.home, f"{folder_of(run)}/{name}", b"late")


@pytest.mark.fault(70)
def test_file_that_is_written_late_into_the_run_changes_no_publication(place: Place) -> None:
    place.commit("good")
    run = place.run()
    place.publish()
    put(place.service.home, f"{folder_of(run)}/late.bin", b"late")
    put(place.service.home, f"{folder_of(run)}/model.bin", b"late")
    assert place.process(full=True).plan.changes[1:] == ()
    assert place.assert_readable() == run.job_name


def test_missing_copy_is_drift_and_is_copied_again(place: Place) -> None:
    place.commit("good")
    run = place.run()
    place.publish()
    before = place.current
    place.remove(f"{TO}/{run.job_name}/model.bin")
    assert place.process().plan.changes[1:] == (), "a short look reads no copies"
    process = place.process(full=True)
    assert [(drift.kind, drift.job_name) for drift in process.plan.drift] == [
        (DriftKind.UNPUBLISHED, run.job_name)
    ]
    place.publish(process)
    assert process.why is None
    assert place.copies(run.job_name) == FILES
    assert place.current.commit == before.commit
    assert place.process(full=True).plan.drift == ()


def test_missing_record_is_drift_and_is_written_again(place: Place) -> None:
    place.commit("good")
    run = place.run()
    place.publish()
    place.remove(f"{TO}/{run.job_name}/manifest.json")
    process = place.process(full=True)
    assert [drift.kind for drift in process.plan.drift] == [DriftKind.UNPUBLISHED]
    assert place.publish(process).why is None
    assert place.assert_readable() == run.job_name


@pytest.mark.fault(70)
def test_changed_copy_is_drift_and_stays_until_a_person_deletes_it(place: Place) -> None:
    place.commit("good")
    run = place.run()
    place.publish()
    put(place.service.home, f"{TO}/{run.job_name}/model.bin", b"theirs")
    process = place.process(full=True)
    assert [drift.kind for drift in process.plan.drift] == [DriftKind.UNPUBLISHED]
    assert process.change.action is Action.BLOCKED
    assert process.change.reason.code is ReasonCode.PUBLICATION_CHANGED
    place.remove(f"{TO}/{run.job_name}")
    assert place.publish(full=True).why is None
    assert place.assert_readable() == run.job_name


@pytest.mark.fault(69)
def test_damaged_publication_whose_run_is_gone_is_drift_and_names_what_is_missing(place: Place) -> None:
    place.commit("good")
    run = place.run()
    place.publish()
    place.remove(folder_of(run))
    place.remove(f"{TO}/{run.job_name}/model.bin")
    process = place.process(full=True)
    assert [drift.kind for drift in process.plan.drift] == [DriftKind.UNPUBLISHED]
    place.publish(process)
    assert process.why is ReasonCode.ERROR
    assert "current.json" not in process.wire.steps


def test_publication_is_not_repaired_by_part_of_the_files(place: Place) -> None:
    place.commit("good")
    run = place.run()
    place.publish()
    for name in ("model.bin", "labels.txt"):
        place.remove(f"{TO}/{run.job_name}/{name}")
    place.remove(f"{folder_of(run)}/model.bin")
    process = place.publish(full=True)
    assert process.why is not None
    assert "model.bin" in process.said
    assert "current.json" not in process.wire.steps


def test_repair_leaves_out_what_the_run_wrote_late(place: Place) -> None:
    place.commit("good")
    run = place.run()
    place.publish()
    place.remove(f"{TO}/{run.job_name}/model.bin")
    put(place.service.home, f"{folder_of(run)}/late.bin", b"late")
    assert place.publish(full=True).why is None
    assert place.copies(run.job_name) == FILES
    assert place.process(full=True).plan.changes[1:] == ()


def test_repair_by_older_checkout_keeps_the_newer_commit(place: Place) -> None:
    older = place.commit("good")
    run = place.run()
    place.commit("good", publish="{from: model}")
    newer = place.repository.git("rev-parse", "HEAD")
    place.publish()
    place.remove(f"{TO}/{run.job_name}/model.bin")
    place.repository.git("checkout", "-q", older)
    place.publish(full=True)
    assert place.copies(run.job_name) == FILES
    assert place.current.commit == newer


@pytest.mark.fault(71)
def test_older_commit_does_not_replace_newer_one_that_won_meanwhile(place: Place) -> None:
    place.commit("first")
    place.run({"m": b"1"})
    place.publish()
    older = place.commit("older")
    place.run({"m": b"2"})
    slow = place.process()
    newer = place.commit("newer")
    run = place.run({"m": b"3"})
    place.repository.git("checkout", "-q", older)

    def win() -> None:
        place.repository.git("checkout", "-q", newer)
        assert place.publish().why is None
        place.repository.git("checkout", "-q", older)

    slow.wire.before = once("current.json", win)
    place.publish(slow)
    assert slow.why is ReasonCode.PUBLISHED_BY_NEWER
    assert f"the newer commit {newer[:7]} published the model in place: pull" in slow.said
    assert slow.wire.steps.count("current.json") == 1
    assert place.assert_readable() == run.job_name


@pytest.mark.fault(71)
def test_newer_commit_replaces_older_one_that_won_meanwhile(place: Place) -> None:
    place.commit("first")
    place.run({"m": b"1"})
    place.publish()
    older = place.commit("older")
    place.run({"m": b"2"})
    newer = place.commit("newer")
    run = place.run({"m": b"3"})
    ahead = place.process()

    def win() -> None:
        place.repository.git("checkout", "-q", older)
        assert place.publish().why is None
        place.repository.git("checkout", "-q", newer)

    ahead.wire.before = once("current.json", win)
    place.publish(ahead)
    assert ahead.why is None
    assert ahead.wire.steps.count("current.json") == 2
    assert place.assert_readable() == run.job_name
    assert place.current.commit == newer


def test_processes_that_publish_the_same_model_agree(place: Place) -> None:
    place.commit("good")
    run = place.run()
    for step in STEPS:
        shutil.rmtree(path_of(place.service.home, TO), ignore_errors=True)
        slow = place.process()
        slow.wire.before = once(step, lambda: place.publish())
        place.publish(slow)
        assert slow.why is None, step
        assert place.assert_readable() == run.job_name
        assert place.copies(run.job_name) == FILES


def test_current_that_keeps_changing_is_reported(place: Place) -> None:
    place.commit("good")
    place.run()
    process = place.process()
    versions = iter(range(100))

    def change(step: str) -> None:
        if step == "current.json":
            content = current_json(some_current(base_name=f"gone{next(versions)}"))
            put(place.service.home, CURRENT, content)

    process.wire.before = change
    place.publish(process)
    assert process.why is ReasonCode.ERROR
    assert "current.json keeps changing: other processes publish there (apply again)" in process.said
    assert process.wire.steps.count("current.json") == 5


def some_current(**changed: Any) -> CurrentModel:
    return replace(current_model(published_model()), **changed)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b" " * 70_000, "it is larger than 65,536 bytes"),
        (b'{"formatVersion": 1, "folder":' + b"[" * 60_000, "nested too deeply|recursion|Recursion"),
        (current_json(some_current(folder="gs://risk-models/other")), "isn't its job's"),
        (
            current_json(some_current(folder="gs://other/census/" + JOB)),
            "names a folder that isn't its job's",
        ),
        (b"hello", "JSON"),
    ],
    ids=["large", "deep", "folder", "bucket", "text"],
)
@pytest.mark.parametrize("at", ["plan", "apply"])
def test_current_by_somebody_else_is_refused_with_the_reason(
    place: Place, content: bytes, why: str, at: str
) -> None:
    place.commit("good")
    run = place.run()
    process = None if at == "plan" else place.process()
    put(place.service.home, CURRENT, content)
    process = process or place.process()
    if at == "plan":
        assert process.change.action is Action.BLOCKED
        assert process.change.reason.code is ReasonCode.PUBLICATION_UNREAD
        said = reason_text(process.change.reason)
    else:
        assert place.publish(process).why is ReasonCode.PUBLICATION_UNREAD
        said = process.said
    assert re.search(why, said), said
    assert f"{CURRENT} can't be used: " in said
    assert "delete it" in said
    assert process.wire.steps in ([], ["announcement"])
    assert path_of(place.service.home, CURRENT).read_bytes() == content
    place.remove(CURRENT)
    assert place.publish().why is None
    assert place.assert_readable() == run.job_name


def test_record_by_somebody_else_is_refused_with_the_reason(place: Place) -> None:
    place.commit("good")
    run = place.run()
    record = f"{TO}/{run.job_name}/manifest.json"
    put(place.service.home, record, b"{}")
    process = place.process()
    assert process.change.reason.code is ReasonCode.PUBLICATION_UNREAD
    assert f"{record} can't be used" in reason_text(process.change.reason)
    place.remove(record)
    assert place.publish().why is None


def test_record_that_names_other_files_is_refused(place: Place) -> None:
    place.commit("good")
    run = place.run()
    forged = published_model({**FILES, "model.bin": b"forged"}, job_name=run.job_name)
    put(place.service.home, f"{TO}/{run.job_name}/manifest.json", published_json(forged))
    process = place.publish()
    assert process.why is ReasonCode.PUBLICATION_CHANGED
    assert not path_of(place.service.home, CURRENT).exists()


def test_words_of_a_stranger_reach_no_terminal_as_they_are(place: Place) -> None:
    place.commit("good")
    place.run()
    evil = "x\x1b[2J\nnothing to do"
    for changed in (
        {"environment": evil},
        {"source": evil},
        {"environment": "local", "base_name": evil, "commit": ""},
    ):
        put(place.service.home, CURRENT, current_json(some_current(**changed)))
        text = plan_text(place.process().plan)
        assert "\x1b" not in text
        assert "\nnothing to do" not in text


def test_trial_with_the_best_result_is_published(place: Place) -> None:
    place.repository.write("jobs/census.yaml", STUDY)
    place.commit()
    job = place.job()
    study = study_run(0.5, 0.9, 0.7)
    folder = job.spec["trialJobSpec"]["baseOutputDirectory"]["outputUriPrefix"]
    body = {**study.body, "studySpec": job.spec["studySpec"]}
    run = place.run({}, kind="HyperparameterTuningJob", body=body)
    for trial in "123":
        put(place.service.home, f"{folder}/{trial}/model/model.bin", trial.encode())
    process = place.publish()
    assert process.why is None
    assert place.copies(run.job_name) == {"model.bin": b"2"}
    assert place.record(run.job_name).origin == f"{folder}/2/model"


def test_study_without_a_best_trial_is_refused(place: Place) -> None:
    place.repository.write("jobs/census.yaml", STUDY)
    place.commit()
    body = {**study_run(None).body, "studySpec": place.job().spec["studySpec"]}
    place.run({}, kind="HyperparameterTuningJob", body=body)
    process = place.process()
    assert process.change.action is Action.BLOCKED
    assert process.change.reason.code is ReasonCode.NO_BEST_TRIAL


def test_shared_folder_of_an_earlier_setting_is_refused_with_rerun(place: Place) -> None:
    place.commit("good")
    shared = {"baseOutputDirectory": {"outputUriPrefix": "gs://models/census"}}
    place.run(FILES, spec=shared, folder="gs://models/census/model")
    process = place.process()
    assert process.change.action is Action.BLOCKED
    assert process.change.reason.code is ReasonCode.FOLDER_SHARED
    assert "rerun" in reason_text(process.change.reason)
    assert "gs://models/census" in reason_text(process.change.reason)


@pytest.mark.parametrize("source", ["export", "model/best"])
def test_folder_that_the_manifest_names_is_published(place: Place, source: str) -> None:
    place.commit("good", publish=f"{{from: {source}}}")
    base = folder_of(place.run({})).removesuffix("/model")
    put(place.service.home, f"{base}/{source}/m.bin", b"m")
    process = place.publish()
    assert process.why is None
    assert place.copies(place.current.job_name) == {"m.bin": b"m"}


@pytest.mark.fault(71)
def test_apply_that_another_commit_overtook_is_withheld_before_the_place_changes(place: Place) -> None:
    place.commit("good")
    place.run()
    reason = because(ReasonCode.WITHHELD, relation=Relation.OLDER, commit="c" * 40)
    process = place.publish(withheld=lambda: reason)
    assert process.why is ReasonCode.WITHHELD
    assert process.wire.steps == ["announcement", *["copy"] * 3, "record"]
    assert place.publish().why is None


def test_revert_while_other_content_runs_is_recorded_with_its_own_commit(place: Place) -> None:
    place.commit("good")
    run = place.run()
    place.publish()
    place.commit("bad")
    number = len(place.jobs.jobs) + 1
    training = run_of(place.job(), State.RUNNING, number=number, create_time="2036-01-01T00:00:00Z")
    place.add(training)
    sha = place.commit("good")
    process = place.process()
    assert process.change.reason.code is ReasonCode.PUBLISHED_BEFORE_OTHER
    place.publish(process)
    assert process.wire.steps == ["announcement", "current.json"]
    assert place.current.commit == sha
    assert place.assert_readable() == run.job_name


def test_model_of_no_commit_is_recorded_with_the_commit_that_brings_its_content(place: Place) -> None:
    """Else an apply of an older commit that is about to replace it would win."""
    place.commit("good")
    place.run()
    place.publish()
    put(place.service.home, CURRENT, current_json(replace(place.current, commit="", ancestors=())))
    place.commit("bad")
    number = len(place.jobs.jobs) + 1
    training = run_of(place.job(), State.RUNNING, number=number, create_time="2036-01-01T00:00:00Z")
    place.add(training)
    sha = place.commit("good")
    process = place.process()
    assert process.change.reason.code is ReasonCode.PUBLISHED_BEFORE_OTHER
    place.publish(process)
    assert (process.wire.steps, place.current.commit) == (["announcement", "current.json"], sha)


def test_damaged_publication_is_drift_although_the_service_dropped_the_run(place: Place) -> None:
    place.commit("good")
    run = place.run()
    place.publish()
    place.remove(f"{TO}/{run.job_name}/model.bin")
    place.jobs.hidden.add(run.resource)
    process = place.process(full=True)
    assert process.change.action is Action.BLOCKED
    assert process.change.reason.code is ReasonCode.FOLDER_UNKNOWN
    assert [(drift.kind, drift.job_name) for drift in process.plan.drift] == [
        (DriftKind.UNPUBLISHED, run.job_name)
    ]
    assert "model.bin" in planning.detail_of(process.plan.drift[0])
