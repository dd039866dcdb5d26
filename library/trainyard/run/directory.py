"""The run directory of an attempt: the names of its files, and the phases of a trainer."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

STACKS_SIGNAL = signal.SIGUSR1
"""Signal at which a rank writes the Python stacks of all its threads to its log, and its
`RankPosition`, and continues."""


class Entry:
    """A path in a run directory, by its name there."""

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
    """One `MetricRecord` a step and a late validation, on the node of global rank 0."""
    rank_metrics = Entry("metrics")
    """Folder of `rank-<r>.jsonl`: `MetricRecord` lines of the other processes of a program."""
    artifacts = Entry("artifacts")
    """Folder of `rank-<r>.jsonl`, `ArtifactRecord` lines of the processes of a program, and of the
    content that the server does not have yet."""
    outputs = Entry("outputs")
    """Folder for files of a program, among which `program.artifacts` are looked for."""
    events = Entry("events.jsonl")
    """One `EventRecord` for each thing that happened, on the node of global rank 0."""
    committing = Entry("committing")
    """Exists while global rank 0 may have a commit that is not among the events yet."""
    logs = Entry("logs")
    """Folder of the ranks' output."""
    heartbeat = Entry("heartbeat.json")
    """The `Heartbeat` of this node, replaced atomically."""
    stop = Entry("stop")
    """Where it exists, the trainer saves and ends."""
    requests = Entry("requests")
    """Folder of the requests `<id>.json` and their answers `<id>.answer.json`."""
    outcome = Entry("outcome.json")
    """How the trainer ended, an `Outcome`."""
    error = Entry("error.json")
    """The `Failure` of the first failing rank of this node."""
    check_error = Entry("check_error.json")
    """The `Failure` of the check of this node, where it runs while the ranks start."""
    provenance = Entry("provenance.json")
    """What this node runs: the `Provenance`, written once at the start."""
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
    """Caches of torch's compilers, of this attempt alone; removed when it ends."""
    kernel_archive = Entry("kernels.zip")
    """The archive that the first rank of a node makes of them after its first step."""
    exit = Entry("exit.json")
    """The supervisor's `ExitRecord`."""
    secret = Entry("supervisor.secret")
    """The attempt's token (mode 0600); never passed to ranks."""

    def position(self, rank: int) -> Path:
        """Return the path of the `RankPosition` of one global rank."""
        return self.positions / f"rank-{rank}.json"

    def metrics_of(self, rank: int) -> Path:
        """Return the path of what one process of a program logs."""
        return self.metrics if rank == 0 else self.rank_metrics / f"rank-{rank}.jsonl"

    def log(self, rank: int) -> Path:
        """Return the path of stdout and stderr of one global rank."""
        return self.logs / f"rank-{rank}.log"


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
