"""Failed runs whose cause lies in the manifest or the environment, each remedied by what is printed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from tests.failures.stories import IMAGE, PYTHON, Place, Story, play
from tests.support.repository import Repository, environ

BUCKET = "acme-risk"
IN_POOLS = '"args" in spec.workerPoolSpecs'
STORAGE = "example.test/storage:1"
_ML = """\
apiVersion: ml.googleapis.com/v1
kind: Job
metadata: {{name: {name}}}
package: {{path: ../trainers/{name}}}
spec:
  trainingInput:
    region: us-central1
    scaleTier: BASIC
    runtimeVersion: "{image}"
    pythonVersion: "3.7"
    pythonModule: task
"""
_STAGED = """\
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: {name}}}
package:
  path: ../trainers/{name}
  module: task
spec:
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-1}}
      replicaCount: 1
      containerSpec: {{imageUri: {image}}}
"""


def _coded(code: str, *edits: tuple[str, str], image: str = IMAGE) -> Callable[[Place, str], None]:
    """Return what writes a job with this trainer and changes in its manifest."""

    def breaks(place: Place, job: str) -> None:
        place.job(job, code, image=image)
        for old, new in edits:
            place.edit(job, old, new)

    return breaks


def _edited(old: str, new: str) -> Callable[[Place, str], None]:
    return lambda place, job: place.edit(job, old, new.replace("BUCKET", BUCKET))


def _recoded(code: str) -> Callable[[Place, str], None]:
    return lambda place, job: place.code(job, code)


def _listed(line: str) -> Callable[[Place, str], None]:
    return lambda place, job: place.repository.write(f"trainers/{job}/requirements.txt", f"{line}\n")


def _failed(error: str, remedy: str) -> str:
    return f"JOB failed, user code: exit code 1: {error}; {remedy}"


def _bucket_file(place: Place, path: str) -> None:
    file = place.repository.home / "gcs" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("1,2\n")


AGAIN = "then run it again with `reconciler rerun {}`"
FOLDER = "spec:\n  baseOutputDirectory: {{outputUriPrefix: gs://BUCKET/{}}}\n"
WITH_FOLDER = (
    'write "baseOutputDirectory: {{outputUriPrefix: gs://BUCKET/{}}}" under spec, with a bucket of yours'
)
OPEN_DATA = "import sys\nprint(open('/gcs/acme-risk/data/train.csv').read())\n"

VARIABLES = [
    Story(
        "no model folder",
        _coded("import os\nprint(os.environ['AIP_MODEL_DIR'])\n"),
        _failed(
            "KeyError: 'AIP_MODEL_DIR'",
            f"{WITH_FOLDER.format('no-model-folder')}: AIP_MODEL_DIR is set with an output folder alone",
        ),
        "wrote baseOutputDirectory",
        _edited("spec:\n", FOLDER.format("no-model-folder")),
        "user-code",
    ),
    Story(
        "no checkpoint folder",
        _coded("import os\nprint(os.path.join(os.environ.get('AIP_CHECKPOINT_DIR'), 'epoch-1'))\n"),
        _failed(
            "TypeError: expected str, bytes or os.PathLike object, not NoneType",
            f"{WITH_FOLDER.format('no-checkpoint-folder')}: "
            "AIP_CHECKPOINT_DIR is set with an output folder alone",
        ),
        "wrote baseOutputDirectory",
        _edited("spec:\n", FOLDER.format("no-checkpoint-folder")),
        "user-code",
    ),
    Story(
        "no cluster",
        _coded("import json, os\nprint(json.loads(os.environ['TF_CONFIG'])['task'])\n"),
        _failed(
            "KeyError: 'TF_CONFIG'",
            "TF_CONFIG is set for several replicas alone: add a second pool to spec.workerPoolSpecs, "
            'or let the code do without (os.environ.get("TF_CONFIG"))',
        ),
        "added a second pool",
        lambda place, job: _second_pool(place, job),
        "user-code",
    ),
    Story(
        "variable of the user",
        _coded("import os\nprint(os.environ['DATA_VERSION'])\n"),
        _failed(
            "KeyError: 'DATA_VERSION'",
            'write "env: [{name: DATA_VERSION, value: …}]" beside the image in spec.workerPoolSpecs, '
            "or let the code do without it",
        ),
        "wrote env",
        _edited("args: []", "args: []\n        env: [{name: DATA_VERSION, value: '3'}]"),
        "user-code",
    ),
    Story(
        "no model folder on AI Platform",
        lambda place, job: (
            place.image("2.11"),
            (place.repository.home / "gcs" / BUCKET).mkdir(parents=True, exist_ok=True),
            place.job(job, "import os\nprint(os.environ['AIP_MODEL_DIR'])\n", image="2.11", manifest=_ML),
        ),
        _failed(
            "KeyError: 'AIP_MODEL_DIR'",
            "AI Platform sets no AIP_MODEL_DIR: read the argument --job-dir in its place, and write "
            '"jobDir: gs://BUCKET/no-model-folder-on-ai-platform" under spec.trainingInput, '
            "with a bucket of yours",
        ),
        "wrote jobDir, read --job-dir",
        lambda place, job: (
            place.edit(job, "pythonModule: task", f"pythonModule: task\n    jobDir: gs://{BUCKET}/{job}"),
            place.code(
                job,
                "import argparse\nparser = argparse.ArgumentParser()\n"
                "parser.add_argument('--job-dir', required=True)\nprint(parser.parse_args())\n",
            ),
        ),
        "user-code",
    ),
]


def _second_pool(place: Place, job: str) -> None:
    manifest = place.root / f"jobs/{job}.yaml"
    head, mark, pool = manifest.read_text().partition("    - machineSpec")
    manifest.write_text(f"{head}{mark}{pool}{mark}{pool}")


PARSER = """
import argparse
parser = argparse.ArgumentParser("task.py")
parser.add_argument({})
parser.parse_args()
"""
USAGE = "JOB failed, user code: exit code 2: task.py: error: "
ARGUMENTS = [
    Story(
        "argument missing",
        _coded(PARSER.format("'--data-dir', required=True")),
        f'{USAGE}the following arguments are required: --data-dir; add "--data-dir=…" to {IN_POOLS}',
        "added it to args",
        _edited("args: []", "args: ['--data-dir=data']"),
        "user-code",
    ),
    Story(
        "job-dir missing",
        _coded(PARSER.format("'--job-dir', required=True")),
        f"{USAGE}the following arguments are required: --job-dir; "
        f'add "--job-dir=gs://BUCKET/job-dir-missing" to {IN_POOLS}, with a bucket of yours: '
        "Vertex AI passes no --job-dir",
        "added it to args",
        _edited("args: []", "args: ['--job-dir=gs://BUCKET/job-dir-missing']"),
        "user-code",
    ),
    Story(
        "argument misspelt",
        _coded(PARSER.format("'--epochs'"), ("args: []", "args: ['--epoch-count=3']")),
        f"{USAGE}unrecognized arguments: --epoch-count=3; "
        f"correct or remove --epoch-count in {IN_POOLS}, or let the code accept it",
        "corrected args",
        _edited("--epoch-count", "--epochs"),
        "user-code",
    ),
    Story(
        "argument of a wrong type",
        _coded(PARSER.format("'--epochs', type=int"), ("args: []", "args: ['--epochs=ten']")),
        f"{USAGE}argument --epochs: invalid int value: 'ten'; correct the value of --epochs in {IN_POOLS}",
        "corrected args",
        _edited("--epochs=ten", "--epochs=10"),
        "user-code",
    ),
]


def _module_of_package(place: Place, job: str) -> None:
    place.job(job)
    place.edit(job, "pythonModule: task", "pythonModule: trainer.task")
    place.repository.write(f"trainers/{job}/trainer/model.py", "LAYERS = 3\n")
    place.repository.write(f"trainers/{job}/trainer/task.py", "import model\nprint(model.LAYERS)\n")


def _left_out(place: Place, job: str) -> None:
    place.job(job)
    place.edit(job, "pythonModule: task", "pythonModule: trainer.task")
    place.repository.write(f"trainers/{job}/setup.py", SETUP.format(packages="['trainer']"))
    place.repository.write(f"trainers/{job}/trainer/__init__.py", "")
    place.repository.write(f"trainers/{job}/trainer/layers/__init__.py", "")
    place.repository.write(f"trainers/{job}/trainer/task.py", "import trainer.layers\n")


SETUP = "from setuptools import setup\nsetup(name='trainer', version='0.1', packages={packages})\n"
MODULES = [
    Story(
        "module of the package",
        _module_of_package,
        _failed(
            "ModuleNotFoundError: No module named 'model'",
            'trainer.model is a module of the package itself: write "from trainer import model"',
        ),
        "wrote that import",
        lambda place, job: place.repository.write(
            f"trainers/{job}/trainer/task.py", "from trainer import model\nprint(model.LAYERS)\n"
        ),
        "user-code",
    ),
    Story(
        "module left out",
        _left_out,
        _failed(
            "ModuleNotFoundError: No module named 'trainer.layers'",
            "the folder has trainer.layers, which isn't installed: list it in the packages of setup.py "
            "(find_packages() needs an __init__.py in each folder), and let no .gitignore exclude it",
        ),
        "listed it in setup.py",
        lambda place, job: place.repository.write(
            f"trainers/{job}/setup.py", SETUP.format(packages="['trainer', 'trainer.layers']")
        ),
        "user-code",
    ),
    Story(
        "relative import alone",
        lambda place, job: (
            place.job(job, "from . import layers\n"),
            place.repository.write(f"trainers/{job}/layers.py", ""),
        ),
        _failed(
            "ImportError: attempted relative import with no known parent package",
            'name the module with its package, as in "pythonModule: trainer.task" '
            '("module" under "package"), or import without the package',
        ),
        "wrote pythonModule: trainer.task",
        _edited("pythonModule: task", "pythonModule: trainer.task"),
        "user-code",
    ),
    Story(
        "other name of a distribution",
        _coded("import yaml\n"),
        _failed(
            "ModuleNotFoundError: No module named 'yaml'",
            "list pyyaml in trainers/other-name-of-a-distribution/requirements.txt, or correct the import",
        ),
        "listed pyyaml there",
        _listed("pyyaml"),
        "user-code",
    ),
    Story(
        "hypertune",
        _coded("import hypertune\n"),
        _failed(
            "ModuleNotFoundError: No module named 'hypertune'",
            "list cloudml-hypertune in trainers/hypertune/requirements.txt, or correct the import",
        ),
        "listed cloudml-hypertune there",
        _listed("cloudml-hypertune"),
        "user-code",
    ),
    Story(
        "module of staged code",
        lambda place, job: (
            place.image("example.test/python:3"),
            place.job(job, "import joblib\n", image="example.test/python:3", manifest=_STAGED),
        ),
        _failed(
            "ModuleNotFoundError: No module named 'joblib'",
            'list joblib in requirements.in, lock it into "trainers/module-of-staged-code/requirements.lock" '
            "(uv pip compile --generate-hashes requirements.in -o "
            "trainers/module-of-staged-code/requirements.lock), "
            'and write "requirements: requirements.lock" under "package"; or use an image that has it',
        ),
        "locked joblib, named the lock file",
        lambda place, job: _lock(place, job),
        "user-code",
    ),
]


def _lock(place: Place, job: str) -> None:
    place.repository.write("requirements.in", "joblib\n")
    command = f"uv pip compile --generate-hashes requirements.in -o trainers/{job}/requirements.lock"
    wheels = ["--no-index", "--find-links", os.environ["PIP_FIND_LINKS"].split()[0]]
    command_line = [str(Path(sys.executable).with_name("uv")), *shlex.split(command)[1:], *wheels]
    subprocess.run(command_line, cwd=place.root, check=True, capture_output=True, env=environ())
    place.edit(job, "  module: task\n", "  module: task\n  requirements: requirements.lock\n")


CLIENT = "from google.cloud import storage\nbucket = storage.Client(project='p').bucket({!r})\nprint({})\n"
BUCKETS = [
    Story(
        "address opened as a file",
        _coded(
            "import os\nwith open(os.path.join(os.environ['AIP_MODEL_DIR'], 'model.txt'), 'w') as file:\n"
            "    file.write('x')\n",
            ("spec:\n", "spec:\n  baseOutputDirectory: {outputUriPrefix: gs://acme-risk/opened}\n"),
        ),
        _failed(
            "FileNotFoundError: [Errno 2] No such file or directory: 'gs://acme-risk/opened/model/model.txt'",
            "open() knows no gs:// address: use /gcs/acme-risk/opened/model/model.txt, or a client of Cloud "
            "Storage; make its folder first (os.makedirs(folder, exist_ok=True))",
        ),
        "wrote to /gcs, in a new folder",
        _recoded(
            "import os\nfolder = '/gcs/acme-risk/opened/model'\nos.makedirs(folder, exist_ok=True)\n"
            "with open(f'{folder}/model.txt', 'w') as file:\n    file.write('x')\n"
        ),
        "user-code",
    ),
    Story(
        "file of a bucket missing",
        _coded(OPEN_DATA, ("args: []", "args: ['gs://acme-risk/data']")),
        _failed(
            "FileNotFoundError: [Errno 2] No such file or directory: '/gcs/acme-risk/data/train.csv'",
            f"put the file at …/gcs/acme-risk/data/train.csv, {AGAIN.format('file-of-a-bucket-missing')}",
        ),
        "put the file there, ran the command",
        lambda place, job: _bucket_file(place, "acme-risk/data/train.csv"),
        "user-code",
    ),
    Story(
        "bucket that no field names",
        _coded(OPEN_DATA.replace("acme-risk", "acme-other")),
        _failed(
            "FileNotFoundError: [Errno 2] No such file or directory: '/gcs/acme-other/data/train.csv'",
            'put the file at …/gcs/acme-other/data/train.csv, and name gs://acme-other in the job\'s "args" '
            'or "env", as a job reaches the buckets that it names; or write "buckets: [acme-other]" in '
            f"reconciler.yaml; {AGAIN.format('bucket-that-no-field-names')}",
        ),
        "put the file there, named the bucket in args, ran the command",
        lambda place, job: (
            _bucket_file(place, "acme-other/data/train.csv"),
            place.edit(job, "args: []", "args: ['gs://acme-other/data']"),
        ),
        "user-code",
    ),
    Story(
        "bucket missing",
        _coded(
            CLIENT.format("acme-absent", "[blob.name for blob in bucket.list_blobs()]"),
            ("args: []", "args: ['gs://acme-absent']"),
            image=STORAGE,
        ),
        _failed(
            "google.api_core.exceptions.NotFound: 404 GET http://…/storage/v1/b/acme-absent/o…: "
            "The specified bucket does not exist.",
            "put the files of gs://acme-absent into the folder …/gcs/acme-absent, or write "
            '"publicBuckets: [acme-absent]" in reconciler.yaml if it is a public one of Google; '
            f"{AGAIN.format('bucket-missing')}",
        ).replace("exist.;", "exist;"),
        "put the files there, ran the command",
        lambda place, job: _bucket_file(place, "acme-absent/train.csv"),
        "user-code",
    ),
    Story(
        "object missing",
        lambda place, job: (
            _bucket_file(place, "acme-data/other.csv"),
            _coded(
                CLIENT.format("acme-data", "bucket.blob('train.csv').download_as_text()"),
                ("args: []", "args: ['gs://acme-data']"),
                image=STORAGE,
            )(place, job),
        ),
        _failed(
            "google.api_core.exceptions.NotFound: 404 GET http://…/b/acme-data/o/train.csv?alt=media: "
            "No such object: acme-data/train.csv",
            "put the file at …/gcs/acme-data/train.csv, or correct its name; "
            + AGAIN.format("object-missing"),
        ),
        "put the file there, ran the command",
        lambda place, job: _bucket_file(place, "acme-data/train.csv"),
        "user-code",
    ),
    Story(
        "bucket not allowed",
        lambda place, job: (
            _bucket_file(place, "acme-closed/train.csv"),
            _coded(
                CLIENT.format("acme-closed", "bucket.blob('train.csv').upload_from_string('x')"),
                image=STORAGE,
            )(place, job),
        ),
        _failed(
            "google.api_core.exceptions.Forbidden: 403 POST http://…/b/acme-closed/o?uploadType=multipart: "
            "No access to acme-closed/train.csv",
            'name gs://acme-closed in the job\'s "args" or "env", as a job reaches the buckets that it names;'
            ' or write "buckets: [acme-closed]" in reconciler.yaml',
        ),
        "named it in args",
        _edited("args: []", "args: ['gs://acme-closed']"),
        "user-code",
    ),
]

REPORT = """
import hypertune
hypertune.HyperTune().report_hyperparameter_tuning_metric({!r}, {})
"""


def _tuned(code: str, *edits: tuple[str, str]) -> Callable[[Place, str], None]:
    def breaks(place: Place, job: str) -> None:
        place.tuned(job, code)
        _listed("cloudml-hypertune")(place, job)
        for old, new in edits:
            place.edit(job, old, new)

    return breaks


TRIALS = [
    Story(
        "metric under another tag",
        _tuned(REPORT.format("val_accuracy", 0.5)),
        "JOB failed, user code: 1 of 1 trials failed. Trial 1: The trial has ended without reporting "
        'accuracy: it reported val_accuracy; write "metricId: val_accuracy" in the study, '
        "or let the code report accuracy",
        "wrote metricId: val_accuracy",
        _edited("metricId: accuracy", "metricId: val_accuracy"),
        "user-code",
    ),
    Story(
        "metric that is NaN",
        _tuned(REPORT.format("accuracy", "float('nan')")),
        "JOB failed, user code: 2 of 2 trials failed. Trial 2: The trial has ended without reporting "
        "accuracy: its value is no finite number; let the code report accuracy as a finite number, "
        "or narrow the ranges of the parameters",
        "reported a number",
        _recoded(REPORT.format("accuracy", 0.5)),
        "user-code",
    ),
    Story(
        "parameter that the code doesn't know",
        _tuned(PARSER.format("'--levels'") + REPORT.format("accuracy", 0.5)),
        f"{USAGE}unrecognized arguments: --depth …; the study passes --depth: let the code accept it, "
        'or correct "parameterId: depth"',
        "corrected parameterId",
        _edited("parameterId: depth", "parameterId: levels"),
        "user-code",
    ),
    Story(
        "trial out of time",
        _tuned(
            f"import time\ntime.sleep(2)\n{REPORT.format('accuracy', 0.5)}",
            ("  trialJobSpec:\n", "  trialJobSpec:\n    scheduling: {timeout: 1s}\n"),
        ),
        "JOB failed, resources: 2 of 2 trials failed. Trial 2: The trial was ended: it ran for longer than "
        'scheduling.timeout; raise "timeout" under spec.trialJobSpec.scheduling',
        "raised it",
        _edited("timeout: 1s", "timeout: 600s"),
        "resources",
    ),
]


def _wheels(folder: Path) -> None:
    """Write a wheel for an old Python, a source distribution that doesn't build, and good versions."""
    folder.mkdir()
    for name, version, tag in (
        ("oldwheel", "1.0", "cp36-cp36m-any"),
        ("oldwheel", "2.0", "py3-none-any"),
        ("brokenbuild", "2.0", "py3-none-any"),
    ):
        with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as wheel:
            info = f"{name}-{version}.dist-info"
            wheel.writestr(f"{name}.py", "")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
            wheel.writestr(f"{info}/RECORD", "")
    with tarfile.open(folder / "brokenbuild-1.0.tar.gz", "w:gz") as archive:
        content = b"raise RuntimeError('a compiler is missing')\n"
        member = tarfile.TarInfo("brokenbuild-1.0/setup.py")
        member.size = len(content)
        archive.addfile(member, BytesIO(content))


REQUIRE = (
    "correct the package's requirements (another version), or set the image's entry under \"images\" in "
    'reconciler.yaml (another "python"), then run `reconciler apply`'
)


def _required(name: str, line: str, better: str, printed: str) -> Story:
    def breaks(place: Place, job: str) -> None:
        place.job(job)
        _listed(line)(place, job)

    printed = (
        f"JOB failed, set-up: The package job_code-0.0.0.tar.gz could not be installed: {printed}; {REQUIRE}"
    )
    return Story(name, breaks, printed, "required another version", _listed(better), "set-up")


INSTALLATIONS = [
    _required(
        "no wheel for this Python",
        "oldwheel==1.0",
        "oldwheel==2.0",
        f"oldwheel==1.0 has no wheel for Python {PYTHON}, only for 3.6",
    ),
    _required(
        "build of a requirement",
        "brokenbuild==1.0",
        "brokenbuild==2.0",
        f"brokenbuild==1.0 has no wheel for Python {PYTHON}, and could not be built: "
        "RuntimeError: a compiler is missing",
    ),
    Story(
        "build of the package",
        lambda place, job: (
            place.job(job),
            place.repository.write(f"trainers/{job}/setup.py", "import sys\nsys.exit('no version')\n"),
        ),
        f"JOB failed, set-up: The package job_code.tar.gz could not be installed: no version; {REQUIRE}",
        "corrected setup.py",
        lambda place, job: place.repository.write(
            f"trainers/{job}/setup.py",
            "from setuptools import setup\nsetup(name='a', version='1', py_modules=['task'])\n",
        ),
        "set-up",
    ),
]


@pytest.mark.parametrize(
    "stories",
    [[*VARIABLES, *ARGUMENTS, *MODULES], BUCKETS, TRIALS],
    ids=["code", "buckets", "trials"],
)
def test_failed_run_succeeds_after_what_is_printed(repository: Repository, stories: list[Story]) -> None:
    place = Place(repository)
    place.image(STORAGE, "google-cloud-storage")
    play(place, *stories)


def test_failed_installation_succeeds_after_what_is_printed(repository: Repository, tmp_path: Path) -> None:
    _wheels(tmp_path / "wheels")
    place = Place(repository)
    place.environ = {"PIP_FIND_LINKS": f"{os.environ['PIP_FIND_LINKS']} {tmp_path / 'wheels'}"}
    play(place, *INSTALLATIONS)


def test_index_among_requirements_is_moved_to_pip_s_settings(place_of_index: tuple[Place, Path]) -> None:
    place, wheels = place_of_index
    story = Story(
        "index among requirements",
        lambda place, job: (
            place.job(job, "import oldwheel\n"),
            _listed(f"--find-links {wheels}\noldwheel")(place, job),
        ),
        'jobs/index-among-requirements.yaml:4:17: line 1 of the package\'s "requirements.txt" is not a plain '
        'requirement: "--find-links" (/package/path)\n    remove it, and set it for pip here: '
        "PIP_FIND_LINKS=… or `pip config set global.find-links …`; then run `reconciler serve --stop` once. "
        "For the cloud, take an image that has the packages, or write the line into the lock file of "
        '"package.module"',
        "removed the line, set PIP_FIND_LINKS, ran the command",
        lambda place, job: (
            _listed("oldwheel")(place, job),
            place.environ.update(PIP_FIND_LINKS=f"{os.environ['PIP_FIND_LINKS']} {wheels}"),
        ),
    )
    play(place, story, code=3)


@pytest.fixture
def place_of_index(repository: Repository, tmp_path: Path) -> tuple[Place, Path]:
    _wheels(tmp_path / "wheels")
    return Place(repository), tmp_path / "wheels"


def test_table_has_25_failed_runs() -> None:
    stories = [*VARIABLES, *ARGUMENTS, *MODULES, *BUCKETS, *TRIALS, *INSTALLATIONS]
    assert len({story.job for story in stories}) >= 25
    assert all(story.cause and story.printed.startswith("JOB failed, ") for story in stories)
