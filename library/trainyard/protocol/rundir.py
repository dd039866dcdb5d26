"""The run directory: names of its files, and the records that lie in them."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePath
from typing import Annotated, Literal

from trainyard.protocol.failures import Failure
from trainyard.run.limits import Bounds, Cut, MaxItems, Message, Number
from trainyard.run.record_base import RunRecord

STACKS_SIGNAL = signal.SIGUSR1
"""On it a rank writes the Python stacks of all its threads into its log, and goes on."""

DIFF_LIMIT_BYTES = 1_000_000
"""Most bytes of `Provenance.git_diff`."""


@dataclass(frozen=True)
class RunDirectory:
    """Paths in the run directory of one attempt on one node; opens nothing itself."""

    root: PurePath
    """`<node-local data>/runs/<job>/<attempt>`."""

    @property
    def spec(self) -> PurePath:
        """The job's spec, unchanged."""
        return self.root / "spec.json"

    @property
    def attempt(self) -> PurePath:
        """Layout, overrides, allocation and resume point; absent for a bare launch."""
        return self.root / "attempt.json"

    @property
    def metrics(self) -> PurePath:
        """One `MetricLine` a step, on the node of global rank 0."""
        return self.root / "metrics.jsonl"

    @property
    def events(self) -> PurePath:
        """One `EventLine` for each thing that happened, on the node of global rank 0."""
        return self.root / "events.jsonl"

    @property
    def logs(self) -> PurePath:
        """Folder of the ranks' output."""
        return self.root / "logs"

    def log(self, rank: int) -> PurePath:
        """Return the path of stdout and stderr of one global rank."""
        return self.logs / f"rank-{rank}.log"

    @property
    def heartbeat(self) -> PurePath:
        """The `Heartbeat` of this node, replaced atomically."""
        return self.root / "heartbeat.json"

    @property
    def stop(self) -> PurePath:
        """Its existence asks the trainer to save and leave."""
        return self.root / "stop"

    @property
    def requests(self) -> PurePath:
        """Folder of `<id>.json` asks, answered by `<id>.answer.json` beside them."""
        return self.root / "requests"

    @property
    def outcome(self) -> PurePath:
        """The trainer's last word, an `Outcome`."""
        return self.root / "outcome.json"

    @property
    def error(self) -> PurePath:
        """The `Failure` of the first failing rank of this node."""
        return self.root / "error.json"

    @property
    def provenance(self) -> PurePath:
        """What this node runs: the `Provenance`, written once at the start."""
        return self.root / "provenance.json"

    @property
    def tensorboard(self) -> PurePath:
        """Folder of TensorBoard files, where the job asks for them."""
        return self.root / "tensorboard"

    @property
    def flight_recorder(self) -> PurePath:
        """Folder of `rank-<r>`: the last collectives of a rank, left by a timeout on CUDA."""
        return self.root / "flight_recorder"

    @property
    def profiles(self) -> PurePath:
        """Folder of Chrome traces of some steps, by rank."""
        return self.root / "profiles"

    @property
    def snapshots(self) -> PurePath:
        """Folder of memory snapshots of ranks on CUDA."""
        return self.root / "snapshots"

    @property
    def exit(self) -> PurePath:
        """The supervisor's `ExitRecord`."""
        return self.root / "exit.json"

    @property
    def secret(self) -> PurePath:
        """The attempt's token (mode 0600); never passed to ranks."""
        return self.root / "supervisor.secret"


class Phase(StrEnum):
    """What the trainer is busy with; each phase has its own limit of silence."""

    STARTING = "starting"
    BUILDING_CACHE = "building_cache"
    LOADING = "loading"
    COMPILING = "compiling"
    TRAINING = "training"
    VALIDATING = "validating"
    SAVING = "saving"
    ENDING = "ending"


@dataclass(frozen=True, kw_only=True)
class Heartbeat(RunRecord):
    """`heartbeat.json`: that the trainer lives, and what it does."""

    phase: Phase
    """What it is busy with."""
    step: Annotated[int, Bounds(ge=0, le=10**9)]
    """Completed optimizer steps."""
    time: float
    """Unix time, seconds."""


@dataclass(frozen=True, kw_only=True)
class MetricLine(RunRecord):
    """One line of `metrics.jsonl`: the values of one completed step."""

    step: int
    """Completed optimizer steps, this one included."""
    time: float
    """Unix time, seconds."""
    values: dict[str, float]
    """Metric names with group and unit, such as `train/loss`; NaN and infinity as strings."""
    data_digest: str | None = None
    """Digest of the very sequences of this step, in global order."""


RunEventKind = Literal[
    "phase",
    "weights_loaded",
    "resumed",
    "checkpoint_committed",
    "checkpoint_settled",
    "save_failed",
    "stop_agreed",
    "request_answered",
]


@dataclass(frozen=True, kw_only=True)
class EventLine(RunRecord):
    """One line of `events.jsonl`: something that happened to the attempt."""

    time: float
    """Unix time, seconds."""
    kind: RunEventKind
    """What happened."""
    step: int
    """Completed optimizer steps at that moment."""
    data: dict[str, object] = field(default_factory=dict)
    """What belongs to it: a `Manifest` for a commit, a `SaveSettled` when its end is taken note of,
    a `SaveFailed` for a save that is tried again, a phase name, a request's id."""


@dataclass(frozen=True, kw_only=True)
class Outcome(RunRecord):
    """`outcome.json`: the trainer's last word."""

    outcome: Literal["succeeded", "stopped", "failed"]
    """How it ended."""
    step: Number
    """Completed optimizer steps."""
    checkpoint_id: Message | None = None
    """Last checkpoint that it committed."""
    failure: Failure | None = None
    """Why it failed."""


RequestKind = Literal["save", "profile", "memory_snapshot"]
RecordingRanks = Literal["first", "all"]


@dataclass(frozen=True, kw_only=True)
class Request(RunRecord):
    """`requests/<id>.json`: something asked of a running trainer."""

    kind: RequestKind
    """What is asked for."""
    steps: Annotated[int, Bounds(ge=1, le=100)] = 3
    """Steps that a profile or the history of a memory snapshot holds."""
    ranks: RecordingRanks = "first"
    """Who records them: global rank 0, or every rank."""


@dataclass(frozen=True, kw_only=True)
class RequestAnswer(RunRecord):
    """`requests/<id>.answer.json`: what became of a request."""

    ok: bool
    """Whether it was done."""
    message: Message
    """What was done, or why not."""
    step: Annotated[int, Bounds(ge=0)]
    """Completed optimizer steps at that moment."""


@dataclass(frozen=True, kw_only=True)
class Provenance(RunRecord):
    """`provenance.json`: which code ran on which software and hardware of one node."""

    git_commit: Message | None
    """Commit of the trainer's source tree; absent when it lies in no repository."""
    git_diff: Annotated[str, Cut(DIFF_LIMIT_BYTES)] | None
    """What tracked files had changed against that commit; empty when nothing had."""
    git_diff_truncated: bool
    """Whether `git_diff` was cut at its limit."""
    packages: Annotated[dict[Message, Message], MaxItems(4000)]
    """Version of every installed package."""
    python: Message
    """Version of Python."""
    torch: Message
    """Version of torch."""
    cuda: Message | None
    """CUDA version that torch was built with."""
    cuda_driver: Message | None
    """Version of the NVIDIA driver; absent without one."""
    nccl: Message | None
    """Version of NCCL; absent where torch has none."""
    host: Message
    """Name of the host."""
    platform: Message
    """Kernel and architecture."""
    cpu_count: Number
    """CPU cores that the trainer may use."""
    gpus: Annotated[tuple[Message, ...], MaxItems(1024)]
    """Names of the GPUs that it sees, by index."""


@dataclass(frozen=True, kw_only=True)
class RankExit(RunRecord):
    """How one rank ended."""

    rank: Number
    """Global rank."""
    pid: Number
    """Process id."""
    exit_code: Number | None
    """Exit code; absent when a signal ended it or nobody could see it."""
    signal: Message | None
    """Signal that ended it, such as `SIGKILL`."""
    time: float
    """Unix time, seconds."""


@dataclass(frozen=True, kw_only=True)
class ExitRecord(RunRecord):
    """`exit.json`: the supervisor's record of how the node's share of the attempt ended."""

    outcome: Literal["succeeded", "stopped", "failed", "cancelled"]
    """How it ended, from the trainer's outcome, the ranks' ends and the orders given."""
    failure: Failure | None
    """Why it failed."""
    ranks: tuple[RankExit, ...]
    """The ranks whose end was seen, in order of time."""
    time: float
    """Unix time, seconds."""
