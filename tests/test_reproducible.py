"""The same content gives the same names and bytes, wherever and by whichever Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VECTORS = ROOT / "tests" / "golden" / "vectors.json"

CHECK_OUT_AND_NAME = """
import os, sys
from pathlib import Path

root, umask, time = Path(os.fsencode(sys.argv[1]).decode("utf-8", "surrogateescape")), *map(int, sys.argv[2:])
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

from reconciler import schemas
from reconciler.canonical import canonical_spec
from reconciler.manifest import Manifest
from reconciler.naming import identity, job_name
from reconciler.sources.sdist import build_sdist
from reconciler.sources.sourcetree import read_source_tree

tree = read_source_tree(root / "trainers" / "census", root)
spec = {"workerPoolSpecs": [{"replicaCount": 1, "containerSpec": {"args": ["é"], "imageUri": "x"}}]}
manifest = Manifest("aiplatform.googleapis.com/v1", "CustomJob", "census", spec)
spec = canonical_spec(spec, schemas.manifest_schema(manifest.api_version, manifest.kind))
name = job_name(manifest.base_name, identity(manifest, spec, tree.digest))
archive = build_sdist(tree, "census", "trainer.task")
print(ascii([file.path for file in tree.files]), tree.digest, name, archive.sha256)
"""

# What Python reads names of files with, when it is told to believe a locale that knows ASCII only.
ASCII = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
SURROUNDINGS: list[tuple[list[str], dict[str, str], str, int, int]] = [
    # Python's flags, variables, where the repository is, umask, time of the files
    ([], {}, "here", 0o022, 1),
    (
        ["-OO"],
        {"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONHASHSEED": "0"},
        "a/deeper place",
        0o077,
        2**31,
    ),
    ([], {**ASCII, "PYTHONHASHSEED": "1"}, "ascii", 0o002, 10**9),
    (["-X", "utf8"], {"TZ": "America/St_Johns", "LC_ALL": "tr_TR", "SOURCE_DATE_EPOCH": "1"}, "wörk", 0, 0),
]


def test_surroundings_make_no_difference(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CHECK_OUT_AND_NAME, encoding="utf-8")
    said = set()
    for flags, variables, place, umask, time in SURROUNDINGS:
        root = tmp_path / place
        root.mkdir(parents=True)
        done = subprocess.run(
            [sys.executable, *flags, tmp_path / "script.py", root, str(umask), str(time)],
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
    """The Pythons of this machine that may be of 3.11 or newer."""
    found = {shutil.which(f"python3.{minor}") for minor in range(11, 21)}
    installed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found |= {str(python) for python in installed.glob("3.*/bin/python3")}
    return sorted(python for python in found if python)


def test_every_python_computes_the_golden_vectors() -> None:
    vectors = VECTORS.read_text(encoding="utf-8")
    for python in [sys.executable, *other_pythons()]:
        too_old = "import sys; sys.exit(sys.version_info < (3, 11))"
        if subprocess.run([python, "-c", too_old], capture_output=True).returncode != 0:
            continue  # older, or a name that leads to no Python
        done = subprocess.run(
            [python, "-B", ROOT / "tests" / "golden" / "compute.py"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            input=vectors,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (python, done.stderr)
        assert json.loads(done.stdout) == json.loads(vectors), python
