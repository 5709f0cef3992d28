"""The environment variables that the cloud's training services set, for a job of one replica.

Sources: the pages "Code requirements" and "Distributed training" (Vertex AI), "Distributed training details"
(AI Platform Training), and the discovery documents (`baseOutputDirectory`, `EnvVar`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from reconciler.localservice.records import JsonObject

HOST = "127.0.0.1"

_REFERENCE = re.compile(r"\$\$|\$\(([^()]*)\)")


def output_folders(prefix: str) -> dict[str, str]:
    """Where a Vertex AI job writes to; nothing without a base output directory."""
    base = prefix.rstrip("/")
    folders = {
        "AIP_MODEL_DIR": "model",
        "AIP_CHECKPOINT_DIR": "checkpoints",
        "AIP_TENSORBOARD_LOG_DIR": "logs",
    }
    return {name: f"{base}/{folder}/" for name, folder in folders.items()} if base else {}


def told_job(module: str, packages: Iterable[str], args: Iterable[str]) -> str:
    """CLOUD_ML_JOB."""
    return json.dumps({"python_module": module, "package_uris": list(packages), "job_args": list(args)})


def for_pytorch(port: int) -> dict[str, str]:
    """How PyTorch's processes find each other."""
    return {"MASTER_ADDR": HOST, "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}


def cluster_spec(job_spec: JsonObject, port: int) -> str:
    """CLUSTER_SPEC, which every replica of Vertex AI has."""
    return json.dumps(
        {
            "cluster": {"workerpool0": [f"{HOST}:{port}"]},
            "environment": "cloud",
            "task": {"type": "workerpool0", "index": 0},
            "job": job_spec,
        }
    )


def tf_config(training_input: JsonObject, port: int) -> str:
    """TF_CONFIG, which AI Platform always sets, Vertex AI not for a single replica."""
    # The primary is called "master" up to runtime 1.15, and with the 2.x runtimes "chief".
    primary = "master" if training_input.get("runtimeVersion", "").startswith("1.") else "chief"
    return json.dumps(
        {
            "cluster": {primary: [f"{HOST}:{port}"]},
            "task": {"type": primary, "index": 0, "cloud": "local"},
            "job": _snake_case(training_input),
            "environment": "cloud",
        }
    )


def with_users(variables: Mapping[str, str], users: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The variables and the user's over them.

    In a user's value `$(NAME)` stands for a variable that is set before it, and `$$` for a dollar
    (EnvVar.value).
    """
    known = dict(variables)
    for name, value in users:
        known[name] = _REFERENCE.sub(lambda match: _resolved(match, known), value)
    return known


def _resolved(match: re.Match[str], known: Mapping[str, str]) -> str:
    return "$" if match[0] == "$$" else known.get(match[1], match[0])


def _snake_case(value: Any) -> Any:
    """The value with its keys as protocol buffers have them."""
    if isinstance(value, dict):
        return {re.sub(r"([A-Z])", r"_\1", key).lower(): _snake_case(held) for key, held in value.items()}
    return [_snake_case(held) for held in value] if isinstance(value, list) else value
