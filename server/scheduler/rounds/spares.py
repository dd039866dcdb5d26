"""Replaces lost nodes with spare nodes, and reserves spares (docs/lifecycle-sizes.md, 54-55)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Annotated, Any, ClassVar

from sqlalchemy import Connection, Select, Table, func, insert, or_, select, update

from server.cluster.nodes.capacity import TAKES_JOBS, held_on, read_offers
from server.cluster.placement.demand import Offer
from server.cluster.placement.fit import allocate, groups
from server.cluster.placement.quotas import Quota, is_exceeded
from server.cluster.projects.quotas import read_quotas
from server.cluster.projects.usage import ReadUsage, read_usage
from server.core.context import Context
from server.core.database.held import HOLDS
from server.core.database.rows import TypedRow
from server.core.database.tables import attempt_nodes, attempts, jobs, nodes
from server.core.isolation import Isolation
from server.core.lifecycle import lock_job
from server.jobs.attempts.launch import Launch, newest_launch, release_spares
from server.jobs.queue.groups import demand_of, demand_of_new
from server.jobs.queue.queries import NewJob
from server.scheduler.elastic.grow_jobs import Room, Rotation, read_room
from server.scheduler.rounds.dispatch import Dispatcher
from server.scheduler.rounds.hold_back_jobs import held_back
from server.scheduler.rounds.placements import Placement, lock_placement, place
from trainyard.protocol.states import AttemptNodeState, AttemptState, DesiredState, JobState
from trainyard.run.failures import FailureReason

REPLACE_SECONDS = 0.1
"""Time, in seconds, after which a round places no further job on spare nodes."""
ROOM_SECONDS = 0.1
"""If the known free slots are older than this time, in seconds, they are read again before a
reservation, because other jobs may need them by now."""

_ENDED = attempts.c.state == AttemptState.ENDED


@dataclass(frozen=True, slots=True)
class Spare(TypedRow):
    """A spare node whose attempt has ended, or a spare node that may be unusable."""

    table: ClassVar[Table] = attempt_nodes
    node: str
    slots: list[int]
    job_id: Annotated[str, attempts.c.job_id]
    of_ended: Annotated[bool, _ENDED]
    """Whether the attempt of the spare node has ended."""
    takes_jobs: Annotated[bool, TAKES_JOBS]
    withheld: Annotated[dict[str, str], nodes.c.withheld]

    @property
    def is_usable(self) -> bool:
        """Whether the node takes jobs and none of the reserved slots is withheld."""
        return self.takes_jobs and self.withheld.keys().isdisjoint(map(str, self.slots))


@dataclass(frozen=True)
class _Round:
    """The data that one round needs to place jobs on their kept slots."""

    searched: Collection[str]
    """Ids of jobs that wait for a search for commits or for a build."""
    offers: Sequence[Offer]
    quotas: Mapping[str, Quota]
    """Quotas by project; projects without one are omitted."""


class SpareKeeper:
    """Replaces the lost nodes of jobs with their spare nodes, and keeps spare nodes reserved."""

    def __init__(
        self, context: Context, dispatcher: Dispatcher, usage: ReadUsage = read_usage
    ) -> None:
        self._context = context
        self._dispatcher = dispatcher
        self._usage = usage
        self._rotation = Rotation()
        self._isolation = Isolation(context.clock.monotonic)

    def run(self) -> int:
        """Replace lost nodes before the round of placement; return the number of placed jobs."""
        clock = self._context.clock.monotonic
        ends_at = clock() + REPLACE_SECONDS
        with self._context.database.read() as connection:
            spares = Spare.all(connection, _concerned())
        round_: _Round | None = None
        if spares and spares[0].of_ended:
            searched = held_back(self._context)
            with self._context.database.read() as connection:
                quotas = read_quotas(connection, self._context.now(), usage=self._usage)
                round_ = _Round(searched, read_offers(connection), quotas)
        placed, left_out = 0, self._isolation.left_out()
        for job_id, of_job in groupby(spares, key=lambda spare: spare.job_id):
            if job_id not in left_out:
                with self._isolation.turn(job_id, f"the spare nodes of job {job_id}"):
                    placed += self._keep(job_id, [*of_job], round_)
            if clock() >= ends_at:
                break  # the next round handles the rest
        return placed

    def _keep(self, job_id: str, spares: Sequence[Spare], round_: _Round | None) -> bool:
        """Place a job on its spare nodes, else release them; return whether the job was placed.

        While the attempt runs, only unusable spare nodes are released. A job that waits for a
        search for commits or for a build keeps its spare nodes.

        Args:
            job_id: the job.
            spares: all spare nodes of an ended attempt, or the possibly unusable spare nodes of a
                running attempt.
            round_: the data of the round; None if all attempts run.
        """
        if round_ is None or not spares[0].of_ended:
            useless = [spare.node for spare in spares if not spare.is_usable]
            if useless:
                self._release(job_id, useless)
            return False
        if job_id in round_.searched:
            return False
        with self._isolation.turn(job_id, f"the lost node of job {job_id}"):
            if self._replace(job_id, round_, spare_nodes=len(spares)):
                return True
        self._release(job_id)  # now the job queues like others, even after an error
        return False

    def _release(self, job_id: str, names: Collection[str] | None = None) -> None:
        with self._context.database.write() as connection:
            lock_job(connection, job_id)
            launch = newest_launch(connection, job_id)
            release_spares(self._context, connection, launch, nodes=names)

    def _replace(self, job_id: str, round_: _Round, *, spare_nodes: int) -> bool:
        """Place a job on the slots that it keeps, with at most `spare_nodes` spare nodes.

        Return whether the job was placed.
        """
        with self._context.database.read() as connection:
            row = NewJob.one_or_none(connection, NewJob.select().where(jobs.c.id == job_id))
            if row is None:
                return False
            demand = demand_of_new(row)
            sound, kept = _kept(connection, job_id, round_.offers)
        if is_exceeded(round_.quotas, row.project, row.owner_id):  # the use includes kept slots
            return False
        sizes = [replace(demand, spare_nodes=count) for count in range(spare_nodes, -1, -1)]
        allocations = (allocate(size, offers) for offers in (sound, kept) for size in sizes)
        found = next(filter(None, allocations), None)
        if found is None:
            return False
        for message in place(self._context, [Placement(job_id, row.queued_at, found)], kept):
            self._dispatcher.send(message)
        with self._context.database.read() as connection:  # nodes that poll get no message
            state = connection.scalar(select(jobs.c.state).where(jobs.c.id == job_id))
        return state == JobState.STARTING

    def reserve(self) -> Iterator[None]:
        """Reserve free nodes for a batch of attempts that have fewer spare nodes than requested."""
        context, clock = self._context, self._context.clock.monotonic
        left_out = self._isolation.left_out()
        with context.database.read() as connection:
            job_ids = [each for each in connection.scalars(_lacking()) if each not in left_out]
            room = read_room(connection, context.now(), self._usage) if job_ids else None
        read_at = clock()
        for job_id in self._rotation.next(job_ids):
            if room is None or not any(offer.free for offer in room.offers):
                return
            with self._isolation.turn(job_id, f"the search for a spare node of job {job_id}"):
                with context.database.read() as connection:
                    launch = newest_launch(connection, job_id)
                    row = _spare_share(launch, room)
                    if row is not None and clock() >= read_at + ROOM_SECONDS:
                        room = read_room(connection, context.now(), self._usage)
                        read_at = clock()
                        if room is not None:
                            row = _spare_share(launch, room)
                if room is not None and row is not None:
                    room = self._reserve(launch, row, room)
            yield

    def _reserve(self, launch: Launch, row: Mapping[str, Any], room: Room) -> Room:
        """Store a share on a spare node unless the job changed; return the remaining room."""
        context, job_id = self._context, launch.job.id
        node, slots = row["node"], row["slots"]
        with context.database.write() as connection:
            lock_placement(context, connection)
            lock_job(connection, job_id)
            attempt = newest_launch(connection, job_id).attempt
            runs = (launch.attempt.id, AttemptState.RUNNING, DesiredState.RUN)
            if (attempt.id, attempt.state, attempt.desired) != runs:
                return room
            if not held_on(connection, [node]).isdisjoint((node, slot) for slot in slots):
                return room
            connection.execute(insert(attempt_nodes).values(**row, spare_since=context.now()))
            more = jobs.c.spare_slots + len(slots)
            connection.execute(update(jobs).where(jobs.c.id == job_id).values(spare_slots=more))
        job = launch.job
        return room.without(node, project=job.project, owner_id=job.owner_id, slots=len(slots))


def _concerned() -> Select[Any]:
    """Return the query for spare nodes of ended attempts, then for possibly unusable spare nodes.

    In most rounds, the query finds no node.
    """
    share = attempt_nodes.c
    return (
        Spare.select()
        .join(attempts, attempts.c.id == share.attempt_id)
        .join(jobs, (jobs.c.id == attempts.c.job_id) & (jobs.c.attempt == attempts.c.number))
        .join(nodes, nodes.c.name == share.node)
        .where(
            HOLDS,
            jobs.c.spare_slots > 0,
            share.state == AttemptNodeState.SPARE,
            or_(_ENDED, ~TAKES_JOBS, nodes.c.withheld != {}),
        )
        .order_by(_ENDED.desc(), attempts.c.job_id, share.node_rank)
    )


def _lacking() -> Select[str]:
    """Return the query for running jobs with too few spare nodes, sorted by priority."""
    share = attempt_nodes.c
    present = select(func.count()).where(
        share.attempt_id == attempts.c.id, share.state == AttemptNodeState.SPARE
    )
    return (
        select(jobs.c.id)
        .join(attempts, (attempts.c.job_id == jobs.c.id) & (attempts.c.number == jobs.c.attempt))
        .where(
            jobs.c.state == JobState.RUNNING,
            jobs.c.desired == DesiredState.RUN,
            jobs.c.spare_nodes > present.scalar_subquery(),
        )
        .order_by(jobs.c.priority.desc(), jobs.c.id)
    )


def _spare_share(launch: Launch, room: Room) -> dict[str, Any] | None:
    """Return the share on a spare node that a job may reserve within its limits, or None.

    The node has the kind of slots, the fabric and the storage of the attempt's nodes, and the
    account of the attempt if it needs one. Among several nodes, the one with the fewest free
    slots is chosen.
    """
    job, attempt, slots = launch.job, launch.attempt, len(launch.nodes[0].slots)
    if slots > room.left(job.project, job.owner_id):
        return None
    demand = demand_of(
        job.spec, attempt.overrides, attempt.layout, bound=job.storage, account=attempt.account
    )
    shares = [*launch.nodes, *launch.spares]
    used = {share.node for share in shares}
    spanned = groups(demand, room.offers)
    group = next((each for each in spanned if any(offer.node in used for offer in each)), [])
    able = [offer for offer in group if offer.node not in used and len(offer.free) >= slots]
    if not able:
        return None
    found = min(able, key=lambda offer: offer.by_free)
    return {
        "attempt_id": attempt.id,
        "node": found.node,
        "node_rank": max(share.node_rank for share in shares) + 1,
        "slots": found.free[:slots],
        "state": AttemptNodeState.SPARE.value,
    }


def _kept(
    connection: Connection, job_id: str, offers: Sequence[Offer]
) -> tuple[list[Offer], list[Offer]]:
    """Return the nodes on which a queued job has kept slots since its attempt lost a node.

    Returns:
        The nodes that were not lost, and all nodes, including lost ones that are online again.
    """
    launch = newest_launch(connection, job_id)
    ended = [share for share in launch.nodes if share.state == AttemptNodeState.ENDED]
    slots = {share.node: share.slots for share in (*ended, *launch.spares)}
    kept = [
        replace(offer, free=tuple(slot for slot in slots[offer.node] if slot in offer.indices))
        for offer in offers
        if offer.node in slots
    ]
    failures = {share.node: share.failure for share in ended if share.failure is not None}
    lost = {node for node, each in failures.items() if each.reason == FailureReason.NODE_LOST}
    return [offer for offer in kept if offer.node not in lost], kept
