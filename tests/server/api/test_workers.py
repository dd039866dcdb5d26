"""Requests of workers and supervisors: registration, heartbeats, claims, reports."""

from __future__ import annotations

import re
import time
from typing import Any
from uuid import uuid4

import pytest
from fastapi import FastAPI
from sqlalchemy import select

from server.api.auth.service import create_token
from server.app.factory import routes_of
from server.core.context import Context
from server.core.database.tables import events
from server.jobs.jobs.service import stop
from tests.actors import ADA
from tests.server.api.conftest import BASE_URL
from tests.server.api.in_process import TestClient
from tests.server.harness import WORKER, Harness
from tests.server.reports import chunk, metric_lines
from trainyard.protocol.rest.access import TokenRequest
from trainyard.protocol.worker_messages import (
    MAX_ASKED,
    OLDEST_REPORTS,
    PROTOCOL,
    Identity,
    Report,
)

WORKERS = "/api/v1/workers"
ROOTS = {"checkpoints": str(uuid4()), "data": str(uuid4())}
HARDWARE = {
    "device": "cpu",
    "slots": 4,
    "device_name": "test",
    "device_memory_bytes": 2**30,
    "cores": 4,
    "memory_bytes": 2**32,
}


def registration(node: str = "gpu-01", **changes: Any) -> dict[str, Any]:
    return {
        "protocol": PROTOCOL,
        "node": node,
        "address": "10.0.0.1",
        "hardware": HARDWARE,
        "roots": ROOTS,
        "worker": WORKER.model_dump(),
        "version": "0.1",
    } | changes


def with_token(app: FastAPI, token: str) -> TestClient:
    return TestClient(app, base_url=BASE_URL, headers={"authorization": f"Bearer {token}"})


@pytest.fixture
def joiner(app: FastAPI, context: Context) -> TestClient:
    """A client with a fresh join token."""
    return with_token(app, join_token(context))


def join_token(context: Context) -> str:
    return create_token(context, TokenRequest(name=f"join-{uuid4().hex[:8]}", kind="join"))[1]


def joined(app: FastAPI, context: Context, node: str = "gpu-01", **changes: Any) -> TestClient:
    """Register a node, and return a client with its token."""
    client = with_token(app, join_token(context))
    reply = client.post(f"{WORKERS}/register", json=registration(node, **changes))
    assert reply.status_code == 200, reply.text
    return with_token(app, reply.json()["node_token"])


def messages(context: Context, kind: str) -> list[str]:
    with context.database.read() as connection:
        chosen = select(events.c.message).where(events.c.kind == kind)
        return list(connection.scalars(chosen.order_by(events.c.id)))


def test_a_join_token_takes_in_one_node(joiner: TestClient, client: TestClient) -> None:
    reply = joiner.post(f"{WORKERS}/register", json=registration())
    assert reply.status_code == 200
    assert reply.json()["node_token"].startswith("ty_node_")
    (node,) = client.get("/api/v1/nodes").json()["items"]
    assert (node["name"], node["online"], node["free_slots"]) == ("gpu-01", True, 4)
    assert node["roots"] == ["checkpoints", "data"]
    again = joiner.post(f"{WORKERS}/register", json=registration("gpu-02"))
    assert again.status_code == 401


def test_a_node_comes_back_with_its_own_token(
    app: FastAPI, context: Context, client: TestClient
) -> None:
    node = joined(app, context)
    more = registration(hardware=HARDWARE | {"slots": 8})
    for _ in range(2):
        reply = node.post(f"{WORKERS}/register", json=more)
        assert (reply.status_code, reply.json()["node_token"]) == (200, None)
    assert client.get("/api/v1/nodes").json()["items"][0]["free_slots"] == 8
    assert len(messages(context, "node_registered")) == 2  # new, and with other hardware
    other = node.post(f"{WORKERS}/register", json=registration("gpu-02"))
    assert other.status_code == 403


def test_the_name_of_a_node_that_is_online_cannot_be_taken(
    app: FastAPI, context: Context, harness: Harness
) -> None:
    node = joined(app, context)
    thief = with_token(app, join_token(context))
    reply = thief.post(f"{WORKERS}/register", json=registration())
    assert reply.status_code == 409
    assert "online" in reply.json()["detail"]
    harness.reconcile(seconds=60)  # no heartbeat for a minute: it is gone
    reply = thief.post(f"{WORKERS}/register", json=registration())  # the token stays usable
    assert reply.status_code == 200
    assert node.post(f"{WORKERS}/register", json=registration()).status_code == 401


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"protocol": 99}, "/protocol"),
        ({"address": "a b"}, "/address"),
        ({"roots": {"Upper": "0197cbf5-8d2e-7cc0-9d43-3a1f6a1f7b10"}}, "/roots"),
        ({"roots": {"data": "not-a-uuid"}}, "/roots/data"),
        ({"node": "../x"}, "/node"),
        ({"hardware": HARDWARE | {"slots": 0}}, "/hardware/slots"),
    ],
    ids=str,
)
def test_a_malformed_registration_stores_nothing(
    joiner: TestClient, client: TestClient, changes: dict[str, Any], pointer: str
) -> None:
    reply = joiner.post(f"{WORKERS}/register", json=registration(**changes))
    assert reply.status_code == 422
    assert [error["pointer"] for error in reply.json()["errors"]] == [pointer]
    assert client.get("/api/v1/nodes").json()["items"] == []


def test_another_storage_under_a_known_name_is_accepted_and_told(
    app: FastAPI, context: Context
) -> None:
    joined(app, context, "a")
    joined(app, context, "b")
    joined(app, context, "c", roots=ROOTS | {"data": str(uuid4())})
    told = messages(context, "node_registered")
    assert ["another storage" in message for message in told] == [False, False, True]
    assert told[2].endswith("as data")


def test_draining_places_nothing_new(
    app: FastAPI, context: Context, client: TestClient, harness: Harness
) -> None:
    joined(app, context)
    for _ in range(2):
        drained = client.post("/api/v1/nodes/gpu-01/drain")
        assert (drained.status_code, drained.json()["draining"]) == (200, True)
        assert drained.json()["drain"]["running"] == "move"
    harness.submit()
    assert harness.place() == 0
    assert client.post("/api/v1/nodes/gpu-01/undrain").json()["draining"] is False
    assert harness.place() == 1
    (node,) = client.get("/api/v1/nodes").json()["items"]
    assert node["free_slots"] == 3
    assert node["allocations"][0]["allocation"]["slots"] == [0]
    assert len(messages(context, "node_drained")) == 2
    assert client.post("/api/v1/nodes/nobody/drain").status_code == 404
    refused = client.post("/api/v1/nodes/gpu-01/drain", json={"running": "kill"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/running")


def test_a_node_may_report_for_itself_alone(
    app: FastAPI, context: Context, harness: Harness
) -> None:
    node = joined(app, context)
    harness.submit()
    harness.place()
    (sent,) = harness.dispatcher.sent
    claim = {"protocol": PROTOCOL, "node": "gpu-02", "worker": WORKER.model_dump()}
    assert node.post(f"{WORKERS}/heartbeat", json=claim).status_code == 403
    path = f"{WORKERS}/attempts/{sent.attempt_id}/claim"
    assert node.post(path, json=claim).status_code == 403


def test_a_node_learns_which_jobs_need_no_run_directory(
    app: FastAPI, context: Context, harness: Harness
) -> None:
    node = joined(app, context)
    ended, waits, unknown = harness.submit(), harness.submit(), "never-submitted"
    stop(context, ended, actor=ADA, reason="")
    body = {"protocol": PROTOCOL, "node": "gpu-01", "jobs": [waits, unknown, ended]}
    path = f"{WORKERS}/ended-jobs"
    assert node.post(path, json=body).json() == {"ended": [unknown, ended]}
    assert node.post(path, json=body | {"jobs": []}).json() == {"ended": []}
    assert node.post(path, json=body | {"node": "gpu-02"}).status_code == 403
    many = [f"job-{number}" for number in range(MAX_ASKED + 1)]
    assert node.post(path, json=body | {"jobs": many}).status_code == 422


def test_a_job_from_claim_to_chart(
    app: FastAPI, context: Context, client: TestClient, harness: Harness
) -> None:
    node = joined(app, context)
    job_id = harness.submit()
    harness.place()
    (sent,) = harness.dispatcher.sent
    own = {"protocol": PROTOCOL, "node": "gpu-01", "worker": WORKER.model_dump()}
    path = f"{WORKERS}/attempts/{sent.attempt_id}"
    claimed = node.post(f"{path}/claim", json=own)
    assert claimed.status_code == 200
    assert node.post(f"{path}/claim", json=own).status_code == 409
    heartbeat = node.post(f"{WORKERS}/heartbeat", json=own)
    answered = heartbeat.json()
    assert answered.pop("time") == pytest.approx(time.time(), abs=60)  # that of the database
    assert answered == {"expected": [sent.attempt_id]}

    supervisor = with_token(app, claimed.json()["attempt_token"])
    report = Report(
        protocol=PROTOCOL,
        node="gpu-01",
        identity=Identity(boot_id="b", pid_namespace="1", pid=1, start_time=1),
        chunks=(chunk("metrics", metric_lines(1, 5)), chunk("log:0", b"hello\n")),
    )
    headers = {"content-type": "application/json"}
    body = report.model_dump_json()
    assert node.post(f"{path}/report", content=body, headers=headers).status_code == 401
    reply = supervisor.post(f"{path}/report", content=body, headers=headers)
    assert reply.status_code == 200
    assert reply.json()["desired"] == "run"
    view = client.get(f"/api/v1/jobs/{job_id}/metrics", params={"names": "train/loss"}).json()
    assert view["curves"][0]["last"] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert view["last_step"] == 5
    log = client.get(f"/api/v1/jobs/{job_id}/logs").json()
    assert [line["text"] for line in log["lines"]] == ["hello"]
    text = client.get(f"/api/v1/jobs/{job_id}/metrics", headers={"accept": "text/csv"}).text
    assert text.splitlines()[0] == "attempt,step,time,name,value"
    assert len(text.splitlines()) == 1 + 5 + 5


def test_the_token_of_an_attempt_opens_its_own_routes_alone(app: FastAPI, harness: Harness) -> None:
    for name in ("node-1", "node-2"):
        harness.add_node(name)
    (own,), (other,) = (harness.launched()[1] for _ in range(2))
    supervisor = with_token(app, own.reply.attempt_token)
    of_attempt = f"{WORKERS}/attempts/{{attempt_id}}/"
    routes = [
        (method, path)
        for path, methods in routes_of(app)
        if path.startswith(of_attempt) and not path.endswith("/claim")
        for method in methods
    ]
    assert len(routes) == 5
    for method, path in routes:
        for attempt_id, wanted in ((own.attempt_id, {404, 422}), (other.attempt_id, {401})):
            filled = re.sub(r"\{\w+\}", "0" * 26, path.replace("{attempt_id}", attempt_id))
            status = supervisor.request(method, filled).status_code
            assert status in wanted, (method, path, status)


@pytest.mark.parametrize(
    ("protocol", "status"),
    [(OLDEST_REPORTS - 1, 422), (OLDEST_REPORTS, 200), (PROTOCOL, 200), (PROTOCOL + 1, 422)],
)
def test_a_supervisor_that_outlives_an_upgrade_reports_on(
    app: FastAPI, harness: Harness, protocol: int, status: int
) -> None:
    """Its worker is refused until it is upgraded, but the job that trains goes on."""
    harness.add_node()
    _, (share,) = harness.launched()
    supervisor = with_token(app, share.reply.attempt_token)
    report = Report(protocol=protocol, node=share.node, identity=share.identity)
    reply = supervisor.post(
        f"{WORKERS}/attempts/{share.attempt_id}/report",
        content=report.model_dump_json(),
        headers={"content-type": "application/json"},
    )
    assert reply.status_code == status, reply.text
    assert status == 200 or reply.json()["errors"][0]["pointer"] == "/protocol"
