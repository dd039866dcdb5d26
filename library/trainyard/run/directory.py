"""The run directory of an attempt: names of its files, and phases of the trainer."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

STACKS_SIGNAL = signal.SIGUSR1
"""Signal on which a rank writes its `RankPosition` to a file, and the Python stacks of its threads
to its log. The rank then continues."""


class Entry:
    """A path in the run directory, by name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: RunDirectory, _: type[RunDirectory]) -> Path:
        return run.root / self.name


@dataclass(frozen=True)
class RunDirectory:
    """Paths in the run directory of one attempt on one node; the class opens no file."""

    root: Path
    """`<node-local data>/runs/<job>/<attempt>`."""

    spec = Entry("spec.json")
    """Spec of the job, as submitted."""
    attempt = Entry("attempt.json")
    """Layout, overrides, allocation and resume point; absent in a launch by hand."""
    metrics = Entry("metrics.jsonl")
    """A `MetricRecord` per step and per late validation; only on the node of global rank 0."""
    rank_metrics = Entry("metrics")
    """Folder with a file `rank-<r>.jsonl` of `MetricRecord` lines for each process of a program
    except global rank 0."""
    artifacts = Entry("artifacts")
    """Folder with the `ArtifactRecord` lines of a program's processes in `rank-<r>.jsonl`, and with
    the content files that the server does not have yet."""
    outputs = Entry("outputs")
    """Folder for files that a program writes; `program.artifacts` selects the files to store."""
    events = Entry("events.jsonl")
    """An `EventRecord` per event; only on the node of global rank 0."""
    committing = Entry("committing")
    """Marker file that exists while global rank 0 may have committed a checkpoint without recording
    the event."""
    logs = Entry("logs")
    """Folder with the output of the ranks."""
    heartbeat = Entry("heartbeat.json")
    """The `Heartbeat` of this node; each heartbeat replaces the file atomically."""
    stop = Entry("stop")
    """Order to stop: if the file exists, the trainer saves and ends."""
    requests = Entry("requests")
    """Folder with requests `<id>.json` and the responses `<id>.answer.json`."""
    outcome = Entry("outcome.json")
    """The trainer's `Outcome`."""
    error = Entry("error.json")
    """The `Failure` of the first rank of this node that failed."""
    check_error = Entry("check_error.json")
    """The `Failure` of this node's check, if the check runs while the ranks start."""
    provenance = Entry("provenance.json")
    """The `Provenance` of this node, written once at the start of the attempt."""
    facts = Entry("facts.json")
    """The `RunFacts` of a program, replaced atomically; only on the node of global rank 0."""
    tensorboard = Entry("tensorboard")
    """Folder with TensorBoard files of a program, or of the trainer if the job enables them."""
    flight_recorder = Entry("flight_recorder")
    """Folder with `rank-<r>`: the last collectives of each rank, written at a timeout on CUDA."""
    positions = Entry("positions")
    """Folder with `rank-<r>.json`: the `RankPosition` of each rank, written on `STACKS_SIGNAL`."""
    profiles = Entry("profiles")
    """Folder with Chrome traces of profiled steps, by rank."""
    snapshots = Entry("snapshots")
    """Folder with memory snapshots of ranks on CUDA."""
    kernels = Entry("kernels")
    """Folder with the caches of torch's compilers for this attempt; removed at the attempt's
    end."""
    kernel_archive = Entry("kernels.zip")
    """Archive of the folder `kernels`, made by the first rank of a node after its first step; an
    empty file if the node already has these kernels."""
    exit = Entry("exit.json")
    """The supervisor's `ExitRecord`."""
    secret = Entry("supervisor.secret")
    """Token of the attempt (mode 0600), which is never passed to ranks."""

    def position(self, rank: int) -> Path:
        """Return the path of the `RankPosition` of a global rank."""
        return self.positions / f"rank-{rank}.json"

    def metrics_of(self, rank: int) -> Path:
        """Return the path of the metrics of one process of a program."""
        return self.metrics if rank == 0 else self.rank_metrics / f"rank-{rank}.jsonl"

    def log(self, rank: int) -> Path:
        """Return the path of the output (stdout and stderr) of a global rank."""
        return self.logs / f"rank-{rank}.log"


class Phase(StrEnum):
    """Current activity of the trainer; each phase has its own time limit, beyond which the trainer
    counts as hung."""

    STARTING = "starting"
    BUILDING_CACHE = "building_cache"
    LOADING = "loading"
    COMPILING = "compiling"
    TRAINING = "training"
    VALIDATING = "validating"
    SAVING = "saving"
    ENDING = "ending"
