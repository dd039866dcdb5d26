"""The run directory of an attempt: the names of its files, and the phases of a trainer."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath

STACKS_SIGNAL = signal.SIGUSR1
"""Signal at which a rank writes the Python stacks of all its threads to its log and continues."""


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
        """One `MetricRecord` a step, on the node of global rank 0."""
        return self.root / "metrics.jsonl"

    @property
    def events(self) -> PurePath:
        """One `EventRecord` for each thing that happened, on the node of global rank 0."""
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
        """Where it exists, the trainer saves and ends."""
        return self.root / "stop"

    @property
    def requests(self) -> PurePath:
        """Folder of the requests `<id>.json` and their answers `<id>.answer.json`."""
        return self.root / "requests"

    @property
    def outcome(self) -> PurePath:
        """How the trainer ended, an `Outcome`."""
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
        """Folder of TensorBoard files, if the job enables them."""
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
