"""What the rules of advice look at, and what they share.

Gains are upper bounds: the time that a matter took, as if all of it were gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainyard.protocol.goodput import JOB_CATEGORIES, SLOT_CATEGORIES, TimeCategory
from trainyard.spec.job import JobSpec

LEAST_SHARE = 0.03
"""Share of the time below which a finding is noise for a person."""
ON_SLOTS = frozenset(JOB_CATEGORIES) & frozenset(SLOT_CATEGORIES)
"""Categories of the time in which a job holds slots."""


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
    """Median over ranks of the time outside of collectives; None on one rank."""
    own_most: float | None = None
    """Largest of all ranks."""
    wait: float | None = None
    """Median over ranks of the time in collectives."""
    peak_share: float | None = None
    """Peak of the device's memory as a share of all of it; None where either is not known."""
    recompiled: float = 0.0
    """Seconds of compilation in all of these steps, without those of the start."""
    collected: float = 0.0
    """Seconds of collections of garbage in all of these steps."""
    allocation_retries: float = 0.0
    """How often the allocator emptied its cache to find memory, in all of these steps."""


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that is slower than its peers at present."""

    rank: int
    node: str
    slot: int
    waits_for_data: bool
    """Whether most of its excess is in waiting for data."""
    share: float
    """Part of each step that it costs the job."""


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
    """None where another interval would not be better, or none can be replayed."""

    @property
    def on_slots(self) -> int:
        """Milliseconds in which the job held slots."""
        return sum(time for category, time in self.spent.items() if category in ON_SLOTS)

    def share(self, category: TimeCategory) -> float:
        """Return the part of the time on slots that a category took."""
        return self.spent.get(category, 0) / self.on_slots if self.on_slots else 0.0


def gain_of(share: float) -> float:
    """Return the gain in speed if a share of the time were gone; at most ninefold."""
    return 1 / (1 - min(share, 0.9)) - 1
