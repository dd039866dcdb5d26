"""Launches the ranks of a node with torchrun, each behind the rank wrapper."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from trainyard.base.model_base import RecordModel
from trainyard.run.failures import Failure, FailureReason
from trainyard.run.limits import Number, ShortText
from trainyard.run.records import RankExit
from worker.launchers.base import Observation, Share, put_back
from worker.launchers.rank_environment import TRAINER
from worker.node.files import read_record, tail
from worker.node.node_store import WorkerRun
from worker.node.process_identity import has_ended, open_started_at, status_field
from worker.node.process_tree import WRAPPER
from worker.node.rank_wrapper import signal_name

logger = logging.getLogger(__name__)

RENDEZVOUS_SECONDS = 300
"""Time limit, in seconds, for all nodes of an attempt to join the rendezvous."""
LAUNCH = "TRAINYARD_LAUNCH"
"""Variable with the start method of the ranks, which the trainer stores as provenance."""
WARM, COLD = "warm", "cold"
RECORD_SECONDS = 2.0
"""Time, in seconds, for a rank wrapper to record its rank's exit; an exit without a record by then
counts as unobserved.
"""


class TorchrunLauncher:
    """Launches the ranks of a node with one torchrun."""

    checks_alongside = True
    node_at_fault = True
    """Whether the node counts as the cause if torchrun ends without an order to end."""

    def __init__(self, share: Share, *, trainer: Sequence[str] = TRAINER, why: str = "") -> None:
        """Describe the launch; nothing starts.

        Args:
            share: the node's share of the attempt.
            trainer: command of a rank; the run directory is appended.
            why: reason for not forking the ranks, for their provenance.
        """
        self._share = share
        self._trainer = trainer
        self._watch = RankWatch(share.run, share.ranks)
        self._pid: int | None = None
        self.manner = f"{COLD}: {why}" if why else COLD
        """Start method of the ranks and its reason, for the ranks' provenance."""

    def prepare(self) -> list[str] | Failure:
        """Return the command of the trainer's input check, or a failure if the port is taken."""
        check = [*self._trainer, "check", str(self._share.run.root), "--alongside"]
        return taken_port(self._share) or check

    def start(self, *, check: Sequence[str] = ()) -> int | None:
        """Start the check and torchrun; return the pid of the check."""
        share, checking = self._share, None
        environment = share.environment | {LAUNCH: self.manner}
        if check:
            log = share.run.log(share.ranks[0])
            checking = share.processes.spawn(check, environment=environment, output=log)
        self._pid = self._share.processes.spawn(
            torchrun_command(self._share, [*self._trainer, str(self._share.run.root)]),
            environment=environment,
            output=self._share.run.launcher_log,
            # Slurm sends SIGTERM to every process of a step, then waits for its KillWait. torchrun
            # must ignore this signal, because it would end the ranks before they save on the
            # supervisor's order.
            ignored=[signal.SIGTERM],
        )
        return checking

    def observe(self) -> Observation:
        """Return the ranks' state, from torchrun's exit status and the rank wrappers' files."""
        # Read the status first: after torchrun's end no rank starts, so a rank without a file never
        # started.
        status = None if self._pid is None else self._share.processes.status(self._pid)
        seen = self._watch.poll()
        if status is None:
            return seen
        return replace(seen, ended=True, failure=self._failure(status, seen))

    def stop(self) -> None:
        """End torchrun, the ranks and all their descendants."""
        self._share.processes.end()

    def _failure(self, status: int, seen: Observation) -> Failure | None:
        share, launch = self._share, self._share.launch
        name = None
        if not seen.started:
            if (taken := taken_port(share)) is not None:  # the port was taken since `prepare`
                return replace(taken, traceback=self._output)
            message = f"torchrun ended (status {status}) before any rank began"
        elif status < 0 and not any(end.exit_code or end.signal for end in seen.exits):
            # Ranks and wrappers end with torchrun, so no wrapper records an exit.
            name = signal_name(-status)
            message = (
                f"torchrun itself (pid {self._pid}) was ended by {name}, and its ranks with it"
            )
        else:
            return None
        return Failure(
            reason=FailureReason.LAUNCH_ERROR,
            message=message,
            node=launch.node,
            signal=name,
            traceback=self._output,
            node_at_fault=self.node_at_fault,
        )

    @property
    def _output(self) -> str | None:
        return tail(self._share.run.launcher_log, mask=self._share.mask) or None


def torchrun_command(
    share: Share, command: Sequence[str], *, python: str = sys.executable, folder: str = "-"
) -> list[str]:
    """Return the command that runs the ranks of this node, each behind the rank wrapper.

    Args:
        share: the node's share of the attempt.
        command: command of a rank.
        python: interpreter that runs torchrun.
        folder: working directory of the ranks; `-` for the working directory of torchrun.
    """
    return [
        python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={share.nodes}",
        f"--nproc-per-node={len(share.ranks)}",
        *_rendezvous(share),
        "--max-restarts=0",  # only the server decides on retries
        f"--log-dir={share.run.torchrun}",  # instead of a folder in /tmp that nothing removes
        "--signals-to-handle=SIGINT,SIGHUP,SIGQUIT",  # SIGTERM stays ignored
        "--no-python",
        *WRAPPER,
        *("rank", str(share.run.root), "-", folder, "--"),
        *command,
    ]


def _rendezvous(share: Share) -> list[str]:
    launch = share.launch
    if share.nodes == 1:
        # As `--standalone`, but by number: a system without /etc/hosts resolves no `localhost`.
        return [
            "--rdzv-backend=c10d",
            f"--rdzv-id={launch.attempt_id}",
            "--rdzv-endpoint=127.0.0.1:0",  # torchrun chooses a free port
            "--local-addr=127.0.0.1",
        ]
    host, _, port = launch.rendezvous.rpartition(":")
    # Static rendezvous: the group rank is the allocated node rank, whichever node joins first. The
    # first node adds up the rank counts that all nodes store, which yields the global ranks.
    return [
        "--rdzv-backend=static",
        f"--rdzv-id={launch.attempt_id}",
        f"--rdzv-conf=timeout={RENDEZVOUS_SECONDS}",
        f"--node-rank={launch.node_rank}",
        f"--master-addr={host}",
        f"--master-port={port}",
    ]


def taken_port(share: Share) -> Failure | None:
    """Return the failure of a launch whose rendezvous port another process of this node holds.

    Only the first of several nodes binds the port; on a single node, torchrun chooses a free port.
    """
    launch = share.launch
    if share.nodes == 1 or launch.node_rank != 0:
        return None
    if not _is_taken(int(launch.rendezvous.rpartition(":")[2])):
        return None
    return put_back(
        launch.node,
        f"{launch.rendezvous}, where the nodes of the attempt meet, is taken on {launch.node}",
        remedy="The next attempt uses another port.",
    )


def _is_taken(port: int) -> bool:
    # Bind as torch does: to all addresses, with IPv6 if the host has it, and even if a former owner
    # has just ended.
    dual = socket.has_dualstack_ipv6()
    try:
        with socket.socket(socket.AF_INET6 if dual else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if dual:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind(("", port))
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


class _Start(RecordModel):
    pid: Annotated[int, Field(ge=1, lt=2**31)]
    start_time: Number


class _End(RecordModel):
    exit_code: Number | None
    signal: ShortText | None
    time: float


@dataclass
class _Rank:
    rank: int
    pid: int | None = None
    pidfd: int | None = None
    gone_at: float | None = None  # monotonic time
    exit: RankExit | None = None
    refused: bool = False


class RankWatch:
    """Ranks that the rank wrappers of this node start, with their pidfds and records."""

    def __init__(self, run: WorkerRun, ranks: Iterable[int]) -> None:
        self._folder = run.ranks
        self._owner = run.writer
        self._ranks = [_Rank(rank) for rank in ranks]

    def poll(self) -> Observation:
        """Return the ranks that have started and those that have ended."""
        for rank in self._ranks:
            if rank.pid is None:
                self._begin(rank)
            if rank.pidfd is not None and has_ended(rank.pidfd):
                os.close(rank.pidfd)
                rank.pidfd = None
                rank.gone_at = time.monotonic()
            if rank.gone_at is not None and rank.exit is None:
                self._end(rank, rank.gone_at)
        exits = [rank.exit for rank in self._ranks if rank.exit is not None]
        return Observation(
            ranks=len(self._ranks),
            pids={rank.rank: rank.pid for rank in self._ranks if rank.pid is not None},
            pidfds={rank.rank: rank.pidfd for rank in self._ranks if rank.pidfd is not None},
            exits=tuple(sorted(exits, key=lambda end: end.time)),
        )

    def _begin(self, rank: _Rank) -> None:
        start = read_record(self._folder / f"{rank.rank}.start", _Start, owner=self._owner)
        if start is None or rank.refused:
            return
        pidfd = open_started_at(start.pid, start.start_time)
        # A rank can also write this record. Its process is verified, because the supervisor signals
        # it.
        if pidfd is not None and str(self._owner) not in status_field(start.pid, "Uid").split():
            os.close(pidfd)
            rank.refused = True
            logger.error("rank %d names process %d of another user", rank.rank, start.pid)
            return
        rank.pid, rank.pidfd = start.pid, pidfd
        if pidfd is None:
            rank.gone_at = time.monotonic()

    def _end(self, rank: _Rank, gone_at: float) -> None:
        assert rank.pid is not None
        end = read_record(self._folder / f"{rank.rank}.end", _End, owner=self._owner)
        if end is not None:
            rank.exit = RankExit(rank=rank.rank, pid=rank.pid, **end.model_dump())
        elif time.monotonic() - gone_at > RECORD_SECONDS:
            rank.exit = RankExit(
                rank=rank.rank, pid=rank.pid, exit_code=None, signal=None, time=time.time()
            )
