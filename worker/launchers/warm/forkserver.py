"""This process has imported torch; it forks the ranks of one launch, then ends.

A supervisor forks this process before it takes a launch. This process then waits for one request.
Each process that it forks closes all inherited descriptors and becomes the ranks' user. The forked
process waits at a gate until the forkserver has ended and the supervisor is its parent. Then it
calls the module's `enter()` with the request's arguments in `sys.argv`; for a rank, the code of the
rank wrapper does this.

This process holds no secret: it starts before the launch is known, and without the worker's own
variables.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self

from worker.node.rank_wrapper import (
    CANNOT_START,
    LAUNCHER_PID,
    become,
    die_with,
    drop_capabilities,
    run_rank,
)

PR_SET_DUMPABLE = 4  # linux/prctl.h
MESSAGE_BYTES = 1024 * 1024
"""Maximum size of a message in bytes; it holds a launch's variables, a few KiB per rank."""
STANDARD = range(3)
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that a new Python interpreter ignores."""
LISTENER, ADDRESS, PORT = "TRAINYARD_STORE_FD", "MASTER_ADDR", "MASTER_PORT"
"""Variables for the ranks' rendezvous; the trainer reads them."""
LOOPBACK = "127.0.0.1"
GPU_FILES = ("/dev/nvidia", "libcuda.so")
"""Names that appear in a process' memory map after a GPU library is initialised."""
ORPHAN_SECONDS = 10.0


@dataclass(frozen=True)
class ForkedProcess:
    """Description of one process to fork."""

    words: list[str]
    """Arguments of the command line."""
    log: str
    """File for stdout and stderr of the process or, for a rank, of its wrapper."""
    rank: int | None = None
    """Global rank; None for a process without a wrapper."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables of this process besides the common ones."""


@dataclass(frozen=True)
class ForkedLaunch:
    """Description of all processes of one launch."""

    run: str
    """Run directory."""
    supervisor: int
    """Pid of the processes' new parent; they end when it ends."""
    processes: list[ForkedProcess]
    environment: dict[str, str]
    """All variables that the processes share; they inherit no variable of the forkserver."""
    marks: dict[str, str]
    """Variables to overwrite in `/proc/<pid>/environ`; each new value is as long as the old one."""
    user: str | None = None
    """User of the processes as `uid:gid:umask:gid...`; by default, the forkserver's own user."""
    cgroup: str | None = None
    """Cgroup that the processes join; None without cgroups."""

    def to_json(self) -> bytes:
        """Return the request as a message."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of_json(cls, message: bytes) -> Self:
        """Return the request in a message."""
        fields: dict[str, Any] = json.loads(message)
        fields["processes"] = [ForkedProcess(**one) for one in fields["processes"]]
        return cls(**fields)


def run_forkserver(control: socket.socket, module: Any, *, supervisor: int) -> NoReturn:
    """Run a supervisor's forkserver in a child process, which ends with the supervisor.

    Args:
        control: socket for requests and responses.
        module: module whose entry function the processes run; already imported.
        supervisor: pid of the parent.
    """
    try:
        _close_all_but({*STANDARD, control.fileno()})
        os.setsid()
        die_with(supervisor)
        _be_as_new()
        _fork_once(control, module)
        os._exit(0)  # without finalizers, because these belong to the children
    except BaseException:  # noqa: BLE001 (a child never returns into the supervisor)
        traceback.print_exc()
    finally:
        os._exit(CANNOT_START)


def _be_as_new() -> None:
    """Undo the settings that this process inherited or that its interpreter made."""
    # Signals ignored by a new interpreter stay ignored.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, *IGNORED}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)


def _fork_once(control: socket.socket, module: Any) -> None:
    """Wait for a request and fork its processes."""
    message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 1)
    if not message:
        return  # the supervisor has ended, or needs no fork
    request, (gate,) = ForkedLaunch.of_json(message), descriptors
    if why := why_unfit():  # a GPU may have been opened meanwhile; a fork would lose threads
        _answer(control, error=why)
        return
    pids = fork_all(request, module, gate=gate)
    _answer(control, pids=pids)


def _answer(control: socket.socket, **fields: object) -> None:
    control.send(json.dumps(fields).encode())


def why_unfit() -> str | None:
    """Return why this process must not fork ranks (threads or GPU state), or None.

    A fork copies only the calling thread, but keeps locks in the state in which the other threads
    left them. A child cannot use a CUDA context of its parent.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    threads = int(status.partition("\nThreads:")[2].split()[0])
    if threads != 1:
        return f"the forkserver has {threads} threads"
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    if found := [name for name in GPU_FILES if name in maps]:
        return f"the forkserver has {found[0]} in its memory map"
    return None


def fork_all(request: ForkedLaunch, module: Any, *, gate: int) -> list[int]:
    """Fork the processes of a request; return their pids, in the order of the request."""
    meeting: dict[str, str] = {}
    forkserver = os.getpid()  # read now: a child may start late, below the supervisor
    with socket.socket() as listener:
        # Bind the port here, so that no other process can take it before rank 0 serves the store.
        listener.bind((LOOPBACK, 0))
        listener.listen(socket.SOMAXCONN)
        meeting = {
            ADDRESS: LOOPBACK,
            PORT: str(listener.getsockname()[1]),
            LISTENER: str(listener.fileno()),
        }
        pids = []
        for process in request.processes:
            pid = os.fork()
            if pid == 0:
                own = {gate} | ({listener.fileno()} if process.rank == 0 else set())
                _become(
                    request,
                    process,
                    module,
                    forkserver=forkserver,
                    gate=gate,
                    own=own,
                    meeting=meeting,
                )
            pids.append(pid)
    return pids


def _become(
    request: ForkedLaunch,
    process: ForkedProcess,
    module: Any,
    *,
    forkserver: int,
    gate: int,
    own: set[int],
    meeting: dict[str, str],
) -> NoReturn:
    """Turn this process into a process of the request.

    The order is that of `rank_wrapper.tie`: join the cgroup as the worker's user, become the ranks'
    user for good, and only then set the job's variables.
    """
    try:
        _close_all_but({*STANDARD, *own})
        os.setsid()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        log = os.open(process.log, flags, 0o644)
        for output in (1, 2):
            os.dup2(log, output)
        os.close(log)
        if request.cgroup is not None:
            Path(request.cgroup, "cgroup.procs").write_text("0", encoding="ascii")
        _take_user(request.user)
        os.chdir(request.run)  # the run directory is newer than this process
        for name, value in request.marks.items():
            _show(name, value)
        os.environ.clear()
        os.environ.update(request.environment | process.environment)
        if process.rank is not None:
            os.environ.update(meeting)
        os.environ[LAUNCHER_PID] = str(request.supervisor)
        if os.read(gate, 1) == b"":
            os._exit(CANNOT_START)  # the supervisor has ended, or launches differently
        os.close(gate)
        _await_parent(request.supervisor, instead_of=forkserver)
        own -= {gate}
        if process.rank is None:
            die_with(request.supervisor)
            _enter(module, process.words, own)
        os._exit(
            run_rank(
                Path(request.run),
                lambda: _enter(module, process.words, own),
                rank=process.rank,
            )
        )
    except BaseException:  # noqa: BLE001 (a child never returns into the forkserver)
        traceback.print_exc()
    finally:
        os._exit(CANNOT_START)


def _await_parent(supervisor: int, *, instead_of: int) -> None:
    """Wait until the supervisor is the parent; exit if another process becomes the parent.

    The wait is short, because the supervisor opens the gate only after this forkserver has ended.
    """
    deadline = time.monotonic() + ORPHAN_SECONDS
    while os.getppid() == instead_of and time.monotonic() < deadline:
        time.sleep(0.001)
    if os.getppid() != supervisor:
        os._exit(CANNOT_START)


def _take_user(user: str | None) -> None:
    """Become the ranks' user for good; without such a user, give up all capabilities."""
    if user is not None:
        become(*map(int, user.split(":")))
        # After a mere change of user, unlike after an exec, a process does not belong to its
        # user: even its own /proc/self is closed. This process holds no secret of the worker.
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    elif os.geteuid():
        drop_capabilities()


def _enter(module: Any, words: list[str], own: set[int]) -> NoReturn:
    """Run the module's entry function in this process as in a new interpreter."""
    try:
        _close_all_but({*STANDARD, *own})
        for number in (signal.SIGTERM, signal.SIGHUP):  # the rank wrapper ignores these signals
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.pop(LAUNCHER_PID, None)
        sys.argv = [module.__name__, *words]
        module.enter()
    except SystemExit as error:  # raised by the command line
        os._exit(error.code if isinstance(error.code, int) else 1)
    except BaseException:  # noqa: BLE001 (as above)
        traceback.print_exc()
    finally:
        os._exit(CANNOT_START)


def _close_all_but(kept: set[int]) -> None:
    # List the open descriptors instead of counting: the limit of open files may be 10^9, and a
    # descriptor may lie above the limit.
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if descriptor not in kept:
            with suppress(OSError):  # the descriptor of the listing itself
                os.close(descriptor)


def _show(name: str, value: str) -> None:
    """Overwrite the value of a variable in `/proc/<pid>/environ`.

    The kernel shows the memory that held the variables at the program's start. With the new value,
    a search by an attempt's marks also finds forked processes and their children.
    """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    address, content = libc.getenv(name.encode()), os.fsencode(value)
    if not address or len(ctypes.string_at(address)) != len(content):
        raise ValueError(f"{name} has no value of {len(content)} bytes here")
    ctypes.memmove(address, content, len(content))
