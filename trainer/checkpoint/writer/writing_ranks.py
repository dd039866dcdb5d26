"""Who writes a checkpoint: the ranks that are chosen, and what each of them takes."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence
from typing import Literal, TypeVar

from trainer.parallel.mesh import Place
from trainyard.spec.layout import Layout

Writers = Literal["auto", "all", "one_replica"] | int
Piece = TypeVar("Piece", bound=Hashable)


def writing_ranks(writers: Writers, layout: Layout, *, shared: bool) -> tuple[int, ...]:
    """Return the ranks that write, in order.

    Args:
        writers: the spec's choice.
        layout: layout of the attempt.
        shared: whether the storage is one that machines share; `auto` goes by it.
    """
    world_size = layout.world_size
    if writers == "auto":
        writers = "one_replica" if shared else "all"
    if writers == "all":
        return tuple(range(world_size))
    if writers == "one_replica":
        return tuple(r for r in range(world_size) if Place.of(r, layout).dp < layout.dp_shard)
    # Spread evenly, so that the nodes share the work and what is streamed has short ways.
    return tuple(number * world_size // writers for number in range(writers))


def assign(
    holders: Mapping[Piece, Sequence[int]], sizes: Mapping[Piece, int], writers: Sequence[int]
) -> dict[Piece, int]:
    """Return the writer of each piece; the largest pieces first, to who has the least so far.

    A writer that holds a piece comes before one that does not: only what no writer holds has to be
    streamed, and is given to whoever has the least by then.

    Args:
        holders: ranks that hold each piece.
        sizes: bytes of each piece.
        writers: ranks that write.
    """
    writing = set(writers)
    load = dict.fromkeys(writers, 0)
    chosen: dict[Piece, int] = {}
    largest_first = sorted(holders, key=lambda piece: -sizes[piece])
    streamed = []
    for piece in largest_first:
        held_by = [rank for rank in holders[piece] if rank in writing]
        if not held_by:
            streamed.append(piece)
            continue
        chosen[piece] = min(held_by, key=lambda rank: (load[rank], rank))
        load[chosen[piece]] += sizes[piece]
    least = [(bytes_, rank) for rank, bytes_ in load.items()]
    heapq.heapify(least)
    for piece in streamed:
        bytes_, rank = heapq.heappop(least)
        chosen[piece] = rank
        heapq.heappush(least, (bytes_ + sizes[piece], rank))
    return chosen
