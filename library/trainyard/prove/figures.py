"""Figures: measured values with their bounds, and the verdict over several of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Value = float | int | str | bool


@dataclass(frozen=True)
class Figure:
    """A measured value with its bound."""

    name: str
    value: Value
    bound: str | None = None
    """The bound in words, such as `<= 0.01`; None for a value that is only reported."""
    held: bool = True
    """Whether the value is within its bound."""


def reported(name: str, value: Value) -> Figure:
    """Return a figure without a bound."""
    return Figure(name, _short(value))


def at_most(name: str, value: float, bound: float) -> Figure:
    """Return a figure that must not exceed a bound; NaN exceeds every bound."""
    return Figure(name, _short(value), f"<= {bound:g}", held=bool(value <= bound))


def at_least(name: str, value: float, bound: float) -> Figure:
    """Return a figure that must not be below a bound; NaN is below every bound."""
    return Figure(name, _short(value), f">= {bound:g}", held=bool(value >= bound))


def equal(name: str, value: Value, expected: Value) -> Figure:
    """Return a figure that must equal an expected value."""
    return Figure(name, value, f"== {expected}", held=value == expected)


def largest_difference(values: Iterable[float], others: Iterable[float]) -> float:
    """Return the largest |a - b| / max(|b|, 1e-12) of two series of equal length.

    The result is infinite if any value is not finite, so that NaN never counts as agreement.

    Raises:
        ValueError: the series are empty or of different lengths.
    """
    pairs = list(zip(values, others, strict=True))
    if not pairs:
        raise ValueError("there is nothing to compare")
    if not all(math.isfinite(value) for pair in pairs for value in pair):
        return math.inf
    return max(abs(a - b) / max(abs(b), 1e-12) for a, b in pairs)


def judged(figures: list[Figure]) -> dict[str, Any]:
    """Return status, figures and bounds; a check without a bound has failed."""
    missed = [f"{f.name} is {f.value}, not {f.bound}" for f in figures if not f.held]
    if not any(f.bound for f in figures):
        missed.append("the check has no bound")
    line: dict[str, Any] = {
        "status": "failed" if missed else "passed",
        "figures": {f.name: f.value for f in figures},
        "bounds": {f.name: f.bound for f in figures if f.bound},
    }
    return line | ({"error": "; ".join(missed)} if missed else {})


def _short(value: Value) -> Value:
    if not isinstance(value, float):
        return value
    # JSON has no NaN and no infinity.
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)
