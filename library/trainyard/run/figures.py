"""Checks of numbers that ranks and nodes report and that enter a computation.

A checked number is finite and in range, or absent. Numbers that are only displayed stay unchanged.
"""

from __future__ import annotations

import math

LONGEST_SECONDS = 1e9
"""Upper limit of durations: about 30 years."""
LOSSES = ("train/loss", "loss", "train_loss", "training_loss")
"""Names of series that hold the loss of a program or imported run. Lists of jobs show the first of
these series that exists."""
MAX_TOKENS_PER_SECOND = 1e12
"""Upper limit of the throughput of a device."""


def in_range(value: float | None, *, below: float) -> float | None:
    """Return a number that is at least 0 and below a limit; None for any other number, also for
    NaN."""
    return value if value is not None and 0 <= value < below and math.isfinite(value) else None


def duration(seconds: float | None) -> float | None:
    """Return a duration in seconds; None for an illegal duration."""
    return in_range(seconds, below=LONGEST_SECONDS)
