"""`reconciler env`: settings for other clients of the embedded training service."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from reconciler.base.errors import ExitCode, ServiceError, UsageError
from reconciler.base.safe_files import opened_folder, replace_file
from reconciler.base.state_dir import home_of
from reconciler.cli.context import Context, context_of
from reconciler.training_service.client import client_settings, locate

EXAMPLES = 'eval "$(reconciler env)"'


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    forms = ("shell", "json", "python")
    parser.add_argument("--format", choices=forms, default="shell", help="output format (default: shell)")


_CREDENTIALS, _TOKEN = "credentials.json", "token"

_PYTHON = '''"""Clients of the embedded training service, as `reconciler env --format python` prints them."""

import os

URL = {url}
TOKEN = {token}
PROJECT = {project}
LOCATION = {location}

os.environ.update({variables})


def google_api(name, version):
    """Return a client of google-api-python-client: google_api("ml", "v1")."""
    from googleapiclient import discovery

    return discovery.build(name, version, client_options={{"api_endpoint": URL}})


def vertex_ai(location={region}, **more):
    """Return google-cloud-aiplatform, set up for the service; it takes only Google's locations.

    `more` goes to its init, such as staging_bucket.
    """
    from google.cloud import aiplatform

    aiplatform.init(project=PROJECT, location=location, api_endpoint=URL, api_transport="rest", **more)
    return aiplatform


def storage():
    """Return a client of google-cloud-storage."""
    from google.cloud import storage

    return storage.Client(project=PROJECT)


def files():
    """Return the file system of gcsfs."""
    import gcsfs

    return gcsfs.GCSFileSystem(project=PROJECT)


def logging():
    """Return a client of google-cloud-logging."""
    from google.cloud import logging

    return logging.Client(project=PROJECT, client_options={{"api_endpoint": URL}}, _use_grpc=False)
'''


class Client(NamedTuple):
    """Settings of a client."""

    url: str
    token: str
    project: str
    location: str


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print what other people's clients need to use the embedded service, which is started if needed."""
    client, groups, _ = clients(context_of(arguments))
    print({"shell": _shell, "json": _json, "python": _python}[arguments.format](client, groups))
    return ExitCode.DONE


def clients(context: Context) -> tuple[Client, dict[str, dict[str, str]], Path]:
    """Start the service if needed; return its settings, the variables of each group of clients, and its home.

    Raises:
        UsageError: The environment is Google's.
        ServiceError: The service has just stopped.
    """
    environment = context.environment
    if environment.engine != "local":
        text = f'the environment "{environment.name}" is in Google Cloud: clients need no settings for it'
        raise UsageError(text, hint="choose an environment that has `engine: local` with --env")
    home = home_of(context.config.root, os.environ)
    with context.session(start=True):
        address = locate(home)
    if address is None:
        raise ServiceError("the embedded service has just stopped", hint="try again")
    client = Client(address.url, address.token, environment.project, environment.location)
    return client, _variables(client, home), home


def _variables(client: Client, home: Path) -> dict[str, dict[str, str]]:
    """Write the files with credentials that clients read; return the variables of each group of clients."""
    url, project = client.url, client.project
    settings = client_settings(url, client.token, client.location)
    with opened_folder(home) as folder:
        replace_file(_CREDENTIALS, json.dumps(settings.credentials).encode(), folder)
        replace_file(_TOKEN, client.token.encode(), folder)
    token = {"access_token": client.token, "token_type": "Bearer", "expiry": settings.credentials["expiry"]}
    override = "CLOUDSDK_API_ENDPOINT_OVERRIDES_"
    return {
        "The embedded training service": {"RECONCILER_URL": url, "RECONCILER_TOKEN": client.token},
        "Google's clients for Python, gcsfs, pyarrow": {
            "GOOGLE_APPLICATION_CREDENTIALS": str(home / _CREDENTIALS),
            "GOOGLE_CLOUD_PROJECT": project,
            "GOOGLE_CLOUD_DISABLE_GRPC": "true",
            **settings.variables,
        },
        "gcloud": {
            "CLOUDSDK_CORE_PROJECT": project,
            "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(home / _TOKEN),
            f"{override}AIPLATFORM": f"{url}/",
            f"{override}ML": f"{url}/",
            f"{override}LOGGING": f"{url}/",
            f"{override}STORAGE": f"{url}/storage/v1/",
        },
        'rclone, with the remote "reconciler:"': {
            "RCLONE_CONFIG_RECONCILER_TYPE": "google cloud storage",
            "RCLONE_CONFIG_RECONCILER_ENDPOINT": f"{url}/storage/v1/",
            "RCLONE_CONFIG_RECONCILER_PROJECT_NUMBER": project,
            "RCLONE_CONFIG_RECONCILER_TOKEN": json.dumps(token),
        },
    }


def flat(groups: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the variables of all groups."""
    return {name: value for group in groups.values() for name, value in group.items()}


def _shell(client: Client, groups: Mapping[str, Mapping[str, str]]) -> str:
    lines = [
        '# Use: eval "$(reconciler env)". Valid until the service stops; `reconciler serve` keeps it running.'
    ]
    for clients, variables in groups.items():
        lines.append(f"# {clients}")
        lines += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join(lines)


def _json(client: Client, groups: Mapping[str, Mapping[str, str]]) -> str:
    return json.dumps({**client._asdict(), "variables": flat(groups)}, indent=2)


def _python(client: Client, groups: Mapping[str, Mapping[str, str]]) -> str:
    region = client_settings(client.url, client.token, client.location).region
    settings = {name: repr(value) for name, value in {**client._asdict(), "region": region}.items()}
    return _PYTHON.format(**settings, variables=json.dumps(flat(groups), indent=4)).rstrip()
