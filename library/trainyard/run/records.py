"""Records of a run directory, defined once for writers and readers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from trainyard.run.directory import Phase
from trainyard.run.failures import Failure
from trainyard.run.limits import LAST_STEP, Bounds, Cut, Number, ShortText
from trainyard.run.record_base import JsonRecord

DIFF_LIMIT_BYTES = 1_000_000
"""Most bytes of `Provenance.git_diff`."""
MAX_RANKS = 100_000
"""Upper limit of ranks."""
MAX_RANK_RANGES = 256
"""Most ranges that describe a process group (12 KiB); a group of a mesh needs a few."""
MAX_RESTARTED = 500
"""Most names in one `SeriesRestart`: with the longest names it still fits in a report."""

ProgramAnswer = Literal["stop", "save", "profile", "memory_snapshot"]
"""An order or a request that a program can support."""


@dataclass(frozen=True, kw_only=True)
class Heartbeat(JsonRecord):
    """`heartbeat.json`: proof that the trainer makes progress, and its phase."""

    phase: Phase
    """Current activity."""
    step: Annotated[int, Bounds(ge=0, le=LAST_STEP)]
    """Completed optimizer steps."""
    time: float
    """Unix time, seconds."""
    steps: Annotated[int, Bounds(ge=1, le=LAST_STEP)] | None = None
    """Total steps, if a program reports them."""
    answers: Annotated[tuple[ProgramAnswer, ...], Bounds(max_length=4)] = ()
    """Orders and requests that a program supports, by its calls of `should_stop`, `should_save` and
    `request`."""


MAX_RECORD_VALUES = 500
"""Most values of a script in one record: with the longest names it still fits in a report."""


@dataclass(frozen=True, kw_only=True)
class MetricRecord(JsonRecord):
    """One line of `metrics.jsonl`: values of one completed step."""

    step: int
    """Completed optimizer steps, including this one."""
    time: float
    """Unix time, seconds."""
    values: dict[str, float]
    """Metric names with group and unit, such as `train/loss`; NaN and infinity as strings."""
    data_digest: str | None = None
    """Digest of the sequences of this step, in global order; in a program with several processes,
    of the samples of one process."""
    ranks: Annotated[int, Bounds(ge=1, le=MAX_RANKS)] = 1
    """Number of processes that may record the step; if above 1, the values are of one of them."""


@dataclass(frozen=True, kw_only=True)
class SeriesRestart(MetricRecord):
    """A line in the metrics of event files: a new session of the program starts at `step`.

    It has no values. Points of the former session from this step on are dropped.
    """

    names: Annotated[tuple[str, ...], Bounds(max_length=MAX_RESTARTED)]
    """Series of the former session."""


RunEventKind = Literal[
    "phase",
    "weights_loaded",
    "resumed",
    "checkpoint_committed",
    "checkpoint_settled",
    "save_failed",
    "stop_agreed",
    "request_answered",
    "straggler_found",
    "straggler_gone",
    "rank_times",
]


@dataclass(frozen=True, kw_only=True)
class EventRecord(JsonRecord):
    """One line of `events.jsonl`: an event of the attempt."""

    time: float
    """Unix time, seconds."""
    kind: RunEventKind
    """Kind of the event."""
    step: int
    """Completed optimizer steps at that time."""
    data: dict[str, object] = field(default_factory=dict)
    """Its details: a `Manifest` for a commit, a `SaveSettled` once the end of a save is noted, a
    `SaveFailed` for a save that is retried, a phase name, a request's id."""


@dataclass(frozen=True, kw_only=True)
class Outcome(JsonRecord):
    """`outcome.json`: how the trainer ended."""

    outcome: Literal["succeeded", "stopped", "failed"]
    """How it ended."""
    step: Number
    """Completed optimizer steps."""
    checkpoint_id: ShortText | None = None
    """Last checkpoint that it committed."""
    failure: Failure | None = None
    """Why it failed."""


RequestKind = Literal["save", "profile", "memory_snapshot"]
RecordingRanks = Literal["first", "all"]


@dataclass(frozen=True, kw_only=True)
class Request(JsonRecord):
    """`requests/<id>.json`: a request to a running trainer."""

    kind: RequestKind
    """Kind of the request."""
    steps: Annotated[int, Bounds(ge=1, le=100)] = 3
    """Steps that a profile or the history of a memory snapshot holds."""
    ranks: RecordingRanks = "first"
    """Ranks that record: global rank 0, or every rank."""


@dataclass(frozen=True, kw_only=True)
class RequestAnswer(JsonRecord):
    """`requests/<id>.answer.json`: the result of a request."""

    ok: bool
    """Whether it was done."""
    message: ShortText
    """What was done, or why not."""
    step: Annotated[int, Bounds(ge=0)]
    """Completed optimizer steps at that time."""


@dataclass(frozen=True, kw_only=True)
class Provenance(JsonRecord):
    """`provenance.json`: code, software and hardware of the run on one node."""

    git_commit: ShortText | None
    """Commit of the trainer's source tree; absent if it is not in a repository."""
    git_diff: Annotated[str, Cut(DIFF_LIMIT_BYTES)] | None
    """Changes of tracked files since that commit; empty without changes."""
    git_diff_truncated: bool
    """Whether `git_diff` was cut at its limit."""
    packages: Annotated[dict[ShortText, ShortText], Bounds(max_length=4000)]
    """Version of every installed package."""
    python: ShortText
    """Version of Python."""
    torch: ShortText
    """Version of torch."""
    cuda: ShortText | None
    """CUDA version of the torch build."""
    cuda_driver: ShortText | None
    """Version of the NVIDIA driver; absent without one."""
    nccl: ShortText | None
    """Version of NCCL; absent if torch has none."""
    host: ShortText
    """Name of the host."""
    platform: ShortText
    """Kernel and architecture."""
    cpu_count: Number
    """CPU cores that the trainer may use."""
    gpus: Annotated[tuple[ShortText, ...], Bounds(max_length=1024)]
    """Names of the GPUs that it sees, by index."""
    launch: ShortText | None = None
    """Start of the ranks: `warm`, forked from a process that had imported torch, or `cold` with the
    reason; absent without a supervisor."""


@dataclass(frozen=True, kw_only=True)
class RankRange(JsonRecord):
    """Global ranks at equal distances."""

    first: Annotated[int, Bounds(ge=0, lt=MAX_RANKS)]
    """First rank."""
    last: Annotated[int, Bounds(ge=0, lt=MAX_RANKS)]
    """Last rank, inclusive."""
    step: Annotated[int, Bounds(ge=1, lt=MAX_RANKS)] = 1
    """Distance between neighbours."""


@dataclass(frozen=True, kw_only=True)
class PendingCollective(JsonRecord):
    """A collective that has not ended on a rank."""

    group: ShortText
    """Its process group; the same on all ranks of the group."""
    ranks: Annotated[tuple[RankRange, ...], Bounds(max_length=MAX_RANK_RANGES)] = ()
    """Global ranks of the group; empty if unknown. Ranges are short: each rank reports its group,
    and a list of 4,096 ranks would take 22 KB."""
    number: Number
    """Its position among the collectives of the group; the same on all ranks."""
    op: ShortText
    """Operation, such as `all_reduce`."""
    sizes: ShortText
    """Shapes of its input."""


@dataclass(frozen=True, kw_only=True)
class RankPosition(JsonRecord):
    """`positions/rank-<r>.json`: position of a rank, written when the supervisor requests it."""

    rank: Number
    """Global rank."""
    time: float
    """Unix time, seconds."""
    step: Number | None = None
    """Completed optimizer steps; absent for a rank that did not answer."""
    place: ShortText | None = None
    """Innermost frame outside Python and packages, such as `data/batches.py:113 in __next__`;
    absent for a rank that did not answer."""
    collective: PendingCollective | None = None
    """The oldest open collective of the rank."""
    process: ShortText | None = None
    """State of its process if it did not answer, such as `stopped`."""


@dataclass(frozen=True, kw_only=True)
class RankExit(JsonRecord):
    """How one rank ended."""

    rank: Number
    """Global rank."""
    pid: Number
    """Process id."""
    exit_code: Number | None
    """Exit code; absent if a signal ended it or its end was not observed."""
    signal: ShortText | None
    """Signal that ended it, such as `SIGKILL`."""
    time: float
    """Unix time, seconds."""


@dataclass(frozen=True, kw_only=True)
class ExitRecord(JsonRecord):
    """`exit.json`: the supervisor's record of the end of its node's share of the attempt."""

    outcome: Literal["succeeded", "stopped", "failed", "cancelled"]
    """How it ended, from the trainer's outcome, the ranks' exits and the orders."""
    failure: Failure | None
    """Why it failed."""
    ranks: tuple[RankExit, ...]
    """Observed exits of ranks, in order of time."""
    time: float
    """Unix time, seconds."""
    positions: Annotated[tuple[RankPosition, ...], Bounds(max_length=1024)] = ()
    """Positions of the ranks after a silence of most of the hang limit; empty without such a
    silence at the end."""
    false_alarms: Number = 0
    """Number of such silences that progress followed."""
    unreported_commit: bool = False
    """Whether global rank 0 may have committed a checkpoint without writing its event."""
