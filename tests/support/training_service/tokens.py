"""Expiring tokens made by the service."""

from __future__ import annotations

from tests.support.training_service.served import Service

ACCOUNT = "trainer@demo.iam.gserviceaccount.com"

MINT = f"/v1/projects/-/serviceAccounts/{ACCOUNT}:generateAccessToken"

SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def mint(service: Service, lifetime: str = "10s") -> str:
    return str(service.post(MINT, {"scope": [SCOPE], "lifetime": lifetime}).json["accessToken"])
