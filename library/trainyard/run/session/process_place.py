"""Rank of a process in its job, from the environment variables of its launcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainyard.run.records import MAX_RANKS


@dataclass(frozen=True)
class ProcessPlace:
    """Rank of this process in its job."""

    rank: int = 0
    """Global rank of the process."""
    world_size: int = 1
    """Number of processes."""
    local_rank: int = 0
    """Rank of the process on its node."""

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> ProcessPlace:
        """Return the place from `RANK` and `WORLD_SIZE`, otherwise from `NODE_RANK` and `NNODES`.

        torchrun sets the first pair. The second pair is for one process per node. If neither pair
        is set, the process is the only one.

        Raises:
            ValueError: a variable is no integer, or is out of range.
        """
        if "RANK" in variables and "WORLD_SIZE" in variables:
            size = _whole(variables, "WORLD_SIZE", first=1, last=MAX_RANKS)
            rank = _whole(variables, "RANK", first=0, last=size - 1)
            local = 0
            if "LOCAL_RANK" in variables:
                local = _whole(variables, "LOCAL_RANK", first=0, last=size - 1)
            return cls(rank, size, local)
        if "NODE_RANK" in variables and "NNODES" in variables:
            size = _whole(variables, "NNODES", first=1, last=MAX_RANKS)
            return cls(_whole(variables, "NODE_RANK", first=0, last=size - 1), size)
        return cls()


def _whole(variables: Mapping[str, str], name: str, *, first: int, last: int) -> int:
    text = variables[name]
    if not text.isascii() or not text.isdecimal() or not first <= int(text) <= last:
        raise ValueError(f"{name}={text[:40]!r}: a whole number from {first} to {last} is legal")
    return int(text)
