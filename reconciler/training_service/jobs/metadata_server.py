"""The part of Compute Engine's metadata server that Google's clients use to get credentials.

In the cloud a trainer gets its credentials from that server. Here the token is a dummy: the job's storage
requires none. Without a token `google.auth.default()` fails, and so do pyarrow and pandas for `gs://` paths.

Source: the page "Predefined metadata keys" (Compute Engine).
"""

from __future__ import annotations

import json

from reconciler.training_service.http.message import Request, Response, not_found

PATHS = "/computeMetadata/"

_EMAIL = "trainer@local.iam.gserviceaccount.com"
_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
_ACCOUNT = "instance/service-accounts/"


def variables(job_url: str) -> dict[str, str]:
    """Return the variables that point Google's clients to a job's storage at http://HOST:PORT/jobs/SECRET."""
    place = job_url.partition("://")[2].rstrip("/")
    return {
        "STORAGE_EMULATOR_HOST": job_url,
        # Google's C++ client, which pyarrow uses, reads this variable only.
        "CLOUD_STORAGE_EMULATOR_ENDPOINT": job_url,
        "GCE_METADATA_HOST": place,
        "GCE_METADATA_ROOT": place,
        "GCE_METADATA_IP": f"{place}/",
    }


def is_asked(request: Request) -> bool:
    """Return True if the request is for the metadata server."""
    # Google's clients request the root to detect a metadata server.
    flavor = request.headers.get("metadata-flavor", "").lower() == "google"
    return flavor and (request.path == "/" or request.path.startswith(PATHS))


def answer(request: Request, project: str) -> Response:
    """Answer a trainer of this project.

    Raises:
        ApiError: NOT_FOUND.
    """
    value = _value(request.path.removeprefix(f"{PATHS}v1/"), project)
    if value is None:
        raise not_found("Not found.")
    kind = "application/text" if isinstance(value, str) else "application/json"
    content = value if isinstance(value, str) else json.dumps(value)
    headers = (("Metadata-Flavor", "Google"), ("Content-Type", kind), ("Content-Length", str(len(content))))
    return Response(200, headers, content.encode())


def _value(path: str, project: str) -> str | dict[str, object] | None:
    account, _, key = path.removeprefix(_ACCOUNT).partition("/")
    if path.startswith(_ACCOUNT) and account in ("default", _EMAIL):
        account_values: dict[str, str | dict[str, object]] = {
            "": {"aliases": ["default"], "email": _EMAIL, "scopes": _SCOPES},
            "email": _EMAIL,
            "scopes": "\n".join(_SCOPES),
            "token": {"access_token": "worth-nothing", "expires_in": 3600, "token_type": "Bearer"},
        }
        return account_values.get(key)
    return {"/": "computeMetadata/", "project/project-id": project, "universe/universe-domain": ""}.get(path)
