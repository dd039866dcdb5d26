"""Starts, reaps and ends processes: descendants of a supervisor, or all processes of an attempt."""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from worker.node.cgroup import end_cgroup, make_cgroup, remove_cgroup
from worker.node.process_identity import (
    ProcessStat,
    ids_of,
    open_started_at,
    process_stat,
)
from worker.node.rank_wrapper import CGROUP, ENVIRONMENT
from worker.node.users import RankUser

logger = logging.getLogger(__name__)

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
WRAPPER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("rank_wrapper.py")))
"""Command line that starts the rank wrapper; `tie` or `rank` must follow."""
MARKER, NODE_MARKER = "TRAINYARD_ATTEMPT_ID", "TRAINYARD_NODE"
"""Variables in the environment of every process of an attempt on a node, except its supervisor."""
STUBBORN_SECONDS = 10.0
LOADER = "LD_LIBRARY_PATH"
"""The only variable that the wrapper inherits from the worker; the wrapper's interpreter may need
it to start.
"""
VARIABLES = 3
"""Variable with the descriptor from which the wrapper reads its command's variables."""


class NotEndedError(Exception):
    """This process may not end a process of an attempt, so the attempt has not ended."""


class ProcessTree:
    """All processes of one attempt or operation on this node; starts, reaps and ends them.

    The process that owns the tree is a subreaper. It starts no other processes, because `end` ends
    all its descendants.
    """

    def __init__(
        self, *, user: RankUser | None = None, attempt_id: str | None = None, node: str = ""
    ) -> None:
        """Describe the tree; nothing starts yet.

        Args:
            user: user of the processes; by default, this process' own user.
            attempt_id: id for the mark in the environment of each process; absent for an operation.
            node: name for the second mark; several nodes of an attempt may share a machine.
        """
        self._user = user
        self._attempt_id = attempt_id
        self._node = node
        self._statuses: dict[int, int] = {}

    def spawn(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        output: Path,
        ignored: Sequence[signal.Signals] = (),
    ) -> int:
        """Start a command that ends when this process ends; return the command's pid.

        The command leads its own session. Call this from the main thread, because the kernel ends
        the command when the thread that started the command ends.

        Args:
            command: the command and its arguments.
            environment: variables of the command, without the marks of the attempt.
            output: file to which stdout and stderr are appended.
            ignored: signals that the command ignores unless it handles them.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        return self.attach(
            command,
            environment=environment,
            files=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(output), flags, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            ignored=ignored,
        )

    def attach(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        files: Sequence[tuple[Any, ...]],
        ignored: Sequence[signal.Signals] = (),
    ) -> int:
        """Start a command like `spawn`, but with other standard streams; return the pid.

        Args:
            command: the command and its arguments.
            environment: variables of the command, without the marks of the attempt.
            files: `file_actions` of `os.posix_spawn`. A terminal that they open becomes the
                controlling terminal, because the process already leads a session.
            ignored: as for `spawn`.
        """
        user = self._user.word if self._user else "-"
        names = [each.name for each in ignored]
        words = [*WRAPPER, "tie", str(os.getpid()), user, *names, "--", *command]
        marks: dict[str, str] = {}
        wrapper = {ENVIRONMENT: str(VARIABLES)}
        if LOADER in os.environ:
            wrapper[LOADER] = os.environ[LOADER]
        if self._attempt_id is not None:
            marks = {MARKER: self._attempt_id, NODE_MARKER: self._node}
            if cgroup := make_cgroup(self._attempt_id, node=self._node):
                wrapper[CGROUP] = str(cgroup)
        # The variables are not in the wrapper's own environment. There, a job's variable would act
        # with the worker's rights until the wrapper changes its user; GCONV_PATH, for example,
        # loads code into the C library.
        variables = _variables_file(dict(environment) | marks)
        try:
            return os.posix_spawn(
                words[0],
                words,
                wrapper | marks,
                file_actions=[*files, (os.POSIX_SPAWN_DUP2, variables, VARIABLES)],
                setsid=True,
            )
        finally:
            os.close(variables)

    def status(self, pid: int) -> int | None:
        """Return the exit code of a child, negative for a signal; None while it runs."""
        self._statuses |= reap()
        return self._statuses.get(pid)

    def end(self, *, descendants: bool = True) -> None:
        """End every process of the tree; return when no process is left.

        Four methods find the processes, because each one misses some. The cgroup finds forks that
        outrun the scans. The subreaper finds its descendants. The marks find the processes of a
        dead supervisor. The user id finds processes without marks.

        Args:
            descendants: whether this process' descendants belong to the tree; False in a worker,
                whose descendants belong to Celery.

        Raises:
            NotEndedError: this process may not end a process of the tree.
        """
        cgroup = self._attempt_id and make_cgroup(self._attempt_id, node=self._node)
        if cgroup:
            end_cgroup(cgroup)
        if descendants:
            self._statuses |= _end_descendants()
        if self._attempt_id is not None:
            _end_marked(self._attempt_id, node=self._node)
        if self._user is not None:
            end_user(self._user)
        if cgroup:
            remove_cgroup(cgroup)  # last: the kernel removes only an empty cgroup


def _variables_file(environment: Mapping[str, str]) -> int:
    """Return the descriptor of an in-memory file with the variables for the wrapper."""
    content = b"".join(
        os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items()
    )
    descriptor = os.memfd_create("environment")
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.seek(0)
        # Choose a number above those in `files` of `attach`. One of them could otherwise replace
        # this descriptor before the child copies it.
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)


def become_subreaper() -> None:
    """Become the parent of every descendant that loses its own parent.

    Then `descendants` finds even a daemon that forks twice.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def reap() -> dict[int, int]:
    """Reap every ended child; return exit codes by pid, negative numbers for signals."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def descendants(of: int) -> list[ProcessStat]:
    """Return the running descendants of process `of`."""
    children: dict[int, list[ProcessStat]] = {}
    for stat in _all_processes():
        children.setdefault(stat.parent, []).append(stat)
    found: list[ProcessStat] = []
    parents = [of]
    while parents:
        below = children.get(parents.pop(), [])
        found += below
        parents += [stat.pid for stat in below]
    return [stat for stat in found if not stat.ended]


def _end_descendants() -> dict[int, int]:
    """End all descendants of this subreaper; return the exit codes of its direct children.

    The scan repeats until no descendant is left, because a descendant may fork during the scan. An
    earlier return would hide a process that still holds a slot.
    """
    reaped: dict[int, int] = {}
    for left in _until_none("descendants", lambda: descendants(os.getpid())):
        for stat in left:
            _kill(stat)
        reaped |= reap()
    return reaped | reap()


def _end_marked(attempt_id: str, *, node: str) -> None:
    """End each process with the marks of the attempt and of the node."""
    marks = {f"{MARKER}={attempt_id}".encode(), f"{NODE_MARKER}={node}".encode()}
    _end_all(f"processes of attempt {attempt_id}", lambda pid: _is_marked(pid, marks))


def end_user(user: RankUser) -> None:
    """End each process with the `own` id of a given user of ranks.

    Descendants of a rank cannot gain privileges and so keep its user and its groups. An attempt has
    ended once no process has the id.

    Raises:
        NotEndedError: this process may not end a process of the user.
    """
    own, supervisor = str(user.own), str(os.geteuid())  # a supervisor may have joined the group

    def has_id(pid: int) -> bool:
        uids, gids = ids_of(pid)  # any user can read them
        return own in uids or (own in gids and supervisor not in uids)

    _end_all(f"processes of user {user.uid}", has_id)


def _end_all(what: str, matches: Callable[[int], bool]) -> None:
    def living() -> list[ProcessStat]:
        return [stat for stat in _all_processes() if not stat.ended and matches(stat.pid)]

    for left in _until_none(what, living):
        for stat in left:
            if not _kill(stat):
                raise NotEndedError(f"pid {stat.pid} of the {what} may not be ended")


def _until_none(what: str, find: Callable[[], list[ProcessStat]]) -> Iterator[list[ProcessStat]]:
    """Yield the remaining processes, with growing pauses, until none remains.

    Logs one warning if the wait takes long.
    """
    pause, started, warned = 0.005, time.monotonic(), False
    while left := find():
        yield left
        time.sleep(pause)
        pause = min(2 * pause, 0.2)
        if not warned and time.monotonic() - started > STUBBORN_SECONDS:
            logger.warning("%s do not end, as in a driver that hangs; waiting for them", what)
            warned = True


def _kill(stat: ProcessStat) -> bool:
    """End a process; return False if this process may not end it."""
    pidfd = open_started_at(stat.pid, stat.start_time)  # None if another process has the pid by now
    if pidfd is None:
        return True
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return True
    except PermissionError as error:
        logger.debug("pid %d: %s", stat.pid, error)
        return False
    finally:
        os.close(pidfd)
    return True


def _all_processes() -> Iterator[ProcessStat]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (stat := process_stat(int(folder.name))):
            yield stat


def _is_marked(pid: int, marks: set[bytes]) -> bool:
    try:
        return marks <= set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:  # it has ended, or belongs to another user
        return False
