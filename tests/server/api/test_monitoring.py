"""`/metrics`: the present state of the cluster, and counts of requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import update

from server.app.monitoring import Monitoring
from server.core.context import Context
from server.core.database.tables import nodes
from server.core.liveness import beat
from server.jobs.attempts.node_heartbeat import node_heartbeat
from server.telemetry.goodput.capacity import CapacityKeeper
from server.telemetry.goodput.cluster import SERVED, USUAL_DAYS
from server.telemetry.goodput.holdings import HeldShare, read_holdings
from tests.server.api.in_process import TestClient
from tests.server.harness import WORKER, Harness
from tests.server.scheduler.elastic.test_spares import searching
from trainyard.protocol.node_samples import (
    AcceleratorSample,
    DiskSample,
    HostSample,
    NodeSample,
)
from trainyard.protocol.states import JobState
from trainyard.protocol.worker_messages import PROTOCOL, NodeHeartbeat
from trainyard.run.failures import FailureReason

API = "/api/v1"


def scraped(client: TestClient) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return every sample by its name and labels."""
    response = client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


@contextmanager
def every_device(client: TestClient) -> Iterator[None]:
    """Make a server list the gauges of each device."""
    app = client.app
    assert isinstance(app, FastAPI)
    state = app.state
    before = state.monitoring
    context: Context = state.context
    settings = context.settings.model_copy(update={"device_gauges": True})
    changed = replace(context, settings=settings)
    state.monitoring = Monitoring(changed, state.tail, state.cluster_ledger)
    yield
    state.monitoring = before


def test_the_cluster_is_counted(client: TestClient, harness: Harness) -> None:
    harness.add_node("node-1", slots=4)
    harness.add_node("node-2", slots=2)
    ids = [client.post(f"{API}/jobs", json={}).json()["id"] for _ in range(3)]
    client.post(f"{API}/jobs/{ids[0]}/stop")
    samples = scraped(client)
    assert samples["trainyard_jobs", (("state", "queued"),)] == 2
    assert samples["trainyard_jobs", (("state", "stopped"),)] == 1
    assert samples["trainyard_jobs", (("state", "running"),)] == 0
    assert samples["trainyard_attempts", (("state", "running"),)] == 0
    assert samples["trainyard_slots", (("use", "free"),)] == 6
    assert samples["trainyard_slots", (("use", "held"),)] == 0
    assert samples["trainyard_stream_clients", ()] == 0
    assert samples["trainyard_events_tail_lag", ()] >= 0


def test_a_slot_counts_once_and_on_nodes_that_are_online_only(
    client: TestClient, harness: Harness
) -> None:
    harness.add_node("node-1", slots=4)
    harness.running(resources={"world_size": 2})
    harness.add_node("node-2", slots=8)
    reasons = {"1": "process 7 holds its memory", "2": "process 8 holds its memory"}
    with harness.context.database.write() as connection:
        node = update(nodes).values(withheld=reasons)
        connection.execute(node.where(nodes.c.name == "node-1"))
        gone = node.values(offline_since=harness.clock.now())
        connection.execute(gone.where(nodes.c.name == "node-2"))
    samples = scraped(client)
    uses = ("held", "withheld", "free")
    assert [samples["trainyard_slots", (("use", use),)] for use in uses] == [2, 1, 1]


def test_slots_that_a_queued_job_keeps_are_not_free(client: TestClient, harness: Harness) -> None:
    beat(harness.context)
    job_id = searching(harness)
    assert harness.job(job_id).state == JobState.QUEUED
    assert scraped(client)["trainyard_slots", (("use", "free"),)] == 2, "those of one node of four"


def test_projects_are_counted(client: TestClient, harness: Harness) -> None:
    client.post(f"{API}/projects", json={"name": "vision"})
    harness.add_node("node-1", slots=2)
    harness.running(project="vision", resources={"world_size": 2})
    harness.submit(project="vision")
    harness.clock.advance(1800)
    samples = scraped(client)
    vision = (("project", "vision"),)
    assert samples["trainyard_project_slots", vision] == 2
    assert samples["trainyard_project_waiting_jobs", vision] == 1
    assert samples["trainyard_project_slot_hours", vision] == 1
    assert samples["trainyard_project_slots", (("project", "default"),)] == 0


def test_requests_are_counted_by_route_and_not_by_id(client: TestClient) -> None:
    for path in ("0" * 26, "1" * 26):
        client.get(f"{API}/jobs/{path}")
    client.get(f"{API}/no/such/path")
    samples = scraped(client)
    count = "trainyard_request_duration_seconds_count"
    labels = (("method", "GET"), ("route", "/jobs/{job_id}"), ("status", "404"))
    assert samples[count, labels] == 2
    other = (("method", "GET"), ("route", "other"), ("status", "404"))
    assert samples[count, other] == 1
    assert not any("0" * 26 in value for _, labels in samples for _, value in labels)


def test_the_samples_of_nodes_are_gauges(client: TestClient, harness: Harness) -> None:
    harness.add_node(device="cuda", slots=1)
    host = HostSample(
        load=1.5,
        memory_bytes=1000,
        memory_used_bytes=400,
        disks=(DiskSample(name="data", total_bytes=100, free_bytes=30),),
    )
    gpu = AcceleratorSample(
        uuid="GPU-a", utilization_ratio=0.5, power_watts=612.5, throttle_reasons=("power cap",)
    )
    sample = NodeSample(host=host, accelerators=(gpu,))
    heartbeat = NodeHeartbeat(protocol=PROTOCOL, node="node-1", worker=WORKER, sample=sample)
    node_heartbeat(harness.context, heartbeat)
    node = ("node", "node-1")
    labels = (node, ("slot", ""), ("uuid", "GPU-a"))
    found = scraped(client)
    assert found["trainyard_node_gpu_power_watts", (node,)] == 612.5
    assert ("trainyard_node_gpu_power_watts", labels) not in found
    with every_device(client):
        found = scraped(client)
    assert ("trainyard_node_gpu_power_watts", (node,)) not in found
    assert found["trainyard_node_gpu_utilization_ratio", labels] == 0.5
    assert found["trainyard_node_gpu_power_watts", labels] == 612.5
    assert found["trainyard_node_gpu_throttled", labels] == 1
    assert found["trainyard_node_disk_free_bytes", (("disk", "data"), node)] == 30
    assert found["trainyard_node_memory_used_bytes", (node,)] == 400
    assert ("trainyard_node_gpu_temperature_celsius", labels) not in found
    answer = client.get(f"{API}/nodes/node-1/metrics?hours=336").json()
    assert answer["sample"]["accelerators"][0]["power_watts"] == 612.5
    assert answer["seconds"] == 900
    with harness.context.database.write() as connection:
        connection.execute(update(nodes).values(offline_since=harness.context.now()))
    assert ("trainyard_node_gpu_power_watts", (node,)) not in scraped(client)


def test_goodput_is_that_of_the_newest_ledger(client: TestClient, harness: Harness) -> None:
    """The first scrape starts the computation and does not wait for it."""
    app = client.app
    assert isinstance(app, FastAPI)
    client.post(f"{API}/projects", json={"name": "vision"})
    harness.add_node("node-1", slots=4)
    CapacityKeeper(harness.context).run()
    _, supervisors = harness.running(project="vision", resources={"world_size": 2})
    harness.clock.advance(30)
    began, may_end = Event(), Event()

    def slow(*given: Any, **named: Any) -> list[HeldShare]:
        began.set()
        assert may_end.wait(30)
        return read_holdings(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("server.telemetry.goodput.cluster.read_holdings", slow)
        assert not [name for name, _ in scraped(client) if name.startswith("trainyard_goodput")]
        assert began.wait(30)
        may_end.set()
        today = harness.clock.now().date()
        for first in (today, today - timedelta(days=USUAL_DAYS - 1)):
            app.state.cluster_ledger.view(first, today).result(30)
    samples = scraped(client)
    seconds = {
        (labels["project"], labels["category"]): value
        for (name, pairs), value in samples.items()
        if name == "trainyard_goodput_slot_seconds" and (labels := dict(pairs))
    }
    assert seconds == {("vision", "startup"): 2 * 30.0, ("", "idle"): 2 * 30.0}
    assert samples["trainyard_goodput_failures", ()] == 0
    assert ("trainyard_goodput_mttf_seconds", ()) not in samples

    for supervisor in supervisors:
        supervisor.end("failed", FailureReason.TRAINER_ERROR)
    harness.clock.advance(SERVED.total_seconds())
    for first in (today, today - timedelta(days=USUAL_DAYS - 1)):
        app.state.cluster_ledger.view(first, today).result(30)
    samples = scraped(client)
    assert samples["trainyard_goodput_failures", ()] == 1
    assert samples["trainyard_goodput_mttf_seconds", ()] == 30
