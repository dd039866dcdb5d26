"""Conversion of integers from callers: Python integers, numpy integers, tensors with one
element."""

from __future__ import annotations

import operator
from typing import SupportsIndex

LAST_STEP = 10**9
"""Highest legal number of a step."""


def whole_number(name: str, value: SupportsIndex, *, least: int, most: int | None = None) -> int:
    """Return an integer of any type as a Python int.

    Raises:
        ValueError: the value is not an integer, or is out of range.
    """
    legal = f"at least {least}" if most is None else f"from {least} to {most:,}"
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name}={value!r} must be a whole number {legal}") from None
    if number < least or (most is not None and number > most):
        raise ValueError(f"{name}={number} must be {legal}")
    return number
