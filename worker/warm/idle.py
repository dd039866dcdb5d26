"""The node's idle process, with torch, the trainer and a supervisor's modules imported.

For each launch it forks a supervisor. The supervisor forks its own forkserver, then takes the
launch, and afterwards works like any other supervisor. So launches can follow each other
immediately, and no process of one attempt is the parent of another attempt's processes. The idle
process ends with its worker.
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
"""Time limit for the imports, in seconds. They usually take 3 s, and longer from a network disk. At
the limit, printed stacks show where the imports hang.
"""
CACHES = "TORCHINDUCTOR_CACHE_DIR"
"""Variable with a folder that torch creates when it is imported. By default the folder is below
`/tmp`, where any user can put another entry in its place. Each rank has its own value.
"""


class UnfitError(Exception):
    """This process must not fork ranks."""


@dataclass(frozen=True)
class IdleSettings:
    """Settings that a worker passes to its idle process on the command line."""

    worker_pid: int
    """Pid of the worker; the idle process ends with the worker."""
    worker_start: int
    """Start time of the worker, in clock ticks after boot."""
    status: int
    """Descriptor for messages to the worker: `READY` when this process waits, `CHANGED` when it
    ends because the code has changed. It is closed at the end of this process.
    """
    module: str = PRELOADED
    """Module that the ranks run."""


def run_idle(store: NodeStore, settings: IdleSettings) -> NoReturn:
    """Wait for launches, and fork a supervisor for each launch; never return.

    The idle process and each supervisor exit inside this call. The idle process exits with status 3
    if the imports left state that ranks must not inherit. The log has the reason.
    """
    code = 1
    try:
        code = _run(store, settings)
    except Exception:
        logger.exception("the idle process failed")
    finally:
        # No finalizers run, because they would write to every page shared with other processes.
        # Threads that an import left are not awaited.
        os._exit(code)


def _run(store: NodeStore, settings: IdleSettings) -> int:
    """Run the idle process; return the exit code, here and in each supervisor."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, no child could be awaited
    raise_file_limit()  # ranks inherit it, as from a supervisor with torchrun
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
        return 0  # another worker may serve the node, with its own idle process
    connection = _in_supervisor(store, worker, digest=digest, status=settings.status)
    if connection is None:
        return 0
    for descriptor in kept:
        os.close(descriptor)
    with connection:
        code = _supervise(connection, module, seen)
    for thread in threading.enumerate():  # as an interpreter does at its exit
        if not (thread.daemon or thread is threading.current_thread()):
            thread.join()
    return code


def import_for_ranks(name: str, caches: Path, *, kept: Set[int] = frozenset()) -> Any:
    """Import a module and the dependencies of its ranks; return the module.

    Args:
        name: name of the module, which defines `preload` and `enter`.
        caches: folder for the caches of compilers; the imports write nothing to it.
        kept: descriptors that were open before the imports.

    Raises:
        UnfitError: the imports left state that a rank must not inherit.
    """
    # numpy's BLAS, which the trainer does not use, would start threads on import.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ[CACHES] = str(caches)  # the folder exists, so torch creates none
    # The alarm ends a hanging import. A timer of `faulthandler` would be a thread and could end too
    # late.
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
    """Return an error that lists the descriptors left open by imports; a rank could use them."""
    known = {*STANDARD, *kept}
    left = [path for path in Path("/proc/self/fd").iterdir() if int(path.name) not in known]
    named = [str(path.readlink()) for path in left if path.is_symlink()]  # not the listing's own
    return f"imports left {', '.join(named)} open" if named else None


def _supervise(connection: socket.socket, module: Any, seen: Mapping[str, str]) -> int:
    """Supervise the launch on a connection to its end; return the exit code."""
    become_subreaper()
    try:
        server = Forkserver.start(module, seen)  # before the launch, so it holds no launch data
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
    except OSError:  # for example a full disk: only this process can report the launch
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
    """Serve launches; return the connection in each supervisor, and None at this process' end."""
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
    """Fork a process that is no child of this one; return True in the new process.

    The new process is a child of the machine's first process, which reaps it.

    Raises:
        OSError: the process cannot be forked.
    """
    child = os.fork()
    if child == 0:
        try:
            if os.fork():
                os._exit(0)
        except OSError as error:
            os._exit(error.errno or 1)
        os.setsid()  # training must not get signals to the worker's process group
        return True
    _, status = os.waitpid(child, 0)
    # A killed intermediate process may already have forked. The new process then responds to the
    # launch, or no process does. A second refusal could be mistaken for the new process'
    # acceptance.
    if (code := os.waitstatus_to_exitcode(status)) > 0:
        raise OSError(code, os.strerror(code))
    return False


def _await(descriptor: int, *enders: int) -> bool:
    """Wait until `descriptor` or one of `enders` is readable; return False if one of `enders`
    is."""
    poll = select.poll()
    for each in (descriptor, *enders):
        poll.register(each, select.POLLIN)
    ready = {each for each, _ in poll.poll()}
    return ready == {descriptor}


@contextlib.contextmanager
def _listening(store: NodeStore) -> Iterator[socket.socket]:
    """Listen on the node's socket; replace the socket of an earlier idle process.

    The end of the process does not remove the socket file, because the next idle process may have
    replaced it. The kernel refuses connections to the socket of a dead process.
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
    """Return whether the peer has this process' user id, which is also the worker's."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return bool(CREDENTIALS.unpack(found)[1] == os.geteuid())


def _redirect_output(folder: Path) -> None:
    """Redirect this process' output to the supervisor's log in a run directory."""
    log = os.open(
        WorkerRun(folder).supervisor_log,
        os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC,
    )
    for output in (1, 2):
        os.dup2(log, output)
    os.close(log)
