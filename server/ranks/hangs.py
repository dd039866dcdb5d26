"""Which rank a hang waits for: the positions of all nodes, merged (docs/guards.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from server.database.rows import AttemptNode
from trainyard.run.failures import Failure, FailureReason
from trainyard.run.records import PendingCollective, RankPosition

SHOWN_RANKS = 8
"""Most ranks that a message lists."""

GroupKey = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class _Group:
    """A process group in which ranks wait."""

    collective: PendingCollective
    """The oldest one that has not ended."""
    waiting: tuple[int, ...]
    """Ranks that have arrived in it."""
    missing: tuple[int, ...]
    """Ranks that have not."""


def explained(failure: Failure, shares: Sequence[AttemptNode]) -> Failure:
    """Return the failure of a hang with the rank that did not arrive, where positions show it.

    Args:
        failure: the first failure of the attempt.
        shares: all shares, which have ended.
    """
    if failure.reason != FailureReason.HANG:
        return failure
    located = [
        (share.node, position)
        for share in shares
        if share.exit is not None
        for position in share.exit.positions
    ]
    nodes = {position.rank: node for node, position in located}
    positions = {position.rank: position for _, position in located}
    found = _late(positions)
    if found is None:
        return failure
    late, group = found
    message = _in_words(late, group, positions, nodes)
    # A rank that did not answer has a position without a step.
    step = positions[late[0]].step if late[0] in positions else None
    return replace(
        failure,
        message=f"{message}; {failure.message}",
        rank=late[0],
        node=nodes.get(late[0], failure.node),
        step=failure.step if step is None else step,
    )


def _late(positions: Mapping[int, RankPosition]) -> tuple[list[int], _Group] | None:
    """Return the ranks that wait for no other, and a collective that waits for them.

    A missing rank may itself wait in another group: the chain ends at a rank that waits in none.
    """
    groups = _groups(positions)
    idle = {rank for rank, position in positions.items() if position.collective is None}
    for group in groups:
        # A rank without a position is on a node that reports no more.
        late = [rank for rank in group.missing if rank in idle or rank not in positions]
        if late:
            return late, group
    return None


def _groups(positions: Mapping[int, RankPosition]) -> list[_Group]:
    """Return the groups in which ranks wait for others, the most waiting ranks first."""
    waiting: dict[GroupKey, dict[int, PendingCollective]] = {}
    for rank, position in positions.items():
        pending = position.collective
        if pending is not None:
            waiting.setdefault((pending.group, pending.ranks), {})[rank] = pending
    groups = []
    for (_, members), by_rank in waiting.items():
        furthest = max(by_rank.values(), key=lambda one: one.number)
        arrived = tuple(
            sorted(rank for rank, one in by_rank.items() if one.number == furthest.number)
        )
        missing = tuple(rank for rank in members or sorted(positions) if rank not in arrived)
        groups.append(_Group(furthest, arrived, missing))
    return sorted(groups, key=lambda group: -len(group.waiting))


def _in_words(
    late: Sequence[int],
    group: _Group,
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
    if position.process is not None:
        return f"it did not answer, and its process is {position.process}"
    return "it did not answer"


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:SHOWN_RANKS]))
    more = f" and {len(ranks) - SHOWN_RANKS} more" if len(ranks) > SHOWN_RANKS else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"
