"""Code without an image: in a container, or in an environment if no engine has the image."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reconciler.training_service.jobs.python_containers import in_environment, python_of_image
from reconciler.training_service.runner.containers import ContainerEngine, end_containers
from reconciler.training_service.state.records import JobRecord, JobState
from reconciler.training_service.state.run_folder import PREPARING
from reconciler.training_service.state.run_spec import ContainerTask, PythonTask
from tests.support import container_image
from tests.support.container_image import containers_of
from tests.support.training_service import bodies, runs, trainers
from tests.support.training_service.runs import UNABLE, Run, nothing_is_left_of
from tests.support.training_service.served import Answer, Service
from tests.support.training_service.staged_code import BUCKET, PYTHON, a_job, command, contained, stage
from tests.support.training_service.supervised import Bench, supervised

TASK = """
    import os, sys
    from helper import VALUE
    with open(os.environ["RECONCILER_GCS_DIR"] + "/models/model.txt", "w") as model:
        model.write(VALUE + " ".join(sys.argv[1:]))
    print("trained with", *sys.argv[1:], os.path.exists("/gcs/models"), flush=True)
    """
FILES = {"task.py": TASK, "helper.py": "VALUE = 'a model of '"}


Starts = Callable[..., Run]


@pytest.fixture
def engineless(tmp_path: Path) -> str:
    """Return a PATH without any container engine."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "docker").write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon.' >&2; exit 1\n")
    (programs / "docker").chmod(0o755)
    return str(programs)


@pytest.fixture
def staged(trainer: runs.Starter, tmp_path: Path) -> Iterator[Starts]:
    """Yield a function that makes the run of a job from its command; check that no run leaves a trace."""
    made: list[Run] = []

    def make(job: Callable[[Path], JobRecord], spec: Mapping[str, Any] | None = None, **environ: str) -> Run:
        buckets = tmp_path / "home" / "gcs"
        (buckets / "models").mkdir(parents=True, exist_ok=True)
        run = trainer("", job=job(buckets), **(spec or {}))
        run.environ = environ
        made.append(run)
        return run

    yield make
    for run in made:
        end_containers(run.folder)
        assert nothing_is_left_of(run)


def model(run: Run) -> str:
    return (run.folder.service_home / "gcs/models/model.txt").read_text()


def of(image: str, *args: str, requirements: str = "", files: Any = FILES, **env: str) -> Any:
    """Return a function that makes a job of these files, staged in its buckets."""
    return lambda buckets: a_job(
        image, command(*stage(buckets, files), requirements=requirements), *args, **env
    )


def test_staged_code_runs_in_an_environment_where_no_engine_works(staged: Starts, engineless: str) -> None:
    run = staged(of(PYTHON, "--epochs=3"), PATH=engineless).start()
    assert run.end() == ("SUCCEEDED", 0, ""), run.log()
    assert model(run) == "a model of --epochs=3"
    assert ("INFO", "trained with --epochs=3 True") in run.log()
    assert run.log()[0] == (
        "INFO",
        f"The job runs in a container, but no container engine works on this machine: {engineless}/docker is"
        " installed, but reports: Cannot connect to the Docker daemon. Its command runs in an environment of"
        " this machine instead.",
    )


def test_an_environment_of_a_python_image_needs_no_index(staged: Starts, engineless: str) -> None:
    run = staged(of(PYTHON), PATH=engineless, PIP_FIND_LINKS="/nowhere", XDG_CACHE_HOME=engineless).start()
    assert run.end() == ("SUCCEEDED", 0, ""), run.log()


def test_staged_code_runs_in_an_engine_that_has_the_image(
    staged: Starts, engine: ContainerEngine, python_image: str
) -> None:
    run = staged(of(python_image, "--epochs=3")).start()
    assert run.end() == ("SUCCEEDED", 0, ""), run.log()
    assert model(run) == "a model of --epochs=3"
    assert ("INFO", "trained with --epochs=3 True") in run.log()
    assert containers_of(engine, run.folder.run_id) == []


def test_an_ordinary_user_of_the_image_reads_the_staged_code(staged: Starts, python_image: str) -> None:
    files = {"task.py": "import os; print('user', os.getuid())"}
    run = staged(of(container_image.WITHOUT_PIP, files=files)).start()
    assert run.end() == ("SUCCEEDED", 0, ""), run.log()
    assert ("INFO", f"user {container_image.USER}") in run.log()


def test_an_environment_is_taken_where_the_image_is_not_pulled(
    staged: Starts, engine: ContainerEngine
) -> None:
    image = PYTHON.replace("-slim", "-slim-never-pulled")
    run = staged(of(image)).start()
    assert run.end() == ("SUCCEEDED", 0, ""), run.log()
    begins = f"{engine.name} doesn't have the image {image}, and no image is to be pulled. "
    assert [text for _, text in run.log() if text.startswith(begins)]


def test_an_environment_is_taken_where_the_image_cannot_be_pulled(
    staged: Starts, engine: ContainerEngine
) -> None:
    image = "127.0.0.1:1/team/base:1"
    images = {image: {"python": trainers.OWN_PYTHON, "requirements": []}}
    job = of(image)
    run = staged(lambda buckets: replace(job(buckets), images=images), RECONCILER_PULL_IMAGES="1").start()
    assert run.end() == ("SUCCEEDED", 0, ""), run.log()
    begins = f"The image {image} can't be pulled by {engine.name}: "
    assert [text for _, text in run.log() if text.startswith(begins)]


def test_without_mounts_an_environment_reads_the_code_beside_the_claims(
    staged: Starts, engineless: str
) -> None:
    place, claims = "reconciler/packages/x.tar.gz", f"{BUCKET}/reconciler/claims/"

    def job(buckets: Path) -> JobRecord:
        (buckets / BUCKET / "reconciler/packages").mkdir(parents=True)
        (buckets / claims).mkdir()
        source = f"import os; print(os.listdir(os.environ['RECONCILER_GCS_DIR'] + '/{BUCKET}/reconciler'))"
        return a_job(PYTHON, command(*stage(buckets, {"task.py": source}, place)))

    run = staged(job, {"buckets": ("models", BUCKET, claims)}, PATH=engineless)
    run.through = (sys.executable, "-c", UNABLE)
    assert run.start().end() == ("SUCCEEDED", 0, ""), run.log()
    assert ("INFO", "['packages']") in run.log()


def test_the_entry_under_images_names_the_environment_of_other_images(
    staged: Starts, engineless: str
) -> None:
    job = of("europe-docker.pkg.dev/team/trainers/base:1")
    entry = {"python": trainers.OWN_PYTHON, "requirements": []}
    images = {"europe-docker.pkg.dev/team/trainers/base": entry}
    run = staged(lambda buckets: replace(job(buckets), images=images), PATH=engineless).start()
    assert run.end() == ("SUCCEEDED", 0, ""), run.log()
    assert model(run) == "a model of "


def test_a_command_other_than_python_needs_its_container(staged: Starts, engineless: str) -> None:
    run = staged(lambda _: a_job(PYTHON, ["/bin/train"]), PATH=engineless).start()
    assert run.end()[0] == "FAILED"
    assert cause(run) == {"reason": "ENGINE_MISSING", "class": "set-up"}


def test_memory_is_limited_in_an_environment_too(staged: Starts, engineless: str) -> None:
    files = {"task.py": "import time; held = bytearray(200 << 20); time.sleep(100)"}
    run = staged(of(PYTHON, files=files), PATH=engineless)
    spec = run.folder.spec.read_text()
    memory = 4 * 1024**3
    assert str(memory) in spec
    run.folder.spec.write_text(spec.replace(str(memory), str(100 << 20)))
    assert run.start().end()[0] == "FAILED"
    assert cause(run)["reason"] == "OUT_OF_MEMORY"


def test_a_python_that_this_machine_lacks_is_named(staged: Starts, engineless: str) -> None:
    run = staged(of("python:3.99-slim"), PATH=engineless).start()
    state, _, message = run.end()
    assert state == "FAILED"
    assert message.startswith("python:3.99-slim is to run on Python 3.99; this machine has Python ")
    assert cause(run) == {"reason": "PYTHON_MISSING", "class": "set-up", "image": "python:3.99-slim"}


def cause(run: Run) -> dict[str, str]:
    ending = run.folder.ending()
    assert ending is not None
    return dict(ending.details)


CHANGED = (
    f"gs://{BUCKET}/staged.tar.gz has changed since the job was submitted; remove that object, and submit the"
    " job again"
)
CODE = {"reason": "CODE_NOT_STARTED", "class": "set-up"}
IN_BOTH = pytest.mark.parametrize("place", ["container", "environment"])


@pytest.fixture
def place_of(request: pytest.FixtureRequest, engineless: str) -> Callable[..., tuple[str, dict[str, str]]]:
    """Return the image and the variables for a run in a container, or in an environment."""

    def find(place: str, *, pip: bool = True) -> tuple[str, dict[str, str]]:
        if place == "environment":
            return PYTHON, {"PATH": engineless}
        image = request.getfixturevalue("python_image")
        return image if pip else container_image.WITHOUT_PIP, {}

    return find


@IN_BOTH
def test_code_that_changed_since_it_was_staged_is_not_run(staged: Starts, place_of: Any, place: str) -> None:
    image, environ = place_of(place)

    def job(buckets: Path) -> JobRecord:
        made = of(image)(buckets)
        stage(buckets, {"task.py": "raise SystemExit('must not run')"})
        return made

    run = staged(job, **environ).start()
    state, _, message = run.end()
    assert (state, message, cause(run)) == ("FAILED", CHANGED, CODE)


@IN_BOTH
def test_code_whose_bucket_is_not_mounted_is_told_of(staged: Starts, place_of: Any, place: str) -> None:
    image, environ = place_of(place)

    def job(buckets: Path) -> JobRecord:
        made = of(image)(buckets)
        shutil.rmtree(buckets / BUCKET)
        return made

    run = staged(job, **environ).start()
    state, _, message = run.end()
    assert (state, cause(run)) == ("FAILED", CODE)
    assert f"/{BUCKET} isn't mounted, so the code can't be read; " in message
    assert "\n" not in message


REQUIRING = {
    "task.py": "import library; print('library', library.VERSION)",
}


def requiring(buckets: Path, image: str, **env: str) -> JobRecord:
    wheel = trainers.library(buckets / BUCKET, "library", "1.0")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = f"library==1.0 --hash=sha256:{digest}\n"
    files = {**REQUIRING, "requirements.txt": lock}
    return a_job(image, command(*stage(buckets, files), requirements="requirements.txt"), **env)


@IN_BOTH
def test_requirements_are_installed_by_their_hashes(staged: Starts, place_of: Any, place: str) -> None:
    image, environ = place_of(place)
    links = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"/gcs/{BUCKET}", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    run = staged(lambda buckets: requiring(buckets, image, **links), **environ).start()
    assert run.end() == ("SUCCEEDED", 0, ""), run.log()
    assert ("INFO", "library 1.0") in run.log()


def locked(links: Path, task: str, *, digest: str = "") -> Any:
    """Return a function that makes a job whose lock file names a wheel in a folder."""
    wheel = trainers.library(links, "library", "1.0")
    digest = digest or hashlib.sha256(wheel.read_bytes()).hexdigest()
    # The folder's path makes the file another one than that of other tests, which share environments.
    lock = f"# {links}\nlibrary==1.0 --hash=sha256:{digest}\n"
    return of(PYTHON, files={"task.py": task, "requirements.txt": lock}, requirements="requirements.txt")


def test_an_installer_has_the_user_s_settings_of_pip_and_the_trainer_no_variable_of_them(
    staged: Starts, engineless: str, tmp_path: Path
) -> None:
    task = "import library, os; print([n for n in os.environ if n.startswith('PIP_')])"
    job = locked(tmp_path / "links", task)
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("library<9\n")
    links = {"PIP_FIND_LINKS": str(tmp_path / "links"), "PIP_CONSTRAINT": str(constraints)}
    run = staged(job, PATH=engineless, **links).start()
    assert run.end() == ("SUCCEEDED", 0, ""), run.log()
    assert ("INFO", "[]") in run.log()


def test_runs_in_environments_install_one_lock_file_once_before_their_trainers(
    staged: Starts, engineless: str, tmp_path: Path
) -> None:
    job = locked(tmp_path / "links", "import library; print('library', library.VERSION)")
    logs = []
    for _ in range(2):
        run = staged(job, PATH=engineless, PIP_FIND_LINKS=str(tmp_path / "links")).start()
        assert run.end() == ("SUCCEEDED", 0, ""), run.log()
        logs.append(run.log())
    first, second = (["Installing requirements.txt" in text for _, text in log] for log in logs)
    assert first.index(True) < [text for _, text in logs[0]].index("library 1.0")
    assert not any(second)
    assert {severity for log in logs for severity, _ in log} == {"INFO"}


def test_an_environment_has_the_entry_s_requirements_beside_the_lock_file_s(
    staged: Starts, engineless: str, tmp_path: Path, wheelhouse: Path
) -> None:
    trainers.library(tmp_path / "links", "framework", "2.0")
    job = locked(tmp_path / "links", "import framework, library; print(framework.VERSION, library.VERSION)")
    images = {PYTHON: {"python": trainers.OWN_PYTHON, "requirements": ["framework"]}}
    links = f"{wheelhouse} {tmp_path / 'links'}"  # with the tools that build packages
    run = staged(
        lambda buckets: replace(job(buckets), images=images), PATH=engineless, PIP_FIND_LINKS=links
    ).start()
    assert run.end() == ("SUCCEEDED", 0, ""), run.log()
    assert ("INFO", "2.0 1.0") in run.log()


@pytest.mark.parametrize(
    ("digest", "links", "reason", "words"),
    [
        ("0" * 64, "links", "PACKAGES_NOT_INSTALLED", "Hash mismatch for `library==1.0`"),
        ("", "none", "PACKAGES_NOT_RESOLVED", "library was not found"),
    ],
)
def test_a_lock_file_that_cannot_be_installed_ends_an_environment_s_run_before_it_is_running(
    staged: Starts, engineless: str, tmp_path: Path, digest: str, links: str, reason: str, words: str
) -> None:
    (tmp_path / "none").mkdir()
    job = locked(tmp_path / "links", "raise SystemExit('must not run')", digest=digest)
    run = staged(job, PATH=engineless, PIP_FIND_LINKS=str(tmp_path / links)).start()
    state, _, message = run.end()
    assert (state, cause(run)["reason"]) == ("FAILED", reason), message
    assert message.startswith("The requirements in requirements.txt could not be installed: ")
    assert words in message
    phase = run.folder.phase()
    assert phase
    assert phase.phase == PREPARING
    assert [text for severity, text in run.log() if severity == "ERROR"] == [message.splitlines()[0]]


UNREACHABLE = "http://127.0.0.1:1/simple"


@pytest.mark.parametrize(
    ("place", "words", "reason"),
    [
        (
            "container",
            "pip can't reach the package index to install requirements.txt; check the job's network",
            "CODE_NOT_STARTED",
        ),
        (
            "environment",
            "The requirements in requirements.txt could not be installed: cannot reach the package index at "
            f"{UNREACHABLE}: ",
            "INDEX_UNREACHABLE",
        ),
    ],
)
def test_an_index_out_of_reach_ends_the_job_with_one_sentence(
    staged: Starts, place_of: Any, place: str, words: str, reason: str
) -> None:
    image, environ = place_of(place)
    index = {"PIP_INDEX_URL": UNREACHABLE, "PIP_RETRIES": "0", "PIP_NO_INDEX": "0"}
    run = staged(lambda buckets: requiring(buckets, image, **index), **environ).start()
    state, _, message = run.end()
    assert (state, cause(run)["reason"]) == ("FAILED", reason)
    assert message.startswith(words)
    assert "\n" not in message


def test_an_image_without_pip_ends_a_job_with_requirements_with_one_sentence(
    staged: Starts, place_of: Any
) -> None:
    image, environ = place_of("container", pip=False)
    run = staged(lambda buckets: requiring(buckets, image), **environ).start()
    state, _, message = run.end()
    assert (state, cause(run)) == ("FAILED", CODE)
    assert message == (
        "the image has no pip to install requirements.txt;"
        " use an image with pip, or with these packages in it"
    )


def test_a_module_s_own_failure_is_user_code(staged: Starts, engineless: str) -> None:
    files = {"task.py": "raise ValueError('the loss is NaN')"}
    run = staged(of(PYTHON, files=files), PATH=engineless).start()
    _, code, message = run.end()
    assert (code, cause(run)) == (
        3,
        {"reason": "NON_ZERO_EXIT", "class": "user-code", "exitCode": "1"},
    )
    assert message.endswith("ValueError: the loss is NaN")


def test_an_image_without_an_environment_is_named_with_the_entry_that_gives_it_one(
    staged: Starts, engine: ContainerEngine
) -> None:
    run = staged(of("localhost/never-built:1")).start()
    assert run.end()[2] == (
        "The image localhost/never-built:1 isn't here: build it first; or say under images in reconciler.yaml"
        ' what to run it as: "localhost/never-built:1": {python: "3.11", requirements: []}'
    )
    assert cause(run) == {
        "reason": "IMAGE_NOT_PULLED",
        "class": "set-up",
        "image": "localhost/never-built:1",
    }


@pytest.fixture
def bench(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    engineless: str,
    monkeypatch: pytest.MonkeyPatch,
    wheelhouse: Path,
) -> Iterator[Bench]:
    monkeypatch.setenv("PATH", engineless)
    with supervised(tmp_path, trainers.shared_environments(tmp_path_factory)) as running:
        (running.home / "gcs" / "models").mkdir(parents=True)
        yield running


def test_two_replicas_of_staged_code_find_each_other(bench: Bench) -> None:
    task = """
        import os, pathlib, time
        own, folder = os.environ["RANK"], pathlib.Path("/gcs/models")
        (folder / own).write_text(os.environ["CLUSTER_SPEC"])
        while len(list(folder.iterdir())) < 2:
            time.sleep(0.02)
        """
    words = command(*stage(bench.home / "gcs", {"task.py": task}))
    job = contained(trainers.cluster_job({"replicaCount": "1"}), PYTHON, words, MODELS="gs://models/x")
    ended = bench.ended(bench.submit(job=job))
    assert ended.state is JobState.SUCCEEDED, bench.log(ended)
    assert sorted(path.name for path in (bench.home / "gcs/models").iterdir()) == ["0", "1"]


@pytest.mark.parametrize(("digest", "class_"), [("0" * 64, "set-up"), ("", "service")])
def test_an_attempt_counts_once_a_replica_s_module_may_have_started(
    bench: Bench, digest: str, class_: str
) -> None:
    """The first replica's code has changed; the second replica's code has too, or it trains on."""
    source = {"task.py": "import time; time.sleep(100)"}
    uri, right = stage(bench.home / "gcs", source)
    job = contained(trainers.cluster_job({"replicaCount": "1"}), PYTHON, command(uri, "0" * 64))
    second = job.body["jobSpec"]["workerPoolSpecs"][1]["containerSpec"]
    second["command"] = command(uri, digest or right)
    ended = bench.ended(bench.submit(job=job))
    assert ended.state is JobState.FAILED
    assert ended.error_message == CHANGED
    assert ended.error_details["class"] == class_


def test_trials_of_staged_code_get_their_parameters_and_report(bench: Bench) -> None:
    task = """
        import json, os, sys, time
        value = float(sys.argv[sys.argv.index("--rate") + 1])
        path = os.environ["CLOUD_ML_HP_METRIC_FILE"]
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(json.dumps({"timestamp": time.time(), "trial": os.environ["CLOUD_ML_TRIAL_ID"],
                                   "accuracy": str(1 - value), "global_step": "1"}))
        """
    study = {"parameters": [{"parameterId": "rate", "doubleValueSpec": {"minValue": 0.1, "maxValue": 0.9}}]}
    words = command(*stage(bench.home / "gcs", {"task.py": task}))
    job = contained(trainers.tuning_job(study), PYTHON, words, "--rounds", "3", MODELS="gs://models/x")
    submitted = bench.submit(job=job)
    ended = bench.ended(submitted)
    assert ended.state is JobState.SUCCEEDED, bench.whole_log(submitted)
    trials = bench.trials(submitted)
    assert [trial.final.metrics["accuracy"] if trial.final else None for trial in trials] == [
        pytest.approx(1 - float(trial.parameters["rate"])) for trial in trials
    ]


def created(service: Service, image: str, words: list[str]) -> Answer:
    """Return the answer to the create of a job with this container."""
    body = bodies.custom_job()
    (pool,) = body["jobSpec"]["workerPoolSpecs"]
    del pool["pythonPackageSpec"]
    pool["containerSpec"] = {"imageUri": image, "command": words}
    return service.post(f"{bodies.VERTEX}/customJobs", body)


STAGED = command("gs://staging/code.tar.gz", "0" * 64)


def test_staged_code_that_nothing_here_runs_is_refused_at_create(
    service: Service, engineless: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", engineless)
    answer = created(service, "team/base:1", STAGED)
    assert answer.status == 400
    (violation,) = answer.json["error"]["details"][0]["fieldViolations"]
    assert violation == {
        "field": "job_spec.worker_pool_specs[0].container_spec.image_uri",
        "description": "No container engine works on this machine to run the image team/base:1: install or"
        " start Docker or Podman, or say under images in reconciler.yaml what to run it as:"
        ' "team/base:1": {python: "3.11", requirements: []}',
    }


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (PYTHON, STAGED),
        ("python:3.12.4-slim-bookworm@sha256:" + "a" * 64, STAGED),
        ("team/known:1", STAGED),
        ("team/base:1", ["/bin/train"]),
    ],
)
def test_what_may_run_is_taken_without_an_engine(
    service: Service, engineless: str, monkeypatch: pytest.MonkeyPatch, image: str, words: list[str]
) -> None:
    monkeypatch.setenv("PATH", engineless)
    service.call("PUT", "/_service/images", {"team/known": {"python": "3.11", "requirements": []}})
    assert created(service, image, words).status == 200


def test_staged_code_is_taken_where_an_engine_may_pull_its_image(
    service: Service, engine: ContainerEngine
) -> None:
    assert created(service, "team/base:1", STAGED).status == 200


PACKAGE = "my-staging/aiplatform-2026-11-27-03:58:59.904-aiplatform_custom_trainer_script-0.1.tar.gz"
SCRIPT = f"pip3 install -q --user /gcs/{PACKAGE} && python3 -m aiplatform_custom_trainer_script.task"


@pytest.mark.parametrize("before", ["", "pip install --upgrade pip && "])
@pytest.mark.parametrize(
    ("after", "args"), [("", ()), (" --epochs=3 'two words'", ("--epochs=3", "two words"))]
)
def test_local_scripts_of_the_sdk_run_as_their_package(
    before: str, after: str, args: tuple[str, ...]
) -> None:
    task = ContainerTask("python:3.11-slim", ("sh", "-c", before + SCRIPT + after), ())
    module = "aiplatform_custom_trainer_script.task"
    expected = PythonTask("python:3.11-slim", None, "3.11", (f"gs://{PACKAGE}",), module, args)
    assert in_environment(task) == expected


@pytest.mark.parametrize(
    "line",
    [
        SCRIPT + " $HOME",
        SCRIPT + " 'a",
        SCRIPT + " && rm x",
        SCRIPT + " a*",
        "python3 -m task",
        "x; " + SCRIPT,
    ],
)
def test_other_lines_of_a_shell_are_left_to_a_container(line: str) -> None:
    assert in_environment(ContainerTask("python:3.11", ("sh", "-c", line), ())) is None
    assert in_environment(ContainerTask("gcr.io/me/a", ("sh", "-c", SCRIPT), ())) is None


@pytest.mark.parametrize(
    ("image", "python"),
    [
        ("python:3.11", "3.11"),
        ("python:3.12-slim", "3.12"),
        ("docker.io/python:3.9.2-alpine3.20", "3.9"),
        ("library/python:3.13", "3.13"),
        ("docker.io/library/python:3.10-slim@sha256:" + "0" * 64, "3.10"),
        ("python", ""),
        ("python:3", ""),
        ("python:latest", ""),
        ("python:3.11slim", ""),
        ("example.test/python:3.11", ""),
        ("mypython:3.11", ""),
    ],
)
def test_the_python_of_an_image_is_read_from_docker_hub_s_tags_alone(image: str, python: str) -> None:
    assert python_of_image(image) == python
