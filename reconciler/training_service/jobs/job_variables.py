"""Environment variables that the cloud's services give to a job's replicas.

Sources: the pages "Code requirements" and "Distributed training" (Vertex AI), "TF_CONFIG and distributed
training", "Using containers for distributed training" and "Distributed PyTorch training" (AI Platform
Training), and the discovery documents (`baseOutputDirectory`, `EnvVar`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reconciler.training_service.jobs.cluster import Replica
from reconciler.training_service.jobs.environment_variables import HOST
from reconciler.training_service.state.records import JsonObject
from reconciler.training_service.state.run_spec import Role

MODEL_DIR = "AIP_MODEL_DIR"
"""The variable with the folder of a job's model."""

_REFERENCE = re.compile(r"\$\$|\$\(([^()]*)\)")


def output_folders(prefix: str, trial: int = 0) -> dict[str, str]:
    """Return the variables with the output folders of a Vertex AI job or trial; empty without a `prefix`."""
    base = "/".join([prefix.rstrip("/"), *([str(trial)] if trial else [])])
    folders = {
        MODEL_DIR: "model",
        "AIP_CHECKPOINT_DIR": "checkpoints",
        "AIP_TENSORBOARD_LOG_DIR": "logs",
    }
    return {name: f"{base}/{folder}/" for name, folder in folders.items()} if prefix else {}


def job_description(module: str, packages: Iterable[str], args: Iterable[str]) -> str:
    """Return the value of CLOUD_ML_JOB."""
    return json.dumps({"python_module": module, "package_uris": list(packages), "job_args": list(args)})


def for_trial(trial: int, metrics: Sequence[str]) -> dict[str, str]:
    """Return the variables with a trial's number and metric; empty for `trial` 0, a job without trials."""
    if not trial:
        return {}
    return {"CLOUD_ML_TRIAL_ID": str(trial), "CLOUD_ML_HP_METRIC_TAG": metrics[0] if metrics else ""}


def for_pytorch(port: int, rank: int, replicas: int) -> dict[str, str]:
    """Return the variables for PyTorch's distributed processes to find each other.

    The rank counts every replica, in the order of the pools: programs with a task of their own in the third
    pool rely on that. The port differs from the ports of the replicas, which they use themselves.
    """
    return {
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(replicas),
    }


def cluster_spec(replicas: Sequence[Replica], replica: Replica, job: JsonObject, trial: int = 0) -> str:
    """Return the CLUSTER_SPEC of a replica, which lists all replicas, evaluators as well.

    Vertex AI sets it for every replica, AI Platform for those of custom containers.
    """
    return _compact_json(
        {
            "cluster": _addresses(replicas, {member.pool.label: member.pool.label for member in replicas}),
            "environment": "cloud",
            "task": {"type": replica.pool.label, "index": replica.index, **_trial(trial)},
            "job": job,
        }
    )


def tf_config(
    replicas: Sequence[Replica], replica: Replica, primary: str, job: JsonObject, trial: int = 0
) -> str:
    """Return the TF_CONFIG of a replica, in which evaluators are tasks but no part of the cluster.

    Args:
        primary: The name of the primary's task type: `chief` or `master`.
    """
    types = {role: primary if role is Role.PRIMARY else str(role) for role in Role}
    members = [member for member in replicas if member.pool.role is not Role.EVALUATOR]
    return _compact_json(
        {
            "cluster": _addresses(
                members, {member.pool.label: types[member.pool.role] for member in members}
            ),
            "task": {
                "type": types[replica.pool.role],
                "index": replica.index,
                **_trial(trial),
                "cloud": "local",
            },
            "job": job,
            "environment": "cloud",
        }
    )


def primary_of_ml(training_input: JsonObject) -> str:
    """Return AI Platform's name of the primary in TF_CONFIG."""
    # TensorFlow rejects an evaluator in a cluster with a "master".
    if training_input.get("useChiefInTfConfig") or int(training_input.get("evaluatorCount", 0)):
        return "chief"
    if training_input.get("masterConfig", {}).get("imageUri"):
        return "master"
    # Runtimes up to 1.15 use "master", the 2.x runtimes "chief".
    return "master" if training_input.get("runtimeVersion", "").startswith("1.") else "chief"


def with_users(variables: Mapping[str, str], users: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the variables, overridden by the user's.

    In a user's value, `$(NAME)` stands for a variable that is set before it, and `$$` for a dollar
    (EnvVar.value). A reference to an unknown variable stays as it is.
    """
    merged = dict(variables)
    for name, value in users:
        merged[name] = _REFERENCE.sub(
            lambda match: "$" if match[0] == "$$" else merged.get(match[1], match[0]), value
        )
    return merged


def snake_case(value: Any) -> Any:
    """Return the value with its keys in snake case, as in protocol buffers."""
    if isinstance(value, dict):
        return {re.sub(r"([A-Z])", r"_\1", key).lower(): snake_case(held) for key, held in value.items()}
    return [snake_case(held) for held in value] if isinstance(value, list) else value


def _addresses(replicas: Sequence[Replica], keys: Mapping[str, str]) -> dict[str, list[str]]:
    addresses: dict[str, list[str]] = {}
    for replica in replicas:
        addresses.setdefault(keys[replica.pool.label], []).append(f"{HOST}:{replica.port}")
    return addresses


def _trial(trial: int) -> dict[str, str]:
    return {"trial": str(trial)} if trial else {}


def _compact_json(value: JsonObject) -> str:
    return json.dumps(value, separators=(",", ":"))
