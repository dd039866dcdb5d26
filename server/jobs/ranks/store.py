"""Stored stragglers, and the rank times of a window.

The trainer finds stragglers (docs/guards.md), because it has the times of each rank at each logged
step. The server stores each straggler with node and slot, so that a slot that slows several jobs
can be found.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar

from sqlalchemy import Connection, Table, select, update

from server.core.context import Context
from server.core.database.held import HAS_RANKS
from server.core.database.metric_and_log_tables import stragglers
from server.core.database.rows import TypedRow
from server.core.database.tables import attempt_nodes, attempts, jobs
from server.core.database.upsert import insert_or_replace
from server.core.lifecycle import check_job
from server.core.visibility.scope import Scope
from trainyard.protocol.rest.metrics_and_logs import (
    RanksView,
    RankTimes,
    StragglerFound,
    StragglerKind,
    StragglerView,
)
from trainyard.protocol.states import AttemptState

MAX_SHOWN = 100
"""Maximum number of stragglers in a view, and in the gauge."""


@dataclass(frozen=True, slots=True)
class StoredStraggler(TypedRow):
    """A rank that is, or was, slower than its peers."""

    table: ClassVar[Table] = stragglers
    attempt_id: str
    rank: int
    step: int
    node: str
    slot: int
    kind: StragglerKind
    factor: float
    share: float
    found_at: datetime
    gone_at: datetime | None

    @property
    def view(self) -> StragglerView:
        """View of the row for clients."""
        return StragglerView(**self.values_for(StragglerView), words=straggler_words(self))


@dataclass(frozen=True, slots=True)
class LiveStraggler(StoredStraggler):
    """A straggler of a running attempt."""

    job_id: Annotated[str, jobs.c.id]
    job_name: Annotated[str, jobs.c.name]


@dataclass(frozen=True, slots=True)
class _Share(TypedRow):
    table: ClassVar[Table] = attempt_nodes
    node: str
    slots: list[int]


def straggler_words(found: StragglerFound | StoredStraggler) -> str:
    """Return a straggler as a sentence, without a period."""
    does = "computes" if found.kind == "compute" else "waits for data and computes"
    return (
        f"rank {found.rank} on {found.node} (slot {found.slot}) {does} {found.factor:.1f}x as long "
        f"as the others: costs {100 * found.share:.0f} % of each step"
    )


def places_of(connection: Connection, attempt_id: str) -> Sequence[tuple[str, int]]:
    """Return node and slot of each rank in an attempt, sorted by global rank."""
    share = attempt_nodes.c
    query = _Share.select().where(share.attempt_id == attempt_id, HAS_RANKS)
    shares = _Share.all(connection, query.order_by(share.node_rank))
    return [(found.node, slot) for found in shares for slot in found.slots]


def record_found(
    context: Context, connection: Connection, *, attempt_id: str, found: StragglerFound
) -> None:
    """Store a straggler with a known node and slot; a repeat of the event renews `found_at`."""
    row = found.model_dump(exclude={"time"})
    row |= {"attempt_id": attempt_id, "found_at": context.now()}
    insert_or_replace(connection, stragglers, [row])


def record_gone(context: Context, connection: Connection, *, attempt_id: str, rank: int) -> None:
    """End the straggler row of a rank, if there is one."""
    present = stragglers.c.gone_at.is_(None) & (stragglers.c.rank == rank)
    ended = update(stragglers).where(stragglers.c.attempt_id == attempt_id, present)
    connection.execute(ended.values(gone_at=context.now()))


def record_times(connection: Connection, attempt_id: str, times: RankTimes) -> None:
    """Replace the stored times of an attempt's ranks."""
    mine = attempts.c.id == attempt_id
    connection.execute(update(attempts).where(mine).values(rank_times=times))


def present_stragglers(
    connection: Connection, attempt_ids: Collection[str]
) -> Mapping[str, Sequence[StragglerView]]:
    """Return the `MAX_SHOWN` costliest present stragglers of each attempt, by attempt id.

    Each attempt needs one query, so callers should pass only few attempts. An ended attempt must
    not be passed.
    """
    present = StoredStraggler.select().where(stragglers.c.gone_at.is_(None))
    costliest = present.order_by(stragglers.c.share.desc()).limit(MAX_SHOWN)
    found: dict[str, Sequence[StragglerView]] = {}
    for attempt_id in attempt_ids:
        rows = StoredStraggler.all(
            connection, costliest.where(stragglers.c.attempt_id == attempt_id)
        )
        found[attempt_id] = [row.view for row in rows]
    return found


def live_stragglers(connection: Connection) -> Sequence[LiveStraggler]:
    """Return the `MAX_SHOWN` costliest stragglers of all running attempts, with their jobs."""
    query = (
        LiveStraggler.select()
        .join(attempts, attempts.c.id == stragglers.c.attempt_id)
        .join(jobs, jobs.c.id == attempts.c.job_id)
        .where(stragglers.c.gone_at.is_(None), attempts.c.state != AttemptState.ENDED)
        .order_by(stragglers.c.share.desc())
        .limit(MAX_SHOWN)
    )
    return LiveStraggler.all(connection, query)


def read_ranks(context: Context, job_id: str, *, scope: Scope) -> RanksView:
    """Return the rank times and at most `MAX_SHOWN` stragglers of a job's newest attempt.

    Raises:
        NotFoundError: no job has this id.
    """
    newest = (
        select(attempts.c.id, attempts.c.number, attempts.c.rank_times, attempts.c.ended_at)
        .where(attempts.c.job_id == job_id)
        .order_by(attempts.c.number.desc())
        .limit(1)
    )
    with context.database.read() as connection:
        check_job(connection, job_id, scope=scope)
        attempt = connection.execute(newest).one_or_none()
        if attempt is None:
            return RanksView(attempt=None, times=None, stragglers=())
        query = StoredStraggler.select().where(stragglers.c.attempt_id == attempt.id)
        present_first = query.order_by(stragglers.c.gone_at.is_not(None))
        newest_first = present_first.order_by(stragglers.c.found_at.desc()).limit(MAX_SHOWN)
        rows = StoredStraggler.all(connection, newest_first)
    views = [
        row.view.model_copy(update={"gone_at": row.gone_at or attempt.ended_at}) for row in rows
    ]
    return RanksView(attempt=attempt.number, times=attempt.rank_times, stragglers=tuple(views))
