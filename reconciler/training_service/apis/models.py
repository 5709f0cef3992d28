"""Vertex AI: projects.locations.models.

A model is a record here: nothing is served from it.
"""

from __future__ import annotations

from reconciler.training_service.state.models import ModelVersion
from reconciler.training_service.state.records import JsonObject


def model_resource(version: ModelVersion, *, versioned: bool = False) -> JsonObject:
    """Return a version in the API's form; `versioned` puts its id into the name (`models/ID@VERSION`).

    It says that the model can neither be deployed nor exported: nothing here does that.
    """
    return {
        **version.body,
        "name": f"{version.name}@{version.version_id}" if versioned else version.name,
        "versionId": str(version.version_id),
        **({"versionAliases": [*version.aliases]} if version.aliases else {}),
        "createTime": version.create_time,
        "updateTime": version.update_time,
        "versionCreateTime": version.version_create_time,
        "versionUpdateTime": version.version_update_time,
        **({"trainingPipeline": version.pipeline} if version.pipeline else {}),
        "modelSourceInfo": {"sourceType": "CUSTOM"},
        "etag": version.etag,
    }
