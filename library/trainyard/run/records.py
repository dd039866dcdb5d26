"""Records in a run directory, with one definition for writers and readers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from trainyard.run.directory import Phase
from trainyard.run.failures import Failure
from trainyard.run.limits import LAST_STEP, Bounds, Cut, Number, ShortText
from trainyard.run.record_base import JsonRecord

DIFF_LIMIT_BYTES = 1_000_000
"""Maximum size of `Provenance.git_diff`, in bytes."""
MAX_RANKS = 100_000
"""Upper limit of the number of ranks."""
MAX_RANK_RANGES = 256
"""Maximum number of ranges for one process group (12 KiB); a group of a mesh needs a few."""
MAX_RESTARTED = 500
"""Maximum number of names in one `SeriesRestart`; with the longest names it still fits in a
report."""

ProgramAnswer = Literal["stop", "save", "profile", "memory_snapshot"]
"""Order or request that a program can support."""


@dataclass(frozen=True, kw_only=True)
class Heartbeat(JsonRecord):
    """`heartbeat.json`: proof that the trainer makes progress, with its phase."""

    phase: Phase
    """Current phase of the trainer."""
    step: Annotated[int, Bounds(ge=0, le=LAST_STEP)]
    """Completed optimizer steps."""
    time: float
    """Unix time in seconds."""
    steps: Annotated[int, Bounds(ge=1, le=LAST_STEP)] | None = None
    """Total number of steps, if a program reports it."""
    answers: Annotated[tuple[ProgramAnswer, ...], Bounds(max_length=4)] = ()
    """Orders and requests that a program supports, as shown by its calls to `should_stop`,
    `should_save` and `request`."""


MAX_RECORD_VALUES = 500
"""Maximum number of a script's values in one record; with the longest names the record still fits
in a report."""


@dataclass(frozen=True, kw_only=True)
class MetricRecord(JsonRecord):
    """One line of `metrics.jsonl`: values of one completed step."""

    step: int
    """Completed optimizer steps, including this one."""
    time: float
    """Unix time in seconds."""
    values: dict[str, float]
    """Values, by name of the metric with group and unit, such as `train/loss`. NaN and infinity are
    strings."""
    data_digest: str | None = None
    """Digest of the sequences in this step, in global order. In a program with several processes,
    digest of the samples of one process."""
    ranks: Annotated[int, Bounds(ge=1, le=MAX_RANKS)] = 1
    """Number of processes that may record this step. If it is above 1, this record has the values
    of only one process."""


@dataclass(frozen=True, kw_only=True)
class SeriesRestart(MetricRecord):
    """A line among the metrics of event files: a new session of the program starts at `step`.

    The line has no values. Points of the previous session from this step on are dropped.
    """

    names: Annotated[tuple[str, ...], Bounds(max_length=MAX_RESTARTED)]
    """Series of the previous session."""


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
    """Unix time in seconds."""
    kind: RunEventKind
    """Kind of the event."""
    step: int
    """Completed optimizer steps at the time of the event."""
    data: dict[str, object] = field(default_factory=dict)
    """Details of the event, such as a `Manifest` for a commit, a `SaveSettled` for a noticed end of
    a save, a `SaveFailed` for a save that is retried, the name of a phase, or the id of a request.
    """


@dataclass(frozen=True, kw_only=True)
class Outcome(JsonRecord):
    """`outcome.json`: outcome of the trainer."""

    outcome: Literal["succeeded", "stopped", "failed"]
    """Outcome of the trainer."""
    step: Number
    """Completed optimizer steps."""
    checkpoint_id: ShortText | None = None
    """Id of the last checkpoint that the trainer committed."""
    failure: Failure | None = None
    """Failure, if the trainer failed."""


RequestKind = Literal["save", "profile", "memory_snapshot"]
RecordingRanks = Literal["first", "all"]


@dataclass(frozen=True, kw_only=True)
class Request(JsonRecord):
    """`requests/<id>.json`: a request to a running trainer."""

    kind: RequestKind
    """Kind of the request."""
    steps: Annotated[int, Bounds(ge=1, le=100)] = 3
    """Number of steps in a profile, or in the history of a memory snapshot."""
    ranks: RecordingRanks = "first"
    """Ranks that record: only global rank 0, or all ranks."""


@dataclass(frozen=True, kw_only=True)
class RequestAnswer(JsonRecord):
    """`requests/<id>.answer.json`: response to a request."""

    ok: bool
    """Whether the trainer did what was requested."""
    message: ShortText
    """Result of the request, or reason of the failure."""
    step: Annotated[int, Bounds(ge=0)]
    """Completed optimizer steps at the time of the response."""


@dataclass(frozen=True, kw_only=True)
class Provenance(JsonRecord):
    """`provenance.json`: code, software and hardware of the run on one node."""

    git_commit: ShortText | None
    """Commit of the trainer's source tree; absent outside a repository."""
    git_diff: Annotated[str, Cut(DIFF_LIMIT_BYTES)] | None
    """Changes to tracked files since the commit; empty without changes."""
    git_diff_truncated: bool
    """Whether `git_diff` was cut because it exceeded its limit."""
    packages: Annotated[dict[ShortText, ShortText], Bounds(max_length=4000)]
    """Versions of all installed packages, by name."""
    python: ShortText
    """Version of Python."""
    torch: ShortText
    """Version of torch."""
    cuda: ShortText | None
    """CUDA version of the torch build."""
    cuda_driver: ShortText | None
    """Version of the NVIDIA driver; absent without a driver."""
    nccl: ShortText | None
    """Version of NCCL; absent if torch lacks NCCL."""
    host: ShortText
    """Name of the host."""
    platform: ShortText
    """Kernel and architecture."""
    cpu_count: Number
    """Number of CPU cores that the trainer may use."""
    gpus: Annotated[tuple[ShortText, ...], Bounds(max_length=1024)]
    """Names of the GPUs that the trainer sees, by index."""
    launch: ShortText | None = None
    """Way in which the ranks were started: `warm` (forked from a process that had imported torch),
    or `cold` with the reason; absent without a supervisor."""


@dataclass(frozen=True, kw_only=True)
class RankRange(JsonRecord):
    """Global ranks at equal distances, such as 0, 8, 16 and 24."""

    first: Annotated[int, Bounds(ge=0, lt=MAX_RANKS)]
    """First rank of the range."""
    last: Annotated[int, Bounds(ge=0, lt=MAX_RANKS)]
    """Last rank, which is included."""
    step: Annotated[int, Bounds(ge=1, lt=MAX_RANKS)] = 1
    """Distance between adjacent ranks."""


@dataclass(frozen=True, kw_only=True)
class PendingCollective(JsonRecord):
    """A collective that has not ended on a rank."""

    group: ShortText
    """Name of the collective's process group, the same on all ranks of the group."""
    ranks: Annotated[tuple[RankRange, ...], Bounds(max_length=MAX_RANK_RANGES)] = ()
    """Global ranks of the group; empty if unknown. They are stored as ranges, because each rank
    reports its group, and a list of 4,096 ranks would take 22 KB."""
    number: Number
    """Number of the collective within the group; the same on all ranks."""
    op: ShortText
    """Operation of the collective, such as `all_reduce`."""
    sizes: ShortText
    """Shapes of the input."""


@dataclass(frozen=True, kw_only=True)
class RankPosition(JsonRecord):
    """`positions/rank-<r>.json`: position of a rank, written on a signal from the supervisor."""

    rank: Number
    """Global rank."""
    time: float
    """Unix time in seconds."""
    step: Number | None = None
    """Completed optimizer steps; absent if the rank did not respond."""
    place: ShortText | None = None
    """Innermost frame of the main thread outside Python's library and installed packages, such as
    `data/batches.py:113 in __next__`, then those of other threads; absent without such a frame, or
    if the rank did not respond."""
    collective: PendingCollective | None = None
    """Oldest collective that has not ended on the rank."""
    process: ShortText | None = None
    """State of the process, such as `stopped`; absent if the rank responded."""


@dataclass(frozen=True, kw_only=True)
class RankExit(JsonRecord):
    """End of one rank."""

    rank: Number
    """Global rank."""
    pid: Number
    """Process id."""
    exit_code: Number | None
    """Exit code; absent if a signal ended the rank, or if its end was not observed."""
    signal: ShortText | None
    """Signal that ended the rank, such as `SIGKILL`."""
    time: float
    """Unix time of the end, in seconds."""


@dataclass(frozen=True, kw_only=True)
class ExitRecord(JsonRecord):
    """`exit.json`: record of a supervisor on the end of its share."""

    outcome: Literal["succeeded", "stopped", "failed", "cancelled"]
    """Outcome of the share, which follows from the trainer's outcome, the exits of the ranks, and
    the orders."""
    failure: Failure | None
    """Failure, if the share failed."""
    ranks: tuple[RankExit, ...]
    """Observed exits of ranks, sorted by time."""
    time: float
    """Unix time in seconds."""
    positions: Annotated[tuple[RankPosition, ...], Bounds(max_length=1024)] = ()
    """Positions of the ranks after a silence that lasted most of the hang limit. Empty if no such
    silence preceded the end."""
    false_alarms: Number = 0
    """Number of silences that lasted most of the hang limit, but after which the trainer made
    progress again."""
    unreported_commit: bool = False
    """Whether global rank 0 may have committed a checkpoint without recording the event."""
