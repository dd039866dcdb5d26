"""Compares the loss of a step with another attempt's loss, or with the losses before the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainyard.protocol.rest.attempts import ContinuityCheck
from trainyard.training.rounding import Rounding, loss_bound

PROGRAM_TOLERANCE = 1e-3
"""Maximum relative difference between two losses of a program for the same step; it is fixed
because the program's dtype is unknown.
"""
BAND_POINTS = 20
BAND_DEVIATIONS = 5.0
BAND_SHARE = 0.1


@dataclass(frozen=True)
class OtherLoss:
    """The loss that another attempt recorded for the checked step."""

    attempt: str
    """Name of the attempt, such as `attempt 1` or `attempt 1 of the other job`."""
    loss: float
    grad_norm: float
    """Largest gradient norm since the two attempts diverged; NaN if none is recorded."""
    steps: int
    """Number of steps since the two attempts diverged, at least 1."""


def check_same_step(
    loss: float, grad_norm: float, *, other: OtherLoss, rounding: Rounding | None
) -> ContinuityCheck:
    """Check that rounding explains the difference between two losses of one step.

    A missing loss or gradient norm is NaN, and a NaN loss equals only NaN. `rounding` is the
    coarsest rounding in the computation; None if unknown.
    """
    bound = PROGRAM_TOLERANCE
    if rounding is not None:
        norms = [norm for norm in (grad_norm, other.grad_norm) if math.isfinite(norm)]
        bound = loss_bound(rounding, grad_norm=max(norms, default=1.0), steps=other.steps)
    both_nan = math.isnan(loss) and math.isnan(other.loss)
    digits = max(6, 2 - math.floor(math.log10(bound)))  # enough digits to show a difference
    return ContinuityCheck(
        name="loss",
        ok=both_nan or math.isclose(loss, other.loss, rel_tol=bound),
        expected=f"{other.loss:.{digits}g} ({other.attempt})",
        got=f"{loss:.{digits}g}",
        within=f"{share(bound)} of {other.attempt}",
    )


def check_band(loss: float, last_losses: Sequence[float]) -> ContinuityCheck:
    """Check that a loss is in the range expected from `last_losses`, which must not be empty."""
    mean, deviation = float(np.mean(last_losses)), float(np.std(last_losses))
    width = max(BAND_DEVIATIONS * deviation, BAND_SHARE * abs(mean))
    return ContinuityCheck(
        name="loss",
        ok=abs(loss - mean) <= width,
        expected=f"{mean - width:.6g} to {mean + width:.6g} (last {len(last_losses)} losses)",
        got=f"{loss:.6g}",
        within=f"the range of the last {len(last_losses)} losses",
    )


def share(bound: float) -> str:
    """Format a relative bound as `0.3 %`, or as `2e-5` if a percentage would have many zeros."""
    if bound >= 1e-3:
        return f"{100 * bound:.2g} %"
    digits, _, exponent = f"{bound:.1e}".partition("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}"
