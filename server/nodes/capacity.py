"""Capacity: what the nodes offer and what attempts hold on them, as the rows show it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, ClassVar, NamedTuple

import orjson
from sqlalchemy import Connection, Table, Text, select, type_coerce

from server.database.column_types import Json
from server.database.held import of_held
from server.database.rows import TypedRow
from server.database.tables import attempt_nodes, attempts, jobs, nodes
from server.nodes.slots import withheld_from_placement
from server.placement.demand import (
    LEAVES_WITHIN,
    OVERDUE_AFTER,
    Holding,
    Offer,
    expected_time,
)
from trainyard.protocol.states import AttemptNodeState, DesiredState, JobState
from trainyard.spec.auto import DeviceKind

OFFERS_KEPT = 8192
"""Offers that are kept, a kilobyte each: a round makes those anew whose nodes have changed."""

TAKES_JOBS = nodes.c.offline_since.is_(None) & nodes.c.drain.is_(None) & nodes.c.notice.is_(None)
"""The condition of the nodes that are online and not draining."""


@dataclass(frozen=True)
class Capacity:
    """What placement decides on."""

    offers: list[Offer]
    """The nodes that are online and not draining, with the slots that are free on them."""
    holdings: list[Holding]
    """What attempts hold, on any node."""


@dataclass(frozen=True, slots=True)
class _Held(TypedRow):
    """A share that holds its slots, with its job."""

    table: ClassVar[Table] = attempt_nodes
    attempt_id: str
    node: str
    slots: Annotated[str, type_coerce(attempt_nodes.c.slots, Text)]
    """Their indices, as stored."""
    state: AttemptNodeState
    is_lost: Annotated[bool, attempt_nodes.c.lost_at.is_not(None)]
    is_unreachable: Annotated[bool, attempt_nodes.c.unreachable_since.is_not(None)]
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
    shares = (
        _Held.select()
        .join(attempts, attempts.c.id == attempt_nodes.c.attempt_id)
        .join(jobs, jobs.c.id == attempts.c.job_id)
    )
    return _Held.all(connection, of_held(shares))


def _offers(
    connection: Connection, held: Iterable[_Held], *, without_job: str | None = None
) -> list[Offer]:
    shares: defaultdict[str, list[_HeldSlots]] = defaultdict(list)
    for share in held:
        counts = share.is_lost or share.job_id != without_job
        held_slots = _HeldSlots(share.job_name, share.slots, counts, share.state)
        shares[share.node].append(held_slots)
    node = nodes.c
    texts = (node.roots, node.partitions, node.worker_labels, node.set_labels, node.withheld)
    rows = connection.execute(
        select(
            *(node.name, node.device, node.slots, node.protocol),
            *(type_coerce(column, Text) for column in texts),
        ).where(TAKES_JOBS)
    )
    return [_offer(*row, held=tuple(sorted(shares.get(row[0], ())))) for row in rows]


class _HeldSlots(NamedTuple):
    """Slots of a share."""

    job_name: str
    slots: str
    """Their indices, as stored."""
    counts: bool
    """Whether they count as held."""
    state: AttemptNodeState
    """Of the share."""


@lru_cache(maxsize=OFFERS_KEPT)
def _offer(
    name: str,
    device: DeviceKind,
    slots: int,
    protocol: int,
    roots: str,
    partitions: str,
    worker_labels: str,
    set_labels: str,
    withheld: str,
    *,
    held: Sequence[_HeldSlots],
) -> Offer:
    """Return what a node offers; texts are columns as they are stored."""
    holders: Counter[str] = Counter()
    taken: set[int] = set()
    for share in held:
        if share.counts:
            indices = _indices(share.slots)
            holders[share.job_name] += len(indices)
            taken.update(indices)
    by_state = ((share.state, _indices(share.slots)) for share in held)
    reasons = withheld_from_placement(orjson.loads(withheld), by_state)
    usable = [slot for slot in range(slots) if slot not in reasons]
    return Offer(
        node=name,
        device=device,
        slots=len(usable),
        free=tuple(slot for slot in usable if slot not in taken),
        roots=orjson.loads(roots),
        holders=holders,
        protocol=protocol,
        partitions=tuple(slot for slot in orjson.loads(partitions) if slot not in reasons),
        labels={**orjson.loads(worker_labels), **orjson.loads(set_labels)},
        withheld=reasons,
    )


@lru_cache(maxsize=OFFERS_KEPT)
def _indices(slots: str) -> tuple[int, ...]:
    return tuple(orjson.loads(slots))


def _holding(shares: Sequence[_Held], now: datetime) -> Holding:
    """Return what an attempt holds, with its expected end: the steps left at its own pace.

    No end is known of an attempt with a silent share, of one that has not followed an order for
    long, nor of the slots that a queued job keeps, and no further order makes any of them leave.
    """
    first, seconds_left = shares[0], None
    kept = first.job_state == JobState.QUEUED
    silent = kept or any(share.is_lost or share.is_unreachable for share in shares)
    ordered = first.desired != DesiredState.RUN
    overdue = first.ordered_at is not None and now >= first.ordered_at + OVERDUE_AFTER
    if ordered and not silent and not overdue:
        seconds_left = LEAVES_WITHIN.total_seconds()
    elif not ordered and not silent and first.job_state == JobState.RUNNING:
        seconds_left = first.progress.get("seconds_left")
    return Holding(
        {share.node: _indices(share.slots) for share in shares},
        None if seconds_left is None else now + expected_time(float(seconds_left)),
        first.attempt_id,
        first.job_id,
        first.priority,
        None if silent or ordered else first.first_step_at,
    )
