"""Checks of numbers that ranks and nodes report, for numbers that enter a computation.

A checked number is finite and in range, or absent. Numbers that are only displayed stay unchanged.
"""

from __future__ import annotations

import math

LONGEST_SECONDS = 1e9
"""Upper limit of durations: about 30 years."""
LOSSES = ("train/loss", "loss", "train_loss", "training_loss")
"""Series that lists may show as the loss of a program or imported run; the first existing one is
shown."""
MAX_TOKENS_PER_SECOND = 1e12
"""Upper limit of the throughput of a device."""


def in_range(value: float | None, *, below: float) -> float | None:
    """Return a number from 0 to below a limit; None for NaN, infinity and numbers out of range."""
    return value if value is not None and 0 <= value < below and math.isfinite(value) else None


def duration(seconds: float | None) -> float | None:
    """Return a duration in seconds; None for an illegal duration."""
    return in_range(seconds, below=LONGEST_SECONDS)
