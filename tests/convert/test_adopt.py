"""Jobs of other clients: the search for them in an environment, and their binding to manifests."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.base.errors import InvalidError, ServiceError
from reconciler.convert.adopt import adopt_jobs, find_live_jobs
from reconciler.convert.importing.placeholders import SourceError
from reconciler.google.responses import ApiError
from reconciler.manifests.settings import from_document
from reconciler.model.claim import ClaimState
from reconciler.model.job import SOURCE, ActualJob
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1
from reconciler.model.selection import LabelTerm, Selection
from reconciler.operations.session import Session
from reconciler.packaging.sdist import Sdist
from tests.support.in_memory import MANIFEST, session_over
from tests.support.memory_ports import PARENT, Outside

GOOGLE = {"engine": "google", "project": "acme-ml", "location": "us-central1", "stagingBucket": "acme-ml"}
POOL = {
    "machineSpec": {"machineType": "n1-standard-4"},
    "replicaCount": "1",
    "containerSpec": {"imageUri": "example.test/plain:1", "args": ["--by-hand"]},
}
TRAINING = {
    "region": "us-central1",
    "scaleTier": "BASIC",
    "pythonModule": "task",
    "packageUris": ["gs://a/b"],
}


@dataclass
class Listing:
    """The listing of a training API with `name=NAME` as its only filter, or its refusal."""

    jobs: list[ActualJob] = field(default_factory=list)
    error: Exception | None = None

    def whole_jobs(self, wanted: str) -> Sequence[ActualJob]:
        if self.error:
            raise self.error
        return [job for job in self.jobs if wanted in ("", f"name={job.job_name}")]


@dataclass
class Staged:
    """The staging bucket; some objects in it have the bytes of a single archive."""

    same: Sequence[str]

    def holds(self, uri: str, archive: Sdist) -> bool:
        return uri in self.same and archive.file_name == "job_code.tar.gz"


@dataclass
class Place:
    """A repository, and the services that its sessions see.

    Attributes:
        staged: The objects in the staging bucket that have the bytes of each package.
        settings: Further settings of the repository.
    """

    root: Path
    environment: dict[str, Any] = field(default_factory=lambda: GOOGLE)
    outside: Outside = field(default_factory=lambda: Outside("acme-jobs"))
    vertex: Listing = field(default_factory=Listing)
    ml: Listing = field(default_factory=Listing)
    staged: Sequence[str] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def session(self) -> Session:
        document = {"source": "acme-jobs", "environments": {"here": self.environment}, **self.settings}
        config = from_document(self.root, document)
        engines = {AIPLATFORM_V1: self.vertex, ML_V1: self.ml}
        parts = {"engine": engines.__getitem__, "staging": Staged(self.staged)}
        return session_over(self.outside, config, config.environment("here"), **parts)

    def job(self, name: str, **more: Any) -> ActualJob:
        """Add a custom job of another client."""
        body = {"displayName": name, "labels": {}, "jobSpec": {"workerPoolSpecs": [POOL]}, **more}
        job = self.outside.jobs.add(body)
        self.vertex.jobs.append(job)
        return job

    def ml_job(self, name: str, **more: Any) -> ActualJob:
        body = {"jobId": name, "labels": {}, **(more or {"trainingInput": TRAINING})}
        job = self.outside.jobs.add(body, ML_V1, "Job")
        self.ml.jobs.append(job)
        return job

    def manifest(self, name: str, *args: str, path: str = "jobs") -> None:
        text = textwrap.dedent(MANIFEST % (name, "", ", ".join(f'"{arg}"' for arg in args)))
        file = self.root / path / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)

    def found(self, *names: str, wanted: str = "", with_adopted: bool = False, **labels: str) -> list[str]:
        terms = tuple(LabelTerm(key, value) for key, value in labels.items())
        jobs = find_live_jobs(self.session, names, Selection((), terms), wanted, with_adopted=with_adopted)
        return [job.resource for job in jobs.jobs]

    def left_out(self) -> list[str]:
        return find_live_jobs(self.session, (), Selection(()), "", with_adopted=True).left_out


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def local(tmp_path: Path) -> Place:
    return Place(tmp_path, {"engine": "local"})


@pytest.mark.parametrize(
    "name_of", [lambda job: job.job_name, lambda job: job.resource, lambda job: job.resource[-1]]
)
def test_a_job_is_found_by_its_name_its_resource_and_the_end_of_that(
    place: Place, name_of: Callable[[ActualJob], str]
) -> None:
    first, second, _ = place.job("first"), place.job("second"), place.job("third")
    assert place.found(name_of(second)) == [second.resource]
    assert place.found("first", name_of(second)) == [first.resource, second.resource]
    assert place.found("fir") == []
    assert len(place.found()) == 3


def test_labels_choose_among_the_jobs_and_this_tools_own_are_left_out(place: Place) -> None:
    ours = place.job("ours", labels={SOURCE: "another", "team": "red"})
    red, _ = place.job("red", labels={"team": "red"}), place.job("blue", labels={"team": "blue"})
    assert place.found(team="red") == [red.resource]
    assert ours.resource not in place.found()
    assert place.found("ours") == []


def test_the_trials_of_a_tuning_job_are_left_out(place: Place) -> None:
    trial, other = place.job("trial"), place.job("other")
    tuning = place.job("tuning", trials=[{"id": "1"}, {"customJob": trial.resource}])
    assert place.found() == [other.resource, tuning.resource]
    assert place.found("trial") == []


def test_the_job_that_trains_for_a_pipeline_is_left_out(place: Place) -> None:
    training, other = place.job("training"), place.job("other")
    pipeline = place.job("pipeline", trainingTaskMetadata={"backingCustomJob": training.resource})
    assert place.found() == [other.resource, pipeline.resource]


@pytest.mark.parametrize("state", list(ClaimState))
def test_a_job_that_a_claim_names_is_found_only_with_the_adopted(place: Place, state: ClaimState) -> None:
    job, other = place.job("by-hand"), place.job("other")
    place.manifest("census", "--by-hand")
    assert adopt_jobs(place.session, {"census": job.resource})["census"].claim
    ((id, stored),) = place.outside.claims.held.items()
    place.outside.claims.held[id] = replace(stored, claim=replace(stored.claim, state=state))
    is_bound = state is ClaimState.BOUND
    assert place.found() == ([other.resource] if is_bound else [job.resource, other.resource])
    assert place.found(with_adopted=True) == [job.resource, other.resource]


def test_claims_that_cannot_be_read_hide_no_job(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    job = place.job("by-hand")

    def listed() -> Any:
        raise ServiceError("no such bucket")

    monkeypatch.setattr(place.outside.claims, "listed", listed)
    assert place.found() == [job.resource]


def test_a_pipeline_of_another_task_is_left_out_with_its_name_and_refused_only_if_it_is_named(
    place: Place,
) -> None:
    automl = {"trainingTaskDefinition": "gs://x/automl_tabular_1.0.0.yaml", "trainingTaskInputs": {"a": 1}}
    place.job("auto", displayName="auto", **automl)
    job = place.job("by-hand")
    assert place.found() == [job.resource]
    assert place.left_out() == ['"auto" (automl_tabular)']
    with pytest.raises(SourceError, match=r'the training pipeline "auto" \(automl_tabular\) runs no code'):
        place.found("auto")


def test_a_batch_prediction_is_refused_only_if_it_is_named(local: Place) -> None:
    local.ml_job("predicting", predictionInput={})
    job = local.ml_job("training")
    assert local.found() == [job.resource]
    with pytest.raises(SourceError, match="batch prediction"):
        local.found("predicting")


def test_jobs_of_the_older_service_are_found_only_on_the_training_service(
    place: Place, tmp_path: Path
) -> None:
    local = Place(tmp_path, {"engine": "local"})
    for each in (place, local):
        each.job("new")
        each.ml_job("old")
    assert place.found() == [f"{PARENT}/1"]
    assert local.found() == [f"{PARENT}/1", "projects/acme/jobs/old"]


def test_the_services_filter_chooses_among_the_jobs(local: Place) -> None:
    local.job("new")
    old = local.ml_job("old")
    assert local.found(wanted="name=old") == [old.resource]
    assert local.found("new", wanted="name=old") == []


def refusal(status: int, message: str = "unknown field") -> ApiError:
    return ApiError(message, status=status, reason="INVALID_ARGUMENT")


def test_a_service_that_refuses_the_filter_has_no_such_job(local: Place) -> None:
    local.job("new")
    old = local.ml_job("old")
    local.vertex.error = refusal(400)
    assert local.found(wanted="name=old") == [old.resource]
    local.vertex.error, local.ml.error = None, refusal(400)
    assert local.found(wanted="name=new") == [f"{PARENT}/1"]


def test_a_filter_that_each_service_refuses_is_a_mistake(local: Place) -> None:
    local.vertex.error, local.ml.error = refusal(400, "first"), refusal(400, "second")
    with pytest.raises(ApiError, match="first"):
        local.found(wanted="nonsense=")


@pytest.mark.parametrize(("wanted", "status"), [("", 400), ("state=QUEUED", 403), ("state=QUEUED", 503)])
def test_another_error_than_a_refused_filter_is_raised(local: Place, wanted: str, status: int) -> None:
    local.ml_job("old")
    local.vertex.error = refusal(status)
    with pytest.raises(ApiError, match="unknown field"):
        local.found(wanted=wanted)


def test_each_job_is_bound_to_its_manifest(place: Place) -> None:
    first, second = place.job("First job"), place.job("Second job")
    for name in ("census-one", "census-two"):
        place.manifest(name, "--by-hand")
    results = adopt_jobs(place.session, {"census-one": first.resource, "census_two": second.resource})
    assert {name: result.claim and result.claim.resource for name, result in results.items()} == {
        "census-one": first.resource,
        "census_two": second.resource,
    }
    claims = [found.claim for found in place.outside.claims.held.values()]
    assert [(claim.job_name, claim.state) for claim in claims] == [
        ("First job", ClaimState.BOUND),
        ("Second job", ClaimState.BOUND),
    ]
    assert {claim.commit for claim in claims} == {""}
    assert place.outside.jobs.jobs == [first, second]


def test_claims_of_adopted_jobs_are_announced_in_a_single_write(tmp_path: Path) -> None:
    place = Place(tmp_path, outside=Outside("acme-jobs", least_history=0))
    first, second = place.job("First job"), place.job("Second job")
    for name in ("census-one", "census-two"):
        place.manifest(name, "--by-hand")
    adopt_jobs(place.session, {"census-one": first.resource, "census-two": second.resource})
    assert len(place.outside.claims.held) == 2
    assert place.outside.claims.stored[1] == 1


def test_a_job_that_differs_is_not_bound_and_its_fields_are_named(place: Place) -> None:
    job = place.job("by-hand")
    place.manifest("census", "--wanted")
    (result,) = adopt_jobs(place.session, {"census": job.resource}).values()
    assert (result.claim, result.why) == (None, "differs from the manifest's job")
    (changed,) = result.fields
    assert (changed.before, changed.after) == ("--by-hand", "--wanted")
    assert place.outside.claims.held == {}


def test_an_empty_value_of_the_manifest_is_a_difference_too(place: Place) -> None:
    job = place.job("by-hand")
    place.manifest("census", "")
    (result,) = adopt_jobs(place.session, {"census": job.resource}).values()
    assert [(field.before, field.after) for field in result.fields] == [("--by-hand", "")]


def test_a_job_that_cannot_be_adopted_keeps_no_other_from_it(
    place: Place,
) -> None:
    jobs = {name: place.job(name).resource for name in ("outside", "failing", "fine")}
    place.manifest("outside", "--by-hand", path="elsewhere")
    place.manifest("failing", "--by-hand")
    place.manifest("fine", "--by-hand")
    place.outside.claims.faults = ["failed"]
    results = adopt_jobs(place.session, jobs)
    assert {name: result.why for name, result in results.items()} == {
        "outside": "has its manifest outside the folder that apply reads",
        "failing": "was not adopted: the store is away",
        "fine": "",
    }
    assert [name for name, result in results.items() if result.claim] == ["fine"]


def test_the_claims_bucket_is_prepared_only_on_the_training_service(place: Place, tmp_path: Path) -> None:
    local = Place(tmp_path, {"engine": "local"})
    place.manifest("census", "--by-hand")
    for each in (place, local):
        each.outside.claims.genesis = False
    with pytest.raises(ServiceError, match="no genesis"):
        adopt_jobs(place.session, {"census": place.job("by-hand").resource})
    (done,) = adopt_jobs(local.session, {"census": local.job("by-hand").resource}).values()
    assert done.claim


def test_a_job_keeps_the_folder_that_its_manifest_names_where_runs_have_folders_of_their_own(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path, settings={"outputs": "own"})
    folder = {"baseOutputDirectory": {"outputUriPrefix": "gs://acme-models/census"}}
    job = place.job("by-hand", jobSpec={"workerPoolSpecs": [POOL], **folder})
    place.manifest("census", "--by-hand")
    file = place.root / "jobs/census.yaml"
    file.write_text(
        f"{file.read_text()}  baseOutputDirectory: {{outputUriPrefix: gs://acme-models/census}}\n"
    )
    (result,) = adopt_jobs(place.session, {"census": job.resource}).values()
    assert result.claim, result


def test_a_job_whose_code_is_a_pointer_here_is_not_adopted(place: Place) -> None:
    source = place.root / "trainer"
    source.mkdir()
    (source / "task.py").write_text("print()\n")
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 5\n"
    (source / "weights.bin").write_text(pointer)
    place.manifest("census", "--by-hand")
    file = place.root / "jobs/census.yaml"
    file.write_text(file.read_text().replace("spec:", "package: {path: ../trainer, module: task}\nspec:", 1))
    with pytest.raises(InvalidError) as caught:
        adopt_jobs(place.session, {"census": place.job("by-hand").resource})
    assert "weights.bin" in caught.value.problems[0].message
    assert place.outside.claims.held == {}


@pytest.mark.parametrize("is_same", [True, False])
def test_staged_code_must_have_the_bytes_of_the_manifests_package(place: Place, is_same: bool) -> None:
    source = place.root / "trainer"
    source.mkdir()
    (source / "task.py").write_text("print()\n")
    (source / "pyproject.toml").write_text('[project]\nname = "trainer"\nversion = "1"\n')
    place.manifest("census")
    file = place.root / "jobs/census.yaml"
    text = file.read_text()
    text = text[: text.index("spec:")] + textwrap.dedent("""\
        package: {path: ../trainer}
        spec:
          workerPoolSpecs:
            - machineSpec: {machineType: n1-standard-4}
              replicaCount: 1
              pythonPackageSpec: {executorImageUri: "example.test/python:1", pythonModule: task}
    """)
    file.write_text(text)
    package: dict[str, Any] = {"executorImageUri": "example.test/python:1", "pythonModule": "task"}
    package["packageUris"] = ["gs://elsewhere/trainer.tar.gz"]
    pool = {key: value for key, value in POOL.items() if key != "containerSpec"}
    job = place.job("by-hand", jobSpec={"workerPoolSpecs": [{**pool, "pythonPackageSpec": package}]})
    place.staged = package["packageUris"] if is_same else []
    (result,) = adopt_jobs(place.session, {"census": job.resource}).values()
    assert bool(result.claim) is is_same, result
    assert [field.pointer.rpartition("/")[2] for field in result.fields] == ([] if is_same else ["0"])
    if not is_same:
        (changed,) = result.fields
        assert changed.after.startswith("gs://acme-ml/reconciler/packages/")
