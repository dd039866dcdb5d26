"""Rotation over many jobs, with one batch per run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Row = TypeVar("Row")

JOBS_A_RUN = 20


class Rotation:
    """Returns successive batches of jobs, so that each job gets its turn."""

    def __init__(self) -> None:
        """Start with the first job."""
        self._turn = 0

    def next(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the next batch of rows; the next call starts after this batch."""
        turn = self._turn % max(len(rows), 1)
        self._turn = turn + JOBS_A_RUN
        return [*rows[turn:], *rows[:turn]][:JOBS_A_RUN]
