"""The interface between the supervisor of an attempt and the launcher of its ranks."""

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
    """The parameters set by the node."""
    sizes: tuple[int, ...]
    """Ranks of each node of the attempt, by node rank."""

    @classmethod
    def read(cls, run: WorkerRun) -> Share:
        """Read the share that a run directory describes.

        Raises:
            ValueError: a record is missing or damaged, or the numbers of slots and ranks differ.
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
        """Global ranks of this node; those of earlier nodes precede them."""
        node_rank = self.launch.node_rank
        first = sum(self.sizes[:node_rank])
        return range(first, first + self.sizes[node_rank])

    @property
    def processes_of_program(self) -> frozenset[int]:
        """Legal process numbers of a program here: one for each slot, or one for the node."""
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
        """Whether a program runs instead of the trainer; False if the spec is damaged."""
        try:
            return self.spec.program is not None
        except (OSError, ValueError):
            return False

    @property
    def stop_grace_seconds(self) -> float:
        """Grace period of a program on a stop; 0 without a program."""
        program = self.spec.program if self.runs_program else None
        return 0.0 if program is None else program.stop_grace_seconds

    @cached_property
    def environment(self) -> dict[str, str]:
        """Variables of the launcher, the check and the ranks.

        The job's variables override the node's, and the launch record's override both; only for the
        number of threads does the job's value win. An attempt of several nodes gets the interface
        between them, unless the node or the job names another.
        """
        launch, job, node = self.launch, self.spec.env, rank_environment()
        threads = job.get("OMP_NUM_THREADS") or node.get("OMP_NUM_THREADS")
        return {
            **interface_environment(launch.others, node | job),
            **node,
            "PYTHONUNBUFFERED": "1",  # a line reaches the log when it is printed, not at the end
            **({} if self.runs_program else _kernel_caches(self.run)),
            **job,
            **launch.environment,  # above all the GPUs of its slots: a job sees no other's
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
    """Return the process tree of a share, from its launch record alone."""
    return ProcessTree(user=launch.user, attempt_id=launch.attempt_id, node=launch.node)


def put_back(node: str, message: str, *, remedy: str) -> Failure:
    """Return the failure of a launch that the server places again without using up a retry.

    Neither the job nor the node is at fault; the next attempt avoids the cause of the refusal.
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
    """Process id by global rank; ranks that have not started are omitted."""
    pidfds: Mapping[int, int]
    """Pidfd by global rank of each running rank; readable when the rank ends."""
    exits: tuple[RankExit, ...]
    """Exits of ranks, in order of time; without code and signal if the exit was not observed."""
    ended: bool = False
    """Whether the launcher itself has ended, so that no further rank starts."""
    failure: Failure | None = None
    """Once `ended`: the launcher's own failure, if that is why ranks are missing."""

    @property
    def started(self) -> bool:
        """Whether any rank has started."""
        return bool(self.pids)

    @property
    def failed(self) -> bool:
        """Whether a rank ended otherwise than with exit code 0."""
        return any(end.exit_code != 0 for end in self.exits)

    @property
    def over(self) -> bool:
        """Whether every rank has ended."""
        return len(self.exits) == self.ranks

    @property
    def settled(self) -> bool:
        """Whether every rank runs or has a known exit: no change is due now."""
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
        """Whether `start` also starts the check, which then runs while the ranks start."""

    def prepare(self) -> Sequence[str] | Failure:
        """Check the launcher's own needs on the node, before any process of the share starts.

        Returns:
            The command that checks the input, empty if there is none; or why the share cannot be
            launched here.
        """

    def start(self, *, check: Sequence[str] = ()) -> int | None:
        """Start the ranks of this node; called once.

        Args:
            check: the command of `prepare`, with `checks_alongside`; otherwise it has run already.

        Returns:
            Pid of the check, a child of this process that writes to the log of the node's first
            rank; None without a check.

        Raises:
            OSError: the system refuses to start a process.
        """

    def observe(self) -> Observation:
        """Return the present state of the ranks without waiting."""

    def stop(self) -> None:
        """End every process of the share; return when none is left.

        Raises:
            NotEndedError: a process may not be ended; the share is not over.
        """


LauncherFactory = Callable[[Share], Launcher]
