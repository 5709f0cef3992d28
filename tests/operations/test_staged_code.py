"""Problems of the code that jobs stage: each is reported at the field that names the package."""

from __future__ import annotations

from pathlib import Path

from reconciler.manifests.validate import validate
from reconciler.operations.staged_code import code_problems
from tests.manifests.test_validate import write

JOB = """\
# A job with code.
---
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: {name}}}
package:
  path: ../trainers/census
spec:
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-4}}
      replicaCount: 1
      pythonPackageSpec:
        executorImageUri: us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-12:latest
        pythonModule: task
"""


def test_problem_of_code_is_reported_at_the_path_of_the_package(tmp_path: Path) -> None:
    write(tmp_path, "trainers/census/task.py", "")
    write(tmp_path, "trainers/census/requirements.txt", "-r other.txt\n")
    write(tmp_path, "jobs/two.yaml", JOB.format(name="first") + JOB.format(name="second"))
    found = validate(tmp_path, [tmp_path / "jobs"])
    assert found.problems == ()
    problems = code_problems(tmp_path, found.manifests)
    assert [(each.path, each.line, each.column, each.pointer) for each in problems] == [
        ("jobs/two.yaml", 7, 9, "/package/path"),
        ("jobs/two.yaml", 21, 9, "/package/path"),
    ]
    assert "is no plain requirement" in problems[0].message


def test_problem_of_code_keeps_the_manifest_s_line_when_its_file_changed(tmp_path: Path) -> None:
    write(tmp_path, "trainers/census/task.py", "")
    write(tmp_path, "trainers/census/requirements.txt", "-r other.txt\n")
    write(tmp_path, "jobs/one.yaml", JOB.format(name="one"))
    manifests = validate(tmp_path, [tmp_path / "jobs"]).manifests
    write(tmp_path, "jobs/one.yaml", "other: {}\n")
    (problem,) = code_problems(tmp_path, manifests)
    assert (problem.line, problem.column) == (3, 1)
