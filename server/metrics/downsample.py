"""Buckets of a chart: exact summaries of neighbouring points, none of which hides a NaN."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from server.metrics.points import Floats, Integers

WIDEST = 2
"""A chunk of up to so many bucket widths is kept whole, and moves the borders next to it; a wider
one must be decoded."""


@dataclass(frozen=True)
class Spans:
    """Summaries of disjoint spans of steps, in rising order: chunks, buckets or single points."""

    first: Integers
    """First step of each."""
    last: Integers
    """Last step of each."""
    count: Integers
    """Points of each."""
    non_finite: Integers
    """NaN and infinite points of each."""
    low: Floats
    """Least finite value; NaN when there is none. So are the next two."""
    high: Floats
    """Greatest finite value."""
    last_value: Floats
    """Last finite value."""

    @classmethod
    def of_points(cls, steps: Integers, values: Floats) -> Self:
        """Return one span for each point."""
        finite = np.isfinite(values)
        shown = np.where(finite, values, np.nan)
        return cls(
            first=steps,
            last=steps,
            count=np.ones(len(steps), dtype=np.int64),
            non_finite=(~finite).astype(np.int64),
            low=shown,
            high=shown,
            last_value=shown,
        )

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """Return the spans of several parts in order of their steps."""
        empty = cls.of_points(np.empty(0, dtype=np.int64), np.empty(0))
        listed = [empty, *parts]
        order = np.argsort(np.concatenate([part.first for part in listed]), kind="stable")
        columns = [
            np.concatenate(column)[order] for column in zip(*map(_columns, listed), strict=True)
        ]
        return cls(*columns)

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, index: NDArray[np.bool_] | slice) -> Spans:
        return Spans(*(column[index] for column in _columns(self)))


def _columns(spans: Spans) -> tuple[NDArray[Any], ...]:
    return (
        spans.first,
        spans.last,
        spans.count,
        spans.non_finite,
        spans.low,
        spans.high,
        spans.last_value,
    )


def must_be_decoded(spans: Spans, *, first: int, last: int, limit: int) -> NDArray[np.bool_]:
    """Return which spans are too wide to be kept whole in `limit` buckets of `first..last`."""
    return spans.last - spans.first + 1 > WIDEST * (last - first + 1) / limit


def bucketed(spans: Spans, *, first: int, last: int, limit: int) -> Spans:
    """Return at most `limit` buckets of neighbouring spans; few spans stay as they are.

    The steps `first..last` are cut into `limit` equal cells, and a span belongs to the cell of its
    middle. So a bucket is exact over the steps that it names, and its borders lie at most half a
    span in addition to those of its cell.
    """
    if len(spans) <= limit:
        return spans
    middles = (spans.first + spans.last) // 2
    cells = (middles - first) * limit // (last - first + 1)
    starts = np.flatnonzero(np.diff(cells, prepend=cells[0] - 1))
    ends = np.append(starts[1:], len(spans)) - 1
    return Spans(
        first=spans.first[starts],
        last=spans.last[ends],
        count=np.add.reduceat(spans.count, starts),
        non_finite=np.add.reduceat(spans.non_finite, starts),
        low=np.fmin.reduceat(spans.low, starts),
        high=np.fmax.reduceat(spans.high, starts),
        last_value=_last_finite(spans.last_value, starts, ends),
    )


def _last_finite(values: Floats, starts: NDArray[np.intp], ends: NDArray[np.intp]) -> Floats:
    known = np.where(np.isnan(values), -1, np.arange(len(values)))
    newest = np.maximum.accumulate(known)[ends]
    return np.where(newest >= starts, values[newest], np.nan)
