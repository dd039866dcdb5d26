"""The idle supervisor of a node: it has imported what a supervisor needs, and owns a forkserver.

It waits for one launch, ends when its worker has ended or its forkserver does, and is from the
launch on the supervisor of that attempt like any other one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainyard.base.file_limit import raise_file_limit
from worker.launchers.base import Launcher, LauncherFactory, Share
from worker.launchers.program_launcher import launcher_for
from worker.launchers.warm.code_digest import digest_of_code
from worker.launchers.warm.fork_client import PRELOADED, Forkserver, ForkserverError
from worker.launchers.warm.warm_launcher import WarmLauncher
from worker.node.node_store import NodeStore, WorkerRun
from worker.node.process_identity import has_ended, open_started_at, own_identity
from worker.node.process_tree import become_subreaper
from worker.supervisor.supervise import run_detached
from worker.warm.hand_over import READY, USED, in_folder, offered, refuse

logger = logging.getLogger(__name__)

BACKLOG = 4
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid; unix(7)


@dataclass(frozen=True)
class IdleSettings:
    """What an idle supervisor gets from its worker, as words of its command line."""

    node: str
    """Name of the node."""
    worker_pid: int
    """The worker, with which it ends."""
    worker_start: int
    """When the worker began, in clock ticks after boot."""
    threads: int
    """Threads of a rank."""
    status: int
    """Descriptor to which `READY` is written when it waits, and `USED` when it ends as it should:
    with a launch, or because the code has changed. It is closed then."""
    module: str = PRELOADED
    """Module of the ranks."""


def run_idle(store: NodeStore, settings: IdleSettings) -> int:
    """Wait for a launch and supervise it; return the exit code.

    Returns 3 where this node cannot have a forkserver now, for the reason that the log has.
    """
    become_subreaper()
    raise_file_limit()  # its ranks inherit that, as they do from a supervisor that starts torchrun
    worker = open_started_at(settings.worker_pid, settings.worker_start)
    if worker is None:
        return 0
    try:
        digest = digest_of_code()
        server = Forkserver.start(
            node=settings.node,
            log=store.idle_log,
            threads=settings.threads,
            module=settings.module,
        )
        if not _await(server.fileno(), worker):
            return 0
        server.await_ready()
        launch = _next_launch(store, server, worker, digest=digest, status=settings.status)
    except (ForkserverError, OSError) as error:
        logger.error("no idle supervisor: %s", error)
        return 3
    if launch is None:
        server.end()
        return 0
    for descriptor in (worker, settings.status):
        os.close(descriptor)
    folder, lock = launch
    try:
        _redirect_output(folder)
        os.chdir(folder)
    except OSError:  # as on a full disk: the launch is taken, and no other process reports it
        logger.exception("the log of the supervisor cannot be written")
    run_detached(folder, lock, _launcher_with(server))
    return 0


def _launcher_with(server: Forkserver) -> LauncherFactory:
    def launcher(share: Share) -> Launcher:
        if share.runs_program:
            server.end()
            return launcher_for(share)
        return WarmLauncher(share, server)

    return launcher


def _next_launch(
    store: NodeStore, server: Forkserver, worker: int, *, digest: str, status: int
) -> tuple[Path, int] | None:
    """Return run directory and lock of the launch that this process takes; None for none."""
    with _listening(store) as listener:
        logger.info("ready for a launch")
        os.write(status, READY)
        while _await(listener.fileno(), worker, server.fileno()):
            connection, _ = listener.accept()
            with connection:
                if not _is_own(connection):
                    continue
                if digest_of_code() != digest:
                    _used(status)
                    refuse(connection, "the code on the disk has changed since")
                    return None
                if has_ended(server.pidfd):
                    refuse(connection, "the forkserver has ended")
                    return None
                own = own_identity()
                found = offered(connection, identity={"pid": own.pid, "start_time": own.start_time})
                if found is not None:
                    _used(status)
                    return found
    return None


def _used(status: int) -> None:
    with contextlib.suppress(OSError):  # the worker may have ended
        os.write(status, USED)


def _await(descriptor: int, *enders: int) -> bool:
    """Wait until a descriptor is readable; return False where one of the others is instead."""
    poll = select.poll()
    for each in (descriptor, *enders):
        poll.register(each, select.POLLIN)
    ready = {each for each, _ in poll.poll()}
    return ready == {descriptor}


@contextlib.contextmanager
def _listening(store: NodeStore) -> Iterator[socket.socket]:
    """Listen on the node's socket, in place of a former idle supervisor's.

    Its file stays: the next idle supervisor may have put its own there meanwhile. A launch that
    connects to a socket whose process has ended is refused by the kernel.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        with in_folder(store) as path:
            Path(path).unlink(missing_ok=True)
            former = os.umask(0o177)
            try:
                listener.bind(path)
            finally:
                os.umask(former)
        listener.listen(BACKLOG)
        yield listener


def _is_own(connection: socket.socket) -> bool:
    """Return whether the other side is a process of this user, as the worker is."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return bool(CREDENTIALS.unpack(found)[1] == os.geteuid())


def _redirect_output(folder: Path) -> None:
    """Continue in the log of the supervisor of a run directory."""
    log = os.open(
        WorkerRun(folder).supervisor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    )
    for output in (1, 2):
        os.dup2(log, output)
    os.close(log)
