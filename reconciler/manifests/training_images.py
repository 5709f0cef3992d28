"""Vertex AI's prebuilt training images, with the last day of each, and the images of manifests.

The table is `schemas/training_images.json`, with its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from msgspec import Struct, json

from reconciler.base.diagnostics import WARNING, Problem, pointer_of, quote
from reconciler.manifests.files import read_one
from reconciler.manifests.findings import Keys
from reconciler.manifests.schemas import folder
from reconciler.manifests.yaml_load import position_in
from reconciler.model.manifest import Manifest

_URI = re.compile(
    r"(?:[a-z]+-docker\.pkg\.dev/vertex-ai/training|(?:[a-z]+\.)?gcr\.io/cloud-(?:aiplatform|ml-public)/training)"
    r"/(?P<name>[a-z0-9.-]+)(?:[:@].*)?"
)
_CONTAINER = "imageUri"
_EXECUTOR = "executorImageUri"
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
    repository = next(each for each in _table().repositories if each.startswith(f"{nearest}-"))
    return f"{repository}/{name}:latest"


def training_image_name(uri: str) -> str:
    """Return the name of the prebuilt image in Google's repositories; "" for other images."""
    match = _URI.fullmatch(uri)
    return match["name"] if match and match["name"] in training_images() else ""


def images_in(value: Any, keys: Keys = ()) -> Iterator[tuple[Keys, str]]:
    """Yield path and URI of each image of a spec."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key in (_CONTAINER, _EXECUTOR) and isinstance(part, str):
                yield (*keys, key), part
            elif key not in ("args", "env", "parameters", "params"):
                yield from images_in(part, (*keys, key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from images_in(part, (*keys, index))


def image_warnings(root: Path, manifests: Iterable[Manifest], today: date) -> list[Problem]:
    """Return a warning for each image past its end, and for each container's tag in place of a digest.

    They depend on the day, so they are no part of the cached results.
    """
    found = []
    for path, group in groupby(manifests, key=lambda manifest: manifest.path):
        text: str | None = None
        for manifest in group:
            for keys, uri in images_in(manifest.spec, ("spec",)):
                if sentences := _warning(str(keys[-1]), uri, today):
                    text = _text(root / path) if text is None else text
                    line, column = _position(root / path, text, manifest.line, keys, uri)
                    found.append(Problem(path, line, column, pointer_of(keys), *sentences, level=WARNING))
    return found


def _warning(field: str, uri: str, today: date) -> tuple[str, str] | None:
    """Return the message and hint about an image, or None."""
    if name := training_image_name(uri):
        end = training_images()[name].end_of_availability
        if end >= today:
            return None
        hint = 'use a copy, or an image of your own: see "Images past their end" in the README'
        return f"Google ended the availability of the image {name} on {end}", hint
    if field != _CONTAINER or "@sha256:" in uri or uri.startswith(_LOCAL):
        return None
    tag = uri.rpartition("/")[2].partition(":")[2]
    named = f"the tag {quote(tag)}" if tag else "an image without a tag"
    bare = uri.removesuffix(f":{tag}") if tag else uri
    return (
        f"{named} can mean another image tomorrow, under the same name of the job",
        f"pin it by its digest: {bare}@sha256:…, which docker push prints",
    )


def _text(file: Path) -> str:
    data = read_one(file, file.name)
    return "" if isinstance(data, Problem) else data.decode("utf-8", "replace")


def _position(file: Path, text: str, first: int, keys: Keys, uri: str) -> tuple[int, int]:
    """Return line and column of an image: nearly always by its text, which is much faster than by YAML."""
    pattern = re.compile(rf"\b{keys[-1]}[\"']?\s*:\s*(?P<uri>[\"']?{re.escape(uri)})(?![\w./:@-])")
    places = []
    for number, line in enumerate(text.splitlines()[first - 1 :], start=first):
        if line.startswith("---") and number > first:
            break
        places += [(number, match.start("uri") + 1) for match in pattern.finditer(line)]
    if len(places) == 1:
        return places[0]
    return position_in(file, keys, first)
