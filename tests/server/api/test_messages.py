"""`/workers/messages` over real sockets: who may poll, and the effect of a server's end."""

from __future__ import annotations

import threading
import time

import httpx
import pytest
from fastapi import FastAPI

from server.core.context import Context
from server.core.liveness import beat
from tests.server.api.in_process import TestClient
from tests.server.api.serving import PATIENCE, serving
from tests.server.api.test_workers import WORKERS, joined
from tests.server.harness import WORKER, Harness
from trainyard.protocol.node_sources.messages import MessagesReply
from trainyard.protocol.worker_messages import PROTOCOL

MESSAGES = f"{WORKERS}/messages"


def body(node: str = "gpu-01", **changes: object) -> dict[str, object]:
    return {"protocol": PROTOCOL, "node": node, "wait_seconds": 0} | changes


def test_a_node_polls_for_itself_alone(app: FastAPI, context: Context) -> None:
    node = joined(app, context, inbox="server")
    assert node.post(MESSAGES, json=body()).json() == MessagesReply().model_dump(mode="json")
    assert node.post(MESSAGES, json=body("gpu-02")).status_code == 403
    assert node.post(MESSAGES, json=body(protocol=99)).status_code == 422
    refused = node.post(MESSAGES, json=body(wait_seconds=31))
    assert [error["pointer"] for error in refused.json()["errors"]] == ["/wait_seconds"]


def test_the_registration_decides_whence_messages_come(
    app: FastAPI, context: Context, harness: Harness
) -> None:
    beat(context)
    joined(app, context, inbox="server")
    harness.submit()
    assert harness.place() == 1
    assert harness.dispatcher.sent == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_waiting_polls_leave_the_threads_to_others_and_end_with_the_server(
    app: FastAPI, context: Context
) -> None:
    clients: list[TestClient] = [joined(app, context, f"gpu-{n}") for n in range(60)]
    tokens = [client.headers["authorization"] for client in clients]
    replies: list[httpx.Response] = []

    def poll(url: str, number: int) -> None:
        reply = httpx.post(
            f"{url}{MESSAGES}",
            json=body(f"gpu-{number}", wait_seconds=30),
            headers={"authorization": tokens[number]},
            timeout=PATIENCE,
        )
        replies.append(reply)

    with serving(context) as url:
        threads = [threading.Thread(target=poll, args=(url, n)) for n in range(len(tokens))]
        for thread in threads:
            thread.start()
        # More polls than the process has threads for requests (40).
        for _ in range(3):
            quick = httpx.post(
                f"{url}{WORKERS}/heartbeat",
                json={"protocol": PROTOCOL, "node": "gpu-0", "worker": WORKER.model_dump()},
                headers={"authorization": tokens[0]},
                timeout=PATIENCE,
            )
            assert quick.status_code == 200, quick.text
        assert replies == []
        ended = time.monotonic()
    for thread in threads:
        thread.join()
    assert time.monotonic() - ended < 20
    assert [reply.status_code for reply in replies] == [200] * len(tokens)
