"""Environments that share a project and a location, on the training service as a replacement for Google."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import urllib3

from tests.support.github_server import GitHubServer
from tests.support.held_service import HeldService
from tests.support.repository import IMAGE, Repository
from tests.support.tls import behind_tls
from tests.support.token_server import private_key, token_server
from tests.support.waiting import PATIENCE, until

ENVIRONMENT = """
  {name}:
    engine: google
    project: acme-ml
    location: us-central1
    stagingBucket: acme-staging
    claimsBucket: acme-claims
    {more}
    defaults: {{baseOutputDirectory: "gs://acme-models/out"}}
    endpoints: {{aiplatform: "{url}", ml: "{url}", storage: "{url}", logging: "{url}"}}
"""
ML_JOB = """
apiVersion: ml.googleapis.com/v1
kind: Job
metadata: {name: old}
package: {path: ../quiet}
spec:
  trainingInput: {region: us-central1, scaleTier: BASIC, runtimeVersion: "2.11", pythonModule: task}
"""
COMMANDS = (
    ("validate",),
    ("plan",),
    ("apply",),
    ("status",),
    ("logs", "first"),
    ("fetch", "first"),
    ("verify", "first"),
    ("cancel", "first"),
    ("report",),
    ("render", "first"),
    ("resolve", "first", "--give-up"),
    ("init", "--claims"),
)


class Cloud:
    """A repository with environments at Google in its settings.

    Attributes:
        variables: The environment variables with the commands' credentials.
    """

    def __init__(self, repository: Repository, url: str, variables: dict[str, str]) -> None:
        self.repository = repository
        self.variables = variables
        self._url = url
        self._images = (repository.root / "reconciler.yaml").read_text()

    def has(self, **environments: str) -> None:
        """Write the settings of these environments, each with an additional line."""
        written = "".join(
            ENVIRONMENT.format(name=name, more=more, url=self._url) for name, more in environments.items()
        )
        text = f"source: acme-jobs\nenvironments:{written}{self._images}"
        (self.repository.root / "reconciler.yaml").write_text(text)

    def run(self, environment: str, *arguments: str) -> Any:
        return self.repository.run(*arguments, RECONCILER_ENV=environment, **self.variables)

    def prepare(self, *environments: str) -> None:
        for name in environments:
            prepared = self.run(name, "init", "--claims")
            assert prepared.code == 0, prepared.err

    def jobs(self, environment: str) -> list[dict[str, Any]]:
        jobs: list[dict[str, Any]] = self.run(environment, "status", "--format", "json").json["jobs"]
        return jobs

    def ended(self) -> int:
        """Return the number of jobs that have succeeded; faster than `--wait`, as that seldom asks Google."""
        found = self.ask("GET", "/v1/projects/acme-ml/locations/us-central1/customJobs")
        return sum(job["state"] == "JOB_STATE_SUCCEEDED" for job in found.get("customJobs", ()))

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask the service itself, as a person would with curl."""
        address = json.loads((self.repository.home / "service.json").read_text())
        headers = {"Authorization": f"Bearer {address['token']}"}
        answer = urllib3.request(method, address["url"] + path, json=body, headers=headers)
        assert answer.status == 200, answer.data
        return dict(answer.json())

    def change(self, environment: str) -> dict[str, Any]:
        """Return the single change of the environment's plan."""
        (change,) = self.run(environment, "plan", "--format", "json").json["changes"]
        return dict(change)

    def starts(self) -> int:
        """Return how often a trainer was started."""
        starts = self.repository.starts
        return len(starts.read_text().splitlines()) if starts.exists() else 0


@contextmanager
def cloud_of(repository: Repository, url: str, token: str, folder: Path, key: str) -> Iterator[Cloud]:
    """Serve the training service at `url` in place of Google."""
    for bucket in ("acme-claims", "acme-staging", "acme-models"):
        (repository.home / "gcs" / bucket).mkdir(parents=True, exist_ok=True)
    with token_server(lambda: token) as token_uri, behind_tls(url) as secure:
        credentials = {
            "type": "service_account",
            "client_email": "submitter@acme-ml.iam.gserviceaccount.com",
            "private_key": key,
            "private_key_id": "1",
            "project_id": "acme-ml",
            "token_uri": token_uri,
        }
        (folder / "key.json").write_text(json.dumps(credentials))
        variables = {
            "GOOGLE_APPLICATION_CREDENTIALS": str(folder / "key.json"),
            "RECONCILER_TOKEN_HOSTS": urlsplit(secure).netloc,
        }
        yield Cloud(repository, secure, variables)


@pytest.fixture(scope="module")
def key() -> str:
    return private_key()


@pytest.fixture
def cloud(tmp_path: Path, key: str) -> Iterator[Cloud]:
    """Return a cloud that keeps jobs queued until they are cancelled."""
    repository = Repository(tmp_path / "repository")
    with (
        HeldService(repository.home).running() as service,
        cloud_of(repository, service.url, service.token, tmp_path, key) as made,
    ):
        yield made


@pytest.fixture
def training_cloud(repository: Repository, tmp_path: Path, key: str) -> Iterator[Cloud]:
    """Return a cloud that really trains."""
    # The service learns the repository's images from a command of the local environment.
    assert repository.run("init", "--claims").code == 0
    service = repository.service()
    with cloud_of(repository, service["url"], service["token"], tmp_path, key) as made:
        yield made


def test_every_command_refuses_environments_that_share_project_and_location(cloud: Cloud) -> None:
    cloud.has(staging="", production="")
    cloud.repository.job("first")
    for arguments in COMMANDS:
        refused = cloud.run("staging", *arguments)
        assert refused.code == 3, arguments
        assert 'environments "staging" and "production" share' in refused.err, arguments
        assert '"instance: production"' in refused.err, arguments
    assert cloud.starts() == 0


def test_watch_waits_for_settings_whose_environments_share_nothing(cloud: Cloud) -> None:
    cloud.has(staging="", production="")
    cloud.repository.job("first")
    watch = cloud.repository.start("watch", RECONCILER_ENV="staging", **cloud.variables)
    assert watch.stderr is not None
    try:
        assert 'environments "staging" and "production" share' in watch.stderr.readline()
    finally:
        watch.terminate()
        watch.communicate(timeout=PATIENCE)
    assert cloud.starts() == 0


def test_each_instance_trains_its_own_job_with_one_claim_and_its_own_output(training_cloud: Cloud) -> None:
    cloud = training_cloud
    cloud.has(staging="", production="instance: production")
    cloud.repository.job("first")
    cloud.prepare("staging", "production")
    for number, environment in enumerate(("staging", "production"), start=1):
        assert cloud.change(environment)["action"] == "submit"
        assert cloud.run(environment, "apply").code == 0
        until(lambda wanted=number: cloud.ended() == wanted)
    assert cloud.starts() == 2
    for environment in ("staging", "production"):
        assert cloud.change(environment)["action"] == "none"
        assert cloud.run(environment, "apply").code == 0
    assert cloud.starts() == cloud.ended() == 2

    ((staging,), (production,)) = cloud.jobs("staging"), cloud.jobs("production")
    assert staging["resource"] != production["resource"]
    name = staging["jobName"]
    assert production["jobName"] == name
    claims = cloud.repository.home / "gcs" / "acme-claims" / "reconciler" / "claims" / "acme-jobs"
    places = sorted(str(file.relative_to(claims)).rsplit("/", 2)[0] for file in claims.glob("**/1"))
    assert places == ["_instances/production/acme-ml/us-central1", "acme-ml/us-central1"]
    bodies = {
        environment: cloud.run(environment, "render", "first").json
        for environment in ("staging", "production")
    }
    assert {
        environment: body["jobSpec"]["baseOutputDirectory"]["outputUriPrefix"]
        for environment, body in bodies.items()
    } == {
        "staging": f"gs://acme-models/out/{name}",
        "production": f"gs://acme-models/out/production/{name}",
    }
    labels = {environment: body["labels"].get("reconciler-instance") for environment, body in bodies.items()}
    assert labels == {"staging": None, "production": "production"}


def test_statuses_of_a_commit_tell_instances_apart(cloud: Cloud) -> None:
    repository = cloud.repository
    with GitHubServer(tokens={"ghs_a-token": "write"}).running() as github:
        cloud.has(staging="", production="instance: production")
        repository.job("first")
        repository.git("init", "-q", "-b", "main")
        repository.git("add", "-A")
        repository.git("commit", "-q", "-m", "one")
        sha = repository.git("rev-parse", "HEAD")
        github.commits.add(sha)
        cloud.variables |= {
            "GITHUB_ACTIONS": "true",
            "GITHUB_REPOSITORY": github.repository,
            "GITHUB_API_URL": github.url,
            "GITHUB_TOKEN": "ghs_a-token",
        }
        cloud.prepare("staging", "production")
        assert cloud.run("staging", "apply").code == 0
        assert cloud.run("staging", "cancel", "first").code == 0
        assert cloud.run("production", "apply").code == 0
        assert cloud.run("staging", "report").code == 0
        newest: dict[str, str] = {}
        for status in github.statuses[sha]:
            newest.setdefault(status["context"], status["state"])
        assert github.violations == []
    assert {context: state for context, state in newest.items() if not context.endswith("drift")} == {
        "reconciler/staging": "error",
        "reconciler/staging/first": "error",
        "reconciler/production": "pending",
        "reconciler/production/first": "pending",
    }


@pytest.mark.parametrize(
    ("own", "place"), [("project: dev-jobs", "dev-jobs/local"), ("location: us-east1", "local/us-east1")]
)
def test_local_environments_with_places_of_their_own_train_their_own_job(
    repository: Repository, own: str, place: str
) -> None:
    folders = local_environments(repository, own)
    repository.job("first")
    resources = set()
    for number, environment in enumerate(folders, start=1):
        assert repository.run("apply", "--wait", RECONCILER_ENV=environment).code == 0
        assert len(repository.starts.read_text().splitlines()) == number
        (job,) = repository.run("status", "--format", "json", RECONCILER_ENV=environment).json["jobs"]
        assert (job["state"], job["claim"]) == ("SUCCEEDED", "bound")
        resources.add(job["resource"])
        body = repository.run("render", "first", RECONCILER_ENV=environment).json
        assert (
            body["jobSpec"]["baseOutputDirectory"]["outputUriPrefix"]
            == f"{folders[environment]}/{job['jobName']}"
        )
    assert len(resources) == len(folders)
    for environment in folders:
        (change,) = repository.run("plan", "--format", "json", RECONCILER_ENV=environment).json["changes"]
        assert (change["action"], change["reason"]) == ("none", "succeeded")
    claims = repository.home / "gcs" / "reconciler-staging" / "reconciler" / "claims" / "local"
    places = sorted(str(file.relative_to(claims)).rsplit("/", 2)[0] for file in claims.glob("*/*/*/1"))
    assert places == sorted(["local/local", place])


def test_ml_run_of_one_location_is_not_taken_for_the_run_of_another(repository: Repository) -> None:
    settings = repository.root / "reconciler.yaml"
    settings.write_text(settings.read_text().replace(f"{IMAGE}:", '"2.11":'))
    repository.write("quiet/task.py", "print('done')\n")
    repository.write("jobs/old.yaml", ML_JOB)
    assert repository.run("apply", "--wait").code == 0
    local_environments(repository, "location: us-east1")
    applied = repository.run("apply", "--format", "json", RECONCILER_ENV="dev")
    assert applied.code == 1
    (outcome,) = applied.json["outcomes"]
    assert (outcome["action"], outcome["status"]) == ("blocked", "skipped")
    assert 'the environment "local" also uses the project "local"' in outcome["error"]
    assert "give the newer environment a project of its own" in outcome["error"]
    # The run that has a claim stays as it is.
    (change,) = repository.run("plan", "--format", "json").json["changes"]
    assert (change["action"], change["reason"]) == ("none", "succeeded")

    local_environments(repository, "project: dev-jobs")
    assert repository.run("apply", "--wait", RECONCILER_ENV="dev").code == 0
    (job,) = repository.run("status", "--format", "json", RECONCILER_ENV="dev").json["jobs"]
    assert (job["state"], job["claim"]) == ("SUCCEEDED", "bound")


def local_environments(repository: Repository, own: str) -> dict[str, str]:
    """Write a second local environment with the additional setting `own`; return the folders of both."""
    folders = {"local": "gs://models/out", "dev": "gs://models/dev"}
    settings = "".join(
        f"  {name}:\n    engine: local\n    defaults: {{baseOutputDirectory: {folder}}}\n"
        for name, folder in folders.items()
    )
    images = (repository.root / "reconciler.yaml").read_text().partition("images:")[2]
    repository.write("reconciler.yaml", f"environments:\n{settings}    {own}\nimages:{images}")
    return folders


def test_failed_run_of_one_instance_does_not_block_the_other(cloud: Cloud) -> None:
    cloud.has(staging="", production="instance: production")
    cloud.repository.job("first")
    cloud.prepare("staging", "production")
    assert cloud.run("staging", "apply").code == 0
    assert cloud.run("staging", "cancel", "first").code == 0
    assert cloud.change("staging")["action"] == "none"
    assert cloud.change("production")["action"] == "submit"


def test_environment_keeps_its_claims_when_another_one_gets_an_instance(cloud: Cloud) -> None:
    cloud.has(staging="")
    cloud.repository.job("first")
    cloud.prepare("staging")
    assert cloud.run("staging", "apply").code == 0
    cloud.has(staging="", production="instance: production")
    assert cloud.change("staging")["action"] == "none"
    refused = cloud.run("production", "plan")
    assert refused.code == 1
    assert 'the instance "production" of acme-jobs has no claims' in refused.err
    assert "`reconciler init --claims --env production`" in refused.err


@pytest.mark.parametrize(
    ("before", "after"),
    [("", "instance: blue"), ("instance: blue", "instance: green"), ("instance: blue", "")],
)
def test_job_is_blocked_while_its_run_from_before_the_move_is_live(
    cloud: Cloud, before: str, after: str
) -> None:
    cloud.has(production=before)
    cloud.repository.job("first")
    cloud.prepare("production")
    assert cloud.run("production", "apply").code == 0
    (live,) = cloud.jobs("production")

    cloud.has(production=after)
    cloud.prepare("production")
    change = cloud.change("production")
    assert change["action"] == "blocked"
    assert live["resource"] in change["reason"]
    assert "wait until it has ended, or cancel it, and apply again" in change["reason"]
    # Other content is submitted meanwhile; the second apply finds claims of the instance.
    cloud.repository.job("second", args=["--other"])
    for _ in range(2):
        assert cloud.run("production", "apply").code == 1
        assert [job["baseName"] for job in cloud.jobs("production") if job["state"]] == ["second"]

    cloud.has(production=before)
    assert cloud.run("production", "cancel", "first").code == 0
    cloud.has(production=after)
    assert cloud.run("production", "apply").code == 0
    assert {job["baseName"] for job in cloud.jobs("production") if job["state"] == "QUEUED"} == {
        "first",
        "second",
    }


def test_live_job_of_a_neighbour_that_is_younger_than_the_first_own_run_blocks_nothing(cloud: Cloud) -> None:
    cloud.has(staging="", production="instance: production")
    cloud.prepare("staging", "production")
    cloud.repository.job("own")
    assert cloud.run("production", "apply").code == 0
    cloud.repository.job("first")
    assert cloud.run("staging", "apply", "jobs/first.yaml").code == 0
    changes = cloud.run("production", "plan", "--format", "json").json["changes"]
    assert {change["baseName"]: change["action"] for change in changes} == {"first": "submit", "own": "none"}


def test_job_is_blocked_beside_a_run_that_was_made_after_the_claims_were_prepared(cloud: Cloud) -> None:
    """The claims of an instance are prepared before the settings with the instance are merged."""
    cloud.has(production="")
    cloud.repository.job("first")
    cloud.prepare("production")
    cloud.has(production="instance: blue", staging="")
    cloud.prepare("production")

    cloud.has(production="")
    assert cloud.run("production", "apply").code == 0
    (live,) = cloud.jobs("production")

    cloud.has(production="instance: blue", staging="")
    change = cloud.change("production")
    assert change["action"] == "blocked"
    assert live["resource"] in change["reason"]
    assert cloud.run("production", "apply").code == 1
    assert [job["resource"] for job in cloud.jobs("staging")] == [live["resource"]]
    assert not any(job["state"] for job in cloud.jobs("production"))


def test_resolve_sends_nothing_beside_a_live_run_from_before_the_instance_changed(cloud: Cloud) -> None:
    cloud.has(production="")
    cloud.prepare("production")
    cloud.repository.job("first")
    # Another job with the labels of this one makes its claim HELD.
    other = cloud.run("production", "render", "first").json
    other["jobSpec"]["workerPoolSpecs"][0]["pythonPackageSpec"]["args"] = ["--other"]
    stranger = cloud.ask("POST", "/v1/projects/acme-ml/locations/us-central1/customJobs", other)
    assert cloud.run("production", "apply").code != 0
    cloud.ask("POST", f"/v1/{stranger['name']}:cancel", {})
    cloud.has(production="instance: p")
    cloud.prepare("production")
    assert cloud.run("production", "apply").code == 0
    (own,) = (job for job in cloud.jobs("production") if job["state"])
    cloud.has(production="")
    resolved = cloud.run("production", "resolve", "first", "--resubmit")
    assert resolved.code != 0
    assert own["resource"] in resolved.err
    assert "may have been submitted for this environment" in resolved.err
