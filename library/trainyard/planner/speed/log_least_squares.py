"""Fit coefficients to measured runs by least squares in log space; a data sheet gives the prior.

A coefficient is prior x exp(s + d), where s is common to all coefficients and each has its own d.
Both have a Gaussian prior. So a single run moves all coefficients together, and further runs
separate them. Outliers have less weight (Huber), and no coefficient becomes negative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)

NOISE = 0.08
"""Relative standard deviation of a measured value."""
SPREAD = 1.5
"""Standard deviation of d, the individual part of each coefficient. With this value, d often
changes a coefficient by a factor of 4, and rarely by a factor of 20.
"""
COMMON_SPREAD = 3.0
"""Standard deviation of s, the part that is common to all coefficients."""
OUTLIER = 3.0
"""Residual, in standard deviations, above which a run has less weight."""
BOUND = 6.0
"""Maximum of |s + d|, which keeps a coefficient within a factor of 400 of its prior."""
ITERATIONS, CONVERGED = 40, 1e-4


def fit_coefficients(
    runs: Sequence[tuple[Callable[[Mapping[Name, float]], Mapping[Name, float]], float]],
    prior: Mapping[Name, float],
    *,
    common_spread: float = COMMON_SPREAD,
    spread: float = SPREAD,
) -> dict[Name, float]:
    """Return the coefficients that fit the runs best.

    Args:
        runs: one pair per run. The first item is a function that returns the parts of the predicted
            value for given coefficients. The second item is the measured value, which is above 0.
            Each part is named after the coefficient to which the part is proportional.
        prior: coefficients before any run, each above 0.
        common_spread: standard deviation of s; 0 omits s.
        spread: standard deviation of d.
    """
    names = list(prior)
    size = len(names) + 1
    precisions = [1 / common_spread**2 if common_spread else 1e12] + [1 / spread**2] * len(names)
    at = [0.0] * size
    loss, damping = _loss(runs, prior, names=names, at=at, precisions=precisions), 1e-3
    for _ in range(ITERATIONS):
        matrix, gradient = _normal_equations(runs, prior, names=names, at=at, precisions=precisions)
        for index in range(size):
            matrix[index][index] *= 1 + damping
        moved = [a - change for a, change in zip(at, _solve(matrix, gradient), strict=True)]
        moved[1:] = [min(max(d, -BOUND - moved[0]), BOUND - moved[0]) for d in moved[1:]]
        new = _loss(runs, prior, names=names, at=moved, precisions=precisions)
        if new > loss:
            damping *= 10
            if damping > 1e6:
                break
            continue
        gained, at, loss, damping = loss - new, moved, new, damping / 5
        if gained < CONVERGED * max(loss, 1.0):
            break
    return _coefficients(prior, names, at)


def _coefficients(
    prior: Mapping[Name, float], names: Sequence[Name], at: Sequence[float]
) -> dict[Name, float]:
    return {name: prior[name] * math.exp(at[0] + d) for name, d in zip(names, at[1:], strict=True)}


def _loss(
    runs: Sequence[tuple[Callable[[Mapping[Name, float]], Mapping[Name, float]], float]],
    prior: Mapping[Name, float],
    *,
    names: Sequence[Name],
    at: Sequence[float],
    precisions: Sequence[float],
) -> float:
    coefficients = _coefficients(prior, names, at)
    total = sum(p * a * a for p, a in zip(precisions, at, strict=True))
    for parts_of, measured in runs:
        off = abs(math.log(sum(parts_of(coefficients).values()) / measured)) / NOISE
        total += off * off if off <= OUTLIER else OUTLIER * (2 * off - OUTLIER)
    return total


def _normal_equations(
    runs: Sequence[tuple[Callable[[Mapping[Name, float]], Mapping[Name, float]], float]],
    prior: Mapping[Name, float],
    *,
    names: Sequence[Name],
    at: Sequence[float],
    precisions: Sequence[float],
) -> tuple[list[list[float]], list[float]]:
    """Return J'WJ and J'Wr for the residuals r = log(predicted / measured)."""
    size = len(at)
    coefficients = _coefficients(prior, names, at)
    matrix = [[0.0] * size for _ in range(size)]
    for index, precision in enumerate(precisions):
        matrix[index][index] = precision
    gradient = [p * a for p, a in zip(precisions, at, strict=True)]
    for parts_of, measured in runs:
        parts = parts_of(coefficients)
        predicted = sum(parts.values())
        residual = math.log(predicted / measured)
        weight = 1 / NOISE**2 * min(1.0, OUTLIER * NOISE / max(abs(residual), 1e-12))
        # d log(sum of parts) / d log(coefficient) is the share of the coefficient's part.
        slopes = [1.0, *(parts.get(name, 0.0) / predicted for name in names)]
        touched = [index for index, slope in enumerate(slopes) if slope]
        for i in touched:
            gradient[i] += weight * slopes[i] * residual
            for j in touched:
                matrix[i][j] += weight * slopes[i] * slopes[j]
    return matrix, gradient


def _solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Return x from A x = b for a positive definite A, by elimination."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for i in range(size):
        for below in rows[i + 1 :]:
            factor = below[i] / rows[i][i]
            if factor:
                for j in range(i, size + 1):
                    below[j] -= factor * rows[i][j]
    found = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(rows[i][j] * found[j] for j in range(i + 1, size))
        found[i] = (rows[i][size] - rest) / rows[i][i]
    return found
