"""Python packages turned into staged code in containers, where their image is past its end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from msgspec import Struct

from reconciler.base.diagnostics import Keys
from reconciler.convert.migrating.dependencies import dependencies
from reconciler.convert.migrating.pools import CONTAINER, PACKAGE, POOLS, TRIAL, Json
from reconciler.convert.migrating.report import FieldRow, MigrationObstacle, Report, mapping
from reconciler.convert.migrating.rules import rules
from reconciler.manifests.pipelines import job_in
from reconciler.manifests.training_images import (
    has_ended,
    training_image_name,
    training_images,
)
from reconciler.packaging.source_tree import SourceFile

_RENAMED = {PACKAGE: CONTAINER, "executorImageUri": "imageUri"}
_FRAMEWORKS = {
    "tf": "TensorFlow",
    "pytorch": "PyTorch",
    "sklearn": "scikit-learn",
    "scikit-learn": "scikit-learn",
    "xgboost": "XGBoost",
    "ray": "Ray",
}
_IMAGE_NAME = re.compile(r"(?P<framework>[a-z-]+)-[a-z]+\.(?P<version>[0-9]+(?:-[0-9]+)*)(?:\..*)?")
_NOT_STAGED = "a container gets the code from a folder of the repository, and this job's is elsewhere"
_STAGE_IT = 'put the code into a folder, and write "package: {path: …}" in place of "packageUris"'


class Containers(Struct, frozen=True):
    """Job whose containers run its package.

    Attributes:
        spec: The new `spec`.
        module: The module for `package.module`.
        ended: The names of the images that are replaced, sorted.
        image: The image in place of them.
    """

    spec: Json
    module: str
    ended: tuple[str, ...]
    image: str


def in_containers(spec: Json, image: str, today: date) -> Containers | list[MigrationObstacle] | None:
    """Return a job of Vertex AI with its Python package in containers.

    Args:
        spec: The `spec` of a kind of Vertex AI.
        image: The image that replaces those past their end; other images stay.
        today: The day that decides which images are past their end.

    Returns:
        None if no pool's executor image is past its end. The obstacles, with paths in `spec`, if a person
        has to decide.
    """
    above, job_spec = _job_spec(spec)
    pools = [(index, mapping(pool)) for index, pool in enumerate(job_spec[POOLS])]
    packages = {index: pool[PACKAGE] for index, pool in pools if PACKAGE in pool}
    uris = [package["executorImageUri"] for package in packages.values()]
    ended = sorted({training_image_name(uri) for uri in uris if has_ended(uri, today)})
    if not ended:
        return None
    if obstacles := [*_obstacles((*above, POOLS), pools)]:
        return obstacles
    new = [_with_container(dict(pool), image, today) for _, pool in pools]
    whole = _replaced(spec, above, {**job_spec, POOLS: new})
    module = next(str(package["pythonModule"]) for package in packages.values())
    return Containers(whole, module, tuple(ended), image)


def _job_spec(spec: Json) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """Return the CustomJobSpec in a `spec`, and its path there."""
    above, job = job_in(spec)
    return ((*above, TRIAL), mapping(job[TRIAL])) if TRIAL in job else (above, job)


def _replaced(spec: Mapping[str, Any], above: Sequence[str], part: Json) -> Json:
    """Return a `spec` with another part at a path."""
    return {**spec, above[0]: _replaced(mapping(spec[above[0]]), above[1:], part)} if above else part


def renamed_for_container(keys: Keys) -> Keys:
    """Return the path of a pool's field after its package moved to a container."""
    return tuple(_RENAMED.get(key, key) if isinstance(key, str) else key for key in keys)


def moves_to_container(spec: Json) -> dict[Keys, Keys]:
    """Return the new path of each field of a `spec` that gets another name in a container."""
    above, job_spec = _job_spec(spec)
    package_paths: list[Keys] = [(*above, POOLS, index, PACKAGE) for index, _ in enumerate(job_spec[POOLS])]
    fields = [
        keys for package_path in package_paths for keys in (package_path, (*package_path, "executorImageUri"))
    ]
    return {keys: renamed_for_container(keys) for keys in fields}


def _obstacles(above: Keys, pools: Sequence[tuple[int, Mapping[str, Any]]]) -> Iterator[MigrationObstacle]:
    """Yield what the container form can't express."""
    module = ""
    for index, pool in pools:
        package = mapping(pool.get(PACKAGE))
        if CONTAINER in pool:
            message = "this pool runs a container of its own, which would run the package's module too"
            yield MigrationObstacle(
                (*above, index, CONTAINER), message, "write containers for all pools by hand"
            )
        if package.get("packageUris"):
            yield MigrationObstacle((*above, index, PACKAGE, "packageUris"), _NOT_STAGED, _STAGE_IT)
        if package and package["pythonModule"] != (module := module or package["pythonModule"]):
            message = f"the pools run different modules, and containers run one: {module}"
            hint = "let that module choose by CLUSTER_SPEC what a replica does"
            yield MigrationObstacle((*above, index, PACKAGE, "pythonModule"), message, hint)


def _with_container(pool: Json, image: str, today: date) -> Json:
    if PACKAGE not in pool:
        return pool
    package = pool[PACKAGE]
    uri = package["executorImageUri"]
    container = {"imageUri": image if has_ended(uri, today) else uri}
    container |= {field: package[field] for field in ("args", "env") if field in package}
    return {key if key != PACKAGE else CONTAINER: pool[key] for key in pool} | {CONTAINER: container}


def report_containers(made: Containers, files: Sequence[SourceFile], folder: str, report: Report) -> None:
    """Report the container form, in place of the rows about the images that it replaces.

    Args:
        made: The container form.
        files: The files of the package.
        folder: The package's folder, relative to the repository's root.
        report: The report of the job.
    """
    rule, rows = rules().fields["container"], []
    sentence = rule.sentence.format(
        images=" and ".join(made.ended),
        date=max(training_images()[name].end_of_availability for name in made.ended),
        container=made.image,
        frameworks=" and ".join(dict.fromkeys(map(framework, made.ended))),
    )
    about_images = [row for row in report.rows if row.target.endswith("executorImageUri")]
    for row in report.rows:
        if row.target == PACKAGE:
            rows.append(FieldRow(row.source, f"{CONTAINER}, package", "translated", row.sentence, row.keys))
        elif row not in about_images and row.target != "the same image":
            rows.append(row)
    source, keys = (
        (about_images[0].source, about_images[0].keys)
        if about_images
        else (rule.source, _first_executor_image(made))
    )
    report.rows = [*rows, FieldRow(source, rule.target, rule.verdict, sentence, keys)]
    if package_dependencies := dependencies(files):
        lock = f"{folder}/requirements.lock"
        name = "dependencies" if package_dependencies.requirements else "computed dependencies"
        report.add(
            name,
            file=f"{folder}/{package_dependencies.file}",
            found=", ".join(package_dependencies.requirements),
            lock=lock,
        )


def framework(name: str) -> str:
    """Return the framework of a prebuilt image, such as "TensorFlow 2.11"."""
    match = _IMAGE_NAME.fullmatch(name)
    assert match is not None, "every prebuilt image is named for its framework"
    return f"{_FRAMEWORKS[match['framework']]} {match['version'].replace('-', '.')}"


def _first_executor_image(made: Containers) -> Keys:
    """Return the path, in the old `spec`, of the first pool's executor image."""
    above, job_spec = _job_spec(made.spec)
    index = next(index for index, pool in enumerate(job_spec[POOLS]) if CONTAINER in pool)
    return (*above, POOLS, index, PACKAGE, "executorImageUri")
