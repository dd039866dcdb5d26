"""Cordons nodes on which attempts fail repeatedly (docs/lifecycle-placing.md, 42)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, ClassVar

from sqlalchemy import Connection, Table, exists, func, select

from server.cluster.nodes.capacity import TAKES_JOBS
from server.cluster.nodes.changes import cordon_by_server
from server.cluster.nodes.health import NodeFailure, in_words, is_of_the_node, repeated_failures
from server.core.context import Context
from server.core.database.column_types import StoredRecord
from server.core.database.held import HAS_RANKS
from server.core.database.rows import TypedRow
from server.core.database.tables import attempt_nodes, attempts, jobs, nodes
from server.core.errors import UnreadableError
from server.core.isolation import Isolation
from server.core.people.user_tables import submitter
from trainyard.protocol.states import AttemptOutcome
from trainyard.run.failures import Failure
from trainyard.spec.job import JobSpec

logger = logging.getLogger(__name__)

OVERLAP = timedelta(seconds=30)
"""Each read also covers this time before the previous read, because the end of an attempt is
committed after its timestamp.
"""


@dataclass(frozen=True, slots=True)
class _Ended(TypedRow):
    """An attempt that failed."""

    table: ClassVar[Table] = attempts
    id: str
    job_id: str
    failure: Failure | None
    ended_at: Annotated[datetime, attempts.c.ended_at]
    spec: Annotated[StoredRecord[JobSpec], jobs.c.spec]
    submitter: Annotated[str, submitter]


class NodeWatch:
    """Counts each node's failures within the window, and cordons unreliable nodes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._isolation = Isolation(context.clock.monotonic)
        self._read_at: datetime | None = None
        self._warned: dict[str, str] = {}
        self._failures: dict[str, NodeFailure] = {}

    def run(self) -> int:
        """Judge nodes with new failures; return the number of cordoned nodes."""
        return self._judge_nodes(self._count_failures())

    def judge_again(self) -> int:
        """Judge all nodes with failures again; failed jobs may have trained elsewhere meanwhile."""
        self._count_failures()
        return self._judge_nodes(self._failures.values())

    def _count_failures(self) -> list[NodeFailure]:
        """Count failures since the last read, forget old failures, and return the new failures."""
        now, last = self._context.now(), self._read_at
        since = self._window_start()
        # After the clock was set back, the whole window is read.
        new = self._read(since if last is None or now < last else last - OVERLAP)
        self._read_at = now  # not before: failures since the last read would never count
        self._failures = {
            each.attempt_id: each for each in (*self._failures.values(), *new) if each.at > since
        }
        return new

    def _window_start(self) -> datetime:
        return self._context.now() - timedelta(seconds=self._context.settings.cordon_window_seconds)

    def _judge_nodes(self, new: Iterable[NodeFailure]) -> int:
        limit = self._context.settings.cordon_after_failures
        if limit == 0:
            return 0
        found = Counter(each.node for each in self._failures.values())
        due = {each.node for each in new if found[each.node] >= limit}
        cordoned = 0
        for node in sorted(due - set(self._isolation.left_out())):
            with self._isolation.turn(node, f"the cordon of node {node}"):
                cordoned += self._judge(node)
        return cordoned

    def _read(self, since: datetime) -> list[NodeFailure]:
        """Return the uncounted failures of nodes since the given time."""
        query = _Ended.select().join(jobs, jobs.c.id == attempts.c.job_id)
        failed = (attempts.c.ended_at > since, attempts.c.outcome == AttemptOutcome.FAILED)
        with self._context.database.read() as connection:
            rows = _Ended.all(connection, query.where(*failed))
        return [
            NodeFailure(
                row.id,
                row.job_id,
                failure.node,
                failure.reason,
                _witness(row),
                row.submitter,
                row.ended_at,
            )
            for row in rows
            if row.id not in self._failures
            and (failure := row.failure) is not None
            and failure.node is not None
            and is_of_the_node(failure)
        ]

    def _judge(self, node: str) -> bool:
        """Cordon a node that fails repeatedly; return whether the node was cordoned.

        A node is not cordoned if no other node with the same device takes work.
        """
        context = self._context
        with context.database.write() as connection:
            found = select(nodes.c.device, nodes.c.drain, nodes.c.trusted_since)
            row = connection.execute(
                found.where(nodes.c.name == node).with_for_update(key_share=True)
            ).one_or_none()
            if row is None or row.drain is not None:
                return False
            counted = [
                each
                for each in self._failures.values()
                if row.trusted_since is None or each.at > row.trusted_since
            ]
            others = select(nodes.c.name).where(
                nodes.c.name != node, nodes.c.device == row.device, TAKES_JOBS
            )
            is_last = connection.execute(others.limit(1)).first() is None
            repeated = repeated_failures(
                counted,
                node,
                limit=context.settings.cordon_after_failures,
                nodes=None if is_last else _online(connection, row.device),
                submitters=_submitters(connection, self._window_start()),
                trained_elsewhere=lambda jobs: _trained_without(connection, jobs, node),
            )
            if not repeated:
                return False
            if is_last:
                if self._warned.get(node) != repeated[-1].attempt_id:
                    self._warned[node] = repeated[-1].attempt_id
                    logger.warning("%s: %s; it is the last of its kind", node, in_words(repeated))
                return False
            cordon_by_server(context, connection, name=node, reasons=[in_words(repeated)])
            return True


def _witness(row: _Ended) -> str:
    """Return the digest of a failed job's spec without name, description and tags.

    If the spec is unreadable, return the job id.
    """
    try:
        spec = row.spec.read(f"spec of job {row.job_id}")
    except UnreadableError:
        return row.job_id
    return spec.model_copy(update={"name": "job", "description": "", "tags": ()}).digest


def _online(connection: Connection, device: str) -> int:
    online = nodes.c.offline_since.is_(None) & (nodes.c.device == device)
    return connection.scalar(select(func.count()).select_from(nodes).where(online)) or 0


def _submitters(connection: Connection, since: datetime) -> int:
    """Return the number of submitters with attempts that ended since the given time."""
    persons = func.count(func.distinct(submitter))
    ended = attempts.c.ended_at > since
    query = select(persons).join(attempts, attempts.c.job_id == jobs.c.id).where(ended)
    return connection.scalar(query) or 0


def _trained_without(connection: Connection, job_ids: Collection[str], node: str) -> bool:
    """Return whether at least one of the jobs trained a step in an attempt without the node."""
    share = attempt_nodes.c
    on_node = exists().where(share.attempt_id == attempts.c.id, share.node == node, HAS_RANKS)
    trained = select(attempts.c.id).where(
        attempts.c.job_id.in_(job_ids), attempts.c.last_step > attempts.c.start_step, ~on_node
    )
    return bool(connection.scalar(select(exists(trained))))
