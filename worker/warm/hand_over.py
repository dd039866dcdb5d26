"""Hands a claimed launch to a supervisor that the node's idle process forks.

The launching process connects to the idle process' socket. The idle process forks a supervisor,
which offers itself or refuses. The launching process then sends the run directory, the supervisor's
variables and the descriptor of the attempt's lock, and the supervisor accepts. Before this message
the supervisor touches nothing of the attempt; afterwards it holds the lock. If one side ends in
between, the lock is free or held by the other side. A supervisor that never wrote its identity has
launched nothing. If no supervisor accepts, the launching process starts one itself.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.launchers.rank_environment import inherited_environment
from worker.node.node_store import AttemptLock, NodeStore, WorkerRun
from worker.node.process_identity import open_started_at

logger = logging.getLogger(__name__)

SOCKET = "idle.sock"
"""Name of the socket in the data folder."""
READY, CHANGED = b"r", b"c"
"""Messages of an idle process to its worker: it is ready, or it ends because the code changed."""
MESSAGE_BYTES = 1024 * 1024
OFFER_SECONDS = 2.0
"""Time limit for an offer, in seconds; code digests and two forks take about 50 ms."""
ACCEPT_SECONDS = 5.0
END_SECONDS = 10.0
"""Time limit for a killed supervisor to end, in seconds; the kernel may still write its data to a
disk.
"""


@dataclass(frozen=True)
class GivenLaunch:
    """The data that a supervisor receives when it takes a launch."""

    folder: Path
    """Run directory of the attempt."""
    lock: int
    """Descriptor of the attempt's lock."""
    environment: dict[str, str]
    """Variables for a supervisor, from the worker."""


def hand_over(store: NodeStore, run: WorkerRun, lock: AttemptLock) -> str | None:
    """Hand a launch to a supervisor; return None, or why no supervisor accepted.

    The caller keeps the lock; a supervisor that accepted the launch holds the lock too.

    Raises:
        TimeoutError: a supervisor that may have accepted the launch does not end.
    """
    offer: dict[str, Any] | None = None
    try:
        with connected(store) as connection:
            answer = _receive(connection, OFFER_SECONDS)
            if (why := answer.get("refusal")) is not None:
                return str(why)
            offer = answer
            words = {"run": str(run.root), "environment": inherited_environment()}
            _send(connection, words, descriptor=lock.fd)
            _receive(connection, ACCEPT_SECONDS)
            return None
    except (OSError, ValueError, EOFError) as error:
        logger.debug("%r", error)
    if offer is None:
        return "no idle process is ready"
    _end(offer)
    return "the supervisor did not take the launch"


def offered(connection: socket.socket, *, identity: Mapping[str, int]) -> GivenLaunch | None:
    """Offer this process as supervisor of a launch; return the launch's data, or None."""
    try:
        _send(connection, identity)
        given = _receive_with_lock(connection)
        if given is None:
            return None
    except (OSError, ValueError) as error:
        logger.warning("a launch left: %r", error)
        return None
    # The launch counts as accepted even if this message fails. A launching process that has ended
    # starts no other supervisor, and one that misses this message ends this supervisor.
    with contextlib.suppress(OSError):
        _send(connection, {"taken": True})
    return given


def refuse(connection: socket.socket, why: str) -> None:
    """Refuse the launch on a connection."""
    with contextlib.suppress(OSError):
        _send(connection, {"refusal": why})


@contextlib.contextmanager
def in_folder(store: NodeStore) -> Iterator[str]:
    """Yield a short path to the socket, because the length of a socket's address is limited."""
    folder = os.open(store.data_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)


@contextlib.contextmanager
def connected(store: NodeStore) -> Iterator[socket.socket]:
    """Connect to the idle process of the node.

    Raises:
        OSError: no process listens; the socket of an earlier process may still exist.
    """
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
        in_folder(store) as path,
    ):
        connection.settimeout(OFFER_SECONDS)
        connection.connect(path)
        yield connection


def _send(
    connection: socket.socket, fields: Mapping[str, object], *, descriptor: int | None = None
) -> None:
    rights = [] if descriptor is None else [descriptor]
    socket.send_fds(connection, [json.dumps(fields).encode()], rights)


def _receive(connection: socket.socket, seconds: float) -> dict[str, Any]:
    connection.settimeout(seconds)
    message = connection.recv(MESSAGE_BYTES)
    if not message:
        raise EOFError
    fields: dict[str, Any] = json.loads(message)
    return fields


def _receive_with_lock(connection: socket.socket) -> GivenLaunch | None:
    connection.settimeout(ACCEPT_SECONDS)
    message, descriptors, _, _ = socket.recv_fds(
        connection, MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC
    )
    if not message:
        return None
    (lock,) = descriptors
    fields = json.loads(message)
    return GivenLaunch(Path(fields["run"]), lock, fields["environment"])


def _end(offer: Mapping[str, Any]) -> None:
    """End a supervisor that may still accept the launch; return once it has ended.

    Raises:
        TimeoutError: the supervisor does not end within the time limit.
    """
    pidfd = open_started_at(int(offer["pid"]), int(offer["start_time"]))
    if pidfd is None:
        return
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if not poll.poll(END_SECONDS * 1000):
            raise TimeoutError(
                f"supervisor {offer['pid']} does not end, and may have taken the launch"
            )
    finally:
        os.close(pidfd)
