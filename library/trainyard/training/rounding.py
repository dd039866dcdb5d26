"""Rounding: bound of the difference between the losses of one training on two layouts.

Two layouts compute the same sums in another order. With equal weights their losses differ by the
rounding of one forward. Each update then carries the difference into the weights: at gradient norm
g a difference w of the weights changes the loss by about g x w (first-order Taylor expansion).
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
"""The coarsest rounding in a step."""

AT_ONE: dict[Rounding, float] = {
    "float32": 1e-5,
    "bfloat16": 3e-3,
    "bfloat16_reduce": 3e-3,
    "float8_tensorwise": 1e-2,
    "float8_rowwise": 5e-3,
    "float8_rowwise_with_gw_hp": 5e-3,
    "mxfp8": 5e-3,
}
"""Relative difference in the first steps, at a gradient norm of at most 1. The small model of
docs/numerics.md differs ten times less, and even less in float32: deeper models round more
often."""
STEPS = 10
"""Steps after a change of layout with the bound of the first step."""
MAX_DIFFERENCE = 0.1
"""The largest bound; a larger one would hold for two different trainings too."""


def loss_bound(rounding: Rounding, *, grad_norm: float, steps: int) -> float:
    """Return the largest difference between two losses of one step, relative to the loss.

    The bound holds while the training is stable. If small differences grow from step to step, as
    at a rate that is too high without clipping, or once a model memorizes its data, they grow in
    every precision (docs/numerics.md).

    Args:
        rounding: the coarsest rounding.
        grad_norm: largest gradient norm before clipping since the layouts parted; NaN and infinity
            count as 1.
        steps: steps since the layouts parted, from 1; at step 1 the weights are equal.
    """
    amplified = max(1.0, grad_norm) if math.isfinite(grad_norm) else 1.0
    return min(MAX_DIFFERENCE, AT_ONE[rounding] * amplified * max(1.0, steps / STEPS))
