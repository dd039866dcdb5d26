"""`/metrics` for Prometheus: the current state of the cluster, and request durations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import ColumnElement, Connection, func, select
from starlette.types import Scope

from server.api.auth.dependencies import may
from server.cluster.nodes.series import device_values, host_values, node_values
from server.cluster.nodes.slots import withheld_from_placement
from server.cluster.projects.queries import Project, views
from server.core.audit.audit_tables import audit_log, audit_marks, audit_pending
from server.core.audit.destinations import destinations
from server.core.context import Context
from server.core.database.held import of_held
from server.core.database.rows import Node
from server.core.database.tables import attempt_nodes, attempts, jobs, nodes
from server.core.events.tail import Tail, newest_id
from server.core.periodic import read_times
from server.core.settings import Settings
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.ranks.store import live_stragglers
from server.telemetry.goodput.cluster import USUAL_DAYS, ClusterLedger
from trainyard.protocol.goodput import ClusterGoodputView
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.states import AttemptNodeState, AttemptState, JobState

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

router = APIRouter(tags=["health"])


@router.get(
    "/metrics",
    dependencies=[may(Permission.METRICS_READ)],
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(request: Request) -> Response:
    """Return the metrics of this process and of the cluster, in Prometheus's text format."""
    monitoring = request.app.state.monitoring
    assert isinstance(monitoring, Monitoring)
    return Response(generate_latest(monitoring.registry), media_type=CONTENT_TYPE_LATEST)


class Monitoring(Collector):
    """The metrics of one application."""

    def __init__(self, context: Context, tail: Tail, ledger: ClusterLedger) -> None:
        self._context, self._tail, self._ledger = context, tail, ledger
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._requests = Histogram(
            "trainyard_request_duration_seconds",
            "Duration of requests",
            ("method", "route", "status"),
            buckets=SECONDS,
            registry=self.registry,
        )

    def observe(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request under the template of its route, so that ids do not create series."""
        route = getattr(scope.get("route"), "path", "other")
        self._requests.labels(scope["method"], route, str(status)).observe(seconds)

    def collect(self) -> Iterable[Metric]:
        """Yield the cluster's state from the database, and the newest goodput of the cluster.

        A scrape never waits for a computation of the goodput, but may start one.
        """
        with self._context.database.read() as connection:
            yield _by_state(connection, "jobs", column=jobs.c.state, states=JobState)
            yield _by_state(connection, "attempts", column=attempts.c.state, states=AttemptState)
            yield _slots(connection)
            yield from _projects(self._context, connection)
            every_device = self._context.settings.device_gauges
            yield from _node_samples(connection, every_device=every_device)
            yield _stragglers(connection)
            yield from _tasks(connection)
            yield from _audit(connection, self._context.settings)
            lag = max(0, newest_id(connection) - self._tail.position)
        yield GaugeMetricFamily(
            "trainyard_events_tail_lag", "Events that no stream has received yet", value=lag
        )
        yield GaugeMetricFamily(
            "trainyard_stream_clients", "Open streams of this process", value=self._tail.clients
        )
        if (of_today := self._ledger.newest(1)) is not None:
            yield _slot_seconds(of_today)
        if (of_days := self._ledger.newest(USUAL_DAYS)) is not None:
            yield from _failures(of_days)


def _slot_seconds(view: ClusterGoodputView) -> Metric:
    """Return one series per project and category; the project is empty for slots that no job
    holds."""
    gauge = GaugeMetricFamily(
        "trainyard_goodput_slot_seconds",
        "Slot-seconds of the current day (UTC) by category; time of unheld slots has no project",
        labels=("project", "category"),
    )
    unheld = {each.category: each.slot_milliseconds for each in view.categories}
    for project in view.projects:
        for each in project.categories:
            unheld[each.category] -= each.slot_milliseconds
            gauge.add_metric((project.project, each.category), each.slot_milliseconds / 1000)
    for category, left in unheld.items():
        if left:
            gauge.add_metric(("", category), left / 1000)
    return gauge


def _failures(view: ClusterGoodputView) -> Iterable[Metric]:
    days = f"in the last {USUAL_DAYS} days"
    yield GaugeMetricFamily(
        "trainyard_goodput_failures", f"Attempts that failed {days}", value=view.failures
    )
    if view.mttf_seconds is not None:
        text = f"Mean time to failure of an attempt {days}"
        yield GaugeMetricFamily("trainyard_goodput_mttf_seconds", text, value=view.mttf_seconds)


def _by_state(
    connection: Connection, what: str, *, column: ColumnElement[str], states: type[StrEnum]
) -> Metric:
    query = select(column, func.count()).group_by(column)
    counted = dict(connection.execute(query).all())
    gauge = GaugeMetricFamily(f"trainyard_{what}", f"Number of {what} by state", labels=("state",))
    for state in states:
        gauge.add_metric((state.value,), counted.get(state.value, 0))
    return gauge


def _slots(connection: Connection) -> Metric:
    shares: defaultdict[str, list[tuple[AttemptNodeState, list[int]]]] = defaultdict(list)
    share = attempt_nodes.c
    held_shares = of_held(select(share.node, share.state, share.slots))
    for name, state, slots in connection.execute(held_shares):
        shares[name].append((state, slots))
    counted = Counter[str]()
    of_nodes = select(nodes.c.name, nodes.c.slots, nodes.c.withheld)
    for name, slots, reasons in connection.execute(of_nodes.where(nodes.c.offline_since.is_(None))):
        held = {slot for _, some in shares[name] for slot in some}
        withheld = withheld_from_placement(reasons, shares[name]).keys() - held
        counted["held"] += len(held)
        counted["withheld"] += len(withheld)
        counted["free"] += max(slots - len(held) - len(withheld), 0)
    gauge = GaugeMetricFamily("trainyard_slots", "Slots of online nodes, by use", labels=("use",))
    for use in ("held", "withheld", "free"):
        gauge.add_metric((use,), counted[use])
    return gauge


def _projects(context: Context, connection: Connection) -> Iterable[Metric]:
    """Yield the held slots, waiting jobs and used slot-hours of each project."""
    rows = Project.all(connection, Project.select())
    shown = views(context, connection, rows, scope=SYSTEM_SCOPE)
    hours = "Slot-hours that the jobs of a project used in this calendar month (UTC)"
    gauges = (
        ("slots", "held_slots", "Slots that the jobs of a project hold"),
        ("waiting_jobs", "waiting_jobs", "Jobs of a project in the queue"),
        ("slot_hours", "slot_hours_used", hours),
    )
    yield from _by_name("project", shown, gauges=gauges)


def _node_samples(connection: Connection, *, every_device: bool) -> Iterable[Metric]:
    """Yield the newest samples of all online nodes, by device if `every_device`, else by node."""
    gauges: dict[str, GaugeMetricFamily] = {}
    for node in Node.all(connection, Node.select().where(nodes.c.offline_since.is_(None))):
        if node.sample is None:
            continue
        for name, disk, value in host_values(node.sample):
            labels = {"node": node.name} | ({"disk": disk} if disk else {})
            _gauge(gauges, name, labels).add_metric(tuple(labels.values()), value)
        if not every_device:
            for name, value in node_values(node.sample):
                _gauge(gauges, name, ("node",)).add_metric((node.name,), value)
            continue
        slots = {device.uuid: str(slot) for slot, device in enumerate(node.hardware.accelerators)}
        for device in node.sample.accelerators:
            labels = {"node": node.name, "slot": slots.get(device.uuid, ""), "uuid": device.uuid}
            for name, value in device_values(device):
                _gauge(gauges, name, labels).add_metric(tuple(labels.values()), value)
    yield from gauges.values()


def _stragglers(connection: Connection) -> Metric:
    """Return the greatest cost of a straggler on each slot, without the names of jobs.

    Who reads metrics may have no role in the project of the job.
    """
    gauge = GaugeMetricFamily(
        "trainyard_straggler_cost_ratio",
        "Part of each step that a rank costs its job by being slower than the others",
        labels=("node", "slot", "kind"),
    )
    most: dict[tuple[str, str, str], float] = {}
    for one in live_stragglers(connection):
        labels = (one.node, str(one.slot), one.kind)
        most[labels] = max(one.share, most.get(labels, 0.0))
    for slot, share in most.items():
        gauge.add_metric(slot, share)
    return gauge


def _tasks(connection: Connection) -> Iterable[Metric]:
    """Yield duration and delay of the last run of each periodic task, and counts of its runs."""
    gauges = (
        ("seconds", "seconds", "Work of the last run of a periodic task"),
        ("lag_seconds", "lag_seconds", "Delay of the start of a periodic task's last run"),
        ("runs", "runs", "Runs of a periodic task since the present scheduler leads"),
        (
            "failures",
            "failures",
            "Failed runs of a periodic task since the present scheduler leads",
        ),
    )
    yield from _by_name("task", read_times(connection), gauges=gauges)


def _audit(connection: Connection, settings: Settings) -> Iterable[Metric]:
    """Yield the rows of the audit log that wait for a number, and those that an export lacks."""
    waiting = select(func.count()).select_from(audit_pending)
    text = "Rows of the audit log without a number"
    yield GaugeMetricFamily("trainyard_audit_unsealed_rows", text, value=connection.scalar(waiting))
    lag = GaugeMetricFamily(
        "trainyard_audit_export_lag_rows",
        "Numbered rows of the audit log that a destination lacks",
        labels=("destination",),
    )
    query = select(audit_marks.c.name, audit_marks.c.seq)
    marks = {row.name: row.seq for row in connection.execute(query)}
    newest = connection.scalar(select(func.max(audit_log.c.seq))) or 0
    for each in destinations(settings):
        lag.add_metric((each.name,), max(0, newest - marks.get(each.name, 0)))
    yield lag


def _by_name(
    what: str, rows: Iterable[Any], *, gauges: Iterable[tuple[str, str, str]]
) -> Iterable[Metric]:
    """Yield gauges with one series per row.

    Each gauge is given as its name, the attribute of a row with the value, and the help text.
    """
    for name, attribute, text in gauges:
        gauge = GaugeMetricFamily(f"trainyard_{what}_{name}", text, labels=(what,))
        for row in rows:
            gauge.add_metric((row.name,), getattr(row, attribute))
        yield gauge


def _gauge(
    gauges: dict[str, GaugeMetricFamily], name: str, labels: Iterable[str]
) -> GaugeMetricFamily:
    if name not in gauges:
        words = name.replace("_", " ")
        gauges[name] = GaugeMetricFamily(
            f"trainyard_node_{name}", f"Newest sample of a node: {words}", labels=tuple(labels)
        )
    return gauges[name]
