"""The environment variables that the cloud's training services set.

Sources: the pages "Code requirements" and "Distributed training" (Vertex AI), "TF_CONFIG and distributed
training", "Using containers for distributed training" and "Distributed PyTorch training" (AI Platform
Training), and the discovery documents (`baseOutputDirectory`, `EnvVar`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reconciler.localservice.cluster import Replica
from reconciler.localservice.records import JsonObject
from reconciler.localservice.run_spec import Role

HOST = "127.0.0.1"

_REFERENCE = re.compile(r"\$\$|\$\(([^()]*)\)")


def output_folders(prefix: str, trial: int = 0) -> dict[str, str]:
    """Where a Vertex AI job, or one of its trials, writes to; nothing without a base output directory."""
    base = "/".join([prefix.rstrip("/"), *([str(trial)] if trial else [])])
    folders = {
        "AIP_MODEL_DIR": "model",
        "AIP_CHECKPOINT_DIR": "checkpoints",
        "AIP_TENSORBOARD_LOG_DIR": "logs",
    }
    return {name: f"{base}/{folder}/" for name, folder in folders.items()} if prefix else {}


def told_job(module: str, packages: Iterable[str], args: Iterable[str]) -> str:
    """CLOUD_ML_JOB."""
    return json.dumps({"python_module": module, "package_uris": list(packages), "job_args": list(args)})


def told_trial(trial: int, metrics: Sequence[str]) -> dict[str, str]:
    """What a trial learns of itself; nothing for a job without trials."""
    if not trial:
        return {}
    return {"CLOUD_ML_TRIAL_ID": str(trial), "CLOUD_ML_HP_METRIC_TAG": metrics[0] if metrics else ""}


def for_pytorch(port: int, rank: int, replicas: int) -> dict[str, str]:
    """How PyTorch's processes find each other.

    Every replica counts, in the order of the pools: programs that run something of their own in the third
    pool rely on that. The port is none of the replicas', which keep theirs for themselves.
    """
    return {
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(replicas),
    }


def cluster_spec(replicas: Sequence[Replica], own: Replica, job: JsonObject, trial: int = 0) -> str:
    """CLUSTER_SPEC of one replica; all replicas are in it, evaluators as well.

    Vertex AI gives it to every replica, AI Platform to those of custom containers.
    """
    return _described(
        {
            "cluster": _addresses(replicas, {replica.pool.label: replica.pool.label for replica in replicas}),
            "environment": "cloud",
            "task": {"type": own.pool.label, "index": own.index, **_trial(trial)},
            "job": job,
        }
    )


def tf_config(
    replicas: Sequence[Replica], own: Replica, primary: str, job: JsonObject, trial: int = 0
) -> str:
    """TF_CONFIG of one replica, in which evaluators are tasks but no part of the cluster.

    Args:
        primary: What the primary is called: `chief` or `master`.
    """
    types = {role: primary if role is Role.PRIMARY else str(role) for role in Role}
    members = [replica for replica in replicas if replica.pool.role is not Role.EVALUATOR]
    return _described(
        {
            "cluster": _addresses(
                members, {member.pool.label: types[member.pool.role] for member in members}
            ),
            "task": {"type": types[own.pool.role], "index": own.index, **_trial(trial), "cloud": "local"},
            "job": job,
            "environment": "cloud",
        }
    )


def primary_of_ml(training_input: JsonObject) -> str:
    """What AI Platform calls the primary in TF_CONFIG."""
    # TensorFlow takes no evaluator beside a "master".
    if training_input.get("useChiefInTfConfig") or int(training_input.get("evaluatorCount", 0)):
        return "chief"
    if training_input.get("masterConfig", {}).get("imageUri"):
        return "master"
    # Up to runtime 1.15, and "chief" with the 2.x runtimes.
    return "master" if training_input.get("runtimeVersion", "").startswith("1.") else "chief"


def with_users(variables: Mapping[str, str], users: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The variables and the user's over them.

    In a user's value `$(NAME)` stands for a variable that is set before it, and `$$` for a dollar
    (EnvVar.value).
    """
    known = dict(variables)
    for name, value in users:
        known[name] = _REFERENCE.sub(lambda match: _resolved(match, known), value)
    return known


def snake_case(value: Any) -> Any:
    """The value with its keys as protocol buffers have them."""
    if isinstance(value, dict):
        return {re.sub(r"([A-Z])", r"_\1", key).lower(): snake_case(held) for key, held in value.items()}
    return [snake_case(held) for held in value] if isinstance(value, list) else value


def _addresses(replicas: Sequence[Replica], keys: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for replica in replicas:
        found.setdefault(keys[replica.pool.label], []).append(f"{HOST}:{replica.port}")
    return found


def _trial(trial: int) -> dict[str, str]:
    return {"trial": str(trial)} if trial else {}


def _described(value: JsonObject) -> str:
    return json.dumps(value, separators=(",", ":"))


def _resolved(match: re.Match[str], known: Mapping[str, str]) -> str:
    return "$" if match[0] == "$$" else known.get(match[1], match[0])
