"""The archive: its bytes, its installation by pip, and the guarantee that making it runs no code."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.manifests.settings import Environment
from reconciler.model.manifest import ML_V1, Manifest
from reconciler.operations import staged_code
from reconciler.operations.load_desired import desired_jobs
from reconciler.packaging.sdist import MTIME, Sdist, build_sdist, check_sdist, tar_gz
from reconciler.packaging.source_tree import SourceFile, SourceTree, SourceTreeError
from reconciler.packaging.staged_uri import staged_uri

ROOT = Path(__file__).resolve().parents[2]


def tree(files: dict[str, str]) -> SourceTree:
    return SourceTree(tuple(SourceFile(path, False, text.encode("utf-8")) for path, text in files.items()))


def members(archive: Sdist) -> dict[str, str]:
    """Return the content of the archive, without the folder around it."""
    with tarfile.open(fileobj=io.BytesIO(archive.data)) as opened:
        found = {}
        for member in opened.getmembers():
            file = opened.extractfile(member)
            assert file is not None
            found[member.name.partition("/")[2]] = file.read().decode("utf-8")
        return found


def finding(files: dict[str, str], module: str = "task") -> tuple[str, str]:
    with pytest.raises(SourceTreeError) as caught:
        build_sdist(tree(files), module)
    (found,) = caught.value.findings
    with pytest.raises(SourceTreeError) as checked:
        check_sdist(tree(files), module)
    assert checked.value.findings == (found,)
    return found.message, found.hint


def test_an_archive_is_made_when_it_is_asked_for_of_what_the_name_was_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan needs no archive for up-to-date jobs; the bytes fit the name even if the files change later."""
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "task.py").write_text("1")
    made = []

    def counting(tree: SourceTree, module: str) -> Sdist:
        made.append(module)
        return build_sdist(tree, module)

    monkeypatch.setattr(staged_code, "build_sdist", counting)
    spec = {"trainingInput": {"region": "r", "pythonModule": "task"}}
    manifests = [Manifest(ML_V1, "Job", name, spec, package=tmp_path / "trainer") for name in ("one", "two")]
    desired = desired_jobs(tmp_path, manifests, Environment("e", "local", "p", "l", "b", "b"))
    (tmp_path / "trainer" / "task.py").write_text("2")
    assert made == []
    one, two = (job.job_name for job in desired.jobs)
    assert [*desired.archives] == [one, two]
    assert desired.archives[two]() is desired.archives[two]()
    assert made == ["task"]
    assert members(desired.archives[one]())["task.py"] == "1"


def test_jobs_of_one_package_share_an_archive(tmp_path: Path) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "task.py").write_text("1")
    spec = {"trainingInput": {"region": "r", "pythonModule": "task"}}
    manifests = [Manifest(ML_V1, "Job", name, spec, package=tmp_path / "trainer") for name in ("one", "two")]
    desired = desired_jobs(tmp_path, manifests, Environment("e", "local", "p", "l", "b", "b"))
    one, two = (archive() for archive in desired.archives.values())
    assert staged_uri("bucket", one) == staged_uri("bucket", two)
    assert one == two


# The installation by pip

EXISTS = """
import os, sys
here = os.path.dirname(os.path.abspath(__file__))
def is_there(path): return os.path.isfile(os.path.join(here, path))
"""
SETUP = "from setuptools import setup\nsetup(name='trainer', version='v1', packages=['trainer'])\n"
PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "the-trainers-own-name"
version = "3.1"
[tool.setuptools]
packages = ["trainer"]
"""
LAYOUTS = {
    "a folder with packages, data and namespace packages in it": (
        "trainer.task",
        {
            "trainer/__init__.py": "",
            "trainer/task.py": EXISTS
            + "from trainer.sub.deep import model\nimport common.text, helper\n"
            + "for path in ['data/x.csv', 'sub/[a]*?.txt', 'v1.0/m.py', 'données.csv', '.hidden']:\n"
            + "    assert is_there(path), path\n"
            + "assert is_there('sub/run-me.py')\n"
            + "print(model.X, common.text.Y, helper.Z)\n",
            "trainer/sub/deep/model.py": "X = 1",
            "trainer/sub/run-me.py": "",
            "trainer/sub/[a]*?.txt": "",
            "trainer/data/x.csv": "",
            "trainer/données.csv": "",
            "trainer/v1.0/m.py": "",
            "trainer/.hidden": "",
            "common/text.py": "Y = 2",
            "helper.py": "Z = 3",
            "README.md": "",
            "pyproject.toml": "[tool.black]\n",
            "setup.cfg": "[flake8]\n",
        },
        "1 2 3",
    ),
    "a folder that is the package": (
        "trainer.task",
        {
            "__init__.py": "",
            "task.py": EXISTS + "from trainer import model\nassert is_there('conf/x.yaml')\nprint(model.X)\n",
            "model.py": "X = 1",
            "conf/x.yaml": "",
        },
        "1",
    ),
    "a folder that is the package, without __init__.py": (
        "outer.trainer.task",
        {"task.py": "from outer.trainer.sub import model\nprint(model.X)", "sub/model.py": "X = 1"},
        "1",
    ),
    "a single module, and another too": (
        "task",
        {"task.py": "import other\nprint(other.X)", "other.py": "X = 1"},
        "1",
    ),
    "a package that can be run": ("trainer", {"trainer/__main__.py": "print(__name__)"}, "__main__"),
    "a folder that is such a package": ("trainer", {"__main__.py": "print(__package__)"}, "trainer"),
    "names that are no identifiers": ("my-pkg.run-me", {"my-pkg/run-me.py": "print('-')"}, "-"),
    "a setup.py of its own": (
        "trainer.task",
        {"setup.py": SETUP, "trainer/__init__.py": "", "trainer/task.py": "print('own')"},
        "own",
    ),
    "a pyproject.toml of its own": (
        "trainer.task",
        {"pyproject.toml": PYPROJECT, "trainer/task.py": "print('own')"},
        "own",
    ),
    "requirements": (
        "task",
        {
            "task.py": "import threadpoolctl\nprint('threadpools')",
            "requirements.txt": "\ufeff# needed\n\nthreadpoolctl >= 2 ; python_version > '3'  # pools\n",
        },
        "threadpools",
    ),
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path) -> Path:
    """Return the Python of a virtual environment with setuptools only."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip(python, "setuptools", "wheel", "--find-links", str(wheelhouse))
    return python


def pip(python: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pip_installs_it_and_the_module_runs(
    layout: str, environment: Path, wheelhouse: Path, tmp_path: Path
) -> None:
    module, files, said = LAYOUTS[layout]
    archive = build_sdist(tree(files), module)
    (tmp_path / archive.file_name).write_bytes(archive.data)
    site = tmp_path / "site"
    pip(
        environment,
        "--no-build-isolation",
        f"--find-links={wheelhouse}",
        f"--target={site}",
        str(tmp_path / archive.file_name),
    )
    surroundings = {**os.environ, "PYTHONPATH": str(site)}
    (tmp_path / "work").mkdir()
    done = subprocess.run(
        [environment, "-m", module], cwd=tmp_path / "work", env=surroundings, capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.stderr) == (said, "")


# The content


def test_a_folder_that_builds_itself_is_archived_as_it_is() -> None:
    files = {"setup.py": SETUP, "trainer/__init__.py": "", "docs/x.md": "#", "requirements.txt": "-r x"}
    assert members(build_sdist(tree(files), "whatever.module")) == files
    files = {"pyproject.toml": PYPROJECT, "README.md": ""}
    assert members(build_sdist(tree(files), "")) == files
    files = {"pyproject.toml": "[tool.x]\n", "setup.cfg": "[options.packages.find]\n"}
    assert members(build_sdist(tree(files), "")) == files


def test_only_what_is_installed_is_archived() -> None:
    files = {
        "trainer/task.py": "",
        "trainer/x.csv": "",
        "tool.py": "",
        "x.csv": "",
        "docs/x.md": "",
        "old.egg-info/PKG-INFO": "",
        "v1.0/x.py": "",
        "a.b.py": "",
        "setup.cfg": "[flake8]",
        "pyproject.toml": "[tool.ruff]",
    }
    held = members(build_sdist(tree(files), "trainer.task"))
    assert sorted(held) == ["setup.py", "tool.py", "trainer/task.py", "trainer/x.csv"]


def test_the_setup_script_is_plain() -> None:
    files = {
        "trainer/task.py": "",
        "trainer/sub/x.py": "",
        "trainer/données/[x].csv": "",
        "tool.py": "",
        "requirements.txt": "numpy>=2\npandas[parquet] ; python_version<'3.12' # soon\n",
    }
    script = members(build_sdist(tree(files), "trainer.task"))["setup.py"]
    assert (
        script
        == """\
from setuptools import setup

setup(
    name='job-code',
    version='0.0.0',
    packages=[
        'trainer',
        'trainer.sub',
    ],
    py_modules=[
        'tool',
    ],
    package_data={
        'trainer': [
            'donn\\xe9es/[[]x].csv',
        ],
    },
    install_requires=[
        'numpy>=2',
        "pandas[parquet] ; python_version<'3.12'",
    ],
    zip_safe=False,
)
"""
    )


def test_file_has_no_job_s_name() -> None:
    assert build_sdist(tree({"task.py": ""}), "task").file_name == "job_code-0.0.0.tar.gz"


def test_a_file_whose_distribution_is_not_known_claims_no_version() -> None:
    """Otherwise installers that compare names (uv) would refuse it if the folder declares another name."""
    assert build_sdist(tree({"setup.py": SETUP}), "trainer.task").file_name == "job_code.tar.gz"


# Code that can't be installed


@pytest.mark.parametrize(
    ("module", "file", "message", "hint"),
    [
        (
            "trainer.task",
            "trainer/model.py",
            '"trainer.task": there is no "trainer/task.py"',
            "name a module",
        ),
        ("trainer.task", "src/trainer/task.py", '"trainer.task"', 'there is a module "src.trainer.task"'),
        ("task", "trainer/task.py", '"task"', 'there is a module "trainer.task"'),
        ("trainer", "trainer/__init__.py", '"trainer": there is no "trainer.py"', "name a module"),
        ("", "trainer/__init__.py", '""', "name a module"),
    ],
)
def test_a_module_that_is_not_there(module: str, file: str, message: str, hint: str) -> None:
    told = finding({file: ""}, module)
    assert f"the package has no module {message}" in told[0]
    assert hint in told[1]


@pytest.mark.parametrize(
    "line",
    [
        "./wheels/x.whl",
        "numpy=2",
        "numpy>=2 --hash=sha256:1",
        "numpy \\",
        pytest.param("a; " + "(" * 5000, id="nested"),
    ],
)
def test_requirements_that_are_no_plain_ones(line: str) -> None:
    message, hint = finding({"task.py": "", "requirements.txt": f"# first\nnumpy\n{line}\n"})
    assert message.startswith('line 3 of the package\'s "requirements.txt" is not a plain requirement: "')
    assert "setup.py" in hint


@pytest.mark.parametrize(
    ("line", "shown", "remedy"),
    [
        ("--extra-index-url https://me:secret@example.test", "--extra-index-url", "PIP_EXTRA_INDEX_URL=…"),
        ("-i https://example.test", "-i", "`pip config set global.index-url …`"),
        ("--find-links=/wheels", "--find-links", "PIP_FIND_LINKS=…"),
        ("-r base.txt", "-r", "write the lines of that file here"),
        ("-e .", "-e", "remove it"),
        ("git+https://example.test/x", "git+https://example.test/x", '"NAME @ …"'),
    ],
)
def test_option_of_pip_among_requirements_has_a_place_elsewhere(line: str, shown: str, remedy: str) -> None:
    message, hint = finding({"task.py": "", "requirements.txt": f"numpy\n{line}\n"})
    assert message.endswith(f'is not a plain requirement: "{shown}"')
    assert remedy in hint
    assert "secret" not in message + hint


@pytest.mark.parametrize("content", ["[tool", "a = " + "[" * 5000, "a = 1\na = 2"])
def test_a_pyproject_that_is_no_toml(content: str) -> None:
    message, _ = finding({"task.py": "", "pyproject.toml": content})
    assert message.startswith('the package\'s "pyproject.toml" is not TOML: ')


def test_a_setup_cfg_alone_is_not_enough() -> None:
    message, hint = finding({"task.py": "", "setup.cfg": "# x\n[metadata]\nname = x\n"})
    assert "setup.py" in message
    assert "setup()" in hint


def test_requirements_in_another_encoding() -> None:
    requirements = SourceFile("requirements.txt", False, "numpy".encode("utf-16"))
    with pytest.raises(SourceTreeError, match="is not UTF-8"):
        build_sdist(SourceTree((SourceFile("task.py", False, b""), requirements)), "task")


# The bytes

FILES = st.builds(
    SourceFile,
    st.lists(st.sampled_from(["a", "é" * 30, "x" * 99, "日", "b c"]), min_size=1, max_size=5).map("/".join),
    st.booleans(),
    st.binary(max_size=1100),
)


@given(st.lists(FILES, max_size=5, unique_by=lambda file: file.path))
def test_tar_reads_what_was_written(files: list[SourceFile]) -> None:
    with tarfile.open(fileobj=io.BytesIO(tar_gz(files)), mode="r:gz") as archive:
        found = []
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            found.append(SourceFile(member.name, bool(member.mode & 0o100), content.read()))
            assert member.mode in (0o644, 0o755)
            assert (member.mtime, member.uid, member.gid, member.uname, member.gname) == (MTIME, 0, 0, "", "")
            assert tarfile.data_filter(member, "/tmp") is not None
    assert found == files


@pytest.mark.parametrize("length", [*range(80, 120), *range(980, 1000)])
@pytest.mark.parametrize("letter", ["x", "é"])
def test_names_of_every_length_are_kept(length: int, letter: str) -> None:
    """The length of a long name's record counts its own digits."""
    name = letter * (length // len(letter.encode())) + "x" * (length % len(letter.encode()))
    with tarfile.open(fileobj=io.BytesIO(tar_gz([SourceFile(name, False, b"x")]))) as archive:
        assert archive.getnames() == [name]


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 54_271, 54_272, 200_000])
def test_other_programs_read_it(size: int, tmp_path: Path) -> None:
    """Sizes around tar's blocks and gzip's."""
    content = os.urandom(size)
    (tmp_path / "x.tar.gz").write_bytes(tar_gz([SourceFile("folder/é", True, content)]))
    subprocess.run(["gzip", "--test", tmp_path / "x.tar.gz"], check=True)
    subprocess.run(
        ["tar", "-xzf", "x.tar.gz"], cwd=tmp_path, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    assert (tmp_path / "folder" / "é").read_bytes() == content


# No code of the package is run

CANARY = "open({path!r}, 'w').close()\nraise SystemExit('the canary sang')\n"
LISTENER = """
import json, pathlib, sys
from reconciler.packaging.sdist import build_sdist
from reconciler.packaging.source_tree import SourceFile, SourceTree, read_source_tree

root = pathlib.Path(sys.argv[1])
# Once before, so that nothing is left to be imported.
texts = {"task.py": b"", "requirements.txt": b"numpy", "pyproject.toml": b""}
build_sdist(SourceTree(tuple(SourceFile(path, False, text) for path, text in texts.items())), "task")
heard = []
sys.addaudithook(lambda event, arguments: heard.append([event, *map(repr, arguments)]))
build_sdist(read_source_tree(root / "package", root), "trainer.task")
told = list(heard)
json.dump(told, sys.stdout)
"""


@pytest.mark.slow
@pytest.mark.parametrize("builds_itself", [False, True])
def test_nothing_of_the_package_is_run(tmp_path: Path, builds_itself: bool) -> None:
    package = tmp_path / "package"
    canary = CANARY.format(path=str(tmp_path / "sang"))
    names = ["sitecustomize.py", "usercustomize.py", "conftest.py", "tomllib.py", "tarfile.py", "backend.py"]
    names += ["trainer/__init__.py", "trainer/task.py", "packaging/__init__.py", "json/__init__.py"]
    for name in [*names, *(["setup.py"] if builds_itself else [])]:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(canary)
    table = '[build-system]\nrequires=[]\nbuild-backend="backend"\nbackend-path=["."]\n'
    (package / "pyproject.toml").write_text(table if builds_itself else "[tool.x]\n")
    (package / "requirements.txt").write_text("numpy\n")
    (tmp_path / "listener.py").write_text(LISTENER)
    done = subprocess.run(
        [sys.executable, tmp_path / "listener.py", tmp_path],
        cwd=package,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "sang").exists()
    heard = json.loads(done.stdout)
    assert {event for event, *_ in heard} == {"open", "os.scandir"}
    opened = [arguments for event, *arguments in heard if event == "open"]
    assert len(opened) > len(names)
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT
    assert [arguments for arguments in opened if int(arguments[2]) & writing] == []
