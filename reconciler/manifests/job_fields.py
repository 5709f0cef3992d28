"""Fields of jobs that are wrong, or probably wrong: beside others, or as names of something else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from reconciler.base.diagnostics import Finding, Keys, quote
from reconciler.base.warning_kinds import WarningKind
from reconciler.manifests.training_images import training_image_uri, training_images

_NETWORK = re.compile(r"projects/(?P<project>[^/]*[^/0-9][^/]*)/global/networks/(?P<name>[^/]+)")
# https://cloud.google.com/vertex-ai/docs/predictions/pre-built-containers
_PREDICTION = re.compile(
    r"(?:(?P<place>[a-z]+)-docker\.pkg\.dev/vertex-ai|(?:(?P<old_place>[a-z]+)\.)?gcr\.io/cloud-aiplatform)"
    r"/prediction/(?P<framework>[a-z]+)[0-9]?-(?P<accelerator>[a-z]+)\b.*"
)
_NO_MODULE = re.compile(r"[/\\\s]|\.py$")
_BEFORE_MODULE = re.compile(r"^(?:python[0-9.]*\s+)?-m\s+|^\.?/+")
_MODULE = re.compile(r"[^\W\d][\w-]*(?:\.[^\W\d][\w-]*)*")


def job_field_findings(keys: Keys, job: Mapping[str, Any], filled: frozenset[str]) -> Iterator[Finding]:
    """Yield the findings about the fields of a CustomJobSpec.

    Args:
        keys: The path of `job`.
        job: Values that the schema refuses are skipped.
        filled: What the environment gives, as `Environment.filled` has it.
    """
    # The service's words: "service_account must be specified when uploading to TensorBoard"
    # (https://github.com/kubeflow/pipelines/issues/7123). It is "Required with provided tensorboard" in
    # https://cloud.google.com/python/docs/reference/aiplatform/latest/google.cloud.aiplatform.CustomJob.
    if job.get("tensorboard") and not job.get("serviceAccount") and "serviceAccount" not in filled:
        message = '"tensorboard" needs "serviceAccount": the service writes the logs as that account'
        hint = "add serviceAccount: NAME@PROJECT.iam.gserviceaccount.com"
        yield Finding((*keys, "tensorboard"), message, hint, of_key=True)
    yield from network_findings((*keys, "network"), job.get("network"))


def network_findings(keys: Keys, network: Any) -> tuple[Finding, ...]:
    """Return a warning if a network's name has its project's id, or nothing.

    `network` of both APIs: "Where {project} is a project number, as in `12345`".
    """
    match = _NETWORK.fullmatch(network) if isinstance(network, str) else None
    if not match:
        return ()
    message = f"{quote(match['project'])} is a project's id, and a network's name has the project's number"
    command = f'gcloud projects describe {match["project"]} --format="value(projectNumber)"'
    hint = f"write projects/NUMBER/global/networks/{match['name']}, with the number that `{command}` prints"
    return (Finding(keys, message, hint, kind=WarningKind.NETWORK),)


def python_package_findings(
    keys: Keys, package: Mapping[str, Any], *, is_staged: bool = False
) -> Iterable[Finding]:
    """Return the findings about what runs a Python package: a `pythonPackageSpec` or a `trainingInput`.

    Args:
        keys: The path of `package`.
        package: Values that the schema refuses are skipped.
        is_staged: True if the manifest's `package` has the module, which is looked for there.
    """
    image, module = package.get("executorImageUri", ""), package.get("pythonModule", "")
    if not isinstance(image, str) or not isinstance(module, str):
        return ()
    # Nearly all manifests end here.
    if "/prediction/" not in image and not _NO_MODULE.search(module):
        return ()
    is_staged = is_staged and not package.get("packageUris")
    return _python_package(keys, image, "" if is_staged else module)


def _python_package(keys: Keys, image: str, module: str) -> Iterator[Finding]:
    if match := _PREDICTION.fullmatch(image):
        # `executorImageUri`: "See the list of pre-built containers for training. You must use an image from
        # this list."
        message = "this image serves predictions, and runs no Python package"
        hint = _training_hint(match)
        yield Finding((*keys, "executorImageUri"), message, hint, kind=WarningKind.PREDICTION_IMAGE)
    if not _NO_MODULE.search(module):
        return
    # "The Python module name to run after installing the packages."
    right = _BEFORE_MODULE.sub("", module.strip()).removesuffix(".py").replace("\\", "/").replace("/", ".")
    hint = f"write {right}" if _MODULE.fullmatch(right) else "write its name, such as trainer.task"
    message = f"{quote(module)} is not a module's name"
    if re.search(r"[/\\\s]", module):
        yield Finding((*keys, "pythonModule"), message, hint)
    else:
        # Nothing forbids a module with the name "py".
        message = f"{quote(module)} is the module py of {quote(module.removesuffix('.py'))}, and no file"
        hint = f"did you mean {right}?"
        yield Finding((*keys, "pythonModule"), message, hint, kind=WarningKind.MODULE_NAME)


def _training_hint(prediction: re.Match[str]) -> str:
    """Return the hint to write the training image of the framework that is available longest."""
    start = f"{prediction['framework']}-{prediction['accelerator']}."
    images = training_images()
    names = [name for name in images if name.startswith(start)] or [*images]
    name = max(names, key=lambda name: images[name].end_of_availability)
    return f"write {training_image_uri(name, prediction['place'] or prediction['old_place'] or 'us')}"
