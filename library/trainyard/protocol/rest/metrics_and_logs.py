"""Views of metrics, ranks and logs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import RecordModel
from trainyard.protocol.event_kinds import EventData
from trainyard.protocol.states import JobState
from trainyard.run.fact_types.fact_records import FactValue

MAX_COMPARED = 8
"""Most jobs in one comparison: as many as a reader can distinguish by colour and dashes."""


class CurveView(RecordModel):
    """One curve of a chart: the buckets of a series in an attempt or along the lineage."""

    name: str
    """Metric name."""
    branch: str
    """`lineage`, or `attempt-<n>` of an abandoned branch."""
    steps: list[int]
    """Last step of each bucket."""
    first_steps: list[int]
    """First step of each bucket."""
    min: list[float | None]
    """Lowest finite value of each bucket; null if it has none."""
    max: list[float | None]
    """Highest finite value of each bucket."""
    last: list[float | None]
    """Last finite value of each bucket."""
    count: list[int]
    """Number of points in each bucket."""
    non_finite: list[int]
    """Number of NaN and infinite points in each bucket."""


class MetricsView(RecordModel):
    """Charts of a job."""

    job_id: str
    """Job."""
    names: list[str]
    """All metric names of the job."""
    last_step: int
    """Highest step on the lineage."""
    curves: list[CurveView]
    """The requested curves."""


class ComparedCurveView(CurveView):
    """One curve of a comparison: a series along the job's current lineage."""

    times: list[float | None]
    """Unix time (seconds) of the last step of each bucket."""
    tokens: list[float | None]
    """Tokens trained on up to the last step of each bucket; null if `train/tokens` is unknown."""


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
    """Unix time (seconds) of the first point on the lineage; null before the first point."""
    last_step: int
    """Highest step of the newest attempt."""
    names: list[str]
    """All metric names of the job."""
    curves: list[ComparedCurveView]
    """The requested series that have points."""


class ComparisonView(RecordModel):
    """Several jobs side by side."""

    jobs: list[ComparedJobView]
    """The jobs, in the order of the request."""


class FactOwner(RecordModel):
    """A job in a comparison of facts."""

    id: str
    """Id."""
    name: str
    """Name."""


class FactRow(RecordModel):
    """A value that differs between jobs."""

    name: str
    """Its flat name, such as `optimizer.lr`."""
    values: tuple[FactValue | None, ...]
    """The value of each job, in the order of the jobs; null for a job without it."""


class FactsComparison(RecordModel):
    """Configuration and summary of several jobs side by side."""

    jobs: tuple[FactOwner, ...]
    """The jobs, in the order of the request."""
    config: tuple[FactRow, ...]
    """Values of the configuration that differ."""
    summary: tuple[FactRow, ...]
    """Values of the summary that differ."""
    same: int
    """Number of values that are the same in all jobs."""


class FactsStored(EventData):
    """The facts of a job changed."""

    config: int
    """Number of values in its configuration."""
    summary: int
    """Number of values in its summary."""


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
    """Ranks with a log."""
    lines: list[LogLine]
    """The lines."""
    first_line: int
    """Number of the first stored line."""
    total_lines: int
    """Lines written so far."""
    first_error_line: int | None
    """First line that looks like an error."""
    dropped_bytes: int
    """Bytes that the quota dropped."""
    open_line: str | None = None
    """The incomplete last line, such as a progress bar: its number is `total_lines`, and it may
    still change. Absent if the output ends with a complete line."""


class LogMatches(RecordModel):
    """Lines of one rank's log that contain a text, in order."""

    attempt: int
    """Attempt."""
    rank: int
    """Global rank."""
    lines: list[LogLine]
    """The lines that match."""
    next_line: int | None
    """Line at which to continue the search; absent at the end of the log."""


# ---- ranks --------------------------------------------------------------------------------------

Rank = Annotated[int, Field(ge=0, lt=2**31)]
Seconds = Annotated[float, Field(ge=0, lt=1e9, allow_inf_nan=False)]
StragglerKind = Literal["compute", "data"]


class RankSpan(RecordModel):
    """Neighbouring ranks, represented by the rank with the longest own time."""

    first_rank: Rank
    """First rank of the span."""
    last_rank: Rank
    """Last rank of the span."""
    rank: Rank
    """The slowest rank of the span; the times are its own."""
    compute_seconds: Seconds
    """Time of a step without the next two."""
    data_seconds: Seconds
    """Wait for the next batch."""
    wait_seconds: Seconds
    """Wait for other ranks, in collectives."""


class RankTimes(RecordModel):
    """Times of the ranks in the last window, as means per step."""

    step: int
    """Completed optimizer steps at the end of the window."""
    time: float
    """End of the window, Unix time in seconds, by the clock of global rank 0's node."""
    ranks: Annotated[tuple[RankSpan, ...], Field(max_length=64)]
    """All ranks, in at most 64 spans."""


class ComparedRanks(EventData):
    """Result of the trainer's comparison of its ranks."""

    step: int
    """Completed optimizer steps."""
    time: float
    """Unix time in seconds."""


class StragglerFound(ComparedRanks):
    """A rank is slower than its peers for most of a window."""

    rank: Rank
    """Global rank."""
    kind: StragglerKind
    """Whether it computes longer, or waits longer for data."""
    factor: Annotated[float, Field(ge=1, lt=1e9, allow_inf_nan=False)]
    """Its own time as a multiple of the median of its peers."""
    share: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    """Share of each step that it costs the job, from 0 to 1."""
    node: str | None = None
    """Its node; absent in the trainer's own record."""
    slot: int | None = None
    """Its slot there."""


class StragglerGone(ComparedRanks):
    """A straggler is as fast as its peers again."""

    rank: Rank
    """Global rank."""


class RankTimesStored(EventData):
    """The times of the ranks of an attempt changed."""

    step: int
    """Completed optimizer steps at the end of their window."""


class StragglerView(RecordModel):
    """A rank that is, or was, slower than its peers."""

    rank: int
    """Global rank."""
    node: str
    """Its node."""
    slot: int
    """Its slot there."""
    kind: StragglerKind
    """Whether it computes longer, or waits longer for data."""
    factor: float
    """Its own time as a multiple of the median of its peers."""
    share: float
    """Share of each step that it costs the job, from 0 to 1."""
    step: int
    """Step at which it was found."""
    found_at: datetime
    """When it was found."""
    gone_at: datetime | None
    """When it was as fast as its peers again, or its attempt ended."""
    words: str
    """Everything except the times, as a sentence."""


class SlowSlot(RecordModel):
    """A slot with ranks that were slower than their peers in several jobs.

    Only the last 30 days count, and only since the last drain of its node ended.
    """

    slot: int
    """The slot."""
    jobs: int
    """Number of jobs."""


class RanksView(RecordModel):
    """The ranks of a job's newest attempt."""

    attempt: int | None
    """Number of the attempt; null before the first."""
    times: RankTimes | None
    """Times of the ranks; null before the first window, and for a single rank."""
    stragglers: tuple[StragglerView, ...]
    """Present stragglers, then past ones, each newest first; at most 100."""
