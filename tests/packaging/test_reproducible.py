"""The same content gives the same names and bytes, in any place and by any Python."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reconciler.model.naming import HASH_VERSION

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "tests" / "golden" / "vectors.json"

CHECK_OUT_AND_NAME = """
import os, sys
from pathlib import Path

root = Path(os.fsencode(sys.argv[1]).decode("utf-8", "surrogateescape"))
umask, time = map(int, sys.argv[2:4])
line_end = {"unix": b"\\n", "windows": b"\\r\\n"}[sys.argv[4]]
manifest = '''\\
# Gr\u00f6\u00dfe
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {name: census, labels: {team: risk}}
package: {path: ../trainers/census}
reconcile: {rerun: "\u00e9 1"}
spec:
  workerPoolSpecs:
    - replicaCount: 1
      machineSpec: {machineType: n1-standard-4}
      pythonPackageSpec:
        executorImageUri: example.test/i
        pythonModule: trainer.task
        args:
          - "\u00e9"
          - |
            two
            lines
'''
os.umask(umask)
package = os.fsencode(root) + b"/trainers/census"
files = {
    b"trainer/task.py": b"print()\\r\\n",
    b"trainer/run.sh": b"#!/bin/sh\\n",
    "trainer/données/日本.csv".encode("utf-8"): b"1;2\\n",
    b"trainer/x.log": b"not code",
    b".gitignore": "*.log\\n/données.csv\\n".encode("utf-8"),
    b"requirements.txt": b"numpy>=2\\n",
}
files[b"../../jobs/census.yaml"] = manifest.encode("utf-8").replace(b"\\n", line_end)
for path, content in files.items():
    file = os.path.join(package, path)
    os.makedirs(os.path.dirname(file), exist_ok=True)
    with open(file, "wb") as opened:
        opened.write(content)
    os.utime(file, (time, time))
os.chmod(package + b"/trainer/run.sh", 0o777 & ~umask)
os.symlink(b"../../shared", package + b"/shared")
os.makedirs(os.fsencode(root) + b"/shared")
with open(os.fsencode(root) + b"/shared/util.py", "wb") as opened:
    opened.write(b"X = 1")

from reconciler.manifests.settings import Environment
from reconciler.operations.load_desired import desired_jobs
from reconciler.packaging.source_tree import read_source_tree
from reconciler.manifests.validate import validate

validation = validate(root, [root / "jobs"])
assert not validation.problems, validation.problems
desired = desired_jobs(root, validation.manifests, Environment("e", "local", "p", "l", "b", "b"))
(job,) = desired.jobs
tree = read_source_tree(root / "trainers" / "census", root)
archive = desired.archives[job.job_name]()
print(ascii([file.path for file in tree.files]), job.code, job.job_name, job.identity, archive.sha256)
"""

NUMBER_OF_VECTORS = 4
DIGEST_OF_VECTORS = "ad1099917e55fd8c0b3bbc3301e3419354bbb4e3872f080f2a25234520b566e7"

# The variables for a Python that reads file names in an ASCII-only locale.
ASCII = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
SURROUNDINGS: list[tuple[list[str], dict[str, str], str, int, int, str]] = [
    # Python's flags, variables, the repository's path, umask, time of the files, line ends of the manifest
    ([], {}, "here", 0o022, 1, "unix"),
    (
        ["-OO"],
        {"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONHASHSEED": "0"},
        "a/deeper place",
        0o077,
        2**31,
        "windows",
    ),
    ([], {**ASCII, "PYTHONHASHSEED": "1"}, "ascii", 0o002, 10**9, "windows"),
    (
        ["-X", "utf8"],
        {"TZ": "America/St_Johns", "LC_ALL": "tr_TR", "SOURCE_DATE_EPOCH": "1"},
        "wörk",
        0,
        0,
        "unix",
    ),
]


@pytest.mark.fault(20)
@pytest.mark.slow
def test_surroundings_make_no_difference(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CHECK_OUT_AND_NAME, encoding="utf-8")
    said = set()
    for flags, variables, place, umask, time, line_ends in SURROUNDINGS:
        root = tmp_path / place
        root.mkdir(parents=True)
        done = subprocess.run(
            [sys.executable, *flags, tmp_path / "script.py", root, str(umask), str(time), line_ends],
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
            cwd=root,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        said.add(done.stdout)
    assert len(said) == 1
    (line,) = said
    assert line.startswith(
        "['.gitignore', 'requirements.txt', 'shared/util.py', 'trainer/donn\\xe9es/\\u65e5\\u672c.csv', "
        "'trainer/run.sh', 'trainer/task.py'] "
    )


def other_pythons() -> list[str]:
    """Return the Pythons of this machine that may be 3.11 or newer."""
    found = {shutil.which(f"python3.{minor}") for minor in range(11, 21)}
    installed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found |= {str(python) for python in installed.glob("3.*/bin/python3")}
    return sorted(python for python in found if python)


@pytest.mark.fault(19, 20)
@pytest.mark.slow
def test_every_python_computes_the_golden_vectors() -> None:
    vectors = VECTORS.read_text(encoding="utf-8")
    for python in [sys.executable, *other_pythons()]:
        too_old = "import sys; sys.exit(sys.version_info < (3, 11))"
        if subprocess.run([python, "-c", too_old], capture_output=True).returncode != 0:
            continue  # older, or a broken name
        done = subprocess.run(
            # Without the packages that are installed for this Python.
            [
                python,
                *(["-S"] if python != sys.executable else []),
                "-B",
                ROOT / "tests" / "golden" / "compute.py",
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            input=vectors,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (python, done.stderr)
        assert json.loads(done.stdout) == json.loads(vectors), python


# The vectors themselves: recorded vectors are neither changed nor lost.


@pytest.mark.fault(19)
def test_no_vector_was_ever_changed() -> None:
    """New vectors are added at the end; the bytes of the existing vectors never change."""
    jobs = json.loads(VECTORS.read_text(encoding="utf-8"))["jobs"]
    first = json.dumps(jobs[:NUMBER_OF_VECTORS], sort_keys=True)
    assert hashlib.sha256(first.encode()).hexdigest() == DIGEST_OF_VECTORS


@pytest.mark.fault(19)
def test_every_version_of_the_hash_has_vectors() -> None:
    """A new version keeps the older names computable, as the vectors of both versions show."""
    jobs = json.loads(VECTORS.read_text(encoding="utf-8"))["jobs"]
    assert {job.get("version", 1) for job in jobs} == {*range(1, HASH_VERSION + 1)}
