"""The interface between the supervisor of an attempt and the program that starts its ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from trainyard.protocol.attempt import AttemptSpec
from trainyard.run.failures import Failure, FailureReason, Remedy
from trainyard.run.records import RankExit
from trainyard.spec.job import JobSpec, parse_job_spec
from worker.launchers.rank_environment import rank_environment
from worker.node.files import read_record
from worker.node.interface import interface_environment
from worker.node.node_store import LaunchRecord, WorkerRun
from worker.node.process_tree import ProcessTree
from worker.node.users import user_environment


@dataclass(frozen=True)
class Share:
    """One node's share of an attempt, as its run directory describes it."""

    run: WorkerRun
    """The run directory."""
    launch: LaunchRecord
    """The parameters that come from the node."""
    sizes: tuple[int, ...]
    """Ranks of each node of the attempt, by node rank."""

    @classmethod
    def read(cls, run: WorkerRun) -> Share:
        """Read the share that a run directory describes.

        Raises:
            ValueError: a record is missing or damaged, or the nodes hold another number of slots
                than there are ranks.
        """
        launch = read_record(run.launch, LaunchRecord)
        attempt = read_record(run.attempt, AttemptSpec)
        if launch is None or attempt is None:
            raise ValueError(f"{run.root}: launch.json or attempt.json is missing or damaged")
        sizes = tuple(len(node.slots) for node in attempt.allocation)
        if sum(sizes) != attempt.layout.world_size or launch.node_rank >= len(sizes):
            raise ValueError(
                f"world_size={attempt.layout.world_size} needs as many slots, and node rank "
                f"{launch.node_rank} a share of them, but the allocation has {list(sizes)}"
            )
        return cls(run, launch, sizes)

    @property
    def nodes(self) -> int:
        """Nodes of the attempt."""
        return len(self.sizes)

    @property
    def ranks(self) -> range:
        """Global ranks of this node: those of the nodes before it come first."""
        node_rank = self.launch.node_rank
        first = sum(self.sizes[:node_rank])
        return range(first, first + self.sizes[node_rank])

    @property
    def processes_of_program(self) -> frozenset[int]:
        """Numbers that processes of a program may have here: one a slot, or one for the node."""
        if not self.runs_program:
            return frozenset()
        return frozenset({*self.ranks, self.launch.node_rank})

    @cached_property
    def attempt(self) -> AttemptSpec:
        """The attempt.

        Raises:
            ValueError: its record is missing or damaged.
        """
        attempt = read_record(self.run.attempt, AttemptSpec)
        if attempt is None:
            raise ValueError(f"{self.run.attempt} is missing or damaged")
        return attempt

    @cached_property
    def spec(self) -> JobSpec:
        """The job's spec.

        Raises:
            OSError, SpecError: it is missing or damaged.
        """
        return parse_job_spec(self.run.spec.read_bytes())

    @cached_property
    def runs_program(self) -> bool:
        """Whether a program runs in place of the trainer; not where the spec is damaged."""
        try:
            return self.spec.program is not None
        except (OSError, ValueError):
            return False

    @property
    def stop_grace_seconds(self) -> float:
        """Time that a stop leaves to a program; 0 where there is none."""
        program = self.spec.program if self.runs_program else None
        return 0.0 if program is None else program.stop_grace_seconds

    @cached_property
    def environment(self) -> dict[str, str]:
        """Variables of the launcher, the check and the ranks.

        The job's override those of the node, and the launch record's override both; only the number
        of threads is the job's choice first. Where an attempt has several nodes, the interface
        towards them is named, unless node or job name another.
        """
        launch, job, node = self.launch, self.spec.env, rank_environment()
        threads = job.get("OMP_NUM_THREADS") or node.get("OMP_NUM_THREADS")
        return {
            **interface_environment(launch.others, node | job),
            **node,
            "PYTHONUNBUFFERED": "1",  # a line reaches the log when it is printed, not at the end
            **({} if self.runs_program else _kernel_caches(self.run)),
            **job,
            **launch.environment,  # the GPUs of its slots above all: no job sees those of another
            # With 1, torchrun numbers ranks as if every node had as many as its own.
            "TORCH_ELASTIC_WORKER_IDENTICAL": "0",
            **({"OMP_NUM_THREADS": threads} if threads else {}),
            **(user_environment(launch.attempt_id, self.run.home) if launch.user else {}),
        }

    @cached_property
    def processes(self) -> ProcessTree:
        """All processes of the attempt on this node."""
        return processes_of(self.launch)


def _kernel_caches(run: WorkerRun) -> dict[str, str]:
    """Return where torch keeps compiled kernels: by default all jobs of a user share them."""
    inductor = Path(run.kernels)
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(inductor),
        "TRITON_CACHE_DIR": str(inductor / "triton"),
    }


def processes_of(launch: LaunchRecord) -> ProcessTree:
    """Return all processes of a share: its launch record alone names them."""
    return ProcessTree(user=launch.user, attempt_id=launch.attempt_id, node=launch.node)


def put_back(node: str, message: str, *, remedy: str) -> Failure:
    """Return the failure of a launch that the server places again, without using up a retry.

    Nothing of the job is at fault, nor the node: the next attempt avoids what refused this one.
    """
    return Failure(
        reason=FailureReason.LAUNCH_ERROR,
        message=message,
        node=node,
        remedy=Remedy(text=remedy),
        free_retry=True,
    )


@dataclass(frozen=True)
class Observation:
    """The ranks of one node at one moment.

    The pidfds are valid until the launcher's next `observe`.
    """

    ranks: int
    """Number of ranks of the node."""
    pids: Mapping[int, int]
    """Process id by global rank, of those that have begun."""
    pidfds: Mapping[int, int]
    """Pidfd by global rank, of those that run on this machine: readable when the rank ends."""
    exits: tuple[RankExit, ...]
    """Exits of ranks, in order of time; neither code nor signal where the exit was not seen."""
    ended: bool = False
    """Whether the launcher itself has ended, so that no further rank begins."""
    failure: Failure | None = None
    """Once `ended`: the failure of the launcher itself, where that is why ranks are missing."""

    @property
    def started(self) -> bool:
        """Whether any rank has begun."""
        return bool(self.pids)

    @property
    def failed(self) -> bool:
        """Whether a rank ended in another way than with exit code 0."""
        return any(end.exit_code != 0 for end in self.exits)

    @property
    def over(self) -> bool:
        """Whether every rank has ended."""
        return len(self.exits) == self.ranks

    @property
    def settled(self) -> bool:
        """Whether each rank runs or its exit is known: no change is due at this moment."""
        waiting = 0 if self.ended else self.ranks - len(self.pids)
        gone = len(self.pids) - len(self.pidfds) - len(self.exits)
        return waiting == gone == 0


class Launcher(Protocol):
    """Starts, observes and ends the ranks of one share (contract: docs/worker-processes.md).

    The supervisor calls it from its main thread. `observe` and `stop` also work in a process that
    did not call `start`: one that reports for a supervisor that died.
    """

    @property
    def checks_alongside(self) -> bool:
        """Whether `start` starts the check too, so that it runs while the ranks start."""

    def prepare(self) -> Sequence[str] | Failure:
        """Check what the launcher itself needs of the node, before any process of the share starts.

        Returns:
            The command that checks the input, empty without one; or why the share cannot be
            launched here.
        """

    def start(self, *, check: Sequence[str] = ()) -> int | None:
        """Start the ranks of this node; called once.

        Args:
            check: with `checks_alongside`, the command that `prepare` returned; else it has run.

        Returns:
            The process of this check, a child of this one, with its output in the log of the node's
            first rank; None without one.

        Raises:
            OSError: the system refuses to start a process.
        """

    def observe(self) -> Observation:
        """Return the present state of the ranks without waiting."""

    def stop(self) -> None:
        """End every process of the share, and return when none is left.

        Raises:
            NotEndedError: a process may not be ended; the share is not over.
        """


LauncherFactory = Callable[[Share], Launcher]
