"""Failures in Google Cloud: the training service plays its part, behind a proxy that refuses requests."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reconciler.training_service.state.records import JobState
from tests.failures.stories import Place, Story, follow, play
from tests.support.fault_proxy import Fault, FaultProxy, Request, Rule
from tests.support.google_place import HURRIED, google_place
from tests.support.held_service import HeldService
from tests.support.repository import Repository, Result
from tests.support.waiting import PATIENCE

SOON = """
from datetime import timedelta
from reconciler.submission import quota
quota._FIRST = timedelta(seconds=0.5)
"""


class Cloud(Place):
    """Place whose jobs end in the cloud as the test determines.

    Attributes:
        ends: State, code and message of the end of the next run, by the job's base name.
    """

    def __init__(self, repository: Repository, service: HeldService, proxy: FaultProxy) -> None:
        super().__init__(repository)
        self.service = service
        self.proxy = proxy
        self.ends: dict[str, tuple[JobState, int, str]] = {}
        self._ending = threading.Lock()
        proxy.watch(self._end)

    def _end(self, request: Request, answered: bool) -> None:
        """End all jobs when the tool reads them: no trainer runs."""
        if answered or request.method != "GET" or "/customJobs" not in request.target:
            return
        # Two concurrent requests would both end a job, and only one of them would take its end from `ends`.
        with self._ending:
            self._end_all()

    def _end_all(self) -> None:
        store = self.service.store
        for job in store.unfinished():
            store.move(job.id, JobState.RUNNING, only_from={JobState.QUEUED}, at=store.now())
            name = job.name.rpartition("_")[0].replace("_", "-")
            state, code, message = self.ends.pop(name, (JobState.SUCCEEDED, 0, ""))
            store.move(
                job.id,
                state,
                only_from={JobState.RUNNING},
                at=store.now(),
                error_code=code,
                error_message=message,
            )


@pytest.fixture
def cloud(repository: Repository, tmp_path: Path) -> Iterator[Cloud]:
    program = tmp_path / "hurried.py"
    program.write_text(HURRIED.replace("session.GOOGLE_BOUNDS =", f"{SOON}\nsession.GOOGLE_BOUNDS =", 1))
    with (
        HeldService(tmp_path / "cloud").running() as service,
        FaultProxy(service.url).running() as proxy,
        google_place(repository, service, proxy.url, tmp_path, submitter=True) as environ,
    ):
        place = Cloud(repository, service, proxy)
        place.environ = {**environ, "program": str(program)}
        assert place.run("init", "--claims", "--env", "prod").code == 0
        yield place


def ends(code: int, message: str) -> Callable[[Place, str], None]:
    """Prepare a job whose first run ends with Google's message."""

    def breaks(place: Place, job: str) -> None:
        assert isinstance(place, Cloud)
        place.job(job)
        place.ends[job] = (JobState.CANCELLED if code == 1 else JobState.FAILED, code, message)

    return breaks


def _ended(name: str, code: int, message: str, cause: str, remedy: str, remedied: str) -> Story:
    story = Story(name, ends(code, message), "", remedied, cause=cause)
    said = f"{cause}: {message.removesuffix('.')}"
    story.printed = f"JOB failed, {said}; {remedy.format(story.job)}"
    return story


AGAIN = "run it again with `reconciler rerun {}`"
ENDS = [
    _ended(
        "stock-out in a region",
        8,
        "Resources are insufficient in region: us-central1. Please try a different region.",
        "resources",
        f"choose another machine or location, or {AGAIN}",
        "ran the command",
    ),
    _ended(
        "quota of CPUs used up",
        8,
        "The following quota metrics exceed quota limits: custom_model_training_cpus",
        "resources",
        f"request more quota, then {AGAIN}",
        "got more quota, ran the command",
    ),
    _ended(
        "image not found in the cloud",
        5,
        "Failed to pull image us-docker.pkg.dev/acme/train:1",
        "set-up",
        f"correct the image, then {AGAIN}",
        "pushed the image, ran the command",
    ),
    _ended(
        "data not readable in the cloud",
        7,
        "The service account doesn't have permission to read gs://acme-data",
        "set-up",
        "gcloud storage buckets add-iam-policy-binding gs://acme-data --member=serviceAccount:ACCOUNT "
        '--role=roles/storage.objectViewer (the "serviceAccount" of the job), or name another serviceAccount '
        f"under spec; then {AGAIN}",
        "granted it, ran the command",
    ),
    _ended(
        "error of Vertex AI",
        13,
        "Internal error occurred for the current attempt.",
        "service",
        AGAIN,
        "ran the command",
    ),
    Story(
        "memory in the cloud",
        ends(8, "Replicas low on memory: workerpool0."),
        "JOB failed, resources: Replicas low on memory: workerpool0; "
        'give it a larger "machineType" in spec.workerPoolSpecs',
        "wrote a larger machineType in the manifest",
        lambda place, job: place.edit(job, "n1-standard-1", "n1-standard-4"),
        "resources",
    ),
    Story(
        "crash in the cloud",
        ends(
            3, "The replica workerpool0-0 exited with a non-zero status of 1. To find out more, see the logs."
        ),
        "JOB failed, user code: exit code 1; see `reconciler logs crash-in-the-cloud` and correct the code",
        "corrected task.py",
        lambda place, job: place.code(job, "print('corrected')\n"),
        "user-code",
    ),
    Story(
        "cancelled in the console",
        ends(1, "CANCELED"),
        'JOB was cancelled outside the reconciler; set "suspend: true" to leave it stopped, '
        "or run it again with `reconciler rerun cancelled-in-the-console`",
        "ran the command",
        cause="cancelled",
    ),
]


def test_ends_in_the_cloud_are_remedied_by_what_is_printed(cloud: Cloud) -> None:
    play(cloud, *ENDS)


def refused(fault: Fault, path: str) -> Callable[[Place, str], None]:
    """Prepare a job whose matching requests are answered with a fault."""

    def breaks(place: Place, job: str) -> None:
        assert isinstance(place, Cloud)
        place.job(job)
        place.proxy.rules = (Rule("POST" if path else "", path, {fault: 1.0}),)

    return breaks


def calm(place: Place, _job: str) -> None:
    assert isinstance(place, Cloud)
    place.proxy.calm()


def named(key: str, bucket: str) -> Callable[[Place, str], None]:
    """Set this bucket in reconciler.yaml."""

    def breaks(place: Place, job: str) -> None:
        place.job(job)
        settings = place.root / "reconciler.yaml"
        settings.write_text(re.sub(rf"{key}: \S+", f"{key}: {bucket}", settings.read_text()))

    return breaks


ROLE = (
    "the identity lacks a permission, such as those of roles/aiplatform.user, or the API is not enabled in "
    "this project; `reconciler init --claims` prints who needs which role"
)


@pytest.mark.parametrize(
    "story",
    [
        Story(
            "create not allowed",
            refused(Fault.DENIED, r"/customJobs(\?|$)"),
            f"failed   submit  JOB: The permission is denied ({ROLE})",
            "ran the command, granted the role",
            calm,
        ),
        Story(
            "staging bucket not writable",
            refused(Fault.DENIED, "/acme-staging/"),
            "failed   submit  JOB: can't write to gs://acme-staging: The permission is denied "
            "(the account that runs this needs the role roles/storage.objectUser on the staging bucket)",
            "granted the role",
            calm,
        ),
        Story(
            "claims not writable",
            refused(Fault.DENIED, "/acme-claims/"),
            "failed   submit  JOB: the claims in gs://acme-claims can't be used: The permission is denied "
            "(the account that runs this needs the role roles/storage.objectUser on the bucket: "
            "`reconciler init --claims --env prod` prints the commands that give it)",
            "ran the command, granted the role",
            calm,
        ),
        Story(
            "staging bucket missing",
            named("stagingBucket", "acme-stagin"),
            "failed   submit  JOB: there is no bucket acme-stagin: The specified bucket does not exist "
            '(create it, or name another under "stagingBucket" in reconciler.yaml)',
            "corrected stagingBucket",
            named("stagingBucket", "acme-staging"),
        ),
        Story(
            "claims bucket missing",
            named("claimsBucket", "acme-claim"),
            "there is no claims bucket acme-claim: The specified bucket does not exist.\n"
            '    correct "claimsBucket" and "project" in reconciler.yaml; if it was deleted, restore it '
            "while Cloud Storage's soft delete keeps it: `gcloud storage buckets list --soft-deleted`, "
            "`gcloud storage restore gs://acme-claim#GENERATION`, and then its objects, "
            "`gcloud storage restore 'gs://acme-claim/**'`; only for a new one run `reconciler init --claims "
            "--env prod`",
            "corrected claimsBucket",
            named("claimsBucket", "acme-claims"),
        ),
        Story(
            "claims bucket not prepared",
            lambda place, job: (
                place.job(job),
                shutil.rmtree(place.service.home / "gcs" / "acme-claims" / "reconciler"),
            ),
            "the bucket acme-claims isn't prepared for the claims of acme-jobs, or was emptied\n"
            '    if "claimsBucket" is right, run `reconciler init --claims --env prod`',
            "ran the command",
        ),
        Story(
            "no network to the cloud",
            refused(Fault.DROPPED, ""),
            "no complete answer from https://localhost:…: the connection ended\n"
            '    check the network, and "endpoints" in reconciler.yaml',
            "waited for the network",
            calm,
        ),
    ],
    ids=lambda story: story.name,
)
def test_a_refusal_of_the_cloud_is_remedied_by_what_is_printed(cloud: Cloud, story: Story) -> None:
    play(cloud, story)


def test_a_used_up_quota_of_requests_is_waited_for(cloud: Cloud) -> None:
    story = Story(
        "quota of requests used up",
        refused(Fault.QUOTA, r"/customJobs(\?|$)"),
        "the service accepts no more submissions now (try again); trying again in … s",
        "waited: apply tries again by itself",
    )
    story.breaks(cloud, story.job)
    process = cloud.repository.start("apply", "--wait", **cloud.environ)
    assert process.stderr is not None
    told = process.stderr.readline()
    cloud.proxy.calm()
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, out + err
    follow(cloud, Result(0, out, told + err), story)
