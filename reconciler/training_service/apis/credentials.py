"""IAM Service Account Credentials: projects.serviceAccounts.generateAccessToken.

The service has no service accounts, so it accepts any name and only limits the token's lifetime.
"""

from __future__ import annotations

import re
from datetime import timedelta

from reconciler.training_service.http.auth import Tokens, whole_seconds
from reconciler.training_service.http.call import Call, Handler
from reconciler.training_service.http.message import invalid
from reconciler.training_service.state.records import JsonObject

_SHORTEST = timedelta(seconds=1)
_LONGEST = timedelta(hours=1)
_ACCOUNT = re.compile(r"projects/-/serviceAccounts/(?:[^@/\s]+@[^@/\s]+|[0-9]+)")


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
    if not _ACCOUNT.fullmatch(name):
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
