"""Two hundred nodes with every kind of problem, for tests of pages."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from server.cluster.nodes.changes import set_drain, set_labels
from server.cluster.nodes.series import store_samples
from server.core.context import Context
from server.core.subject import Actor
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts.node_heartbeat import node_heartbeat
from server.jobs.ranks.store import record_found
from tests.server.harness import WORKER
from tests.web.actors import Stage, device_uuid
from trainyard.protocol.node_samples import (
    AcceleratorSample,
    DeviceProcess,
    DiskSample,
    HostSample,
    NodeSample,
    XidError,
)
from trainyard.protocol.rest.metrics_and_logs import StragglerFound
from trainyard.protocol.worker_messages import PROTOCOL, NodeHeartbeat

NODES = 200
SLOTS = 8
OFFLINE = ("gpu-010", "gpu-117")
LONG_NAME = "gpu-200.rack-25.hall-c.frankfurt-2.cluster.example"
WITH_HISTORY = 9
"""Nodes whose samples of the last hour are there, the first by name; of one, those of 3 hours."""
GAP = range(25, 35)
"""Minutes before now without samples."""
BROKEN = "gpu-001"
"""Cordoned by the server for an Xid error; a job runs there to its end."""
CORDONED = "gpu-002"
"""Cordoned by a person with a reason."""
HELD = "gpu-003"
"""A slot is withheld, since a process of another program holds its memory."""
LEAVING = "gpu-005"
"""Gave notice of its shutdown."""
SICK = "gpu-006"
"""A damaged row of memory, and a file system that does not answer."""
SLOW = "gpu-007"
"""A slot of it slowed two jobs."""
DRAINED = ("gpu-004", "gpu-090")
"""Drained by a person: jobs there save and move."""


def play(context: Context) -> None:
    """Store nodes and their jobs, as after hours of running."""
    now = datetime.now(UTC)
    stage = Stage.open(context, at=now - timedelta(minutes=10))
    for name in OFFLINE:
        _join(stage, name)
    stage.reconcile(seconds=100)
    for name in sorted({*_names()} - {*OFFLINE}):
        _join(stage, name)
    _run_jobs(stage)
    with context.database.write() as connection:
        for name in _names()[:WITH_HISTORY]:
            for minute in range(60 * (3 if name == BROKEN else 1), 0, -1):
                at = now - timedelta(minutes=minute)
                if minute not in GAP and name not in OFFLINE:
                    store_samples(connection, {name: _sample(name, minute)}, now=at)
    stage.clock.advance((now - stage.clock.now()).total_seconds())
    for name in sorted({*_names()} - {*OFFLINE}):
        _beat(stage, name)
    ada = Actor("ada", scope=SYSTEM_SCOPE)
    reason = "new power supply, ticket OPS-4417; back on Thursday at the earliest"
    set_drain(stage.context, CORDONED, "finish", actor=ada, reasons=[reason])
    for name in DRAINED:
        set_drain(stage.context, name, "move", actor=ada)
    set_labels(stage.context, HELD, {"example.com/owner": "team-vision"}, actor=ada)


def _names() -> list[str]:
    return [f"gpu-{number:03}" for number in range(1, NODES)] + [LONG_NAME]


def _join(stage: Stage, name: str) -> None:
    number = int(name[4:7])
    stage.join(
        name,
        slots=SLOTS,
        device_name="NVIDIA H200" if number > 160 else "NVIDIA H100 80GB HBM3",
        gib=141 if number > 160 else 80,
        labels={
            "fabric": f"ib-{(number - 1) // 100}",
            "block": f"b{(number - 1) // 40}",
            "rack": f"r{(number - 1) // 8:02}",
        },
    )


def _run_jobs(stage: Stage) -> None:
    """Place jobs of all sizes; two of them are slowed by the same slot."""
    slowed = [
        stage.submit(
            name=f"vit-sweep-lr{number}e-4",
            resources={
                "world_size": 2,
                "node_selector": {"rack": "r00"},
                "exclude_nodes": [node for node in _names()[:8] if node != SLOW],
            },
        )
        for number in (1, 3)
    ]
    assert stage.place() == len(slowed)
    for number, size in enumerate((64, 32, 16, 8, 8, 4, 4, 2, 1, 1, 1), start=1):
        stage.submit(
            name=f"llama-{size}-{'fineweb-edu-350bt-seq8192-wsd-' if size == 8 else ''}{number}",
            training={"global_batch_size": 64, "micro_batch_size": 1},
            resources={"world_size": size, "exclude_nodes": [HELD]},
        )
    stage.place()
    for job in slowed:
        supervisors = stage.claim_all(job)
        found = StragglerFound(
            step=100,
            time=stage.clock.now().timestamp(),
            rank=1,
            kind="compute",
            factor=1.4,
            share=0.2,
            node=supervisors[0].node,
            slot=5,
        )
        attempt_id = supervisors[0].attempt_id
        with stage.context.database.write() as connection:
            record_found(stage.context, connection, attempt_id=attempt_id, found=found)


def _beat(stage: Stage, name: str) -> None:
    """Send the present heartbeat, with the problems."""
    sample, notice = _sample(name, 0), None
    first, *others = sample.accelerators
    problems: tuple[str, ...] = ()
    if name == BROKEN:
        first = first.model_copy(update={"xids": (XidError(code=79, age_seconds=240),)})
    elif name == HELD:
        process = DeviceProcess(pid=48213, memory_bytes=9 * 2**30, user="grace", command="python")
        others[1] = others[1].model_copy(update={"foreign": (process,)})
    elif name == LEAVING:
        notice = "spot instance, ends at 12:00 UTC"
    elif name == SICK:
        first = first.model_copy(update={"row_remap_pending": True})
        problems = ("/srv/checkpoints: the file system does not answer since 40 s",)
    sample = sample.model_copy(update={"accelerators": (first, *others), "problems": problems})
    beat = NodeHeartbeat(protocol=PROTOCOL, node=name, worker=WORKER, notice=notice, sample=sample)
    node_heartbeat(stage.context, beat)


def _sample(name: str, minute: int) -> NodeSample:
    """Return a node's sample from some minutes ago; every fourth node is idle."""
    number = int(name[4:7])
    busy = 0.0 if number % 4 == 0 else 0.93 - 0.02 * (number % 7)
    devices = []
    for slot in range(SLOTS):
        wave = math.sin((minute + 3 * slot) / 7 + number)
        share = min(max(busy + 0.05 * wave - 0.3 * (minute % 97 < 6), 0.0), 1.0)
        devices.append(
            AcceleratorSample(
                uuid=device_uuid(name, slot),
                utilization_ratio=share,
                memory_used_bytes=int((2 + 70 * (busy > 0)) * 2**30),
                power_watts=90 + 580 * share,
                temperature_celsius=34 + 38 * share + slot,
                sm_clock_hertz=1_980_000_000 - int(slot == 3) * 300_000_000,
                memory_clock_hertz=2_619_000_000,
                throttle_reasons=("sw_thermal_slowdown",) if slot == 3 and busy else (),
                nvlink_errors=0,
                pcie_replays=slot // 6,
                ecc_corrected=0,
                ecc_uncorrected=0,
                row_remap_pending=False,
                row_remap_failed=False,
            )
        )
    host = HostSample(
        load=1 + 60 * busy,
        memory_bytes=1024 * 2**30,
        memory_used_bytes=int((80 + 300 * busy) * 2**30),
        disks=(
            DiskSample(name="checkpoints", total_bytes=400 * 2**40, free_bytes=171 * 2**40),
            DiskSample(name="data_dir", total_bytes=7 * 2**40, free_bytes=5 * 2**40),
        ),
    )
    return NodeSample(host=host, accelerators=tuple(devices))
