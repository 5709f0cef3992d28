"""What a trainer printed last, and what of the manifest or the environment it is about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import from_grpc_status
from msgspec.structs import replace

from reconciler.model.cause import cause_of
from reconciler.model.job import ActualJob, ErrorInfo, State
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1, TRAINING_PIPELINE, Manifest
from reconciler.model.trainer_error import diagnose, printed_error
from reconciler.output.wording.cause import cause_message, cause_remedy, cause_short
from tests.support.planning import run_of, wanted

HEAD = "The replica workerpool0-0 exited with a non-zero status of 1. Termination reason: Error."
MARK = "Traceback (most recent call last):"
EMBEDDED = ErrorInfo("NON_ZERO_EXIT", {"class": "user-code", "exitCode": "1"})
FAILED = replace(run_of(wanted("census"), State.FAILED), error_code=3)
LOCAL = replace(FAILED, info=EMBEDDED, buckets="/home/ann/gcs")
FORBIDDEN = """{
  "error": {
    "code": 403,
    "message": "trainer@a.iam.gserviceaccount.com does not have storage.objects.create access to the object.",
    "errors": [
      {
        "reason": "forbidden"
      }
    ]
  }
}
"""


def traceback(error: str, statement: str = "main()", file: str = "/venv/trainer/task.py") -> str:
    return f'{HEAD}\n{MARK}\n  File "{file}", line 3, in <module>\n    {statement}\n{error}'


def failed(error: str, job: ActualJob = LOCAL, manifest: Manifest | None = None) -> tuple[str, str]:
    """Return the message and the remedy of a run that failed so."""
    cause = cause_of(replace(job, error=error), "census", manifest)
    assert cause is not None
    return cause_message(cause), cause_remedy(cause)


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        # google-cloud-storage, for an upload: the answer, and then the status that its library expected.
        (
            "google.api_core.exceptions.Forbidden: 403 POST https://storage.googleapis.com/upload/storage/v1/b/"
            f"acme-risk/o?uploadType=multipart: {FORBIDDEN}: ('Request failed with status code', 403, "
            "'Expected one of', <HTTPStatus.OK: 200>)",
            "uploadType=multipart: trainer@a.iam.gserviceaccount.com does not have storage.objects.create "
            "access to the object.",
        ),
        # TensorFlow
        (
            "tensorflow.python.framework.errors_impl.PermissionDeniedError: Error executing an HTTP request: "
            f"HTTP response code 403 with body '{FORBIDDEN}'\n\t when initiating an upload to gs://acme-risk/m",
            "with body trainer@a.iam.gserviceaccount.com does not have storage.objects.create access to "
            "the object.",
        ),
        # gcsfs
        (
            "OSError: Forbidden: https://storage.googleapis.com/storage/v1/b/acme-risk/o/\n"
            "trainer@a.iam.gserviceaccount.com does not have storage.objects.list access to the bucket.",
            "/o/ trainer@a.iam.gserviceaccount.com does not have storage.objects.list access to the bucket.",
        ),
        (
            "grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:\n"
            '\tstatus = StatusCode.PERMISSION_DENIED\n\tdetails = "The caller does not have permission"\n>',
            "exit code 1: grpc._channel._InactiveRpcError: The caller does not have permission",
        ),
        (
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n=====\n"
            "task.py FAILED\n-----",
            "errors.ChildFailedError: task.py FAILED",
        ),
        (
            "google.api_core.exceptions.PermissionDenied: 403 Permission 'aiplatform.models.get' denied "
            'on resource (or it may not exist). [reason: "IAM_PERMISSION_DENIED"\n'
            'domain: "aiplatform.googleapis.com"\nmetadata {\n  key: "permission"\n}\n]',
            "denied on resource (or it may not exist).",
        ),
    ],
    ids=["storage", "tensorflow", "gcsfs", "grpc", "torch", "gapic"],
)
@pytest.mark.parametrize("is_cut", [False, True])
def test_error_of_a_google_client_keeps_its_message(raised: str, message: str, *, is_cut: bool) -> None:
    text = traceback(raised)
    if is_cut:  # the service keeps the end of a long traceback
        text = text.replace(f"{MARK}\n", "")
    assert failed(text)[0].endswith(message)


def test_message_of_real_grpc_error_is_kept() -> None:
    error = from_grpc_status(7, "Permission denied on resource project p.")
    said, _ = failed(traceback(f"google.api_core.exceptions.PermissionDenied: {error}"))
    assert said.endswith("403 Permission denied on resource project p.")


def test_long_message_is_cut_at_a_sentence_or_a_word() -> None:
    said, _ = failed(traceback(f"ValueError: {'a few words ' * 13}end. {'more words ' * 30}"))
    assert said.endswith("words end. …")
    said, _ = failed(traceback(f"ValueError: {'a few words ' * 40}"))
    assert 280 < len(said) <= 300
    assert said.endswith(("words…", "few…", "a…"))


@pytest.mark.parametrize(
    ("error", "statement", "code", "named"),
    [
        ("KeyError: 'AIP_MODEL_DIR'", "x", "output-folder-unset", "AIP_MODEL_DIR"),
        ("KeyError: 'AIP_TENSORBOARD_LOG_DIR'", "x", "output-folder-unset", "AIP_TENSORBOARD_LOG_DIR"),
        (
            "TypeError: expected str, bytes or os.PathLike object, not NoneType",
            'path = os.path.join(os.getenv("AIP_MODEL_DIR"), "m")',
            "output-folder-unset",
            "AIP_MODEL_DIR",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: ''",
            'os.makedirs(os.environ.get("AIP_CHECKPOINT_DIR", ""))',
            "output-folder-unset",
            "AIP_CHECKPOINT_DIR",
        ),
        ("KeyError: 'TF_CONFIG'", "x", "cluster-unset", "TF_CONFIG"),
        (
            "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
            'json.loads(os.environ.get("TF_CONFIG", ""))',
            "cluster-unset",
            "TF_CONFIG",
        ),
        ("KeyError: 'cluster'", 'tf_config["cluster"]', "cluster-unset", "TF_CONFIG"),
        (
            "OSError: Project was not passed and could not be determined from the environment.",
            "x",
            "variable-unset",
            "GOOGLE_CLOUD_PROJECT",
        ),
    ],
)
def test_unset_variable_is_named(error: str, statement: str, code: str, named: str) -> None:
    found = diagnose(printed_error(traceback(error, statement)), AIPLATFORM_V1, None)
    assert found == (code, {"variable": named})


@pytest.mark.parametrize("error", ["KeyError: 'accuracy'", "KeyError: 'cluster'", "TypeError: NoneType", "x"])
def test_error_of_the_code_has_no_field(error: str) -> None:
    assert diagnose(printed_error(traceback(error, "row[name]")), AIPLATFORM_V1, None) is None
    assert failed(traceback(error))[1] == "see `reconciler logs census` and correct the code"


def test_key_of_the_environment_is_told_from_that_of_another_mapping() -> None:
    place = "  File \"<frozen os>\", line 679, in __getitem__\nKeyError: 'DATA_DIR'"
    text = traceback(place, 'os.environ["DATA_DIR"]')
    assert 'write "env: [{name: DATA_DIR, value: …}]"' in failed(text)[1]
    assert failed(traceback("KeyError: 'DATA_DIR'"))[1].endswith("correct the code")


@pytest.mark.parametrize(
    ("kind", "api_version", "place"),
    [
        ("CustomJob", AIPLATFORM_V1, "under spec,"),
        ("HyperparameterTuningJob", AIPLATFORM_V1, "under spec.trialJobSpec,"),
        (TRAINING_PIPELINE, AIPLATFORM_V1, "under spec.trainingTaskInputs,"),
        ("Job", ML_V1, '"jobDir: gs://BUCKET/census" under spec.trainingInput,'),
    ],
)
def test_remedy_names_the_field_as_the_kind_has_it(kind: str, api_version: str, place: str) -> None:
    job = replace(LOCAL, kind=kind, api_version=api_version)
    assert place in failed(traceback("KeyError: 'AIP_MODEL_DIR'"), job)[1]


def package(folder: Path, *files: str, written: str = "../code", **fields: Any) -> Manifest:
    """Return a manifest of a package with these files, which jobs/census.yaml names."""
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    known = {"path": "jobs/census.yaml", "written": written, "python_modules": ("trainer.task",), **fields}
    return Manifest(AIPLATFORM_V1, "CustomJob", "census", {}, package=folder, **known)


@pytest.mark.parametrize(
    ("statement", "module", "written"),
    [
        ("import model", "model", "from trainer import model"),
        ("import model as m", "model", "from trainer import model as m"),
        ("from model import build, train", "model", "from trainer.model import build, train"),
        ("from layers.dense import Dense", "layers", "from trainer.layers.dense import Dense"),
        ("import layers.dense", "layers", "from trainer import layers"),
        ("__import__(name)", "model", "from trainer import model"),
    ],
)
@pytest.mark.parametrize("is_around", [False, True])
def test_module_of_the_package_has_the_import_to_write(
    statement: str, module: str, written: str, tmp_path: Path, *, is_around: bool
) -> None:
    root = "" if is_around else "trainer/"
    files = (f"{root}{name}" for name in ("task.py", "model.py", "layers/__init__.py", "layers/dense.py"))
    manifest = package(tmp_path, *files)
    text = traceback(f"ModuleNotFoundError: No module named '{module}'", statement)
    remedy = failed(text, manifest=manifest)[1]
    assert remedy.endswith(f'is a module of the package itself: write "{written}"')


def test_module_beside_the_importing_file_comes_first(tmp_path: Path) -> None:
    manifest = package(
        tmp_path,
        "trainer/task.py",
        "trainer/io.py",
        "trainer/data/read.py",
        "trainer/data/io_.py",
        "a/io_.py",
    )
    text = traceback(
        "ModuleNotFoundError: No module named 'io_'", "import io_", "/site-packages/trainer/data/read.py"
    )
    assert 'write "from trainer.data import io_"' in failed(text, manifest=manifest)[1]


@pytest.mark.parametrize(
    ("module", "distribution"),
    [
        ("sklearn.svm", "scikit-learn"),
        ("cv2", "opencv-python-headless"),
        ("PIL", "pillow"),
        ("yaml", "pyyaml"),
        ("hypertune", "cloudml-hypertune"),
        ("google.cloud.bigquery", "google-cloud-bigquery"),
        ("google.protobuf", "protobuf"),
        ("joblib", "joblib"),
    ],
)
def test_missing_module_has_its_distribution_and_the_file_that_lists_it(
    module: str, distribution: str, tmp_path: Path
) -> None:
    text = traceback(f"ModuleNotFoundError: No module named '{module}'", f"import {module}")
    manifest = package(tmp_path, "trainer/task.py")
    assert failed(text, manifest=manifest)[1].startswith(f"list {distribution} in code/requirements.txt, or")
    (tmp_path / "setup.py").write_text("")
    assert failed(text, manifest=manifest)[1].startswith(f"list {distribution} in code/setup.py, or")
    assert failed(text)[1].startswith(f"list {distribution} in the requirements.txt or setup.py of the code")


def test_google_package_is_named_by_the_statement(tmp_path: Path) -> None:
    text = traceback("ModuleNotFoundError: No module named 'google'", "from google.cloud import bigquery")
    assert "list google-cloud-bigquery in" in failed(text)[1]
    text = traceback("ImportError: cannot import name 'storage' from 'google.cloud' (unknown location)")
    assert "list google-cloud-storage in" in failed(text)[1]


def test_missing_module_of_staged_code_is_locked(tmp_path: Path) -> None:
    text = traceback("ModuleNotFoundError: No module named 'sklearn'")
    manifest = package(tmp_path, "trainer/task.py", module="trainer.task", requirements="deps/cpu.lock")
    remedy = failed(text, manifest=manifest)[1]
    assert 'list scikit-learn in requirements.in, lock it into "code/deps/cpu.lock"' in remedy
    assert "requirements.txt" not in remedy


@pytest.mark.parametrize("module", ["model", "utils", "trainer", "config"])
def test_common_name_is_never_looked_for_on_pypi(module: str, tmp_path: Path) -> None:
    text = traceback(f"ModuleNotFoundError: No module named '{module}'")
    for manifest in (None, package(tmp_path, "main.py", python_modules=("main",))):
        remedy = failed(text, manifest=manifest)[1]
        assert remedy == f"correct the import: the package has no module {module}"


NOT_FOUND = (
    "google.api_core.exceptions.NotFound: 404 GET https://storage.googleapis.com/storage/v1/b/acme-risk"
)


@pytest.mark.parametrize(
    ("error", "local", "cloud"),
    [
        (
            f"{NOT_FOUND}?prettyPrint=false: The specified bucket does not exist.",
            "put the files of gs://acme-risk into the folder /home/ann/gcs/acme-risk",
            "create gs://acme-risk, or correct its name; then run it again with `reconciler rerun census`",
        ),
        (
            f"{NOT_FOUND}/o/data%2Ftrain.csv?alt=json: No such object: acme-risk/data/train.csv",
            "put the file at /home/ann/gcs/acme-risk/data/train.csv, or correct its name",
            "upload the file to gs://acme-risk/data/train.csv, or correct its name",
        ),
        (
            "google.api_core.exceptions.Forbidden: 403 GET https://storage.googleapis.com/storage/v1/b/"
            "acme-risk/o/a.csv: 1-compute@developer.gserviceaccount.com does not have storage.objects.get "
            "access to the Google Cloud Storage object.",
            'name gs://acme-risk in the job\'s "args" or "env"',
            "gcloud storage buckets add-iam-policy-binding gs://acme-risk --member=serviceAccount:"
            "1-compute@developer.gserviceaccount.com --role=roles/storage.objectViewer",
        ),
        (
            "googleapiclient.errors.HttpError: <HttpError 403 when requesting https://storage.googleapis.com/"
            'storage/v1/b/acme-risk/o?alt=json returned "a@b.iam.gserviceaccount.com does not have '
            'storage.objects.create access".',
            "name gs://acme-risk",
            "--member=serviceAccount:a@b.iam.gserviceaccount.com --role=roles/storage.objectUser",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/gcs/acme-risk/train.csv'",
            "put the file at /home/ann/gcs/acme-risk/train.csv",
            "upload the file to gs://acme-risk/train.csv, and grant the job's service account "
            "roles/storage.objectViewer on gs://acme-risk",
        ),
    ],
)
def test_answer_of_cloud_storage_names_bucket_and_next_step(error: str, local: str, cloud: str) -> None:
    assert local in failed(traceback(error))[1]
    assert cloud in failed(traceback(error), FAILED)[1]


def test_google_s_own_words_about_a_bucket_name_account_and_role() -> None:
    error = (
        "Service account `1-compute@developer.gserviceaccount.com` does not have `[storage.objects.get, "
        'storage.objects.create]` IAM permission(s) to the bucket "acme-demo1". Please grant it.'
    )
    said, remedy = failed(error, replace(FAILED, error_code=7))
    assert said.startswith("Service account")
    assert remedy.startswith(
        "gcloud storage buckets add-iam-policy-binding gs://acme-demo1 "
        "--member=serviceAccount:1-compute@developer.gserviceaccount.com --role=roles/storage.objectUser"
    )


@pytest.mark.parametrize(
    "error",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: 'gs://acme-risk/model/m.pkl'",
        "FileNotFoundError: [Errno 2] No such file or directory: 'gs:/acme-risk/model/m.pkl'",
        "RuntimeError: Parent directory gs://acme-risk/model/m.pkl does not exist.",
        "FileNotFoundError: [Errno 2] Unable to synchronously create file (unable to open file: "
        "name = 'gs://acme-risk/model/m.pkl', errno = 2)",
    ],
)
def test_address_that_is_opened_as_a_file_has_its_path(error: str) -> None:
    assert "use /gcs/acme-risk/model/m.pkl, or a client" in failed(traceback(error))[1]
    assert "make its folder first" in failed(traceback(error, "torch.save(model, path)"))[1]


def test_argument_of_the_manifest_is_told_from_one_of_the_code() -> None:
    unknown = f"{HEAD}\ntask.py: error: unrecognized arguments: --rate 0.1"
    spec = {"studySpec": {"parameters": [{"parameterId": "rate"}]}}
    manifest = Manifest(AIPLATFORM_V1, "HyperparameterTuningJob", "census", spec)
    assert 'correct "parameterId: rate"' in failed(unknown, manifest=manifest)[1]
    invalid = f"{HEAD}\ntask.py: error: argument --rate: invalid int value: '0.1'"
    assert failed(invalid, manifest=manifest)[1].startswith('correct the values of "parameterId: rate"')
    manifest = Manifest(AIPLATFORM_V1, "CustomJob", "census", {"args": ["--rate=3"]})
    assert 'correct or remove --rate in "args"' in failed(unknown, manifest=manifest)[1]
    assert failed(unknown)[1].endswith("correct the code")


@pytest.mark.parametrize(
    ("printed", "remedy"),
    [
        (
            "the following arguments are required: -d/--data-dir, out",
            'add "--data-dir=…", the value of out to',
        ),
        ("the following arguments are required: {a,b}", "add the value of a, the value of b to"),
    ],
)
def test_required_arguments_are_named_as_they_are_written(printed: str, remedy: str) -> None:
    assert failed(f"{HEAD}\ntask.py: error: {printed}")[1].startswith(remedy)


def test_item_with_a_blank_is_corrected() -> None:
    manifest = Manifest(AIPLATFORM_V1, "CustomJob", "census", {"args": ["--epochs 5"]})
    _, remedy = failed(f"{HEAD}\ntask.py: error: unrecognized arguments: --epochs 5", manifest=manifest)
    assert remedy.startswith('write "--epochs=5" in place of "--epochs 5" in "args"')


@pytest.mark.parametrize(
    "error",
    [
        "ImportError: Missing optional dependency 'gcsfs'.  Use pip or conda to install gcsfs.",
        "ImportError: `Import gcsfs` failed.  Use pip or conda to install the gcsfs package.",
        "ImportError: Please install gcsfs to access Google Storage",
    ],
)
def test_optional_dependency_is_listed(error: str) -> None:
    assert failed(traceback(error))[1].startswith("list gcsfs in the requirements.txt")


def test_package_that_imports_itself_by_name_is_run_by_that_name(tmp_path: Path) -> None:
    manifest = package(tmp_path / "trainer", "task.py", "model.py", python_modules=("task",))
    for error in (
        "ModuleNotFoundError: No module named 'trainer'",
        "ImportError: attempted relative import with no known parent package",
    ):
        text = traceback(error, "from trainer.model import build")
        assert '"pythonModule: trainer.task"' in failed(text, manifest=manifest)[1]


def test_folder_with_the_name_of_a_distribution_may_import_that(tmp_path: Path) -> None:
    manifest = package(tmp_path / "xgboost", "task.py", "model.py", python_modules=("task",))
    text = traceback("ModuleNotFoundError: No module named 'xgboost'", "from xgboost import XGBClassifier")
    assert failed(text, manifest=manifest)[1].startswith("list xgboost in code/requirements.txt")


def test_accelerators_are_fields() -> None:
    text = traceback("RuntimeError: No CUDA GPUs are available")
    assert 'write "acceleratorType" and "acceleratorCount"' in failed(text)[1]
    text = traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert 'choose an "acceleratorType" with more memory' in failed(text)[1]


def test_commit_status_quotes_nothing_that_the_trainer_printed() -> None:
    for error in ("KeyError: 'AIP_MODEL_DIR'", "ModuleNotFoundError: No module named 'secret_module'"):
        cause = cause_of(replace(LOCAL, error=traceback(error)), "census")
        assert cause is not None
        assert cause_short(cause) == "user code: exit code 1; see `reconciler logs census`"


HOSTILE = "\x1b[31m::error::\u202e{name}{again}`rm`"


@pytest.mark.parametrize(
    "error",
    [
        f"KeyError: '{HOSTILE}'",
        f"ModuleNotFoundError: No module named '{HOSTILE}'",
        f"ModuleNotFoundError: No module named 'a{HOSTILE}'",
        f"FileNotFoundError: [Errno 2] No such file or directory: '/gcs/acme/{HOSTILE}'",
        f"FileNotFoundError: [Errno 2] No such file or directory: 'gs://acme/{HOSTILE}'",
        f"{NOT_FOUND}/o/{HOSTILE}: No such object: acme-risk/{HOSTILE}",
        f"task.py: error: the following arguments are required: --{HOSTILE}, --a{HOSTILE}",
    ],
)
def test_hostile_words_of_a_trainer_are_inert(error: str) -> None:
    said, remedy = failed(traceback(error))
    for text in (said, remedy):
        assert text.isprintable()
        assert not text.startswith("::")
        assert "\x1b" not in text
