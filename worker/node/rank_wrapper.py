"""Ties processes to their parents, and records each rank's exit; this file runs as a script.

`rank_wrapper.py tie PARENT USER [SIGNAL...] -- COMMAND` becomes COMMAND, which the kernel ends when
the process PARENT ends. USER is `uid:gid:umask:gid...`, or `-` for the present user. COMMAND
ignores the signals unless it handles them. A variable names the descriptor that holds COMMAND's
variables.

`rank_wrapper.py rank RUN [RANK FOLDER] -- COMMAND` runs a rank. torchrun, or else the supervisor,
starts the wrapper. RANK is the rank's number; when absent or `-`, the variable `RANK` holds the
number. The wrapper runs COMMAND as its child in FOLDER (`-` for its present folder), appends stdout
and stderr to `logs/rank-<r>.log`, and writes `ranks/<r>.start` and `ranks/<r>.end`. torchrun reaps
its ranks itself and does not report their exits, so only a parent in between sees every exit code,
signal and time. The wrapper ignores SIGTERM, with which torchrun ends the other ranks after a
failure. So the other ranks can write their errors in the time that the supervisor grants.
"""

# Imports only the standard library, because each rank has a wrapper process, which stays in memory
# as long as the rank. It runs without site-packages (`python -I -S`).

import ctypes
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 38, 47  # linux/prctl.h
PR_CAP_AMBIENT_CLEAR_ALL = 4
CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h
LAUNCHER_PID = "TRAINYARD_LAUNCHER_PID"
CGROUP = "TRAINYARD_CGROUP"
ENVIRONMENT = "TRAINYARD_ENVIRONMENT_FD"
CANNOT_START, NOT_FOUND = 126, 127  # a shell's exit statuses for a program that cannot start


def main(words: list[str]) -> int:
    """Run `tie` or `rank`."""
    end = words.index("--")
    (kind, subject, *more), command = words[:end], words[end + 1 :]
    if kind == "tie":
        user, *ignored = more
        return tie(int(subject), user, ignored=ignored, command=command)
    rank, folder = more or ("-", "-")
    return run_rank(
        Path(subject),
        lambda: execute(command),
        rank=int(os.environ["RANK"] if rank == "-" else rank),
        folder=None if folder == "-" else folder,
    )


def tie(parent: int, user: str, *, ignored: list[str], command: list[str]) -> int:
    """Join the attempt's cgroup, if any, and become `command`; return only on failure.

    Only the worker's user may join the cgroup, so the join comes first. A change of user resets the
    parent-death signal, so the signal is set after that change. A final check detects whether the
    parent ended before the signal was set.
    """
    if cgroup := os.environ.pop(CGROUP, None):
        Path(cgroup, "cgroup.procs").write_text("0", encoding="ascii")
    if user != "-":
        become(*map(int, user.split(":")))
    elif os.geteuid():  # an exec by root returns all capabilities, so root keeps them
        drop_capabilities()
    die_with(parent)
    forbid_core_dumps()
    variables = os.environ.pop(ENVIRONMENT, None)
    environment = dict(os.environ) if variables is None else read_environment(int(variables))
    environment[LAUNCHER_PID] = str(os.getpid())
    return execute(command, ignored, environment)


def forbid_core_dumps() -> None:
    """Let this process and its children leave no core file, which would hold secrets of the job.

    A command may raise the limit again for itself.
    """
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


def read_environment(descriptor: int) -> dict[str, str]:
    """Return the variables in an open file, each `NAME=value` and a NUL; close the file."""
    with os.fdopen(descriptor, "rb") as file:
        pairs = file.read().split(b"\0")[:-1]
    return dict(os.fsdecode(pair).split("=", 1) for pair in pairs)


def become(uid: int, gid: int, umask: int, *groups: int) -> None:
    """Become a user for good; drop all capabilities and all means to regain one."""
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    drop_capabilities()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    os.umask(umask)


def drop_capabilities() -> None:
    """Give up all capabilities, also those that the next exec would keep.

    A worker other than root holds ambient capabilities, which survive an exec, and a change between
    users other than root. Once they are cleared, the next exec has no capability. A forked rank has
    no next exec, so its other sets are emptied too.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")
    if libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def run_rank(run: Path, begin: Callable[[], int], *, rank: int, folder: str | None = None) -> int:
    """Run a rank to its end; return its exit code, or 128 plus its signal number.

    `begin` turns a new process into the rank; if `begin` returns, its result is the exit code.
    After an order to stop, this function returns 0; the record has the true exit code.
    """
    launcher = int(os.environ.pop(LAUNCHER_PID))
    if launcher != os.getpid():  # without torchrun, `tie` became this process
        die_with(launcher)
    # Set before the fork, because torchrun may send SIGTERM any time after the fork.
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    log = os.open(run / "logs" / f"rank-{rank}.log", flags, 0o644)
    may_start, start = os.pipe()
    wrapper = os.getpid()
    pid = os.fork()
    if pid == 0:
        become_rank(wrapper, log, may_start=may_start, begin=begin, folder=folder)
    write_record(run / "ranks" / f"{rank}.start", {"pid": pid, "start_time": start_time(pid)})
    os.write(start, b"1")  # after the write, so that no rank runs without a record
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    ended: dict[str, object] = {
        "exit_code": code if code >= 0 else None,
        "signal": signal_name(-code) if code < 0 else None,
        "time": time.time(),
    }
    write_record(run / "ranks" / f"{rank}.end", ended)
    if (run / "stop").exists():
        return 0  # else torchrun ends the other ranks after 30 s, maybe in a save
    return code if code >= 0 else 128 - code


def signal_name(number: int) -> str:
    """Return the name of a signal, such as `SIGKILL` or, if real-time, `SIGRTMIN+3`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


def become_rank(
    wrapper: int, log: int, *, may_start: int, begin: Callable[[], int], folder: str | None
) -> None:
    """Become the rank once the wrapper has recorded this process' pid."""
    try:
        os.setsid()  # torchrun sends signals to the wrapper's process group
        forbid_core_dumps()  # a forked rank was not tied
        die_with(wrapper)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.read(may_start, 1)
        if folder is not None:
            os.chdir(folder)
        os._exit(begin())
    except OSError as error:
        os.write(2, f"{folder}: {error.strerror}\n".encode())
    finally:
        os._exit(CANNOT_START)


def execute(
    command: list[str], ignored: list[str] | None = None, environment: dict[str, str] | None = None
) -> int:
    """Become `command`, with default handling of most signals; on failure, print why.

    Otherwise the command would inherit ignored or blocked signals: SIGINT and SIGQUIT from a worker
    that a shell started in the background, SIGHUP from `nohup`, and SIGPIPE and SIGXFSZ from this
    interpreter.
    """
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    for name in ignored or ():
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    try:
        os.execvpe(command[0], command, os.environ if environment is None else environment)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_START


def die_with(parent: int) -> None:
    """Let the kernel end this process when its parent ends; end it now if the parent has ended."""
    # Set the signal first: the signal or the comparison then detects a parent that ends in between.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(CANNOT_START)


def start_time(pid: int) -> int:
    """Return the start time of a process, in clock ticks after boot."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return int(stat[stat.rindex(")") + 2 :].split()[19])


def write_record(path: Path, record: dict[str, object]) -> None:
    """Write a file atomically, so that no process reads an incomplete file."""
    # Not `trainyard.run.atomic`: the library is not found without site-packages, and its import
    # would slow the wrapper's start from 32 to 51 ms. No other process writes the file.
    draft = path.with_name(f".{path.name}.part")
    draft.write_text(json.dumps(record), encoding="ascii")
    draft.rename(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
