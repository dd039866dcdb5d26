"""The idle process of a node: it has imported torch, the trainer and what a supervisor needs.

For each launch it forks a supervisor, which forks its own forkserver before it takes the launch,
and is from then on like any other supervisor. So launches may follow each other at once, and no
process of one attempt is the parent of those of another. It ends with its worker.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import logging
import os
import select
import signal
import socket
import struct
import threading
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from trainyard.base.file_limit import raise_file_limit
from worker.launchers.base import Launcher, LauncherFactory, Share
from worker.launchers.program_launcher import launcher_for
from worker.launchers.rank_environment import rank_environment
from worker.launchers.warm.code_digest import digest_of_code
from worker.launchers.warm.fork_client import PRELOADED, Forkserver
from worker.launchers.warm.forkserver import STANDARD, why_unfit
from worker.launchers.warm.warm_launcher import WarmLauncher
from worker.node.node_store import NodeStore, WorkerRun
from worker.node.process_identity import has_ended, open_started_at, own_identity
from worker.node.process_tree import become_subreaper
from worker.supervisor.supervise import run_detached
from worker.warm.hand_over import CHANGED, READY, in_folder, offered, refuse

logger = logging.getLogger(__name__)

BACKLOG = 16
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid; unix(7)
IMPORT_SECONDS = 300.0
"""Longest time of the imports; usually 3 s, and more from a disk over a network. Their end shows
where they hang."""
CACHES = "TORCHINDUCTOR_CACHE_DIR"
"""Variable of a folder that torch makes at its import; by default it lies below `/tmp`, where any
user can put something else in its place. A rank has its own value."""


class UnfitError(Exception):
    """This process must fork nothing that becomes a rank."""


@dataclass(frozen=True)
class IdleSettings:
    """What an idle process gets from its worker, as words of its command line."""

    worker_pid: int
    """The worker, with which it ends."""
    worker_start: int
    """When the worker began, in clock ticks after boot."""
    status: int
    """Descriptor to which `READY` is written when it waits, and `CHANGED` when it ends because the
    code has changed. It is closed at its end."""
    module: str = PRELOADED
    """Module of the ranks."""


def run_idle(store: NodeStore, settings: IdleSettings) -> NoReturn:
    """Wait for launches and fork their supervisors; end this process, and each of those.

    It ends with 3 where imports have left what no rank may have, for the reason that the log has.
    """
    code = 1
    try:
        code = _run(store, settings)
    except Exception:
        logger.exception("the idle process failed")
    finally:
        # Without finalizers, which would write to every page that it shares with others, and
        # without a wait for what threads an import has left.
        os._exit(code)


def _run(store: NodeStore, settings: IdleSettings) -> int:
    """Return the exit code, in each process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where ignored, no child could be waited for
    raise_file_limit()  # its ranks inherit that, as they do from a supervisor that starts torchrun
    worker = open_started_at(settings.worker_pid, settings.worker_start)
    if worker is None:
        return 0
    seen = rank_environment()
    digest = digest_of_code()
    kept = {worker, settings.status}
    try:
        module = import_for_ranks(settings.module, store.data_dir, kept=kept)
    except UnfitError as error:
        logger.error("no idle process: %s", error)
        return 3
    if has_ended(worker):
        return 0  # where another worker serves the node, its idle process may listen already
    connection = _in_supervisor(store, worker, digest=digest, status=settings.status)
    if connection is None:
        return 0
    for descriptor in kept:
        os.close(descriptor)
    with connection:
        code = _supervise(connection, module, seen)
    for thread in threading.enumerate():  # as the interpreter does at its end
        if not (thread.daemon or thread is threading.current_thread()):
            thread.join()
    return code


def import_for_ranks(name: str, caches: Path, *, kept: Set[int] = frozenset()) -> Any:
    """Import a module and what its ranks need, and return it.

    Args:
        name: the module, which has `preload` and `enter`.
        caches: a folder for the caches of compilers, which the imports leave empty.
        kept: descriptors that are open before.

    Raises:
        UnfitError: the imports leave something that must not pass to a rank.
    """
    # numpy's BLAS, which the trainer does not use, would start threads at its import.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ[CACHES] = str(caches)  # which is there: nothing is made
    # An import may hang. A timer of `faulthandler` would be a thread, and may end late.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.setitimer(signal.ITIMER_REAL, IMPORT_SECONDS)
    module = importlib.import_module(name)
    module.preload()
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.unregister(signal.SIGALRM)
    if why := why_unfit() or _further_descriptors(kept):
        raise UnfitError(why)
    return module


def _further_descriptors(kept: Set[int]) -> str | None:
    """Return which descriptors an import has left open; its code could use them in a rank."""
    known = {*STANDARD, *kept}
    left = [path for path in Path("/proc/self/fd").iterdir() if int(path.name) not in known]
    named = [str(path.readlink()) for path in left if path.is_symlink()]  # not that of the listing
    return f"imports left {', '.join(named)} open" if named else None


def _supervise(connection: socket.socket, module: Any, seen: Mapping[str, str]) -> int:
    """Be the supervisor of the launch of a connection, to its end; return the exit code."""
    become_subreaper()
    try:
        server = Forkserver.start(module, seen)  # before the launch: it holds nothing of it
    except OSError as error:
        refuse(connection, f"no forkserver can be forked: {error.strerror}")
        return 3
    own = own_identity()
    given = offered(connection, identity={"pid": own.pid, "start_time": own.start_time})
    if given is None:
        server.end()
        return 0
    os.environ.clear()
    os.environ.update(given.environment)
    try:
        os.chdir(given.folder)
        _redirect_output(given.folder)
    except OSError:  # as on a full disk: the launch is taken, and no other process reports it
        logger.exception("the log of the supervisor cannot be written")
    run_detached(given.folder, given.lock, _launcher_with(server))
    return 0


def _launcher_with(server: Forkserver) -> LauncherFactory:
    def launcher(share: Share) -> Launcher:
        if share.runs_program:
            server.end()
            return launcher_for(share)
        return WarmLauncher(share, server)

    return launcher


def _in_supervisor(
    store: NodeStore, worker: int, *, digest: str, status: int
) -> socket.socket | None:
    """Serve launches; return in each supervisor its connection, and None at the end of this."""
    with _listening(store) as listener:
        logger.info("ready for launches")
        os.write(status, READY)
        while _await(listener.fileno(), worker):
            connection, _ = listener.accept()
            if not _is_own(connection):
                connection.close()
                continue
            if digest_of_code() != digest:
                with contextlib.suppress(OSError):  # the worker may have ended
                    os.write(status, CHANGED)
                with connection:
                    refuse(connection, "the code on the disk has changed since")
                return None
            try:
                if _fork_detached():
                    return connection
            except OSError as error:
                logger.warning("no supervisor can be forked: %s", error)
                refuse(connection, f"no supervisor can be forked: {error.strerror}")
            connection.close()
    return None


def _fork_detached() -> bool:
    """Fork a process that is no child of this one; return whether this is that process.

    It is a child of the machine's first process, which reaps it.

    Raises:
        OSError: the system refuses.
    """
    child = os.fork()
    if child == 0:
        try:
            if os.fork():
                os._exit(0)
        except OSError as error:
            os._exit(error.errno or 1)
        os.setsid()  # a signal to the worker's process group must not reach training
        return True
    _, status = os.waitpid(child, 0)
    # One that was killed may have forked before: that process answers the launch, or no process
    # does. A refusal as well could be taken for its acceptance.
    if (code := os.waitstatus_to_exitcode(status)) > 0:
        raise OSError(code, os.strerror(code))
    return False


def _await(descriptor: int, *enders: int) -> bool:
    """Wait until a descriptor is readable; return False where one of the others is instead."""
    poll = select.poll()
    for each in (descriptor, *enders):
        poll.register(each, select.POLLIN)
    ready = {each for each, _ in poll.poll()}
    return ready == {descriptor}


@contextlib.contextmanager
def _listening(store: NodeStore) -> Iterator[socket.socket]:
    """Listen on the node's socket, in place of a former idle process's.

    Its file stays: the next idle process may have put its own there meanwhile. A launch that
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
