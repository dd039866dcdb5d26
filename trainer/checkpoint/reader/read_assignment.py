"""Which rank reads a file whole while a checkpoint is loaded, to compare its checksum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def share_out(
    sizes: Mapping[str, int], needs: Sequence[Mapping[str, int] | None]
) -> list[tuple[str, ...]]:
    """Return for each rank the files that it reads whole; each file has one rank.

    A rank that needs much of a file has little to add to read all of it, so on the layout that
    wrote the checkpoint each rank gets its own file, and nothing is read twice. Who has the least
    to read comes first, so that the ranks end together.

    Args:
        sizes: bytes of each file.
        needs: for each rank, the bytes that it needs of each file; None for one that reads nothing.
    """
    load = {rank: sum(need.values()) for rank, need in enumerate(needs) if need is not None}
    shares: list[list[str]] = [[] for _ in needs]
    needed_by: dict[str, list[int]] = {name: [] for name in sizes}
    for rank, need in enumerate(needs):
        for name in need or ():
            needed_by[name].append(rank)
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        idlest = min(load, key=load.__getitem__)

        def with_it(rank: int, name: str = name) -> int:
            return load[rank] + sizes[name] - (needs[rank] or {}).get(name, 0)

        chosen = min([idlest, *needed_by[name]], key=lambda rank: (with_it(rank), rank))
        load[chosen] = with_it(chosen)
        shares[chosen].append(name)
    return [tuple(share) for share in shares]
