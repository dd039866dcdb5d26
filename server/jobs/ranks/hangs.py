"""The late rank of a hang, found from the merged positions on all nodes (docs/guards.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from sqlalchemy import Connection, select

from server.core.database.rows import AttemptNode
from server.core.database.tables import attempt_nodes
from trainyard.run.failures import Failure, FailureReason
from trainyard.run.records import PendingCollective, RankPosition, RankRange

SHOWN_RANKS = 8
"""Maximum number of ranks that a message lists."""


@dataclass(frozen=True)
class _Group:
    """A process group, with the pending collective that some of its ranks have not entered."""

    collective: PendingCollective
    waiting: tuple[int, ...]
    missing: tuple[int, ...]


def explained(connection: Connection, failure: Failure, shares: Sequence[AttemptNode]) -> Failure:
    """Return the first failure of an attempt, with the late rank if the failure is a hang.

    Before the call, each share of the attempt must have ended or be lost.
    """
    if failure.reason != FailureReason.HANG:
        return failure
    exits = select(attempt_nodes.c.node, attempt_nodes.c.exit).where(
        attempt_nodes.c.attempt_id == shares[0].attempt_id, attempt_nodes.c.exit.is_not(None)
    )
    rows = connection.execute(exits).all()
    located = [(row.node, position) for row in rows for position in row.exit.positions]
    return with_late_rank(failure, located, world_size=sum(len(share.slots) for share in shares))


def with_late_rank(
    failure: Failure, located: Collection[tuple[str, RankPosition]], *, world_size: int
) -> Failure:
    """Return the failure of a hang; it names the late rank if the positions show one.

    `located` has the position of each rank, with the name of the rank's node.
    """
    nodes = {position.rank: node for node, position in located}
    positions = {position.rank: position for _, position in located}
    found = _late(positions, world_size)
    if found is None:
        return failure
    late, group = found
    message = _in_words(late, group, positions=positions, nodes=nodes)
    # A rank that did not report its step has a position without a step.
    step = positions[late[0]].step if late[0] in positions else None
    return replace(
        failure,
        message=f"{message}; {failure.message}",
        rank=late[0],
        node=nodes.get(late[0], failure.node),
        step=failure.step if step is None else step,
    )


def _late(
    positions: Mapping[int, RankPosition], world_size: int
) -> tuple[list[int], _Group] | None:
    """Return ranks that wait in no collective, and a group that waits for these ranks.

    A missing rank may itself wait in another group. The chain of waiting ranks ends at a rank that
    waits in no group.
    """
    idle = {rank for rank, position in positions.items() if position.collective is None}
    for group in _groups(positions, world_size):
        # Only ranks on a node that no longer reports have no position.
        late = [rank for rank in group.missing if rank in idle or rank not in positions]
        if late:
            return late, group
    return None


def _groups(positions: Mapping[int, RankPosition], world_size: int) -> list[_Group]:
    """Return the groups in which ranks wait, with the most waiting ranks first."""
    waiting: dict[tuple[str, tuple[RankRange, ...]], dict[int, PendingCollective]] = {}
    unknown: dict[int, PendingCollective] = {}
    for rank, position in positions.items():
        pending = position.collective
        if pending is not None and pending.ranks:
            waiting.setdefault((pending.group, pending.ranks), {})[rank] = pending
        elif pending is not None:
            unknown[rank] = pending
    members = {key: _members(key[1], world_size) for key in waiting}
    # Several groups of a mesh may share a name, so the group that contains the rank is used.
    for rank, pending in unknown.items():
        of_name = (key for key in members if key[0] == pending.group and rank in members[key])
        key = next(of_name, (pending.group, ()))
        waiting.setdefault(key, {})[rank] = pending
    groups = []
    for key, by_rank in waiting.items():
        furthest = max(by_rank.values(), key=lambda one: one.number)
        arrived = {rank for rank, one in by_rank.items() if one.number == furthest.number}
        missing = sorted(members.get(key, positions.keys()) - arrived)
        groups.append(_Group(furthest, tuple(sorted(arrived)), tuple(missing)))
    return sorted(groups, key=lambda group: -len(group.waiting))


def _members(ranges: Sequence[RankRange], world_size: int) -> Set[int]:
    """Return the attempt's ranks in the ranges; a range that overlaps an earlier one is ignored."""
    members: set[int] = set()
    end = 0
    for each in ranges:
        if each.first >= end:  # else a forged position would cost too much time
            members.update(range(each.first, min(each.last + 1, world_size), each.step))
            end = each.last + 1
    return members


def _in_words(
    late: Sequence[int],
    group: _Group,
    *,
    positions: Mapping[int, RankPosition],
    nodes: Mapping[int, str],
) -> str:
    first, collective = late[0], group.collective
    where = f" on {nodes[first]}" if first in nodes else ""
    step = positions[group.waiting[0]].step
    others = f" (nor did {_listed(late[1:])})" if late[1:] else ""
    return (
        f"rank {first}{where} did not arrive{others} at {collective.op} {collective.number} of "
        f"group {collective.group} after step {step}, in which {_listed(group.waiting)} "
        f"{'waits' if len(group.waiting) == 1 else 'wait'}: {_state(positions.get(first))}"
    )


def _state(position: RankPosition | None) -> str:
    if position is None:
        return "no position of it is known"
    if position.place is not None:
        return f"it is in {position.place}"
    of_process = "" if position.process is None else f", and its process is {position.process}"
    return f"it did not answer{of_process}"


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:SHOWN_RANKS]))
    more = f" and {len(ranks) - SHOWN_RANKS} more" if len(ranks) > SHOWN_RANKS else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"
