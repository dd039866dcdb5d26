"""Capacity: the offers of nodes and the holdings of attempts, read from the database."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, Self

import orjson
from sqlalchemy import ColumnElement, Connection, Integer, Text, bindparam, select, type_coerce

from server.cluster.nodes.slots import withheld_from_placement
from server.cluster.placement.demand import LEAVES_WITHIN, OVERDUE_AFTER, Holding, Offer
from server.core.database.held import of_held
from server.core.database.tables import attempt_nodes, attempts, jobs, nodes
from server.core.expected_time import expected_time
from server.core.visibility.job_labels import label
from trainyard.protocol.states import AttemptNodeState, DesiredState, JobState
from trainyard.protocol.worker_messages import OLDEST_PROTOCOL, PROTOCOL
from trainyard.spec.auto import DeviceKind

POLLS = "server"
"""Value of the column `inbox` for nodes that fetch their messages by long polls."""
_HeldSlots = tuple[str, str, bool, str]
"""Job name of a share, slots of the share as JSON text, whether the slots count as held, and state
of the share."""
_StoredTime = str | datetime
"""A time in the form that the database driver returns."""
_NEVER = datetime.max.replace(tzinfo=UTC)
OFFERS_KEPT = 8192
"""Maximum number of cached offers, of about a kilobyte each; a changed node gets a new offer."""

IS_SERVED = nodes.c.protocol.between(OLDEST_PROTOCOL, PROTOCOL)
"""SQL condition that the server serves the protocol version of the node's worker."""
TAKES_JOBS = (
    nodes.c.offline_since.is_(None) & nodes.c.drain.is_(None) & nodes.c.notice.is_(None) & IS_SERVED
)
"""SQL condition that a node is served (`IS_SERVED`), online and not draining."""

_SHARES_ON = (
    select(attempt_nodes.c.node, type_coerce(attempt_nodes.c.slots, Text))
    .join(attempts, attempts.c.id == attempt_nodes.c.attempt_id)
    .where(attempt_nodes.c.node.in_(bindparam("names", expanding=True)))
)
_HELD_ON = of_held(_SHARES_ON)


@dataclass(frozen=True)
class Capacity:
    """The input of placement."""

    offers: list[Offer]
    """The nodes that take jobs (`TAKES_JOBS`), with their free slots."""
    holdings: list[Holding]
    """Holdings of attempts on all nodes."""


class _Held(NamedTuple):
    """A share that holds its slots, with its job; every round reads all such shares.

    To save time, values stay as the driver returns them. States are texts, which equal their enum
    members. JSON values are texts, too.
    """

    attempt_id: str
    node: str
    slots: str
    """Slot indices as JSON text."""
    state: str
    is_lost: int
    is_unreachable: int
    desired: str
    ordered_at: _StoredTime | None
    first_step_at: _StoredTime | None
    placed_at: _StoredTime
    expected_end_at: _StoredTime | None
    runs_until: _StoredTime | None
    gives_way: int
    job_id: str
    job_name: str
    job_state: str
    priority: int
    preemptible: int
    queued_at: _StoredTime | None
    project: str
    progress: str
    """Progress as JSON text. The field is the last one, so that `CapacityReader` can compare all
    others; only the progress changes with each report.
    """


def _as_text(*columns: ColumnElement[Any]) -> list[ColumnElement[str]]:
    return [type_coerce(column, Text) for column in columns]


_HELD = of_held(
    select(
        attempt_nodes.c.attempt_id,
        attempt_nodes.c.node,
        *_as_text(attempt_nodes.c.slots, attempt_nodes.c.state),
        type_coerce(attempt_nodes.c.lost_at.is_not(None), Integer),
        type_coerce(attempt_nodes.c.unreachable_since.is_not(None), Integer),
        *_as_text(attempts.c.desired, attempts.c.ordered_at, attempts.c.started_at),
        *_as_text(attempts.c.created_at, attempts.c.expected_end_at, attempts.c.runs_until),
        type_coerce(attempts.c.gives_way, Integer),
        jobs.c.id,
        jobs.c.name,
        *_as_text(jobs.c.state),
        jobs.c.priority,
        type_coerce(jobs.c.preemptible, Integer),
        *_as_text(jobs.c.queued_at),
        jobs.c.project,
        *_as_text(jobs.c.progress),
    )
    .join(attempts, attempts.c.id == attempt_nodes.c.attempt_id)
    .join(jobs, jobs.c.id == attempts.c.job_id)
)
"""Query for the shares that hold their slots; its columns are the fields of `_Held`, in order."""
_NODES = select(
    *(nodes.c.name, nodes.c.device, nodes.c.slots, nodes.c.inbox),
    *_as_text(nodes.c.roots, nodes.c.partitions, nodes.c.worker_labels),
    *_as_text(nodes.c.set_labels, nodes.c.withheld, nodes.c.hardware, nodes.c.accounts),
).where(TAKES_JOBS)
"""Query for the arguments of `_offer`, except the last argument."""


@dataclass(frozen=True)
class _Attempt:
    """Holding of an attempt, without the expected end, which changes with the progress."""

    holding: Holding
    is_paced: bool
    """Whether the attempt's expected end follows from its remaining steps."""
    leaves_until: datetime | None
    """Time after which the end of an attempt with an order to leave is unknown. Until then, its end
    is expected within `LEAVES_WITHIN`. None for an attempt without such an order, and for a silent
    attempt.
    """
    expected_end_at: datetime | None
    """End expected at placement, used until the attempt's pace is known; None if unknown."""
    runs_until: datetime | None
    """Time at which the attempt reaches its bound; None without a bound."""

    @classmethod
    def of(cls, shares: Sequence[_Held]) -> Self:
        """Return the holding of an attempt from its shares.

        An attempt has no known end and cannot be preempted in three cases: one of its shares is
        silent, the attempt got an order to leave more than `OVERDUE_AFTER` ago, or the job is
        queued and keeps its slots.
        """
        first = shares[0]
        kept = first.job_state == JobState.QUEUED
        silent = kept or any(share.is_lost or share.is_unreachable for share in shares)
        ordered, ordered_at = first.desired != DesiredState.RUN, _time(first.ordered_at)
        runs = not silent and not ordered
        may_leave = first.preemptible and runs
        overdue_at = _NEVER if ordered_at is None else ordered_at + OVERDUE_AFTER
        return cls(
            Holding(
                {share.node: slot_indices(share.slots) for share in shares},
                None,
                first.attempt_id,
                first.job_id,
                first.priority,
                _time(first.first_step_at) if may_leave else None,
                _time(first.placed_at) if may_leave and first.gives_way else None,
                _time(first.queued_at),
                project=first.project,
            ),
            is_paced=runs and first.job_state == JobState.RUNNING,
            leaves_until=overdue_at if ordered and not silent else None,
            expected_end_at=_time(first.expected_end_at) if runs else None,
            runs_until=_time(first.runs_until) if runs else None,
        )

    def at(self, now: datetime, progress: str) -> Holding:
        """Return the holding with its expected end, given the job's progress as JSON text."""
        seconds_left: float | None = None
        if self.is_paced:
            seconds_left = orjson.loads(progress).get("seconds_left")
        leaves = self.leaves_until is not None and now < self.leaves_until
        ends_by = now + LEAVES_WITHIN if leaves else _to_come(self.runs_until, now)
        expected = _to_come(self.expected_end_at, now)
        if seconds_left is not None:
            expected = now + expected_time(float(seconds_left))
        ends = [each for each in (ends_by, expected) if each is not None]
        if not ends:
            return self.holding
        held = self.holding
        of_job = (held.job_id, held.priority, held.first_step_at, held.overtook_at, held.queued_at)
        # The constructor is faster than `replace`.
        return Holding(held.shares, min(ends), held.attempt_id, *of_job, ends_by, held.project)


def _to_come(time: datetime | None, now: datetime) -> datetime | None:
    return time if time is not None and now < time else None


class CapacityReader:
    """Reads the capacity in each round, and reuses the holdings of unchanged attempts."""

    def __init__(self) -> None:
        self._attempts: dict[Hashable, _Attempt] = {}

    def read(self, connection: Connection, now: datetime) -> Capacity:
        """Return the offers of nodes and the holdings of attempts as of the same moment."""
        held = _read_held(connection)
        by_attempt: dict[str, list[_Held]] = {}
        for share in held:
            by_attempt.setdefault(share.attempt_id, []).append(share)
        former, self._attempts = self._attempts, {}
        holdings: list[Holding] = []
        for shares in by_attempt.values():
            key = tuple(share[:-1] for share in shares) if len(shares) > 1 else shares[0][:-1]
            attempt = self._attempts[key] = former.get(key) or _Attempt.of(shares)
            holdings.append(attempt.at(now, shares[0].progress))
        return Capacity(_offers(connection, held), holdings)


def read_offers(connection: Connection, *, without_job: str | None = None) -> list[Offer]:
    """Return the nodes that take jobs (`TAKES_JOBS`), with their free slots.

    The slots of `without_job`, a job to be resized, count as free, except those of lost shares.
    """
    return _offers(connection, _read_held(connection), without_job=without_job)


def read_capacity(connection: Connection, now: datetime) -> Capacity:
    """Return the offers of nodes and the holdings of attempts as of the same moment."""
    return CapacityReader().read(connection, now)


def _read_held(connection: Connection) -> Sequence[_Held]:
    return [_Held._make(row) for row in connection.execute(_HELD).all()]


def _time(stored: _StoredTime | None) -> datetime | None:
    """Convert a time from the driver; SQLite returns a text in UTC without a time zone."""
    if isinstance(stored, str):
        return datetime.fromisoformat(stored).replace(tzinfo=UTC)
    return stored and stored.astimezone(UTC)


def _offers(
    connection: Connection, held: Iterable[_Held], *, without_job: str | None = None
) -> list[Offer]:
    shares: defaultdict[str, list[_HeldSlots]] = defaultdict(list)
    for share in held:
        counts = bool(share.is_lost) or share.job_id != without_job
        name = label(share.project, share.job_name)
        shares[share.node].append((name, share.slots, counts, share.state))
    rows = connection.execute(_NODES).all()
    return _of_one_uid([_offer(*row, tuple(sorted(shares.get(row[0], ())))) for row in rows])


def _of_one_uid(offers: list[Offer]) -> list[Offer]:
    """Refuse an account on all nodes if they have different user ids for its name.

    The server cannot know which node is right, and the files of a job belong to a user id.
    """
    by_uid: defaultdict[str, dict[int, str]] = defaultdict(dict)
    # Equal answers are one object, so a round compares few of them.
    for offer in {id(offer.accounts): offer for offer in offers}.values():
        for account, found in (offer.accounts or {}).items():
            if isinstance(found, int):
                by_uid[account].setdefault(found, offer.node)
    refused = {
        account: "has different user ids ("
        + ", ".join(f"{uid} on {node}" for uid, node in sorted(nodes_by_uid.items())[:2])
        + ")"
        for account, nodes_by_uid in by_uid.items()
        if len(nodes_by_uid) > 1
    }
    if not refused:
        return offers
    return [
        offer if offer.accounts is None else replace(offer, accounts={**offer.accounts, **refused})
        for offer in offers
    ]


@lru_cache(maxsize=OFFERS_KEPT)
def _offer(
    name: str,
    device: DeviceKind,
    slots: int,
    inbox: str,
    roots: str,
    partitions: str,
    worker_labels: str,
    set_labels: str,
    withheld: str,
    hardware: str,
    accounts: str | None,
    held: Sequence[_HeldSlots],
) -> Offer:
    """Return the offer of a node, from its stored columns and the shares that hold its slots."""
    holders: Counter[str] = Counter()
    taken: set[int] = set()
    for job_name, slots_of_share, counts, _ in held:
        if counts:
            indices = slot_indices(slots_of_share)
            holders[job_name] += len(indices)
            taken.update(indices)
    by_state = ((AttemptNodeState(state), slot_indices(given)) for _, given, _, state in held)
    reasons = withheld_from_placement(orjson.loads(withheld), by_state)
    usable = [slot for slot in range(slots) if slot not in reasons]
    return Offer(
        node=name,
        device=device,
        slots=len(usable),
        free=tuple(slot for slot in usable if slot not in taken),
        roots=orjson.loads(roots),
        holders=holders,
        polls=inbox == POLLS,
        partitions=tuple(slot for slot in orjson.loads(partitions) if slot not in reasons),
        labels={**orjson.loads(worker_labels), **orjson.loads(set_labels)},
        withheld=reasons,
        device_name=orjson.loads(hardware)["device_name"],
        accounts=None if accounts is None else _answers(accounts),
    )


@lru_cache(maxsize=OFFERS_KEPT)
def _answers(accounts: str) -> Mapping[str, int | str]:
    """Parse the JSON text of a node's answers about accounts; most nodes have the same answers."""
    found: dict[str, int | str] = orjson.loads(accounts)
    return found


@lru_cache(maxsize=OFFERS_KEPT)
def slot_indices(slots: str) -> tuple[int, ...]:
    """Parse the JSON text of a share's slots; cached, because there are few distinct texts."""
    return tuple(orjson.loads(slots))


def held_on(
    connection: Connection, names: Collection[str], *, but_for: Collection[str] = ()
) -> set[tuple[str, int]]:
    """Return the held slots on some nodes.

    Args:
        connection: a transaction.
        names: the nodes.
        but_for: ids of jobs that are placed on their kept slots, which do not count as held
            (docs/lifecycle-sizes.md, 54).
    """
    shares = _HELD_ON
    if but_for:  # rare, so only the common statement is built in advance
        kept = attempt_nodes.c.state.in_((AttemptNodeState.SPARE, AttemptNodeState.ENDED))
        shares = of_held(_SHARES_ON.where(~(kept & attempts.c.job_id.in_(but_for))))
    rows = connection.execute(shares, {"names": list(names)}).all()
    return {(node, slot) for node, slots in rows for slot in slot_indices(slots)}
