"""Interface between an attempt's supervisor and the launcher of its ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from trainyard.base.redaction import OutputMask
from trainyard.protocol.attempt import AttemptSpec
from trainyard.run.failures import Failure, FailureReason, Remedy
from trainyard.run.records import RankExit
from trainyard.spec.environment import plain_variables, secret_references
from trainyard.spec.job import JobSpec, parse_job_spec
from worker.launchers.rank_environment import rank_environment
from worker.node.files import read_record, read_small
from worker.node.interface import interface_environment
from worker.node.node_store import LaunchRecord, WorkerRun
from worker.node.process_tree import ProcessTree


@dataclass(frozen=True)
class Share:
    """One node's share of an attempt, as its run directory describes it."""

    run: WorkerRun
    """The run directory."""
    launch: LaunchRecord
    """Launch parameters that the node set."""
    sizes: tuple[int, ...]
    """Number of ranks on each node of the attempt, by node rank."""

    @classmethod
    def read(cls, run: WorkerRun) -> Share:
        """Read the share from its run directory.

        Raises:
            ValueError: a record is missing or damaged, or slots and ranks differ in number.
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

    def admit_user(self) -> None:
        """Open the run directory to the ranks' user; root follows no link there afterwards."""
        if self.launch.user is not None:
            self.launch.user.admit(Path(self.run.root))

    @property
    def nodes(self) -> int:
        """Number of nodes of the attempt."""
        return len(self.sizes)

    @property
    def ranks(self) -> range:
        """Global ranks of this node; they follow the ranks of the earlier nodes."""
        node_rank = self.launch.node_rank
        first = sum(self.sizes[:node_rank])
        return range(first, first + self.sizes[node_rank])

    @property
    def processes_of_program(self) -> frozenset[int]:
        """Valid process numbers of a program on this node, per slot or a single one; else empty."""
        if not self.runs_program:
            return frozenset()
        return frozenset({*self.ranks, self.launch.node_rank})

    @cached_property
    def attempt(self) -> AttemptSpec:
        """Record of the attempt.

        Raises:
            ValueError: the record of the attempt is missing or damaged.
        """
        attempt = read_record(self.run.attempt, AttemptSpec)
        if attempt is None:
            raise ValueError(f"{self.run.attempt} is missing or damaged")
        return attempt

    @cached_property
    def spec(self) -> JobSpec:
        """Spec of the job.

        Raises:
            OSError, SpecError: the spec is missing or damaged.
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
        """Seconds that a program gets after an order to stop; 0 for the built-in trainer."""
        program = self.spec.program if self.runs_program else None
        return 0.0 if program is None else program.stop_grace_seconds

    @cached_property
    def secrets(self) -> dict[str, str]:
        """Values of the secrets of the job, by variable.

        Raises:
            OSError, ValueError: the file is unreadable or damaged.
        """
        try:
            found = json.loads(read_small(self.run.delivered))
        except FileNotFoundError:  # no secrets, or the attempt is over
            return {}
        return {str(name): str(value) for name, value in found.items()}

    @cached_property
    def mask(self) -> OutputMask:
        """Mask for the secrets of the job.

        Raises:
            OSError, ValueError: the file of the secrets is unreadable or damaged.
        """
        return OutputMask(self.secrets.values())

    @property
    def variables(self) -> dict[str, str]:
        """Variables of the job's spec, with the values of secrets.

        Raises:
            OSError, ValueError: the file of the secrets is unreadable, or a secret is missing.
        """
        missing = secret_references(self.spec.env).keys() - self.secrets.keys()
        if missing:
            named = ", ".join(f"env.{name}" for name in sorted(missing))
            raise ValueError(f"{self.run.delivered} has no value for {named}")
        return plain_variables(self.spec.env) | self.secrets

    @cached_property
    def environment(self) -> dict[str, str]:
        """Environment variables of the launcher, the check and the ranks.

        The job's variables override the node's, and the launch record's variables override both.
        For the number of threads, the job's value overrides the node's, and both override the
        launch record's. An attempt of several nodes gets the name of the network interface between
        them, unless the node or the job sets one. A separate user's name and home override all.
        """
        launch, job, node = self.launch, self.variables, rank_environment(self.launch.user)
        account = None if launch.user is None else launch.user.account
        # Other users can guess the usual folder of an account, /tmp/torchinductor_NAME, and make it
        # first. In a pool, its name is new for each attempt.
        own_caches = not self.runs_program or account is not None
        threads = job.get("OMP_NUM_THREADS") or node.get("OMP_NUM_THREADS")
        return {
            **interface_environment(launch.others, node | job),
            **node,
            "PYTHONUNBUFFERED": "1",  # a line reaches the log at once, not at the end
            **(_kernel_caches(self.run) if own_caches else {}),
            **job,
            **launch.environment,  # includes the GPUs of the slots: a job sees no other job's GPU
            # With 1, torchrun would compute global ranks as if all nodes had as many ranks as this
            # one.
            "TORCH_ELASTIC_WORKER_IDENTICAL": "0",
            **({"OMP_NUM_THREADS": threads} if threads else {}),
            **(launch.user.environment(launch.attempt_id, self.run.home) if launch.user else {}),
        }

    @cached_property
    def processes(self) -> ProcessTree:
        """Process tree of the attempt on this node."""
        return processes_of(self.launch)


def _kernel_caches(run: WorkerRun) -> dict[str, str]:
    """Return the attempt's own folders for compiled kernels, instead of the user's folder."""
    inductor = Path(run.kernels)
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(inductor),
        "TRITON_CACHE_DIR": str(inductor / "triton"),
    }


def processes_of(launch: LaunchRecord) -> ProcessTree:
    """Return the process tree of a share, from its launch record alone."""
    return ProcessTree(user=launch.user, attempt_id=launch.attempt_id, node=launch.node)


def put_back(node: str, message: str, *, remedy: str) -> Failure:
    """Return a failure after which the launch is placed again, without counting as a retry.

    Neither the job nor the node is at fault, and the next attempt avoids the cause.
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
    """Ranks of one node at one moment.

    The pidfds are valid until the next call of the launcher's `observe`.
    """

    ranks: int
    """Number of ranks of the node."""
    pids: Mapping[int, int]
    """Process id by global rank; ranks that have not started are omitted."""
    pidfds: Mapping[int, int]
    """Pidfd of each running rank, by global rank; a pidfd becomes readable when its rank ends."""
    exits: tuple[RankExit, ...]
    """Exits of ranks, ordered by time; an exit that was not observed has no code and no signal."""
    ended: bool = False
    """Whether the launcher itself has ended; no further rank starts afterwards."""
    failure: Failure | None = None
    """Failure of the launcher itself that explains missing ranks; None before `ended`."""

    @property
    def started(self) -> bool:
        """Whether any rank has started."""
        return bool(self.pids)

    @property
    def failed(self) -> bool:
        """Whether a rank ended in any way other than exit code 0."""
        return any(end.exit_code != 0 for end in self.exits)

    @property
    def over(self) -> bool:
        """Whether every rank has ended."""
        return len(self.exits) == self.ranks

    @property
    def settled(self) -> bool:
        """Whether every rank runs or has a recorded exit; then no change is pending."""
        waiting = 0 if self.ended else self.ranks - len(self.pids)
        gone = len(self.pids) - len(self.pidfds) - len(self.exits)
        return waiting == gone == 0


class Launcher(Protocol):
    """Starts, observes and ends the ranks of one share (docs/worker-processes.md has the contract).

    The supervisor calls it from the main thread. `observe` and `stop` also work in a process that
    did not call `start`, such as one that reports for a dead supervisor.
    """

    @property
    def checks_alongside(self) -> bool:
        """Whether `start` also starts the check, so that it runs while the ranks start."""

    def prepare(self) -> Sequence[str] | Failure:
        """Check the launcher's requirements before any process of the share starts.

        Returns:
            The command that checks the input; an empty command if there is no check. If this node
            cannot launch the share, the failure that prevents the launch.
        """

    def start(self, *, check: Sequence[str] = ()) -> int | None:
        """Start the ranks of this node; must be called only once.

        Args:
            check: the command that `prepare` returned, if `checks_alongside`; otherwise the check
                has already run.

        Returns:
            Pid of the check, a child of this process that writes to the log of the node's first
            rank; None without a check.

        Raises:
            OSError: a process cannot be started.
        """

    def observe(self) -> Observation:
        """Return the present state of the ranks; do not wait."""

    def stop(self) -> None:
        """End every process of the share; return when no process is left.

        Raises:
            NotEndedError: this process may not end a process of the share.
        """


LauncherFactory = Callable[[Share], Launcher]
