"""A node of GPUs whose worker registers and beats."""

from __future__ import annotations

from typing import Any

from server.api.auth.service import create_token
from server.cluster.nodes.queries import list_nodes
from server.cluster.nodes.register import register
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts.node_heartbeat import node_heartbeat
from tests.actors import authenticate_token
from tests.server.harness import WORKER, Harness
from trainyard.protocol.node_samples import (
    Accelerator,
    AcceleratorSample,
    DeviceProcess,
    DiskSample,
    HostSample,
    NodeSample,
)
from trainyard.protocol.rest.access import TokenRequest
from trainyard.protocol.rest.nodes import NodeView
from trainyard.protocol.worker_messages import (
    PROTOCOL,
    Hardware,
    NodeHeartbeat,
    Registration,
    RegistrationReply,
)

HOST = HostSample(load=0.5, memory_bytes=1000, memory_used_bytes=400)
NODE = "gpu-01"
ROOTS = {"checkpoints": "0197cbf5-8d2e-7cc0-9d43-3a1f6a1f7b10"}
PYTHON = DeviceProcess(pid=4242, memory_bytes=20 << 30, user="ada", command="python")
FOREIGN = "process 4242 (python) of ada holds its memory"


def hardware(*names: str, device: str = "cuda") -> Hardware:
    gpus = tuple(
        Accelerator(index=index, uuid=f"GPU-{name}", name="H100", memory_bytes=80 << 30)
        for index, name in enumerate(names)
    )
    return Hardware.model_validate(
        {
            "device": device,
            "slots": max(len(names), 1),
            "device_name": "H100",
            "device_memory_bytes": 80 << 30,
            "cores": 8,
            "memory_bytes": 1 << 40,
            "accelerators": [gpu.model_dump() for gpu in gpus],
        }
    )


def sample(problem: str | None = None, **devices: dict[str, Any]) -> NodeSample:
    accelerators = tuple(
        AcceleratorSample(uuid=f"GPU-{name}", **values) for name, values in devices.items()
    )
    return NodeSample(host=HOST, accelerators=accelerators, accelerators_problem=problem)


def with_disk(name: str, free: int, **devices: dict[str, Any]) -> NodeSample:
    disk = DiskSample(name=name, total_bytes=1 << 30, free_bytes=free)
    found = sample(None, **devices)
    return found.model_copy(update={"host": HOST.model_copy(update={"disks": (disk,)})})


def heartbeat(**fields: Any) -> NodeHeartbeat:
    return NodeHeartbeat(protocol=PROTOCOL, node=NODE, worker=WORKER, **fields)


class GpuNode:
    """A node of GPUs whose worker registers and beats."""

    def __init__(self, harness: Harness) -> None:
        self.context = harness.context
        self._token: str | None = None

    def register(self, *names: str) -> RegistrationReply:
        """Register with these GPUs, in their order."""
        if self._token is None:
            request = TokenRequest(name="join", kind="join")
            self._token = create_token(self.context, request)[1]
        registration = Registration(
            protocol=PROTOCOL,
            node=NODE,
            address="gpu-01.test",
            hardware=hardware(*names),
            roots=ROOTS,
            worker=WORKER,
            version="0",
        )
        principal = authenticate_token(self.context, self._token)
        reply = register(self.context, registration, principal=principal)
        self._token = reply.node_token or self._token
        return reply

    def beat(self, found: NodeSample | None) -> None:
        """Send a heartbeat with a sample."""
        node_heartbeat(self.context, heartbeat(sample=found))

    @property
    def view(self) -> NodeView:
        """Return the view of the node."""
        (view,) = list_nodes(self.context, scope=SYSTEM_SCOPE)
        return view
