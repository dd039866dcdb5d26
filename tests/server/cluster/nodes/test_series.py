"""Samples of nodes: received, stored and shown values."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from pydantic import ValidationError
from sqlalchemy import select, update

from server.cluster.nodes.endpoints import metrics
from server.cluster.nodes.queries import list_nodes
from server.cluster.nodes.series import (
    HIGHEST,
    MAX_POINTS,
    MINUTES_KEPT,
    QUARTERS_KEPT,
    SERIES,
    device_values,
    host_values,
    node_values,
    read_metrics,
)
from server.core.database.metric_and_log_tables import node_points
from server.core.database.tables import nodes
from server.core.errors import InvalidRequestError, NotFoundError
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts.node_heartbeat import node_heartbeat
from tests.server.harness import WORKER, Harness
from tests.server.statements import statements
from trainyard.protocol.node_samples import (
    Accelerator,
    AcceleratorSample,
    DiskSample,
    HostSample,
    NodeSample,
)
from trainyard.protocol.rest.nodes import NodeCurve, NodeMetrics
from trainyard.protocol.worker_messages import PROTOCOL, NodeHeartbeat

HOST = HostSample(load=1.5, memory_bytes=1000, memory_used_bytes=400)


def sample_of(watts: float, **values: object) -> NodeSample:
    device = AcceleratorSample.model_validate({"uuid": "GPU-a", "power_watts": watts, **values})
    return NodeSample(host=HOST, accelerators=(device,))


def beat(harness: Harness, sample: NodeSample | None) -> None:
    node_heartbeat(
        harness.context,
        NodeHeartbeat(protocol=PROTOCOL, node="node-1", worker=WORKER, sample=sample),
    )


def read(harness: Harness, *, hours: int = 1, names: str | None = None) -> NodeMetrics:
    """Return the answer of the endpoint, validated by the model of the API."""
    reply = metrics(harness.context, "node-1", hours, names)
    return NodeMetrics.model_validate_json(bytes(reply.body))


def power(harness: Harness, *, hours: int = 1) -> NodeCurve:
    (curve,) = read(harness, hours=hours, names="gpu_power_watts").curves
    return curve


@pytest.fixture
def gpu_node(harness: Harness) -> str:
    name = harness.add_node(slots=1, device="cuda")
    gpu = Accelerator(index=0, uuid="GPU-a", name="H100", memory_bytes=80 << 30)
    with harness.context.database.write() as connection:
        before = connection.scalar(select(nodes.c.hardware))
        assert before is not None
        hardware = before.model_copy(update={"accelerators": (gpu,)})
        connection.execute(update(nodes).values(hardware=hardware))
    return name


@pytest.mark.usefixtures("gpu_node")
def test_a_peak_stays_visible_in_its_minute_and_its_quarter(harness: Harness) -> None:
    for watts in (100.0, 700.0, 100.0, 100.0):
        beat(harness, sample_of(watts))
        harness.clock.advance(5)
    curve = power(harness)
    (point,) = curve.points
    assert (curve.part, curve.slot) == ("GPU-a", 0)
    assert (point.min, point.mean, point.max) == (100, 250, 700)
    for _ in range(16):
        harness.clock.advance(60)
        beat(harness, sample_of(100.0))
    assert [p.max for p in power(harness).points].count(700) == 1
    quarters = power(harness, hours=24).points
    assert max(p.max for p in quarters) == 700
    assert min(p.min for p in quarters) == 100


@pytest.mark.usefixtures("gpu_node")
def test_a_node_keeps_a_bounded_number_of_rows(harness: Harness) -> None:
    with harness.context.database.write() as connection:
        now = int(harness.context.now().timestamp())
        for seconds, kept in ((60, MINUTES_KEPT), (900, QUARTERS_KEPT)):
            begin = now // seconds * seconds
            rows = [
                {"node": "node-1", "seconds": seconds, "start": begin - i * seconds, "data": {}}
                for i in range(1, kept + 20)
            ]
            connection.execute(node_points.insert(), rows)
    beat(harness, sample_of(100.0))
    with harness.context.database.read() as connection:
        counts = Counter(connection.scalars(select(node_points.c.seconds)))
    assert counts[60] == MINUTES_KEPT
    assert counts[900] in (QUARTERS_KEPT, QUARTERS_KEPT - 1)


@pytest.mark.usefixtures("gpu_node")
def test_a_heartbeat_with_a_sample_needs_few_statements(harness: Harness) -> None:
    beat(harness, sample_of(300.0))
    with statements(harness.context) as seen:
        beat(harness, sample_of(400.0))
    assert len([each for each in seen if not each.startswith("BEGIN")]) == 5, seen
    assert power(harness).points[-1].max == 400.0


@pytest.mark.usefixtures("gpu_node")
def test_a_heartbeat_without_a_sample_leaves_a_gap(harness: Harness) -> None:
    beat(harness, sample_of(100.0))
    harness.clock.advance(120)
    beat(harness, None)  # a worker of an older version, or one whose driver hangs
    found = read(harness)
    assert found.sample is None
    assert found.sampled_at is None
    assert len(power(harness).points) == 1
    with pytest.raises(NotFoundError, match="'node-2'"):
        read_metrics(harness.context, "node-2", hours=1)


def test_an_answer_is_bounded_whatever_the_number_of_series(harness: Harness) -> None:
    """A fortnight of eight GPUs: each number stays in the minimum, mean or maximum of its point."""
    harness.add_node()
    names = [f"gpu_power_watts/GPU-{gpu}" for gpu in range(8)] + [
        f"disk_bytes/{n}" for n in range(92)
    ]
    begin = int(harness.context.now().timestamp()) // 900 * 900
    rows = [
        {
            "node": "node-1",
            "seconds": 900,
            "start": begin - place * 900,
            "data": {key: [1, float(place)] for key in names[: 100 if place else 1]},
        }
        for place in range(QUARTERS_KEPT)
    ]
    with harness.context.database.write() as connection:
        connection.execute(node_points.insert(), rows)
    whole = read(harness, hours=336)
    points = [point for curve in whole.curves for point in curve.points]
    assert len(whole.curves) == 100
    assert MAX_POINTS / 4 < len(points) <= MAX_POINTS
    assert whole.seconds % 900 == 0
    some = whole.curves[-1].points
    assert (some[0].max, some[-1].min) == (QUARTERS_KEPT - 1, 1)
    assert [point.max - point.min for point in some[1:-1]] == [whole.seconds / 900 - 1] * (
        len(some) - 2
    )
    assert all(point.mean == (point.min + point.max) / 2 for point in some)
    named = read(harness, hours=336, names="gpu_power_watts")
    assert named.seconds == 900
    assert [len(curve.points) for curve in named.curves] == [1344, *[1343] * 7]
    assert read(harness, hours=336, names="load").curves == ()


def test_names_are_those_of_the_series_of_a_sample(harness: Harness) -> None:
    harness.add_node()
    fields = dict.fromkeys(
        set(AcceleratorSample.model_fields) - {"uuid", "problem", "xids", "foreign"}, 1
    )
    device = AcceleratorSample.model_validate({"uuid": "GPU-a", **fields, "throttle_reasons": ()})
    disk = DiskSample(name="root", total_bytes=2, free_bytes=1)
    sample = NodeSample(host=HOST.model_copy(update={"disks": (disk,)}))
    named = {name for name, *_ in host_values(sample)} | {name for name, _ in device_values(device)}
    assert named == SERIES
    with pytest.raises(
        InvalidRequestError, match="no node has a series 'watts'; legal: disk_bytes, "
    ):
        read(harness, names="load,watts")


def test_the_devices_of_a_node_together() -> None:
    first = AcceleratorSample(
        uuid="GPU-a", power_watts=100, utilization_ratio=0.2, temperature_celsius=40, xids=()
    )
    second = AcceleratorSample(
        uuid="GPU-b", power_watts=300, utilization_ratio=0.6, temperature_celsius=70
    )
    third = AcceleratorSample(uuid="GPU-c", problem="GPU is lost")
    found = dict(node_values(NodeSample(host=HOST, accelerators=(first, second, third))))
    assert found == pytest.approx(
        {"gpu_power_watts": 400, "gpu_utilization_ratio": 0.4, "gpu_temperature_celsius": 70}
    )
    assert HIGHEST < SERIES


@pytest.mark.usefixtures("gpu_node")
def test_what_is_wrong_with_a_node_is_shown(harness: Harness) -> None:
    bad = sample_of(100.0, xids=({"code": 79, "age_seconds": 5.0},), row_remap_pending=True)
    beat(harness, bad.model_copy(update={"problems": ("disks of data have not answered",)}))
    (view,) = list_nodes(harness.context, scope=SYSTEM_SCOPE)
    assert view.problems == (
        "disks of data have not answered",
        "slot 0: Xid 79",
        "slot 0: a reset is needed to replace a damaged row of memory",
    )


@pytest.mark.usefixtures("gpu_node")
@pytest.mark.parametrize("watts", [math.nan, math.inf, -math.inf, 1e308], ids=str)
def test_what_is_no_measurement_is_left_out_of_the_curves(harness: Harness, watts: float) -> None:
    for each in (100.0, watts, 200.0):
        beat(harness, sample_of(each))
    (point,) = power(harness).points
    assert (point.min, point.mean, point.max) == (100.0, 150.0, 200.0)


@pytest.mark.parametrize(
    ("field", "value"), [("ecc_corrected", 2**64), ("xids", [{"code": 48, "age_seconds": 1e300}])]
)
def test_a_sample_with_an_impossible_number_is_no_sample(field: str, value: object) -> None:
    sample_of(1.0, ecc_corrected=2**64 - 1)  # the value of some drivers for "unknown"
    with pytest.raises(ValidationError, match=field):
        sample_of(1.0, **{field: value})
