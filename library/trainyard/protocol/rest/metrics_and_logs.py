"""Views of metrics and logs."""

from __future__ import annotations

from trainyard.base.model_base import RecordModel
from trainyard.protocol.states import JobState


class CurveView(RecordModel):
    """One curve of a chart: buckets of one series of one attempt (or of the lineage)."""

    name: str
    """Metric name."""
    branch: str
    """`lineage`, or `attempt-<n>` of an abandoned branch."""
    steps: list[int]
    """Last step of each bucket."""
    first_steps: list[int]
    """First step of each bucket."""
    min: list[float | None]
    """Least finite value of each bucket; null when it holds none."""
    max: list[float | None]
    """Greatest finite value."""
    last: list[float | None]
    """Last finite value."""
    count: list[int]
    """Points in each bucket."""
    non_finite: list[int]
    """NaN and infinite points in each bucket."""


class MetricsView(RecordModel):
    """Charts of a job."""

    job_id: str
    """Job."""
    names: list[str]
    """All metric names that the job has."""
    last_step: int
    """Greatest step on the lineage."""
    curves: list[CurveView]
    """The requested curves."""


class ComparedCurveView(CurveView):
    """One curve of a comparison: a series along the job's current lineage."""

    times: list[float | None]
    """Unix time (seconds) of the last step of each bucket."""
    tokens: list[float | None]
    """Tokens trained on up to the last step of each bucket; null where `train/tokens` is not
    known."""


class ComparedJobView(RecordModel):
    """A job in a comparison."""

    id: str
    """Id."""
    name: str
    """Name."""
    state: JobState
    """State."""
    layout: str
    """Layout of the newest attempt, else of the spec."""
    world_size: int
    """Ranks."""
    start_time: float | None
    """Unix time (seconds) of the first point along the lineage; null before it."""
    last_step: int
    """Greatest step of the newest attempt."""
    names: list[str]
    """All metric names that the job has."""
    curves: list[ComparedCurveView]
    """The requested series of which the job has points."""


class ComparisonView(RecordModel):
    """Several jobs side by side."""

    jobs: list[ComparedJobView]
    """The jobs in the order in which they were named."""


class LogLine(RecordModel):
    """One line of a rank's output."""

    number: int
    """Line number in the rank's log, from 0."""
    text: str
    """The line."""


class LogPage(RecordModel):
    """A range of lines of one rank's log."""

    attempt: int
    """Attempt."""
    rank: int
    """Global rank."""
    ranks: list[int]
    """Ranks that have a log."""
    lines: list[LogLine]
    """The lines."""
    first_line: int
    """Number of the first line that is still stored."""
    total_lines: int
    """Lines written so far."""
    first_error_line: int | None
    """First line that looks like an error."""
    dropped_bytes: int
    """Bytes that the quota dropped."""


class LogMatches(RecordModel):
    """Lines of one rank's log that hold a text, in order."""

    attempt: int
    """Attempt."""
    rank: int
    """Global rank."""
    lines: list[LogLine]
    """The lines that match."""
    next_line: int | None
    """Line at which to continue the search; absent when the end was reached."""
