"""Requests of provisioners, with their tokens."""

from __future__ import annotations

import pytest
from fastapi import FastAPI

from server.core.context import Context
from tests.server.api.conftest import BASE_URL
from tests.server.api.in_process import TestClient
from tests.server.cluster.supply.site import SETTINGS, Site, hash_of, join_token
from trainyard.protocol.worker_messages import PROTOCOL

PROVISIONERS = "/api/v1/provisioners"


def with_token(app: FastAPI, token: str) -> TestClient:
    return TestClient(app, base_url=BASE_URL, headers={"authorization": f"Bearer {token}"})


@pytest.fixture
def provisioner(app: FastAPI, context: Context) -> TestClient:
    """A client with the token of a registered source."""
    reply = with_token(app, join_token(context)).post(f"{PROVISIONERS}/register", json=SETTINGS)
    assert reply.status_code == 200, reply.text
    return with_token(app, reply.json()["source_token"])


def test_a_provisioner_registers_claims_and_reports(
    provisioner: TestClient, app: FastAPI, context: Context
) -> None:
    again = provisioner.post(f"{PROVISIONERS}/register", json=SETTINGS)
    assert again.json() == {"source_token": None}
    request_id = Site(context, name="other").ask()
    body = {"protocol": PROTOCOL, "source": "other", "secret_hashes": [hash_of("a")]}
    path = f"{PROVISIONERS}/requests/{request_id}/claim"
    refused = provisioner.post(path, json=body)
    assert refused.status_code == 403
    assert "token of source 'slurm', not of 'other'" in refused.json()["detail"]
    unknown = provisioner.post(path, json=body | {"source": "slurm"})
    assert unknown.status_code == 404
    listing = {"protocol": PROTOCOL, "source": "slurm", "complete": True, "jobs": []}
    assert provisioner.post(f"{PROVISIONERS}/report", json=listing).json() == {"cancel": []}


def test_only_provisioners_report(client: TestClient, admin: TestClient, app: FastAPI) -> None:
    body = {"protocol": PROTOCOL, "source": "slurm"}
    for other in (client, admin):
        reply = other.post(f"{PROVISIONERS}/report", json=body)
        assert reply.status_code == 403
        assert "source may" in reply.json()["detail"]


def test_a_source_token_is_no_persons(provisioner: TestClient) -> None:
    assert provisioner.get("/api/v1/nodes").status_code == 403
    assert provisioner.post("/api/v1/workers/register", json={}).status_code == 403


def test_a_name_that_is_none_is_refused_by_field(app: FastAPI, context: Context) -> None:
    joiner = with_token(app, join_token(context))
    reply = joiner.post(f"{PROVISIONERS}/register", json={**SETTINGS, "name": "Slurm_1"})
    assert reply.status_code == 422
    assert reply.json()["errors"][0]["pointer"] == "/name"
