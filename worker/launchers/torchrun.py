"""Launches the ranks of a node by torchrun, each behind the rank wrapper."""

from __future__ import annotations

import errno
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace

from trainyard.run.failures import Failure, FailureReason
from worker.launchers.base import Observation, Share
from worker.launchers.rank_environment import TRAINER
from worker.launchers.ranks import RankWatch
from worker.node.files import tail
from worker.node.node_store import LaunchRecord
from worker.node.process_tree import WRAPPER

RENDEZVOUS_SECONDS = 300
"""Time within which all nodes of an attempt must have come."""


class TorchrunLauncher:
    """One torchrun for the ranks of a node."""

    def __init__(self, share: Share, *, trainer: Sequence[str] = TRAINER) -> None:
        """Describe the launch; nothing starts.

        Args:
            share: the node's share of the attempt.
            trainer: command of a rank; the run directory is appended.
        """
        self._share = share
        self._trainer = trainer
        self._watch = RankWatch(share.run, share.ranks)
        self._pid: int | None = None

    def prepare(self) -> list[str]:
        """Return the trainer's own check of spec, storage and input."""
        return [*self._trainer, "check", str(self._share.run.root)]

    def start(self) -> None:
        """Start torchrun."""
        self._pid = self._share.processes.spawn(
            torchrun_command(self._share, self._trainer),
            environment=self._share.environment,
            output=self._share.run.launcher_log,
        )

    def observe(self) -> Observation:
        """Return what torchrun's status and the files of the rank wrappers show."""
        # The status first: no rank begins after torchrun has ended, so that a rank without a file
        # has never begun.
        status = None if self._pid is None else self._share.processes.status(self._pid)
        seen = self._watch.look()
        if status is None:
            return seen
        return replace(seen, ended=True, failure=self._failure(status, seen))

    def stop(self) -> None:
        """End torchrun, the ranks and everything that they started."""
        self._share.processes.end()

    def _failure(self, status: int, seen: Observation) -> Failure | None:
        share, launch = self._share, self._share.launch
        name, port_taken = None, False
        if not seen.started:
            message = f"torchrun ended (status {status}) before any rank began"
            # Only the first of several nodes binds the port.
            if share.nodes > 1 and launch.node_rank == 0 and port_is_taken(launch):
                port_taken = True
                message = f"{launch.rendezvous} is taken; the next attempt meets at another port"
        elif status < 0 and not any(end.exit_code or end.signal for end in seen.exits):
            # The ranks end with torchrun, and their wrappers too, which then record no exit.
            name = signal.Signals(-status).name
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
            traceback=tail(share.run.launcher_log) or None,
            free_retry=port_taken,
        )


def torchrun_command(share: Share, trainer: Sequence[str]) -> list[str]:
    """Return the command that runs the ranks of this node, each behind the rank wrapper."""
    run = str(share.run.root)
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nnodes={share.nodes}",
        f"--nproc-per-node={share.local_ranks}",
        *_rendezvous(share),
        "--max-restarts=0",  # retries have one owner, the server
        "--no-python",
        *WRAPPER,
        "rank",
        run,
        "--",
        *trainer,
        run,
    ]


def _rendezvous(share: Share) -> list[str]:
    if share.nodes == 1:  # on a free port of its own: none can be taken
        return ["--standalone", "--local-addr=127.0.0.1"]
    launch = share.launch
    host, _, port = launch.rendezvous.rpartition(":")
    # Static: the group rank is the node rank that was allocated, whichever node comes first.
    return [
        "--rdzv-backend=static",
        f"--rdzv-id={launch.attempt_id}",
        f"--rdzv-conf=timeout={RENDEZVOUS_SECONDS}",
        f"--node-rank={launch.node_rank}",
        f"--master-addr={host}",
        f"--master-port={port}",
    ]


def port_is_taken(launch: LaunchRecord) -> bool:
    """Return whether another process has the port at which the nodes of an attempt meet, here."""
    with socket.socket(socket.AF_INET6) as probe:
        # As torch binds: to all addresses of both kinds, also after an earlier owner has left.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            probe.bind(("::", int(launch.rendezvous.rpartition(":")[2])))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
