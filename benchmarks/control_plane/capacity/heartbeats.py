"""Heartbeats of a thousand nodes at their real interval."""

from __future__ import annotations

from math import ceil

from benchmarks.control_plane.capacity.load import Lane
from benchmarks.control_plane.capacity.nodes import register_nodes
from benchmarks.control_plane.capacity.runs import Run, send, spent
from benchmarks.control_plane.servers import API
from benchmarks.report import emit, percentile

NODES, GPUS = 1000, 8
TARGET_MS = 1000.0


def measure_heartbeats(run: Run) -> bool:
    """Print the times of heartbeats, and their use of processors."""
    pause = run.opened.context.settings.heartbeat_seconds
    nodes = register_nodes(run.opened, "gpu", count=NODES, slots=GPUS, gpus=GPUS)
    each = ceil(2 * run.seconds / pause)
    lanes = [
        Lane(
            "heartbeat",
            f"{run.apis[number % len(run.apis)].url}{API}/workers/heartbeat",
            node.token,
            [node.heartbeat()] * each,
            pause,
        )
        for number, node in enumerate(nodes)
    ]
    with spent(run.opened, api=run.apis) as used:
        sent = send(lanes, for_seconds=4 * run.seconds)
    took = sent.seconds["heartbeat"]
    return emit(
        "capacity_heartbeats",
        figure=percentile(took, 0.99) * 1000,
        unit="ms (p99)",
        target=TARGET_MS,
        at_least=False,
        median_ms=round(percentile(took, 0.5) * 1000, 1),
        nodes=NODES,
        gpus=GPUS,
        heartbeat_seconds=pause,
        heartbeats_per_second=round(len(took) / sent.wall_seconds, 1),
        processor_ms=used.each_ms(len(took)),
        processors_used=used.processors(sent),
        body_bytes=len(lanes[0].bodies[0]),
        **run.common,
    )
