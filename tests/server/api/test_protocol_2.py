"""Workers and supervisors of protocol 2 are served: their requests, as they were recorded.

The programs of that version refuse unknown fields, so a reply to them may have no others.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import pytest
from fastapi import FastAPI

from server.api.auth.service import create_token
from server.core.context import Context
from server.jobs.jobs.service import stop
from server.jobs.protocol_2 import (
    SHAPES,
)
from tests.actors import ADA
from tests.server.api.conftest import BASE_URL
from tests.server.api.in_process import TestClient
from tests.server.harness import Harness
from trainyard.protocol.rest.access import TokenRequest
from trainyard.protocol.worker_messages import PROTOCOL

WORKERS = "/api/v1/workers"
ROOT = "11111111-2222-4333-8444-555555555555"
WORKER = {"folder": "0" * 32, "boot_id": "c0ffee00-0000-4000-8000-000000000000"}
REGISTRATION = {
    "protocol": 2,
    "node": "gpu-01",
    "address": "10.0.0.5",
    "hardware": {
        "device": "cpu",
        "slots": 4,
        "device_name": "x86-64",
        "device_memory_bytes": 1073741824,
        "cores": 4,
        "memory_bytes": 4294967296,
        "isolation": "none",
    },
    "roots": {"checkpoints": ROOT, "data": ROOT},
    "worker": WORKER,
    "version": "0.1.0",
}
HEARTBEAT = {
    "protocol": 2,
    "node": "gpu-01",
    "supervised": [],
    "worker": WORKER,
    "gone": [],
    "notice": None,
}
CLAIM = {"protocol": 2, "node": "gpu-01", "worker": WORKER}
METRICS = (
    b'{"step":1,"time":1000.0,"values":{"train/loss":2.5,"train/grad_norm":"NaN"},'
    b'"data_digest":"0123456789abcdef0123456789abcdef"}\n'
)
REPORT: dict[str, Any] = {
    "protocol": 2,
    "node": "gpu-01",
    "identity": {"boot_id": "c0ffee00", "pid_namespace": "4026531836", "pid": 7, "start_time": 9},
    "heartbeat": {"phase": "training", "step": 1, "time": 1000.0},
    "rank_pids": {"0": 11},
    "provenance": {"torch": "2.13.0"},
    "chunks": [],
    "answers": {},
    "exit": None,
}
EXIT = {
    "outcome": "failed",
    "failure": {
        "reason": "out_of_memory",
        "message": "rank 0 asked for 2 GiB more than there are",
        "rank": 0,
        "node": "gpu-01",
        "signal": None,
        "exit_code": 1,
        "step": 1,
        "path": None,
        "traceback": "Traceback (most recent call last): ...",
        "bad_window": None,
        "free_retry": False,
        "memory": None,
        "load": None,
    },
    "ranks": [],
    "time": 1001.0,
}
PROGRESS = {
    "protocol": 2,
    "node": "gpu-01",
    "fence": 1,
    "progress": {"doing": "reads model-0.bin", "done": 1, "total": 10},
    "outcome": None,
}
OUTCOME = {
    "protocol": 2,
    "node": "gpu-01",
    "fence": 1,
    "progress": None,
    "outcome": {
        "outcome": "succeeded",
        "message": "all files are whole",
        "verification": {
            "ok": True,
            "at": "2026-01-01T00:00:00Z",
            "loaded_at": "2026-01-01T00:00:00Z",
            "loaded_on": 2,
            "tensors": 3,
            "fault": None,
            "message": None,
        },
        "files": 0,
        "export": None,
        "sample": None,
        "commits": [],
    },
}


class NodeOfProtocol2:
    """A node that sends what protocol 2 sends, and reads replies as strictly as it did."""

    def __init__(self, app: FastAPI, context: Context, node: str = "gpu-01") -> None:
        self._app = app
        self.node = node
        _, self.token = create_token(context, TokenRequest(name=node, kind="join"))
        reply = self.post("register", "RegistrationReply", REGISTRATION)
        self.token = reply["node_token"]

    def post(
        self, path: str, kind: str, body: dict[str, Any], *, token: str | None = None
    ) -> dict[str, Any]:
        reply = self.send(path, body, token=token)
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        assert not unknown_fields(found, SHAPES[kind])
        return found

    def send(self, path: str, body: dict[str, Any], *, token: str | None = None) -> Any:
        headers = {"authorization": f"Bearer {token or self.token}"}
        client = TestClient(self._app, base_url=BASE_URL, headers=headers)
        return client.post(f"{WORKERS}/{path}", json=body)

    def upgrade(self) -> None:
        """Register again with the present protocol, whose replies have further fields."""
        reply = self.send("register", REGISTRATION | {"protocol": PROTOCOL})
        assert reply.status_code == 200, reply.text


@pytest.fixture
def old(app: FastAPI, context: Context) -> NodeOfProtocol2:
    return NodeOfProtocol2(app, context)


def unknown_fields(value: Any, shape: Any, place: str = "") -> list[str]:
    """The fields of a reply that its recorded shape lacks; None in a shape stands for any value."""
    if isinstance(shape, list) and isinstance(value, list):
        return [f for v in value for f in unknown_fields(v, shape[0], f"{place}[]")]
    if not isinstance(shape, dict) or not isinstance(value, dict):
        return []
    unknown = [f"{place}.{name}" for name in value if name not in shape]
    known = [name for name in value if name in shape]
    return unknown + [
        f for name in known for f in unknown_fields(value[name], shape[name], f"{place}.{name}")
    ]


def test_an_attempt_of_protocol_2_runs_to_its_end(
    old: NodeOfProtocol2, client: TestClient, harness: Harness
) -> None:
    job_id = harness.submit(retry={"max_retries": 0})
    harness.place()
    (message,) = harness.dispatcher.sent
    assert message.model_dump().keys() == SHAPES["LaunchMessage"].keys()
    path = f"attempts/{message.attempt_id}"
    old.post("heartbeat", "NodeHeartbeatReply", HEARTBEAT)
    claimed = old.post(f"{path}/claim", "ClaimReply", CLAIM)
    old.post("heartbeat", "NodeHeartbeatReply", HEARTBEAT | {"supervised": [message.attempt_id]})
    content = base64.b64encode(zlib.compress(METRICS)).decode()
    chunk = {"file": "metrics", "start": 0, "end": len(METRICS), "content": content}

    def report(**more: Any) -> dict[str, Any]:
        body = REPORT | more
        return old.post(f"{path}/report", "ReportReply", body, token=claimed["attempt_token"])

    assert report(chunks=[chunk])["acknowledged"] == {"metrics": len(METRICS)}
    job = client.get(f"/api/v1/jobs/{job_id}").json()
    assert (job["state"], job["progress"]["step"]) == ("running", 1)
    report(exit=EXIT)
    job = client.get(f"/api/v1/jobs/{job_id}").json()
    assert job["state"] == "failed"
    assert job["current_attempt"]["failure"]["reason"] == "out_of_memory"


def test_an_operation_is_carried_out_under_the_names_of_protocol_2(
    old: NodeOfProtocol2, client: TestClient, context: Context, harness: Harness
) -> None:
    harness.add_node(slots=8, roots={"checkpoints": ROOT, "data": ROOT})
    job_id, (supervisor,) = harness.running(step=9)
    checkpoint_id = harness.commit_checkpoint(job_id, 4)
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    client.post("/api/v1/nodes/node-1/drain", json={})
    operation_id = client.post(f"/api/v1/checkpoints/{checkpoint_id}/verify").json()["id"]
    harness.keeper.run()
    (message,) = harness.dispatcher.chores
    assert message.model_dump() == {"chore_id": operation_id, "node": "gpu-01"}
    assert not harness.dispatcher.operations
    path = f"chores/{operation_id}"
    claimed = old.post(f"{path}/claim", "ChoreClaimReply", CLAIM)
    assert (claimed["task"]["kind"], claimed["fence"]) == ("verify", 1)
    assert not old.post(f"{path}/report", "ChoreReportReply", PROGRESS)["ended"]
    assert old.post(f"{path}/report", "ChoreReportReply", OUTCOME)["ended"]
    view = client.get(f"/api/v1/operations/{operation_id}").json()
    assert (view["state"], view["node"]) == ("succeeded", "gpu-01")
    assert client.get(f"/api/v1/checkpoints/{checkpoint_id}").json()["verification"]["ok"]


def test_an_upgraded_worker_gets_the_present_message(
    old: NodeOfProtocol2, app: FastAPI, context: Context, client: TestClient, harness: Harness
) -> None:
    harness.add_node(slots=8, roots={"checkpoints": ROOT, "data": ROOT})
    job_id, (supervisor,) = harness.running(step=9)
    checkpoint_id = harness.commit_checkpoint(job_id, 4)
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    client.post("/api/v1/nodes/node-1/drain", json={})
    old.upgrade()
    client.post(f"/api/v1/checkpoints/{checkpoint_id}/verify")
    harness.keeper.run()
    assert [message.node for message in harness.dispatcher.operations] == ["gpu-01"]
    assert not harness.dispatcher.chores


def test_protocol_1_is_refused(app: FastAPI, context: Context) -> None:
    _, token = create_token(context, TokenRequest(name="gpu-01", kind="join"))
    client = TestClient(app, base_url=BASE_URL, headers={"authorization": f"Bearer {token}"})
    reply = client.post(f"{WORKERS}/register", json=REGISTRATION | {"protocol": 1})
    assert (reply.status_code, "[2, 3]" in reply.text) == (422, True)


@pytest.fixture
def without_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes a field from protocol 2, which is a field that was added since."""
    for shape in (SHAPES["ClaimReply"], SHAPES["ChoreClaimReply"]["task"]["sample"]):
        monkeypatch.delitem(shape["spec"]["training"], "seed", raising=False)


@pytest.mark.usefixtures("without_seed")
def test_a_job_with_a_new_field_waits_for_a_newer_worker(
    old: NodeOfProtocol2, client: TestClient, harness: Harness
) -> None:
    plain = harness.submit()
    seeded = harness.submit(training={"seed": 7})
    assert harness.place() == 1
    (message,) = harness.dispatcher.sent
    claimed = old.post(f"attempts/{message.attempt_id}/claim", "ClaimReply", CLAIM)
    assert "seed" not in claimed["spec"]["training"]
    assert client.get(f"/api/v1/jobs/{plain}").json()["state"] == "starting"
    waits = client.get(f"/api/v1/jobs/{seeded}").json()["reason"]
    assert waits == (
        "needs 1 slot; no node that is online has a worker of protocol 3, for training.seed"
    )
    old.upgrade()
    assert harness.place() == 1
    assert client.get(f"/api/v1/jobs/{seeded}").json()["state"] == "starting"


@pytest.mark.usefixtures("without_seed")
def test_a_claim_of_protocol_2_leaves_a_share_with_a_new_field_unclaimed(
    old: NodeOfProtocol2, client: TestClient, harness: Harness
) -> None:
    """A worker of the older version may have replaced the one that was chosen."""
    old.upgrade()
    job_id = harness.submit(training={"seed": 7})
    assert harness.place() == 1
    attempt_id = harness.attempt(job_id).id
    reply = old.send(f"attempts/{attempt_id}/claim", CLAIM)
    assert (reply.status_code, "spec.training.seed" in reply.text) == (409, True)
    assert [share.state for share in harness.shares(job_id)] == ["placed"]


@pytest.mark.usefixtures("without_seed")
def test_a_sample_with_a_new_field_waits_for_a_newer_worker(
    old: NodeOfProtocol2, client: TestClient, harness: Harness
) -> None:
    harness.add_node(slots=8, roots={"checkpoints": ROOT, "data": ROOT})
    job_id, (supervisor,) = harness.running(step=9, training={"seed": 7})
    checkpoint_id = harness.commit_checkpoint(job_id, 4)
    stop(harness.context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    client.post("/api/v1/nodes/node-1/drain", json={})
    body = {"prompt": "a"}
    operation_id = client.post(f"/api/v1/checkpoints/{checkpoint_id}/sample", json=body).json()[
        "id"
    ]
    harness.keeper.run()
    assert not harness.dispatcher.chores
    assert client.get(f"/api/v1/operations/{operation_id}").json()["waiting"] == (
        "no node that is online has a worker of protocol 3, for sample.spec.training.seed"
    )


def test_a_kind_of_operation_that_protocol_2_lacks_waits_for_a_newer_worker(
    old: NodeOfProtocol2,
    client: TestClient,
    harness: Harness,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SHAPES["ChoreClaimReply"]["task"], "kind", "scrub|delete|recover")
    harness.add_node(slots=8, roots={"checkpoints": ROOT, "data": ROOT})
    job_id, (supervisor,) = harness.running(step=9)
    checkpoint_id = harness.commit_checkpoint(job_id, 4)
    stop(harness.context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    client.post("/api/v1/nodes/node-1/drain", json={})
    operation_id = client.post(f"/api/v1/checkpoints/{checkpoint_id}/verify").json()["id"]
    harness.keeper.run()
    assert not harness.dispatcher.chores
    assert client.get(f"/api/v1/operations/{operation_id}").json()["waiting"] == (
        "no node that is online has a worker of protocol 3, for kind=verify"
    )
    old.upgrade()
    harness.keeper.run()
    assert [message.node for message in harness.dispatcher.operations] == ["gpu-01"]


def test_unknown_fields_are_found() -> None:
    shape = {"a": None, "b": {"c": None}, "d": [{"e": None}]}
    value = {"a": {"x": 1}, "b": {"c": 1, "y": 2}, "d": [{"e": 1, "z": 2}], "w": 0}
    assert unknown_fields(value, shape) == [".w", ".b.y", ".d[].z"]
