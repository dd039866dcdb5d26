"""Stragglers: ranks whose own time in a step, for compute and data, exceeds their peers'.

All ranks end a step together, so the duration of the step does not show which rank was late. A slow
rank arrives last in each collective and waits least there, so its own time is the longest.
docs/guards.md has the rule and its constants.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal, NamedTuple

WINDOW = 20
"""Length of the window, in logged lines, over which ranks are compared."""
FOUND_LINES = 15
"""Minimum number of lines in the window in which a rank must be slow to become a straggler."""
GONE_LINES = 10
"""A straggler has recovered if it is slow in fewer lines of the window than this number."""
FACTOR = 1.2
"""Minimum ratio of a slow rank's own time to the median of its peers' own times."""
LEFT_FACTOR = 1.1
"""The same ratio for a rank that is already a straggler; lower, so that the verdict does not
alternate.
"""
LEAST_SECONDS = 0.01
"""Minimum excess of a slow rank over its peers' median, in seconds per step. Without this minimum,
the time for writing records could make rank 0 a straggler.
"""
SPANS = 64
"""Maximum number of entries in a summary, whatever the number of ranks."""
SERIES = 8
"""Maximum number of ranks per attempt that get a series of metrics of their own."""
NEW_STRAGGLERS = 8
"""Maximum number of new stragglers per line; each causes an event that the server keeps."""
MAX_STRAGGLERS = 100
"""Maximum number of stragglers named at the same time, as one slow rack may hold a thousand ranks.
"""

Kind = Literal["compute", "data"]


class RankSeconds(NamedTuple):
    """Times of a rank in seconds per step: means over the steps that one logged line covers."""

    compute: float
    """Time outside of `data` and `wait`: forward, backward, update, and other work of the host."""
    data: float
    """Time spent waiting for the next batch."""
    wait: float
    """Time in collectives, including the wait for other ranks."""

    @property
    def own(self) -> float:
        """Time that no other rank causes: compute and data."""
        return self.compute + self.data


@dataclass(frozen=True)
class Straggler:
    """A rank that is slower than its peers in the majority of a window's lines."""

    rank: int
    """Global rank."""
    kind: Kind
    """Where the larger part of the excess is: in compute, or in waiting for data."""
    factor: float
    """Ratio of the rank's own time to its peers' median."""
    share: float
    """Fraction of each step's time that the rank costs the job, from 0 to 1."""


@dataclass(frozen=True)
class _Excess:
    """The excess of a rank over its peers in one logged line."""

    factor: float
    seconds: float
    data_seconds: float
    share: float


class StragglerWatch:
    """Compares the times of all ranks for each logged line; only global rank 0 needs this
    object."""

    def __init__(self, roles: Sequence[Hashable]) -> None:
        """Start without lines; `roles[rank]` must be equal for ranks that do the same work."""
        self._peers = _by_role(roles)
        self._tables: deque[Sequence[RankSeconds]] = deque(maxlen=WINDOW)
        self._slow: deque[dict[int, _Excess]] = deque(maxlen=WINDOW)
        self._found: set[int] = set()
        self._series = list(range(len(roles))) if len(roles) <= SERIES else []
        self._unnamed = 0

    @property
    def ranks(self) -> list[int]:
        """Ranks of the present stragglers that are named, at most `MAX_STRAGGLERS`."""
        return sorted(self._found)

    def add(self, times: Sequence[RankSeconds]) -> tuple[list[Straggler], list[int]]:
        """Add a line; return the new stragglers, and the ranks that have recovered.

        At most `NEW_STRAGGLERS` are returned as new, the most costly first; later calls return the
        others.
        """
        self._tables.append(times)
        self._slow.append(
            {rank: excess for peers in self._peers for rank, excess in _exceeding(peers, times)}
        )
        counted = Counter(
            rank
            for line in self._slow
            for rank, excess in line.items()
            if rank in self._found or excess.factor >= FACTOR
        )
        gone = [rank for rank in self.ranks if counted[rank] < GONE_LINES]
        found = self._found.difference(gone)
        slow = [rank for rank in counted if rank not in found and counted[rank] >= FOUND_LINES]
        room = min(NEW_STRAGGLERS, MAX_STRAGGLERS - len(found))
        new: list[Straggler] = []
        if room:
            costs = sorted(map(self._verdict, slow), key=lambda one: (-one.share, one.rank))
            new = costs[:room]
        self._found = found.union(one.rank for one in new)
        self._unnamed = len(slow) - len(new)
        unseen = [one.rank for one in new if one.rank not in self._series]
        self._series += unseen[: SERIES - len(self._series)]
        return new, gone

    def values(self) -> dict[str, float]:
        """Return the metrics of the last line: summaries over all ranks, and series of some ranks.

        An attempt has series for its first `SERIES` stragglers or, in a small job, for all ranks.
        Most ranks have no series, because the server limits the number of series, including the
        user's.
        """
        times = self._tables[-1]
        own = [one.own for one in times]
        waits = [one.wait for one in times]
        return {
            "ranks/own_seconds_median": median(own),
            "ranks/own_seconds_max": max(own),
            "ranks/wait_seconds_median": median(waits),
            "ranks/wait_seconds_min": min(waits),
            "ranks/stragglers": float(len(self._found) + self._unnamed),
            **{f"ranks/own_seconds/{rank}": own[rank] for rank in self._series},
        }

    def summary(self) -> list[dict[str, float]]:
        """Return the mean times in the window, in at most `SPANS` spans of adjacent ranks.

        Each span shows the times of its rank with the longest own time, so that no slow rank is
        hidden.
        """
        ranks = len(self._tables[-1])
        means = [
            RankSeconds(*(fmean(column) for column in zip(*rows, strict=True)))
            for rows in zip(*self._tables, strict=True)
        ]
        width = -(-ranks // SPANS)
        spans = []
        for first in range(0, ranks, width):
            last = min(first + width, ranks) - 1
            slowest = max(range(first, last + 1), key=lambda rank: means[rank].own)
            spans.append(
                {
                    "first_rank": first,
                    "last_rank": last,
                    "rank": slowest,
                    "compute_seconds": means[slowest].compute,
                    "data_seconds": means[slowest].data,
                    "wait_seconds": means[slowest].wait,
                }
            )
        return spans

    def _verdict(self, rank: int) -> Straggler:
        lines = [line[rank] for line in self._slow if rank in line]
        data = fmean(line.data_seconds for line in lines)
        return Straggler(
            rank=rank,
            kind="data" if data > fmean(line.seconds for line in lines) / 2 else "compute",
            factor=median(line.factor for line in lines),
            share=median(line.share for line in lines),
        )


def without_shared_wait(
    times: Sequence[RankSeconds], roles: Sequence[Hashable]
) -> Sequence[RankSeconds]:
    """Move the shortest wait among peers from the wait to the compute of each peer.

    On a GPU, collectives overlap with compute, and their durations include the transfer. The
    transfer takes equally long on all ranks, so only the excess over the shortest duration is a
    wait for other ranks.
    """
    corrected = list(times)
    for peers in _by_role(roles):
        least = min(times[rank].wait for rank in peers)
        for rank in peers:
            compute, data, wait = times[rank]
            corrected[rank] = RankSeconds(compute + least, data, wait - least)
    return corrected


def _by_role(roles: Sequence[Hashable]) -> list[list[int]]:
    peers: dict[Hashable, list[int]] = {}
    for rank, role in enumerate(roles):
        peers.setdefault(role, []).append(rank)
    return list(peers.values())


def _exceeding(peers: Sequence[int], times: Sequence[RankSeconds]) -> Iterable[tuple[int, _Excess]]:
    """Yield ranks that exceed their peers' median by `LEFT_FACTOR` and `LEAST_SECONDS`."""
    if len(peers) < 2:
        return
    by_rank = [times[rank].own for rank in peers]
    own, data = sorted(by_rank), sorted(times[rank].data for rank in peers)
    # The peers' median is never lower than this bound, so one comparison excludes almost all ranks.
    least = own[(len(own) - 2) // 2]
    bar = max(LEFT_FACTOR * least, least + LEAST_SECONDS)
    for rank, mine in zip(peers, by_rank, strict=True):
        if mine < bar:
            continue
        others = _median_without(own, mine)
        factor, seconds = mine / max(others, LEAST_SECONDS), mine - others
        if factor >= LEFT_FACTOR and seconds >= LEAST_SECONDS:
            yield (
                rank,
                _Excess(
                    factor=factor,
                    seconds=seconds,
                    data_seconds=times[rank].data - _median_without(data, times[rank].data),
                    share=seconds / (mine + times[rank].wait),
                ),
            )


def _median_without(ordered: Sequence[float], value: float) -> float:
    """Return the median of the numbers that remain if one of the sorted numbers is left out."""
    left_out, count = bisect_left(ordered, value), len(ordered) - 1
    low, high = (count - 1) // 2, count // 2
    return (ordered[low + (low >= left_out)] + ordered[high + (high >= left_out)]) / 2
