"""Checks for reported figures of ranks and nodes that enter a computation.

A checked figure is finite and in range, or absent. A figure for display only is shown unchanged.
"""

from __future__ import annotations

import math

LONGEST_SECONDS = 1e9
"""Upper limit of durations: 30 years."""
LOSSES = ("train/loss", "loss", "train_loss", "training_loss")
"""Series that lists show as the loss of a program or an imported run: the first that exists."""
MAX_TOKENS_PER_SECOND = 1e12
"""Upper limit of a device's throughput."""


def in_range(value: float | None, *, below: float) -> float | None:
    """Return a figure from 0 to a limit; None for NaN, infinity, and values out of range."""
    return value if value is not None and 0 <= value < below and math.isfinite(value) else None


def duration(seconds: float | None) -> float | None:
    """Return a duration in seconds; None for an invalid one."""
    return in_range(seconds, below=LONGEST_SECONDS)
