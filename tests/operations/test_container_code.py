"""Staged code in containers that lack it: names, request bodies, comparisons, and refused manifests."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.base.diagnostics import Problem
from reconciler.base.errors import InvalidError
from reconciler.cli import run
from reconciler.engines.api.vertex_ai import VertexAi
from reconciler.engines.spec.container_command import staged_module
from reconciler.manifests.settings import load_config
from reconciler.manifests.validate import validate
from reconciler.model.job import State
from reconciler.model.manifest import JsonObject
from reconciler.model.plan import DesiredJob
from reconciler.operations.load_desired import Desired, load_desired
from reconciler.operations.plan import request_body
from reconciler.operations.staged_code import code_problems
from tests.support.opened import connected
from tests.support.planning import bound_to, only, plan, run_of

IMAGE = "docker.io/library/python@sha256:" + "0" * 64
POOL = f"""\
machineSpec: {{machineType: n1-standard-4}}
      replicaCount: 1
      containerSpec: {{imageUri: "{IMAGE}", args: ["--lr=0.1"]}}
"""
JOB = f"""\
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: census}}
package: {{path: ../code, module: trainer.task}}
spec:
  workerPoolSpecs:
    - {POOL}"""
TUNING = f"""\
apiVersion: aiplatform.googleapis.com/v1
kind: HyperparameterTuningJob
metadata: {{name: census}}
package: {{path: ../code, module: trainer.task}}
spec:
  maxTrialCount: 2
  parallelTrialCount: 1
  studySpec:
    metrics: [{{metricId: loss, goal: MINIMIZE}}]
    parameters: [{{parameterId: lr, doubleValueSpec: {{minValue: 0.1, maxValue: 1}}}}]
  trialJobSpec:
    workerPoolSpecs:
    - {POOL}"""
LOCK = "tiny==1.0 \\\n    --hash=sha256:" + "0" * 64 + "\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for path, text in {
        "reconciler.yaml": "source: tide\n",
        "jobs/job.yaml": JOB,
        "code/trainer/__init__.py": "",
        "code/trainer/task.py": "print(1)\n",
        "code/trainer/data.csv": "1,2\n",
        "code/notes.txt": "top\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def desired(root: Path, text: str = JOB) -> Desired:
    (root / "jobs/job.yaml").write_text(text)
    config = load_config(root)
    return load_desired(config, config.environment(None), [])


def job_of(root: Path, text: str = JOB) -> DesiredJob:
    (job,) = desired(root, text).jobs
    return job


def body_of(loaded: Desired) -> JsonObject:
    (job,) = loaded.jobs
    return request_body(job, loaded, "staging", job.job_name, {})


def pools(body: Any) -> Any:
    return body.get("jobSpec", body.get("trialJobSpec", body))["workerPoolSpecs"]


def test_name_of_a_container_s_code_never_changes(root: Path) -> None:
    """Check the golden names of this form; names without staged code are in `tests/golden`."""
    assert job_of(root).job_name == "census_b42d860c4cc319e2"
    (root / "code/a.lock").write_text(LOCK)
    locked = JOB.replace("trainer.task}", "trainer.task, requirements: a.lock}")
    assert job_of(root, locked).job_name == "census_85d79c80c8b8e13f"


def test_name_follows_module_lock_file_and_code(root: Path) -> None:
    (root / "code/trainer/other.py").write_text("")
    (root / "code/a.lock").write_text(LOCK)
    (root / "code/b.lock").write_text(LOCK)
    texts = [
        JOB,
        JOB.replace("trainer.task", "trainer.other"),
        JOB.replace("trainer.task}", "trainer.task, requirements: a.lock}"),
        JOB.replace("trainer.task}", "trainer.task, requirements: b.lock}"),
    ]
    names = [job_of(root, text).job_name for text in texts]
    (root / "code/a.lock").write_text(LOCK.replace("1.0", "2.0"))
    names.append(job_of(root, texts[2]).job_name)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("text", [JOB, TUNING], ids=["custom", "tuning"])
def test_body_runs_the_archive_of_the_whole_folder(root: Path, text: str) -> None:
    (root / "code/a.lock").write_text(LOCK)
    loaded = desired(root, text.replace("trainer.task}", "trainer.task, requirements: a.lock}"))
    (pool,) = pools(body_of(loaded))
    container = pool["containerSpec"]
    assert container["args"] == ["--lr=0.1"]
    python, option, _, uri, digest, module, lock = container["command"]
    (archive,) = (build() for build in loaded.archives.values())
    assert (python, option, module, lock) == ("python3", "-c", "trainer.task", "a.lock")
    assert digest == archive.sha256
    assert uri == f"gs://staging/reconciler/packages/{digest}/job-code.tar.gz"
    with tarfile.open(fileobj=io.BytesIO(archive.data)) as opened:
        assert sorted(opened.getnames()) == [
            "a.lock",
            "notes.txt",
            "trainer/__init__.py",
            "trainer/data.csv",
            "trainer/task.py",
        ]


def test_every_container_runs_the_code_and_other_pools_stay(root: Path) -> None:
    text = JOB + "    - {}\n    - " + POOL
    first, empty, second = pools(body_of(desired(root, text)))
    assert empty == {}
    assert first["containerSpec"] == second["containerSpec"]
    assert staged_module(second["containerSpec"]["command"]) == ("trainer.task", "")


def test_folder_that_is_the_package_itself_has_its_lock_file_beside_it(root: Path) -> None:
    (root / "code/trainer/a.lock").write_text(LOCK)
    text = JOB.replace(
        "path: ../code, module: trainer.task",
        "path: ../code/trainer, module: trainer.task, requirements: a.lock",
    )
    loaded = desired(root, text)
    (pool,) = pools(body_of(loaded))
    assert pool["containerSpec"]["command"][5:] == ["trainer.task", "trainer/a.lock"]
    (archive,) = (build() for build in loaded.archives.values())
    with tarfile.open(fileobj=io.BytesIO(archive.data)) as opened:
        assert "trainer/a.lock" in opened.getnames()


def test_package_that_changes_while_it_is_staged_is_staged_as_it_was_named(root: Path) -> None:
    loaded = desired(root)
    (root / "code/trainer/task.py").write_text("print(2)\n")
    (archive,) = (build() for build in loaded.archives.values())
    with tarfile.open(fileobj=io.BytesIO(archive.data)) as opened:
        task = opened.extractfile("trainer/task.py")
        assert task
        assert task.read() == b"print(1)\n"
    (pool,) = pools(body_of(loaded))
    assert pool["containerSpec"]["command"][4] == archive.sha256
    assert job_of(root).job_name != loaded.jobs[0].job_name


def as_service_shows(job: DesiredJob, loaded: Desired) -> JsonObject:
    """Return the spec of the job's run, read from the created resource."""
    body = body_of(loaded)
    name = "projects/1/locations/l/customJobs/7"
    return (
        VertexAi(connected("http://127.0.0.1:9"))
        ._read("CustomJob", {**body, "name": name, "state": "JOB_STATE_SUCCEEDED"})
        .spec
    )


def test_run_of_the_same_spec_differs_in_nothing(root: Path) -> None:
    loaded = desired(root)
    (job,) = loaded.jobs
    assert as_service_shows(job, loaded) == job.spec


@pytest.mark.parametrize(
    ("before", "after", "pointers"),
    [
        ("trainer.task", "trainer.other", ["command/2"]),
        ("--lr=0.1", "--lr=0.2", ["args/0"]),
    ],
)
def test_plan_compares_the_command_as_people_read_it(
    root: Path, before: str, after: str, pointers: list[str]
) -> None:
    (root / "code/trainer/other.py").write_text("")
    loaded = desired(root)
    (job,) = loaded.jobs
    earlier = replace(run_of(job, State.SUCCEEDED), spec=as_service_shows(job, loaded))
    change = only(plan([job_of(root, JOB.replace(before, after))], [earlier], [bound_to(job, earlier)]))
    place = "/workerPoolSpecs/0/containerSpec"
    assert [field.pointer for field in change.fields] == [f"{place}/{each}" for each in pointers]


def test_render_prints_the_program_and_plan_doesn_t(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", "census"]) == 0
    assert staged_module(pools(json.loads(capsys.readouterr().out))[0]["containerSpec"]["command"])
    assert run(["plan"]) == 0
    shown = capsys.readouterr().out
    assert "trainer.task" in shown
    assert "tarfile" not in shown


def problems_of(root: Path, text: str) -> list[Problem]:
    (root / "jobs/job.yaml").write_text(text)
    found = validate(root, [root / "jobs"])
    return [*found.problems, *code_problems(root, found.manifests)]


LOCKED = JOB.replace("trainer.task}", "trainer.task, requirements: a.lock}")


@pytest.mark.parametrize(
    ("lock", "message"),
    [
        (None, 'the package has no file "a.lock", or git ignores it'),
        ("tiny==1.0\n", 'the package\'s "a.lock" has no hash of "tiny==1.0"'),
        (LOCK + "other  # via tiny\n", 'the package\'s "a.lock" has no hash of "other"'),
        (b"\xff", 'the package\'s "a.lock" is not UTF-8'),
        ("", ""),
        (LOCK, ""),
        (f"# locked\n--index-url https://example.com/simple\n\n{LOCK}", ""),
        (LOCK.replace("\n", "\r\n"), ""),
        (LOCK.replace("tiny==1.0", "tiny==1.0 ; python_version >= '3.7'"), ""),
    ],
)
def test_lock_file_must_be_there_and_have_hashes(root: Path, lock: str | bytes | None, message: str) -> None:
    if lock is not None:
        (root / "code/a.lock").write_bytes(lock.encode() if isinstance(lock, str) else lock)
    found = problems_of(root, LOCKED)
    assert [problem.message for problem in found] == [message][: bool(message)]
    for problem in found:
        assert (problem.line, problem.pointer) == (4, "/package/requirements")
        assert problem.hint


def test_module_that_only_a_build_would_make_is_refused(root: Path) -> None:
    (root / "code/setup.py").write_text("raise SystemExit('never run')\n")
    (problem,) = problems_of(root, JOB.replace("trainer.task", "elsewhere.task"))
    assert (problem.line, problem.column, problem.pointer) == (4, 34, "/package/module")
    assert 'the package has no module "elsewhere.task"' in problem.message


def test_ignored_lock_file_stops_a_plan(root: Path) -> None:
    (root / "code/.gitignore").write_text("*.lock\n")
    (root / "code/a.lock").write_text(LOCK)
    with pytest.raises(InvalidError) as refused:
        desired(root, LOCKED)
    assert "or git ignores it" in refused.value.problems[0].message
