"""Nodes of a benchmark: registered like workers, their heartbeats, and workers that only claim."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from kombu import Connection, Consumer, Exchange, Message, Queue

from benchmarks.control_plane.servers import API, HOST, Store
from server.api.auth.principals import Principal
from server.api.auth.service import create_token
from server.api.auth.tokens import TokenKind
from server.cluster.nodes.register import register
from trainyard.protocol.node_samples import (
    Accelerator,
    AcceleratorSample,
    DiskSample,
    HostSample,
    NodeSample,
)
from trainyard.protocol.rest.access import TokenRequest
from trainyard.protocol.worker_messages import (
    PROTOCOL,
    Claim,
    Hardware,
    LaunchMessage,
    NodeHeartbeat,
    Registration,
    WorkerIdentity,
)

WORKER = WorkerIdentity(folder="0" * 32, boot_id="00000000-0000")
ROOTS = {
    name: f"00000000-0000-4000-8000-00000000000{n}"
    for n, name in enumerate(("data", "checkpoints"))
}
GIB = 2**30
CLAIMS_AT_ONCE = 4


@dataclass(frozen=True)
class Node:
    """A registered node."""

    name: str
    token: str
    gpus: int

    def heartbeat(self) -> bytes:
        """Return the body of a heartbeat, with a sample of the host and of each GPU."""
        sample = NodeSample(
            host=HostSample(
                load=1.0,
                memory_bytes=GIB,
                memory_used_bytes=GIB // 2,
                disks=(DiskSample(name="data_dir", total_bytes=GIB, free_bytes=GIB // 2),),
            ),
            accelerators=tuple(
                AcceleratorSample(
                    uuid=f"GPU-{self.name}-{index}",
                    utilization_ratio=0.9,
                    memory_used_bytes=70 * GIB,
                    power_watts=600.0,
                    temperature_celsius=60.0,
                    sm_clock_hertz=1_900_000_000,
                    memory_clock_hertz=2_600_000_000,
                    throttle_reasons=(),
                    ecc_uncorrected=0,
                )
                for index in range(self.gpus)
            ),
        )
        beat = NodeHeartbeat(protocol=PROTOCOL, node=self.name, worker=WORKER, sample=sample)
        return beat.model_dump_json().encode()


def register_nodes(opened: Store, prefix: str, *, count: int, slots: int, gpus: int) -> list[Node]:
    """Register nodes with `gpus` GPUs each or, if that is 0, with `slots` CPU slots each."""
    context, registered = opened.context, []
    for number in range(count):
        name = f"{prefix}-{number:04d}"
        accelerators = tuple(
            Accelerator(index=i, uuid=f"GPU-{name}-{i}", name="H100", memory_bytes=80 * GIB)
            for i in range(gpus)
        )
        hardware = Hardware(
            device="cuda" if gpus else "cpu",
            slots=gpus or slots,
            device_name="H100" if gpus else "CPU",
            device_memory_bytes=80 * GIB,
            cores=64,
            memory_bytes=1024 * GIB,
            accelerators=accelerators,
        )
        registration = Registration(
            protocol=PROTOCOL,
            node=name,
            address=HOST,
            hardware=hardware,
            roots=ROOTS,
            worker=WORKER,
            version="0",
        )
        row, _ = create_token(context, TokenRequest(name=name, kind="join"))
        joiner = Principal(name=name, kind=TokenKind.JOIN, token_id=row.id)
        token = register(context, registration, principal=joiner).node_token
        assert token is not None
        registered.append(Node(name, token, gpus))
    return registered


class ClaimingWorkers(threading.Thread):
    """Workers of all nodes in one thread: messages from the broker, claims out, no launch.

    A few threads send claims, each on a persistent connection with the standard library: httpx
    takes as long for a claim as the server does, and both share the machine.
    """

    def __init__(self, nodes: Sequence[Node], *, url: str, broker_url: str, pause: float) -> None:
        super().__init__(daemon=True)
        self.claims: Counter[str] = Counter()
        """Granted claims of each attempt."""
        self.refused = 0
        """Claims that were not granted."""
        self.repeated = 0
        """Repeated messages, which a node drops: it locks an attempt from its claim on."""
        self._taken: set[str] = set()
        self._nodes = {node.name: node for node in nodes}
        self._host = urlsplit(url).netloc
        self._local = threading.local()
        self._broker_url = broker_url
        self._pause = pause
        self._over = threading.Event()

    def run(self) -> None:
        """Claim until `close`; each node sends heartbeats in between."""
        queues = [
            Queue(f"node.{name}", Exchange(f"node.{name}"), routing_key=f"node.{name}")
            for name in self._nodes
        ]
        due = time.monotonic()
        with (
            ThreadPoolExecutor(CLAIMS_AT_ONCE) as pool,
            Connection(self._broker_url) as broker,
            Consumer(broker, queues, accept=["json"]) as consumer,
        ):
            consumer.register_callback(lambda body, message: self._take(pool, body, message))
            while not self._over.is_set():
                with suppress(TimeoutError):
                    broker.drain_events(timeout=0.2)
                if time.monotonic() >= due:
                    due += self._pause
                    for node in self._nodes.values():
                        self._post("heartbeat", node, node.heartbeat())

    def close(self) -> None:
        """Stop the thread."""
        self._over.set()
        self.join()

    def _take(self, pool: Executor, body: Any, message: Message) -> None:
        _, fields, _ = body
        message.ack()
        launch = LaunchMessage.model_validate(fields)
        if launch.attempt_id in self._taken:
            self.repeated += 1
            return
        self._taken.add(launch.attempt_id)
        pool.submit(self._claim, launch)

    def _claim(self, launch: LaunchMessage) -> None:
        claim = Claim(protocol=PROTOCOL, node=launch.node, worker=WORKER)
        path, node = f"attempts/{launch.attempt_id}/claim", self._nodes[launch.node]
        status = self._post(path, node, claim.model_dump_json().encode())
        if status == HTTPStatus.OK:
            self.claims[launch.attempt_id] += 1
        else:
            self.refused += 1
            self._taken.discard(launch.attempt_id)

    def _post(self, path: str, node: Node, body: bytes) -> int:
        """Send a request of the thread; return its status."""
        headers = {"authorization": f"Bearer {node.token}", "content-type": "application/json"}
        url, local = f"{API}/workers/{path}", self._local
        for _ in range(2):  # the server closes idle connections
            if not hasattr(local, "connection"):
                local.connection = HTTPConnection(self._host, timeout=60)
            with suppress(ConnectionError, HTTPException):
                local.connection.request("POST", url, body, headers)
                answer = local.connection.getresponse()
                answer.read()
                return int(answer.status)
            local.connection.close()
        return HTTPStatus.SERVICE_UNAVAILABLE
