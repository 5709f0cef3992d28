"""Manifests as ML teams write them, in any number; the same seed gives the same bytes.

Half are custom jobs of Vertex AI with one to three worker pools; half are ml jobs, of which a fifth are
hyper-parameter searches. They lie in nested folders, have comments, and vary in quotation style. Their images
are named by digests, so that `validate` has no warnings.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_TEAMS = ("search", "fraud", "vision", "speech", "feeds", "maps", "demand", "churn")
_STAGES = ("dev", "prod", "test")
_MODELS = ("ranker", "resnet-50", "encoder", "gbt-score", "lstm-demand", "whisper-tune", "two-stage", "gcn")
_REGIONS = ("us-central1", "europe-west4", "asia-east1", "us-east4")
_MACHINES = ("n1-standard-8", "n1-highmem-16", "n2-standard-32", "c2-standard-16", "e2-standard-8")
_ML_MACHINES = (
    "n1-standard-8",
    "n1-standard-16",
    "n1-highmem-16",
    "n1-highmem-8",
)  # those with accelerators
_ACCELERATORS = (
    ("n1-standard-8", "NVIDIA_TESLA_T4", 1),
    ("n1-standard-16", "NVIDIA_TESLA_P100", 2),
    ("n1-highmem-16", "NVIDIA_TESLA_V100", 4),
    ("a2-highgpu-1g", "NVIDIA_TESLA_A100", 1),
    ("g2-standard-12", "NVIDIA_L4", 1),
)
_ML_ACCELERATORS = ("NVIDIA_TESLA_T4", "NVIDIA_TESLA_P100")
_EXECUTORS = tuple(
    f"us-docker.pkg.dev/example/training/{name}" for name in ("tensorflow", "pytorch", "xgboost")
)
_TIMEOUTS = ("7200s", "28800s", "86400s", "259200s")
_IN_ONE_SET = 2000
_SETTINGS = """source: benchmark
outputs: own
environments: {local: {defaults: {publish: gs://benchmark-published}}}
"""
_PINNED = re.compile(r"@sha256:([0-9a-f]{12})[0-9a-f]{52}")

Edit = Callable[[str], str]
"""Function from a manifest's text to a changed text."""


def write(root: Path, count: int, seed: int = 6) -> list[Path]:
    """Write a repository of `count` manifests with its settings; return the manifests' paths, sorted."""
    root.mkdir(parents=True, exist_ok=True)
    # The embedded service refuses images that it doesn't know.
    images = "".join(f'  {image}: {{python: "3.11", requirements: []}}\n' for image in _EXECUTORS)
    (root / "reconciler.yaml").write_text(f"{_SETTINGS}images:\n{images}")
    files = []
    for number in range(count):
        # Each manifest has its own generator: 1,000 manifests equal the first 1,000 of 10,000.
        chance = random.Random(f"{seed}/{number}")
        team, stage = _TEAMS[number % len(_TEAMS)], chance.choice(_STAGES)
        model = chance.choice(_MODELS)
        name = f"{team}-{model}-{number:06}"
        text = (_custom_job if chance.random() < 0.5 else _ml_job)(chance, name, team, stage, model)
        file = root / "jobs" / team / stage / f"set{number // _IN_ONE_SET:02}" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        files.append(file)
    return sorted(files)


@contextmanager
def edited(files: Iterable[Path], edit: Edit, every: int) -> Iterator[None]:
    """Rewrite every n-th file, from the first on, and restore all files at the end."""
    kept: Mapping[Path, str] = {file: file.read_text() for file in list(files)[::every]}
    try:
        for file, text in kept.items():
            file.write_text(edit(text))
        yield
    finally:
        for file, text in kept.items():
            file.write_text(text)


def touched(text: str) -> str:
    """Change an argument of the job: another content, so another run."""
    return text.replace("--epochs=", "--epochs=1", 1)


def broken(text: str) -> str:
    """Misspell a field of the job."""
    return text.replace("scheduling:", "sheduling:", 1)


def publishing(text: str) -> str:
    """Have the job's model published, at the address that its environment gives it."""
    return text.replace("\nspec:", "\npublish: {}\nspec:", 1)


def by_tag(text: str) -> str:
    """Name the job's images by tags, so that `validate` warns about each `imageUri`."""
    return _PINNED.sub(r":\1", text)


def _custom_job(chance: random.Random, name: str, team: str, stage: str, model: str) -> str:
    lines = _head(chance, "aiplatform.googleapis.com/v1", "CustomJob", name, team, stage, model)
    bucket = f"gs://example-{team}-{stage}"
    lines += ["  workerPoolSpecs:"]
    for pool in range(chance.choice((1, 1, 1, 2, 2, 2, 2, 3))):
        lines += ["  " + line for line in _pool(chance, pool, bucket, model)]
    lines += [
        "  scheduling:",
        f"    timeout: {chance.choice(_TIMEOUTS)}",
        f"    restartJobOnWorkerRestart: {chance.choice(('true', 'false'))}",
        f"  serviceAccount: training@example-{team}-{stage}.iam.gserviceaccount.com",
        "  baseOutputDirectory:",
        f"    outputUriPrefix: {bucket}-models/{model}/{name}/",
    ]
    if chance.random() < 0.3:
        lines += [f"  network: projects/{chance.randrange(10**8, 10**9)}/global/networks/training-{stage}"]
    return "\n".join(lines) + "\n"


def _pool(chance: random.Random, number: int, bucket: str, model: str) -> list[str]:
    machine, accelerator, count = chance.choice(_ACCELERATORS)
    lines = ["- machineSpec:"]
    if chance.random() < 0.55:
        lines += [f"    machineType: {machine}", f"    acceleratorType: {accelerator}"]
        lines += [f"    acceleratorCount: {count}"]
    else:
        lines += [f"    machineType: {chance.choice(_MACHINES)}"]
    # int64 fields are text in Google's JSON; people write numbers as well.
    replicas = 1 if number == 0 else chance.choice((1, 2, 4, 8))
    lines += [f"  replicaCount: {_either(chance, replicas)}"]
    if number == 0 and chance.random() < 0.7:
        lines += [
            "  diskSpec:",
            "    bootDiskType: pd-ssd",
            f"    bootDiskSizeGb: {chance.choice((100, 200, 500))}",
        ]
    if chance.random() < 0.66:
        lines += ["  containerSpec:", f"    imageUri: {_image(chance, bucket)}"]
        lines += ['    command: ["python", "-m", "trainer.task"]', *_arguments(chance, bucket, model, "    ")]
    else:
        executor = chance.choice(_EXECUTORS) + _digest(chance)
        lines += [
            "  pythonPackageSpec:",
            f"    executorImageUri: {executor}",
            *_package(chance, bucket, model, "    "),
        ]
    if chance.random() < 0.33:
        lines += [
            "    env:",
            "    - name: LOG_LEVEL",
            f"      value: {chance.choice(('info', 'debug'))}",
            "    - name: RANDOM_SEED",
            f'      value: "{chance.randrange(10_000)}"',
        ]
    return lines


def _ml_job(chance: random.Random, name: str, team: str, stage: str, model: str) -> str:
    lines = _head(chance, "ml.googleapis.com/v1", "Job", name.replace("-", "_"), team, stage, model)
    bucket = f"gs://example-{team}-{stage}"
    from_package = chance.random() < 0.52
    lines += ["  trainingInput:", "    scaleTier: CUSTOM", f"    masterType: {chance.choice(_ML_MACHINES)}"]
    config = [] if from_package else [f"      imageUri: {_image(chance, bucket)}"]
    if chance.random() < 0.5:
        config = [*_accelerator_config(chance, "      "), *config]
    lines += ["    masterConfig:", *config] if config else []
    for role, likely in (("worker", 0.5), ("parameterServer", 0.3)):
        if chance.random() < likely:
            lines += [f"    {role}Type: {chance.choice(_ML_MACHINES)}"]
            lines += [f"    {role}Count: {_either(chance, chance.choice((1, 2, 4)))}"]
            if role == "worker" and not from_package:
                lines += ["    workerConfig:", f"      imageUri: {_image(chance, bucket)}"]
            elif role == "worker" and chance.random() < 0.5:
                lines += ["    workerConfig:", *_accelerator_config(chance, "      ")]
    lines += [f"    region: {chance.choice(_REGIONS)}", f"    jobDir: {bucket}-models/{model}/{name}"]
    if from_package:
        lines += [
            "    runtimeVersion: '2.11'",
            "    pythonVersion: '3.7'",
            *_package(chance, bucket, model, "    "),
        ]
    else:
        lines += _arguments(chance, bucket, model, "    ")
    if chance.random() < 0.2:
        lines += _tuning(chance)
    lines += [
        "    scheduling:",
        f"      maxRunningTime: {chance.choice(_TIMEOUTS)}",
        "      maxWaitTime: 3600s",
        f"    serviceAccount: training@example-{team}-{stage}.iam.gserviceaccount.com",
    ]
    return "\n".join(lines) + "\n"


def _head(
    chance: random.Random, version: str, kind: str, name: str, team: str, stage: str, model: str
) -> list[str]:
    return [
        f"# asked for by {team}-team@example.com",
        f"apiVersion: {version}",
        f"kind: {kind}",
        "metadata:",
        f"  name: {name}",
        "  labels:",
        f"    team: {team}",
        f"    stage: {stage}",
        f"    model: {model}",
        f'    budget: "b-{chance.randrange(10_000):04}"',
        "spec:",
    ]


def _package(chance: random.Random, bucket: str, model: str, indent: str) -> list[str]:
    return [
        f"{indent}packageUris:",
        f"{indent}- {bucket}-packages/{model}-{chance.randrange(3)}.{chance.randrange(40)}.tar.gz",
        f"{indent}pythonModule: trainer.task",
        *_arguments(chance, bucket, model, indent),
    ]


def _arguments(chance: random.Random, bucket: str, model: str, indent: str) -> list[str]:
    day = f"2025-{chance.randrange(1, 13):02}-{chance.randrange(1, 29):02}"
    arguments = [
        f"--train-files={bucket}-data/{model}/{day}/part-*.tfrecord",
        f"--epochs={chance.choice((1, 3, 5, 10, 50))}",
        f"--learning-rate={chance.choice(('0.01', '1e-3', '3e-4', '2e-5'))}",
        f"--batch-size={chance.choice((32, 64, 128, 1024))}",
        *(["--evaluate-every=100"] if chance.random() < 0.4 else []),
    ]
    if chance.random() < 0.12:
        return [f"{indent}args: [" + ", ".join(f'"{argument}"' for argument in arguments) + "]"]
    return [f"{indent}args:", *(f"{indent}- {argument}" for argument in arguments)]


def _accelerator_config(chance: random.Random, indent: str) -> list[str]:
    return [
        f"{indent}acceleratorConfig:",
        f'{indent}  count: "{chance.choice((1, 2, 4))}"',
        f"{indent}  type: {chance.choice(_ML_ACCELERATORS)}",
    ]


def _tuning(chance: random.Random) -> list[str]:
    return [
        "    hyperparameters:",
        "      goal: MAXIMIZE",
        "      hyperparameterMetricTag: auc",
        f"      maxTrials: {chance.choice((10, 20, 40))}",
        "      maxParallelTrials: 4",
        "      params:",
        "      - parameterName: learning-rate",
        "        type: DOUBLE",
        "        minValue: 0.00001",
        "        maxValue: 0.1",
        "        scaleType: UNIT_LOG_SCALE",
    ]


def _image(chance: random.Random, bucket: str) -> str:
    return f"gcr.io/{bucket.removeprefix('gs://')}/trainer{_digest(chance)}"


def _digest(chance: random.Random) -> str:
    return f"@sha256:{chance.randrange(16**64):064x}"


def _either(chance: random.Random, number: int) -> str:
    return f'"{number}"' if chance.random() < 0.7 else str(number)
