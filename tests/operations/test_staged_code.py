"""Staged code of jobs: problems point to the field that names the package, changes come from git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from msgspec.structs import replace

from reconciler.manifests.validate import validate
from reconciler.model.diff import FieldChange, FileChange
from reconciler.model.naming import label_of
from reconciler.model.plan import Action, Change
from reconciler.operations.earlier_code import EarlierCode
from reconciler.operations.staged_code import code_problems
from reconciler.packaging.source_tree import read_source_tree
from tests.support.manifests import write
from tests.support.planning import saying, wanted

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
    assert "is not a plain requirement" in problems[0].message


def test_problem_of_code_keeps_the_manifest_s_line_when_its_file_changed(tmp_path: Path) -> None:
    write(tmp_path, "trainers/census/task.py", "")
    write(tmp_path, "trainers/census/requirements.txt", "-r other.txt\n")
    write(tmp_path, "jobs/one.yaml", JOB.format(name="one"))
    manifests = validate(tmp_path, [tmp_path / "jobs"]).manifests
    write(tmp_path, "jobs/one.yaml", "other: {}\n")
    (problem,) = code_problems(tmp_path, manifests)
    assert (problem.line, problem.column) == (3, 1)


def test_changed_files_are_listed_only_if_the_commit_has_exactly_the_code_of_the_run(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.test")
        done = subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)
        return done.stdout.decode().strip()

    task = tmp_path / "trainer" / "task.py"
    task.parent.mkdir()
    trees = []
    for text in ("a\n", "a\nb\n", "c\n"):
        task.write_text(text)
        trees.append(read_source_tree(task.parent, tmp_path))
        if text == "a\n":
            git("init")
            git("add", "--all")
            git("commit", "-m", "first")
    job = wanted()
    job = replace(job, manifest=replace(job.manifest, package=task.parent.resolve()))
    codes = [label_of(tree.digest) for tree in trees]
    field = FieldChange("/package", codes[0], codes[2])
    change = Change(
        Action.SUBMIT, saying(""), "census", job.job_name, "CustomJob", fields=(field,), desired=job
    )
    change = replace(change, earlier_commit=git("rev-parse", "HEAD"))
    read = {job.job_name: trees[2]}
    earlier = EarlierCode(tmp_path, os.environ)
    assert earlier.changed_files(change, read) == (FileChange("trainer/task.py", 1, 1),)
    other = replace(change, fields=(FieldChange("/package", codes[1], codes[2]),))
    assert earlier.changed_files(other, read) == ()
    assert earlier.changed_files(replace(change, earlier_commit="0" * 40), read) == ()
    assert earlier.changed_files(replace(change, earlier_commit="--help"), read) == ()
