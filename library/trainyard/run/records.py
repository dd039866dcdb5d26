"""The records of a run directory: one definition of each, for writers and readers."""

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
"""Ranks are below it."""
MAX_RANK_RANGES = 256
"""Most ranges that describe a process group: 12 KiB; a group of a mesh has one or a few."""
MAX_RESTARTED = 500
"""Names of one `SeriesRestart`: of the longest ones, a report still has room for it."""

ProgramAnswer = Literal["stop", "save", "profile", "memory_snapshot"]
"""An order or a request that a program can carry out."""


@dataclass(frozen=True, kw_only=True)
class Heartbeat(JsonRecord):
    """`heartbeat.json`: proof that the trainer makes progress, and its phase."""

    phase: Phase
    """What it is busy with."""
    step: Annotated[int, Bounds(ge=0, le=LAST_STEP)]
    """Completed optimizer steps."""
    time: float
    """Unix time, seconds."""
    steps: Annotated[int, Bounds(ge=1, le=LAST_STEP)] | None = None
    """Steps in all, where a program reports them."""
    answers: Annotated[tuple[ProgramAnswer, ...], Bounds(max_length=4)] = ()
    """What a program carries out: it has called `should_stop`, `should_save` or `request`."""


MAX_RECORD_VALUES = 500
"""Values of one record that a script logs: of the longest names, a report still has room for it."""


@dataclass(frozen=True, kw_only=True)
class MetricRecord(JsonRecord):
    """One line of `metrics.jsonl`: values of one completed step."""

    step: int
    """Completed optimizer steps, this one included."""
    time: float
    """Unix time, seconds."""
    values: dict[str, float]
    """Metric names with group and unit, such as `train/loss`; NaN and infinity as strings."""
    data_digest: str | None = None
    """Digest of the sequences of this step, in global order; of a program with several processes
    that of the samples of one."""
    ranks: Annotated[int, Bounds(ge=1, le=MAX_RANKS)] = 1
    """Processes that may record the step; above 1 the values are those of one of them."""


@dataclass(frozen=True, kw_only=True)
class SeriesRestart(MetricRecord):
    """A line among those of event files: a session of the program begins anew at `step`.

    It has no values. What the former session wrote of the step and of later ones is dropped.
    """

    names: Annotated[tuple[str, ...], Bounds(max_length=MAX_RESTARTED)]
    """Series that the former session wrote to."""


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
    """One line of `events.jsonl`: something that happened to the attempt."""

    time: float
    """Unix time, seconds."""
    kind: RunEventKind
    """What happened."""
    step: int
    """Completed optimizer steps at that moment."""
    data: dict[str, object] = field(default_factory=dict)
    """What belongs to it: a `Manifest` for a commit, a `SaveSettled` once its end is noted,
    a `SaveFailed` for a save that is tried again, a phase name, a request's id."""


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
    """What the trainer does."""
    steps: Annotated[int, Bounds(ge=1, le=100)] = 3
    """Steps that a profile or the history of a memory snapshot holds."""
    ranks: RecordingRanks = "first"
    """Who records them: global rank 0, or every rank."""


@dataclass(frozen=True, kw_only=True)
class RequestAnswer(JsonRecord):
    """`requests/<id>.answer.json`: what became of a request."""

    ok: bool
    """Whether it was done."""
    message: ShortText
    """What was done, or why not."""
    step: Annotated[int, Bounds(ge=0)]
    """Completed optimizer steps at that moment."""


@dataclass(frozen=True, kw_only=True)
class Provenance(JsonRecord):
    """`provenance.json`: which code ran on which software and hardware of one node."""

    git_commit: ShortText | None
    """Commit of the trainer's source tree; absent when it lies in no repository."""
    git_diff: Annotated[str, Cut(DIFF_LIMIT_BYTES)] | None
    """What tracked files had changed against that commit; empty when nothing had."""
    git_diff_truncated: bool
    """Whether `git_diff` was cut at its limit."""
    packages: Annotated[dict[ShortText, ShortText], Bounds(max_length=4000)]
    """Version of every installed package."""
    python: ShortText
    """Version of Python."""
    torch: ShortText
    """Version of torch."""
    cuda: ShortText | None
    """CUDA version that torch was built with."""
    cuda_driver: ShortText | None
    """Version of the NVIDIA driver; absent without one."""
    nccl: ShortText | None
    """Version of NCCL; absent where torch has none."""
    host: ShortText
    """Name of the host."""
    platform: ShortText
    """Kernel and architecture."""
    cpu_count: Number
    """CPU cores that the trainer may use."""
    gpus: Annotated[tuple[ShortText, ...], Bounds(max_length=1024)]
    """Names of the GPUs that it sees, by index."""
    launch: ShortText | None = None
    """How the ranks began: `warm`, forked from a process that had imported torch, or `cold` with
    the reason; absent without a supervisor."""


@dataclass(frozen=True, kw_only=True)
class RankRange(JsonRecord):
    """Global ranks at equal distances."""

    first: Annotated[int, Bounds(ge=0, lt=MAX_RANKS)]
    """First rank."""
    last: Annotated[int, Bounds(ge=0, lt=MAX_RANKS)]
    """Last rank, included."""
    step: Annotated[int, Bounds(ge=1, lt=MAX_RANKS)] = 1
    """Distance between two neighbours."""


@dataclass(frozen=True, kw_only=True)
class PendingCollective(JsonRecord):
    """A collective that has not ended on a rank."""

    group: ShortText
    """Its process group, equal on all ranks of the group."""
    ranks: Annotated[tuple[RankRange, ...], Bounds(max_length=MAX_RANK_RANGES)] = ()
    """Global ranks of the group; empty where they are not known. Each rank reports its group, and
    a list of 4,096 ranks would be 22 KB."""
    number: Number
    """Its position among the collectives of the group, equal on all ranks."""
    op: ShortText
    """Such as `all_reduce`."""
    sizes: ShortText
    """Shapes of its input."""


@dataclass(frozen=True, kw_only=True)
class RankPosition(JsonRecord):
    """`positions/rank-<r>.json`: where a rank is, written when the supervisor requests it."""

    rank: Number
    """Global rank."""
    time: float
    """Unix time, seconds."""
    step: Number | None = None
    """Completed optimizer steps; absent for a rank that did not answer."""
    place: ShortText | None = None
    """Innermost frame that belongs to neither Python nor a package, such as
    `data/batches.py:113 in __next__`; absent for a rank that did not answer."""
    collective: PendingCollective | None = None
    """The oldest collective that has not ended there."""
    process: ShortText | None = None
    """State of its process where it did not answer, such as `stopped`."""


@dataclass(frozen=True, kw_only=True)
class RankExit(JsonRecord):
    """How one rank ended."""

    rank: Number
    """Global rank."""
    pid: Number
    """Process id."""
    exit_code: Number | None
    """Exit code; absent when a signal ended it or its end was not observed."""
    signal: ShortText | None
    """Signal that ended it, such as `SIGKILL`."""
    time: float
    """Unix time, seconds."""


@dataclass(frozen=True, kw_only=True)
class ExitRecord(JsonRecord):
    """`exit.json`: the supervisor's record of how the node's share of the attempt ended."""

    outcome: Literal["succeeded", "stopped", "failed", "cancelled"]
    """How it ended, from the trainer's outcome, the ranks' ends and the orders given."""
    failure: Failure | None
    """Why it failed."""
    ranks: tuple[RankExit, ...]
    """The ranks whose end was seen, in order of time."""
    time: float
    """Unix time, seconds."""
    positions: Annotated[tuple[RankPosition, ...], Bounds(max_length=1024)] = ()
    """Where the ranks were when the attempt had made no progress for most of the limit of a hang;
    empty without such a silence at the end."""
    false_alarms: Number = 0
    """Silences so long that were followed by progress."""
    unreported_commit: bool = False
    """Whether global rank 0 may have committed a checkpoint whose event it did not write."""
