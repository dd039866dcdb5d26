"""Input and common parts of the rules of advice.

Gains are upper bounds: they assume that all of the lost time is saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainyard.protocol.goodput import JOB_CATEGORIES, SLOT_CATEGORIES, TimeCategory
from trainyard.spec.job import JobSpec

LEAST_SHARE = 0.03
"""Share of the time below which a finding is noise."""
ON_SLOTS = frozenset(JOB_CATEGORIES) & frozenset(SLOT_CATEGORIES)
"""Categories of the time on slots."""


@dataclass(frozen=True, slots=True)
class RecentSteps:
    """Means over the recent steps of an attempt; seconds of a step."""

    attempt: int
    """Number of the attempt."""
    steps: int
    """Steps that the means cover."""
    step: float
    """A step, with its wait for data."""
    data: float
    """Waiting for data on the rank that waits longest."""
    own: float | None = None
    """Median over ranks of the time outside collectives; None with one rank."""
    own_most: float | None = None
    """Longest time outside collectives of all ranks."""
    wait: float | None = None
    """Median over ranks of the time in collectives."""
    peak_share: float | None = None
    """Peak share of the device's memory; None if peak or memory is unknown."""
    recompiled: float = 0.0
    """Seconds of compilation in all of these steps, without the start's."""
    collected: float = 0.0
    """Seconds of garbage collection in all of these steps."""
    allocation_retries: float = 0.0
    """Times that the allocator emptied its cache to find memory, in all of these steps."""


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that is now slower than its peers."""

    rank: int
    node: str
    slot: int
    waits_for_data: bool
    """Whether most of its excess time is waiting for data."""
    share: float
    """Share of each step that it costs the job."""


@dataclass(frozen=True, slots=True)
class BestSaves:
    """A replay of the job's records with the best interval between two saves."""

    interval_steps: int
    productive_gain: float
    """Goodput with it, as a multiple of the recorded one, minus 1."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What the records of a job show."""

    spec: JobSpec
    spent: Mapping[TimeCategory, int]
    """Milliseconds by category, of the whole job."""
    recent: RecentSteps | None
    slow_ranks: Sequence[SlowRank]
    """The present stragglers, the costliest first."""
    best_saves: BestSaves | None
    """None if no other interval is better, or the job cannot be replayed."""

    @property
    def on_slots(self) -> int:
        """Time on slots in milliseconds."""
        return sum(time for category, time in self.spent.items() if category in ON_SLOTS)

    def share(self, category: TimeCategory) -> float:
        """Return a category's share of the time on slots."""
        return self.spent.get(category, 0) / self.on_slots if self.on_slots else 0.0


def gain_of(share: float) -> float:
    """Return the gain in speed without a share of the time, at most ninefold."""
    return 1 / (1 - min(share, 0.9)) - 1
