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
"""Jobs of one comparison: as many colours and dashes as a reader can distinguish."""


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


class FactOwner(RecordModel):
    """A job whose facts are compared."""

    id: str
    """Id."""
    name: str
    """Name."""


class FactRow(RecordModel):
    """A value in which jobs differ."""

    name: str
    """Its flat name, such as `optimizer.lr`."""
    values: tuple[FactValue | None, ...]
    """The value of each job, in the order of the jobs; null where it has none."""


class FactsComparison(RecordModel):
    """Configuration and summary of several jobs side by side."""

    jobs: tuple[FactOwner, ...]
    """The jobs in the order in which they were named."""
    config: tuple[FactRow, ...]
    """Values of the configuration in which they differ."""
    summary: tuple[FactRow, ...]
    """Values of the summary in which they differ."""
    same: int
    """Number of the values that all of them share."""


class FactsStored(EventData):
    """The facts of a job changed."""

    config: int
    """Values of its configuration."""
    summary: int
    """Values of its summary."""


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
    open_line: str | None = None
    """The last line as it is now, such as a progress bar: its number is `total_lines`, and it may
    still change. Absent where the output ends with a complete line."""


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


# ---- ranks --------------------------------------------------------------------------------------

Rank = Annotated[int, Field(ge=0, lt=2**31)]
Seconds = Annotated[float, Field(ge=0, lt=1e9, allow_inf_nan=False)]
StragglerKind = Literal["compute", "data"]


class RankSpan(RecordModel):
    """Neighbouring ranks, by the one of them with the longest own time."""

    first_rank: Rank
    """First rank of the span."""
    last_rank: Rank
    """Last rank of it."""
    rank: Rank
    """The slowest of them, to which the times belong."""
    compute_seconds: Seconds
    """All of a step but the next two."""
    data_seconds: Seconds
    """Waiting for the next batch."""
    wait_seconds: Seconds
    """Waiting for other ranks, in collectives."""


class RankTimes(RecordModel):
    """How the ranks spent the steps of the last window, as means for each step."""

    step: int
    """Completed optimizer steps at its end."""
    time: float
    """Its end, Unix time in seconds, by the clock of global rank 0's node."""
    ranks: Annotated[tuple[RankSpan, ...], Field(max_length=64)]
    """All ranks, in at most 64 spans."""


class ComparedRanks(EventData):
    """What the trainer finds by comparing its ranks."""

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
    """Part of each step that it costs the job."""
    node: str | None = None
    """Its node; absent in the trainer's own record, as is the next one."""
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
    """Part of each step that it costs the job, from 0 to 1."""
    step: int
    """Step at which it was found."""
    found_at: datetime
    """When it was found."""
    gone_at: datetime | None
    """When it was found to be as fast as its peers again, or its attempt ended."""
    words: str
    """All of it but the times, as a sentence."""


class SlowSlot(RecordModel):
    """A slot whose ranks were slower than their peers in several jobs.

    Of the last 30 days, and since the last drain of its node ended.
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
    """Their times; null before the first window, and for a single rank."""
    stragglers: tuple[StragglerView, ...]
    """Stragglers, the present ones first, the newest first of each kind; at most 100."""
