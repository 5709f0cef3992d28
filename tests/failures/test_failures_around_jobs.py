"""Failures around a job: its machine, its index, its containers, people, and the service's data."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from threading import Thread

import pytest
import urllib3

from reconciler.training_service.runner.containers import find_engine
from reconciler.training_service.state.run_folder import RunError
from tests.failures.stories import GOOD, PYTHON, Place, Story, follow, play
from tests.support import container_image
from tests.support.repository import Repository, Result
from tests.support.waiting import PATIENCE, until

HELD = """
import os, threading
open({started!r}, "w").close()
while os.path.exists({hold!r}):
    threading.Event().wait(0.02)
"""


@pytest.fixture
def place(repository: Repository) -> Place:
    return Place(repository)


def hold(place: Place, name: str, machine: str = "n1-standard-1") -> None:
    """Submit a job that runs until the hold is released."""
    started = place.root.parent / "started"
    place.repository.hold.touch()
    place.job(name, HELD.format(started=str(started), hold=str(place.repository.hold)))
    place.edit(name, "n1-standard-1", machine)
    assert place.run("apply").code == 0
    until(started.exists)


def let_go(place: Place, _job: str) -> None:
    place.repository.hold.unlink(missing_ok=True)


def corrected(place: Place, job: str) -> None:
    place.code(job, GOOD)


def trained_before(place: Place, job: str) -> None:
    """Train a job, then change its code."""
    place.job(job)
    assert place.run("apply", "--wait").code == 0
    place.code(job, "print('other code')\n")


def call(place: Place, method: str, path: str, **body: object) -> None:
    """Call the API as another person would."""
    service = place.repository.service()
    headers = {"Authorization": f"Bearer {service['token']}", "Content-Type": "application/json"}
    url = f"{service['url']}/v1/{path}"
    answer = urllib3.request(method, url, headers=headers, body=json.dumps(body) if body else None)
    assert answer.status == 200, answer.data


def the_job(place: Place) -> str:
    (job,) = place.run("status", "--format", "json").json["jobs"]
    return str(job["resource"])


def states(place: Place) -> set[str | None]:
    return set(place.repository.states().values())


def cancel(place: Place, job: str) -> None:
    hold(place, job)
    assert place.run("cancel", job).code == 0


def cancel_outside(place: Place, job: str) -> None:
    hold(place, job)
    call(place, "POST", f"{the_job(place)}:cancel")
    until(lambda: states(place) == {"CANCELLED"})


def delete_outside(place: Place, job: str) -> None:
    place.job(job, "raise SystemExit(3)")
    assert place.run("apply").code == 0
    name = the_job(place)
    until(lambda: states(place) == {"FAILED"})
    call(place, "DELETE", name)


def empty_bucket(place: Place, job: str) -> None:
    trained_before(place, job)
    shutil.rmtree(place.repository.home / "gcs")


def forge(place: Place, job: str) -> None:
    """Make another job with this job's labels, as if an earlier request had made it."""
    place.repository.hold.touch()
    place.job("other")
    assert place.run("apply", "--wait").code == 0
    place.job(job)
    body = place.run("render", job).json
    body["jobSpec"]["workerPoolSpecs"][0]["pythonPackageSpec"]["args"] = ["--other"]
    call(place, "POST", "projects/local/locations/local/customJobs", **body)


def adopt(place: Place, job: str) -> str:
    """Make a job by other means, from previously staged code, and adopt it; return its resource name."""
    hold(place, job)
    assert place.run("cancel", job).code == 0
    place.edit(job, "args: []", "args: [--again]")
    body = place.run("render", job).json
    call(
        place,
        "POST",
        "projects/local/locations/local/customJobs",
        **{**body, "displayName": job, "labels": {}},
    )
    adopted = place.run("import", "--live", "--adopt", job)
    assert adopted.code == 0, adopted.out + adopted.err
    return the_job(place)


def cancel_adopted(place: Place, job: str) -> None:
    call(place, "POST", f"{adopt(place, job)}:cancel")
    until(lambda: states(place) == {"CANCELLED"})


STORIES = [
    Story(
        "adopted job cancelled",
        cancel_adopted,
        'adopted-job-cancelled was cancelled outside the reconciler; set "suspend: true" to leave it '
        "stopped, or run it again with `reconciler rerun adopted-job-cancelled`",
        "ran the command",
        let_go,
    ),
    Story(
        "cancelled by hand",
        cancel,
        'JOB was cancelled by `reconciler cancel`; set "suspend: true" to leave it '
        "stopped, or run it again with `reconciler rerun cancelled-by-hand`",
        "ran the command",
        let_go,
        "cancelled",
    ),
    Story(
        "cancelled by another person",
        cancel_outside,
        'JOB was cancelled outside the reconciler; set "suspend: true" to leave it '
        "stopped, or run it again with `reconciler rerun cancelled-by-another-person`",
        "ran the command",
        let_go,
        "cancelled",
    ),
    Story(
        "deleted outside",
        delete_outside,
        "JOB: deleted outside; run it again with `reconciler rerun deleted-outside`",
        "corrected task.py, ran the command",
        corrected,
    ),
    Story(
        "claims emptied",
        empty_bucket,
        "the bucket reconciler-staging holds no claims of local: it is the wrong bucket, or it was "
        "emptied; the service has 1 run of this repository\n"
        '    if "claimsBucket" is right, run `reconciler init --claims --env local`: '
        "apply then adopts the existing runs, after comparing them",
        "ran the command",
    ),
    Story(
        "submission held",
        forge,
        "failed   submit  JOB: … has its name or labels, and it is another job: it differs at "
        "/jobSpec/workerPoolSpecs/0/pythonPackageSpec/args/0; run `reconciler resolve JOB --resubmit` "
        "or `--give-up`",
        "ran the command with --resubmit",
    ),
]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_what_people_do_is_remedied_by_what_is_printed(place: Place, story: Story) -> None:
    play(place, story)


@pytest.mark.parametrize(
    "story",
    [
        Story(
            "wrong module",
            lambda place, job: (place.job(job), place.edit(job, "pythonModule: task", "pythonModule: tsk")),
            'jobs/wrong-module.yaml:11:23: the package "../trainers/wrong-module" has no module "tsk" '
            '(/spec/workerPoolSpecs/0/pythonPackageSpec/pythonModule)\n    did you mean "task"?',
            "corrected the module in the manifest",
            lambda place, job: place.edit(job, "pythonModule: tsk", "pythonModule: task"),
        ),
        Story(
            "mistake in a requirement",
            lambda place, job: (
                place.job(job, image="a:1"),
                place.image("a:1", "cloudml-hypertune=0.1.0.dev6"),
            ),
            'reconciler.yaml:3:…: "cloudml-hypertune=0.1.0.dev6" is not a requirement '
            "(/images/a:1/requirements/0)\n"
            '    write "cloudml-hypertune==0.1.0.dev6"',
            "wrote so in reconciler.yaml",
            lambda place, job: place.image("a:1", "cloudml-hypertune==0.1.0.dev6"),
        ),
        Story(
            "mistake in a version",
            lambda place, job: (place.job(job, image="a:1"), place.image("a:1", python="three")),
            'reconciler.yaml:3:…: "three" is not a version of Python 3 (/images/a:1/python)\n'
            '    write for example "3.11", or ">=3.11"',
            "wrote the version in reconciler.yaml",
            lambda place, job: place.image("a:1", python=PYTHON),
        ),
    ],
    ids=lambda story: story.name,
)
def test_a_mistake_before_anything_is_sent_is_remedied_by_what_is_printed(place: Place, story: Story) -> None:
    play(place, story, code=3)


def test_a_larger_machine_has_the_memory_that_a_job_lacks(place: Place) -> None:
    def breaks(place: Place, job: str) -> None:
        # On the small machine it keeps its memory until it is ended, however late the service checks.
        place.job(
            job,
            "import os, signal\n"
            "data = [bytearray(b'1' * 2**24) for _ in range(140)]\n"
            "if 'e2-small' in os.environ['CLUSTER_SPEC']:\n    signal.pause()\n",
        )
        place.edit(job, "n1-standard-1", "e2-small")

    story = Story(
        "memory",
        breaks,
        "JOB failed, resources: The job was ended: the replica workerpool0-0 took … MiB of memory, "
        "and its machine has 2048 MiB here; "
        'give it a larger "machineType" in spec.workerPoolSpecs',
        "wrote a larger machineType in the manifest",
        lambda place, job: place.edit(job, "e2-small", "n1-standard-1"),
        "resources",
    )
    play(place, story)


def test_a_service_that_was_killed_goes_on_with_the_next_command(place: Place) -> None:
    story = Story(
        "service killed",
        hold,
        "Nothing to do: 1 job is up to date.",
        "nothing: apply starts it again",
        let_go,
    )
    hold(place, story.job)
    os.kill(place.repository.service()["pid"], signal.SIGKILL)
    let_go(place, story.job)
    follow(place, place.run("apply", "--wait"), story)


def test_code_that_left_the_bucket_is_staged_again(place: Place) -> None:
    story = Story(
        "staged code missing",
        lambda place, job: place.job(job),
        "JOB failed, set-up: The package … doesn't exist; run `reconciler apply`, which uploads a folder's "
        "code again; upload any other package, or correct packageUris",
        "ran the command",
        cause="set-up",
    )
    hold(place, "first", machine="n1-standard-96")  # all of this computer: the next job waits
    story.breaks(place, story.job)
    process = place.repository.start("apply", "--wait")
    assert process.stderr is not None
    told = process.stderr.readline()
    for archive in (place.repository.home / "gcs/reconciler-staging/reconciler/packages").rglob("*.tar.gz"):
        archive.unlink()
    let_go(place, story.job)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, out + err
    follow(place, Result(1, out, told + err), story)


@contextmanager
def index(wheelhouse: Path) -> Iterator[tuple[str, HTTPServer]]:
    """Return the address of a package index and its server, which doesn't answer yet."""

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.strip("/").rpartition("/")[2]
            wheels = wheelhouse.glob(f"{name.replace('-', '_')}-*.whl")
            if self.path.endswith(".whl"):
                content = (wheelhouse / name).read_bytes()
            else:
                content = "".join(f'<a href="/{wheel.name}">{wheel.name}</a>' for wheel in wheels).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_HEAD(self) -> None:
            self.send_error(405)

        def log_message(self, *_: object) -> None:
            """Print nothing on stderr."""

    server = HTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
    server.server_bind()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple", server
    finally:
        server.shutdown()
        server.server_close()


def test_an_index_that_is_reachable_again_lets_the_job_train(place: Place, wheelhouse: Path) -> None:
    with index(wheelhouse) as (address, server):

        def breaks(place: Place, job: str) -> None:
            place.image("a:1", "cloudpickle")
            place.job(job, "import cloudpickle", image="a:1")
            place.environ = {"PIP_NO_INDEX": "", "PIP_FIND_LINKS": "", "PIP_INDEX_URL": address}

        def mends(place: Place, job: str) -> None:
            server.server_activate()
            Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

        story = Story(
            "no network",
            breaks,
            "JOB failed, set-up: cloudpickle could not be installed: cannot reach the package index at "
            "http://127.0.0.1:…/simple: Connection refused (os error …); make it reachable, or correct its "
            "address (after changing an environment variable, run `reconciler serve --stop`), "
            "then run `reconciler apply`",
            "made it reachable",
            mends,
            "set-up",
        )
        play(place, story)


def test_a_full_disk_is_named_and_the_job_trains_once_it_has_room(place: Place) -> None:
    """The disk that holds all of the service's data."""
    home = place.repository.home
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "small", str(home)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a small disk")
    ballast = home / "ballast"

    def fill(place: Place, job: str) -> None:
        trained_before(place, job)
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    story = Story(
        "disk of the service full",
        fill,
        "the claims in gs://reconciler-staging can't be used: The service can't read or write its files: "
        "No space left on device\n    nothing is submitted without its claim: correct this, or wait until "
        "Cloud Storage answers, then run `reconciler apply`",
        "freed disk space",
        lambda place, job: ballast.unlink(),
    )
    try:
        play(place, story)
        assert place.run("serve", "--stop").code == 0
    finally:
        subprocess.run(["umount", "--lazy", str(home)], check=True)


def without_engines(folder: Path) -> Path:
    """Return a folder with this machine's programs except Docker and Podman."""
    folder.mkdir()
    for path in reversed(os.environ["PATH"].split(os.pathsep)):
        for program in Path(path).iterdir() if Path(path).is_dir() else ():
            if program.name not in ("docker", "podman"):
                (folder / program.name).unlink(missing_ok=True)
                (folder / program.name).symlink_to(program)
    return folder


CONTAINER = """\
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: {name}}}
spec:
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-1}}
      replicaCount: 1
      containerSpec: {{imageUri: {image}, command: [/bin/echo]}}
"""


def container(place: Place, job: str) -> None:
    place.repository.write(f"jobs/{job}.yaml", CONTAINER.format(name=job, image=container_image.IMAGE))


def test_containers_run_once_engine_image_and_command_are_there(place: Place, tmp_path: Path) -> None:
    try:
        engine = find_engine(os.environ)
        container_image.build(engine, tmp_path)
    except (RunError, FileNotFoundError) as error:
        pytest.skip(str(error))
    programs = without_engines(tmp_path / "programs")
    place.environ = {"PATH": str(programs)}

    def remove_image(place: Place, job: str) -> None:
        container_image.remove(engine, container_image.IMAGE)
        container(place, job)

    def misspell(place: Place, job: str) -> None:
        container(place, job)
        place.edit(job, "/bin/echo", "/bin/eco")

    try:
        for story in (
            Story(
                "no container engine",
                container,
                "JOB failed, set-up: The job runs in a container, but no container engine works on this "
                "machine; install or start Docker or Podman, then run `reconciler apply`",
                "installed it",
                lambda place, job: (programs / engine.name).symlink_to(engine.client.program),
                "set-up",
            ),
            Story(
                "no container image",
                remove_image,
                f"JOB failed, set-up: The image {container_image.IMAGE} isn't here: build it first; "
                "check its name and your login, or build it, then run `reconciler apply`",
                "built it",
                lambda place, job: container_image.build(engine, tmp_path),
                "set-up",
            ),
            Story(
                "no such command",
                misspell,
                "JOB failed, user code: The replica workerpool0-0 couldn't be started: "
                "the command /bin/eco: No such file or directory; "
                'correct "imageUri" or "command" in spec.workerPoolSpecs',
                "corrected the command in the manifest",
                lambda place, job: place.edit(job, "/bin/eco", "/bin/echo"),
                "user-code",
            ),
        ):
            play(place, story)
    finally:
        container_image.remove(engine, container_image.IMAGE)
