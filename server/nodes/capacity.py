"""Capacity: what the nodes offer and what attempts hold on them, as the rows show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar

from sqlalchemy import Connection, Table, select, type_coerce

from server.database.column_types import Json
from server.database.rows import TypedRow
from server.database.tables import attempt_nodes, attempts, jobs, nodes
from server.nodes.slots import withheld_from_placement
from server.placement.demand import LEAVES_WITHIN, OVERDUE_AFTER, Holding, Offer
from trainyard.protocol.states import AttemptNodeState, DesiredState, JobState


@dataclass(frozen=True)
class Capacity:
    """What placement decides on."""

    offers: list[Offer]
    """The nodes that are online and not draining, with the slots that are free on them."""
    holdings: list[Holding]
    """What attempts hold, on any node."""


@dataclass(frozen=True, slots=True)
class _Held(TypedRow):
    """A share that has not ended, with its job."""

    table: ClassVar[Table] = attempt_nodes
    attempt_id: str
    node: str
    slots: list[int]
    lost_at: datetime | None
    unreachable_since: datetime | None
    desired: Annotated[DesiredState, attempts.c.desired]
    ordered_at: Annotated[datetime | None, attempts.c.ordered_at]
    first_step_at: Annotated[datetime | None, attempts.c.started_at]
    job_id: Annotated[str, jobs.c.id]
    job_name: Annotated[str, jobs.c.name]
    job_state: Annotated[JobState, jobs.c.state]
    priority: Annotated[int, jobs.c.priority]
    progress: Annotated[dict[str, Any], type_coerce(jobs.c.progress, Json)]
    """Not validated: a round reads that of every job that runs."""


def read_offers(connection: Connection, *, without_job: str | None = None) -> list[Offer]:
    """Return the nodes that are online and not draining, with the slots that are free on them.

    Args:
        connection: a transaction.
        without_job: a job whose slots count as free, as they will when it is resized; those of its
            lost shares do not.
    """
    return _offers(connection, _read_held(connection), without_job=without_job)


def read_capacity(connection: Connection, now: datetime) -> Capacity:
    """Return what the nodes offer and what attempts hold, as of one moment."""
    held = _read_held(connection)
    by_attempt: dict[str, list[_Held]] = {}
    for share in held:
        by_attempt.setdefault(share.attempt_id, []).append(share)
    holdings = [_holding(shares, now) for shares in by_attempt.values()]
    return Capacity(_offers(connection, held), holdings)


def _read_held(connection: Connection) -> Sequence[_Held]:
    return _Held.all(
        connection,
        _Held.select()
        .join(attempts, attempts.c.id == attempt_nodes.c.attempt_id)
        .join(jobs, jobs.c.id == attempts.c.job_id)
        .where(attempt_nodes.c.state != AttemptNodeState.ENDED),
    )


def _offers(
    connection: Connection, held: Iterable[_Held], *, without_job: str | None = None
) -> list[Offer]:
    holders: dict[str, Counter[str]] = {}
    taken: dict[str, set[int]] = {}
    in_use: dict[str, set[int]] = {}
    for share in held:
        in_use.setdefault(share.node, set()).update(share.slots)
        if share.lost_at or share.job_id != without_job:
            holders.setdefault(share.node, Counter())[share.job_name] += len(share.slots)
            taken.setdefault(share.node, set()).update(share.slots)
    node = nodes.c
    columns = (node.name, node.device, node.slots, node.roots, node.protocol, node.partitions)
    more = (node.worker_labels, node.set_labels, node.withheld)
    rows = connection.execute(
        select(*columns, *more).where(
            nodes.c.offline_since.is_(None), nodes.c.drain.is_(None), nodes.c.notice.is_(None)
        )
    )
    offers = []
    for row in rows:
        withheld = withheld_from_placement(row.withheld, in_use.get(row.name, ()))
        usable = [slot for slot in range(row.slots) if slot not in withheld]
        offer = Offer(
            node=row.name,
            device=row.device,
            slots=len(usable),
            free=tuple(slot for slot in usable if slot not in taken.get(row.name, ())),
            roots=row.roots,
            holders=holders.get(row.name, {}),
            protocol=row.protocol,
            partitions=tuple(slot for slot in row.partitions if slot not in withheld),
            labels={**row.worker_labels, **row.set_labels},
            withheld=withheld,
        )
        offers.append(offer)
    return offers


def _holding(shares: Sequence[_Held], now: datetime) -> Holding:
    """Return what an attempt holds, with its expected end: the steps left at its own pace.

    No end is known of an attempt with a silent share, nor of one that has not followed an order for
    long, and no further order makes either leave.
    """
    first, seconds_left = shares[0], None
    silent = any(share.lost_at or share.unreachable_since for share in shares)
    ordered = first.desired != DesiredState.RUN
    overdue = first.ordered_at is not None and now >= first.ordered_at + OVERDUE_AFTER
    if ordered and not silent and not overdue:
        seconds_left = LEAVES_WITHIN.total_seconds()
    elif not ordered and not silent and first.job_state == JobState.RUNNING:
        seconds_left = first.progress.get("seconds_left")
    return Holding(
        {share.node: tuple(share.slots) for share in shares},
        None if seconds_left is None else now + timedelta(seconds=seconds_left),
        first.attempt_id,
        first.job_id,
        first.priority,
        None if silent or ordered else first.first_step_at,
    )
