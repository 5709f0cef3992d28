"""Remedies of causes that lie in the manifest or the environment, with the field and the line to write.

They quote names that a trainer printed: of modules, variables, flags, buckets and objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from shlex import quote

from reconciler.model.cause import Cause
from reconciler.model.manifest import TRAINING_PIPELINE
from reconciler.model.reason import ReasonCode

_ML_KIND = "Job"
# Where the fields of a custom job are, in a manifest of each kind.
_JOB_SPECS = {
    "CustomJob": "spec",
    "HyperparameterTuningJob": "spec.trialJobSpec",
    TRAINING_PIPELINE: "spec.trainingTaskInputs",
    _ML_KIND: "spec.trainingInput",
}
_OF_DATASET = ("AIP_DATA_FORMAT", "AIP_TRAINING_DATA_URI", "AIP_VALIDATION_DATA_URI", "AIP_TEST_DATA_URI")
_OF_TRIALS = ("CLOUD_ML_TRIAL_ID", "CLOUD_ML_HP_METRIC_TAG")


def job_spec(kind: str) -> str:
    """Return the path of the custom job's fields in a manifest of a kind."""
    return _JOB_SPECS.get(kind, "spec")


def field_words(kind: str) -> Mapping[str, str]:
    """Return the names of a kind's fields, with their place, by their use."""
    spec = job_spec(kind)
    if kind == _ML_KIND:
        return {
            "machine": f'"masterType" under {spec} (with "scaleTier: CUSTOM")',
            "timeout": f'"maxRunningTime" under {spec}.scheduling',
            "wait": f'"maxWaitTime" under {spec}.scheduling',
            "replicas": f'"workerCount" under {spec}',
            "region": '"region"',
            "image": f'"masterConfig" under {spec}',
        }
    return {
        "machine": f'"machineType" in {spec}.workerPoolSpecs',
        "timeout": f'"timeout" under {spec}.scheduling',
        "wait": f'"maxWaitDuration" under {spec}.scheduling',
        "replicas": f'"replicaCount" in {spec}.workerPoolSpecs',
        "region": "location",
        "image": f'"imageUri" or "command" in {spec}.workerPoolSpecs',
    }


def _set_output_folder(cause: Cause, again: str) -> str:
    variable, spec = cause.values["variable"], job_spec(cause.kind)
    if cause.kind == _ML_KIND:
        return (
            f"AI Platform sets no {variable}: read the argument --job-dir in its place, and write "
            f'"jobDir: gs://BUCKET/{cause.name}" under {spec}, with a bucket of yours'
        )
    return (
        f'write "baseOutputDirectory: {{outputUriPrefix: gs://BUCKET/{cause.name}}}" under {spec}, with a '
        f"bucket of yours: {variable} is set with an output folder alone"
    )


def _add_replicas(cause: Cause, again: str) -> str:
    return (
        f"{cause.values['variable']} is set for several replicas alone: add a second pool to "
        f'{job_spec(cause.kind)}.workerPoolSpecs, or let the code do without (os.environ.get("TF_CONFIG"))'
    )


def _set_variable(cause: Cause, again: str) -> str:
    variable, spec = cause.values["variable"], job_spec(cause.kind)
    if variable in _OF_DATASET:
        only = '"inputDataConfig" of a TrainingPipeline'
        return f'{variable} is set with {only} alone: pass the address of the data in "args"'
    if variable in _OF_TRIALS:
        return f"{variable} is set in the trials of a tuning job alone: let the code do without it"
    if cause.kind == _ML_KIND:
        return f'AI Platform sets no variables of a manifest: pass the value in "args" under {spec}'
    return (
        f'write "env: [{{name: {variable}, value: …}}]" beside the image in {spec}.workerPoolSpecs, '
        "or let the code do without it"
    )


def _correct_import(cause: Cause, again: str) -> str:
    return f'{cause.values["full"]} is a module of the package itself: write "{cause.values["import"]}"'


def _include_module(cause: Cause, again: str) -> str:
    return (
        f"the folder has {cause.values['full']}, which isn't installed: list it in the packages of setup.py "
        "(find_packages() needs an __init__.py in each folder), and let no .gitignore exclude it"
    )


def _list_distribution(cause: Cause, again: str) -> str:
    values = cause.values
    name, place = values.get("distribution", ""), values.get("place", "")
    if not name:
        return f"correct the import: the package has no module {values.get('module', 'of that name')}"
    if place == "lock":
        lock = values["lock"]
        written = f'"{lock}"' if lock else f'"{values["folder"]}/requirements.lock"'
        into = quote(lock or f"{values['folder']}/requirements.lock")
        names = "" if lock else ', and write "requirements: requirements.lock" under "package"'
        return (
            f"list {name} in requirements.in, lock it into {written} (uv pip compile --generate-hashes "
            f"requirements.in -o {into}){names}; or use an image that has it"
        )
    if place == "elsewhere":
        return (
            f"use an image that has {name}, or list it in the setup.py of the package; or correct the import"
        )
    return f"list {name} in {place or 'the requirements.txt or setup.py of the code'}, or correct the import"


def _name_entry(cause: Cause, again: str) -> str:
    entry = cause.values["entry"]
    return (
        f'name the module with its package, as in "pythonModule: {entry}" ("module" under "package"), '
        "or import without the package"
    )


def _correct_entry(cause: Cause, again: str) -> str:
    return f'correct "pythonModule" under {job_spec(cause.kind)}: the package has no {cause.values["module"]}'


def _path_in(cause: Cause) -> str:
    return "/".join(filter(None, (cause.values["bucket"], cause.values["object"])))


_MAKE_FOLDER = "make its folder first (os.makedirs(folder, exist_ok=True))"


def _use_mount(cause: Cause, again: str) -> str:
    folder = f"; {_MAKE_FOLDER}" if cause.values["is_written"] else ""
    return f"open() knows no gs:// address: use /gcs/{_path_in(cause)}, or a client of Cloud Storage{folder}"


def _local(cause: Cause, path: str) -> str:
    first = "in an earlier step of the workflow, " if cause.on_runner else ""
    return f"{first}{path}"


def _provide_mounted(cause: Cause, again: str) -> str:
    bucket = cause.values["bucket"]
    if cause.values["is_written"] and cause.values["is_named"]:
        return _MAKE_FOLDER
    if not cause.buckets:
        return (
            f"upload the file to gs://{_path_in(cause)}, and grant the job's service account "
            f"roles/storage.objectViewer on gs://{bucket}; then {again}"
        )
    file = f"{_local(cause, 'put the file at')} {_place(cause)}"
    if cause.values["is_named"]:
        return f"{file}, then {again}"
    return f"{file}, and {_name_bucket(cause)}; then {again}"


def _place(cause: Cause) -> str:
    return quote(f"{cause.buckets}/{_path_in(cause)}")


def _name_bucket(cause: Cause) -> str:
    bucket = cause.values["bucket"]
    return (
        f'name gs://{bucket} in the job\'s "args" or "env", as a job reaches the buckets that it names; '
        f'or write "buckets: [{bucket}]" in reconciler.yaml'
    )


def _provide_bucket(cause: Cause, again: str) -> str:
    bucket = cause.values["bucket"]
    if not cause.buckets:
        return f"create gs://{bucket}, or correct its name; then {again}"
    folder = quote(f"{cause.buckets}/{bucket}")
    return (
        f"{_local(cause, 'put the files of')} gs://{bucket} into the folder {folder}, or write "
        f'"publicBuckets: [{bucket}]" in reconciler.yaml if it is a public one of Google; then {again}'
    )


def _provide_object(cause: Cause, again: str) -> str:
    if not cause.buckets:
        return f"upload the file to gs://{_path_in(cause)}, or correct its name; then {again}"
    return f"{_local(cause, 'put the file at')} {_place(cause)}, or correct its name; then {again}"


def _grant(cause: Cause, again: str) -> str:
    bucket, account, role = (cause.values[name] for name in ("bucket", "account", "role"))
    if cause.buckets:
        return _name_bucket(cause)
    member = account or "ACCOUNT"
    who = "" if account else ' (the "serviceAccount" of the job)'
    return (
        f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member=serviceAccount:{member} "
        f"--role={role}{who}, or name another serviceAccount under {job_spec(cause.kind)}; then {again}"
    )


def _pass_argument(cause: Cause, again: str) -> str:
    names, spec = cause.values["names"], job_spec(cause.kind)
    field = _args_field(cause.kind)
    if names == ("--job-dir",):
        if cause.kind == _ML_KIND:
            return f'write "jobDir: gs://BUCKET/{cause.name}" under {spec}, with a bucket of yours'
        return (
            f'add "--job-dir=gs://BUCKET/{cause.name}" to {field}, with a bucket of yours: Vertex AI '
            "passes no --job-dir"
        )
    words = ", ".join(f'"{name}=…"' if name.startswith("-") else f"the value of {name}" for name in names)
    return f"add {words} to {field}"


def _args_field(kind: str) -> str:
    spec = job_spec(kind)
    return f'"args" under {spec}' if kind == _ML_KIND else f'"args" in {spec}.workerPoolSpecs'


def _accept_argument(cause: Cause, again: str) -> str:
    flag, source, item = cause.values["name"], cause.values["source"], cause.values.get("item")
    if item:
        return f'write "{item.replace(" ", "=", 1)}" in place of "{item}" in {_args_field(cause.kind)}'
    if source in ("parameterId", "parameterName"):
        return f'the study passes --{flag}: let the code accept it, or correct "{source}: {flag}"'
    if source == "jobDir":
        return '"jobDir" passes --job-dir: let the code accept it, or remove "jobDir"'
    return f"correct or remove --{flag} in {_args_field(cause.kind)}, or let the code accept it"


def _correct_argument(cause: Cause, again: str) -> str:
    flag, source = cause.values["name"], cause.values["source"]
    if source in ("parameterId", "parameterName"):
        return (
            f'correct the values of "{source}: {flag}" in the study, or the type that the code gives --{flag}'
        )
    return f"correct the value of --{flag} in {_args_field(cause.kind)}"


def _add_accelerator(cause: Cause, again: str) -> str:
    if cause.kind == _ML_KIND:
        where = f'write "acceleratorConfig" under {job_spec(cause.kind)}.masterConfig'
    else:
        pools = f"{job_spec(cause.kind)}.workerPoolSpecs"
        where = f'write "acceleratorType" and "acceleratorCount" in the machineSpec of {pools}'
    here = ", if this machine has one" if cause.buckets else ""
    return f"{where}{here}, or let the code run without a GPU"


def _larger_accelerator(cause: Cause, again: str) -> str:
    return 'choose an "acceleratorType" with more memory, or let the code take smaller batches'


def _report_metric(cause: Cause, again: str) -> str:
    values = cause.values
    metric, reported = values.get("metric", ""), values.get("reported", "")
    field = "hyperparameterMetricTag" if cause.kind == _ML_KIND else "metricId"
    if reported:
        return f'write "{field}: {reported}" in the study, or let the code report {metric}'
    if values.get("notFinite"):
        return f"let the code report {metric} as a finite number, or narrow the ranges of the parameters"
    tag = metric or "METRIC"
    return (
        "let the code report it: hypertune.HyperTune().report_hyperparameter_tuning_metric("
        f'hyperparameter_metric_tag="{tag}", metric_value=…), of the distribution cloudml-hypertune'
    )


IN_MANIFEST: Mapping[ReasonCode, Callable[[Cause, str], str]] = {
    ReasonCode.OUTPUT_FOLDER_UNSET: _set_output_folder,
    ReasonCode.CLUSTER_UNSET: _add_replicas,
    ReasonCode.VARIABLE_UNSET: _set_variable,
    ReasonCode.MODULE_OF_PACKAGE: _correct_import,
    ReasonCode.MODULE_LEFT_OUT: _include_module,
    ReasonCode.MODULE_MISSING: _list_distribution,
    ReasonCode.ENTRY_MODULE_ALONE: _name_entry,
    ReasonCode.ENTRY_MODULE_MISSING: _correct_entry,
    ReasonCode.ADDRESS_OPENED: _use_mount,
    ReasonCode.BUCKET_FILE_MISSING: _provide_mounted,
    ReasonCode.BUCKET_MISSING: _provide_bucket,
    ReasonCode.OBJECT_MISSING: _provide_object,
    ReasonCode.BUCKET_DENIED: _grant,
    ReasonCode.ARGUMENT_MISSING: _pass_argument,
    ReasonCode.ARGUMENT_UNKNOWN: _accept_argument,
    ReasonCode.ARGUMENT_INVALID: _correct_argument,
    ReasonCode.ACCELERATOR_MISSING: _add_accelerator,
    ReasonCode.ACCELERATOR_MEMORY: _larger_accelerator,
    ReasonCode.NO_METRIC: _report_metric,
}
"""The remedies of codes whose values say what to write."""
