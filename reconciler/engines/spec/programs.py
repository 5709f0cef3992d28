"""The arguments and variables of the Python modules that a manifest's job runs, and the variables they lack.

Sources of the variables: `CustomJobSpec.baseOutputDirectory` and `TrainingPipeline.inputDataConfig` of the
discovery document; the pages "Distributed training" (Vertex AI) and "Using containers for distributed
training" (AI Platform Training); "Overview of hyperparameter tuning" for those of trials.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from reconciler.base.diagnostics import Keys
from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.manifests.pipelines import job_in
from reconciler.model.fields import part_of, parts_of, text_of
from reconciler.model.manifest import ML_V1, JsonObject, Manifest
from reconciler.packaging.code_facts import DATA, FOLDERS, OF_TRIALS

JOB_DIR = "job-dir"
"""The argument in which AI Platform passes a `jobDir`."""
_OUTPUT_FOLDER = "baseOutputDirectory"  # of an environment's defaults too


class Absence(Struct, frozen=True):
    """Reason why a variable isn't set, as a relative clause, and the remedy."""

    why: str
    remedy: str


_NO_TRIALS = Absence(
    "which only the trials of a tuning job have",
    'write os.environ.get("CLOUD_ML_TRIAL_ID", "") if the code also runs without trials',
)
_NO_DATA = Absence(
    'which only a TrainingPipeline with "inputDataConfig" sets',
    'write a TrainingPipeline with "inputDataConfig", or give the place of the data in "args"',
)
_NO_CLUSTER_SPEC = Absence(
    "which AI Platform sets only in custom containers", "read TF_CONFIG, which it sets for every replica"
)
_ONE_REPLICA = Absence(
    "which Vertex AI sets only for several replicas",
    'add a pool to "workerPoolSpecs", or take its absence for one machine: os.environ.get("TF_CONFIG", "{}")',
)
_ONLY_VERTEX = Absence(
    "which AI Platform doesn't set", 'read the argument --job-dir, which "jobDir" in "trainingInput" gives'
)


class Program(Struct, frozen=True):
    """Module of a package that replicas run, with its arguments and variables.

    Attributes:
        args: Its arguments.
        env: Its variables that the manifest sets.
        passed: The field behind each argument that the service adds, by the argument's name without dashes.
        absent: The variables that neither the service nor the manifest sets, by name.
        folder: The output folder that the manifest names, gs://…; "" for none.
        args_of: The field with its arguments.
        is_ml: True on AI Platform.
    """

    module: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    passed: Mapping[str, Keys]
    absent: Mapping[str, Absence]
    folder: str
    args_of: str
    is_ml: bool


def programs(manifest: Manifest, filled: frozenset[str]) -> list[Program]:
    """Return the modules of a manifest's package that its job runs; `filled` is `Environment.filled`."""
    spec, kind = manifest.spec, manifest.kind
    engine = engine_spec(manifest.api_version)
    is_ml = manifest.api_version == ML_V1
    passed = {name: keys for keys, name in _parameters(spec)}
    field: Keys = tuple(engine.output_directory_field(kind, spec))
    folder = engine.output_directory(kind, spec)
    if is_ml and (folder or _OUTPUT_FOLDER in filled):
        passed[JOB_DIR] = field
    absent = _absent(manifest, filled)
    args_of = "trainingInput" if is_ml else "containerSpec" if manifest.module else "pythonPackageSpec"
    # With `package.module`, every container runs it. Pools often run the same.
    runs = {
        (manifest.module or worker.module, worker.args, worker.env): None
        for worker in engine.workers(kind, spec)
    }
    return [
        Program(
            module,
            args,
            dict(env),
            passed,
            {name: absence for name, absence in absent.items() if name not in dict(env)},
            folder,
            args_of,
            is_ml,
        )
        for module, args, env in runs
        if module
    ]


def _absent(manifest: Manifest, filled: frozenset[str]) -> dict[str, Absence]:
    """Return the variables that the service doesn't set."""
    spec, kind = manifest.spec, manifest.kind
    engine = engine_spec(manifest.api_version)
    absent = {} if engine.has_trials(kind, spec) else dict.fromkeys(OF_TRIALS, _NO_TRIALS)
    if manifest.api_version == ML_V1:
        return absent | dict.fromkeys(FOLDERS, _ONLY_VERTEX) | {"CLUSTER_SPEC": _NO_CLUSTER_SPEC}
    if not engine.output_directory(kind, spec) and _OUTPUT_FOLDER not in filled:
        *_, above, field, _ = engine.output_directory_field(kind, spec)
        folder = f"{field}: {{outputUriPrefix: gs://BUCKET/{manifest.name}}}"
        no_folder = Absence(f'which Vertex AI sets only with "{field}"', f'add to "{above}":\n{folder}')
        absent |= dict.fromkeys(FOLDERS, no_folder)
    if "inputDataConfig" not in spec:
        absent |= dict.fromkeys(DATA, _NO_DATA)
    if sum(worker.count for worker in engine.workers(kind, spec)) < 2:
        absent["TF_CONFIG"] = _ONE_REPLICA
    return absent


def _parameters(spec: JsonObject) -> Iterator[tuple[Keys, str]]:
    """Yield path and name of each parameter of a study."""
    above, job = job_in(spec)
    keys: Keys = ("spec", *above, "studySpec", "parameters")
    yield from _vertex_parameters(keys, parts_of(part_of(job, "studySpec"), "parameters"))
    tuning = part_of(part_of(spec, "trainingInput"), "hyperparameters")
    for index, parameter in enumerate(parts_of(tuning, "params")):
        place = ("spec", "trainingInput", "hyperparameters", "params", index, "parameterName")
        yield place, text_of(parameter, "parameterName")


def _vertex_parameters(keys: Keys, parameters: Sequence[JsonObject]) -> Iterator[tuple[Keys, str]]:
    for index, parameter in enumerate(parameters):
        yield (*keys, index, "parameterId"), text_of(parameter, "parameterId")
        # Conditional parameters nest: a parameter's value may enable further ones.
        for number, conditional in enumerate(parts_of(parameter, "conditionalParameterSpecs")):
            below = (*keys, index, "conditionalParameterSpecs", number, "parameterSpec")
            for place, name in _vertex_parameters((), [part_of(conditional, "parameterSpec")]):
                yield (*below, *place[1:]), name
