"""Runs a function on several ranks of one process group, each in its own process.

The processes are forked from a server that has torch and the trainer loaded, so two ranks start in
a quarter of a second where torchrun needs four. The parent hosts the rendezvous store on a port
that the kernel chose, as torchrun's agent does: ports cannot collide and `env://` works as in a
real launch.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

from tests.forkserver import FORKSERVER
from tests.gate.durations import SPENT


class RankError(AssertionError):
    """A rank raised, died or took too long; the text holds its rank and its traceback."""


@dataclass(frozen=True)
class StartedRanks:
    """Running ranks."""

    processes: list[Any]
    """By rank; each has `pid` and `sentinel`."""
    connections: list[Connection]
    """By rank; each can be read when its rank has ended."""
    deadline: float
    """Deadline, by `time.monotonic`."""

    def results(self) -> list[Any]:
        """Wait for all of them and return their results by rank.

        Raises:
            RankError: as soon as one rank fails.
        """
        results: dict[int, Any] = {}
        while len(results) < len(self.processes):
            pending = {c: rank for rank, c in enumerate(self.connections) if rank not in results}
            ready = wait(list(pending), timeout=max(self.deadline - time.monotonic(), 0))
            if not ready:
                raise RankError(f"ranks {sorted(pending.values())} did not answer")
            ended = [_ended(r, self.processes[r], c) for c, r in pending.items() if c in ready]
            if failed := [end for end in ended if end.error is not None]:
                # Later failures are consequences, such as lost connections.
                raise RankError(min(failed, key=lambda end: end.at).error)
            results |= {end.rank: end.result for end in ended}
        return [results[rank] for rank in range(len(self.processes))]


def run_ranks(world_size: int, fn: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """Run `fn(*args)` on each rank and return the results by rank.

    Arguments are those of `started_ranks`.

    Raises:
        RankError: as soon as one rank fails; the others are killed.
    """
    with SPENT.span("ranks"), started_ranks(world_size, fn, *args, **options) as ranks:
        return ranks.results()


@contextmanager
def started_ranks(
    world_size: int,
    fn: Callable[..., Any],
    *args: Any,
    initialize: bool = True,
    env: dict[str, str] | None = None,
    timeout_seconds: float = 90.0,
) -> Iterator[StartedRanks]:
    """Start `fn(*args)` on each rank; ranks that still run at the end of the block are killed.

    `fn` stands at the top of its module; arguments and results can be pickled. It finds `RANK`,
    `LOCAL_RANK`, `WORLD_SIZE` and the rendezvous in the environment, and a gloo process group that
    is ready, unless `initialize` is false: then it makes its own from the environment. Each rank
    computes on one thread.
    """
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store exists: rank 0 hosts none
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        **{name: value for name, value in os.environ.items() if name.startswith("AWS_")},
        **(env or {}),
    }
    task = pickle.dumps((fn, args))  # plain pickle: tensors travel by value, not in shared memory
    started = StartedRanks([], [], deadline=time.monotonic() + timeout_seconds + 5)
    try:
        for rank in range(world_size):
            ours, theirs = FORKSERVER.Pipe()
            process = FORKSERVER.Process(
                target=_run_rank,
                args=(rank, environment, theirs, initialize, timeout_seconds),
                name=f"rank-{rank}",
            )
            process.start()
            theirs.close()
            started.processes.append(process)
            started.connections.append(ours)
            ours.send_bytes(task)
        yield started
    finally:
        for process in started.processes:
            process.kill()
            process.join()
            process.close()
        for connection in started.connections:
            connection.close()


@dataclass(frozen=True)
class _Ended:
    """The end of a rank."""

    rank: int
    result: Any
    error: str | None
    at: float
    """Time, by `time.monotonic`; 0 for a rank that died, which no other end caused."""


def _ended(rank: int, process: Any, connection: Connection) -> _Ended:
    try:
        result, error, at, cpu = connection.recv()
    except (EOFError, ConnectionResetError):
        process.join()
        return _Ended(rank, None, f"rank {rank} died with exit code {process.exitcode}", 0.0)
    SPENT.ranks_cpu += cpu
    return _Ended(rank, result, None if error is None else f"rank {rank} failed:\n{error}", at)


def _run_rank(
    rank: int,
    environment: dict[str, str],
    connection: Connection,
    initialize: bool,
    timeout_seconds: float,
) -> None:
    threading.Thread(target=_die_with_parent, daemon=True).start()
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
    faulthandler.dump_traceback_later(timeout_seconds, exit=True)
    torch.set_num_threads(1)
    answer: tuple[Any, str | None, float, float]
    try:
        fn, args = connection.recv()
        if initialize:
            dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        result = fn(*args)
        if dist.is_initialized():
            dist.barrier()  # no rank closes its connections while another one needs them
            dist.destroy_process_group()
        answer = (result, None, time.monotonic(), time.process_time())
    except BaseException:  # noqa: BLE001 -- whatever it is, the parent reports it
        answer = (None, traceback.format_exc(), time.monotonic(), time.process_time())
    connection.send_bytes(pickle.dumps(answer))
    connection.close()


def _die_with_parent() -> None:
    """Watch the caller's end of a pipe, and exit when the caller is gone.

    `PR_SET_PDEATHSIG` would watch the fork server, which outlives a killed caller while a rank
    holds the pipe that it waits on.
    """
    caller = multiprocessing.parent_process()
    assert caller is not None
    wait([caller.sentinel])
    os._exit(1)
