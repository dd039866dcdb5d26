"""Rounding: how far the losses of one training on two layouts may be apart.

Two layouts compute the same sums in another order. At equal weights their losses differ by the
rounding of one forward; each update then carries the difference into the weights, and a loss of
gradient norm g turns a difference w of the weights into about g x w (first-order Taylor expansion).
"""

from __future__ import annotations

import math
from typing import Literal

Rounding = Literal[
    "float32",
    "bfloat16",
    "bfloat16_reduce",
    "float8_tensorwise",
    "float8_rowwise",
    "float8_rowwise_with_gw_hp",
    "mxfp8",
]
"""What rounds most in a step."""

AT_ONE: dict[Rounding, float] = {
    "float32": 1e-5,
    "bfloat16": 3e-3,
    "bfloat16_reduce": 3e-3,
    "float8_tensorwise": 1e-2,
    "float8_rowwise": 5e-3,
    "float8_rowwise_with_gw_hp": 5e-3,
    "mxfp8": 5e-3,
}
"""Relative difference at a gradient norm of at most 1, in the first steps. The small model of
docs/numerics.md is ten times closer, and more in float32: deeper ones round more often."""
STEPS = 10
"""Steps after a change in which the bound is that of the first step."""
MAX_DIFFERENCE = 0.1
"""The largest bound: more would hold for two different trainings too."""


def loss_bound(rounding: Rounding, *, grad_norm: float, steps: int) -> float:
    """Return how far two losses of one step may be apart, relative to the loss.

    It holds while the training is stable. Where small differences grow from step to step, as
    without clipping at a rate that is too high, or once a model learns its data by heart, they grow
    in every precision (docs/numerics.md).

    Args:
        rounding: what rounds most.
        grad_norm: largest norm of the gradient before clipping since the layouts parted; a norm
            that is not finite counts as 1.
        steps: steps since the layouts parted, from 1: at step 1 the weights are equal.
    """
    amplified = max(1.0, grad_norm) if math.isfinite(grad_norm) else 1.0
    return min(MAX_DIFFERENCE, AT_ONE[rounding] * amplified * max(1.0, steps / STEPS))
