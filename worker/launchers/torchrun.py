"""The command line and the environment of one node's torchrun."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard.protocol.attempt import AttemptSpec
from trainyard.spec.environment import environment_problems
from trainyard.spec.job import JobSpec
from worker.node.files import open_regular
from worker.node.interface import interface_environment
from worker.node.node_store import LaunchRecord, WorkerRun
from worker.node.process_tree import GUARD, MARKER, NODE_MARKER
from worker.node.users import RankUser, user_environment

TRAINER = (sys.executable, "-m", "trainer")
RENDEZVOUS_SECONDS = 300
"""Time within which all nodes of an attempt must have come."""
REACH_SECONDS = 60.0
REACH = """
import importlib.util, os, sys
for name in ("trainer", "torch"):
    if importlib.util.find_spec(name) is None:
        raise ModuleNotFoundError(f"no package {name}")
os.stat(sys.argv[1])
for folder in sys.argv[2:]:
    os.listdir(folder)
"""
"""What a rank's user must be able to do; looking for a package reads none of it."""
HIDDEN_PREFIXES = ("TRAINYARD_", "CELERY_", "C_FORCE_ROOT")
HIDDEN_NAMES = frozenset({"REDIS_URL", "_MP_FORK_LOGLEVEL_"})


@dataclass(frozen=True)
class Share:
    """The ranks of an attempt that run on one node."""

    nodes: int
    """Nodes of the attempt."""
    node_rank: int
    """Position of this one."""
    local_ranks: int
    """Ranks on each node."""

    @classmethod
    def of(cls, attempt: AttemptSpec, launch: LaunchRecord) -> Share:
        """Return the share of the node that the launch record names.

        Raises:
            ValueError: the nodes hold different numbers of slots, or fewer than there are ranks.
        """
        counts = {len(node.slots) for node in attempt.allocation}
        nodes = len(attempt.allocation)
        if len(counts) != 1 or nodes * max(counts) != attempt.layout.world_size:
            raise ValueError(
                f"world_size={attempt.layout.world_size} needs as many slots on each node, "
                f"but the allocation has {[len(node.slots) for node in attempt.allocation]}"
            )
        return cls(nodes, launch.node_rank, counts.pop())

    @property
    def ranks(self) -> range:
        """Global ranks of this node."""
        first = self.node_rank * self.local_ranks
        return range(first, first + self.local_ranks)


def torchrun_command(
    run: WorkerRun, launch: LaunchRecord, share: Share, trainer: Sequence[str]
) -> list[str]:
    """Return the command that runs the ranks of this node, each behind a guard."""
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nnodes={share.nodes}",
        f"--nproc-per-node={share.local_ranks}",
        *_rendezvous(launch, share),
        "--max-restarts=0",  # retries have one owner, the server
        "--no-python",
        *GUARD,
        "rank",
        str(run.root),
        "--",
        *trainer,
        str(run.root),
    ]


def _rendezvous(launch: LaunchRecord, share: Share) -> list[str]:
    if share.nodes == 1:  # on a free port of its own: none can be taken
        return ["--standalone", "--local-addr=127.0.0.1"]
    host, _, port = launch.rendezvous.rpartition(":")
    # Static: the group rank is the node rank that was allocated, whoever comes first.
    return [
        "--rdzv-backend=static",
        f"--rdzv-id={launch.attempt_id}",
        f"--rdzv-conf=timeout={RENDEZVOUS_SECONDS}",
        f"--node-rank={share.node_rank}",
        f"--master-addr={host}",
        f"--master-port={port}",
    ]


def rank_environment(
    spec: JobSpec,
    launch: LaunchRecord,
    *,
    home: Path | None = None,
    inherited: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Return the environment of torchrun and its ranks.

    The job's own variables prevail over those of the node, and the launcher's over both; only the
    number of threads anybody may choose. What belongs to the worker, such as the broker's password,
    is not passed on. Where an attempt has several nodes, the interface towards them is named,
    unless node or job name another.
    """
    node = {name: value for name, value in inherited.items() if not hidden_from_ranks(name)}
    chosen = spec.env.get("OMP_NUM_THREADS") or node.get("OMP_NUM_THREADS")
    threads = {"OMP_NUM_THREADS": chosen} if chosen else {}
    return {
        **interface_environment(launch.others, node | spec.env),
        **node,
        "PYTHONUNBUFFERED": "1",  # a line reaches the log when it is printed, not when rank ends
        **spec.env,
        **launch.environment,  # the GPUs of its slots above all: no job sees those of another
        **threads,
        **(user_environment(launch.attempt_id, home) if launch.user and home else {}),
        MARKER: launch.attempt_id,
        NODE_MARKER: launch.node,
    }


def code_of(spec: JobSpec) -> str | None:
    """Return what of a spec runs code of the job, or could, as the reason for a refusal."""
    problems = environment_problems(spec.env)
    refused = [p.pointer[1:].replace("/", ".") for p in problems]
    if spec.model.factory is not None:
        refused.append(f"model.factory={spec.model.factory!r}")
    if not refused:
        return None
    message = (
        "this node runs no code that a job brings; TRAINYARD_ALLOW_CODE=true for its worker "
        f"allows it. Refused: {', '.join(refused)}"
    )
    # All names before the reasons: the reasons are long, and a message is cut.
    return "; ".join((message, *(p.detail for p in problems)))


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


def check_reach(user: RankUser, *, run_directories: Path, folders: Iterable[Path]) -> None:
    """Start the interpreter as a user of ranks, and have it look for all that ranks need.

    Raises:
        ValueError: the user cannot start it, or cannot read a package or a folder.
    """
    command = [sys.executable, "-c", REACH, str(run_directories), *map(str, folders)]
    done = subprocess.run(
        [*GUARD, "tie", str(os.getpid()), user.word, "--", *command],
        env={name: value for name, value in os.environ.items() if not hidden_from_ranks(name)},
        cwd=run_directories,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=REACH_SECONDS,
        check=False,
    )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ValueError(
            f"TRAINYARD_RUN_AS: user {user.uid} cannot use {sys.executable}: {why}. Its users need "
            "to read the interpreter, the packages and the storage roots, and to pass through all "
            "folders above these and above the data folder (chmod o+x)"
        )


def hidden_from_ranks(name: str) -> bool:
    """Return whether a variable is the worker's own business."""
    return name.startswith(HIDDEN_PREFIXES) or name in HIDDEN_NAMES


def tail(path: Path, *, limit: int = 2000) -> str:
    """Return the last characters of a file, for a message."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
            return file.read().decode("utf-8", errors="replace").strip()
    except OSError:
        return ""
