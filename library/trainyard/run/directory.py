"""The run directory of an attempt: the names of its files, and the phases of a trainer."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

STACKS_SIGNAL = signal.SIGUSR1
"""On this signal a rank writes its `RankPosition`, and the Python stacks of all its threads to its
log, and continues."""


class Entry:
    """A path in a run directory, by name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: RunDirectory, _: type[RunDirectory]) -> Path:
        return run.root / self.name


@dataclass(frozen=True)
class RunDirectory:
    """Paths in the run directory of one attempt on one node; opens nothing itself."""

    root: Path
    """`<node-local data>/runs/<job>/<attempt>`."""

    spec = Entry("spec.json")
    """The job's spec, unchanged."""
    attempt = Entry("attempt.json")
    """Layout, overrides, allocation and resume point; absent for a bare launch."""
    metrics = Entry("metrics.jsonl")
    """A `MetricRecord` for each step and each late validation, on the node of global rank 0."""
    rank_metrics = Entry("metrics")
    """Folder of `rank-<r>.jsonl`: `MetricRecord` lines of the other processes of a program."""
    artifacts = Entry("artifacts")
    """Folder of `rank-<r>.jsonl`, with `ArtifactRecord` lines of a program's processes, and of
    content that the server does not have yet."""
    outputs = Entry("outputs")
    """Folder for files of a program; `program.artifacts` selects some of them."""
    events = Entry("events.jsonl")
    """An `EventRecord` for each event, on the node of global rank 0."""
    committing = Entry("committing")
    """Exists while global rank 0 may have a commit without an event."""
    logs = Entry("logs")
    """Folder of the ranks' output."""
    heartbeat = Entry("heartbeat.json")
    """The `Heartbeat` of this node, replaced atomically."""
    stop = Entry("stop")
    """If it exists, the trainer saves and ends."""
    requests = Entry("requests")
    """Folder of the requests `<id>.json` and their answers `<id>.answer.json`."""
    outcome = Entry("outcome.json")
    """How the trainer ended, an `Outcome`."""
    error = Entry("error.json")
    """The `Failure` of the first failing rank of this node."""
    check_error = Entry("check_error.json")
    """The `Failure` of this node's check, if the check runs while the ranks start."""
    provenance = Entry("provenance.json")
    """The `Provenance` of this node, written once at the start."""
    facts = Entry("facts.json")
    """The `RunFacts` of a program, replaced atomically on the node of global rank 0."""
    tensorboard = Entry("tensorboard")
    """Folder of TensorBoard files, if the job enables them."""
    flight_recorder = Entry("flight_recorder")
    """Folder of `rank-<r>`: the last collectives of a rank, left by a timeout on CUDA."""
    positions = Entry("positions")
    """Folder of `rank-<r>.json`: the `RankPosition` of a rank, written on `STACKS_SIGNAL`."""
    profiles = Entry("profiles")
    """Folder of Chrome traces of some steps, by rank."""
    snapshots = Entry("snapshots")
    """Folder of memory snapshots of ranks on CUDA."""
    kernels = Entry("kernels")
    """Caches of torch's compilers for this attempt only; removed when it ends."""
    kernel_archive = Entry("kernels.zip")
    """Archive of these caches, made by the first rank of a node after its first step."""
    exit = Entry("exit.json")
    """The supervisor's `ExitRecord`."""
    secret = Entry("supervisor.secret")
    """The attempt's token (mode 0600); never passed to ranks."""

    def position(self, rank: int) -> Path:
        """Return the path of the `RankPosition` of one global rank."""
        return self.positions / f"rank-{rank}.json"

    def metrics_of(self, rank: int) -> Path:
        """Return the path of the metrics of one process of a program."""
        return self.metrics if rank == 0 else self.rank_metrics / f"rank-{rank}.jsonl"

    def log(self, rank: int) -> Path:
        """Return the path of the output (stdout and stderr) of one global rank."""
        return self.logs / f"rank-{rank}.log"


class Phase(StrEnum):
    """Current activity of the trainer; each phase has its own limit of silence."""

    STARTING = "starting"
    BUILDING_CACHE = "building_cache"
    LOADING = "loading"
    COMPILING = "compiling"
    TRAINING = "training"
    VALIDATING = "validating"
    SAVING = "saving"
    ENDING = "ending"
