"""Input of the advice rules, and the values that the rules share.

Gains are upper bounds because they assume that a remedy saves all of the time that it can save.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainyard.protocol.goodput import JOB_CATEGORIES, SLOT_CATEGORIES, TimeCategory
from trainyard.protocol.rest.metrics_and_logs import StragglerView
from trainyard.spec.job import JobSpec

LEAST_SHARE = 0.03
"""A finding that measures a share needs at least this share of a step or of the time on slots; a
smaller share is noise."""
ON_SLOTS = frozenset(JOB_CATEGORIES) & frozenset(SLOT_CATEGORIES)
"""Job categories that count as time on slots."""


@dataclass(frozen=True, slots=True)
class RecentSteps:
    """Means over the recent steps of an attempt, in seconds unless a field has another unit."""

    attempt: int
    steps: int
    """Number of steps that the means cover."""
    step: float
    """Duration of a step, more than 0, including its wait for data."""
    data: float
    """Time for which a step waits for data, on the rank that waits longest."""
    own: float | None = None
    """Time outside collectives per step, as the median over ranks; None without a comparison."""
    own_most: float | None = None
    """Time outside collectives per step, on the rank where this time is longest."""
    wait: float | None = None
    """Time in collectives per step, as the median over ranks; None without a comparison."""
    peak_share: float | None = None
    """Peak memory use of the fullest rank as a share of the smallest device's memory; None if
    a value is unknown or the peak exceeds the memory."""
    recompiled: float = 0.0
    """Compilation time summed over these steps, without the compilation at the attempt's start."""
    collected: float = 0.0
    """Time of garbage collection on the slowest rank, summed over these steps."""
    allocation_retries: float = 0.0
    """How often the allocator of the rank with the most retries emptied its cache to find memory,
    summed over these steps."""


@dataclass(frozen=True, slots=True)
class BestSaves:
    """Outcome of a replay of the job's records with the best save interval."""

    interval_steps: int
    productive_gain: float
    """Relative gain: the ratio of the goodput with the best save interval to the recorded goodput,
    minus 1.
    """


@dataclass(frozen=True, slots=True)
class Observed:
    """Observations of a job, made from its records."""

    spec: JobSpec
    spent: Mapping[TimeCategory, int]
    """Milliseconds by category, for the whole job."""
    recent: RecentSteps | None
    stragglers: Sequence[StragglerView]
    """Current stragglers, the costliest first."""
    best_saves: BestSaves | None
    """Outcome with the best save interval. None if no interval is better than the recorded one, or
    if the job cannot be replayed.
    """

    @property
    def on_slots(self) -> int:
        """The job's time on slots, in milliseconds."""
        return sum(time for category, time in self.spent.items() if category in ON_SLOTS)

    def share(self, category: TimeCategory) -> float:
        """Return a category's share of the time on slots."""
        return self.spent.get(category, 0) / self.on_slots if self.on_slots else 0.0


def gain_of(share: float) -> float:
    """Return the relative gain in speed if this share of the time is saved; at most 9."""
    return 1 / (1 - min(share, 0.9)) - 1
