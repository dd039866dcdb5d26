"""Learning rate, as a pure function of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LrSchedule:
    """Learning-rate schedule of a job, with all lengths in tokens.

    Lengths are integers, so that a schedule given in steps and the same schedule given in tokens
    agree bit for bit.
    """

    name: Literal["warmup_stable_decay", "cosine"]
    """`cosine` decays after the warm-up; `warmup_stable_decay` only decays in its last part."""
    decay_shape: Literal["linear", "cosine", "sqrt"]
    """Shape of the decay of `warmup_stable_decay`."""
    peak: float
    """Highest rate."""
    min_ratio: float
    """Learning rate at the end, as a share of the peak."""
    tokens_per_step: int
    """Number of tokens in one optimizer step, over all ranks."""
    total_tokens: int
    """Number of tokens after which the rate keeps its final value."""
    warmup_tokens: int
    """Length of the warm-up, in tokens."""
    decay_tokens: int
    """Length in tokens of the decay of `warmup_stable_decay`; limited by the schedule's length."""

    def rate(self, step: int) -> float:
        """Return the learning rate of the optimizer step that completes `step` (counted from 1).

        The warm-up rises linearly and reaches the peak at its end. `cosine` then follows half a
        cosine down to `min_ratio` at `total_tokens` (Loshchilov and Hutter, SGDR, 2017, without
        restarts). `warmup_stable_decay` holds the peak, then decays in the last part of the
        schedule (Hu et al., MiniCPM, 2024). After `total_tokens`, the rate keeps its final value.
        """
        seen, total, warmup = step * self.tokens_per_step, self.total_tokens, self.warmup_tokens
        if seen < warmup:
            return self.peak * (seen / warmup)
        start = warmup if self.name == "cosine" else max(warmup, total - self.decay_tokens)
        # A decay of length 0 never starts, so the rate stays at its peak.
        progress = min(max(seen - start, 0) / (total - start), 1.0) if start < total else 0.0
        shape = "cosine" if self.name == "cosine" else self.decay_shape
        left = {
            "linear": 1 - progress,
            "cosine": (1 + math.cos(math.pi * progress)) / 2,
            "sqrt": 1 - math.sqrt(progress),
        }[shape]
        return self.peak * (self.min_ratio + (1 - self.min_ratio) * left)
