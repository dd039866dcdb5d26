"""Bound, from rounding, on the loss difference between two layouts of the same training.

Two layouts compute the same sums in another order. With equal weights, their losses differ by the
rounding of one forward pass. Each update then carries the difference into the weights. At gradient
norm g, a difference w between the weights changes the loss by about g x w (first-order Taylor
expansion).
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
"""Least precise rounding in a step."""

AT_ONE: dict[Rounding, float] = {
    "float32": 1e-5,
    "bfloat16": 3e-3,
    "bfloat16_reduce": 3e-3,
    "float8_tensorwise": 1e-2,
    "float8_rowwise": 5e-3,
    "float8_rowwise_with_gw_hp": 5e-3,
    "mxfp8": 5e-3,
}
"""Bound on the relative difference between the losses of two layouts in the first steps, at a
gradient norm of at most 1. The small model in docs/numerics.md has ten times smaller differences,
and still smaller ones in float32. The bound leaves room for deeper models, which round more often.
"""
STEPS = 10
"""Number of steps after a change of layout for which the bound of the first step holds. After that,
the bound grows with each step.
"""
MAX_DIFFERENCE = 0.1
"""Maximum of the bound; a larger bound would also hold for two different trainings."""


def loss_bound(rounding: Rounding, *, grad_norm: float, steps: int) -> float:
    """Return the maximum difference between two losses of one step, relative to the loss.

    The bound holds while the training is stable. In other cases small differences grow from step
    to step in every precision, for example if the rate is too high and gradients are not clipped,
    or once a model memorizes its data (docs/numerics.md).

    Args:
        rounding: least precise rounding in a step.
        grad_norm: maximum gradient norm before clipping since the change of layout; NaN and
            infinity count as 1.
        steps: number of steps since the change of layout, from 1; at step 1 the weights are equal.
    """
    amplified = max(1.0, grad_norm) if math.isfinite(grad_norm) else 1.0
    return min(MAX_DIFFERENCE, AT_ONE[rounding] * amplified * max(1.0, steps / STEPS))
