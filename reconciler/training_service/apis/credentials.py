"""Credentials for clients and trainers, as IAM's API and Compute Engine's metadata server give them.

`refreshed` answers clients that refresh the credentials of `reconciler env`, as Google's token address does:
its C++ client does so before its first request, whatever the file says.

The service has no service accounts: projects.serviceAccounts.generateAccessToken accepts any name and only
limits the token's lifetime.

In the cloud a trainer gets its credentials from the metadata server. Here the token is a dummy: the job's
storage requires none. Without a token `google.auth.default()` fails, and so do pyarrow and pandas for `gs://`
paths.

Sources: the page "Predefined metadata keys" (Compute Engine); RFC 6749, sections 5 and 6.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from datetime import timedelta
from urllib.parse import parse_qsl

from reconciler.base.listener.message import Request, Response
from reconciler.training_service.http.auth import Tokens, same, whole_seconds
from reconciler.training_service.http.call import Call, Handler
from reconciler.training_service.http.message import invalid, json_response, not_found
from reconciler.training_service.jobs.launch import region_of
from reconciler.training_service.state.records import JobRecord, JsonObject, number_of

_SHORTEST = timedelta(seconds=1)
_LONGEST = timedelta(hours=1)
_SERVICE_ACCOUNT = re.compile(r"projects/-/serviceAccounts/(?:[^@/\s]+@[^@/\s]+|[0-9]+)")

_METADATA = "/computeMetadata/"
_EMAIL = "trainer@local.iam.gserviceaccount.com"
_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
_ACCOUNT = "instance/service-accounts/"


class CredentialsApi:
    """Handler of projects.serviceAccounts."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def handlers(self) -> dict[str, Handler]:
        """Return the handler by method id."""
        return {"iamcredentials.projects.serviceAccounts.generateAccessToken": self._generate}

    def _generate(self, call: Call) -> JsonObject:
        call.access.check_minting()
        account = f"projects/{call.path['projectsId']}/serviceAccounts/{call.path['serviceAccountsId']}"
        for name in (account, *call.body.get("delegates", [])):
            _check_account(name)
        if not call.body.get("scope"):
            raise invalid("Required field scope: at least one is needed.")
        token, ends = self._tokens.mint(_lifetime(call.body.get("lifetime", "3600s"), account))
        return {"accessToken": token, "expireTime": whole_seconds(ends)}


def _check_account(name: str) -> None:
    if not _SERVICE_ACCOUNT.fullmatch(name):
        raise invalid(f"Invalid name {name}: it must be projects/-/serviceAccounts/EMAIL_OR_UNIQUE_ID.")


def _lifetime(text: str, account: str) -> timedelta:
    # The JSON mapping has already checked that the text is a google.protobuf.Duration.
    lifetime = timedelta(seconds=float(text.removesuffix("s")))
    if lifetime < _SHORTEST:
        raise invalid("The lifetime of an access token must be at least one second.")
    if lifetime > _LONGEST:
        limit = "constraints/iam.allowServiceAccountCredentialLifetimeExtension"
        raise invalid(
            f"Access tokens of {account} can't have lifetimes of more than 1 hour."
            f" Google's organization policy constraint {limit}, which would allow it, isn't known here."
        )
    return lifetime


TOKEN_PATH = "/token"  # noqa: S105 (an address)
_MAX_FORM = 16 * 1024


def refresh_token_of(token: str) -> str:
    """Return the secret that `refreshed` gives the service's token for; the token doesn't follow from it."""
    return hmac.new(token.encode(), b"refresh token", hashlib.sha256).hexdigest()


def refreshed(request: Request, token: str) -> Response:
    """Return the service's token to a request with the refresh token that belongs to it."""
    form = dict(parse_qsl(request.body.read(_MAX_FORM).decode("utf-8", "replace")))
    if form.get("grant_type") != "refresh_token":
        return json_response({"error": "unsupported_grant_type"}, 400)
    if not same(form.get("refresh_token", ""), refresh_token_of(token)):
        return json_response({"error": "invalid_grant"}, 400)
    # Google's C++ client refuses an answer without an id_token.
    answer = {"access_token": token, "expires_in": 3600, "token_type": "Bearer", "id_token": ""}
    return json_response(answer)


def is_for_metadata(request: Request) -> bool:
    """Return True if the request is for the metadata server."""
    # Google's clients request the root to detect a metadata server.
    flavor = request.headers.get("metadata-flavor", "").lower() == "google"
    return flavor and (request.path == "/" or request.path.startswith(_METADATA))


def metadata(request: Request, job: JobRecord) -> Response:
    """Answer a trainer of this job.

    Raises:
        ApiError: NOT_FOUND.
    """
    value = _value(request.path.removeprefix(f"{_METADATA}v1/"), job)
    if value is None:
        raise not_found("Not found.")
    kind = "application/text" if isinstance(value, str) else "application/json"
    content = value if isinstance(value, str) else json.dumps(value)
    headers = (("Metadata-Flavor", "Google"), ("Content-Type", kind), ("Content-Length", str(len(content))))
    return Response(200, headers, content.encode())


def _value(path: str, job: JobRecord) -> str | dict[str, object] | None:
    account, _, key = path.removeprefix(_ACCOUNT).partition("/")
    if path.startswith(_ACCOUNT) and account in ("default", _EMAIL):
        account_values: dict[str, str | dict[str, object]] = {
            "": {"aliases": ["default"], "email": _EMAIL, "scopes": _SCOPES},
            "email": _EMAIL,
            "scopes": "\n".join(_SCOPES),
            "token": {"access_token": "worth-nothing", "expires_in": 3600, "token_type": "Bearer"},
        }
        return account_values.get(key)
    number, region = number_of(job.project), region_of(job)
    values = {
        "/": "computeMetadata/",
        "project/project-id": job.project,
        "project/numeric-project-id": number,
        "instance/region": f"projects/{number}/regions/{region}",
        "instance/zone": f"projects/{number}/zones/{region}-a",
        "universe/universe-domain": "",
    }
    return values.get(path)
