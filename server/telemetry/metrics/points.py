"""The points of one series as arrays: packs, unpacks and summarises chunks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

CHUNK_POINTS = 1000
"""Number of points per chunk."""
MAX_SUMMED = 1e12
"""To avoid overflow, sums leave out values from this limit on; it is 30,000 years in seconds."""
PACKED = ("first_step", "last_step", "count", "steps", "times", "numbers")
"""Columns of `metric_chunks` from which the points of a chunk are unpacked."""

_POINT = Struct("<qdd")
"""Format of a live point: step, time, value."""
POINT_BYTES = _POINT.size
"""Size of a point in a row of `metric_tails`, in bytes."""
_POINT_TYPE = np.dtype([("step", "<i8"), ("time", "<f8"), ("value", "<f8")])

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Points:
    """Points in ascending order of their steps, as three arrays of the same length."""

    steps: Integers
    times: Floats
    """Unix times in seconds."""
    values: Floats
    """Values, which may be NaN or infinite."""

    @classmethod
    def of(cls, steps: Iterable[int], times: Iterable[float], values: Iterable[float]) -> Self:
        """Return points from three sequences of the same length."""
        return cls(
            steps=np.fromiter(steps, dtype=np.int64),
            times=np.fromiter(times, dtype=np.float64),
            values=np.fromiter(values, dtype=np.float64),
        )

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """Return the points of several parts, concatenated."""
        listed = list(parts) or [cls.of((), (), ())]
        return cls(
            steps=np.concatenate([part.steps for part in listed]),
            times=np.concatenate([part.times for part in listed]),
            values=np.concatenate([part.values for part in listed]),
        )

    @classmethod
    def merged(cls, parts: Iterable[Self]) -> Points:
        """Return the points of several parts in the order of their steps, each step once."""
        points = cls.joined(parts)
        return points[np.unique(points.steps, return_index=True)[1]]

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, index: slice | NDArray[np.bool_] | NDArray[np.intp]) -> Points:
        return Points(self.steps[index], self.times[index], self.values[index])

    @property
    def columns(self) -> tuple[list[int], list[float], list[float]]:
        """Steps, times and values as lists."""
        return self.steps.tolist(), self.times.tolist(), self.values.tolist()

    def between(self, first: int, last: int) -> Points:
        """Return the points of the steps `first..last`, both included."""
        low, high = np.searchsorted(self.steps, (first, last + 1))
        return self[low:high]

    def step_sum(self) -> float:
        """Return the sum of all values after the first, each multiplied by its number of steps.

        A value such as `perf/step_seconds` is the mean over the steps since the previous point.
        """
        return float(summable(self.values[1:]) @ np.diff(self.steps))


def summable(values: Floats) -> Floats:
    """Return durations, with 0 for NaN, negative values, and values from `MAX_SUMMED` on."""
    return np.where((values >= 0) & (values < MAX_SUMMED), values, 0.0)


def chunked(points: Points) -> tuple[list[dict[str, Any]], Points]:
    """Return whole chunks as rows of `metric_chunks` without series id, and the other points."""
    whole = len(points) - len(points) % CHUNK_POINTS
    starts = range(0, whole, CHUNK_POINTS)
    return [pack(points[start : start + CHUNK_POINTS]) for start in starts], points[whole:]


def pack(points: Points) -> dict[str, Any]:
    """Return points as a row of `metric_chunks` without series id; there must be at least one."""
    steps, finite = points.steps, points.values[np.isfinite(points.values)]
    return {
        "first_step": int(steps[0]),
        "last_step": int(steps[-1]),
        "count": len(points),
        "non_finite": len(points) - len(finite),
        "min": float(finite.min()) if len(finite) else None,
        "max": float(finite.max()) if len(finite) else None,
        "last": float(finite[-1]) if len(finite) else None,
        "step_sum": points.step_sum(),
        "steps": None if _evenly_spaced(steps) else steps.astype("<i8").tobytes(),
        "times": points.times.astype("<f8").tobytes(),
        "numbers": points.values.astype("<f8").tobytes(),
    }


def unpack(
    first_step: int, last_step: int, count: int, steps: bytes | None, times: bytes, numbers: bytes
) -> Points:
    """Return the points of a chunk from the columns in `PACKED`."""
    if steps is not None:
        unpacked = np.frombuffer(steps, dtype="<i8")
    else:
        gap = (last_step - first_step) // max(count - 1, 1)
        unpacked = first_step + gap * np.arange(count, dtype=np.int64)
    return Points(unpacked, np.frombuffer(times, dtype="<f8"), np.frombuffer(numbers, dtype="<f8"))


def pack_tail(steps: Iterable[int], times: Iterable[float], values: Iterable[float]) -> bytes:
    """Pack three sequences of the same length into the bytes of a row of `metric_tails`."""
    return b"".join(map(_POINT.pack, steps, times, values))


def unpack_tail(rows: Iterable[bytes]) -> Points:
    """Return the points of successive rows of `metric_tails`."""
    points = np.frombuffer(b"".join(rows), dtype=_POINT_TYPE)
    return Points(*(np.ascontiguousarray(points[column]) for column in ("step", "time", "value")))


def _evenly_spaced(steps: Integers) -> bool:
    gaps = np.diff(steps)
    return len(gaps) == 0 or bool((gaps == gaps[0]).all())
