"""Compute the histogram of numbers, with numpy if the process has already imported it."""

from __future__ import annotations

import math
import sys
import time
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from trainyard.run.artifacts.array_copy import ArrayCopy
from trainyard.run.artifacts.artifact_records import HistogramRecord

MAX_VALUES = 10_000_000
"""Maximum number of values in one histogram."""


def fold(values: ArrayCopy, *, bins: int) -> HistogramRecord:
    """Return the histogram of numbers, in bins of equal width from the lowest to the highest.

    Only finite numbers are binned. If all are equal, the bins have a total width of one, or more
    for large numbers. If the range is too narrow for this many distinct edges, or too wide for a
    float, there is a single bin.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "frombuffer"):
        return _by_numpy(numpy, values, bins)
    return _by_hand(values, bins)


def _by_hand(values: ArrayCopy, bins: int) -> HistogramRecord:
    low, high = math.inf, -math.inf
    special = {"nan": 0, "inf": 0, "-inf": 0}
    for part in values.slices():
        finite = [value for value in part if math.isfinite(value)]
        if finite:
            low, high = min(low, *finite), max(high, *finite)
        for value in part if len(finite) < len(part) else ():
            if not math.isfinite(value):
                special[str(float(value))] += 1
        time.sleep(0)  # yields the interpreter to the training thread
    counted = special["nan"], special["inf"], special["-inf"]
    if low > high:
        return _histogram((), (), *counted)
    edges = _edges(float(low), float(high), bins)
    return _histogram(edges, _counts(values, edges), *counted)


def _counts(values: ArrayCopy, edges: Sequence[float]) -> list[int]:
    counts = [0] * (len(edges) - 1)
    for part in values.slices():
        for value in part:
            if math.isfinite(value):
                counts[min(bisect_right(edges, value), len(counts)) - 1] += 1
        time.sleep(0)
    return counts


def _by_numpy(numpy: Any, values: ArrayCopy, bins: int) -> HistogramRecord:
    given = numpy.frombuffer(values.content, dtype=numpy.dtype(values.format))
    numbers = given.astype("float64", copy=False)
    finite = numbers[numpy.isfinite(numbers)]
    counted = (
        int(numpy.isnan(numbers).sum()),
        int((numbers == math.inf).sum()),
        int((numbers == -math.inf).sum()),
    )
    if not finite.size:
        return _histogram((), (), *counted)
    edges = _edges(float(finite.min()), float(finite.max()), bins)
    counts = numpy.histogram(finite, bins=numpy.asarray(edges))[0]
    return _histogram(edges, counts.tolist(), *counted)


def _edges(low: float, high: float, bins: int) -> tuple[float, ...]:
    if low == high:
        margin = max(0.5, abs(low) * 2**-40)
        low, high = low - margin, high + margin
    if not math.isfinite(high - low):  # the width exceeds the largest number: use one bin
        return (low, high)
    edges = (*(low + (high - low) * (index / bins) for index in range(bins)), high)
    rising = all(before < after for before, after in pairwise(edges))
    return edges if rising else (low, high)


def _histogram(edges: Any, counts: Any, nan: int, positive: int, negative: int) -> HistogramRecord:
    return HistogramRecord(
        edges=tuple(edges),
        counts=tuple(counts),
        nan=nan,
        positive_infinity=positive,
        negative_infinity=negative,
    )
