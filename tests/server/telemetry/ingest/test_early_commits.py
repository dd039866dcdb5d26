"""A program's commit waits for earlier metrics of ranks on other nodes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.checkpoints.queries import list_checkpoints
from server.telemetry.ingest.run_events import LONGEST_HOLD
from tests.server.clock import FakeClock
from tests.server.harness import BRINGS_CODE, Harness, Supervisor
from tests.server.jobs.checkpoints.test_program_checkpoints import manifest
from tests.server.reports import chunk, json_lines, send
from trainyard.run.record_base import to_json
from trainyard.run.records import EventRecord, ExitRecord

pytestmark = BRINGS_CODE
STEP = 5


class Cluster:
    """A program of four ranks on two nodes, two on each."""

    def __init__(self, harness: Harness) -> None:
        for name in ("node-1", "node-2"):
            harness.add_node(name, slots=2)
        program = {"command": ["train.py"], "resume": "any_world_size"}
        self.harness = harness
        self.job_id, self.nodes = harness.launched(program=program, resources={"world_size": 4})
        for node in self.nodes:
            node.train(0)

    def log(self, rank: int, step: int = STEP) -> None:
        """Log a rank's record of a step at the end of the block of a checkpoint."""
        record: dict[str, Any] = {"step": step, "time": 1.0, "values": {}, "ranks": 4}
        file = f"metrics:{rank}" if rank else "metrics"
        send(self.harness.context, self.nodes[rank // 2], chunk(file, json_lines([record])))

    def commit(self, *, node: Supervisor | None = None, before: bytes = b"") -> int:
        """Report the commit; return the acknowledged bytes of events."""
        made = manifest(
            self.job_id, 1, STEP, world_size=4, created_at=self.harness.context.now() - AGO
        )
        line = EventRecord(time=1.0, kind="checkpoint_committed", step=STEP, data=vars(made))
        content = before + to_json(line).encode() + b"\n"
        reply = send(self.harness.context, node or self.nodes[0], chunk("events", content))
        return reply.acknowledged["events"]

    @property
    def saved(self) -> list[int]:
        """Steps in the catalog."""
        return [
            view.step
            for view in list_checkpoints(self.harness.context, self.job_id, scope=SYSTEM_SCOPE)
        ]


AGO = timedelta(seconds=1)


@pytest.fixture
def cluster(harness: Harness) -> Cluster:
    return Cluster(harness)


def test_a_commit_comes_after_the_metrics_of_all_nodes(cluster: Cluster) -> None:
    phase = b'{"time": 1.0, "kind": "phase", "step": 5, "data": {"phase": "saving"}}\n'
    for rank in (0, 1, 2):
        cluster.log(rank)
    assert cluster.commit(before=phase) == len(phase)
    cluster.log(3, STEP - 1)
    assert cluster.commit(before=phase) == len(phase)
    assert cluster.saved == []
    send(
        cluster.harness.context,
        cluster.nodes[1],
        chunk(
            "metrics:3",
            json_lines([{"step": STEP, "time": 1.0, "values": {}, "ranks": 4}]),
            start=len(json_lines([{"step": STEP - 1, "time": 1.0, "values": {}, "ranks": 4}])),
        ),
    )
    assert cluster.commit(before=phase) > len(phase)
    assert cluster.saved == [STEP]


def test_no_byte_after_a_held_commit_is_acknowledged(cluster: Cluster) -> None:
    made = manifest(
        cluster.job_id, 1, STEP, world_size=4, created_at=cluster.harness.context.now() - AGO
    )
    commit = EventRecord(time=1.0, kind="checkpoint_committed", step=STEP, data=vars(made))
    phase = b'{"time": 1.0, "kind": "phase", "step": 5, "data": {"phase": "saving"}}\n'
    content = phase + to_json(commit).encode() + b"\n"
    chunks = chunk("events", content), chunk("events", 3 * phase, start=len(content))
    reply = send(cluster.harness.context, cluster.nodes[0], *chunks)
    assert reply.acknowledged["events"] == len(phase)


def test_a_commit_does_not_wait_for_ever(cluster: Cluster, clock: FakeClock) -> None:
    cluster.log(0)
    assert cluster.commit() == 0
    held = manifest(cluster.job_id, 1, STEP, world_size=4, created_at=clock.now())
    clock.advance(LONGEST_HOLD.total_seconds())
    line = EventRecord(time=1.0, kind="checkpoint_committed", step=STEP, data=vars(held))
    content = to_json(line).encode() + b"\n"
    send(cluster.harness.context, cluster.nodes[0], chunk("events", content))
    assert cluster.saved == [STEP]


def test_a_commit_does_not_wait_for_a_node_that_has_ended(cluster: Cluster) -> None:
    cluster.log(0)
    record = ExitRecord(outcome="succeeded", failure=None, ranks=(), time=1.0)
    send(cluster.harness.context, cluster.nodes[1], exit=record)
    assert cluster.commit() > 0
    assert cluster.saved == [STEP]
