"""Vertex AI's prebuilt training images, with the last day of each, and the images of manifests.

The table is `schemas/training_images.json`, with its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date
from functools import cache, lru_cache
from typing import Any

from msgspec import Struct, json

from reconciler.base.diagnostics import Keys, UnplacedWarning
from reconciler.base.warning_kinds import WarningKind
from reconciler.manifests.schemas import folder
from reconciler.model.manifest import Manifest, NotedImage

CONTAINER_IMAGE = "imageUri"
EXECUTOR_IMAGE = "executorImageUri"

_URI = re.compile(
    r"(?:[a-z]+-docker\.pkg\.dev/vertex-ai/training|(?:[a-z]+\.)?gcr\.io/cloud-(?:aiplatform|ml-public)/training)"
    r"/(?P<name>[a-z0-9.-]+)(?:[:@].*)?"
)
# https://cloud.google.com/ai-platform/training/docs/algorithms/reference names these images. The service was
# switched off on 2025-01-31.
_ALGORITHM = re.compile(r"(?:[a-z]+\.)?gcr\.io/cloud-ml-algos/(?P<name>[A-Za-z0-9_.-]+)(?:[:@].*)?")
_IMAGES = frozenset({CONTAINER_IMAGE, EXECUTOR_IMAGE})
# The image of a registered model runs no training, and the service copies it.
_WITHOUT_IMAGES = frozenset(
    {
        *("args", "env", "parameters", "params", "machineSpec", "diskSpec", "acceleratorConfig"),
        *("scheduling", "modelToUpload"),
    }
)
# An image that was built on this machine has no digest that others could pull.
_LOCAL = ("localhost/", "localhost:")


class TrainingImage(Struct, frozen=True, rename="camel"):
    """One prebuilt image; `accelerator` is "cpu", "gpu", "tpu" or "cpu or gpu"."""

    python: str
    accelerator: str
    end_of_support: date
    end_of_availability: date


class _Table(Struct, frozen=True):
    """Content of `schemas/training_images.json`."""

    repositories: tuple[str, ...]
    images: dict[str, TrainingImage]


@cache
def _table() -> _Table:
    return json.decode((folder() / "training_images.json").read_bytes(), type=_Table)


def training_images() -> Mapping[str, TrainingImage]:
    """Return the prebuilt images by name, such as "tf-cpu.2-11"."""
    return _table().images


def training_image_uri(name: str, region: str) -> str:
    """Return the URI of a prebuilt image in the repository nearest to a region; "" counts as America."""
    continents = {"europe": "europe", "africa": "europe", "me": "europe", "asia": "asia", "australia": "asia"}
    nearest = continents.get(region.partition("-")[0], "us")
    repository = next(candidate for candidate in _table().repositories if candidate.startswith(f"{nearest}-"))
    return f"{repository}/{name}:latest"


def training_image_name(uri: str) -> str:
    """Return the name of the prebuilt image in Google's repositories; "" for other images."""
    match = _URI.fullmatch(uri)
    return match["name"] if match and match["name"] in training_images() else ""


def built_in_algorithm(uri: str) -> str:
    """Return the name of AI Platform's built-in algorithm in an image; "" for other images."""
    match = _ALGORITHM.fullmatch(uri)
    return match["name"] if match else ""


def has_ended(uri: str, today: date) -> bool:
    """Return True for a prebuilt image past its end of availability."""
    name = training_image_name(uri)
    return bool(name) and training_images()[name].end_of_availability < today


def images_in(value: Any, keys: Keys = ()) -> list[tuple[Keys, str]]:
    """Return path and URI of each image of a spec."""
    images: list[tuple[Keys, str]] = []
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        if part.__class__ is str:
            if key in _IMAGES:
                images.append(((*keys, key), part))
        elif (part.__class__ is dict or part.__class__ is list) and key not in _WITHOUT_IMAGES:
            images += images_in(part, (*keys, key))
    return images


def noted_images(spec: Any) -> tuple[NotedImage, ...]:
    """Return the images of a spec that deserve a warning now, or from some day on."""
    images = images_in(spec, ("spec",))
    return tuple([NotedImage(keys, uri) for keys, uri in images if _is_noted(str(keys[-1]), uri)])


def image_warnings(manifests: Iterable[Manifest], today: date) -> list[UnplacedWarning]:
    """Return a warning for each image past its end, and for each container's tag in place of a digest.

    The warnings depend on the day, so they are no part of the cached results.
    """
    warnings = []
    for manifest in manifests:
        for image in manifest.images:
            if words := _warning(str(image.keys[-1]), image.uri, today):
                warnings.append(UnplacedWarning(manifest.path, manifest.line, image.keys, *words))
    return warnings


def _is_noted(field: str, uri: str) -> bool:
    """Return True for an image that deserves a warning now, or from some day on."""
    is_pinned = field != CONTAINER_IMAGE or "@sha256:" in uri or uri.startswith(_LOCAL)
    return not is_pinned or bool(training_image_name(uri) or built_in_algorithm(uri))


@lru_cache(4096)  # a repository's manifests share few images
def _warning(field: str, uri: str, today: date) -> tuple[str, str, WarningKind] | None:
    """Return message, hint and kind of the warning about an image of `noted_images`; None before its end."""
    if name := training_image_name(uri):
        end = training_images()[name].end_of_availability
        if end >= today:
            return None
        way_out = "move the code to another image with `reconciler migrate --image IMAGE`"
        way_out = way_out if field == EXECUTOR_IMAGE else "name another image"
        hint = f'{way_out}: see "Images past their end" in the reconciler\'s README'
        return f"Google ended the availability of the image {name} on {end}", hint, WarningKind.IMAGE_END
    if algorithm := built_in_algorithm(uri):
        message = f"AI Platform's built-in algorithm {algorithm} ended with the service on 2025-01-31"
        hint = "train by code of your own, or by an image that has the algorithm"
        return message, hint, WarningKind.IMAGE_END
    tag = uri.rpartition("/")[2].partition(":")[2]
    bare = uri.removesuffix(f":{tag}") if tag else uri
    named = "a tag" if tag else "an image without a tag"  # equal words are one warning for many files
    return (
        f"{named} can mean another image tomorrow, and the job's name stays the same",
        f"pin it by its digest: {bare}@sha256:…, which docker push prints",
        WarningKind.IMAGE_TAG,
    )
