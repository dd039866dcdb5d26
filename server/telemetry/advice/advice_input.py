"""Input of the advice rules, and the values that the rules share.

Gains are upper bounds because they assume that a remedy saves all of the lost time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainyard.protocol.goodput import JOB_CATEGORIES, SLOT_CATEGORIES, TimeCategory
from trainyard.protocol.rest.metrics_and_logs import StragglerView
from trainyard.spec.job import JobSpec

LEAST_SHARE = 0.03
"""Share of the time on slots below which a finding is noise."""
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
    """Wait for data per step, on the rank that waits longest."""
    own: float | None = None
    """Median over ranks of the time outside collectives; None for a single rank."""
    own_most: float | None = None
    """Longest time outside collectives among the ranks."""
    wait: float | None = None
    """Median over ranks of the time in collectives; None for a single rank."""
    peak_share: float | None = None
    """Peak memory use as a share of the device's memory; None if either value is unknown."""
    recompiled: float = 0.0
    """Seconds of compilation summed over these steps, without the compilation at the start."""
    collected: float = 0.0
    """Seconds of garbage collection summed over these steps."""
    allocation_retries: float = 0.0
    """Times that the allocator emptied its cache to find memory, summed over these steps."""


@dataclass(frozen=True, slots=True)
class BestSaves:
    """Outcome of a replay of the job's records with the best save interval."""

    interval_steps: int
    productive_gain: float
    """Goodput with the best save interval, divided by the recorded goodput, minus 1."""


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
    """Outcome with the best save interval; None if no other interval is better, or if the job
    cannot be replayed.
    """

    @property
    def on_slots(self) -> int:
        """The job's time on slots, in milliseconds."""
        return sum(time for category, time in self.spent.items() if category in ON_SLOTS)

    def share(self, category: TimeCategory) -> float:
        """Return a category's share of the time on slots."""
        return self.spent.get(category, 0) / self.on_slots if self.on_slots else 0.0


def gain_of(share: float) -> float:
    """Return the gain in speed if a share of the time is saved; the maximum gain is 9."""
    return 1 / (1 - min(share, 0.9)) - 1
