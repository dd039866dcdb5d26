"""View of `/readyz`: whether requests can be served, and what the scheduler repeats."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from trainyard.base.model_base import RecordModel


class TaskView(RecordModel):
    """A periodic task of the scheduler."""

    name: str
    every_seconds: float
    """Time from the begin of a run to the begin of the next one; 0 for each round."""
    budget_seconds: float
    """Time of a round after which a run in steps pauses."""
    stored_at: datetime | None
    """Time of the figures below; null before the first ones."""
    runs: int
    """Runs since this scheduler leads."""
    failures: int
    """Runs that failed, of these."""
    seconds: float
    """Work of the last run."""
    lag_seconds: float
    """By how much the last run began after it was due."""


class Readiness(RecordModel):
    """The server answers, and its database has the newest schema."""

    status: Literal["ready"]
    tasks: tuple[TaskView, ...]
    """In the order of a round."""
