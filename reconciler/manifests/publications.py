"""Publications in manifests and settings: their mistakes that the schemas can't express.

Those that other manifests or the environment's places take part in are in `operations/publication_rules.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reconciler.base.diagnostics import Finding, Keys, quote
from reconciler.manifests.expectations import holder_of_folder, study_metrics
from reconciler.model.fields import text_of

PUBLISH = "publish"
OWN_FOLDERS = "outputs: own"
"""What an environment gives to manifests, beside its defaults."""
MOST_BYTES = 512
"""Bytes of the longest address or path; the schema counts characters."""
RESERVED = {"claimsBucket": "bucket of the claims", "stagingBucket": "staging bucket"}
"""The settings of buckets that nothing is published to, and what they are."""
ELSEWHERE = "write an address in a bucket that no training job writes to"

_KEY: Keys = ("publish",)


def publication_findings(
    publish: Mapping[str, Any], spec: Mapping[str, Any], filled: frozenset[str]
) -> Iterator[Finding]:
    """Yield what keeps the result of a manifest's job from being published.

    Args:
        publish, spec: The manifest's fields; what the schema refuses in them is skipped.
        filled: What the environment gives: the names of its defaults, `PUBLISH` and `OWN_FOLDERS`.
    """
    for name in ("to", "from"):
        text = text_of(publish, name)
        if len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
            yield Finding((*_KEY, name), f"{quote(name)} is too long", f"at most {MOST_BYTES} bytes")
    if "to" not in publish and PUBLISH not in filled:
        hint = (
            'write "to: gs://BUCKET/FOLDER" below it; or "publish: gs://BUCKET" under "defaults" of the '
            "environment in reconciler.yaml, which is local without --env"
        )
        yield Finding(_KEY, "neither the manifest nor the environment has an address", hint, of_key=True)
    job, field = holder_of_folder(spec)
    if job and field not in job and "baseOutputDirectory" not in filled:
        hint = f"add {quote(field)}: the model is copied from a folder below it"
        yield Finding(_KEY, "the run has no output folder to publish from", hint, of_key=True)
    elif job and field in job and OWN_FOLDERS not in filled:
        message = "the run has no output folder of its own, so another run could overwrite its model"
        yield Finding(_KEY, message, 'write "outputs: own" in reconciler.yaml', of_key=True)
    metrics = study_metrics(spec)
    if len(metrics) > 1:
        message = f"the study has {len(metrics)} metrics, so no trial is the best one"
        yield Finding(_KEY, message, 'keep one under "metrics", or remove "publish"', of_key=True)


def publication_settings_findings(settings: Any) -> Iterator[Finding]:
    """Yield the mistakes in `defaults.publish` of the environments: a place that something else uses."""
    written = _mapping(_mapping(settings).get("environments"))
    reserved = _reserved(written)
    first: dict[tuple[str, str], str] = {}
    for name, value in written.items():
        environment = _mapping(value)
        defaults = _mapping(environment.get("defaults"))
        publish = text_of(defaults, "publish")
        if not publish:
            continue
        keys = ("environments", name, "defaults", "publish")
        engine, instance = _engine(name, environment), text_of(environment, "instance")
        address = place_of_instance(publish, instance)
        other = first.setdefault((engine, address), name)
        if other != name:
            message = (
                f"the environments {quote(other)} and {quote(name)} publish to this place: a model of one "
                "would replace the model of the other"
            )
            hint = f"write another place, such as {publish.rstrip('/')}/{name}"
            yield Finding(keys, message, hint)
        if owner := reserved.get(bucket_of(address)):
            yield Finding(keys, f"this is in {owner}", ELSEWHERE)
        folder = text_of(defaults, "baseOutputDirectory")
        if folder and (relation := relation_of(address, place_of_instance(folder, instance))):
            message = f'this {relation} "baseOutputDirectory", below which training jobs write'
            yield Finding(keys, message, ELSEWHERE)


def place_of_instance(place: str, instance: str) -> str:
    """Return the part of a default place that belongs to an instance of the environment."""
    return f"{place.rstrip('/')}/{instance}".rstrip("/")


def relation_of(address: str, folder: str) -> str:
    """Return how an address lies to a folder it has something in common with, as a verb; "" for nothing.

    Neither has a slash at its end.
    """
    if address == folder:
        return "is"
    if address.startswith(f"{folder}/"):
        return "lies in"
    return "contains" if folder.startswith(f"{address}/") else ""


def bucket_of(address: str) -> str:
    """Return the bucket of a folder (gs://…)."""
    return address.removeprefix("gs://").partition("/")[0]


def _reserved(environments: Mapping[Any, Any]) -> dict[str, str]:
    """Return the buckets of all environments' claims and code, each with what it is."""
    buckets: dict[str, str] = {}
    for name, value in environments.items():
        environment = _mapping(value)
        for field, noun in RESERVED.items():
            if bucket := bucket_of(text_of(environment, field)):
                buckets.setdefault(bucket, f"the {noun} of the environment {quote(str(name))}")
    return buckets


def _engine(name: Any, environment: Mapping[Any, Any]) -> str:
    # The buckets of the embedded service are others than Google's of the same names.
    return text_of(environment, "engine") or ("local" if name == "local" else "")


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}
