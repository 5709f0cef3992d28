"""What Compute Engine's metadata server tells a trainer, as far as Google's clients ask for credentials.

In the cloud a trainer has its credentials from there. Here the token is worth nothing: the job's storage asks
for none. Without it `google.auth.default()` fails, and so do pyarrow's and pandas' own ways to `gs://` paths.

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
    """What leads Google's clients to a job's storage and credentials, at http://HOST:PORT/jobs/SECRET."""
    place = job_url.partition("://")[2].rstrip("/")
    return {
        "STORAGE_EMULATOR_HOST": job_url,
        # Google's C++ client, which is in pyarrow.
        "CLOUD_STORAGE_EMULATOR_ENDPOINT": job_url,
        "GCE_METADATA_HOST": place,
        "GCE_METADATA_ROOT": place,
        "GCE_METADATA_IP": f"{place}/",
    }


def is_asked(request: Request) -> bool:
    """Whether the request is for the metadata server; its root is asked to find out if there is one."""
    flavor = request.headers.get("metadata-flavor", "").lower() == "google"
    return flavor and (request.path == "/" or request.path.startswith(PATHS))


def answer(request: Request, project: str) -> Response:
    """The answer to a trainer of this project.

    Raises:
        ApiError: NOT_FOUND.
    """
    told = _told(request.path.removeprefix(f"{PATHS}v1/"), project)
    if told is None:
        raise not_found("Not found.")
    kind = "application/text" if isinstance(told, str) else "application/json"
    content = told if isinstance(told, str) else json.dumps(told)
    headers = (("Metadata-Flavor", "Google"), ("Content-Type", kind), ("Content-Length", str(len(content))))
    return Response(200, headers, content.encode())


def _told(path: str, project: str) -> str | dict[str, object] | None:
    account, _, key = path.removeprefix(_ACCOUNT).partition("/")
    if path.startswith(_ACCOUNT) and account in ("default", _EMAIL):
        of_account: dict[str, str | dict[str, object]] = {
            "": {"aliases": ["default"], "email": _EMAIL, "scopes": _SCOPES},
            "email": _EMAIL,
            "scopes": "\n".join(_SCOPES),
            "token": {"access_token": "worth-nothing", "expires_in": 3600, "token_type": "Bearer"},
        }
        return of_account.get(key)
    return {"/": "computeMetadata/", "project/project-id": project, "universe/universe-domain": ""}.get(path)
