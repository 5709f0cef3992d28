"""Rules about `reconciler.yaml` that its schema cannot express."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from reconciler.base.diagnostics import quote
from reconciler.manifests.findings import Finding
from reconciler.manifests.known_values import region_doubt
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1

_LOCAL = "local"
# A project's id has at most 30 characters:
# https://cloud.google.com/resource-manager/docs/creating-managing-projects
_MAX_PROJECT = 30

_SINGLE_EQUALS_SIGN = re.compile(r"\s*([\w.-]+(?:\[[^]]*\])?)\s*=(?!=)")

_Place = tuple[str, ...]


def settings_findings(settings: Any) -> Iterator[Finding]:
    """Yield the mistakes in settings that their schema can't express, and regions that are doubtful."""
    yield from shared_environments(settings)
    yield from _single_equals_signs(settings)
    for name, value in _mapping(_mapping(settings).get("environments")).items():
        environment = _mapping(value)
        defaults = _mapping(environment.get("defaults"))
        places: list[tuple[str, _Place, Any]] = [(ML_V1, ("defaults", "region"), defaults.get("region"))]
        if environment.get("engine") == "google":  # elsewhere any location will do
            places.append((AIPLATFORM_V1, ("location",), environment.get("location")))
        for api_version, keys, region in places:
            if isinstance(region, str) and region and (doubt := region_doubt(api_version, region)):
                place = ("environments", name, *keys)
                yield Finding(place, doubt.message, doubt.hint, level=doubt.level)


def _single_equals_signs(settings: Any) -> Iterator[Finding]:
    """Yield a finding for each requirement such as `numpy=1`, which is conda's way to write `numpy==1`."""
    for image, entry in _mapping(_mapping(settings).get("images")).items():
        lines = _mapping(entry).get("requirements")
        for number, line in enumerate(lines if isinstance(lines, list) else ()):
            if isinstance(line, str) and (found := _SINGLE_EQUALS_SIGN.match(line)):
                right = f"{found[1]}=={line[found.end() :].lstrip()}"
                place = ("images", image, "requirements", number)
                yield Finding(place, f"{quote(line)} is not a requirement", f"write {quote(right)}")


def shared_environments(settings: Any) -> Iterator[Finding]:
    """Yield a finding for each environment that shares its claims or its output folder with an earlier one.

    Neither an environment nor its defaults are part of a job's name. Environments that share their claims
    take each other's jobs for their own: a job that ran in one would never run in the other.
    """
    written = _mapping(_mapping(settings).get("environments"))
    first: dict[_Place, str] = {}
    first_of_folder: dict[str, str] = {}
    if _LOCAL not in written:
        first[_place_on_training_service({})] = _LOCAL
    for name, value in written.items():
        environment = _mapping(value)
        match environment.get("engine", _LOCAL if name == _LOCAL else None):
            case "google":
                place, explain = _place_at_google(environment), _at_google
            case "local":
                place, explain = _place_on_training_service(environment), _on_training_service
            case _:
                continue
        other = first.setdefault(place, name)
        if other != name:
            yield Finding(("environments", name), *explain(name, other, place), of_key=True)
        folder = _mapping(environment.get("defaults")).get("baseOutputDirectory")
        if place[0] == "local" and isinstance(folder, str):
            # On Google the instance is part of the folder; here a job has one name in every project.
            other = first_of_folder.setdefault(folder.rstrip("/"), name)
            if other != name:
                keys = ("environments", name, "defaults", "baseOutputDirectory")
                message = (
                    f"the environments {quote(other)} and {quote(name)} share this folder: a model of one "
                    "would overwrite the model of the other"
                )
                yield Finding(keys, message, f"write another folder, such as {folder.rstrip('/')}/{name}")


def _place_at_google(environment: Mapping[Any, Any]) -> _Place:
    return ("google", *(str(environment.get(part) or "") for part in ("project", "location", "instance")))


def _place_on_training_service(environment: Mapping[Any, Any]) -> _Place:
    return ("local", *(str(environment.get(part) or _LOCAL) for part in ("project", "location")))


def _at_google(name: str, other: str, place: _Place) -> tuple[str, str]:
    _, project, location, instance = place
    same = f"the project {quote(project)} and the location {quote(location)}"
    if instance:
        same = f"{same}, and the instance {quote(instance)}"
        return _message(name, other, same), f'choose another "instance" for {quote(name)}'
    hint = (
        f'write "instance: {name}" in the environment that is new: the one without "instance" keeps '
        "the claims and jobs that exist"
    )
    return _message(name, other, same), hint


def _on_training_service(name: str, other: str, place: _Place) -> tuple[str, str]:
    _, project, location = place
    own = f"local-{other if name == _LOCAL else name}"[:_MAX_PROJECT].rstrip("-")
    hint = (
        f'write a project of its own, such as "project: {own}", in the environment that is new: the other '
        "one keeps the claims and jobs that exist"
    )
    same = f"the project {quote(project)} and the location {quote(location)} of the training service"
    return _message(name, other, same), hint


def _message(name: str, other: str, place: str) -> str:
    return (
        f"the environments {quote(other)} and {quote(name)} share {place}: a job that ran in one would "
        "count as done in the other"
    )


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}
