"""Results of a run: node-hours, idle time, requests without demand, and broken rules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Row, select

from benchmarks.supply.mix import SimulatedSource
from server.core.context import Context
from server.core.database.source_tables import node_requests
from server.core.database.tables import jobs, nodes
from trainyard.protocol.states import JobState, NodeRequestState

MAX_CONSIDERED = 200
"""Limit of queued jobs that supply considers."""
WAITS = (NodeRequestState.WANTED.value, NodeRequestState.PENDING.value)
AnyRow = Row[*tuple[object, ...]]


def _zeros() -> defaultdict[str, float]:
    return defaultdict(float)


@dataclass
class Record:
    """Results of a run; times in seconds."""

    node_seconds: defaultdict[str, float] = field(default_factory=_zeros)
    """Time of joined nodes, by source."""
    idle_seconds: defaultdict[str, float] = field(default_factory=_zeros)
    """Time of joined nodes without a held slot."""
    idle_causes: defaultdict[str, float] = field(default_factory=_zeros)
    """The same by cause."""
    slot_seconds: float = 0.0
    idle_slot_seconds: float = 0.0
    longest_without_demand: float = 0.0
    """Longest wait of a request while all queued jobs fitted without it."""
    longest_without_demand_at: str = ""
    """Description of that moment."""
    longest_idle: float = 0.0
    """Longest time for which all nodes of a running request were idle while nothing waited."""
    violations: list[str] = field(default_factory=list)


class Observer:
    """Examines the state between two rounds, without the scheduler's code."""

    def __init__(self, context: Context, sources: Sequence[SimulatedSource]) -> None:
        self._context = context
        self._sources = {each.name: each for each in sources}
        self._without: dict[str, float] = {}
        self._idle: dict[str, float] = {}
        self.record = Record()

    def note(
        self, now: float, seconds: float, *, joined: Mapping[str, str], held: Mapping[str, int]
    ) -> None:
        """Count a period without changes, and check it.

        Args:
            now: its start.
            seconds: its duration.
            joined: source of each live node.
            held: held slots of each node.
        """
        with self._context.database.read() as connection:
            words = "id source state engine_state nodes cancel_at by_person started_at"
            columns = words.split()
            is_open = node_requests.c.state != NodeRequestState.ENDED.value
            requests = connection.execute(
                select(*(node_requests.c[name] for name in columns)).where(is_open)
            ).all()
            queue = connection.execute(
                select(jobs.c.world_size, jobs.c.min_world_size)
                .where(jobs.c.state == JobState.QUEUED, jobs.c.demand.is_not(None))
                .order_by(jobs.c.priority.desc(), jobs.c.queued_at, jobs.c.id)
                .limit(MAX_CONSIDERED)
            ).all()
            drained = select(nodes.c.name).where(nodes.c.drain.is_not(None))
            closed = set(connection.scalars(drained.where(nodes.c.offline_since.is_(None))))
        self._check_limits(requests)
        self._count(seconds, joined, held=held, requests=requests, closed=closed, waits=bool(queue))
        self._note_demand(now, requests, queue=queue, joined=joined, held=held, closed=closed)
        self._note_idle(now, requests, joined=joined, held=held, waits=bool(queue))

    def _check_limits(self, requests: Sequence[AnyRow]) -> None:
        for name, source in self._sources.items():
            mine = [each for each in requests if each.source == name]
            # A running one that the engine requeued waits in addition to those requested.
            waiting = [e for e in mine if e.state in WAITS and e.started_at is None]
            total = sum(each.nodes for each in mine)
            limits = source.limits
            found = (
                (len(waiting), limits.pending, "requests wait"),
                (total, limits.nodes, "nodes are asked for or allocated"),
                (max((e.nodes for e in mine), default=0), limits.nodes_per_request, "in a request"),
            )
            for number, most, what in found:
                if number > most:
                    self._violate(f"{name}: {number} {what}, the limit is {most}")

    def _violate(self, what: str) -> None:
        if what not in self.record.violations:
            self.record.violations.append(what)

    def _count(
        self,
        seconds: float,
        joined: Mapping[str, str],
        *,
        held: Mapping[str, int],
        requests: Sequence[AnyRow],
        closed: set[str],
        waits: bool,
    ) -> None:
        record = self.record
        busy = {_request_of(node) for node in joined if held.get(node)}
        complete = {each.id: each.nodes for each in requests}
        present = Counter(_request_of(node) for node in joined)
        for node, source in joined.items():
            slots = self._sources[source].slots
            record.node_seconds[source] += seconds
            record.slot_seconds += slots * seconds
            record.idle_slot_seconds += max(slots - held.get(node, 0), 0) * seconds
            if held.get(node):
                continue
            record.idle_seconds[source] += seconds
            request = _request_of(node)
            if node in closed:
                cause = "drained"
            elif present[request] < complete.get(request, 0):
                cause = "other nodes of its request come"
            elif request in busy:
                cause = "other nodes of its request work"
            else:
                cause = "the request is idle"
            record.idle_causes[f"{cause}, {'jobs wait' if waits else 'nothing waits'}"] += seconds

    def _note_demand(
        self,
        now: float,
        requests: Sequence[AnyRow],
        *,
        queue: Sequence[AnyRow],
        joined: Mapping[str, str],
        held: Mapping[str, int],
        closed: set[str],
    ) -> None:
        """Note since when each waiting request is needless: all queued jobs fit without it.

        All nodes share one storage and a job may span all sources, so that it fits if enough slots
        are free.
        """
        waiting = [each for each in requests if each.state in WAITS and each.cancel_at is None]
        free = sum(
            self._sources[source].slots - held.get(node, 0)
            for node, source in joined.items()
            if node not in closed
        )
        present = Counter(_request_of(node) for node in joined)
        coming = {
            each.id: self._sources[each.source].slots * max(each.nodes - present[each.id], 0)
            for each in requests
            # A completing one may come back, but nothing waits for it.
            if each.state != NodeRequestState.LEAVING.value and each.engine_state != "completing"
        }
        needless = {
            each.id
            for each in waiting
            if not each.by_person
            and _met(queue, free, sum(coming.values()) - coming[each.id]) == len(queue)
        }
        self._without = {each: self._without.get(each, now) for each in needless}
        longest = max((now - since for since in self._without.values()), default=0.0)
        if longest > self.record.longest_without_demand:
            self.record.longest_without_demand = longest
            self.record.longest_without_demand_at = (
                f"at {now:.0f} s {len(queue)} jobs waited for {free} free slots and those of "
                f"{len(coming)} requests, {len(needless)} of which they did not need"
            )

    def _note_idle(
        self,
        now: float,
        requests: Sequence[AnyRow],
        *,
        joined: Mapping[str, str],
        held: Mapping[str, int],
        waits: bool,
    ) -> None:
        busy = {_request_of(node) for node in joined if held.get(node)}
        present = {_request_of(node) for node in joined}
        idle = {
            each.id
            for each in requests
            if each.state == NodeRequestState.RUNNING.value
            and each.id in present - busy
            and each.cancel_at is None
            and not waits
        }
        self._idle = {each: self._idle.get(each, now) for each in idle}
        longest = max((now - since for since in self._idle.values()), default=0.0)
        self.record.longest_idle = max(self.record.longest_idle, longest)


def _met(queue: Sequence[AnyRow], free: int, coming: int) -> int:
    """Return how many queued jobs fit, in order, on free slots alone or with the coming ones."""
    met = 0
    for row in queue:
        least = row.min_world_size or row.world_size
        if row.world_size <= free:
            free -= row.world_size
        elif least <= free:
            free -= least
        elif row.world_size <= free + coming:
            free, coming = 0, coming - (row.world_size - free)
        else:
            continue
        met += 1
    return met


def _request_of(node: str) -> str:
    return node.rsplit("-", 2)[1]
