"""Gives a claimed launch to a supervisor that the idle process of the node forks.

The launch connects to the idle process's socket, which forks a supervisor. That one offers itself,
or the launch is refused; the launch answers with the run directory, the variables of a supervisor
and the descriptor of the attempt's lock; the supervisor accepts. It touches nothing of the attempt
before the answer, and holds the lock from then on. Whichever side
ends in between, the lock is free or held by the other, and what never wrote its identity launched
nothing: a launch that is not accepted starts a supervisor of its own.
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
"""What an idle process writes to its worker: that it waits, and that it ends for changed code."""
MESSAGE_BYTES = 1024 * 1024
OFFER_SECONDS = 2.0
"""Time for an offer: digests of the code are compared, and two processes forked, in some 50 ms."""
ACCEPT_SECONDS = 5.0
END_SECONDS = 10.0
"""Time for a supervisor that is killed to end: the kernel may be writing to a disk for it."""


@dataclass(frozen=True)
class GivenLaunch:
    """What a supervisor receives of a launch."""

    folder: Path
    """The run directory."""
    lock: int
    """A descriptor of the attempt's lock."""
    environment: dict[str, str]
    """The variables of a supervisor of the worker."""


def hand_over(store: NodeStore, run: WorkerRun, lock: AttemptLock) -> str | None:
    """Give a launch to a supervisor; return why none has taken it, and None if one has.

    The caller holds the lock on: a supervisor that has taken the launch has it too.

    Raises:
        TimeoutError: one that may have taken the launch does not end.
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
    """Offer a launch the process that calls this; return what the launch gives, else None."""
    try:
        _send(connection, identity)
        given = _receive_with_lock(connection)
        if given is None:
            return None
    except (OSError, ValueError) as error:
        logger.warning("a launch left: %r", error)
        return None
    # Taken in any case: a launch that has ended meanwhile starts no supervisor any more, and one
    # that does not receive the word ends this process.
    with contextlib.suppress(OSError):
        _send(connection, {"taken": True})
    return given


def refuse(connection: socket.socket, why: str) -> None:
    """Refuse the launch of a connection."""
    with contextlib.suppress(OSError):
        _send(connection, {"refusal": why})


@contextlib.contextmanager
def in_folder(store: NodeStore) -> Iterator[str]:
    """Yield a path of the socket that is short enough for an address, however deep the folder."""
    folder = os.open(store.data_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)


@contextlib.contextmanager
def connected(store: NodeStore) -> Iterator[socket.socket]:
    """Connect to the idle process of the node.

    Raises:
        OSError: none listens; the socket of a former one may be there all the same.
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
    """End a supervisor that may still take the launch, and return when it has ended.

    Raises:
        TimeoutError: it does not end in time.
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
