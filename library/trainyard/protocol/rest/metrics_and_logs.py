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
"""Maximum number of jobs in a comparison; colours and dashes cannot distinguish more jobs."""


class CurveView(RecordModel):
    """One curve of a chart: a series of an attempt or of the lineage, divided into buckets of
    steps."""

    name: str
    """Name of the metric."""
    branch: str
    """`lineage`, or `attempt-<n>` for an abandoned branch or a requested attempt."""
    steps: list[int]
    """Last step in each bucket."""
    first_steps: list[int]
    """First step in each bucket."""
    min: list[float | None]
    """Lowest finite value in each bucket; null if no value is finite."""
    max: list[float | None]
    """Highest finite value in each bucket; null if no value is finite."""
    last: list[float | None]
    """Last finite value in each bucket; null if no value is finite."""
    count: list[int]
    """Number of points in each bucket."""
    non_finite: list[int]
    """Number of points in each bucket that are NaN or infinite."""


class MetricsView(RecordModel):
    """Charts of a job."""

    job_id: str
    """Id of the job."""
    names: list[str]
    """Names of all metrics of the job."""
    last_step: int
    """Highest step of the lineage."""
    curves: list[CurveView]
    """Requested curves."""


class ComparedCurveView(CurveView):
    """One curve in a comparison: a series along the current lineage of a job."""

    times: list[float | None]
    """Unix time in seconds of the last step in each bucket."""
    tokens: list[float | None]
    """Number of tokens trained on until the last step in each bucket; null if `train/tokens` is
    unknown."""


class ComparedJobView(RecordModel):
    """A job in a comparison."""

    id: str
    """Id of the job."""
    name: str
    """Name of the job."""
    state: JobState
    """State of the job."""
    layout: str
    """Layout of the newest attempt; without an attempt, layout of the spec."""
    world_size: int
    """Number of ranks."""
    start_time: float | None
    """Unix time in seconds of the lineage's first point; null before the first point."""
    last_step: int
    """Highest step of the newest attempt."""
    names: list[str]
    """Names of all metrics of the job."""
    curves: list[ComparedCurveView]
    """Curves of the requested series that have points."""


class ComparisonView(RecordModel):
    """Comparison of several jobs."""

    jobs: list[ComparedJobView]
    """Jobs in the comparison, in the order of the request."""


class FactOwner(RecordModel):
    """A job in a comparison of facts."""

    id: str
    """Id of the job."""
    name: str
    """Name of the job."""


class FactRow(RecordModel):
    """A fact with a value that differs between jobs."""

    name: str
    """Flat name of the fact, such as `optimizer.lr`."""
    values: tuple[FactValue | None, ...]
    """Value in each job, in the order of `jobs`; null for a job without this fact."""


class FactsComparison(RecordModel):
    """Comparison of the configuration and summary of several jobs."""

    jobs: tuple[FactOwner, ...]
    """Jobs in the comparison, in the order of the request."""
    config: tuple[FactRow, ...]
    """Facts of the configuration that differ between the jobs."""
    summary: tuple[FactRow, ...]
    """Facts of the summary that differ between the jobs."""
    same: int
    """Number of facts with the same value in all jobs."""


class FactsStored(EventData):
    """The facts of a job have changed."""

    config: int
    """Number of facts in the configuration."""
    summary: int
    """Number of facts in the summary."""


class LogLine(RecordModel):
    """One line of a rank's output."""

    number: int
    """Number of the line in the rank's log, from 0."""
    text: str
    """Text of the line."""


class LogPage(RecordModel):
    """A range of lines from the log of one rank."""

    attempt: int
    """Number of the attempt."""
    rank: int
    """Global rank."""
    ranks: list[int]
    """Ranks that have a log."""
    lines: list[LogLine]
    """Lines of the range."""
    first_line: int
    """Number of the first line that is still stored."""
    total_lines: int
    """Number of lines written so far."""
    first_error_line: int | None
    """Number of the first line that looks like an error."""
    dropped_bytes: int
    """Number of bytes that were dropped from the start of the log, because the log exceeded its
    quota."""
    open_line: str | None = None
    """Last line if it is incomplete, such as a progress bar. Its number is `total_lines`, and its
    text may still change. Absent if the last line is complete."""


class LogMatches(RecordModel):
    """Lines from the log of one rank that contain a text, in the order of the log."""

    attempt: int
    """Number of the attempt."""
    rank: int
    """Global rank."""
    lines: list[LogLine]
    """Lines that contain the text."""
    next_line: int | None
    """Number of the line at which the search can continue; absent at the end of the log."""


# ---- ranks --------------------------------------------------------------------------------------

Rank = Annotated[int, Field(ge=0, lt=2**31)]
Seconds = Annotated[float, Field(ge=0, lt=1e9, allow_inf_nan=False)]
StragglerKind = Literal["compute", "data"]


class RankSpan(RecordModel):
    """Adjacent ranks, represented by the rank with the longest total time of computation and
    waiting for data."""

    first_rank: Rank
    """First rank in the span."""
    last_rank: Rank
    """Last rank in the span."""
    rank: Rank
    """Rank with the longest total time of computation and waiting for data; the times of this span
    are the times of this rank."""
    compute_seconds: Seconds
    """Time of a step, without waiting for data and without waiting for other ranks."""
    data_seconds: Seconds
    """Time of waiting for the next batch."""
    wait_seconds: Seconds
    """Time of waiting for other ranks in collectives."""


class RankTimes(RecordModel):
    """Times of the ranks in the last window, as means per step."""

    step: int
    """Completed optimizer steps at the end of the window."""
    time: float
    """End of the window as Unix time in seconds, by the clock of global rank 0's node."""
    ranks: Annotated[tuple[RankSpan, ...], Field(max_length=64)]
    """Times of all ranks, in at most 64 spans of adjacent ranks."""


class ComparedRanks(EventData):
    """Result of a comparison of ranks, which the trainer made."""

    step: int
    """Completed optimizer steps."""
    time: float
    """Unix time in seconds."""


class StragglerFound(ComparedRanks):
    """A rank is slower than its peers for most of a window."""

    rank: Rank
    """Global rank."""
    kind: StragglerKind
    """Activity in a step that takes the rank longer than its peers: computation, or waiting for
    data."""
    factor: Annotated[float, Field(ge=1, lt=1e9, allow_inf_nan=False)]
    """Ratio of the rank's own time in a step to the median own time of its peers. Own time excludes
    waiting for other ranks."""
    share: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    """Time that each step loses because of the rank, as a share of the step, from 0 to 1."""
    node: str | None = None
    """Node of the rank; absent in the trainer's own record."""
    slot: int | None = None
    """Slot of the rank on its node."""


class StragglerGone(ComparedRanks):
    """A straggler is as fast as its peers again."""

    rank: Rank
    """Global rank."""


class RankTimesStored(EventData):
    """New times of an attempt's ranks were stored."""

    step: int
    """Completed optimizer steps at the end of the window."""


class StragglerView(RecordModel):
    """A straggler: a rank that is, or was, slower than its peers."""

    rank: int
    """Global rank."""
    node: str
    """Node of the rank."""
    slot: int
    """Slot of the rank on its node."""
    kind: StragglerKind
    """Activity in a step that takes the rank longer than its peers: computation, or waiting for
    data."""
    factor: float
    """Ratio of the rank's own time in a step to the median own time of its peers. Own time excludes
    waiting for other ranks."""
    share: float
    """Time that each step loses because of the rank, as a share of the step, from 0 to 1."""
    step: int
    """Step at which the straggler was found."""
    found_at: datetime
    """Time at which the straggler was found."""
    gone_at: datetime | None
    """Time at which the rank became as fast as its peers again, or at which the attempt ended."""
    words: str
    """Description of the straggler without times, as a sentence."""


class SlowSlot(RecordModel):
    """A slot on which ranks of several jobs were slower than their peers.

    A straggler counts only if it was found in the last 30 days and after the end of the node's last
    drain.
    """

    slot: int
    """Index of the slot."""
    jobs: int
    """Number of jobs with a slow rank on the slot."""


class RanksView(RecordModel):
    """The ranks of a job's newest attempt."""

    attempt: int | None
    """Number of the attempt; null before the first attempt."""
    times: RankTimes | None
    """Times of the ranks; null before the end of the first window, and for a single rank."""
    stragglers: tuple[StragglerView, ...]
    """At most 100 stragglers: first the present stragglers, then the past stragglers; each group is
    sorted newest first."""
