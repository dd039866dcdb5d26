"""Views of the goodput ledger: the time of a job by category (docs/goodput.md)."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from trainyard.base.model_base import RecordModel


class TimeCategory(StrEnum):
    """What a millisecond of a job was spent on; docs/goodput.md has the source of each."""

    PRODUCTIVE = "productive"
    DATA_WAIT = "data_wait"
    COMPILATION = "compilation"
    SAVE_STALL = "save_stall"
    VALIDATION = "validation"
    STARTUP = "startup"
    ENDING = "ending"
    QUEUED = "queued"
    REQUEUED = "requeued"
    BACKOFF = "backoff"
    PAUSED = "paused"
    LOST = "lost"
    IDLE_AFTER_FAILURE = "idle_after_failure"
    UNREACHABLE = "unreachable"
    OTHER = "other"


class CategoryTime(RecordModel):
    """The time of one category."""

    category: TimeCategory
    """The category."""
    milliseconds: int
    """Its time."""


class GoodputView(RecordModel):
    """The time of a job from its submission to its end, or to now."""

    job_id: str
    """Job."""
    since: datetime
    """Submission."""
    until: datetime
    """End of the job; the moment of the answer while it has none."""
    wall_milliseconds: int
    """Time between the two: the exact sum of the categories."""
    categories: tuple[CategoryTime, ...]
    """Every category once, also those without time."""
    goodput: float | None
    """Productive share of the wall time; null where there is no wall time."""
    ettr: float | None
    """Effective training time ratio; null before the job could run for a millisecond."""
    failures: int
    """Attempts that failed; preempted ones are none."""
    mttf_seconds: float | None
    """Mean time to failure: time of all attempts divided by their failures; null without one."""
