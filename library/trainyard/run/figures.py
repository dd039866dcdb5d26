"""Figures that ranks and nodes report, where something is computed from them.

They are finite and in range then, or absent. A figure that is only shown is shown as it came.
"""

from __future__ import annotations

import math

LONGEST_SECONDS = 1e9
"""Durations are below it: 30 years."""
LOSSES = ("train/loss", "loss", "train_loss", "training_loss")
"""Series that lists show as the loss, of a program and of an imported run: the first there is."""
MAX_TOKENS_PER_SECOND = 1e12
"""Throughputs of a device are below it."""


def in_range(value: float | None, *, below: float) -> float | None:
    """Return a figure from 0 to a limit; None for NaN, infinity, and one that is out of range."""
    return value if value is not None and 0 <= value < below and math.isfinite(value) else None


def duration(seconds: float | None) -> float | None:
    """Return a duration in seconds; None for what is none."""
    return in_range(seconds, below=LONGEST_SECONDS)
