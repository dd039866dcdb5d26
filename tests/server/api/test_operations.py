"""Checkpoints and operations over HTTP: acts, refusals with a reason, pages, and the worker API."""

from __future__ import annotations

import pytest
from fastapi import FastAPI

from server.api.auth.service import create_token
from server.core.context import Context
from server.jobs.jobs.service import stop
from tests.actors import ADA
from tests.server.api.conftest import BASE_URL
from tests.server.api.in_process import TestClient
from tests.server.harness import WORKER, Harness
from trainyard.protocol.rest.access import TokenRequest
from trainyard.protocol.rest.checkpoints import CheckpointDetails, JobDeletedView, OperationView
from trainyard.protocol.states import OperationState
from trainyard.protocol.worker_messages import PROTOCOL, Registration, RegistrationReply

API = "/api/v1"


@pytest.fixture
def saved(harness: Harness, context: Context) -> tuple[str, list[str]]:
    """A job that was stopped, with two checkpoints."""
    harness.add_node()
    job_id, (supervisor,) = harness.running(step=9)
    found = [harness.commit_checkpoint(job_id, step) for step in (4, 8)]
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    return job_id, found


@pytest.fixture
def node(app: FastAPI, context: Context, anonymous: TestClient) -> TestClient:
    """A client with the token of node `gpu-01`."""
    _, join = create_token(context, TokenRequest(name="gpu-01", kind="join"))
    registration = Registration.model_validate(
        {
            "protocol": PROTOCOL,
            "node": "gpu-01",
            "address": "10.0.0.5",
            "hardware": {
                "device": "cpu",
                "slots": 4,
                "device_name": "x86-64",
                "device_memory_bytes": 0,
                "cores": 4,
                "memory_bytes": 0,
            },
            "roots": {},
            "worker": WORKER,
            "version": "0",
        }
    )
    response = anonymous.post(
        f"{API}/workers/register",
        content=registration.model_dump_json(),
        headers={"authorization": f"Bearer {join}", "content-type": "application/json"},
    )
    token = RegistrationReply.model_validate_json(response.content).node_token
    return TestClient(app, base_url=BASE_URL, headers={"authorization": f"Bearer {token}"})


def test_a_verification_is_accepted_and_can_be_followed(
    client: TestClient, saved: tuple[str, list[str]]
) -> None:
    job_id, (checkpoint, _) = saved
    response = client.post(f"{API}/checkpoints/{checkpoint}/verify")
    assert response.status_code == 202
    view = OperationView.model_validate_json(response.content)
    assert response.headers["location"] == f"{API}/operations/{view.id}"
    assert (view.state, view.actor, view.job_name) == (OperationState.QUEUED, "someone", "tiny")
    assert client.get(f"{API}/operations/{view.id}").json() == response.json()
    for query in ({"checkpoint": checkpoint}, {"job": job_id}, {"open": True}, {}):
        items = client.get(f"{API}/operations", params=query).json()["items"]
        assert [item["id"] for item in items] == [view.id]
    nothing = {"checkpoint": f"{job_id}.a1.step-8"}
    assert client.get(f"{API}/operations", params=nothing).json()["items"] == []


def test_an_export_is_accepted_with_or_without_a_body(
    client: TestClient, saved: tuple[str, list[str]]
) -> None:
    path = f"{API}/checkpoints/{saved[1][0]}/export"
    response = client.post(path)
    assert response.status_code == 202
    view = OperationView.model_validate_json(response.content)
    assert (view.kind, view.state) == ("export", OperationState.QUEUED)
    named = {"dtype": "bfloat16", "root": "data", "name": "llama-400", "shard_gib": 2}
    other = client.post(path, json=named)
    assert other.json()["reason"] == "as bfloat16 to data:exports/llama-400"
    assert other.json()["id"] != view.id
    for field, value in {
        "dtype": "int8",
        "name": "../up",
        "root": "/srv",
        "shard_gib": 0,
        "path": "x",
    }.items():
        refusal = client.post(path, json={field: value})
        assert (refusal.status_code, refusal.json()["errors"][0]["pointer"]) == (422, f"/{field}")


def test_a_sample_has_sensible_limits(client: TestClient, saved: tuple[str, list[str]]) -> None:
    path = f"{API}/checkpoints/{saved[1][0]}/sample"
    assert client.post(path, json={"prompt": "def ", "temperature": 0}).status_code == 202
    for field, value in {
        "prompt": "x" * 4001,
        "max_tokens": 1001,
        "temperature": -1,
        "seed": -1,
    }.items():
        refusal = client.post(path, json={field: value})
        assert (refusal.status_code, refusal.json()["errors"][0]["pointer"]) == (422, f"/{field}")
    control = client.post(path, json={"prompt": "a\x1b[2J"})
    assert (control.status_code, "control character" in control.text) == (422, True)


def test_operations_come_in_pages_the_newest_first(
    client: TestClient, harness: Harness, saved: tuple[str, list[str]]
) -> None:
    made = []
    for checkpoint in saved[1]:
        made.append(client.post(f"{API}/checkpoints/{checkpoint}/verify").json()["id"])
        harness.clock.advance(1)
    page = client.get(f"{API}/operations", params={"page_size": 1}).json()
    assert [item["id"] for item in page["items"]] == made[1:]
    token = {"page_size": 1, "page_token": page["next_page_token"]}
    page = client.get(f"{API}/operations", params=token).json()
    assert ([item["id"] for item in page["items"]], page["next_page_token"]) == (made[:1], None)


def test_a_pin_is_shown_and_prevents_deletion(
    client: TestClient, saved: tuple[str, list[str]]
) -> None:
    checkpoint = saved[1][0]
    response = client.post(f"{API}/checkpoints/{checkpoint}/pin")
    view = CheckpointDetails.model_validate_json(response.content)
    assert (view.pinned_by, view.deleting, view.verification) == ("someone", False, None)
    refusal = client.delete(f"{API}/checkpoints/{checkpoint}")
    assert refusal.status_code == 409
    assert refusal.headers["content-type"].startswith("application/problem+json")
    assert refusal.json()["detail"] == f"{checkpoint} was pinned by someone; unpin it first"
    assert client.post(f"{API}/checkpoints/{checkpoint}/unpin").json()["pinned_at"] is None
    assert client.delete(f"{API}/checkpoints/{checkpoint}").status_code == 202
    assert client.get(f"{API}/checkpoints/{checkpoint}").json()["deleting"] is True


def test_a_job_goes_with_its_checkpoints(client: TestClient, saved: tuple[str, list[str]]) -> None:
    job_id, _ = saved
    response = client.delete(f"{API}/jobs/{job_id}", params={"checkpoints": "delete"})
    assert response.status_code == 202
    (operation,) = JobDeletedView.model_validate_json(response.content).operations
    assert (operation.checkpoint_id, operation.job_id) == (None, job_id)
    assert client.get(f"{API}/jobs/{job_id}").status_code == 404
    assert client.get(f"{API}/operations", params={"job": job_id}).json()["items"] == [
        operation.model_dump(mode="json")
    ]


def test_what_is_not_there_is_not_found(client: TestClient) -> None:
    missing = f"{API}/checkpoints/{'0' * 26}.a1.step-4"
    for verb in ("verify", "export", "sample", "pin", "unpin"):
        assert client.post(f"{missing}/{verb}").status_code == 404
    assert client.delete(missing).status_code == 404
    assert client.get(f"{API}/operations/{'0' * 26}").status_code == 404


def test_a_node_does_an_operation_and_only_its_own(
    client: TestClient, node: TestClient, harness: Harness, saved: tuple[str, list[str]]
) -> None:
    operation_id = client.post(f"{API}/checkpoints/{saved[1][0]}/verify").json()["id"]
    harness.keeper.run()  # gives it to node-1, which sees the storage
    path = f"{API}/workers/operations/{operation_id}"
    claim = {"protocol": PROTOCOL, "node": "gpu-01", "worker": WORKER.model_dump()}
    refusal = node.post(f"{path}/claim", json=claim)
    assert (refusal.status_code, "gpu-01 cannot claim it" in refusal.text) == (409, True)
    assert node.post(f"{path}/claim", json=claim | {"node": "node-1"}).status_code == 403
    assert client.post(f"{path}/claim", json=claim).status_code == 403
    report = {"protocol": PROTOCOL, "node": "gpu-01", "fence": 1}
    assert node.post(f"{path}/report", json=report).status_code == 409
    assert node.post(f"{path}/report", json=report | {"node": "node-1"}).status_code == 403
