"""Vertex AI's prebuilt training images, with the last day of each, and the images of manifests.

The table is `schemas/training_images.json`, with its source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from functools import cache, lru_cache
from typing import Any

from msgspec import Struct, json

from reconciler.base.diagnostics import WARNING, Keys, Problem, pointer_of, quote
from reconciler.manifests.schemas import folder
from reconciler.manifests.yaml_load import place_of
from reconciler.model.manifest import Manifest, PlacedImage

PlaceImages = Callable[[Sequence[tuple[Keys, str]]], list[tuple[int, int]]]
"""Finds line and column of images, which are given by path and URI in the order of the document."""

_URI = re.compile(
    r"(?:[a-z]+-docker\.pkg\.dev/vertex-ai/training|(?:[a-z]+\.)?gcr\.io/cloud-(?:aiplatform|ml-public)/training)"
    r"/(?P<name>[a-z0-9.-]+)(?:[:@].*)?"
)
# https://cloud.google.com/ai-platform/training/docs/algorithms/reference names these images. The service was
# switched off on 2025-01-31.
_ALGORITHM = re.compile(r"(?:[a-z]+\.)?gcr\.io/cloud-ml-algos/(?P<name>[A-Za-z0-9_.-]+)(?:[:@].*)?")
_CONTAINER = "imageUri"
_EXECUTOR = "executorImageUri"
_IMAGES = frozenset({_CONTAINER, _EXECUTOR})
# The image of a registered model runs no training, and the service copies it.
_WITHOUT_IMAGES = frozenset(
    {
        *("args", "env", "parameters", "params", "machineSpec", "diskSpec", "acceleratorConfig"),
        *("scheduling", "modelToUpload"),
    }
)
_WRITTEN = re.compile(
    rf"\b(?P<field>{_CONTAINER}|{_EXECUTOR}|image_uri|executor_image_uri)[\"']?\s*:\s*"
    r"(?P<quote>[\"']?)(?P<uri>[^\s\"',\[\]{}#]+)"
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


def noted_images(spec: Any, place_images: PlaceImages) -> tuple[PlacedImage, ...]:
    """Return the images of a spec that deserve a warning now, or from some day on."""
    noted = [(keys, uri) for keys, uri in images_in(spec, ("spec",)) if _is_noted(str(keys[-1]), uri)]
    if not noted:
        return ()
    positions = zip(noted, place_images(noted), strict=True)
    return tuple(PlacedImage(pointer_of(keys), uri, *position) for (keys, uri), position in positions)


def image_warnings(manifests: Iterable[Manifest], today: date) -> list[Problem]:
    """Return a warning for each image past its end, and for each container's tag in place of a digest.

    The warnings depend on the day, so they are no part of the cached results.
    """
    warnings = []
    for manifest in manifests:
        for image in manifest.images:
            if sentences := _warning(image.pointer.rpartition("/")[2], image.uri, today):
                location = manifest.path, image.line, image.column, image.pointer
                warnings.append(Problem(*location, *sentences, level=WARNING))
    return warnings


def _is_noted(field: str, uri: str) -> bool:
    """Return True for an image that deserves a warning now, or from some day on."""
    is_pinned = field != _CONTAINER or "@sha256:" in uri or uri.startswith(_LOCAL)
    return not is_pinned or bool(training_image_name(uri) or built_in_algorithm(uri))


@lru_cache(4096)  # a repository's manifests share few images
def _warning(field: str, uri: str, today: date) -> tuple[str, str] | None:
    """Return the message and hint about an image of `noted_images`, or None before its end."""
    if name := training_image_name(uri):
        end = training_images()[name].end_of_availability
        if end >= today:
            return None
        way_out = "move the code to another image with `reconciler migrate --image IMAGE`"
        way_out = way_out if field == _EXECUTOR else "name another image"
        hint = f'{way_out}: see "Images past their end" in the reconciler\'s README'
        return f"Google ended the availability of the image {name} on {end}", hint
    if algorithm := built_in_algorithm(uri):
        hint = "train by code of your own, or by an image that has the algorithm"
        return f"AI Platform's built-in algorithm {algorithm} ended with the service on 2025-01-31", hint
    tag = uri.rpartition("/")[2].partition(":")[2]
    named = f"the tag {quote(tag)}" if tag else "an image without a tag"
    bare = uri.removesuffix(f":{tag}") if tag else uri
    return (
        f"{named} can mean another image tomorrow, and the job's name stays the same",
        f"pin it by its digest: {bare}@sha256:…, which docker push prints",
    )


def places_by_text(data: bytes, first: int, images: Sequence[tuple[Keys, str]]) -> list[tuple[int, int]]:
    """Return line and column of each image of the document that begins on line `first` of a file.

    They are nearly always found by their text, which is much faster than by YAML: the images with the same
    URI in the same field of a list stand in the order of the list.
    """
    positions: dict[tuple[str, str], list[tuple[int, int]]] = {}
    lines = data.decode("utf-8-sig", "replace").splitlines()
    end = len(lines)
    if b"---" in data:
        end = next((number for number in range(first, end) if lines[number].startswith("---")), end)
    for number, line in enumerate(lines[first - 1 : end], start=first):
        if ("mageUri" in line or "mage_uri" in line) and not line.lstrip().startswith("#"):
            for match in _WRITTEN.finditer(line):
                position = number, match.start("quote") + 1
                field = _EXECUTOR if match["field"].startswith("executor") else _CONTAINER
                positions.setdefault((field, match["uri"]), []).append(position)
    shapes: dict[tuple[str, str], list[Keys]] = {}
    for keys, uri in images:
        names = tuple(key for key in keys if isinstance(key, str))
        shapes.setdefault((str(keys[-1]), uri), []).append(names)
    if any(
        len(positions.get(shape, ())) != len(names) or len(set(names)) > 1 for shape, names in shapes.items()
    ):
        return [place_of(data, keys, first) for keys, _ in images]
    following = {shape: iter(positions[shape]) for shape in shapes}
    return [next(following[str(keys[-1]), uri]) for keys, uri in images]
